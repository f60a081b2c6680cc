-- Deletes a chat that has this revision. Returns 1 if this attempt deleted it, else 0.
-- KEYS: the chat, the list of the user's chats, their titles, the last attempts.
-- ARGV: the id of the chat, the revision, a random id of this attempt.
if has_taken_effect(KEYS[4], ARGV[3]) then return 1 end
if redis.call('HGET', KEYS[1], 'revision') ~= ARGV[2] then return 0 end
redis.call('UNLINK', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1])
remember(KEYS[4], ARGV[3])
return 1
