-- The places of a record in the lists of other slots. `elsewhere` of its hash holds them, as `lists` holds those of its
-- slot. Each is put there before the record is written, and removed after, so a list names too many records and never
-- too few. A hyphen, the time at which it was put there, in 16 digits, a hyphen and a random number follow the id:
-- what one write removes, another one has not put there.

-- Fails if one of these places was put there so long ago that a reader may remove it before the record is written. `time`
-- is that of another node. The caller begins again.
local function refuse_late(places)
    for _, place in pairs(places) do
        if time - tonumber(string.sub(place, 51, 66)) > 30000 then
            error('the lists of this approval were written more than 30 seconds ago')
        end
    end
end

-- Returns those of these places that a record with other places has not, as keys and members.
local function unused(places, has)
    local found = {}
    for list, place in pairs(places) do
        if has[list] ~= place then
            found[#found + 1] = list
            found[#found + 1] = place
        end
    end
    return found
end
