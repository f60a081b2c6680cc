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
        AND NOT EXISTS (SELECT FROM chats WHERE owner = user_key AND id = of_chat)';

-- Stores that a user who has chats is being deleted, and waits for the transactions that have asked is_deleted before.
CREATE FUNCTION mark_deleted(user_key TEXT) RETURNS VOID LANGUAGE SQL AS
    'SELECT pg_advisory_xact_lock(hashtextextended(user_key, hashtext(current_schema() || '' deletion'')));
     INSERT INTO deleted_users SELECT user_key, now_ms() WHERE EXISTS (SELECT FROM chats WHERE owner = user_key)
     ON CONFLICT (owner) DO UPDATE SET deleted_at = excluded.deleted_at';
