-- Replaces a record that has the expected revision. Returns 1 if this attempt replaced it, else 0. Or 2, and replaces
-- nothing, if its call may begin once only and may not begin, because this Redis may have lost that it began before.
-- Or 3, and replaces nothing, if the record is not in all lists of other slots that are to have it. The lists and
-- places in other slots that the record does not have follow, and after 3 the lists that it is not in.
-- KEYS: the clock, the record, its lists. ARGV: the JSON of the record, the time at which it is deleted, whether
-- its call may begin, a random id of this attempt, the expected revision, the next one, whether the record begins
-- a call that may begin once only, the places in other slots without their ends, and those that were put there for
-- this attempt, both as JSON, and the place of the record in each of its lists, or an empty text.
local json, forget_at, is_open, attempt, expected, revision, begins = unpack(ARGV, 1, 7)
local CLOCK, record = KEYS[1], KEYS[2]
local kept = redis.call('HMGET', record, 'revision', 'replaced', 'open', 'redis', 'elsewhere')
local had, new = cjson.decode(kept[5] or '{}'), cjson.decode(ARGV[9])
if kept[1] == revision and kept[2] == attempt then return {1, unused(new, had)} end
if kept[1] ~= expected then return {0, unused(new, had)} end
if begins == '1' and kept[3] ~= '0' and kept[4] ~= identity() then return {2, unused(new, had)} end
local has, lacks = {}, {}
for list, place in pairs(cjson.decode(ARGV[8])) do
    has[list] = new[list] or had[list]
    if not has[list] or string.sub(has[list], 1, #place) ~= place then lacks[#lacks + 1] = list end
end
if #lacks > 0 then return {3, lacks} end
refuse_late(new)
redis.call('HSET', record, 'record', json, 'revision', revision, 'replaced', attempt, 'open', is_open)
if kept[5] or next(has) then redis.call('HSET', record, 'elsewhere', cjson.encode(has)) end
put_into_lists(record, {unpack(KEYS, 3)}, {unpack(ARGV, 10)}, forget_at)
keep_time(CLOCK)
return {1, unused(had, has)}
