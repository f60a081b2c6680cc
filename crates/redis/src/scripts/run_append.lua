-- Appends entries and renews the lease. Returns the result (`appended`, or why the entries were
-- refused), how long no reader has read the log, in milliseconds, and whether the run has to end.
-- ARGV, further: the channel of the run, the fence, the position, whether the log ends, and the
-- entries.
local run, newer = load()
if newer then return newer end
if not run then return {'not found', 0, 0} end
if text(run.fence) ~= ARGV[3] then return {'taken', 0, 0} end
local length, position = redis.call('LLEN', KEYS[2]), tonumber(ARGV[4])
local count, ends = #ARGV - 5, ARGV[5] == '1'
if position > length then return {'gap', 0, 0} end
local appended = {'appended', math.max(now - run.read, 0), run.has_to_end and 1 or 0}

-- Whether the log holds these entries at this position.
local function holds()
    if count == 0 then return true end
    local stored = redis.call('LRANGE', KEYS[2], position, position + count - 1)
    for at = 1, count do
        if stored[at] ~= ARGV[5 + at] then return false end
    end
    return true
end

if position < length or run.ended then
    local renews_only = count == 0 and not ends
    local ends_alike = not ends or run.ended and length - position == count
    if not renews_only and ends_alike and holds() then return appended end
    return {run.ended and 'ended' or 'gap', 0, 0}
end
-- Lua passes a limited number of arguments to a function.
for first = 6, #ARGV, 1000 do
    redis.call('RPUSH', KEYS[2], unpack(ARGV, first, math.min(first + 999, #ARGV)))
end
if ends then
    run.ended = now
    store(ARGV[1], run)
    redis.call('ZADD', KEYS[3], text(now + RETENTION), ARGV[1])
    keep(run)
    -- The log is there as long as the run is found.
    redis.call('PEXPIRE', KEYS[2], RETENTION + 60000)
else
    renew(run)
end
if count > 0 or ends then
    publish(ARGV[2], text(length + count) .. ' ' .. ARGV[3] .. ' ' .. ARGV[5])
end
return appended
