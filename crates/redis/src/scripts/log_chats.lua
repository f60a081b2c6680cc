-- Returns some chats of a user, each with the time of its last update. KEYS: the chats by this time.
local chats, found = {}, redis.call('ZRANGE', KEYS[1], 0, 99, 'WITHSCORES')
for at = 1, #found, 2 do
    chats[#chats + 1] = {found[at], found[at + 1]}
end
return chats
