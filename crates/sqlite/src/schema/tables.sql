-- The tables. Times are in milliseconds since 1970. An owner is the JSON array of a tenant and
-- an id, so that different owners never have the same text. The ids of chats are in names that are bytes,
-- which SQLite compares as such.

PRAGMA application_id = 0x55494D53;

-- One row, for all writers.
CREATE TABLE state (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    latest_time INTEGER NOT NULL,
    -- Incremented by each check that the file can be written.
    pings INTEGER NOT NULL
) STRICT;
INSERT INTO state VALUES (1, 0, 0);

CREATE TABLE sealing_key (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    id INTEGER NOT NULL,
    secret BLOB NOT NULL
) STRICT;

-- The rows of chats, in partitions. What they hold is JSON.
CREATE TABLE rows (
    -- Never used again: items of a deleted row may still be there.
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    partition TEXT NOT NULL,
    name BLOB NOT NULL,
    version INTEGER NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (partition, name)
) STRICT;

-- The items of the sequences of rows: entries of logs, and messages of snapshots.
CREATE TABLE items (
    row_id INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    position INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (row_id, sequence, position)
) STRICT, WITHOUT ROWID;
-- A load without frames does not read the pages of the frames.
CREATE INDEX marked_items ON items (row_id, sequence, position) WHERE kind <> 0;

-- The members of lists.
CREATE TABLE places (
    partition TEXT NOT NULL,
    list TEXT NOT NULL,
    at INTEGER NOT NULL,
    member BLOB NOT NULL,
    PRIMARY KEY (partition, list, at, member)
) STRICT, WITHOUT ROWID;

-- The rows that were deleted, and whose items are deleted in steps.
CREATE TABLE removed_rows (
    id INTEGER PRIMARY KEY
) STRICT;

CREATE TABLE approvals (
    id TEXT PRIMARY KEY,
    requester TEXT NOT NULL,
    chat BLOB NOT NULL,
    delete_at INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    -- Holds the number of its format.
    record TEXT NOT NULL
) STRICT;
CREATE INDEX approvals_of_requester ON approvals (requester);
CREATE INDEX approvals_by_end ON approvals (delete_at);

-- The lists of approvals, by the times at which they have them.
CREATE TABLE approval_lists (
    list TEXT NOT NULL,
    at INTEGER NOT NULL,
    id TEXT NOT NULL,
    PRIMARY KEY (list, at, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX approval_lists_by_id ON approval_lists (id);
CREATE TRIGGER approval_is_deleted AFTER DELETE ON approvals BEGIN
    DELETE FROM approval_lists WHERE id = OLD.id;
END;

-- The users who were deleted within the last day. A run that goes on meanwhile requests no more approvals.
CREATE TABLE deleted_users (
    owner TEXT PRIMARY KEY,
    deleted_at INTEGER NOT NULL
) STRICT;
CREATE INDEX deleted_users_by_time ON deleted_users (deleted_at);
