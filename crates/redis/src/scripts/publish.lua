-- Publishes the change of a log with the command `PUBLISH`. A user of Redis without permission for the channel cannot, and its
-- readers look for themselves: what has changed must not fail for that.
local function publish(channel, progress)
    redis.pcall(PUBLISH, channel, progress)
end

-- Publishes the length of a log after an append. The arguments from `at` to `last` are what the hint says of the
-- entries, and the entries. If the first of them is empty, the hint has only the length.
local function publish_append(channel, length, at, last)
    publish(channel, ARGV[at] == '' and length or length .. table.concat(ARGV, '', at, last))
end
