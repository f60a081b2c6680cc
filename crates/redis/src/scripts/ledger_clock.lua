-- Reads the clock, in milliseconds: `time` is the time of Redis, `now` is the time of the ledger,
-- which a small step back of Redis's clock does not turn back.
local clock = redis.call('TIME')
local time = clock[1] * 1000 + math.floor(clock[2] / 1000)
local now = time
local function tell_time(key)
    local last = tonumber(redis.call('GET', key) or '0')
    if last > time and last <= time + 60000 then now = last end
end
