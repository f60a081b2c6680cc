-- Saves a chat if it has the revision that is replaced. Returns 1 if this attempt saved it, 2 if the
-- chat is new and the user has too many, else 0.
-- KEYS: the chat, the list of the user's chats by the time of their last save, their titles,
-- the last attempts.
-- ARGV: the id of the chat, the revision that is replaced (empty if the chat is new), the new
-- revision, the head, the title, the number of messages, the time to live in milliseconds (empty if
-- there is none), the maximum number of the user's chats (empty if there is none), and the places and
-- the bodies of the messages that have changed.
local id, replaced, revision = ARGV[1], ARGV[2], ARGV[3]
local length, keep_for, max_chats = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local kept = redis.call('HMGET', KEYS[1], 'revision', 'length')
-- The revision is random: only this attempt has it.
local known = known_result(KEYS[4], revision)
if known then return known end
if (kept[1] or '') ~= replaced then return remember(KEYS[4], revision, 0) end
if replaced == '' and max_chats and redis.call('ZCARD', KEYS[2]) >= max_chats then
    -- The chats whose time has passed do not count. The first write of a script is no deletion (see
    -- run_begin.lua), so that they stay for now.
    local live = 0
    for _, title in ipairs(redis.call('HVALS', KEYS[3])) do
        local expires_at = tonumber(string.match(title, '^%d*'))
        if not expires_at or expires_at > time then live = live + 1 end
    end
    if live >= max_chats then return remember(KEYS[4], revision, 2) end
end

-- If Redis's clock was set back a bit, the chat that is saved now is still the newest.
local now = time
local newest = tonumber(redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2] or '0')
if newest > time and newest <= time + 60000 then now = newest end

redis.call('HSET', KEYS[1], 'revision', revision, 'head', ARGV[4], 'length', length)
for at = 9, #ARGV, 2 do
    redis.call('HSET', KEYS[1], 'm' .. ARGV[at], ARGV[at + 1])
end
for place = length, tonumber(kept[2] or '0') - 1 do
    redis.call('HDEL', KEYS[1], 'm' .. place)
end

-- Returns the time until which the last of the chats is kept. Returns nothing if one of them has no
-- time to live, or if there are more than 5,000. Chats without a time to live are usually older
-- than the others, so the oldest are looked at first.
local function last_expiry()
    local last = 0
    for first = 0, 5000, 100 do
        local ids = redis.call('ZRANGE', KEYS[2], first, first + 99)
        if #ids == 0 then return last end
        for _, title in ipairs(redis.call('HMGET', KEYS[3], unpack(ids))) do
            local expires_at = tonumber(string.match(title or '', '^%d*'))
            if not expires_at then return nil end
            last = math.max(last, expires_at)
        end
    end
end

-- The lists are kept as long as any of the chats in them.
local left = redis.call('PTTL', KEYS[2])
redis.call('ZADD', KEYS[2], now, id)
local expires_at = keep_for and string.format('%.0f', time + keep_for) or ''
redis.call('HSET', KEYS[3], id, expires_at .. ' ' .. ARGV[5])
-- Lists without a time to live have held a chat without one, and perhaps hold none any longer.
local last = keep_for and left == -1 and last_expiry()
for at = 1, 3 do
    if not keep_for then
        redis.call('PERSIST', KEYS[at])
    elseif at == 1 or left == -2 or left >= 0 and left < keep_for then
        redis.call('PEXPIRE', KEYS[at], ARGV[7])
    elseif last then
        redis.call('PEXPIREAT', KEYS[at], string.format('%.0f', last))
    end
end
-- A user who saves chats and never lists them keeps no titles of expired chats.
for _, old in ipairs(redis.call('ZRANGE', KEYS[2], 0, 9)) do
    title_of(old, KEYS[2], KEYS[3])
end
return remember(KEYS[4], revision, 1)
