-- Gives a chat a title that appends do not change. Returns 1 if there is such a chat, else 0.
-- ARGV, further: the title.
local head, newer = load_head()
if newer then return newer end
local listed = head and load_listed(ARGV[1])
if not listed then return 0 end
listed.title, listed.is_renamed = ARGV[2], true
redis.call('HSET', KEYS[6], ARGV[1], cjson.encode(listed))
publish(KEYS[7], 'changed')
return 1
