-- Returns the name of the first use of an approval, or nothing.
return redis.call('HGET', KEYS[1], 'name')
