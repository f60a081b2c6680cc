-- Removes chats from those that are swept. KEYS: the chats by the time of their sweep. ARGV: the chats.
return redis.call('ZREM', KEYS[1], unpack(ARGV))
