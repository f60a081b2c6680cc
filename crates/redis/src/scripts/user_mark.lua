-- Marks a user as deleted, for a day. KEYS: the mark. ARGV: a random text, and whether only a mark that is
-- there is replaced.
if ARGV[2] == '1' and redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', 86400000)
return 1
