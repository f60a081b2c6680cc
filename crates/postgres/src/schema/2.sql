-- Each statement of a volatile function sees what was committed before that statement, and so before the lock was
-- given. The locks are held until the end of the transaction.

-- The number of chats of an owner. Until the end of the transaction, no other one counts them.
CREATE FUNCTION count_chats(of_owner TEXT) RETURNS BIGINT LANGUAGE SQL AS
    'SELECT pg_advisory_xact_lock(hashtextextended(of_owner, hashtext(current_schema() || '' chats'')));
     SELECT count(*) FROM chats
     WHERE owner = of_owner AND (expires_at IS NULL OR expires_at > (SELECT now_ms()))';
