-- KEYS: the record, the indexes of its chat and of its requester, the clock, the index of all
-- records of the requester. ARGV: the id of the record, its JSON, a random id of this attempt, the
-- time at which it is deleted, whether it is pending, whether its call may begin, and the time of
-- the request.
local id, json, attempt, forget_at = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local is_pending, is_open, requested = ARGV[5] == '1', ARGV[6], ARGV[7]

local function put(index)
    redis.call('ZREMRANGEBYSCORE', index, '-inf', time)
    redis.call('ZADD', index, forget_at, id)
    local left = redis.call('PTTL', index)
    if left < 0 or time + left < tonumber(forget_at) then
        redis.call('PEXPIREAT', index, forget_at)
    end
end

-- Updates the indexes after a write, and stores the time that the ledger's clock must not fall
-- below.
local function wrote(is_pending)
    for at = 2, 3 do
        if is_pending then put(KEYS[at]) else redis.call('ZREM', KEYS[at], id) end
    end
    tell_time(KEYS[4])
    redis.call('SET', KEYS[4], now, 'PX', 60000)
    return 1
end
