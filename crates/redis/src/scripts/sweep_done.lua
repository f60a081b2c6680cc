-- Sets when a chat is swept again, unless it was changed during the sweep.
-- KEYS: the chats by the time of their sweep. ARGV: the chat, the time of `sweep_next.lua`, the next time
-- (empty if there is none).
if redis.call('ZSCORE', KEYS[1], ARGV[1]) ~= ARGV[2] then return end
redis.call('ZREM', KEYS[1], '') -- Also without memory.
if ARGV[3] ~= '' then
    redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])
else
    redis.call('ZREM', KEYS[1], ARGV[1])
end
