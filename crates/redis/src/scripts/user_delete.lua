-- Deletes chats and runs of a user. Returns the numbers of both. A repetition counts only what the
-- first run has left. Chats that were saved since they were listed are kept: a repetition may be late,
-- and the user may have begun again.
-- KEYS: the list of the chats, their titles, the runs, their removals, the chats, the logs of the
-- runs.
-- ARGV: the number of chats, for each its id and the time of its last save, and for each run its field
-- and its channel.
local chats, deleted_chats, deleted_runs = tonumber(ARGV[1]), 0, 0
for at = 1, chats do
    local id, saved_at = ARGV[2 * at], ARGV[2 * at + 1]
    if redis.call('ZSCORE', KEYS[1], id) == saved_at then
        redis.call('ZREM', KEYS[1], id)
        redis.call('HDEL', KEYS[2], id)
        deleted_chats = deleted_chats + redis.call('UNLINK', KEYS[4 + at])
    end
end
for at = chats + 5, #KEYS do
    redis.call('UNLINK', KEYS[at])
end
for at = 2 * chats + 2, #ARGV, 2 do
    deleted_runs = deleted_runs + redis.call('HDEL', KEYS[3], ARGV[at])
    redis.call('ZREM', KEYS[4], ARGV[at])
    publish(ARGV[at + 1], '0 0 1')
end
return {deleted_chats, deleted_runs}
