-- The indexes of a record: KEYS hold those of the pending records of its chat and of its requester, the
-- clock, the index of all records of the requester, and that of the pending records of all requesters.
--
-- A member of an index of pending records is the place of a record: the time at which it expires, in 16
-- digits, a hyphen, and its id. All have the same score, so they are in the order of their places. A
-- member of the index of all records is an id, scored by the time at which the record is deleted.
local IN_CHAT, OF_REQUESTER, CLOCK, ALL, PENDING = unpack(KEYS, 1, 5)

local function put(index, member, score, forget_at)
    redis.call('ZADD', index, score, member)
    local left = redis.call('PTTL', index)
    if left < 0 or time + left < tonumber(forget_at) then
        redis.call('PEXPIREAT', index, forget_at)
    end
end

-- Updates the indexes after a write, and stores the time that the ledger's clock must not fall
-- below.
local function wrote(place, forget_at, is_pending)
    local forgotten = string.format('(%016.0f', math.max(time - 86400000, 0))
    for _, index in ipairs({IN_CHAT, OF_REQUESTER, PENDING}) do
        redis.call('ZREMRANGEBYLEX', index, '-', forgotten)
        if is_pending then
            put(index, place, 0, forget_at)
        else
            redis.call('ZREM', index, place)
        end
    end
    redis.call('ZREMRANGEBYSCORE', ALL, '-inf', time)
    tell_time(CLOCK)
    redis.call('SET', CLOCK, now, 'PX', 60000)
end
