-- One chat as a log. KEYS[1] is its head: a hash. KEYS[2] lists its entries, KEYS[3] has the positions of
-- those that are no frames, and KEYS[4] lists the messages of its snapshot. The other keys are of its user:
-- KEYS[5] has the live run of each chat, KEYS[6] what lists show of each chat as JSON, and KEYS[7] the chats
-- by the time of their last update, KEYS[8] what a sink has to get of each chat, and KEYS[9] the chats that expire, by
-- this time. ARGV[1] is the id of the chat.
local FORMAT = 1
-- How long a run that has ended is kept for readers, in milliseconds.
local KEPT_AFTER_END = 600000
-- A time that is further in the future was stored before the clock was set back.
local MAX_SET_BACK = 60000

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function text(number)
    return string.format('%.0f', number)
end

-- Returns the head. Returns nothing if there is no log or if its time has passed, and an error if a newer
-- version has written it.
local function load_head()
    local stored = redis.call('HMGET', KEYS[1], 'format', 'epoch', 'control', 'first', 'folded', 'expires_at')
    local format = tonumber(stored[1])
    if not format then return nil end
    if format > FORMAT then
        return nil, redis.error_reply(string.format('NEWERLOG %.0f %.0f', format, FORMAT))
    end
    local expires_at, first = tonumber(stored[6]), tonumber(stored[4])
    if expires_at and now >= expires_at then return nil end
    return {
        epoch = stored[2], control = tonumber(stored[3]), first = first, folded = tonumber(stored[5]),
        length = first + redis.call('LLEN', KEYS[2]), expires_at = expires_at
    }
end

-- A live run is stored as text: when its lease was set, its duration, when a client read the run last, 1 if
-- it has to end, where it begins, and its id. `log_frames.lua` changes the first two.
local function parse_live(stored)
    local leased_at, lease, read_at, has_to_end, begin, run =
        string.match(stored, '^(%d+) (%d+) (%d+) (%d) (%d+) (.*)$')
    return {
        leased_at = tonumber(leased_at), lease = tonumber(lease), read_at = tonumber(read_at),
        has_to_end = tonumber(has_to_end), begin = tonumber(begin), run = run
    }
end

local function load_live(chat)
    local stored = redis.call('HGET', KEYS[5], chat)
    return stored and parse_live(stored) or nil
end

local function store_live(chat, live)
    redis.call('HSET', KEYS[5], chat, string.format('%.0f %.0f %.0f %d %.0f ', live.leased_at, live.lease,
        live.read_at, live.has_to_end, live.begin) .. live.run)
end

local function is_lost(live)
    return now >= live.leased_at + live.lease or live.leased_at - now > MAX_SET_BACK
end

-- How long no client has read a run.
local function unread(live)
    return live.read_at - now <= MAX_SET_BACK and now - live.read_at or math.huge
end

-- Returns the head as the store reads it.
local function head_reply(head, live)
    local numbers = {tonumber(head.epoch), head.length, head.control}
    if not live then return {numbers, false, 0, 0, 0} end
    local time = math.min(math.max(unread(live), 0), 9e15)
    return {numbers, live.run, is_lost(live) and 1 or 0, time, live.has_to_end}
end

-- Returns the first values of a list from this index on that have this number of bytes together, and at
-- least one. So many bytes of each value do not count.
local function page(key, index, max_bytes, uncounted)
    local values, bytes = {}, 0
    while true do
        local stored = redis.call('LRANGE', key, index, index + 15)
        for _, value in ipairs(stored) do
            bytes = bytes + #value - uncounted
            if bytes > max_bytes and #values > 0 then return values end
            values[#values + 1] = value
        end
        if #stored < 16 then return values end
        index = index + 16
    end
end

-- Removes what the lists of the user hold of a chat.
local function unlist(chat)
    for _, key in ipairs({KEYS[5], KEYS[6]}) do redis.call('HDEL', key, chat) end
    for _, key in ipairs({KEYS[7], KEYS[9]}) do redis.call('ZREM', key, chat) end
end

-- What a sink has to get of a chat is stored as text: the epoch, the number of entries or the position of a
-- deletion, and 1 if the sink has it.
local DELETED = '9007199254740991'

local function load_delivery(chat)
    local stored = redis.call('HGET', KEYS[8], chat)
    if not stored then return nil end
    local epoch, position, is_delivered = string.match(stored, '^(%d+) (%d+) (%d)$')
    return {epoch = epoch, position = position, is_delivered = is_delivered == '1'}
end

local function store_delivery(chat, epoch, position)
    redis.call('HSET', KEYS[8], chat, epoch .. ' ' .. position .. ' 0')
end

-- A sink has to get that the log is gone of which it had to get the messages.
local function deliver_deletion(chat, delivery)
    if delivery.position ~= DELETED then store_delivery(chat, delivery.epoch, DELETED) end
end

-- Returns what lists show of a chat, or nothing if its time has passed.
local function load_listed(chat)
    local json = redis.call('HGET', KEYS[6], chat)
    local listed = json and cjson.decode(json)
    if listed and (not listed.expires_at or now < listed.expires_at) then return listed end
end

-- Compares the bytes of two ids. The operator `<` of Lua compares them by the rules of a language.
local function is_less(one, other)
    for at = 1, math.min(#one, #other) do
        local left, right = string.byte(one, at), string.byte(other, at)
        if left ~= right then return left < right end
    end
    return #one < #other
end

-- Lets the keys of the log expire when the time of the chat has passed.
local function expire(expires_at)
    for at = 1, 4 do
        if expires_at then
            redis.call('PEXPIREAT', KEYS[at], text(expires_at))
        else
            redis.call('PERSIST', KEYS[at])
        end
    end
end
