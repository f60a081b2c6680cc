-- Returns some chats of a user. KEYS: the chats by the time of their last update.
return redis.call('ZRANGE', KEYS[1], 0, 99)
