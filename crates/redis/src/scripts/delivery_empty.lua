-- A chat has nothing, unless it was added since. If it had nothing before, it is removed.
-- KEYS: the chats by the time of the next look. ARGV: the chat, the time of `delivery_next.lua`, whether it had
-- nothing before.
if redis.call('ZSCORE', KEYS[1], ARGV[1]) ~= ARGV[2] then return end
redis.call('ZREM', KEYS[1], '') -- Also without memory.
if ARGV[3] == '1' then
    redis.call('ZREM', KEYS[1], ARGV[1])
else
    local clock = redis.call('TIME')
    local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
    redis.call('ZADD', KEYS[1], string.format('%.0f', now + 60000) .. '.5', ARGV[1])
end
