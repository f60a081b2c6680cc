-- Deletes records of a requester, and takes them out of the lists. Returns the number of records, and the lists and
-- places in other slots that they had. A repetition counts only what the first run has left.
-- KEYS: the index of all records of the requester, the records, the lists. ARGV: the number of records, their ids.
local count, deleted, is_key, left = tonumber(ARGV[1]), 0, {}, {}
for at = count + 2, #KEYS do is_key[KEYS[at]] = true end
for at = 2, count + 1 do
    local kept = redis.call('HMGET', KEYS[at], 'lists', 'elsewhere')
    for _, text in ipairs(unused(cjson.decode(kept[2] or '{}'), {})) do left[#left + 1] = text end
    for list, place in pairs(cjson.decode(kept[1] or '{}')) do
        -- A list that the caller has not found has the record since. It names no record then.
        if is_key[list] then redis.call('ZREM', list, place) end
    end
    deleted = deleted + redis.call('UNLINK', KEYS[at])
end
redis.call('ZREM', KEYS[1], unpack(ARGV, 2))
return {deleted, left}
