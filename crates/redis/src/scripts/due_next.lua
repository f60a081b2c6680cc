-- Returns a time, and the chats that are to be looked at now, each with whether it had nothing at the last look.
-- Until this time, others look at other chats. A time with a fraction is that of a chat that had nothing.
-- KEYS: the chats by the time of the next look. ARGV: the maximum number of chats, the pause in milliseconds, in
-- how many milliseconds a look can be at most (a later one was set before the clock was set back), and how many
-- milliseconds ago the time has come at least.
redis.call('ZREM', KEYS[1], '') -- Also without memory.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local later = string.format('%.0f', now + ARGV[2])
local chats, limit = {}, tonumber(ARGV[1])
local function take(from, to)
    local found = redis.call('ZRANGEBYSCORE', KEYS[1], from, to, 'WITHSCORES', 'LIMIT', 0, limit - #chats)
    for at = 1, #found, 2 do
        chats[#chats + 1] = {found[at], tonumber(found[at + 1]) % 1 > 0 and 1 or 0}
    end
end
take('-inf', '(' .. string.format('%.0f', now - ARGV[4] + 1))
take('(' .. string.format('%.0f', now + ARGV[3] + 1), '+inf')
for _, chat in ipairs(chats) do redis.call('ZADD', KEYS[1], later, chat[1]) end
return {later, chats}
