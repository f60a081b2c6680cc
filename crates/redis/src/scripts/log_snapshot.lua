-- Stores a snapshot. Returns 1 if it was stored, else 0.
-- ARGV, further: the epoch, the position, the snapshot without its messages, the position of the snapshot
-- whose messages are unchanged (empty if all are written), how many of them, and the changed ones.
local head, newer = load_head()
if newer then return newer end
local position, base, kept = tonumber(ARGV[3]), tonumber(ARGV[5]), tonumber(ARGV[6])
if not head or head.epoch ~= ARGV[2] then return 0 end
if position > head.length or head.folded and head.folded >= position then return 0 end
if base and (head.folded ~= base or redis.call('LLEN', KEYS[4]) < kept) then return 0 end
redis.call('HSET', KEYS[1], 'folded', text(position), 'snapshot', ARGV[4])
if kept > 0 then
    redis.call('LTRIM', KEYS[4], 0, kept - 1)
else
    redis.call('UNLINK', KEYS[4])
end
for at = 7, #ARGV, 1000 do
    redis.call('RPUSH', KEYS[4], unpack(ARGV, at, math.min(at + 999, #ARGV)))
end
if head.expires_at then expire(head.expires_at) end
return 1
