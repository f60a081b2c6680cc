-- Returns the ids in an index. KEYS: the index. ARGV: the number of ids.
return redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1)
