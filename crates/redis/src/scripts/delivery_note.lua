-- Notes a delivery. Returns the epoch and the position of what comes next, or nothing.
-- ARGV, further: the epoch and the position of what was delivered.
local delivery = load_delivery(ARGV[1])
if not delivery then
    if ARGV[3] == DELETED then return false end
    return {tonumber(ARGV[2]), tonumber(DELETED)}
end
local stored, noted = tonumber(delivery.epoch), tonumber(ARGV[2])
local is_acknowledged = stored < noted and delivery.position == DELETED
    or stored == noted and tonumber(delivery.position) <= tonumber(ARGV[3])
if not is_acknowledged then
    return {stored, tonumber(delivery.position)}
end
redis.call('HDEL', KEYS[1], '') -- Also without memory.
if ARGV[3] == DELETED then
    redis.call('HDEL', KEYS[8], ARGV[1])
else
    redis.call('HSET', KEYS[8], ARGV[1], ARGV[2] .. ' ' .. ARGV[3] .. ' 1')
end
return false
