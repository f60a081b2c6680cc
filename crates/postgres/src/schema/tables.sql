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

-- What all servers are told of a log: how many entries it has, or that it was deleted, and whether the list of its owner
-- has changed. The digests are those of hints.rs.
CREATE FUNCTION log_hint(owner TEXT, id BYTEA, length BIGINT, is_deleted BOOLEAN, is_listed BOOLEAN) RETURNS TEXT
    LANGUAGE SQL AS
    'SELECT concat_ws('' '', length, is_deleted::INT,
        encode(sha256(convert_to(owner, ''UTF8'') || ''\x00''::BYTEA || id), ''hex''),
        CASE WHEN is_listed THEN encode(sha256(convert_to(owner, ''UTF8'')), ''hex'') END)';

CREATE FUNCTION publish_log(owner TEXT, id BYTEA, length BIGINT, is_deleted BOOLEAN, is_listed BOOLEAN) RETURNS VOID
    LANGUAGE SQL AS 'SELECT pg_notify(current_schema(), log_hint(owner, id, length, is_deleted, is_listed))';

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

-- Appends entries to logs that exist, sets their leases and changes their heads, each if its log is the expected one.
-- Returns the heads of these logs, each with the number of its append, from 1. The entries of an append are the `entry_counts`
-- ones up to its last one. With `skips_locked`, a log that another transaction has locked is left out, so that no append
-- waits for that of another log, and two calls never for each other. One notification names all logs: it has at most 8000
-- bytes.
--
-- Without statistics, as on a new database, Postgres would read whole tables, and would plan most calls again.
CREATE FUNCTION append_to_logs(skips_locked BOOLEAN, owners TEXT[], ids BYTEA[], epochs BIGINT[],
        -- The expected numbers of control entries and of all entries, and whether a run must be live. NULL: any.
        control_numbers BIGINT[], lengths BIGINT[], are_live BOOLEAN[],
        -- Whether a run must be live whose lease has passed.
        are_lost BOOLEAN[],
        entry_counts INT[], control_counts BIGINT[], last_entries INT[], leases BIGINT[],
        -- 0 nothing, 1 the live run ends, 2 a run begins, 3 a run resumes the live one.
        changes SMALLINT[], runs BYTEA[], titles BYTEA[], have_questions BOOLEAN[], keep_times BIGINT[],
        are_for_sink BOOLEAN[], are_listed BOOLEAN[], kinds SMALLINT[], bodies BYTEA[])
    RETURNS TABLE (number BIGINT, epoch BIGINT, length BIGINT, control BIGINT, live_run BYTEA, renewed_at BIGINT, lease BIGINT,
        read_at BIGINT, has_to_end BOOLEAN, published TEXT)
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
        SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    free BIGINT[];
BEGIN
    IF skips_locked THEN
        free := ARRAY(SELECT number FROM unnest(owners, ids) WITH ORDINALITY AS ask (of_owner, of_id, number)
            CROSS JOIN LATERAL (SELECT FROM logs WHERE owner = of_owner AND id = of_id
                FOR NO KEY UPDATE SKIP LOCKED) AS locked);
    END IF;
    RETURN QUERY WITH changed AS (UPDATE logs SET length = length + entries,
            control = control + controls,
            ended_begin = CASE WHEN change IN (1, 2) AND live_run IS NOT NULL THEN run_begin WHEN change = 1 THEN length END,
            live_run = CASE change WHEN 0 THEN live_run ELSE run END,
            run_begin = CASE WHEN change = 2 OR change = 3 AND live_run IS NULL THEN length ELSE run_begin END,
            lease = coalesce(new_lease, CASE WHEN change < 2 THEN lease ELSE 0 END),
            renewed_at = CASE WHEN new_lease IS NULL AND change < 2 THEN renewed_at ELSE now_ms() END,
            read_at = CASE WHEN change < 2 THEN read_at ELSE now_ms() END,
            has_to_end = has_to_end AND change = 0,
            title = CASE WHEN is_renamed THEN title ELSE coalesce(new_title, title) END,
            has_questions = coalesce(new_questions, has_questions),
            updated_at = CASE WHEN controls = 0 THEN updated_at ELSE
                now_not_before((SELECT max(other.updated_at) FROM logs AS other WHERE other.owner = of_owner)) END,
            expires_at = CASE WHEN controls = 0 THEN expires_at ELSE now_ms() + keep_for END
        FROM unnest(owners, ids, epochs, control_numbers, lengths, are_live, are_lost, entry_counts, control_counts,
                last_entries, leases, changes, runs, titles, have_questions, keep_times, are_for_sink, are_listed)
            WITH ORDINALITY AS ask (of_owner, of_id, of_epoch, control_number, of_length, must_be_live, must_be_lost, entries,
                controls, last_entry, new_lease, change, run, new_title, new_questions, keep_for, is_for_sink, is_listed, number)
        WHERE (free IS NULL OR number = ANY (free))
            AND owner = of_owner AND id = of_id AND (expires_at IS NULL OR expires_at > now_ms())
            AND epoch = of_epoch AND (control_number IS NULL OR control = control_number)
            AND (of_length IS NULL OR length = of_length)
            AND (must_be_live IS NULL OR (live_run IS NOT NULL) = must_be_live)
            AND (NOT must_be_lost OR live_run IS NOT NULL AND NOT is_leased(renewed_at, lease))
        RETURNING key, owner, id, epoch, length, control, live_run, renewed_at, lease, read_at, has_to_end, ended_begin, number,
            entries, last_entry, is_for_sink, is_listed),
    written AS (INSERT INTO log_entries (log, position, kind, body)
        SELECT key, length - entries + place - 1, kind, body FROM changed CROSS JOIN LATERAL
            unnest(kinds[last_entry - entries + 1:last_entry], bodies[last_entry - entries + 1:last_entry]) WITH ORDINALITY
                AS entry (kind, body, place)),
    ended AS (INSERT INTO log_ended_runs (log, begin, ended_at)
        SELECT key, ended_begin, now_ms() FROM changed WHERE ended_begin IS NOT NULL),
    delivery AS (INSERT INTO log_deliveries (owner, id, epoch, position, due_at)
        SELECT owner, id, epoch, length, now_ms() FROM changed WHERE is_for_sink
        ON CONFLICT (owner, id) DO UPDATE SET epoch = excluded.epoch, position = excluded.position, due_at = excluded.due_at)
    SELECT number, epoch, length, control, live_run, renewed_at, lease, read_at, has_to_end,
        (SELECT pg_notify(current_schema(), string_agg(log_hint(owner, id, length, FALSE, is_listed), ','))::TEXT
            FROM changed WHERE entries > 0 OR is_listed HAVING count(*) > 0)
    FROM changed;
END $$;

-- Reads entries of several logs, each from a position on: at least one, and at most 1024. Returns the heads of the logs, each
-- with the number of its read, from 1. Notes the readers of live runs, once a second. A log that another transaction has
-- locked is noted by its next read. The condition on the positions bounds the rows that are visited, which a `LIMIT` does only
-- in some plans. The settings are those of append_to_logs.
CREATE FUNCTION read_logs(owners TEXT[], ids BYTEA[], epochs BIGINT[], positions BIGINT[], byte_limits BIGINT[],
        are_readers BOOLEAN[])
    RETURNS TABLE (number BIGINT, epoch BIGINT, length BIGINT, control BIGINT, live_run BYTEA, renewed_at BIGINT, lease BIGINT,
        read_at BIGINT, has_to_end BOOLEAN, kinds SMALLINT[], bodies BYTEA[])
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
        SET enable_mergejoin = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY WITH found AS MATERIALIZED (SELECT logs.*, ask.* FROM unnest(owners, ids, epochs, positions, byte_limits,
            are_readers) WITH ORDINALITY AS ask (of_owner, of_id, of_epoch, of_position, byte_limit, is_reader, number)
        JOIN logs ON owner = of_owner AND id = of_id AND (expires_at IS NULL OR expires_at > now_ms())
            AND epoch = of_epoch AND of_position BETWEEN first AND length),
    free AS MATERIALIZED (SELECT free.key FROM found CROSS JOIN LATERAL (SELECT key FROM logs WHERE logs.key = found.key
            AND is_reader AND found.live_run IS NOT NULL AND now_ms() - logs.read_at NOT BETWEEN 0 AND 999
            FOR NO KEY UPDATE SKIP LOCKED) AS free),
    noted AS (UPDATE logs SET read_at = now_ms() FROM free WHERE logs.key = free.key AND live_run IS NOT NULL)
    SELECT number, epoch, length, control, live_run, renewed_at, lease, CASE WHEN is_reader THEN now_ms() ELSE read_at END,
        has_to_end, page.kinds, page.bodies
    FROM found CROSS JOIN LATERAL (
        SELECT array_agg(kind ORDER BY position) AS kinds, array_agg(body ORDER BY position) AS bodies
        FROM (SELECT *, sum(octet_length(body)) OVER (ORDER BY position) AS bytes FROM log_entries
            WHERE log = found.key AND position >= of_position AND position < least(of_position, length) + 1024) AS counted
        WHERE bytes <= byte_limit OR position = of_position) AS page;
END $$;

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
