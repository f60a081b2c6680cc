-- Gives a run to a new holder. Returns the result (`taken`, or why the run was not taken), and the
-- newest fence.
-- ARGV, further: the channel of the run, the fence that the caller knows, the new holder, whether the
-- lease must have passed, and the duration of the new one.
local run, newer = load()
if newer then return newer end
if not run then return {'not found', 0} end
if run.ended then return {'ended', run.fence} end
local is_repeated = text(run.fence - 1) == ARGV[3] and run.holder == ARGV[4]
if not is_repeated then
    if text(run.fence) ~= ARGV[3] then return {'other fence', run.fence} end
    if ARGV[5] == '1' and is_leased(run) then return {'leased', run.fence} end
    run.fence, run.holder = run.fence + 1, ARGV[4]
    publish(ARGV[2], redis.call('LLEN', KEYS[2]) .. ' ' .. text(run.fence) .. ' 0')
end
run.lease = tonumber(ARGV[6])
renew(run)
return {'taken', run.fence}
