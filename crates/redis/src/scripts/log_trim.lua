-- Removes the entries that neither the snapshot nor a reader needs. If the time of the chat has passed,
-- removes what lists show of it. Returns when there may be more to remove (empty if that needs another run,
-- snapshot or end), whether a sink has to get that a log of the chat is gone, the live run if it was lost long
-- ago, and whether a snapshot is lacking: no run is live, the last one is kept no longer, and the snapshot is not of
-- the whole log.
-- How long after the end of its lease a run is ended, in milliseconds: seven days.
local KEPT_AFTER_LOSS = 604800000
local head, newer = load_head()
-- The version that has written it removes it.
if newer then return {text(now + KEPT_AFTER_END), 0, false, 0} end
-- A log whose time has passed leaves no other trace.
local delivery = load_delivery(ARGV[1])
local is_gone = delivery and not (head and head.epoch == delivery.epoch)
if is_gone then
    redis.call('HDEL', KEYS[1], '') -- Also without memory.
    deliver_deletion(ARGV[1], delivery)
end
is_gone = is_gone and 1 or 0
if not head then
    if not load_listed(ARGV[1]) then
        unlist(ARGV[1])
        publish(KEYS[7], 'changed')
    end
    return {'', is_gone, false, 0}
end
redis.call('HDEL', KEYS[1], '') -- Also without memory.
local live, kept, begins, due = load_live(ARGV[1]), {}, head.length, head.expires_at
local lost, has_old_snapshot = false, 0
if live then
    begins = live.begin
    local lost_at = live.leased_at + live.lease + KEPT_AFTER_LOSS
    -- A lease that begins far in the future was renewed before the clock was set back.
    if now >= lost_at or live.leased_at > now + MAX_SET_BACK then lost, lost_at = live.run, now + KEPT_AFTER_END end
    due = math.min(due or math.huge, lost_at)
end
local ended = cjson.decode(redis.call('HGET', KEYS[1], 'ended') or '[]')
for _, run in ipairs(ended) do
    local left = run[2] + KEPT_AFTER_END - now
    local is_over = left <= 0 or left > KEPT_AFTER_END + MAX_SET_BACK
    if is_over and not live and (head.folded or 0) < head.length then
        -- Until the server has stored a snapshot.
        has_old_snapshot, is_over, left = 1, false, 60000
    end
    if not is_over then
        kept[#kept + 1] = run
        begins = math.min(begins, run[1])
        due = math.min(due or math.huge, now + left)
    end
end
if #kept < #ended then
    if #kept > 0 then
        redis.call('HSET', KEYS[1], 'ended', cjson.encode(kept))
    else
        redis.call('HDEL', KEYS[1], 'ended')
    end
end
local first = math.min(begins, head.folded or 0)
if first > head.first then
    redis.call('HSET', KEYS[1], 'first', text(first))
    redis.call('LTRIM', KEYS[2], text(first - head.first), -1)
    redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', '(' .. text(first))
end
return {due and text(due) or '', is_gone, lost, has_old_snapshot}
