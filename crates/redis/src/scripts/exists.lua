-- Returns whether there is one of these keys. KEYS: the keys.
return redis.call('EXISTS', unpack(KEYS)) > 0
