-- Returns a part of a log: the state of the run, its fence, the length of the log, and the entries.
-- Returns nothing if there is no such run. ARGV, further: how many entries are skipped, the maximum
-- number of bytes, whether a client reads.
local run, newer = load()
if newer then return newer end
if not run then return false end
local length, after, max_bytes = redis.call('LLEN', KEYS[2]), tonumber(ARGV[2]), tonumber(ARGV[3])
-- Not each read is a write.
if ARGV[4] == '1' and now - run.read >= 1000 then
    run.read = now
    store(ARGV[1], run)
end
local entries, bytes, is_full = {}, 0, false
while after < length and not is_full do
    for _, entry in ipairs(redis.call('LRANGE', KEYS[2], after, after + 63)) do
        -- The first byte of an entry is its kind.
        bytes = bytes + math.max(#entry - 1, 1)
        is_full = bytes > max_bytes and #entries > 0
        if is_full then break end
        entries[#entries + 1] = entry
    end
    after = after + 64
end
local state = run.ended and 'ended' or is_leased(run) and 'leased' or 'lapsed'
return {state, run.fence, length, entries}
