-- Sets the time of the next look at a chat, unless the chat was added during this look. A chat that has nothing
-- is looked at again in a minute, and is removed if it had nothing at the last look.
-- KEYS: the chats by the time of the next look. ARGV: the chat, the time of `due_next.lua`, whether the chat had
-- nothing at the last look, the next time (empty if the chat has nothing).
if redis.call('ZSCORE', KEYS[1], ARGV[1]) ~= ARGV[2] then return end
redis.call('ZREM', KEYS[1], '') -- Also without memory.
if ARGV[4] ~= '' then
    redis.call('ZADD', KEYS[1], ARGV[4], ARGV[1])
elseif ARGV[3] == '1' then
    redis.call('ZREM', KEYS[1], ARGV[1])
else
    local clock = redis.call('TIME')
    local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
    redis.call('ZADD', KEYS[1], string.format('%.0f', now + 60000) .. '.5', ARGV[1])
end
