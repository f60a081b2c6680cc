-- Returns the ids of some chats of a user, and the fields of all runs. KEYS: the list of the chats,
-- the runs.
return {redis.call('ZRANGE', KEYS[1], 0, 99), redis.call('HKEYS', KEYS[2])}
