-- The entries in run_entries and run_journal have a kind more: 3 is a frame whose first line is the id of its
-- position, and whose rest begins with "data: " and ends with an empty line. All of these are left out.

-- The users who were deleted within the last day. A run that goes on meanwhile requests no more approvals.
CREATE TABLE deleted_users (
    owner TEXT PRIMARY KEY,
    deleted_at INTEGER NOT NULL
) STRICT;
CREATE INDEX deleted_users_by_time ON deleted_users (deleted_at);
