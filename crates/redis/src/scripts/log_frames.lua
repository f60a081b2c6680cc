-- Appends frames to logs with live runs, and sets the leases of the runs. `log_append.lua` does the same for one log:
-- most appends are of this kind, and this script does as little as possible. Returns for each append the number of
-- control entries, the run, how long no client has read it, in milliseconds, and whether it has to end; or nothing if
-- `log_append.lua` has to look at the log. The keys of a chat whose time has passed have expired.
-- KEYS, for each append: the head and the entries of the log, the live runs of the user.
-- ARGV, for each append: the id of the chat, the channel, the epoch, the position, the lease, the length after the
-- append, the number of frames, what its hint says of the frames, and the frames.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function append(head_key, entries_key, live_key, at, last)
    local head = redis.call('HMGET', head_key, 'format', 'epoch', 'first', 'control')
    local live = redis.call('HGET', live_key, ARGV[at])
    if head[1] ~= '1' or head[2] ~= ARGV[at + 2] or not live then return false end
    local stored = redis.call('LLEN', entries_key)
    -- A list that begins needs the time to live of the chat.
    if stored == 0 or head[3] + stored ~= tonumber(ARGV[at + 3]) then return false end
    local rest, read_at, has_to_end, run = string.match(live, '^%d+ %d+( (%d+) (%d) %d+ (.*))$')
    redis.call('HSET', live_key, ARGV[at], string.format('%.0f ', now) .. ARGV[at + 4] .. rest)
    if last >= at + 8 then
        redis.call('RPUSH', entries_key, unpack(ARGV, at + 8, last))
        publish_append(ARGV[at + 1], ARGV[at + 5], at + 7, last)
    end
    -- A read that is further in the future was before the clock was set back.
    local unread = read_at - now > 60000 and 9e15 or math.max(now - read_at, 0)
    return {tonumber(head[4]), run, unread, tonumber(has_to_end)}
end

local replies, at = {}, 1
for key = 1, #KEYS, 3 do
    local last = at + 7 + ARGV[at + 6]
    -- An append that fails is none of the others: `log_append.lua` finds out why.
    local is_done, reply = pcall(append, KEYS[key], KEYS[key + 1], KEYS[key + 2], at, last)
    replies[#replies + 1] = is_done and reply
    at = last + 1
end
return replies
