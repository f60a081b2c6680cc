-- Begins a run. Returns `begun`, `exists` or `too many`.
-- ARGV, further: the holder, the duration of the lease, the maximum number of live runs of the
-- user.
local run, newer = load()
if newer then return newer end
local holder, lease, max_runs = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if run then
    local is_same = run.holder == holder and run.fence == FIRST
    if not is_same or run.ended or redis.call('LLEN', KEYS[2]) > 0 then return 'exists' end
    renew(run)
    return 'begun'
end

local function counts(run)
    return is_leased(run) and not run.ended and not run.has_to_end and run.fence == FIRST
end

-- The runs without an end: live ones, and lost ones.
local counted, first, oldest, oldest_field = 0, 0, nil, nil
local removed = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', text(now), 'LIMIT', 0, 100)
repeat
    local fields = redis.call('ZRANGEBYSCORE', KEYS[3], '+inf', '+inf', 'LIMIT', first, 1000)
    local states = #fields > 0 and redis.call('HMGET', KEYS[1], unpack(fields)) or {}
    for at, field in ipairs(fields) do
        local other = states[at] and cjson.decode(states[at])
        if not other then
            removed[#removed + 1] = field
        elseif other.format <= FORMAT then
            if not is_kept(other) then
                removed[#removed + 1] = field
            elseif counts(other) then
                counted = counted + 1
                local is_unread = unread(other) >= READER_TIMEOUT
                if is_unread and (not oldest or other.begun < oldest.begun) then
                    oldest, oldest_field = other, field
                end
            end
        end
    end
    first = first + 1000
until #fields < 1000 or counted >= max_runs and oldest
if counted >= max_runs then
    if not oldest then return 'too many' end
    oldest.has_to_end = true
    store(oldest_field, oldest)
end
-- A Redis without memory refuses the first write of a script, and no other. So the first one is no
-- deletion.
store(ARGV[1], {
    format = FORMAT, begun = now, holder = holder, fence = FIRST, lease = lease, read = now,
    renewed = now
})
for _, other in ipairs(removed) do
    if other ~= ARGV[1] then redis.call('HDEL', KEYS[1], other) end
    redis.call('ZREM', KEYS[3], other)
end
redis.call('ZADD', KEYS[3], '+inf', ARGV[1])
redis.call('PEXPIRE', KEYS[3], text(lease + LOST_RETENTION + 2 * RETENTION))
keep({ lease = lease })
-- The log of a run with this key that is kept no longer.
redis.call('UNLINK', KEYS[2])
return 'begun'
