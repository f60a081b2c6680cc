-- Returns a part of a log: the state of the run, its fence, the length of the log, and the entries.
-- Returns nothing if there is no such run. ARGV, further: how many entries are skipped, the maximum
-- number of bytes, whether a client reads.
local run, newer = load()
if newer then return newer end
if not run then return false end
local length, after, max_bytes = redis.call('LLEN', KEYS[2]), tonumber(ARGV[2]), tonumber(ARGV[3])
-- Not each read is a write. A Redis without memory refuses this one, and is still read.
if ARGV[4] == '1' and unread(run) >= 1000 then
    run.read = now
    redis.pcall('HSET', KEYS[1], ARGV[1], cjson.encode(run))
end
local entries, bytes, is_full = {}, 0, false
local step = max_bytes > 0 and 16 or 1
while after < length and not is_full do
    for _, entry in ipairs(redis.call('LRANGE', KEYS[2], after, after + step - 1)) do
        -- The first byte of an entry is its kind.
        bytes = bytes + math.max(#entry - 1, 1)
        is_full = bytes > max_bytes
        if is_full and #entries > 0 then break end
        entries[#entries + 1] = entry
        if is_full then break end
    end
    after = after + step
end
local state = run.ended and 'ended' or is_leased(run) and 'leased' or 'lapsed'
return {state, run.fence, length, entries}
