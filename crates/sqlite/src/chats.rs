//! [`ChatStore`] of a [`SqliteStore`]: a row for each chat and for each message.

use rusqlite::{Connection, OptionalExtension, Transaction, named_params, params};
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::Principal;
use ui_message_stream::chat::store::{
    ChatPage, ChatStore, ChatStoreError, ChatSummary, ListChats, ReloadedChat, SaveChat,
    SaveResult, VersionedChat,
};
use ui_message_stream::id::ChatId;

use crate::clock::{Clock, stored_time, unix_millis};
use crate::error::{DbResult, SqliteError};
use crate::file::Durability;
use crate::{SqliteStore, owner_key, state};

impl ChatStore for SqliteStore {
    fn load<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
    ) -> BoxFuture<'a, Result<Option<VersionedChat>, ChatStoreError>> {
        let key = Key::new(owner, id);
        Box::pin(async move {
            let chat = self.read(move |transaction, clock| {
                let Some(head) = Head::load(transaction, clock, &key)? else { return Ok(None) };
                Ok(Some(head.with_messages(transaction)?))
            });
            chat.await.map_err(ChatStoreError::new)?.transpose()
        })
    }

    fn reload<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
        revision: u64,
    ) -> BoxFuture<'a, Result<ReloadedChat, ChatStoreError>> {
        let key = Key::new(owner, id);
        Box::pin(async move {
            let chat = self.read(move |transaction, clock| {
                Ok(match Head::load(transaction, clock, &key)? {
                    None => Ok(ReloadedChat::NotFound),
                    Some(head) if u64::try_from(head.revision) == Ok(revision) => {
                        Ok(ReloadedChat::Unchanged)
                    }
                    Some(head) => head
                        .with_messages(transaction)?
                        .map(|stored| ReloadedChat::Changed(Box::new(stored))),
                })
            });
            chat.await.map_err(ChatStoreError::new)?
        })
    }

    fn save<'a>(&'a self, save: SaveChat<'a>) -> BoxFuture<'a, Result<SaveResult, ChatStoreError>> {
        Box::pin(async move {
            let new = NewVersion::of(save)?;
            let saved = self
                .write(Durability::Synced, move |transaction, clock| new.save(transaction, clock));
            saved.await.map_err(ChatStoreError::new)
        })
    }

    fn list<'a>(
        &'a self,
        owner: &'a Principal,
        list: ListChats<'a>,
    ) -> BoxFuture<'a, Result<ChatPage, ChatStoreError>> {
        let owner = owner_key(owner);
        let after = list.after.cloned();
        let limit = list.limit;
        Box::pin(async move {
            let chats = self.read(move |transaction, clock| {
                let mut statement = transaction.prepare_cached(LIST)?;
                let rows = statement.query_map(
                    named_params! {
                        ":owner": owner,
                        ":now": clock.now(0),
                        ":time": after.as_ref().map(|after| stored_time(after.updated_at)),
                        ":id": after.as_ref().map(|after| after.id.as_bytes()),
                        ":limit": i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX),
                    },
                    |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get(1)?, row.get(2)?)),
                )?;
                let mut chats = Vec::new();
                for row in rows {
                    let (id, title, updated_at) = row?;
                    let id = String::from_utf8(id).map_err(|_| SqliteError::Unreadable("chat"))?;
                    let updated_at = unix_millis(updated_at);
                    chats.push(ChatSummary { id: id.into(), title, updated_at });
                }
                Ok(chats)
            });
            Ok(ChatPage::new(chats.await.map_err(ChatStoreError::new)?, limit))
        })
    }

    fn delete<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        let key = Key::new(owner, id);
        Box::pin(async move {
            let Ok(revision) = i64::try_from(revision) else { return Ok(false) };
            let deleted = self.write(Durability::Synced, move |transaction, clock| {
                let Some(head) = Head::load(transaction, clock, &key)? else { return Ok(false) };
                if head.revision == revision {
                    transaction.prepare_cached(DELETE)?.execute([head.key])?;
                }
                Ok(head.revision == revision)
            });
            deleted.await.map_err(ChatStoreError::new)
        })
    }
}

/// The owner and the id of a chat.
struct Key {
    owner: String,
    id: ChatId,
}

impl Key {
    fn new(owner: &Principal, id: &ChatId) -> Self {
        Key { owner: owner_key(owner), id: id.clone() }
    }
}

/// A stored chat without its messages.
struct Head {
    key: i64,
    revision: i64,
    json: String,
}

impl Head {
    /// Loads the head of a chat, unless its time has passed.
    fn load(connection: &Connection, clock: &Clock, key: &Key) -> DbResult<Option<Self>> {
        let now = clock.now(0);
        let head = connection
            .prepare_cached(LOAD)?
            .query_row(params![key.owner, key.id.as_bytes(), now], |row| {
                Ok(Head { key: row.get(0)?, revision: row.get(1)?, json: row.get(2)? })
            });
        Ok(head.optional()?)
    }

    fn with_messages(
        self,
        connection: &Connection,
    ) -> DbResult<Result<VersionedChat, ChatStoreError>> {
        let mut statement = connection.prepare_cached(LOAD_MESSAGES)?;
        let bodies = statement.query_map([self.key], |row| row.get::<_, String>(0))?;
        let bodies: Vec<String> = bodies.collect::<Result<_, _>>()?;
        let revision = self.revision.try_into().unwrap_or(0);
        Ok(VersionedChat::from_json(&self.json, bodies, revision))
    }
}

/// A version of a chat to save.
struct NewVersion {
    key: Key,
    /// The revision that is replaced.
    replaced: Option<u64>,
    head: String,
    title: String,
    /// The number of messages.
    length: i64,
    /// The places and the bodies of the messages that have changed.
    messages: Vec<(i64, String)>,
    keep_for: Option<std::time::Duration>,
    max_user_chats: Option<usize>,
}

impl NewVersion {
    fn of(save: SaveChat<'_>) -> Result<Self, ChatStoreError> {
        let SaveChat { chat, revision, keep_for, max_user_chats, .. } = save;
        let place = |place: usize| i64::try_from(place).map_err(ChatStoreError::new);
        let messages = save.changed_messages().map(|message| {
            let (at, body) = message?;
            Ok((place(at)?, body))
        });
        Ok(NewVersion {
            key: Key::new(&chat.owner, &chat.id),
            replaced: revision,
            head: save.head_json()?,
            title: chat.title(),
            length: place(chat.messages.len())?,
            messages: messages.collect::<Result<_, ChatStoreError>>()?,
            keep_for,
            max_user_chats,
        })
    }

    /// Saves the version, unless the chat has another revision than the one that is replaced.
    fn save(self, transaction: &Transaction<'_>, clock: &Clock) -> DbResult<SaveResult> {
        let Key { owner, id } = &self.key;
        let current = Head::load(transaction, clock, &self.key)?;
        let revision = current.as_ref().map(|head| head.revision);
        if revision != self.replaced.map(|replaced| replaced.try_into().unwrap_or(-1)) {
            return Ok(SaveResult::Conflict);
        }
        if current.is_none() && !self.has_room(transaction, clock)? {
            return Ok(SaveResult::TooManyChats);
        }
        let (now, revision) = state::next_revision(transaction, clock)?;
        let expires_at = self.keep_for.map(|time| stored_time(unix_millis(now).after(time)));
        let values = named_params! {
            ":owner": owner, ":id": id.as_bytes(), ":head": self.head, ":title": self.title,
            ":revision": revision, ":updated_at": now, ":expires_at": expires_at,
        };
        let key = match current {
            Some(head) => {
                transaction.prepare_cached(UPDATE)?.execute(values)?;
                let removed = params![head.key, self.length];
                transaction.prepare_cached(DELETE_MESSAGES)?.execute(removed)?;
                head.key
            }
            None => {
                // A chat whose time has passed may still be there.
                let expired = params![owner, id.as_bytes()];
                transaction.prepare_cached(DELETE_EXPIRED)?.execute(expired)?;
                transaction.prepare_cached(INSERT)?.execute(values)?;
                transaction.last_insert_rowid()
            }
        };
        let mut statement = transaction.prepare_cached(PUT_MESSAGE)?;
        for (place, body) in &self.messages {
            statement.execute(params![key, place, body])?;
        }
        Ok(SaveResult::Saved(revision.try_into().unwrap_or(0)))
    }

    /// Returns whether the owner may have another chat.
    fn has_room(&self, transaction: &Transaction<'_>, clock: &Clock) -> DbResult<bool> {
        let Some(max) = self.max_user_chats else { return Ok(true) };
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        // This count reads only an index, and most users have fewer.
        let mut count = transaction.prepare_cached(COUNT_ALL)?;
        if count.query_row([&self.key.owner], |row| row.get::<_, i64>(0))? < max {
            return Ok(true);
        }
        let mut count = transaction.prepare_cached(COUNT)?;
        let values = params![self.key.owner, clock.now(0)];
        Ok(count.query_row(values, |row| row.get::<_, i64>(0))? < max)
    }
}

const LOAD: &str = "SELECT key, revision, head FROM chats \
    WHERE owner = ?1 AND id = ?2 AND (expires_at IS NULL OR expires_at > ?3)";
const LOAD_MESSAGES: &str = "SELECT body FROM chat_messages WHERE chat = ?1 ORDER BY place";
const INSERT: &str = "INSERT INTO chats (owner, id, head, title, revision, updated_at, expires_at) \
    VALUES (:owner, :id, :head, :title, :revision, :updated_at, :expires_at)";
const UPDATE: &str = "UPDATE chats SET head = :head, title = :title, revision = :revision, \
        updated_at = :updated_at, expires_at = :expires_at \
    WHERE owner = :owner AND id = :id";
const PUT_MESSAGE: &str = "INSERT INTO chat_messages (chat, place, body) VALUES (?1, ?2, ?3) \
    ON CONFLICT (chat, place) DO UPDATE SET body = excluded.body";
const DELETE: &str = "DELETE FROM chats WHERE key = ?1";
const DELETE_EXPIRED: &str = "DELETE FROM chats WHERE owner = ?1 AND id = ?2";
const DELETE_MESSAGES: &str = "DELETE FROM chat_messages WHERE chat = ?1 AND place >= ?2";
const COUNT_ALL: &str = "SELECT count(*) FROM chats WHERE owner = ?1";
const COUNT: &str = "SELECT count(*) FROM chats \
    WHERE owner = ?1 AND (expires_at IS NULL OR expires_at > ?2)";
const LIST: &str = "SELECT id, title, updated_at FROM chats \
    WHERE owner = :owner AND (expires_at IS NULL OR expires_at > :now) \
    AND (:time IS NULL OR (updated_at, id) < (:time, :id)) \
    ORDER BY updated_at DESC, id DESC LIMIT :limit";
