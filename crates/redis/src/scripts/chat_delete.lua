-- Deletes a chat that has this revision. Returns 1 if this attempt deleted it, else 0.
-- KEYS: the chat, the list of the user's chats, their titles, the attempt that deleted the chat.
-- ARGV: the id of the chat, the revision, a random id of this attempt.
local revision = redis.call('HGET', KEYS[1], 'revision')
if revision == ARGV[2] then
    redis.call('UNLINK', KEYS[1])
    redis.call('ZREM', KEYS[2], ARGV[1])
    redis.call('HDEL', KEYS[3], ARGV[1])
    -- The reply may be lost, and the attempt repeated.
    redis.call('SET', KEYS[4], ARGV[3], 'PX', 60000)
    return 1
end
return not revision and redis.call('GET', KEYS[4]) == ARGV[3] and 1 or 0
