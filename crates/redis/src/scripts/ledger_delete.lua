-- Deletes records of a requester and the indexes that list them. Returns the number of records. A
-- repetition counts only what the first run has left.
-- KEYS: the index of all records of the requester, the index of the pending ones, the records, the
-- indexes of their chats. ARGV: the number of records, their ids.
local count, deleted = tonumber(ARGV[1]), 0
for at = 3, #KEYS do
    local is_deleted = redis.call('UNLINK', KEYS[at])
    if at <= count + 2 then deleted = deleted + is_deleted end
end
for at = 2, #ARGV do
    redis.call('ZREM', KEYS[1], ARGV[at])
    redis.call('ZREM', KEYS[2], ARGV[at])
end
return deleted
