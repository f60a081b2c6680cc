-- The logs of runs have a journal. Logs are kept for ten minutes after their end: those of schema 1 are
-- deleted. Chats and approvals stay.

DELETE FROM runs;
DROP TABLE run_entries;

-- The rows of run_journal before this one were moved.
ALTER TABLE state ADD COLUMN first_journal_key INTEGER NOT NULL DEFAULT 1;

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
-- times four, plus 0 for a frame, 1 for a note, 2 for a frame whose first line is the id of its position and is
-- left out, and the bytes. runs.ended_bytes holds the bytes that each of these rows needs besides its body.
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
