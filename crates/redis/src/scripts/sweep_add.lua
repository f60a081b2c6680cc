-- Lets a chat be swept after some time, or earlier. KEYS: the chats by the time of their sweep.
-- ARGV: the chat, the time in milliseconds.
local clock = redis.call('TIME')
local due = clock[1] * 1000 + math.floor(clock[2] / 1000) + ARGV[2]
-- A sweep of this chat that is under way finds another time, and keeps the chat. The time has no fraction.
local known = math.floor(tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 'inf'))
redis.call('ZADD', KEYS[1], string.format('%.0f', math.min(due, known - 1)), ARGV[1])
