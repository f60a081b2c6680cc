-- Deletes records of a requester and the indexes that list them. Returns the number of records. A
-- repetition counts only what the first run has left.
-- KEYS: the index of all records of the requester, the index of the pending ones, the records, the
-- indexes of their chats, the index of the pending records of all requesters. ARGV: the number of records, their ids.
local count, deleted, places = tonumber(ARGV[1]), 0, {}
for at = 3, count + 2 do
    places[#places + 1] = redis.call('HGET', KEYS[at], 'place') or nil
    deleted = deleted + redis.call('UNLINK', KEYS[at])
end
redis.call('ZREM', KEYS[1], unpack(ARGV, 2))
if #places > 0 then
    for at = 2, #KEYS do
        if at == 2 or at > count + 2 then redis.call('ZREM', KEYS[at], unpack(places)) end
    end
end
return deleted
