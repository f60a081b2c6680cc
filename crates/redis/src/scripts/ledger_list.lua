-- Returns the time and a page of the places of a list.
-- KEYS: the clock, the list. ARGV: the place after which the page begins, or an empty text for the
-- first page, the number of places, and 1 if they are later than now.
tell_time(KEYS[1])
local after = ARGV[1]
if ARGV[3] == '1' and (tonumber(string.sub(after, 1, 16)) or 0) <= now then
    -- After all places with this time: in them, a hyphen follows it.
    after = string.format('%016.0f.', now)
end
after = after == '' and '-' or '(' .. after
return {now, redis.call('ZRANGEBYLEX', KEYS[2], after, '+', 'LIMIT', 0, ARGV[2])}
