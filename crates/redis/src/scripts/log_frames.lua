-- Appends frames to a log with a live run, and sets the lease of the run. `log_append.lua` does the same: most
-- appends are of this kind, and this script does as little as possible. Returns the number of control entries,
-- the run, how long no client has read it, in milliseconds, and whether it has to end. Returns nothing if
-- `log_append.lua` has to look at the log. The keys of a chat whose time has passed have expired.
-- KEYS: the head and the entries of the log, the live runs of the user.
-- ARGV: the id of the chat, the channel, the epoch, the position, the lease, the length after the append, what its
-- hint says of the frames, and the frames.
local head = redis.call('HMGET', KEYS[1], 'format', 'epoch', 'first', 'control')
local live = redis.call('HGET', KEYS[3], ARGV[1])
if head[1] ~= '1' or head[2] ~= ARGV[3] or not live then return false end
local stored = redis.call('LLEN', KEYS[2])
-- A list that begins needs the time to live of the chat.
if stored == 0 or head[3] + stored ~= tonumber(ARGV[4]) then return false end
local rest, read_at, has_to_end, run = string.match(live, '^%d+ %d+( (%d+) (%d) %d+ (.*))$')
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('HSET', KEYS[3], ARGV[1], string.format('%.0f ', now) .. ARGV[5] .. rest)
if #ARGV > 7 then
    redis.call('RPUSH', KEYS[2], unpack(ARGV, 8))
    publish_append(ARGV[2], ARGV[6], 7)
end
-- A read that is further in the future was before the clock was set back.
local unread = read_at - now > 60000 and 9e15 or math.max(now - read_at, 0)
return {tonumber(head[4]), run, unread, tonumber(has_to_end)}
