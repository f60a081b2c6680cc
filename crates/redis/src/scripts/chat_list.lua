-- Returns the ids, the times and the titles of a user's chats, the last saved first.
-- KEYS: the list of the chats by the time of their last save, their titles.
-- ARGV: the time and the id after which the page begins (the time is empty for the first page), the
-- number of chats.
local after, after_id, count = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])

-- Compares the bytes of two ids. The operator `<` of Lua compares them by the rules of a language.
local function is_less(one, other)
    for at = 1, math.min(#one, #other) do
        local left, right = string.byte(one, at), string.byte(other, at)
        if left ~= right then return left < right end
    end
    return #one < #other
end

-- The rows before the offset stay in the list. Expired rows are removed, and do not count.
local found, offset = {}, 0
while #found < count do
    local rows = redis.call('ZREVRANGEBYSCORE', KEYS[1], after and ARGV[1] or '+inf', '-inf',
        'WITHSCORES', 'LIMIT', offset, math.max(count - #found, 100))
    if #rows == 0 then break end
    for at = 1, #rows, 2 do
        if #found == count then break end
        local id, saved_at = rows[at], tonumber(rows[at + 1])
        local is_after = saved_at ~= after or is_less(id, after_id)
        local title = not is_after or title_of(id, KEYS[1], KEYS[2])
        if title then offset = offset + 1 end
        if is_after and title then found[#found + 1] = {id, saved_at, title} end
    end
end
return found
