-- Returns the time and the records with the given keys.
-- KEYS: the clock, the records.
tell_time(KEYS[1])
local found = {}
for at = 2, #KEYS do
    local kept = redis.call('HMGET', KEYS[at], 'revision', 'record')
    if kept[1] then found[#found + 1] = {KEYS[at], kept[1], kept[2]} end
end
return {now, found}
