-- Inserts records of one requester and one chat, in order, until a limit is reached. Returns how many of
-- them are stored already, how many pending ones there were before, in the chat and in all, and the
-- mark of the deletion if the requester was deleted, unless it is the one that the caller knows: then
-- nothing is inserted.
-- KEYS, further: the mark of a requester who was deleted, the records. ARGV, further: the mark that the
-- caller knows, the limits of the chat and of the requester, and for each record its id, its JSON, its
-- place in an index, the time at which it is deleted, whether it is pending, and whether its call may
-- begin.
local count, existing = #KEYS - 6, 0
for at = 1, count do existing = existing + redis.call('EXISTS', KEYS[6 + at]) end
if existing == count then return {existing, 0, 0, ''} end
local mark = redis.call('GET', KEYS[6])
if mark and mark ~= ARGV[1] then return {0, 0, 0, mark} end
tell_time(CLOCK)
-- After all places with this time, because a dot follows the hyphen of a place.
local unexpired = string.format('[%016.0f.', now)
local in_chat = redis.call('ZLEXCOUNT', IN_CHAT, unexpired, '+')
local of_requester = redis.call('ZLEXCOUNT', OF_REQUESTER, unexpired, '+')
local room = math.min(tonumber(ARGV[2]) - in_chat, tonumber(ARGV[3]) - of_requester)
local stored, lineage = math.min(count, existing + math.max(room, 0)), identity() or ''
for at = 1, stored do
    local key, id, json, place, forget_at, is_pending, is_open = KEYS[6 + at], unpack(ARGV, 6 * at - 2, 6 * at + 3)
    if redis.call('EXISTS', key) == 0 then
        redis.call('HSET', key, 'record', json, 'revision', '0', 'place', place, 'open', is_open,
            'redis', lineage, 'in_chat', IN_CHAT)
        redis.call('PEXPIREAT', key, forget_at)
        put(ALL, id, forget_at, forget_at)
        wrote(place, forget_at, is_pending == '1')
    end
end
return {existing, in_chat, of_requester, ''}
