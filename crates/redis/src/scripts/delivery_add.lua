-- Lets a chat be looked at now. KEYS: the chats by the time of the next look. ARGV: the chat.
local clock = redis.call('TIME')
local now = string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000))
redis.call('ZADD', KEYS[1], now, ARGV[1])
