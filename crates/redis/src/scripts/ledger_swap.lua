-- Replaces a record that has the expected revision. Returns 1 if this attempt replaced it, else 0.
-- KEYS: the clock, the record, its lists. ARGV: the JSON of the record, the time at which it is deleted, whether
-- its call may begin, a random id of this attempt, the expected revision, the next one, whether the record begins
-- a call that may begin once only, and the place of the record in each of its lists, or an empty text. Returns 2,
-- and replaces nothing, if that call may not begin, because this Redis may have lost that it began before.
local json, forget_at, is_open, attempt, expected, revision, begins = unpack(ARGV, 1, 7)
local CLOCK, record = KEYS[1], KEYS[2]
local kept = redis.call('HMGET', record, 'revision', 'replaced', 'open', 'redis')
if kept[1] == revision and kept[2] == attempt then return 1 end
if kept[1] ~= expected then return 0 end
if begins == '1' and kept[3] ~= '0' and kept[4] ~= identity() then return 2 end
redis.call('HSET', record, 'record', json, 'revision', revision, 'replaced', attempt, 'open', is_open)
put_into_lists(record, {unpack(KEYS, 3)}, {unpack(ARGV, 8)}, forget_at)
keep_time(CLOCK)
return 1
