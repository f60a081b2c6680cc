-- Returns all fields of a chat, or 1 if it has this revision. KEYS: the chat. ARGV: the revision.
if redis.call('HGET', KEYS[1], 'revision') == ARGV[1] then return 1 end
return redis.call('HGETALL', KEYS[1])
