-- Deletes a log. Returns 1 if there was one, else 0.
-- ARGV, further: the channel, the epoch and the number of control entries. If the epoch is empty, any log
-- is deleted.
local head, newer = load_head()
local is_any = ARGV[3] == ''
if newer and not is_any then return newer end
local is_same = head and head.epoch == ARGV[3] and head.control == tonumber(ARGV[4])
if not is_any and not is_same then return 0 end
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
unlist(ARGV[1])
publish(ARGV[2], 'deleted')
return (head or newer) and 1 or 0
