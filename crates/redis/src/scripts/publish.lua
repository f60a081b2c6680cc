-- Publishes the change of a log. A user of Redis without permission for the channel cannot, and its
-- readers look for themselves: what has changed must not fail for that.
local function publish(channel, progress)
    redis.pcall('PUBLISH', channel, progress)
end
