-- Appends entries and changes the head. Returns the result, and the position of the first entry with the head.
-- ARGV, further: the channel; what is expected (`none`, `control` or `position`), the epoch, the number;
-- the lease (empty if it stays), whether it must have passed; the change of the live run (`none`, `begins`,
-- `resumes` or `ends`), the run; whether lists are changed, the title, whether there are questions; the time to live
-- (empty if there is none); the maximum numbers of chats and runs, the time after which a run that is not
-- read may have to end; the number of control entries; whether the append is for a sink; what its hint says of the
-- entries, and the entries.
local FIRST_ENTRY = 20
local chat, channel, expected, epoch, number = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local lease, only_lost, change, run = tonumber(ARGV[6]), ARGV[7] == '1', ARGV[8], ARGV[9]
local keep_for, controls = tonumber(ARGV[13]), tonumber(ARGV[17])

local head, newer = load_head()
if newer then return newer end
local live = head and load_live(chat) or nil

local function is_expected()
    if expected == 'none' or not head then return expected == 'none' and not head end
    return head.epoch == epoch and head[expected == 'control' and 'control' or 'length'] == number
end

-- Whether the user may have another chat.
local function has_room()
    local count = redis.call('ZCARD', KEYS[7]) - redis.call('ZCOUNT', KEYS[9], '-inf', text(now))
    return count < tonumber(ARGV[14])
end

-- Returns whether the user may begin a run, and the chat whose run has to end for it.
local function find_place()
    local stored, count, oldest, oldest_chat = redis.call('HGETALL', KEYS[5]), 0, nil, nil
    for at = 1, #stored, 2 do
        local other, other_live = stored[at], parse_live(stored[at + 1])
        if not is_lost(other_live) and other_live.has_to_end == 0 and load_listed(other) then
            count = count + 1
            local time = unread(other_live)
            local is_older = not oldest or time > oldest
                or time == oldest and is_less(other, oldest_chat)
            if is_older then oldest, oldest_chat = time, other end
        end
    end
    if count < tonumber(ARGV[15]) then return true end
    return oldest ~= nil and oldest >= tonumber(ARGV[16]), oldest_chat
end

if not is_expected() or only_lost and not (live and is_lost(live)) then return {'conflict', false} end
if not head and not has_room() then return {'too many chats', false} end
local has_new_run = change == 'begins' or change == 'resumes'
if has_new_run and not live then
    local has_place, unread_chat = find_place()
    if not has_place then return {'too many runs', false} end
    if unread_chat then
        local other = load_live(unread_chat)
        other.has_to_end = 1
        store_live(unread_chat, other)
    end
end

local is_new, had_time = not head, head and head.expires_at
head = head or {epoch = epoch, length = 0, control = 0, first = 0}
local first, count = head.length, #ARGV - FIRST_ENTRY + 1
head.length, head.control = first + count, head.control + controls
if is_new then
    -- The chat may have had a log whose time has passed. A sweep may have removed it from the lists before its
    -- keys expire.
    if redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3], KEYS[4]) > 0
        or redis.call('HEXISTS', KEYS[6], chat) == 1
    then
        -- A Redis without memory refuses the first write of a script, and no other. So the first one is no
        -- deletion.
        redis.call('HSET', KEYS[1], 'format', FORMAT)
        redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
        unlist(chat)
    end
    redis.call('HSET', KEYS[1], 'format', FORMAT, 'epoch', epoch, 'first', 0, 'control', text(head.control))
    publish(channel, 'created')
elseif controls > 0 then
    redis.call('HSET', KEYS[1], 'control', text(head.control))
end
-- Lua passes a limited number of arguments to a function.
local is_new_list = is_new
for at = FIRST_ENTRY, #ARGV, 1000 do
    local last = math.min(at + 999, #ARGV)
    local stored = redis.call('RPUSH', KEYS[2], unpack(ARGV, at, last))
    is_new_list = is_new_list or stored == last - at + 1
    -- The position of each entry that is no frame, as score and member.
    local positions = {}
    for entry = at, last do
        if string.sub(ARGV[entry], 1, 1) ~= 'F' then
            local position = text(first + entry - FIRST_ENTRY)
            positions[#positions + 1], positions[#positions + 2] = position, position
        end
    end
    if #positions > 0 then
        redis.call('ZADD', KEYS[3], unpack(positions))
        is_new_list = true
    end
end

if change ~= 'none' then
    local begin = change == 'resumes' and live and live.begin or first
    -- A run may begin and end in this append.
    if change == 'ends' or change == 'begins' and live then
        local ended = cjson.decode(redis.call('HGET', KEYS[1], 'ended') or '[]')
        ended[#ended + 1] = {live and live.begin or first, now}
        redis.call('HSET', KEYS[1], 'ended', cjson.encode(ended))
    end
    live = has_new_run and {
        run = run, begin = begin, lease = 0, leased_at = now, read_at = now, has_to_end = 0
    } or nil
end
if live and lease then live.lease, live.leased_at = lease, now end
if live and (lease or change ~= 'none') then
    store_live(chat, live)
elseif change ~= 'none' then
    redis.call('HDEL', KEYS[5], chat)
end

if is_new or controls > 0 or ARGV[10] == '1' then
    local listed = not is_new and load_listed(chat)
        or {title = '', is_renamed = false, has_questions = false}
    if ARGV[10] == '1' then
        if not listed.is_renamed then listed.title = ARGV[11] end
        listed.has_questions = ARGV[12] == '1'
    end
    if controls > 0 then head.expires_at = keep_for and now + keep_for end
    listed.expires_at, listed.control = head.expires_at, head.control
    redis.call('HSET', KEYS[6], chat, cjson.encode(listed))
    if is_new or controls > 0 then
        -- If the clock was set back a bit, the chat that is updated now is still the newest.
        local newest = tonumber(redis.call('ZREVRANGE', KEYS[7], 0, 0, 'WITHSCORES')[2] or '0')
        local time = newest > now and newest <= now + MAX_SET_BACK and newest or now
        redis.call('ZADD', KEYS[7], text(time), chat)
    end
    if controls > 0 then
        if keep_for then
            redis.call('HSET', KEYS[1], 'expires_at', text(head.expires_at))
            redis.call('ZADD', KEYS[9], text(head.expires_at), chat)
        elseif had_time then
            redis.call('HDEL', KEYS[1], 'expires_at')
            redis.call('ZREM', KEYS[9], chat)
        end
    end
end
if (had_time or head.expires_at) and (controls > 0 or is_new_list) then expire(head.expires_at) end
if ARGV[18] == '1' then store_delivery(chat, head.epoch, text(head.length)) end
if count > 0 then publish_append(channel, text(head.length), FIRST_ENTRY - 1, #ARGV) end
if is_new or controls > 0 or ARGV[10] == '1' or change ~= 'none' then publish(KEYS[7], 'changed') end
return {'appended', {first, head_reply(head, live)}}
