-- Inserts a record. Returns 1 if this attempt inserted it, else 0.
local by = redis.call('HGET', KEYS[1], 'inserted')
if by then return by == attempt and 1 or 0 end
redis.call('HSET', KEYS[1], 'record', json, 'revision', '0', 'inserted', attempt,
    'requested', requested, 'open', is_open, 'redis', identity() or '', 'in_chat', KEYS[2])
redis.call('PEXPIREAT', KEYS[1], forget_at)
put(KEYS[5])
return wrote(is_pending)
