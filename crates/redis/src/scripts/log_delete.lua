-- Deletes a log. Returns 1 if there was one, else 0.
-- ARGV, further: the channel, the epoch and the number of control entries. If the epoch is empty, the number
-- is the time of the last update, and the log may be of a newer version. Last, whether the chat is in the list of
-- those that may have something undelivered. If it has to be, and is not, nothing is deleted, and 2 is returned.
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
local delivery = load_delivery(ARGV[1])
local is_for_sink = delivery and not (head and head.epoch ~= delivery.epoch)
if is_for_sink and ARGV[5] ~= '1' then return 2 end
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
if is_for_sink then deliver_deletion(ARGV[1], delivery) end
unlist(ARGV[1])
publish(ARGV[2], 'deleted')
publish(KEYS[7], 'changed')
return (head or newer) and 1 or 0
