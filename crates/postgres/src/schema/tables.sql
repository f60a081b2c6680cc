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

-- Tells all servers how many entries a log has, its fence, and whether it is over. The digest is that of hints.rs.
CREATE FUNCTION publish(owner TEXT, chat BYTEA, run BYTEA, length BIGINT, fence BIGINT, is_over BOOLEAN)
    RETURNS VOID LANGUAGE SQL AS
    'SELECT pg_notify(current_schema(), concat_ws('' '', length, fence, is_over::INT, encode(
        sha256(convert_to(owner, ''UTF8'') || ''\x00''::BYTEA || chat || ''\x00''::BYTEA || run), ''hex'')))';

-- One row: the time of the last write of the ledger.
CREATE TABLE ledger_clock (latest_time BIGINT NOT NULL);
INSERT INTO ledger_clock VALUES (0);

CREATE SEQUENCE revisions;

CREATE TABLE chats (
    key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner TEXT COLLATE "C" NOT NULL,
    id BYTEA NOT NULL,
    revision BIGINT NOT NULL,
    -- Holds the number of the format, which is also that of the messages.
    head TEXT NOT NULL,
    title BYTEA NOT NULL,
    -- The number of messages.
    length INT NOT NULL,
    updated_at BIGINT NOT NULL,
    expires_at BIGINT,
    UNIQUE (owner, id)
);
CREATE INDEX chats_by_time ON chats (owner, updated_at, id);
CREATE INDEX chats_by_expiry ON chats (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE chat_messages (
    chat BIGINT NOT NULL REFERENCES chats ON DELETE CASCADE,
    place INT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (chat, place)
);

CREATE TABLE approvals (
    id TEXT COLLATE "C" PRIMARY KEY,
    requester TEXT COLLATE "C" NOT NULL,
    chat BYTEA NOT NULL,
    is_pending BOOLEAN NOT NULL,
    requested_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    delete_at BIGINT NOT NULL,
    revision BIGINT NOT NULL DEFAULT 0,
    -- Holds the number of its format.
    record TEXT NOT NULL
);
CREATE INDEX approvals_pending ON approvals (requester, expires_at, id) WHERE is_pending;
CREATE INDEX approvals_pending_in_chat ON approvals (requester, chat, expires_at, id) WHERE is_pending;
CREATE INDEX approvals_by_requester ON approvals (requester);
CREATE INDEX approvals_by_end ON approvals (delete_at);

-- The stateless approvals that were used.
CREATE TABLE approval_uses (
    id TEXT COLLATE "C" PRIMARY KEY,
    first_use TEXT NOT NULL,
    delete_at BIGINT NOT NULL
);
CREATE INDEX approval_uses_by_end ON approval_uses (delete_at);

CREATE TABLE runs (
    -- In the order in which the runs of an owner began.
    key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner TEXT COLLATE "C" NOT NULL,
    chat BYTEA NOT NULL,
    run BYTEA NOT NULL,
    -- The format of the run and its entries.
    format INT NOT NULL,
    holder TEXT NOT NULL,
    fence BIGINT NOT NULL,
    lease BIGINT NOT NULL,
    renewed_at BIGINT NOT NULL,
    read_at BIGINT NOT NULL,
    has_to_end BOOLEAN NOT NULL DEFAULT FALSE,
    ended_at BIGINT,
    -- The number of entries.
    length BIGINT NOT NULL DEFAULT 0,
    UNIQUE (owner, chat, run)
) WITH (fillfactor = 50);
CREATE INDEX runs_without_end ON runs (owner) WHERE ended_at IS NULL;
CREATE INDEX runs_by_end ON runs (ended_at) WHERE ended_at IS NOT NULL;

-- A row holds the entries of one append. The first byte of an entry is its kind: 0 a frame, 1 a note.
CREATE TABLE run_entries (
    run BIGINT NOT NULL REFERENCES runs ON DELETE CASCADE,
    -- The number of entries before these.
    position BIGINT NOT NULL,
    entries BYTEA[] NOT NULL,
    -- The bytes of the entries, as a page counts them.
    bytes BIGINT NOT NULL,
    PRIMARY KEY (run, position)
);

-- The users who were deleted within the last day. A run that goes on meanwhile requests no more approvals.
CREATE TABLE deleted_users (
    owner TEXT COLLATE "C" PRIMARY KEY,
    deleted_at BIGINT NOT NULL
);
CREATE INDEX deleted_users_by_time ON deleted_users (deleted_at);

-- Each statement of a volatile function sees what was committed before that statement, and so before the lock was
-- given. The locks are held until the end of the transaction.

-- The number of chats of an owner. Until the end of the transaction, no other one counts them.
CREATE FUNCTION count_chats(of_owner TEXT) RETURNS BIGINT LANGUAGE SQL AS
    'SELECT pg_advisory_xact_lock(hashtextextended(of_owner, hashtext(current_schema() || '' chats'')));
     SELECT count(*) FROM chats
     WHERE owner = of_owner AND (expires_at IS NULL OR expires_at > (SELECT now_ms()))';

-- Whether an owner has this chat. After count_chats it also sees one that another transaction has inserted meanwhile.
CREATE FUNCTION has_chat(of_owner TEXT, of_chat BYTEA) RETURNS BOOLEAN LANGUAGE SQL AS
    'SELECT EXISTS (SELECT FROM chats WHERE owner = of_owner AND id = of_chat
        AND (expires_at IS NULL OR expires_at > (SELECT now_ms())))';

-- Whether the user was deleted, and has not begun this chat since.
CREATE FUNCTION is_deleted(user_key TEXT, of_chat BYTEA) RETURNS BOOLEAN LANGUAGE SQL AS
    'SELECT pg_advisory_xact_lock_shared(hashtextextended(user_key, hashtext(current_schema() || '' deletion'')));
     SELECT EXISTS (SELECT FROM deleted_users WHERE owner = user_key)
        AND NOT EXISTS (SELECT FROM chats WHERE owner = user_key AND id = of_chat)
        AND NOT EXISTS (SELECT FROM logs WHERE owner = user_key AND id = of_chat)';

-- Stores that a user who has chats is being deleted, and waits for the transactions that have asked is_deleted before.
CREATE FUNCTION mark_deleted(user_key TEXT) RETURNS VOID LANGUAGE SQL AS
    'SELECT pg_advisory_xact_lock(hashtextextended(user_key, hashtext(current_schema() || '' deletion'')));
     INSERT INTO deleted_users SELECT user_key, now_ms() WHERE EXISTS (SELECT FROM chats WHERE owner = user_key)
        OR EXISTS (SELECT FROM logs WHERE owner = user_key)
     ON CONFLICT (owner) DO UPDATE SET deleted_at = excluded.deleted_at';

-- Inserts approvals of one requester and one chat, in order, until a limit is reached. Returns how many of them are
-- stored already, and how many pending ones there were before, up to the limits; and whether the requester was
-- deleted: nothing is inserted then. Two insertions of one requester follow each other.
CREATE FUNCTION insert_approvals(user_key TEXT, of_chat BYTEA, chat_limit BIGINT, user_limit BIGINT, ids TEXT[],
        pending BOOLEAN[], requested BIGINT[], expires BIGINT[], deletes BIGINT[], records TEXT[],
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
    SELECT count(*) INTO in_chat FROM (SELECT FROM approvals
        WHERE is_pending AND requester = user_key AND chat = of_chat AND expires_at > now LIMIT chat_limit) AS counted;
    SELECT count(*) INTO of_requester FROM (SELECT FROM approvals
        WHERE is_pending AND requester = user_key AND expires_at > now LIMIT user_limit) AS counted;
    INSERT INTO approvals (id, requester, chat, is_pending, requested_at, expires_at, delete_at, record)
        SELECT new.id, user_key, of_chat, new.is_pending, new.requested_at, new.expires_at, new.delete_at, new.record
        FROM unnest(ids, pending, requested, expires, deletes, records) WITH ORDINALITY
            AS new (id, is_pending, requested_at, expires_at, delete_at, record, place)
        WHERE new.place <= existing + least(chat_limit - in_chat, user_limit - of_requester)
        ON CONFLICT (id) DO NOTHING;
    -- Last, because all writers of the ledger share this row.
    UPDATE ledger_clock SET latest_time = now_not_before(latest_time);
END $$;
