-- Inserts records of one requester and one chat, in order, until a limit is reached. Returns how many of
-- them are stored already, how many pending ones there were before, in the chat and in all, the
-- mark of the deletion if the requester was deleted, unless it is the one that the caller knows: then
-- nothing is inserted. And the lists and places in other slots that no record has.
-- KEYS: the clock, the index of all records of the requester, the lists of the pending ones of the requester and
-- of the chat, the mark of a requester who was deleted, and for each record its key and its lists. ARGV: the mark
-- that the caller knows, the limits of the chat and of the requester, the number of records, and for each record
-- its id, its JSON, the time at which it is deleted, whether its call may begin, its places in other slots as JSON,
-- the number of its lists, and its place in each of them, or an empty text.
local CLOCK, ALL, OF_REQUESTER, IN_CHAT, MARK = unpack(KEYS, 1, 5)
local count, existing, records, key, arg = tonumber(ARGV[4]), 0, {}, 6, 5
for at = 1, count do
    local lists = tonumber(ARGV[arg + 5])
    records[at] = {
        key = KEYS[key], id = ARGV[arg], json = ARGV[arg + 1], forget_at = ARGV[arg + 2], is_open = ARGV[arg + 3],
        elsewhere = ARGV[arg + 4],
        lists = {unpack(KEYS, key + 1, key + lists)}, places = {unpack(ARGV, arg + 6, arg + 5 + lists)},
    }
    existing = existing + redis.call('EXISTS', KEYS[key])
    key, arg = key + 1 + lists, arg + 6 + lists
end
local function reply(in_chat, of_requester, mark)
    local left = {}
    for _, record in ipairs(records) do
        if record.elsewhere ~= '{}' then
            local has = cjson.decode(redis.call('HGET', record.key, 'elsewhere') or '{}')
            for _, text in ipairs(unused(cjson.decode(record.elsewhere), has)) do left[#left + 1] = text end
        end
    end
    return {existing, in_chat, of_requester, mark, left}
end
if existing == count then return reply(0, 0, '') end
local mark = redis.call('GET', MARK)
if mark and mark ~= ARGV[1] then return reply(0, 0, mark) end
for _, record in ipairs(records) do refuse_late(cjson.decode(record.elsewhere)) end
tell_time(CLOCK)
-- After all places with this time, because a dot follows the hyphen of a place.
local unexpired = string.format('[%016.0f.', now)
local in_chat = redis.call('ZLEXCOUNT', IN_CHAT, unexpired, '+')
local of_requester = redis.call('ZLEXCOUNT', OF_REQUESTER, unexpired, '+')
local room = math.min(tonumber(ARGV[2]) - in_chat, tonumber(ARGV[3]) - of_requester)
local stored, lineage = math.min(count, existing + math.max(room, 0)), identity() or ''
for at = 1, stored do
    local record = records[at]
    if redis.call('EXISTS', record.key) == 0 then
        redis.call('HSET', record.key, 'record', record.json, 'revision', '0', 'open', record.is_open,
            'redis', lineage)
        if record.elsewhere ~= '{}' then redis.call('HSET', record.key, 'elsewhere', record.elsewhere) end
        redis.call('PEXPIREAT', record.key, record.forget_at)
        put(ALL, record.id, record.forget_at, record.forget_at)
        put_into_lists(record.key, record.lists, record.places, record.forget_at)
    end
end
redis.call('ZREMRANGEBYSCORE', ALL, '-inf', time)
keep_time(CLOCK)
return reply(in_chat, of_requester, '')
