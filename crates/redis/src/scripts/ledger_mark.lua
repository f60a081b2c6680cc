-- Marks a user as deleted, for a day. Each call makes a mark that was not there before, also if it is
-- repeated or late. KEYS: the mark.
local clock = redis.call('TIME')
redis.call('DEL', KEYS[1]) -- Also without memory.
redis.call('SET', KEYS[1], clock[1] .. '.' .. clock[2], 'PX', 86400000)
