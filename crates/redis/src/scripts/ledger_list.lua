-- Returns the time and a page of the places of a list.
-- KEYS: the clock, the list. ARGV: the place after which the page begins, or an empty text for the
-- first page, the number of places, and 1 if only places later than now are returned.
tell_time(KEYS[1])
local after = ARGV[1]
if ARGV[3] == '1' and (tonumber(string.sub(after, 1, 16)) or 0) <= now then
    -- A place with this time has a hyphen where this text has a dot, and the dot is greater.
    after = string.format('%016.0f.', now)
end
after = after == '' and '-' or '(' .. after
return {now, redis.call('ZRANGEBYLEX', KEYS[2], after, '+', 'LIMIT', 0, ARGV[2])}
