//! [`ChatStore`]: the storage of conversations. [`RunStore`]: the storage of the logs of their runs.
//!
//! A server without a stored history has to take the messages of earlier turns from the client, and
//! the client can forge them.

mod memory;
mod memory_runs;
pub mod run_conformance;
mod run_store;

use std::error::Error as StdError;
use std::fmt;

pub use self::memory::InMemoryChatStore;
pub use self::memory_runs::InMemoryRunStore;
pub use self::run_store::{RunStore, RunStoreError};

use crate::approval::Principal;
use crate::boxed::{BoxError, BoxFuture};
use crate::chat::Chat;
use crate::id::ChatId;

/// A store of conversations. The key of a conversation is its owner (the tenant and the id of the
/// [`Principal`]) and its id: two users may have conversations with the same id.
///
/// # Requirements
/// - [`save`](Self::save) compares the revision and writes the conversation in one atomic step.
/// - After `save` has returned `Ok(true)` the conversation is stored, and [`load`](Self::load)
///   returns it.
/// - The store gives each saved version a new revision. A revision is never used again, not even
///   after the conversation was deleted and created again. In a database, take it from a sequence
///   of the whole table and not from a counter of the row.
///
/// [`Chat`] implements `Serialize` and `Deserialize`, so that one text column can hold it. It holds
/// the number of its format. Deserializing a chat of a newer format fails, and the store returns
/// this failure as a [`ChatStoreError`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use ui_message_stream::approval::Principal;
/// use ui_message_stream::chat::Chat;
/// use ui_message_stream::chat::store::{ChatStore, InMemoryChatStore};
///
/// let store = InMemoryChatStore::new();
/// let chat = Chat::new("c", Principal::new("ada"));
/// // SQL: INSERT … ON CONFLICT (tenant, owner, id) DO NOTHING
/// assert!(store.save(&chat, None).await?);
/// // The conversation exists already.
/// assert!(!store.save(&chat, None).await?);
///
/// let stored = store.load(&chat.owner, &chat.id).await?.expect("the conversation was saved");
/// // SQL: UPDATE … WHERE tenant = … AND owner = … AND id = … AND revision = …
/// assert!(store.save(&stored.chat, Some(stored.revision)).await?);
/// // Another request has saved the conversation since this revision was loaded.
/// assert!(!store.save(&stored.chat, Some(stored.revision)).await?);
/// # Ok(())
/// # }
/// ```
///
/// # A store in SQL
/// [`InMemoryChatStore`] is the only store of this crate. With a table and a sequence
///
/// ```sql
/// CREATE TABLE chats (
///     tenant TEXT, owner TEXT, id TEXT NOT NULL, revision BIGINT NOT NULL, body TEXT NOT NULL,
///     UNIQUE NULLS NOT DISTINCT (tenant, owner, id)
/// );
/// CREATE SEQUENCE chat_revision;
/// ```
///
/// a store in PostgreSQL is this (`row` and `execute` stand for the functions of your database
/// client):
///
/// ```
/// use ui_message_stream::BoxFuture;
/// use ui_message_stream::approval::Principal;
/// use ui_message_stream::chat::Chat;
/// use ui_message_stream::chat::store::{ChatStore, ChatStoreError, VersionedChat};
/// use ui_message_stream::id::ChatId;
/// # type Values<'a> = &'a [&'a (dyn std::fmt::Debug + Sync)];
/// # #[derive(Debug)]
/// # struct Db;
/// # impl Db {
/// #     async fn row(&self, _: &str, _: Values<'_>) -> Result<Option<(String, i64)>, std::io::Error> {
/// #         Ok(None)
/// #     }
/// #     async fn execute(&self, _: &str, _: Values<'_>) -> Result<u64, std::io::Error> { Ok(1) }
/// # }
///
/// #[derive(Debug)]
/// struct SqlChats {
///     db: Db,
/// }
///
/// const LOAD: &str = "SELECT body, revision FROM chats WHERE tenant IS NOT DISTINCT FROM $1 \
///     AND owner IS NOT DISTINCT FROM $2 AND id = $3";
/// const INSERT: &str = "INSERT INTO chats (tenant, owner, id, body, revision) \
///     VALUES ($1, $2, $3, $4, nextval('chat_revision')) ON CONFLICT DO NOTHING";
/// const UPDATE: &str = "UPDATE chats SET body = $4, revision = nextval('chat_revision') \
///     WHERE tenant IS NOT DISTINCT FROM $1 AND owner IS NOT DISTINCT FROM $2 AND id = $3 \
///     AND revision = $5";
///
/// impl ChatStore for SqlChats {
///     fn load<'a>(
///         &'a self,
///         owner: &'a Principal,
///         id: &'a ChatId,
///     ) -> BoxFuture<'a, Result<Option<VersionedChat>, ChatStoreError>> {
///         Box::pin(async move {
///             let row = self.db.row(LOAD, &[&owner.tenant(), &owner.id(), &id.as_str()]).await;
///             let Some((body, revision)) = row.map_err(ChatStoreError::new)? else {
///                 return Ok(None);
///             };
///             Ok(Some(VersionedChat {
///                 chat: serde_json::from_str(&body).map_err(ChatStoreError::new)?,
///                 revision: revision.try_into().map_err(ChatStoreError::new)?,
///             }))
///         })
///     }
///
///     fn save<'a>(
///         &'a self,
///         chat: &'a Chat,
///         revision: Option<u64>,
///     ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
///         Box::pin(async move {
///             let body = serde_json::to_string(chat).map_err(ChatStoreError::new)?;
///             let (tenant, owner, id) = (chat.owner.tenant(), chat.owner.id(), chat.id.as_str());
///             let rows = match revision {
///                 None => self.db.execute(INSERT, &[&tenant, &owner, &id, &body]).await,
///                 Some(revision) => {
///                     // The store gave this revision, so it fits into an `i64`.
///                     let revision = i64::try_from(revision).map_err(ChatStoreError::new)?;
///                     self.db.execute(UPDATE, &[&tenant, &owner, &id, &body, &revision]).await
///                 }
///             };
///             Ok(rows.map_err(ChatStoreError::new)? == 1)
///         })
///     }
/// }
/// ```
///
/// The trait has no functions to list or delete conversations: the server does not need them. Query
/// your own table.
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

    /// Saves a conversation if the store still holds the revision that the caller loaded.
    ///
    /// - `Some(revision)`: replaces the stored conversation if it has this revision.
    /// - `None`: inserts the conversation if its owner has none with this id.
    ///
    /// Returns `true` if the conversation was saved. Otherwise returns `false` and changes nothing.
    ///
    /// # Errors
    /// [`ChatStoreError`] if the conversation cannot be written.
    fn save<'a>(
        &'a self,
        chat: &'a Chat,
        revision: Option<u64>,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>>;
}

/// A stored conversation and its revision.
#[derive(Debug, Clone)]
pub struct VersionedChat {
    /// The conversation.
    pub chat: Chat,
    /// Identifies this version of the conversation. Each save gives a new revision. A revision is
    /// never used again, not even for a new conversation with the id of a deleted one.
    pub revision: u64,
}

/// A failure of the store: it is unreachable, too slow, or returns what this version cannot read.
#[derive(Debug)]
pub struct ChatStoreError(BoxError);

impl ChatStoreError {
    /// Wraps the error of the store, which becomes the [source](StdError::source).
    pub fn new(source: impl Into<BoxError>) -> Self {
        ChatStoreError(source.into())
    }
}

impl fmt::Display for ChatStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the chat store failed")
    }
}

impl StdError for ChatStoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}
