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

-- Returns the result of this attempt if it is among the last that have saved or deleted the chat, or
-- were refused. Its reply was lost then. Others may have saved, deleted or created the chat since.
local function known_result(attempts, attempt)
    for _, known in ipairs(redis.call('LRANGE', attempts, 0, -1)) do
        if string.sub(known, 1, -2) == attempt then return tonumber(string.sub(known, -1)) end
    end
end

-- Remembers the result of an attempt, a digit, for a minute: an operation is repeated within seconds.
-- Returns the result.
local function remember(attempts, attempt, result)
    -- If there is no memory, a refusal is not remembered.
    redis.pcall('LPUSH', attempts, attempt .. result)
    redis.pcall('LTRIM', attempts, 0, 31)
    redis.pcall('PEXPIRE', attempts, 60000)
    return result
end
