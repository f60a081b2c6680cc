-- Returns the head, the number of entries before the snapshot, the snapshot without its messages, and the
-- first entries after it: the positions, if frames are left out, and the bytes.
-- ARGV, further: whether frames are loaded, the maximum number of bytes of the entries if they are.
local head, newer = load_head()
if newer then return newer end
if not head then return false end
local from, positions, entries = head.folded or 0, {}, nil
if ARGV[2] == '1' then
    entries = page(KEYS[2], from - head.first, tonumber(ARGV[3]), 1)
else
    entries, positions = {}, redis.call('ZRANGEBYSCORE', KEYS[3], text(from), '+inf')
    for at, position in ipairs(positions) do
        entries[at] = redis.call('LINDEX', KEYS[2], text(tonumber(position) - head.first))
    end
end
local snapshot = head.folded and redis.call('HGET', KEYS[1], 'snapshot')
return {head_reply(head, load_live(ARGV[1])), head.folded or false, snapshot or false, positions, entries}
