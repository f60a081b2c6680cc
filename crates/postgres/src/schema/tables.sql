-- The tables, and what all statements share. SCHEMA is the name of the schema. Times are in milliseconds since 1970. An owner is the JSON
-- array of a tenant and an id, so that different owners never have the same text. The ids of chats, and the names of rows
-- and members, are bytes: they may hold U+0000, which a text of Postgres cannot hold.

-- The number of this schema.
CREATE TABLE SCHEMA.migrations (number INT PRIMARY KEY, applied_at TIMESTAMPTZ NOT NULL DEFAULT now());

CREATE FUNCTION SCHEMA.now_ms() RETURNS BIGINT LANGUAGE SQL AS
    'SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::BIGINT';

-- The time, if it is not before a time that was stored. A clock that is set back by up to a minute stands still until
-- it has caught up. One that is set back by more was wrong before.
CREATE FUNCTION SCHEMA.now_not_before(stored BIGINT) RETURNS BIGINT LANGUAGE SQL AS
    'SELECT CASE WHEN stored - now BETWEEN 0 AND 60000 THEN stored ELSE now END
     FROM (SELECT SCHEMA.now_ms() AS now) AS clock';

-- One row: the time of the last write of the ledger.
CREATE TABLE SCHEMA.ledger_clock (latest_time BIGINT NOT NULL);
INSERT INTO SCHEMA.ledger_clock VALUES (0);

-- The next value shows that the database can be written.
CREATE SEQUENCE SCHEMA.pings;

-- The rows of chats, in partitions. What they hold is JSON. A change of a row changes no index. Until a table has many rows, it
-- is not analyzed: Postgres plans for ten pages at least then, and so uses the indices also after the table has grown.
CREATE TABLE SCHEMA.rows (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    version BIGINT NOT NULL,
    partition BYTEA NOT NULL,
    name BYTEA NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (partition, name)
) WITH (fillfactor = 50, autovacuum_analyze_threshold = 1000, autovacuum_vacuum_threshold = 1000);

-- The items of the sequences of rows: entries of logs, and messages of snapshots. A reference to the row would lock and
-- write the row with each item.
CREATE TABLE SCHEMA.items (
    row_id BIGINT NOT NULL,
    position BIGINT NOT NULL,
    sequence SMALLINT NOT NULL,
    kind SMALLINT NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (row_id, sequence, position)
) WITH (autovacuum_analyze_threshold = 1000, autovacuum_vacuum_threshold = 1000);
-- A load without frames does not read the frames.
CREATE INDEX marked_items ON SCHEMA.items (row_id, sequence, position) WHERE kind <> 0;

-- The members of lists.
CREATE TABLE SCHEMA.places (
    at BIGINT NOT NULL,
    partition BYTEA NOT NULL,
    list BYTEA NOT NULL,
    member BYTEA NOT NULL,
    PRIMARY KEY (partition, list, at, member)
) WITH (autovacuum_analyze_threshold = 1000, autovacuum_vacuum_threshold = 1000);

-- The rows that were deleted, and whose items are deleted in steps.
CREATE TABLE SCHEMA.removed_rows (id BIGINT PRIMARY KEY);

-- Answers an operation of a step that reads, or that compares the version of a row: then there is an answer if it is another
-- one. rows.rs explains the codes of operations, and what else they have.
CREATE FUNCTION SCHEMA.answers(code SMALLINT, of_partition BYTEA, of_name BYTEA, of_sequence SMALLINT, one BIGINT, two BIGINT,
        of_body BYTEA)
    RETURNS TABLE (at BIGINT, kind SMALLINT, body BYTEA)
    LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    of_row BIGINT;
BEGIN
    IF code BETWEEN 13 AND 15 THEN
        SELECT id INTO of_row FROM SCHEMA.rows WHERE partition = of_partition AND name = of_name;
    END IF;
    CASE code
    WHEN 2 THEN
        RETURN QUERY SELECT NULL::BIGINT, 0::SMALLINT, NULL::BYTEA WHERE one <>
            coalesce((SELECT version FROM SCHEMA.rows WHERE partition = of_partition AND name = of_name), 0);
    WHEN 12 THEN
        RETURN QUERY SELECT version, NULL::SMALLINT, body FROM SCHEMA.rows
            WHERE partition = of_partition AND name = of_name;
    WHEN 13 THEN
        RETURN QUERY SELECT position + 1, NULL::SMALLINT, NULL::BYTEA FROM SCHEMA.items
            WHERE row_id = of_row AND sequence = of_sequence ORDER BY position DESC LIMIT 1;
    WHEN 14 THEN
        RETURN QUERY SELECT position, kind, body
            FROM (SELECT *, row_number() OVER page AS place, sum(octet_length(body)) OVER page AS bytes
                FROM (SELECT * FROM SCHEMA.items WHERE row_id = of_row AND sequence = of_sequence AND position >= one
                    ORDER BY position LIMIT CASE WHEN two IS NOT NULL THEN 1000 END) AS first
                WINDOW page AS (ORDER BY position ROWS UNBOUNDED PRECEDING)) AS counted
            WHERE place = 1 OR two IS NULL OR bytes <= two ORDER BY position;
    WHEN 15 THEN
        RETURN QUERY SELECT position, kind, body
            FROM (SELECT *, row_number() OVER page AS place, sum(octet_length(body)) OVER page AS bytes
                FROM (SELECT * FROM SCHEMA.items WHERE row_id = of_row AND sequence = of_sequence AND position >= one
                        AND kind <> 0
                    ORDER BY position LIMIT CASE WHEN two IS NOT NULL THEN 1000 END) AS first
                WINDOW page AS (ORDER BY position ROWS UNBOUNDED PRECEDING)) AS counted
            WHERE place = 1 OR two IS NULL OR bytes <= two ORDER BY position;
    WHEN 16 THEN
        RETURN QUERY SELECT at, NULL::SMALLINT, member FROM SCHEMA.places
            WHERE partition = of_partition AND list = of_body AND (at, member) > (one, of_name)
            ORDER BY at, member LIMIT two;
    WHEN 17 THEN
        RETURN QUERY SELECT at, NULL::SMALLINT, member FROM SCHEMA.places
            WHERE partition = of_partition AND list = of_body AND (at, member) < (one, of_name)
            ORDER BY at DESC, member DESC LIMIT two;
    END CASE;
END $$;

-- Runs steps in their order: the operations of each compare, write if everything is as expected, and read. Returns the
-- answers; for a step that was not applied, the operation that refused it, with a kind of 0, or of 2 if another transaction
-- has locked what the step changes; and last, for the step 0, the time, with a kind of 1 if items are left to be deleted.
-- If the clock is not within ten seconds after `expected_time`, what was decided by that time is not applied. One notification
-- names all changes: it has at most 8000 bytes.
CREATE FUNCTION SCHEMA.run_steps(partitions BYTEA[], expected_time BIGINT, steps INT[], codes SMALLINT[], names BYTEA[],
        sequences SMALLINT[], firsts BIGINT[], seconds BIGINT[], bodies BYTEA[], item_kinds SMALLINT[], item_bodies BYTEA[])
    RETURNS TABLE (step INT, operation INT, at BIGINT, kind SMALLINT, body BYTEA)
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    has_jumped BOOLEAN := SCHEMA.now_ms() NOT BETWEEN expected_time AND expected_time + 9999;
    code SMALLINT; of_partition BYTEA; of_name BYTEA; of_sequence SMALLINT; one BIGINT; two BIGINT; of_body BYTEA;
    last_step INT := -1; last_name BYTEA; state SMALLINT; of_row BIGINT; of_version BIGINT; ends_at BIGINT; pushed BIGINT;
    first_item INT; last_item INT := 0; hint TEXT; hints TEXT; has_removed BOOLEAN := FALSE;
BEGIN
    FOR step, code, of_name, of_sequence, one, two, of_body, operation IN
        SELECT * FROM unnest(steps, codes, names, sequences, firsts, seconds, bodies) WITH ORDINALITY
    LOOP
        IF code IN (6, 7) THEN
            first_item := last_item; last_item := last_item + two;
        END IF;
        IF step <> last_step THEN
            last_step := step; last_name := NULL; pushed := 0; state := 1; of_partition := partitions[step];
        END IF;
        CONTINUE WHEN state = 2 OR state = 0 AND code < 12;
        IF code BETWEEN 2 AND 8 AND (last_name IS NULL OR of_name <> last_name) THEN
            last_name := of_name;
            SELECT id, version INTO of_row, of_version FROM SCHEMA.rows WHERE partition = of_partition AND name = of_name;
        END IF;
        IF code IN (3, 7) THEN
            SELECT position + 1 INTO ends_at FROM SCHEMA.items WHERE row_id = of_row AND sequence = of_sequence
                ORDER BY position DESC LIMIT 1;
        END IF;
        CASE code
        -- Locks: those that the call waits for are in the order of their numbers, so that two calls never wait for each other.
        WHEN 0 THEN
            PERFORM pg_advisory_xact_lock(one);
        WHEN 1 THEN
            IF NOT pg_try_advisory_xact_lock(one) THEN
                state := 2;
            END IF;
        -- Comparisons: of a version, and of the end of a sequence.
        WHEN 2 THEN
            IF has_jumped OR one <> coalesce(of_version, 0) THEN
                state := 0;
            END IF;
        WHEN 3 THEN
            IF of_row IS NULL OR two <> coalesce(ends_at, one) THEN
                state := 0;
            END IF;
        -- Writes of a row.
        WHEN 4 THEN
            IF of_row IS NULL THEN
                INSERT INTO SCHEMA.rows (partition, name, version, body) VALUES (of_partition, of_name, one, of_body)
                    RETURNING id INTO of_row;
            ELSE
                UPDATE SCHEMA.rows SET version = one, body = of_body WHERE partition = of_partition AND name = of_name;
            END IF;
        WHEN 5 THEN
            DELETE FROM SCHEMA.rows WHERE partition = of_partition AND name = of_name;
            IF EXISTS (SELECT FROM SCHEMA.items WHERE row_id = of_row) THEN
                INSERT INTO SCHEMA.removed_rows (id) VALUES (of_row);
                has_removed := TRUE;
            END IF;
            of_row := NULL;
        -- Items at the end of a sequence, where that was compared, and where it may be anywhere.
        WHEN 6, 7 THEN
            IF code = 7 THEN
                one := coalesce(ends_at, one);
                pushed := one + two;
            END IF;
            INSERT INTO SCHEMA.items (row_id, sequence, position, kind, body)
                SELECT of_row, of_sequence, one + place - 1, kind, body
                FROM unnest(item_kinds[first_item + 1:last_item], item_bodies[first_item + 1:last_item])
                    WITH ORDINALITY AS item (kind, body, place);
        WHEN 8 THEN
            IF one > 0 THEN
                DELETE FROM SCHEMA.items WHERE row_id = of_row AND sequence = of_sequence AND position < one;
            END IF;
            IF two IS NOT NULL THEN
                DELETE FROM SCHEMA.items WHERE row_id = of_row AND sequence = of_sequence AND position >= two;
            END IF;
        -- Places of a member.
        WHEN 9 THEN
            DELETE FROM SCHEMA.places WHERE partition = of_partition AND list = of_body AND at = one AND member = of_name;
        WHEN 10 THEN
            INSERT INTO SCHEMA.places (partition, list, at, member) VALUES (of_partition, of_body, one, of_name)
                ON CONFLICT DO NOTHING;
        -- A hint, which begins with the length of the log: others may have appended meanwhile.
        WHEN 11 THEN
            hint := greatest(one, pushed) || convert_from(of_body, 'UTF8');
            IF octet_length(hints) + octet_length(hint) > 7900 THEN
                PERFORM pg_notify('SCHEMA', hints);
                hints := NULL;
            END IF;
            hints := concat_ws(',', hints, hint);
        ELSE
            RETURN QUERY SELECT step, operation, answer.*
                FROM SCHEMA.answers(code, of_partition, of_name, of_sequence, one, two, of_body) AS answer;
        END CASE;
        IF state <> 1 AND code < 12 THEN
            kind := state;
            RETURN NEXT;
        END IF;
    END LOOP;
    IF hints IS NOT NULL THEN
        PERFORM pg_notify('SCHEMA', hints);
    END IF;
    step := 0; operation := 0; at := SCHEMA.now_ms(); kind := has_removed::INT;
    RETURN NEXT;
END $$;

CREATE TABLE SCHEMA.approvals (
    id TEXT COLLATE "C" PRIMARY KEY,
    requester TEXT COLLATE "C" NOT NULL,
    chat BYTEA NOT NULL,
    delete_at BIGINT NOT NULL,
    revision BIGINT NOT NULL DEFAULT 0,
    -- Holds the number of its format.
    record TEXT NOT NULL
);
CREATE INDEX approvals_by_requester ON SCHEMA.approvals (requester);
CREATE INDEX approvals_by_end ON SCHEMA.approvals (delete_at);

-- The lists of approvals, by the times at which they have them.
CREATE TABLE SCHEMA.approval_lists (
    list TEXT COLLATE "C" NOT NULL,
    at BIGINT NOT NULL,
    id TEXT COLLATE "C" NOT NULL REFERENCES SCHEMA.approvals ON DELETE CASCADE,
    PRIMARY KEY (list, at, id)
);
CREATE INDEX approval_lists_by_id ON SCHEMA.approval_lists (id);

-- The stateless approvals that were used.
CREATE TABLE SCHEMA.approval_uses (
    id TEXT COLLATE "C" PRIMARY KEY,
    first_use TEXT NOT NULL,
    delete_at BIGINT NOT NULL
);
CREATE INDEX approval_uses_by_end ON SCHEMA.approval_uses (delete_at);

-- The users who were deleted within the last day. A run that goes on meanwhile requests no more approvals.
CREATE TABLE SCHEMA.deleted_users (
    owner TEXT COLLATE "C" PRIMARY KEY,
    deleted_at BIGINT NOT NULL
);
CREATE INDEX deleted_users_by_time ON SCHEMA.deleted_users (deleted_at);

-- Each statement of a volatile function sees what was committed before that statement, and so before the lock was
-- given. The locks are held until the end of the transaction.

-- Whether the user was deleted, and has not begun this chat since.
CREATE FUNCTION SCHEMA.is_deleted(user_key TEXT, of_chat BYTEA) RETURNS BOOLEAN LANGUAGE SQL AS
    'SELECT pg_advisory_xact_lock_shared(hashtextextended(user_key, hashtext(''SCHEMA deletion'')));
     SELECT EXISTS (SELECT FROM SCHEMA.deleted_users WHERE owner = user_key)
        AND NOT EXISTS (SELECT FROM SCHEMA.rows
            WHERE partition = convert_to(user_key, ''UTF8'') AND name = ''h''::BYTEA || of_chat)';

-- Stores that a user who has chats is being deleted, and waits for the transactions that have asked is_deleted before.
CREATE FUNCTION SCHEMA.mark_deleted(user_key TEXT) RETURNS VOID LANGUAGE SQL AS
    'SELECT pg_advisory_xact_lock(hashtextextended(user_key, hashtext(''SCHEMA deletion'')));
     INSERT INTO SCHEMA.deleted_users SELECT user_key, SCHEMA.now_ms()
        WHERE EXISTS (SELECT FROM SCHEMA.rows WHERE partition = convert_to(user_key, ''UTF8''))
     ON CONFLICT (owner) DO UPDATE SET deleted_at = excluded.deleted_at';

-- Inserts approvals of one requester and one chat, in order, until a limit is reached. Returns how many of them are
-- stored already, and how many pending ones there were before, up to the limits; and whether the requester was
-- deleted: nothing is inserted then. `listed` are the places in lists: the number of the approval, from 1, the list
-- and the time. Two insertions of one requester follow each other.
CREATE FUNCTION SCHEMA.insert_approvals(user_key TEXT, of_chat BYTEA, user_list TEXT, chat_list TEXT, chat_limit BIGINT,
        user_limit BIGINT, ids TEXT[], deletes BIGINT[], records TEXT[], listed INT[], lists TEXT[], times BIGINT[],
        OUT existing BIGINT, OUT in_chat BIGINT, OUT of_requester BIGINT, OUT is_deleted_user BOOLEAN)
    LANGUAGE plpgsql AS $$
DECLARE
    now BIGINT;
BEGIN
    existing := 0; in_chat := 0; of_requester := 0;
    is_deleted_user := SCHEMA.is_deleted(user_key, of_chat);
    PERFORM pg_advisory_xact_lock(hashtextextended(user_key, hashtext('SCHEMA approvals')));
    SELECT count(*) INTO existing FROM SCHEMA.approvals WHERE id = ANY (ids);
    IF existing = cardinality(ids) THEN
        is_deleted_user := FALSE;
    END IF;
    IF is_deleted_user THEN
        RETURN;
    END IF;
    SELECT SCHEMA.now_not_before(latest_time) INTO now FROM SCHEMA.ledger_clock;
    SELECT count(*) INTO in_chat FROM (SELECT FROM SCHEMA.approval_lists
        WHERE list = chat_list AND at > now ORDER BY at LIMIT chat_limit) AS counted;
    SELECT count(*) INTO of_requester FROM (SELECT FROM SCHEMA.approval_lists
        WHERE list = user_list AND at > now ORDER BY at LIMIT user_limit) AS counted;
    WITH inserted AS (INSERT INTO SCHEMA.approvals (id, requester, chat, delete_at, record)
        SELECT new.id, user_key, of_chat, new.delete_at, new.record
        FROM unnest(ids, deletes, records) WITH ORDINALITY AS new (id, delete_at, record, place)
        WHERE new.place <= existing + least(chat_limit - in_chat, user_limit - of_requester)
        ON CONFLICT (id) DO NOTHING RETURNING id)
    INSERT INTO SCHEMA.approval_lists (list, at, id) SELECT new.list, new.at, inserted.id
        FROM unnest(listed, lists, times) AS new (place, list, at) JOIN inserted ON inserted.id = ids[new.place];
    -- Last, because all writers of the ledger share this row.
    UPDATE SCHEMA.ledger_clock SET latest_time = SCHEMA.now_not_before(latest_time);
END $$;

-- Replaces an approval of this revision, and its places in lists. Returns whether it was replaced. The time of the
-- ledger does not go back behind this write.
CREATE FUNCTION SCHEMA.replace_approval(approval TEXT, user_key TEXT, of_chat BYTEA, deletes_at BIGINT, expected BIGINT,
        new_record TEXT, lists TEXT[], times BIGINT[]) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
BEGIN
    UPDATE SCHEMA.approvals SET requester = user_key, chat = of_chat, delete_at = deletes_at, revision = revision + 1,
        record = new_record WHERE id = approval AND revision = expected;
    IF NOT FOUND THEN
        RETURN FALSE;
    END IF;
    DELETE FROM SCHEMA.approval_lists WHERE id = approval AND (list, at) NOT IN (SELECT * FROM unnest(lists, times));
    INSERT INTO SCHEMA.approval_lists (list, at, id) SELECT new.list, new.at, approval FROM unnest(lists, times) AS new (list, at)
        ON CONFLICT DO NOTHING;
    UPDATE SCHEMA.ledger_clock SET latest_time = SCHEMA.now_not_before(latest_time);
    RETURN TRUE;
END $$;
