-- Returns what is undelivered of a chat: the epoch and the position. Or nothing.
local delivery = load_delivery(ARGV[1])
if not delivery or delivery.is_delivered then return false end
return {tonumber(delivery.epoch), tonumber(delivery.position)}
