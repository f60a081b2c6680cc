-- The tables, and what all statements share. Times are in milliseconds since 1970. An owner is the JSON
-- array of a tenant and an id, so that different owners never have the same text. The ids of chats and runs and the
-- titles are bytes: they may hold U+0000, which a text of Postgres cannot hold.

-- The number of this schema.
CREATE TABLE migrations (number INT PRIMARY KEY, applied_at TIMESTAMPTZ NOT NULL DEFAULT now());

CREATE FUNCTION now_ms() RETURNS BIGINT LANGUAGE SQL AS
    'SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::BIGINT';

-- The time, if it is not before a time that was stored. A clock that is set back by up to a minute stands still until
-- it has caught up. One that is set back by more was wrong before.
CREATE FUNCTION now_not_before(stored BIGINT) RETURNS BIGINT LANGUAGE SQL AS
    'SELECT CASE WHEN stored - now BETWEEN 0 AND 60000 THEN stored ELSE now END
     FROM (SELECT now_ms() AS now) AS clock';

-- Whether a lease has not passed. One that was renewed far in the future was renewed before the clock was set back.
CREATE FUNCTION is_leased(renewed_at BIGINT, lease BIGINT) RETURNS BOOLEAN LANGUAGE SQL AS
    'SELECT now_ms() - renewed_at BETWEEN -60000 AND lease - 1';

-- Tells all servers how many entries a log has, or that it was deleted, and whether the list of its owner has changed.
-- The digests are those of hints.rs.
CREATE FUNCTION publish_log(owner TEXT, id BYTEA, length BIGINT, is_deleted BOOLEAN, is_listed BOOLEAN) RETURNS VOID
    LANGUAGE SQL AS
    'SELECT pg_notify(current_schema(), concat_ws('' '', length, is_deleted::INT,
        encode(sha256(convert_to(owner, ''UTF8'') || ''\x00''::BYTEA || id), ''hex''),
        CASE WHEN is_listed THEN encode(sha256(convert_to(owner, ''UTF8'')), ''hex'') END))';

-- One row: the time of the last write of the ledger.
CREATE TABLE ledger_clock (latest_time BIGINT NOT NULL);
INSERT INTO ledger_clock VALUES (0);

-- The next value shows that the database can be written.
CREATE SEQUENCE pings;

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

-- The runs that have ended within the last ten minutes, or that no snapshot covers.
CREATE TABLE log_ended_runs (
    key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    log BIGINT NOT NULL REFERENCES logs ON DELETE CASCADE,
    begin BIGINT NOT NULL,
    ended_at BIGINT NOT NULL
);
CREATE INDEX log_ended_runs_by_log ON log_ended_runs (log);
CREATE INDEX log_ended_runs_by_end ON log_ended_runs (ended_at);

-- The logs that were changed for a sink of messages, or deleted since.
CREATE TABLE log_deliveries (
    owner TEXT COLLATE "C" NOT NULL,
    id BYTEA NOT NULL,
    epoch BIGINT NOT NULL,
    -- The number of entries, or the position of a deletion.
    position BIGINT NOT NULL,
    -- NULL if the sink has got it.
    due_at BIGINT,
    PRIMARY KEY (owner, id)
);
CREATE INDEX log_deliveries_by_time ON log_deliveries (due_at) WHERE due_at IS NOT NULL;

CREATE FUNCTION log_is_deleted() RETURNS TRIGGER LANGUAGE plpgsql AS
    'BEGIN
        UPDATE log_deliveries SET position = 9007199254740991, due_at = now_ms()
            WHERE owner = OLD.owner AND id = OLD.id AND epoch = OLD.epoch;
        RETURN NULL;
    END';
CREATE TRIGGER log_is_deleted AFTER DELETE ON logs FOR EACH ROW EXECUTE FUNCTION log_is_deleted();

CREATE TABLE approvals (
    id TEXT COLLATE "C" PRIMARY KEY,
    requester TEXT COLLATE "C" NOT NULL,
    chat BYTEA NOT NULL,
    delete_at BIGINT NOT NULL,
    revision BIGINT NOT NULL DEFAULT 0,
    -- Holds the number of its format.
    record TEXT NOT NULL
);
CREATE INDEX approvals_by_requester ON approvals (requester);
CREATE INDEX approvals_by_end ON approvals (delete_at);

-- The lists of approvals, by the times at which they have them.
CREATE TABLE approval_lists (
    list TEXT COLLATE "C" NOT NULL,
    at BIGINT NOT NULL,
    id TEXT COLLATE "C" NOT NULL REFERENCES approvals ON DELETE CASCADE,
    PRIMARY KEY (list, at, id)
);
CREATE INDEX approval_lists_by_id ON approval_lists (id);

-- The stateless approvals that were used.
CREATE TABLE approval_uses (
    id TEXT COLLATE "C" PRIMARY KEY,
    first_use TEXT NOT NULL,
    delete_at BIGINT NOT NULL
);
CREATE INDEX approval_uses_by_end ON approval_uses (delete_at);

-- The users who were deleted within the last day. A run that goes on meanwhile requests no more approvals.
CREATE TABLE deleted_users (
    owner TEXT COLLATE "C" PRIMARY KEY,
    deleted_at BIGINT NOT NULL
);
CREATE INDEX deleted_users_by_time ON deleted_users (deleted_at);

-- Each statement of a volatile function sees what was committed before that statement, and so before the lock was
-- given. The locks are held until the end of the transaction.

-- Whether the user was deleted, and has not begun this chat since.
CREATE FUNCTION is_deleted(user_key TEXT, of_chat BYTEA) RETURNS BOOLEAN LANGUAGE SQL AS
    'SELECT pg_advisory_xact_lock_shared(hashtextextended(user_key, hashtext(current_schema() || '' deletion'')));
     SELECT EXISTS (SELECT FROM deleted_users WHERE owner = user_key)
        AND NOT EXISTS (SELECT FROM logs WHERE owner = user_key AND id = of_chat)';

-- Stores that a user who has chats is being deleted, and waits for the transactions that have asked is_deleted before.
CREATE FUNCTION mark_deleted(user_key TEXT) RETURNS VOID LANGUAGE SQL AS
    'SELECT pg_advisory_xact_lock(hashtextextended(user_key, hashtext(current_schema() || '' deletion'')));
     INSERT INTO deleted_users SELECT user_key, now_ms() WHERE EXISTS (SELECT FROM logs WHERE owner = user_key)
     ON CONFLICT (owner) DO UPDATE SET deleted_at = excluded.deleted_at';

-- Inserts approvals of one requester and one chat, in order, until a limit is reached. Returns how many of them are
-- stored already, and how many pending ones there were before, up to the limits; and whether the requester was
-- deleted: nothing is inserted then. `listed` are the places in lists: the number of the approval, from 1, the list
-- and the time. Two insertions of one requester follow each other.
CREATE FUNCTION insert_approvals(user_key TEXT, of_chat BYTEA, user_list TEXT, chat_list TEXT, chat_limit BIGINT,
        user_limit BIGINT, ids TEXT[], deletes BIGINT[], records TEXT[], listed INT[], lists TEXT[], times BIGINT[],
        OUT existing BIGINT, OUT in_chat BIGINT, OUT of_requester BIGINT, OUT is_deleted_user BOOLEAN)
    LANGUAGE plpgsql AS $$
DECLARE
    now BIGINT;
BEGIN
    existing := 0; in_chat := 0; of_requester := 0;
    is_deleted_user := is_deleted(user_key, of_chat);
    PERFORM pg_advisory_xact_lock(hashtextextended(user_key, hashtext(current_schema() || ' approvals')));
    SELECT count(*) INTO existing FROM approvals WHERE id = ANY (ids);
    IF existing = cardinality(ids) THEN
        is_deleted_user := FALSE;
    END IF;
    IF is_deleted_user THEN
        RETURN;
    END IF;
    SELECT now_not_before(latest_time) INTO now FROM ledger_clock;
    SELECT count(*) INTO in_chat FROM (SELECT FROM approval_lists
        WHERE list = chat_list AND at > now ORDER BY at LIMIT chat_limit) AS counted;
    SELECT count(*) INTO of_requester FROM (SELECT FROM approval_lists
        WHERE list = user_list AND at > now ORDER BY at LIMIT user_limit) AS counted;
    WITH inserted AS (INSERT INTO approvals (id, requester, chat, delete_at, record)
        SELECT new.id, user_key, of_chat, new.delete_at, new.record
        FROM unnest(ids, deletes, records) WITH ORDINALITY AS new (id, delete_at, record, place)
        WHERE new.place <= existing + least(chat_limit - in_chat, user_limit - of_requester)
        ON CONFLICT (id) DO NOTHING RETURNING id)
    INSERT INTO approval_lists (list, at, id) SELECT new.list, new.at, inserted.id
        FROM unnest(listed, lists, times) AS new (place, list, at) JOIN inserted ON inserted.id = ids[new.place];
    -- Last, because all writers of the ledger share this row.
    UPDATE ledger_clock SET latest_time = now_not_before(latest_time);
END $$;

-- Replaces an approval of this revision, and its places in lists. Returns whether it was replaced. The time of the
-- ledger does not go back behind this write.
CREATE FUNCTION replace_approval(approval TEXT, user_key TEXT, of_chat BYTEA, deletes_at BIGINT, expected BIGINT,
        new_record TEXT, lists TEXT[], times BIGINT[]) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
BEGIN
    UPDATE approvals SET requester = user_key, chat = of_chat, delete_at = deletes_at, revision = revision + 1,
        record = new_record WHERE id = approval AND revision = expected;
    IF NOT FOUND THEN
        RETURN FALSE;
    END IF;
    DELETE FROM approval_lists WHERE id = approval AND (list, at) NOT IN (SELECT * FROM unnest(lists, times));
    INSERT INTO approval_lists (list, at, id) SELECT new.list, new.at, approval FROM unnest(lists, times) AS new (list, at)
        ON CONFLICT DO NOTHING;
    UPDATE ledger_clock SET latest_time = now_not_before(latest_time);
    RETURN TRUE;
END $$;
