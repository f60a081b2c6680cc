-- The runs of one user. KEYS[1] is a hash with a field for each run, whose value is its state as
-- JSON. KEYS[2] is the log of the run that is asked for: a list. KEYS[3] lists the fields by the time
-- of their removal, which is not known before the end of a run. ARGV[1] is the field of that run.
local FORMAT, FIRST = 1, 1
-- How long a log is kept after its end, in milliseconds.
local RETENTION = 600000
-- How long a log without an end is kept after its lease has passed.
local LOST_RETENTION = 604800000
-- The time after which a reader that reads no more does not count.
local READER_TIMEOUT = 30000

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- Whether the lease has not passed. A lease that was renewed far in the future was renewed before
-- the clock was set back.
local function is_leased(run)
    return now < run.renewed + run.lease and run.renewed - now <= 60000
end

-- How long no reader has read the run. A read far in the future was before the clock was set back.
local function unread(run)
    return run.read - now <= 60000 and now - run.read or math.huge
end

local function is_kept(run)
    if run.ended then return now < run.ended + RETENTION end
    return now < run.renewed + run.lease + LOST_RETENTION
end

-- Returns the run, or nothing and an error if a newer version has written it.
local function load()
    local json = redis.call('HGET', KEYS[1], ARGV[1])
    local run = json and cjson.decode(json)
    if not run then return nil end
    if run.format > FORMAT then
        return nil, redis.error_reply(string.format('NEWERRUN %.0f %.0f', run.format, FORMAT))
    end
    if is_kept(run) then return run end
end

local function store(field, run)
    redis.call('HSET', KEYS[1], field, cjson.encode(run))
end

-- Ensures that both keys are kept until the retention of this run has passed if it is lost. Not each
-- append sets the time.
local function keep(run)
    for at = 1, 2 do
        local left = redis.call('PTTL', KEYS[at])
        if left ~= -2 and left < run.lease + LOST_RETENTION + RETENTION then
            local time = run.lease + LOST_RETENTION + 2 * RETENTION
            redis.call('PEXPIRE', KEYS[at], string.format('%.0f', time))
            if at == 1 then redis.call('PEXPIRE', KEYS[3], string.format('%.0f', time)) end
        end
    end
end

local function renew(run)
    run.renewed = now
    store(ARGV[1], run)
    keep(run)
end

local function text(number)
    return string.format('%.0f', number)
end
