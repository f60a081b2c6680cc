-- Puts records into lists of other slots than theirs. Returns the time, with which the places end.
-- KEYS: the clock, the lists. ARGV: what follows the time in the places, and for each list the place of a record and
-- the time at which the record is deleted.
tell_time(KEYS[1])
local stamp = string.format('-%016.0f', now)
for at = 2, #KEYS do
    trim(KEYS[at])
    put(KEYS[at], ARGV[2 * at - 2] .. stamp .. ARGV[1], 0, ARGV[2 * at - 1])
end
return stamp
