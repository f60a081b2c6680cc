-- Inserts a record. Returns 1 if this attempt inserted it, else 0. If the requester was deleted,
-- returns the mark of the deletion, unless it is the one that the caller knows.
-- KEYS, further: the mark of a requester who was deleted. ARGV, further: the mark that the caller knows.
local by = redis.call('HGET', KEYS[1], 'inserted')
if by then return {by == attempt and 1 or 0, ''} end
local mark = redis.call('GET', KEYS[6])
if mark and mark ~= ARGV[8] then return {0, mark} end
redis.call('HSET', KEYS[1], 'record', json, 'revision', '0', 'inserted', attempt,
    'requested', requested, 'open', is_open, 'redis', identity() or '', 'in_chat', KEYS[2])
redis.call('PEXPIREAT', KEYS[1], forget_at)
put(KEYS[5])
return {wrote(is_pending), ''}
