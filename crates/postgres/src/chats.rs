//! [`ChatStore`] of a [`PostgresStore`]: a row for each chat and for each message.

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream::chat::store::{
    ChatPage, ChatStore, ChatStoreError, ChatSummary, ListChats, ReloadedChat, SaveChat,
    SaveResult, VersionedChat,
};
use ui_message_stream::id::ChatId;

use crate::error::PostgresError;
use crate::{PostgresStore, column, millis, number, owner_key, stored};

impl ChatStore for PostgresStore {
    fn load<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
    ) -> BoxFuture<'a, Result<Option<VersionedChat>, ChatStoreError>> {
        Box::pin(async move {
            match self.load_unless(owner, id, None).await? {
                ReloadedChat::Changed(stored) => Ok(Some(*stored)),
                ReloadedChat::Unchanged | ReloadedChat::NotFound => Ok(None),
            }
        })
    }

    fn reload<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
        revision: u64,
    ) -> BoxFuture<'a, Result<ReloadedChat, ChatStoreError>> {
        Box::pin(self.load_unless(owner, id, Some(revision)))
    }

    fn save<'a>(&'a self, save: SaveChat<'a>) -> BoxFuture<'a, Result<SaveResult, ChatStoreError>> {
        Box::pin(async move {
            let SaveChat { chat, revision, keep_for, max_user_chats, .. } = save;
            let place = |place: usize| i32::try_from(place).map_err(ChatStoreError::new);
            let (mut places, mut bodies) = (Vec::new(), Vec::new());
            for message in save.changed_messages() {
                let (at, body) = message?;
                places.push(place(at)?);
                bodies.push(body);
            }
            let (owner, id, head) = (owner_key(&chat.owner), chat.id.as_bytes(), save.head_json()?);
            let (title, length) = (chat.title(), place(chat.messages.len())?);
            let (keep_for, replaced) = (keep_for.map(millis), revision.map(stored));
            let title = title.as_bytes();
            let max_chats = max_user_chats.map(|chats| stored(chats as u64));
            let (statement, condition) =
                if replaced.is_some() { (REPLACE, &replaced) } else { (INSERT, &max_chats) };
            let values: &[&(dyn ToSql + Sync)] =
                &[&owner, &id, &head, &title, &length, &keep_for, condition, &places, &bodies];
            let rows = self.query(statement, values).await?;
            Ok(match rows.first() {
                Some(row) if column(row, 1)? => SaveResult::TooManyChats,
                Some(row) => SaveResult::Saved(number(row, 0)?),
                None => SaveResult::Conflict,
            })
        })
    }

    fn list<'a>(
        &'a self,
        owner: &'a Principal,
        list: ListChats<'a>,
    ) -> BoxFuture<'a, Result<ChatPage, ChatStoreError>> {
        Box::pin(async move {
            let after = list.after.map(|after| (stored(after.updated_at.0), after.id.as_bytes()));
            let (time, id) = after.unzip();
            let limit = stored(list.limit.saturating_add(1) as u64);
            let rows = self.query(LIST, &[&owner_key(owner), &time, &id, &limit]).await?;
            let chats = rows.iter().map(|row| {
                let updated_at = UnixMillis(number(row, 2)?);
                Ok(ChatSummary { id: text(row, 0)?.into(), title: text(row, 1)?, updated_at })
            });
            Ok(ChatPage::new(chats.collect::<Result<_, PostgresError>>()?, list.limit))
        })
    }

    fn delete<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        Box::pin(async move {
            let (owner, id, revision) = (owner_key(owner), id.as_bytes(), stored(revision));
            Ok(!self.query(DELETE, &[&owner, &id, &revision]).await?.is_empty())
        })
    }
}

impl PostgresStore {
    /// Loads a chat unless it has this revision.
    async fn load_unless(
        &self,
        owner: &Principal,
        id: &ChatId,
        known: Option<u64>,
    ) -> Result<ReloadedChat, ChatStoreError> {
        let (owner, id, known) = (owner_key(owner), id.as_bytes(), known.map(stored));
        let rows = self.query(LOAD, &[&owner, &id, &known]).await?;
        let Some(row) = rows.first() else { return Ok(ReloadedChat::NotFound) };
        let Some(bodies) = column::<Option<Vec<&str>>>(row, 2)? else {
            return Ok(ReloadedChat::Unchanged);
        };
        let stored = VersionedChat::from_json(column(row, 1)?, bodies, number(row, 0)?)?;
        Ok(ReloadedChat::Changed(Box::new(stored)))
    }
}

/// Returns a text that is stored as bytes.
fn text(row: &Row, at: usize) -> Result<String, PostgresError> {
    String::from_utf8(column(row, at)?).map_err(|_| PostgresError::Unreadable("chat"))
}

/// The messages are `NULL` if the chat has the revision that is known.
const LOAD: &str = "SELECT revision, head, CASE WHEN revision IS DISTINCT FROM $3 THEN \
        ARRAY(SELECT body FROM chat_messages WHERE chat = key AND place < length ORDER BY place) END \
    FROM chats WHERE owner = $1 AND id = $2 AND (expires_at IS NULL OR expires_at > now_ms())";

/// Saves the head as `$head` says, and then the messages. Returns a row with the revision and whether
/// there are too many chats, or no row.
macro_rules! save {
    ($head:literal) => {
        save!("", $head, "SELECT revision, FALSE FROM saved")
    };
    ($before:literal, $head:literal, $result:literal) => {
        concat!(
            "WITH ",
            $before,
            "saved AS (",
            $head,
            " RETURNING key, revision), \
            removed AS (DELETE FROM chat_messages USING saved \
                WHERE chat = key AND place >= $5), \
            written AS (INSERT INTO chat_messages (chat, place, body) \
                SELECT key, message.place, message.body \
                FROM saved, unnest($8::INT[], $9::TEXT[]) AS message (place, body) \
                ON CONFLICT (chat, place) DO UPDATE SET body = excluded.body) ",
            $result
        )
    };
}

/// A chat whose time has passed is replaced by a new one. `$7` is the maximum number of chats.
const INSERT: &str = save!(
    "room AS (SELECT CASE WHEN $7::BIGINT IS NULL THEN TRUE ELSE count_chats($1) < $7 END AS is_free), ",
    "INSERT INTO chats AS old \
        (owner, id, head, title, length, expires_at, revision, updated_at) \
    SELECT $1::TEXT, $2::BYTEA, $3::TEXT, $4::BYTEA, $5::INT, now_ms() + $6::BIGINT, \
        nextval('revisions'), \
        now_not_before((SELECT max(updated_at) FROM chats WHERE owner = $1)) \
    FROM room WHERE is_free \
    ON CONFLICT (owner, id) DO UPDATE SET head = excluded.head, title = excluded.title, \
        length = excluded.length, expires_at = excluded.expires_at, \
        revision = excluded.revision, updated_at = excluded.updated_at \
    WHERE old.expires_at <= now_ms()",
    "SELECT revision, FALSE FROM saved UNION ALL SELECT NULL, TRUE FROM room \
        WHERE NOT is_free AND NOT has_chat($1, $2)"
);
const REPLACE: &str = save!(
    "UPDATE chats SET head = $3, title = $4, length = $5, expires_at = now_ms() + $6::BIGINT, \
        revision = nextval('revisions'), \
        updated_at = now_not_before((SELECT max(updated_at) FROM chats WHERE owner = $1)) \
    WHERE owner = $1 AND id = $2 AND revision = $7::BIGINT \
        AND (expires_at IS NULL OR expires_at > now_ms())"
);
const LIST: &str = "SELECT id, title, updated_at FROM chats \
    WHERE owner = $1 AND (expires_at IS NULL OR expires_at > now_ms()) \
        AND ($2::BIGINT IS NULL OR (updated_at, id) < ($2, $3::BYTEA)) \
    ORDER BY updated_at DESC, id DESC LIMIT $4";
const DELETE: &str = "DELETE FROM chats WHERE owner = $1 AND id = $2 AND revision = $3 \
    AND (expires_at IS NULL OR expires_at > now_ms()) RETURNING key";
