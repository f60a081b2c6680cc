-- The tables. Times are in milliseconds since 1970. An owner is the JSON array of a tenant and
-- an id, so that different owners never have the same text. The ids of chats and runs are bytes, which
-- SQLite compares as such.

PRAGMA application_id = 0x55494D53;

-- One row: what all writers share.
CREATE TABLE state (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    latest_time INTEGER NOT NULL,
    last_revision INTEGER NOT NULL,
    -- The rows of run_journal before this one were moved.
    first_journal_key INTEGER NOT NULL
) STRICT;
INSERT INTO state VALUES (1, 0, 0, 1);

CREATE TABLE sealing_key (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    id INTEGER NOT NULL,
    secret BLOB NOT NULL
) STRICT;

CREATE TABLE chats (
    key INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    id BLOB NOT NULL,
    revision INTEGER NOT NULL,
    -- Holds the number of the format, which is also that of the messages.
    head TEXT NOT NULL,
    title TEXT NOT NULL,
    updated_at INTEGER NOT NULL,
    expires_at INTEGER,
    UNIQUE (owner, id)
) STRICT;
CREATE INDEX chats_by_time ON chats (owner, updated_at, id);
CREATE INDEX chats_by_expiry ON chats (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE chat_messages (
    chat INTEGER NOT NULL REFERENCES chats ON DELETE CASCADE,
    place INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (chat, place)
) STRICT;

CREATE TABLE approvals (
    id TEXT PRIMARY KEY,
    requester TEXT NOT NULL,
    chat BLOB NOT NULL,
    is_pending INTEGER NOT NULL,
    requested_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    delete_at INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    -- Holds the number of its format.
    record TEXT NOT NULL
) STRICT;
CREATE INDEX approvals_by_requester ON approvals (requester, expires_at, id) WHERE is_pending = 1;
CREATE INDEX approvals_by_chat ON approvals (requester, chat, expires_at, id) WHERE is_pending = 1;
CREATE INDEX approvals_of_requester ON approvals (requester);
CREATE INDEX approvals_by_end ON approvals (delete_at);

CREATE TABLE runs (
    -- In the order in which the runs began. Never used again: an entry belongs to one run.
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    owner TEXT NOT NULL,
    chat BLOB NOT NULL,
    run BLOB NOT NULL,
    -- The format of the run and its entries.
    format INTEGER NOT NULL,
    holder TEXT NOT NULL,
    fence INTEGER NOT NULL,
    lease INTEGER NOT NULL,
    -- The last renewal of the lease without an entry. Each entry renews it, too.
    renewed_at INTEGER NOT NULL,
    read_at INTEGER NOT NULL,
    has_to_end INTEGER NOT NULL,
    ended_at INTEGER,
    -- The bytes of a log that has ended, with those that each entry needs besides its body.
    ended_bytes INTEGER,
    UNIQUE (owner, chat, run)
) STRICT;
CREATE INDEX runs_without_end ON runs (owner) WHERE ended_at IS NULL;
CREATE INDEX runs_by_end ON runs (ended_at) WHERE ended_at IS NOT NULL;

-- The newest entries of all runs, in the order in which they arrived. A row holds what one transaction has
-- appended: for each append the key of the run, the position, the number of entries, their bytes, and the
-- entries as in run_entries. The numbers have seven bits in each byte, the lowest first, and the highest bit
-- in all bytes but the last. From time to time the entries are moved to run_entries. A key is not used again.
CREATE TABLE run_journal (
    key INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;

-- The entries of each run. A row holds entries that follow each other: for each entry its number of bytes
-- times four, plus its kind, and the bytes. The kind is 0 for a frame, 1 for a note, 2 for a frame whose first line
-- is the id of its position and is left out, and 3 for a frame of kind 2 whose rest begins with "data: " and ends
-- with an empty line, which are left out, too. runs.ended_bytes holds the bytes that each of these rows needs
-- besides its body.
CREATE TABLE run_entries (
    key INTEGER PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    -- The number of entries before these.
    position INTEGER NOT NULL,
    -- The number of these entries.
    length INTEGER NOT NULL,
    -- When the last one was appended.
    at INTEGER NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (run, position)
) STRICT;

-- The users who were deleted within the last day. A run that goes on meanwhile requests no more approvals.
CREATE TABLE deleted_users (
    owner TEXT PRIMARY KEY,
    deleted_at INTEGER NOT NULL
) STRICT;
CREATE INDEX deleted_users_by_time ON deleted_users (deleted_at);
