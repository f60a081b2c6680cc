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

local counted, number, removed, oldest, oldest_field = 0, 0, {}, nil, nil
local all = redis.call('HGETALL', KEYS[1])
for at = 1, #all, 2 do
    local other = cjson.decode(all[at + 1])
    if other.format <= FORMAT then
        number = math.max(number, other.number)
        if not is_kept(other) then
            removed[#removed + 1] = all[at]
        elseif counts(other) then
            counted = counted + 1
            local is_unread = other.read + READER_TIMEOUT <= now
            if is_unread and (not oldest or other.number < oldest.number) then
                oldest, oldest_field = other, all[at]
            end
        end
    end
end
if counted >= max_runs then
    if not oldest then return 'too many' end
    oldest.has_to_end = true
    store(oldest_field, oldest)
end
-- A Redis without memory refuses the first write of a script, and no other. So the first one is no
-- deletion.
renew({
    format = FORMAT, number = number + 1, holder = holder, fence = FIRST, lease = lease, read = now
})
for _, other in ipairs(removed) do
    if other ~= ARGV[1] then redis.call('HDEL', KEYS[1], other) end
end
-- The log of a run with this key that is kept no longer.
redis.call('UNLINK', KEYS[2])
return 'begun'
