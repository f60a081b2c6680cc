-- Returns the time and a page of the places of a list.
-- KEYS: the clock, the list. ARGV: the place after which the page begins, or an empty text for the
-- first page, and the number of places.
tell_time(KEYS[1])
local after = ARGV[1] == '' and '-' or '(' .. ARGV[1]
return {now, redis.call('ZRANGEBYLEX', KEYS[2], after, '+', 'LIMIT', 0, ARGV[2])}
