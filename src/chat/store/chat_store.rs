//! [`ChatStore`]: the storage of conversations.

use std::fmt;

use super::chat_page::{ChatPage, ListChats};
use super::error::ChatStoreError;
use super::save_chat::{ReloadedChat, SaveChat, SaveResult, VersionedChat};
use crate::approval::Principal;
use crate::boxed::BoxFuture;
use crate::id::ChatId;

/// A store of conversations. The key of a conversation is its owner (the tenant and the id of the
/// [`Principal`]) and its id: two users may have conversations with the same id.
///
/// # Requirements
/// - Each function is one atomic step. [`save`](Self::save) and [`delete`](Self::delete) compare the
///   revision in the step that changes the conversation.
/// - After `save` has returned [`SaveResult::Saved`] the conversation is stored, and
///   [`load`](Self::load) returns it.
/// - The store gives each saved version a new revision. A revision is never used again, not even
///   after the conversation was deleted and created again. In a database, take it from a sequence
///   of the whole table and not from a counter of the row, or choose it at random.
/// - The store has one clock for all servers. After [`keep_for`](SaveChat::keep_for) without a save,
///   each function behaves as if the conversation was deleted.
/// - The functions do not return a conversation of another owner.
///
/// [`chat_conformance`](super::chat_conformance) tests these requirements.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use ui_message_stream::approval::Principal;
/// use ui_message_stream::chat::Chat;
/// use ui_message_stream::chat::store::{ChatStore, InMemoryChatStore, SaveChat, SaveResult};
///
/// let store = InMemoryChatStore::new();
/// let chat = Chat::new("c", Principal::new("ada"));
/// assert!(matches!(store.save(SaveChat::new(&chat)).await?, SaveResult::Saved(_)));
/// // The conversation exists already.
/// assert_eq!(store.save(SaveChat::new(&chat)).await?, SaveResult::Conflict);
///
/// let stored = store.load(&chat.owner, &chat.id).await?.expect("the conversation was saved");
/// let save = SaveChat::replacing(&stored, &chat);
/// assert!(matches!(store.save(save).await?, SaveResult::Saved(_)));
/// // Another request has saved the conversation since this revision was loaded.
/// assert_eq!(store.save(save).await?, SaveResult::Conflict);
/// # Ok(())
/// # }
/// ```
///
/// # What a save writes
/// A conversation grows by a message, and its older messages hardly ever change. A [`SaveChat`] says
/// how many of its first messages are [unchanged](SaveChat::unchanged). A store that keeps each
/// message by itself writes only the others, and the head: everything of the conversation but its
/// messages. A store that keeps the conversation as one value ignores the number.
///
/// A chat server saves a conversation twice in a turn: with the user's message, and with the agent's.
/// It loads it once, and then [reloads](Self::reload) it, also at each third of the lease of a run.
///
/// # A store in SQL
/// [`InMemoryChatStore`](super::InMemoryChatStore) is the only `ChatStore` of this crate.
/// `SqliteStore` of the package `ui-message-stream-sqlite` is one in SQLite, `RedisStore` of
/// `ui-message-stream-redis` one in Redis, and `PostgresStore` of `ui-message-stream-postgres` one in
/// PostgreSQL. A store of your own can be this. Times are in milliseconds, as in a
/// [`ChatCursor`](super::ChatCursor), and ids are compared as bytes:
///
/// ```sql
/// CREATE TABLE chats (
///     key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
///     tenant TEXT, owner TEXT, id TEXT COLLATE "C" NOT NULL,
///     head TEXT NOT NULL, title TEXT NOT NULL, revision BIGINT NOT NULL,
///     updated_at BIGINT NOT NULL, expires_at BIGINT,
///     UNIQUE NULLS NOT DISTINCT (tenant, owner, id)
/// );
/// CREATE INDEX ON chats (tenant, owner, updated_at, id);
/// CREATE TABLE chat_messages (
///     chat BIGINT REFERENCES chats ON DELETE CASCADE, place INT, body TEXT NOT NULL,
///     PRIMARY KEY (chat, place)
/// );
/// CREATE SEQUENCE chat_revision;
/// CREATE FUNCTION now_ms() RETURNS BIGINT LANGUAGE SQL STABLE
///     AS 'SELECT floor(extract(epoch FROM now()) * 1000)::BIGINT';
/// CREATE VIEW live_chats AS
///     SELECT * FROM chats WHERE expires_at IS NULL OR expires_at > now_ms();
/// -- A volatile function sees what was committed while it waited for the lock.
/// CREATE FUNCTION count_chats(of_tenant TEXT, of_owner TEXT) RETURNS BIGINT LANGUAGE SQL AS
///     'SELECT pg_advisory_xact_lock(hashtext(concat(of_tenant)), hashtext(concat(of_owner)));
///     SELECT count(*) FROM live_chats
///     WHERE tenant IS NOT DISTINCT FROM of_tenant AND owner IS NOT DISTINCT FROM of_owner';
/// ```
///
/// `Db` stands for your database client:
///
/// ```
/// use ui_message_stream::BoxFuture;
/// use ui_message_stream::approval::{Principal, UnixMillis};
/// use ui_message_stream::chat::store::{
///     ChatPage, ChatStore, ChatStoreError, ChatSummary, ListChats, SaveChat, SaveResult,
///     VersionedChat,
/// };
/// use ui_message_stream::id::ChatId;
/// # type Values<'a> = &'a [&'a (dyn std::fmt::Debug + Sync)];
/// # #[derive(Debug)]
/// # struct Db;
/// # struct Row;
/// # impl Row {
/// #     fn text(&self, _: usize) -> &str { "" }
/// #     fn texts(&self, _: usize) -> &[String] { &[] }
/// #     fn number(&self, _: usize) -> u64 { 0 }
/// # }
/// # impl Db {
/// #     async fn query(&self, _: &str, _: Values<'_>) -> Result<Vec<Row>, ChatStoreError> {
/// #         Ok(Vec::new())
/// #     }
/// # }
///
/// #[derive(Debug)]
/// struct SqlChats {
///     db: Db,
/// }
///
/// const LOAD: &str = "SELECT head, revision, \
///         ARRAY(SELECT body FROM chat_messages WHERE chat = key ORDER BY place) \
///     FROM live_chats WHERE tenant IS NOT DISTINCT FROM $1 AND owner IS NOT DISTINCT FROM $2 \
///     AND id = $3";
/// /// A conversation whose time has passed is replaced by a new one. `$7` is the maximum.
/// const INSERT: &str = "INSERT INTO chats AS old \
///         (tenant, owner, id, head, title, expires_at, revision, updated_at) \
///     SELECT $1, $2, $3, $4, $5, now_ms() + $6, nextval('chat_revision'), now_ms() \
///     WHERE $7::BIGINT IS NULL OR count_chats($1, $2) < $7 \
///     ON CONFLICT (tenant, owner, id) DO UPDATE SET head = $4, title = $5, \
///         expires_at = now_ms() + $6, revision = excluded.revision, updated_at = now_ms() \
///     WHERE old.expires_at <= now_ms() RETURNING key, revision";
/// const UPDATE: &str = "UPDATE chats SET head = $4, title = $5, \
///         expires_at = now_ms() + $6, revision = nextval('chat_revision'), updated_at = now_ms() \
///     WHERE tenant IS NOT DISTINCT FROM $1 AND owner IS NOT DISTINCT FROM $2 AND id = $3 \
///     AND revision = $7 AND (expires_at IS NULL OR expires_at > now_ms()) RETURNING key, revision";
/// const MESSAGES: &str = "removed AS (DELETE FROM chat_messages USING saved \
///         WHERE chat = key AND place >= $8), \
///     written AS (INSERT INTO chat_messages SELECT key, new.place, new.body \
///         FROM saved, unnest($9::INT[], $10::TEXT[]) AS new (place, body) \
///         ON CONFLICT (chat, place) DO UPDATE SET body = excluded.body) \
///     SELECT revision FROM saved";
/// const LIST: &str = "SELECT id, title, updated_at FROM live_chats \
///     WHERE tenant IS NOT DISTINCT FROM $1 AND owner IS NOT DISTINCT FROM $2 \
///     AND ($3::BIGINT IS NULL OR (updated_at, id) < ($3, $4)) \
///     ORDER BY updated_at DESC, id DESC LIMIT $5";
/// /// Deletes no row if the conversation is missing, has another revision, or has expired.
/// const DELETE: &str = "DELETE FROM chats WHERE tenant IS NOT DISTINCT FROM $1 \
///     AND owner IS NOT DISTINCT FROM $2 AND id = $3 AND revision = $4 \
///     AND (expires_at IS NULL OR expires_at > now_ms()) RETURNING key";
///
/// impl ChatStore for SqlChats {
///     fn load<'a>(
///         &'a self,
///         owner: &'a Principal,
///         id: &'a ChatId,
///     ) -> BoxFuture<'a, Result<Option<VersionedChat>, ChatStoreError>> {
///         Box::pin(async move {
///             let rows = self.db.query(LOAD, &[&owner.tenant(), &owner.id(), &id.as_str()]).await?;
///             let chat = rows.first().map(|row| {
///                 VersionedChat::from_json(row.text(0), row.texts(2), row.number(1))
///             });
///             chat.transpose()
///         })
///     }
///
///     fn save<'a>(
///         &'a self,
///         save: SaveChat<'a>,
///     ) -> BoxFuture<'a, Result<SaveResult, ChatStoreError>> {
///         Box::pin(async move {
///             let (chat, owner) = (save.chat, &save.chat.owner);
///             let changed: Result<Vec<_>, _> = save.changed_messages().collect();
///             let (places, bodies): (Vec<usize>, Vec<String>) = changed?.into_iter().unzip();
///             let keep_for = save.keep_for.map(|time| time.as_millis());
///             let max_chats = save.max_user_chats.map(|chats| chats as u64);
///             let (head, condition) = match save.revision {
///                 Some(_) => (UPDATE, &save.revision),
///                 None => (INSERT, &max_chats),
///             };
///             // One statement, which is atomic.
///             let statement = format!("WITH saved AS ({head}), {MESSAGES}");
///             let (length, head, title) = (chat.messages.len(), save.head_json()?, chat.title());
///             let (tenant, user, id) = (owner.tenant(), owner.id(), chat.id.as_str());
///             let values: Values = &[
///                 &tenant, &user, &id, &head, &title, &keep_for, condition, &length, &places,
///                 &bodies,
///             ];
///             let rows = self.db.query(&statement, values).await?;
///             let is_new = save.revision.is_none();
///             Ok(match rows.first() {
///                 Some(row) => SaveResult::Saved(row.number(0)),
///                 None if is_new && self.load(owner, &chat.id).await?.is_none() => {
///                     SaveResult::TooManyChats
///                 }
///                 None => SaveResult::Conflict,
///             })
///         })
///     }
///
///     fn list<'a>(
///         &'a self,
///         owner: &'a Principal,
///         list: ListChats<'a>,
///     ) -> BoxFuture<'a, Result<ChatPage, ChatStoreError>> {
///         Box::pin(async move {
///             let (time, id) = (list.after.map(|it| it.updated_at.0), list.after.map(|it| &it.id));
///             let (tenant, user, limit) = (owner.tenant(), owner.id(), list.limit + 1);
///             let values: Values = &[&tenant, &user, &time, &id, &limit];
///             let rows = self.db.query(LIST, values).await?;
///             let chats = rows.iter().map(|row| ChatSummary {
///                 id: row.text(0).into(),
///                 title: row.text(1).to_owned(),
///                 updated_at: UnixMillis(row.number(2)),
///             });
///             Ok(ChatPage::new(chats.collect(), list.limit))
///         })
///     }
///
///     fn delete<'a>(
///         &'a self,
///         owner: &'a Principal,
///         id: &'a ChatId,
///         revision: u64,
///     ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
///         Box::pin(async move {
///             let (tenant, user, id) = (owner.tenant(), owner.id(), id.as_str());
///             let values: Values = &[&tenant, &user, &id, &revision];
///             Ok(!self.db.query(DELETE, values).await?.is_empty())
///         })
///     }
/// }
/// ```
///
/// Delete the rows whose `expires_at` has passed from time to time.
#[doc(alias = "history")]
#[doc(alias = "persist")]
#[doc(alias = "database")]
#[doc(alias = "postgres")]
pub trait ChatStore: Send + Sync + fmt::Debug + 'static {
    /// Loads the conversation with this id that belongs to this owner. Returns `None` if the owner
    /// has none, also if another user has a conversation with this id.
    ///
    /// # Errors
    /// [`ChatStoreError`] if the conversation cannot be read.
    fn load<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
    ) -> BoxFuture<'a, Result<Option<VersionedChat>, ChatStoreError>>;

    /// Loads a conversation unless it still has this revision.
    ///
    /// The default loads the conversation and compares the revision. A store that reads the messages
    /// from another machine or from a disk reads the revision first.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn reload<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
        revision: u64,
    ) -> BoxFuture<'a, Result<ReloadedChat, ChatStoreError>> {
        Box::pin(async move {
            Ok(match self.load(owner, id).await? {
                Some(stored) if stored.revision == revision => ReloadedChat::Unchanged,
                Some(stored) => ReloadedChat::Changed(Box::new(stored)),
                None => ReloadedChat::NotFound,
            })
        })
    }

    /// Saves a conversation if the store still holds the revision that the caller loaded.
    ///
    /// - With a [`revision`](SaveChat::revision): replaces the stored conversation if it has this
    ///   revision.
    /// - Without one: inserts the conversation if its owner has none with this id, and fewer than
    ///   [`max_user_chats`](SaveChat::max_user_chats). A store that may lose conversations, such as
    ///   one in memory, can instead remove another one of this owner. Conversations whose time has
    ///   passed do not count.
    ///
    /// # Errors
    /// [`ChatStoreError`] if the conversation cannot be written. It may have been saved.
    fn save<'a>(&'a self, save: SaveChat<'a>) -> BoxFuture<'a, Result<SaveResult, ChatStoreError>>;

    /// Lists the conversations of an owner, the last saved first, page by page. Conversations that
    /// were saved in the same millisecond are in the descending order of the bytes of their ids.
    ///
    /// A conversation that does not change while the pages are read is on exactly one of them. One
    /// that is saved meanwhile moves to the front: it is on the page that held it, if that page was
    /// read before, and otherwise on none. One that is deleted meanwhile may be on none.
    ///
    /// # Errors
    /// [`ChatStoreError`] if the conversations cannot be read.
    fn list<'a>(
        &'a self,
        owner: &'a Principal,
        list: ListChats<'a>,
    ) -> BoxFuture<'a, Result<ChatPage, ChatStoreError>>;

    /// Deletes a conversation with all its messages, if it has this revision. Returns whether it was
    /// deleted.
    ///
    /// A server has to stop the run that it finds in this revision first. The comparison ensures that
    /// no other run has begun meanwhile. To delete a conversation with its run and its approval
    /// requests, call [`ChatServer::delete`](crate::chat::ChatServer::delete).
    ///
    /// # Errors
    /// [`ChatStoreError`] if the conversation cannot be deleted. It may have been deleted.
    fn delete<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>>;
}
