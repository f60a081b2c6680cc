-- Returns the ids in the index of all records of a requester. KEYS: the index. ARGV: the number of ids.
return redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1)
