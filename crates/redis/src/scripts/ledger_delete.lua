-- Deletes records of a requester, and takes them out of the lists. Returns the number of records. A repetition
-- counts only what the first run has left.
-- KEYS: the index of all records of the requester, the records, the lists. ARGV: the number of records, their ids.
local count, deleted, is_key = tonumber(ARGV[1]), 0, {}
for at = count + 2, #KEYS do is_key[KEYS[at]] = true end
for at = 2, count + 1 do
    for list, place in pairs(cjson.decode(redis.call('HGET', KEYS[at], 'lists') or '{}')) do
        -- A list that the caller has not found has the record since. It names no record then.
        if is_key[list] then redis.call('ZREM', list, place) end
    end
    deleted = deleted + redis.call('UNLINK', KEYS[at])
end
redis.call('ZREM', KEYS[1], unpack(ARGV, 2))
return deleted
