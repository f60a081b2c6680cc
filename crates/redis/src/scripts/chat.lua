-- The clock, and what the scripts of chats share.
local clock = redis.call('TIME')
local time = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- Returns the title of a chat. If the time to live of the chat has passed, removes it from the list
-- of the chats and from their titles instead, and returns nothing.
local function title_of(id, chats, titles)
    local expires_at, title = string.match(redis.call('HGET', titles, id) or '', '^(%d*) (.*)$')
    expires_at = tonumber(expires_at)
    if not expires_at or expires_at > time then return title or '' end
    redis.call('ZREM', chats, id)
    redis.call('HDEL', titles, id)
end

-- Whether this attempt is among the last that have saved or deleted the chat. Its reply was lost
-- then. Others may have saved, deleted or created the chat since.
local function has_taken_effect(attempts, attempt)
    for _, earlier in ipairs(redis.call('LRANGE', attempts, 0, -1)) do
        if earlier == attempt then return true end
    end
    return false
end

-- Remembers an attempt for a minute. An operation is repeated within seconds.
local function remember(attempts, attempt)
    redis.call('LPUSH', attempts, attempt)
    redis.call('LTRIM', attempts, 0, 31)
    redis.call('PEXPIRE', attempts, 60000)
end
