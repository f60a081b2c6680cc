-- Returns the time, a page of the records of an index, the place after which the next page begins,
-- and the number of all records of the index that have not expired. Returns nothing if the index
-- does not hold exactly the records that were asked for.
-- KEYS: the clock, the index, the records of the index. ARGV: the time and the id after which the
-- page begins, the number of records, how long records are kept, the ids of the records.
if redis.call('ZCARD', KEYS[2]) ~= #KEYS - 2 then return false end
tell_time(KEYS[1])
local after, after_id, limit = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local rest = {}
for at = 3, #KEYS do
    local id = ARGV[at + 2]
    if not redis.call('ZSCORE', KEYS[2], id) then return false end
    local kept = redis.call('HMGET', KEYS[at], 'revision', 'requested')
    -- A record that an earlier version inserted has no such field, and comes first.
    local requested = tonumber(kept[2] or '0')
    if kept[1] and (requested > after or requested == after and id > after_id) then
        rest[#rest + 1] = {requested, id, KEYS[at]}
    end
end
table.sort(rest, function(one, other)
    return one[1] < other[1] or one[1] == other[1] and one[2] < other[2]
end)
local found = {}
for at = 1, math.min(limit, #rest) do
    local key = rest[at][3]
    local kept = redis.call('HMGET', key, 'revision', 'record')
    found[at] = {key, kept[1], kept[2]}
end
local next_page = {}
if #rest > #found and #found > 0 then next_page[1] = {rest[#found][1], rest[#found][2]} end
local expired = string.format('(%.0f', now + tonumber(ARGV[4]))
return {now, found, next_page, redis.call('ZCOUNT', KEYS[2], expired, '+inf')}
