-- Returns the head and entries from a position on, or nothing if they are not stored.
-- ARGV, further: the epoch, the position, the maximum number of bytes, whether a client reads.
local head, newer = load_head()
if newer then return newer end
local position = tonumber(ARGV[3])
if not head or head.epoch ~= ARGV[2] or position < head.first or position > head.length then
    return false
end
local live = load_live(ARGV[1])
if live and ARGV[5] == '1' then
    local was_read = unread(live) < 1000
    live.read_at = now
    -- Not each read is a write. A Redis without memory refuses this one, and is still read.
    if not was_read then pcall(store_live, ARGV[1], live) end
end
local entries = page(KEYS[2], position - head.first, tonumber(ARGV[4]), 1)
return {head_reply(head, live), entries}
