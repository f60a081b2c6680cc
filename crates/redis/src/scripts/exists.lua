-- Returns whether there is this key. KEYS: the key.
return redis.call('EXISTS', KEYS[1])
