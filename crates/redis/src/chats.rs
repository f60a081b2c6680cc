//! [`ChatStore`] of a [`RedisStore`]: a hash for each chat, with a field for each message.
//!
//! The chats of a user and the lists of them are in one slot, and each save is one script. So the
//! lists always hold what the chats hold, also after a crash.

use std::collections::HashMap;
use std::time::Duration;

use redis::{FromRedisValue, Value, from_redis_value};
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream::chat::store::{
    ChatPage, ChatStore, ChatStoreError, ChatSummary, ListChats, ReloadedChat, SaveChat,
    SaveResult, VersionedChat,
};
use ui_message_stream::id::ChatId;

use crate::error::RedisStoreError;
use crate::{RedisStore, random_bytes, scripts};

impl ChatStore for RedisStore {
    fn load<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
    ) -> BoxFuture<'a, Result<Option<VersionedChat>, ChatStoreError>> {
        Box::pin(async move {
            Ok(match self.load_unless(owner, id, "").await? {
                Reloaded::Fields(fields) => Some(chat_from(fields)?),
                Reloaded::Unchanged | Reloaded::NotFound => None,
            })
        })
    }

    fn reload<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
        revision: u64,
    ) -> BoxFuture<'a, Result<ReloadedChat, ChatStoreError>> {
        Box::pin(async move {
            Ok(match self.load_unless(owner, id, &revision.to_string()).await? {
                Reloaded::Unchanged => ReloadedChat::Unchanged,
                Reloaded::Fields(fields) => ReloadedChat::Changed(Box::new(chat_from(fields)?)),
                Reloaded::NotFound => ReloadedChat::NotFound,
            })
        })
    }

    fn save<'a>(&'a self, save: SaveChat<'a>) -> BoxFuture<'a, Result<SaveResult, ChatStoreError>> {
        Box::pin(async move {
            let SaveChat { chat, revision: replaced, keep_for, max_user_chats, .. } = save;
            let keys = self.inner.keys.user(&chat.owner);
            // At random: it is not used again, and by it an attempt that is repeated finds that it
            // has saved the chat.
            let revision = u64::from_be_bytes(random_bytes().map_err(ChatStoreError::new)?);
            let mut invocation = scripts::CHAT_SAVE.key(keys.chat(&chat.id));
            invocation
                .key(keys.chats())
                .key(keys.titles())
                .key(keys.attempts(&chat.id))
                .arg(chat.id.as_str())
                .arg(replaced.map(|revision| revision.to_string()).unwrap_or_default())
                .arg(revision)
                .arg(save.head_json()?)
                .arg(chat.title())
                .arg(chat.messages.len())
                .arg(keep_for.map(|time| millis(time).to_string()).unwrap_or_default())
                .arg(max_user_chats.map(|chats| chats.to_string()).unwrap_or_default());
            for message in save.changed_messages() {
                let (place, body) = message?;
                invocation.arg(place).arg(body);
            }
            let saved = self.inner.connection.run::<u8>(&invocation).await;
            Ok(match saved.map_err(ChatStoreError::new)? {
                CONFLICT => SaveResult::Conflict,
                TOO_MANY_CHATS => SaveResult::TooManyChats,
                _ => SaveResult::Saved(revision),
            })
        })
    }

    fn list<'a>(
        &'a self,
        owner: &'a Principal,
        list: ListChats<'a>,
    ) -> BoxFuture<'a, Result<ChatPage, ChatStoreError>> {
        Box::pin(async move {
            let keys = self.inner.keys.user(owner);
            let (time, id) = match list.after {
                Some(after) => (after.updated_at.0.to_string(), after.id.as_str()),
                None => (String::new(), ""),
            };
            let mut invocation = scripts::CHAT_LIST.key(keys.chats());
            let count = list.limit.saturating_add(1).min(MAX_PAGE);
            invocation.key(keys.titles()).arg(time).arg(id).arg(count);
            let listed = self.inner.connection.run(&invocation).await;
            let listed: Vec<(String, u64, String)> = listed.map_err(ChatStoreError::new)?;
            let chats = listed.into_iter().map(|(id, updated_at, title)| ChatSummary {
                id: id.into(),
                title,
                updated_at: UnixMillis(updated_at),
            });
            Ok(ChatPage::new(chats.collect(), list.limit))
        })
    }

    fn delete<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        Box::pin(async move {
            let keys = self.inner.keys.user(owner);
            let attempt: [u8; 16] = random_bytes().map_err(ChatStoreError::new)?;
            let mut invocation = scripts::CHAT_DELETE.key(keys.chat(id));
            invocation
                .key(keys.chats())
                .key(keys.titles())
                .key(keys.attempts(id))
                .arg(id.as_str())
                .arg(revision)
                .arg(&attempt);
            self.inner.connection.run(&invocation).await.map_err(ChatStoreError::new)
        })
    }
}

impl RedisStore {
    /// Loads a chat unless it has this revision.
    async fn load_unless(
        &self,
        owner: &Principal,
        id: &ChatId,
        revision: &str,
    ) -> Result<Reloaded, ChatStoreError> {
        let mut invocation = scripts::CHAT_RELOAD.key(self.inner.keys.user(owner).chat(id));
        invocation.arg(revision);
        self.inner.connection.run(&invocation).await.map_err(ChatStoreError::new)
    }
}

/// The reply to a reload.
enum Reloaded {
    Unchanged,
    /// All fields of the chat.
    Fields(HashMap<String, String>),
    NotFound,
}

impl FromRedisValue for Reloaded {
    fn from_redis_value(value: Value) -> Result<Self, redis::ParsingError> {
        if let Value::Int(_) = value {
            return Ok(Reloaded::Unchanged);
        }
        let fields: HashMap<String, String> = from_redis_value(value)?;
        Ok(if fields.is_empty() { Reloaded::NotFound } else { Reloaded::Fields(fields) })
    }
}

/// Reads a chat from its fields.
fn chat_from(mut fields: HashMap<String, String>) -> Result<VersionedChat, ChatStoreError> {
    let unreadable = || ChatStoreError::new(RedisStoreError::Unreadable("chat"));
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<u64>().ok());
    let revision = number(fields.get("revision")).ok_or_else(unreadable)?;
    let length = number(fields.get("length")).ok_or_else(unreadable)?;
    let head = fields.remove("head").ok_or_else(unreadable)?;
    let messages = (0..length).map(|place| fields.remove(&format!("m{place}")));
    let messages: Option<Vec<String>> = messages.collect();
    // The head is read first: its error names a newer format, whose messages may be elsewhere.
    VersionedChat::from_json(&head, [""; 0], revision)?;
    VersionedChat::from_json(&head, messages.ok_or_else(unreadable)?, revision)
}

/// Returns a time in milliseconds, at most 300 years.
pub(crate) fn millis(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX).min(MAX_MILLIS)
}

/// The replies of `chat_save.lua` if it has not saved the chat.
const CONFLICT: u8 = 0;
const TOO_MANY_CHATS: u8 = 2;

const MAX_MILLIS: u64 = 300 * 366 * 24 * 60 * 60 * 1000;

/// The maximum number of chats of a page. A Lua table of so many fits into the memory of Redis.
const MAX_PAGE: usize = 1 << 20;
