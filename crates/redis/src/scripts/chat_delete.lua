-- Deletes a chat that has this revision. Returns 1 if this attempt deleted it, else 0.
-- KEYS: the chat, the list of the user's chats, their titles, the last attempts.
-- ARGV: the id of the chat, the revision, a random id of this attempt.
local known = known_result(KEYS[4], ARGV[3])
if known then return known end
if redis.call('HGET', KEYS[1], 'revision') ~= ARGV[2] then
    return remember(KEYS[4], ARGV[3], 0)
end
redis.call('UNLINK', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1])
return remember(KEYS[4], ARGV[3], 1)
