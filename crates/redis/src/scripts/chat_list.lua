-- Returns the ids, the times and the titles of a user's chats, the last saved first.
-- KEYS: the list of the chats by the time of their last save, their titles.
-- ARGV: the time and the id after which the page begins (the time is empty for the first page), the
-- number of chats.
local clock = redis.call('TIME')
local time = clock[1] * 1000 + math.floor(clock[2] / 1000)
local after, after_id, count = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])

-- Compares the bytes of two ids. The operator `<` of Lua compares them by the rules of a language.
local function is_less(one, other)
    for at = 1, math.min(#one, #other) do
        local left, right = string.byte(one, at), string.byte(other, at)
        if left ~= right then return left < right end
    end
    return #one < #other
end

local found, expired, offset = {}, {}, 0
while #found < count do
    local rows = redis.call('ZREVRANGEBYSCORE', KEYS[1], after and ARGV[1] or '+inf', '-inf',
        'WITHSCORES', 'LIMIT', offset, 100)
    if #rows == 0 then break end
    for at = 1, #rows, 2 do
        local id, saved_at = rows[at], tonumber(rows[at + 1])
        if saved_at ~= after or is_less(id, after_id) then
            local expires_at, title =
                string.match(redis.call('HGET', KEYS[2], id) or '', '^(%d*) (.*)$')
            expires_at = tonumber(expires_at)
            if expires_at and expires_at <= time then
                expired[#expired + 1] = id
            elseif #found < count then
                found[#found + 1] = {id, saved_at, title or ''}
            end
        end
    end
    offset = offset + 100
end
for _, id in ipairs(expired) do
    redis.call('ZREM', KEYS[1], id)
    redis.call('HDEL', KEYS[2], id)
end
return found
