-- Returns whether there are approvals as they were stored before there were buckets: all in the slot of the prefix.
-- KEYS: the clock of that slot, which a server of that version writes, and the lists of all users. ARGV: what the
-- other keys begin with.
if redis.call('EXISTS', unpack(KEYS)) > 0 then return true end
local slot = redis.pcall('CLUSTER', 'KEYSLOT', KEYS[1])
-- Also if the user of Redis may not ask.
local found = type(slot) == 'number' and redis.pcall('CLUSTER', 'GETKEYSINSLOT', slot, 1000) or {}
for _, key in ipairs(found) do
    for _, start in ipairs(ARGV) do
        if string.sub(key, 1, #start) == start then return true end
    end
end
return false
