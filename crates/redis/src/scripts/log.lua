-- One chat as a log. KEYS[1] is its head: a hash. KEYS[2] lists its entries, KEYS[3] has the positions of
-- those that are no frames, and KEYS[4] lists the messages of its snapshot. The other keys are of its user:
-- KEYS[5] has the live run of each chat, KEYS[6] what lists show of each chat, both as JSON, and KEYS[7]
-- the chats by the time of their last update. ARGV[1] is the id of the chat.
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
    local stored = redis.call('HMGET', KEYS[1], 'format', 'epoch', 'length', 'control', 'first', 'folded',
        'expires_at')
    local format = tonumber(stored[1])
    if not format then return nil end
    if format > FORMAT then
        return nil, redis.error_reply(string.format('NEWERLOG %.0f %.0f', format, FORMAT))
    end
    local head = {
        epoch = stored[2], length = tonumber(stored[3]), control = tonumber(stored[4]),
        first = tonumber(stored[5]), folded = tonumber(stored[6]), expires_at = tonumber(stored[7])
    }
    if not head.expires_at or now < head.expires_at then return head end
end

local function load_live(chat)
    local json = redis.call('HGET', KEYS[5], chat)
    return json and cjson.decode(json) or nil
end

local function store_live(chat, live)
    redis.call('HSET', KEYS[5], chat, cjson.encode(live))
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
    return {numbers, live.run, is_lost(live) and 1 or 0, time, live.has_to_end and 1 or 0}
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
    redis.call('ZREM', KEYS[7], chat)
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
