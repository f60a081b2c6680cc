-- Replaces a record that has the expected revision. Returns 1 if this attempt replaced it, else 0.
-- ARGV, further: the expected revision, the next one, and the JSON of the record with an unknown
-- outcome, or an empty text if the call may begin in any case. Returns 2 if the call may not begin,
-- because this Redis may have lost that it began before. The record has an unknown outcome then.
local kept = redis.call('HMGET', KEYS[1], 'revision', 'replaced', 'open', 'redis')
if kept[1] == ARGV[9] and kept[2] == attempt then return 1 end
if kept[1] ~= ARGV[8] then return 0 end
if ARGV[10] ~= '' and kept[3] ~= '0' and kept[4] ~= identity() then
    redis.call('HSET', KEYS[1], 'record', ARGV[10], 'revision', ARGV[9], 'replaced', '',
        'open', '0')
    wrote(false)
    return 2
end
redis.call('HSET', KEYS[1], 'record', json, 'revision', ARGV[9], 'replaced', attempt,
    'open', is_open)
return wrote(is_pending)
