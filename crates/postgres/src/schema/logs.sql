-- The tables of the logs of chats. They are created before those of tables.sql.

-- The heads of the logs. An append of frames changes no indexed column, so it needs no new index entry.
CREATE TABLE logs (
    key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner TEXT COLLATE "C" NOT NULL,
    id BYTEA NOT NULL,
    -- Chosen by the caller, so not unique.
    epoch BIGINT NOT NULL,
    -- The number of entries, and of control entries, with those that are not stored any more.
    length BIGINT NOT NULL DEFAULT 0,
    control BIGINT NOT NULL DEFAULT 0,
    -- The position of the first entry that is stored.
    first BIGINT NOT NULL DEFAULT 0,
    live_run BYTEA,
    -- The columns of the live run. Their values without one have no meaning.
    run_begin BIGINT NOT NULL DEFAULT 0,
    lease BIGINT NOT NULL DEFAULT 0,
    renewed_at BIGINT NOT NULL DEFAULT 0,
    read_at BIGINT NOT NULL DEFAULT 0,
    has_to_end BOOLEAN NOT NULL DEFAULT FALSE,
    -- Where the run began that the last append has ended. NULL if it has ended none.
    ended_begin BIGINT,
    is_renamed BOOLEAN NOT NULL DEFAULT FALSE,
    has_questions BOOLEAN NOT NULL DEFAULT FALSE,
    updated_at BIGINT NOT NULL,
    expires_at BIGINT,
    title BYTEA NOT NULL DEFAULT '',
    UNIQUE (owner, id)
) WITH (fillfactor = 50);
CREATE INDEX logs_by_time ON logs (owner, updated_at, id);
CREATE INDEX logs_by_expiry ON logs (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX logs_with_live_run ON logs (owner) WHERE live_run IS NOT NULL;

-- All references are checked by new snapshots: the deletion of a log also deletes the rows of an append for which it
-- has waited.
CREATE TABLE log_entries (
    log BIGINT NOT NULL REFERENCES logs ON DELETE CASCADE,
    position BIGINT NOT NULL,
    -- 0 a frame, 1 a note, 2 a control entry.
    kind SMALLINT NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (log, position)
);
CREATE INDEX log_entries_without_frames ON log_entries (log, position) WHERE kind <> 0;

CREATE TABLE log_snapshots (
    log BIGINT PRIMARY KEY REFERENCES logs ON DELETE CASCADE,
    position BIGINT NOT NULL,
    head TEXT NOT NULL,
    -- The number of messages. Rows of log_messages beyond it may be left of an older snapshot.
    messages INT NOT NULL,
    -- Whether all entries before the snapshot were removed.
    is_trimmed BOOLEAN NOT NULL
);
CREATE INDEX log_snapshots_to_trim ON log_snapshots (log) WHERE NOT is_trimmed;

CREATE TABLE log_messages (
    log BIGINT NOT NULL REFERENCES logs ON DELETE CASCADE,
    place INT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (log, place)
);

-- The runs that have ended within the last ten minutes.
CREATE TABLE log_ended_runs (
    key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    log BIGINT NOT NULL REFERENCES logs ON DELETE CASCADE,
    begin BIGINT NOT NULL,
    ended_at BIGINT NOT NULL
);
CREATE INDEX log_ended_runs_by_log ON log_ended_runs (log);
CREATE INDEX log_ended_runs_by_end ON log_ended_runs (ended_at);

-- Tells all servers how many entries a log has, or that it was deleted. The digest is that of hints.rs.
CREATE FUNCTION publish_log(owner TEXT, id BYTEA, length BIGINT, is_deleted BOOLEAN) RETURNS VOID LANGUAGE SQL AS
    'SELECT pg_notify(current_schema(), concat_ws('' '', length, 0, is_deleted::INT, encode(
        sha256(convert_to(''log'' || owner, ''UTF8'') || ''\x00''::BYTEA || id), ''hex'')))';
