-- Returns a text that changes whenever Redis may have lost writes: the id of its process, which a
-- restart changes, and the id of its history, which a failover changes. Returns nothing if Redis
-- refuses `INFO`.
local function identity()
    local function id_in(section, name)
        local info = redis.pcall('INFO', section)
        return type(info) == 'string' and string.match(info, name .. ':(%w+)')
    end
    local process, history = id_in('server', 'run_id'), id_in('replication', 'master_replid')
    return process and history and process .. ' ' .. history
end
