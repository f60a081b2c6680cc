-- Removes places from lists. KEYS: for each place the list. ARGV: the places.
for at, list in ipairs(KEYS) do redis.call('ZREM', list, ARGV[at]) end
