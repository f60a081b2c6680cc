-- Replaces a record that has the expected revision. Returns 1 if this attempt replaced it, else 0.
-- KEYS, further: the record. ARGV: the JSON of the record, its place in an index, the time at which it
-- is deleted, whether it is pending, whether its call may begin, a random id of this attempt, the
-- expected revision, the next one, and the JSON of the record with an unknown outcome, or an empty text
-- if the call may begin in any case. Returns 2 if the call may not begin, because this Redis may have
-- lost that it began before. The record has an unknown outcome then.
local json, place, forget_at, is_pending, is_open, attempt = unpack(ARGV, 1, 6)
local record = KEYS[6]
local kept = redis.call('HMGET', record, 'revision', 'replaced', 'open', 'redis')
if kept[1] == ARGV[8] and kept[2] == attempt then return 1 end
if kept[1] ~= ARGV[7] then return 0 end
if ARGV[9] ~= '' and kept[3] ~= '0' and kept[4] ~= identity() then
    redis.call('HSET', record, 'record', ARGV[9], 'revision', ARGV[8], 'replaced', '', 'open', '0')
    wrote(place, forget_at, false)
    return 2
end
redis.call('HSET', record, 'record', json, 'revision', ARGV[8], 'replaced', attempt, 'open', is_open)
wrote(place, forget_at, is_pending == '1')
return 1
