-- Returns messages of the snapshot, or nothing if there is another one.
-- ARGV, further: the epoch, the position of the snapshot, the index of the first message, the maximum
-- number of bytes.
local head, newer = load_head()
if newer then return newer end
if not head or head.epoch ~= ARGV[2] or head.folded ~= tonumber(ARGV[3]) then return false end
return page(KEYS[4], tonumber(ARGV[4]), tonumber(ARGV[5]), 0)
