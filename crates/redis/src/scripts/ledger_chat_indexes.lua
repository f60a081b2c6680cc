-- Returns the keys of the indexes of the chats in which these records are. KEYS: the records.
local found = {}
for at = 1, #KEYS do
    found[#found + 1] = redis.call('HGET', KEYS[at], 'in_chat') or nil
end
return found
