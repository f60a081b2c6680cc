-- The lists of a record. `lists` of its hash holds those in its slot that have it, as JSON: their keys, and its place
-- in each.
--
-- A member of a list is the place of a record: the time by which the list has it, in 16 digits, a hyphen, and its
-- id. All have the same score, so they are in the order of their places. A member of the index of all records of a
-- requester is an id, scored by the time at which the record is deleted.
local function put(index, member, score, forget_at)
    redis.call('ZADD', index, score, member)
    local left = redis.call('PTTL', index)
    if left < 0 or time + left < tonumber(forget_at) then
        redis.call('PEXPIREAT', index, forget_at)
    end
end

-- Takes those out of a list of pending records that expired more than a day ago, and are gone.
local function trim(list)
    if not string.find(list, 'list:to-notify', 1, true) then
        redis.call('ZREMRANGEBYLEX', list, '-', string.format('(%016.0f', math.max(time - 86400000, 0)))
    end
end

-- Puts a record into the lists in which it has a place, and takes it out of the others.
local function put_into_lists(record, lists, places, forget_at)
    local before, now_in = cjson.decode(redis.call('HGET', record, 'lists') or '{}'), {}
    for at, list in ipairs(lists) do
        trim(list)
        if before[list] and before[list] ~= places[at] then redis.call('ZREM', list, before[list]) end
        if places[at] ~= '' then
            put(list, places[at], 0, forget_at)
            now_in[list] = places[at]
        end
    end
    redis.call('HSET', record, 'lists', cjson.encode(now_in))
end

-- Stores the time that the ledger's clock must not fall below.
local function keep_time(clock)
    tell_time(clock)
    redis.call('SET', clock, now, 'PX', 60000)
end
