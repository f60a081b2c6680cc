-- Returns some chats of a user, each with its id and the time of its last save, and the fields of all
-- runs. KEYS: the list of the chats, the runs.
local chats, listed = {}, redis.call('ZRANGE', KEYS[1], 0, 99, 'WITHSCORES')
for at = 1, #listed, 2 do
    chats[#chats + 1] = {listed[at], listed[at + 1]}
end
return {chats, redis.call('HKEYS', KEYS[2])}
