-- Deletes chats and runs of a user. Returns the numbers of both. A repetition counts only what the
-- first run has left.
-- KEYS: the list of the chats, their titles, the runs, their removals, the chats, the logs of the
-- runs.
-- ARGV: the number of chats, their ids, and for each run its field and its channel.
local chats, deleted_chats, deleted_runs = tonumber(ARGV[1]), 0, 0
for at = 1, chats do
    redis.call('ZREM', KEYS[1], ARGV[1 + at])
    redis.call('HDEL', KEYS[2], ARGV[1 + at])
    deleted_chats = deleted_chats + redis.call('UNLINK', KEYS[4 + at])
end
for at = chats + 5, #KEYS do
    redis.call('UNLINK', KEYS[at])
end
for at = chats + 2, #ARGV, 2 do
    deleted_runs = deleted_runs + redis.call('HDEL', KEYS[3], ARGV[at])
    redis.call('ZREM', KEYS[4], ARGV[at])
    publish(ARGV[at + 1], '0 0 1')
end
return {deleted_chats, deleted_runs}
