-- Fails if Redis cannot be written. KEYS: any key of this script only.
return redis.call('SET', KEYS[1], '', 'PX', 60000)
