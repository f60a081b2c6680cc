-- Publishes an empty message to the channel KEYS[1] of the node. Returns why that fails, or an empty text.
local reply = redis.pcall('SPUBLISH', KEYS[1], '')
return type(reply) == 'table' and reply.err or ''
