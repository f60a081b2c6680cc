-- Deletes a log. Returns 1 if there was one, else 0.
-- ARGV, further: the channel, the epoch and the number of control entries. If the epoch is empty, the number
-- is the time of the last update, and the log may be of a newer version.
local head, newer = load_head()
local is_same
if ARGV[3] == '' then
    is_same = redis.call('ZSCORE', KEYS[7], ARGV[1]) == ARGV[4]
elseif newer then
    return newer
else
    is_same = head and head.epoch == ARGV[3] and head.control == tonumber(ARGV[4])
end
if not is_same then return 0 end
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
unlist(ARGV[1])
publish(ARGV[2], 'deleted')
return (head or newer) and 1 or 0
