-- Runs steps of one slot, each of which is compared alone. Returns the time of the clock, and for each step whether it
-- was applied (-1 if another program has written one of its keys) and what it has found.
-- A row is a hash: `v` is its version, `b` its bytes, and the number of a sequence the position of the first item of
-- this sequence. A sequence is a list. The first byte of an item is its kind. A list of members is a sorted set
-- without scores: its members begin with their places, so that they are in the order of their bytes.
-- KEYS: those of each step, which its arguments number from 1 on. ARGV: whether no step follows one that fails, the
-- time by which the steps were decided (0 if they only read), and for each step: the number of the arguments that follow
-- the first two, the number of keys, the number of comparisons, the comparisons, the number of arguments of the writes,
-- the writes, and the reads. Each of them is the name of one of the functions below and what it takes.
local call, clock = redis.call, redis.call('TIME')
-- Nothing is written that was decided before the clock was set back by more than a minute.
local at, base, is_set_back = 3, 0, clock[1] * 1000 + 60000 < tonumber(ARGV[2])
-- What is known of rows and sequences in this step, by their keys; the arguments that are the items of the last push,
-- and the position after them.
local rows, sequences, pushed, last

local function text(number) return string.format('%.0f', number) end
local function take()
    at = at + 1
    return ARGV[at - 1]
end
local function number() return tonumber(take()) end
local function key() return KEYS[base + number()] end

-- Returns the version and the bytes of a row, and where its sequences begin.
local function load(name)
    rows[name] = rows[name] or call('HMGET', name, 'v', 'b', '0', '1', '2', '3')
    return rows[name]
end

-- Takes a row and one of its sequences.
local function sequence()
    local row, field, list = key(), take(), key()
    if not sequences[list] then
        local first = tonumber(load(row)[3 + field] or nil)
        sequences[list] = {row = row, field = field, list = list, first = first, count = first and call('LLEN', list) or 0}
    end
    return sequences[list]
end

local function begin(items, first)
    if items.first ~= first then call('HSET', items.row, items.field, text(first)) end
    items.first = first
end

local functions = {
    -- Comparisons.
    is = function() return (load(key())[1] or '0') == take() end,
    -- Whether there is the row, and whether its sequence ends where it has to.
    ends = function()
        local items, first, expected = sequence(), take(), take()
        if items.count > 0 then first = text(items.first + items.count) end
        return load(items.row)[1] and (expected == '' or first == expected)
    end,
    -- Writes. A Redis without memory refuses one that needs some, if it is the first one of the script.
    put = function()
        local name, version, bytes = key(), take(), take()
        call('HSET', name, 'v', version, 'b', bytes)
        if rows[name] then rows[name][1], rows[name][2] = version, bytes end
    end,
    delete = function()
        call('UNLINK', key(), key(), key(), key(), key())
        rows, sequences = {}, {}
    end,
    push = function()
        local items, first, count, stored = sequence(), number(), number(), 0
        if items.count == 0 and count > 0 then begin(items, first) end
        pushed = {at, at + count - 1, (items.first or first) + items.count + count}
        at = at + count
        -- Lua passes a limited number of arguments to a function.
        for from = pushed[1], pushed[2], 1000 do
            stored = call('RPUSH', items.list, unpack(ARGV, from, math.min(from + 999, pushed[2])))
        end
        items.count = items.count + count
        -- The list may have items of a row that was evicted.
        if stored > items.count then call('LTRIM', items.list, text(-items.count), -1) end
    end,
    keep = function()
        local items, from, to = sequence(), number(), number()
        local first, last = math.max(from, items.first or 0), math.min(to, (items.first or 0) + items.count)
        local count = math.max(last - first, 0)
        if count == items.count then return end
        -- If none stay, the limits are those of an empty list.
        local start = count > 0 and first - items.first or 1
        call('LTRIM', items.list, start, start + count - 1)
        items.count = count
        if count > 0 then begin(items, first) end
    end,
    leave = function() call('ZREM', key(), take()) end,
    enter = function() call('ZADD', key(), 0, take()) end,
    -- A user of Redis without permission for the channel cannot publish, and its readers look for themselves.
    tell = function() redis.pcall(PUBLISH, take(), take()) end,
    -- The position after the last push, and its items after what is said of them, unless that is nothing.
    tell_pushed = function()
        local channel, said, last = take(), take(), text(pushed[3])
        redis.pcall(PUBLISH, channel, said == '' and last or last .. said .. table.concat(ARGV, '', pushed[1], pushed[2]))
    end,
    -- Reads.
    row = function() local row = load(key()) return row[1] and {row[1], row[2]} end,
    ending = function()
        local items = sequence()
        return items.count > 0 and items.first + items.count
    end,
    -- Returns the version of the row, the position of the first item that was not looked at (nothing if no item follows
    -- or fits), and the items with their positions. Looks at items of so many bytes, and at least at one.
    items = function()
        local items, from, max_bytes, max_part, only_marked = sequence(), number(), number(), number(), take() == '1'
        local version, bytes, part, found, positions = load(items.row)[1], 0, 0, {}, {}
        local first = math.max(from, items.first or 0)
        local position, after = first, (items.first or 0) + items.count
        while position < after do
            for _, item in ipairs(call('LRANGE', items.list, position - items.first, position - items.first + 15)) do
                part = part + #item - 1
                if part > max_part and position > first then return {version, position, found, positions} end
                if not only_marked or string.sub(item, 1, 1) ~= '0' then
                    bytes = bytes + #item - 1
                    if bytes > max_bytes and #found > 0 then return {version, false, found, positions} end
                    found[#found + 1], positions[#positions + 1] = item, position
                end
                position = position + 1
            end
        end
        return {version, false, found, positions}
    end,
    -- Takes the command, the list, the limits and the number of members.
    members = function() return call(take(), key(), take(), take(), 'LIMIT', 0, take()) end,
}
local function run() return functions[take()]() end

local function step()
    local is_applied, found = not is_set_back, {}
    for _ = 1, number() do is_applied = run() and is_applied end
    local first_read = number() + at
    while is_applied and at < first_read do run() end
    at = first_read
    while at < last do found[#found + 1] = run() end
    return {is_applied and 1 or 0, found}
end

local replies = {}
while at <= #ARGV do
    local count, keys = number(), number()
    last, rows, sequences = at + count, {}, {}
    local is_run, reply = pcall(step)
    local failed = not is_run and (reply.err or reply)
    if failed and not string.find(failed, 'WRONGTYPE') then return {err = string.gsub(failed, '^%U', 'ERR %0')} end
    replies[#replies + 1] = failed and {-1, {}} or reply
    if failed and ARGV[1] == '1' then break end
    at, base = last, base + keys
end
return {clock[1], clock[2], replies}
