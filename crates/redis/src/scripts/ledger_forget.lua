-- Removes the places of records that are gone from a list. KEYS: the list. ARGV: the places.
redis.call('ZREM', KEYS[1], unpack(ARGV))
