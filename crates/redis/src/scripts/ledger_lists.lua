-- Returns the keys of the lists that have these records. KEYS: the records.
local found = {}
for at = 1, #KEYS do
    for list in pairs(cjson.decode(redis.call('HGET', KEYS[at], 'lists') or '{}')) do found[#found + 1] = list end
end
return found
