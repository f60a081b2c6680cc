-- Returns chats that are to be swept now, and a time. Until this time, others sweep other chats.
-- KEYS: the chats by the time of their sweep. ARGV: the maximum number of chats.
-- Also without memory: Redis executes all writes of a script whose first one it allows.
redis.call('ZREM', KEYS[1], '')
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local chats = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
local later = string.format('%.0f', now + 60000)
for _, chat in ipairs(chats) do redis.call('ZADD', KEYS[1], later, chat) end
return {later, chats}
