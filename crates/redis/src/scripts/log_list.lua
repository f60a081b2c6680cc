-- Returns chats of the user, the last updated first: the id, the time, the title, whether a run is live,
-- whether there are questions, and the number of control entries. If there may be more after the chats that this
-- script has looked at, also the time and the id of the last one of these. The first four keys are not used.
-- ARGV: nothing; the time and the id after which the page begins (the time is empty for the first page),
-- the number of chats, whether chats are searched, and for what, in lower case.
local after, after_id, limit = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

local function is_found(title)
    return ARGV[5] ~= '1' or string.find(string.lower(title), ARGV[6], 1, true) ~= nil
end

local found, offset, looked, last = {}, 0, 0, nil
while #found < limit and looked < 500 do
    local rows = redis.call('ZREVRANGEBYSCORE', KEYS[7], after and ARGV[2] or '+inf', '-inf',
        'WITHSCORES', 'LIMIT', offset, 100)
    for at = 1, #rows, 2 do
        local chat, time = rows[at], tonumber(rows[at + 1])
        -- Chats of one time are in the descending order of the bytes of their ids.
        local is_next = #found < limit and (time ~= after or is_less(chat, after_id))
        if is_next then looked, last = looked + 1, {rows[at + 1], chat} end
        local listed = is_next and load_listed(chat)
        if listed and is_found(listed.title) then
            local is_live = redis.call('HEXISTS', KEYS[5], chat)
            found[#found + 1] = {
                chat, time, listed.title, is_live, listed.has_questions and 1 or 0, listed.control
            }
        end
    end
    if #rows < 200 then return {found, false} end
    offset = offset + 100
end
return {found, last}
