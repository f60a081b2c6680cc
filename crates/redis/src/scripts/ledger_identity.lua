-- Returns a text that changes whenever Redis may have lost writes: the id of its process, which a
-- restart changes, and the id of its history, which a failover changes. Returns nothing if Redis
-- does not tell them.
local function identity()
    local function told(section, name)
        local info = redis.pcall('INFO', section)
        return type(info) == 'string' and string.match(info, name .. ':(%w+)')
    end
    local process, history = told('server', 'run_id'), told('replication', 'master_replid')
    return process and history and process .. ' ' .. history
end
