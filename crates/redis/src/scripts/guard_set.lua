-- Stores the first use of an approval. Returns the name of an earlier use, or nothing. The attempt
-- that stored its use gets nothing again, if its first response was lost.
local name = redis.call('HGET', KEYS[1], 'name')
if name then
    if redis.call('HGET', KEYS[1], 'attempt') == ARGV[2] then return false end
    return name
end
redis.call('HSET', KEYS[1], 'name', ARGV[1], 'attempt', ARGV[2])
redis.call('PEXPIREAT', KEYS[1], ARGV[3])
return false
