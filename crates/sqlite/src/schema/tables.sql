-- The tables. Times are in milliseconds since 1970. An owner is the JSON array of a tenant and
-- an id, so that different owners never have the same text. The ids of chats and runs are bytes, which
-- SQLite compares as such.

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

-- A log for each chat. A position is a number of entries.
CREATE TABLE logs (
    -- Never used again: rows of a removed log may still be there.
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    owner TEXT NOT NULL,
    chat BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    length INTEGER NOT NULL,
    control INTEGER NOT NULL,
    -- The entries before this position were removed.
    first INTEGER NOT NULL,
    -- The position of the snapshot.
    folded INTEGER,
    -- The live run, and the position of its first entry. NULL without a live run, as are the columns after it.
    live_run BLOB,
    begin INTEGER,
    -- The lease, in milliseconds, and when it was set.
    lease INTEGER,
    leased_at INTEGER,
    read_at INTEGER,
    has_to_end INTEGER,
    title TEXT NOT NULL,
    is_renamed INTEGER NOT NULL,
    has_questions INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    expires_at INTEGER,
    UNIQUE (owner, chat)
) STRICT;
CREATE INDEX logs_by_time ON logs (owner, updated_at, chat);
CREATE INDEX logs_by_expiry ON logs (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX live_logs ON logs (owner) WHERE live_run IS NOT NULL;
CREATE INDEX logs_to_trim ON logs (key) WHERE first < folded;

CREATE TABLE log_entries (
    log INTEGER NOT NULL,
    position INTEGER NOT NULL,
    -- 0: a frame. 1: a note. 2: a control entry.
    kind INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (log, position)
) STRICT, WITHOUT ROWID;
-- A load without frames does not read the pages of the frames.
CREATE INDEX log_entries_without_frames ON log_entries (log, position) WHERE kind <> 0;

-- The snapshots. The position of each is in its log.
CREATE TABLE log_snapshots (
    log INTEGER PRIMARY KEY,
    head TEXT NOT NULL
) STRICT;

CREATE TABLE log_messages (
    log INTEGER NOT NULL,
    place INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (log, place)
) STRICT;

-- The runs that ended within the last 10 minutes or that no snapshot covers, and the positions of their first entries.
CREATE TABLE log_ended_runs (
    log INTEGER NOT NULL,
    begin INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    -- Of their entries.
    bytes INTEGER NOT NULL,
    PRIMARY KEY (log, begin)
) STRICT, WITHOUT ROWID;
CREATE INDEX log_ended_runs_by_time ON log_ended_runs (ended_at);

-- The logs that were changed for a sink of messages, or deleted since.
CREATE TABLE log_deliveries (
    owner TEXT NOT NULL,
    chat BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    -- The number of entries, or the position of a deletion.
    position INTEGER NOT NULL,
    -- NULL if the sink has got it.
    due_at INTEGER,
    PRIMARY KEY (owner, chat)
) STRICT, WITHOUT ROWID;
CREATE INDEX log_deliveries_by_time ON log_deliveries (due_at) WHERE due_at IS NOT NULL;
CREATE TRIGGER log_is_deleted AFTER DELETE ON logs BEGIN
    UPDATE log_deliveries SET position = 9007199254740991, due_at = (SELECT latest_time FROM state)
        WHERE owner = OLD.owner AND chat = OLD.chat AND epoch = OLD.epoch;
END;

-- The logs that were removed, and whose rows in the other tables are deleted in steps.
CREATE TABLE removed_logs (
    log INTEGER PRIMARY KEY
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
