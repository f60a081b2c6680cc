//! [`SaveChat`] and [`VersionedChat`]: what a store of conversations receives and returns.

use std::time::Duration;

use super::error::ChatStoreError;
use crate::chat::conversation::Chat;
use crate::message::UiMessage;

/// A request to save a conversation.
///
/// A store may keep the conversation as one value: `Chat` implements `Serialize` and `Deserialize`.
/// A store that keeps each message by itself writes [`head_json`](Self::head_json) and
/// [`changed_messages`](Self::changed_messages), and removes the messages from
/// `chat.messages.len()` on. The bytes that it writes then hardly depend on the length of the
/// conversation. It reads the conversation with [`VersionedChat::from_json`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SaveChat<'a> {
    /// The conversation.
    pub chat: &'a Chat,
    /// The revision that the conversation replaces. `None` if it is a new conversation.
    pub revision: Option<u64>,
    /// How many of the first messages are the same as in the revision that is replaced. It is zero
    /// for a new conversation, and at most the number of messages in each of both versions.
    pub unchanged: usize,
    /// After this time without another save the conversation is removed. `None` if it is kept. The
    /// time begins again with each save, also if it was another one before.
    pub keep_for: Option<Duration>,
    /// How many conversations the owner may have with this one. It limits only the insertion of a new
    /// conversation. `None` if there is no limit.
    pub max_user_chats: Option<usize>,
}

impl<'a> SaveChat<'a> {
    /// Creates a request to insert a conversation that is kept until it is deleted.
    pub fn new(chat: &'a Chat) -> Self {
        SaveChat { chat, revision: None, unchanged: 0, keep_for: None, max_user_chats: None }
    }

    /// Creates a request to replace `loaded`, or the conversation that was saved as `loaded`, with
    /// `chat`, which is a changed copy of it.
    pub fn replacing(loaded: &VersionedChat, chat: &'a Chat) -> Self {
        let unchanged = chat.messages.shared_prefix(&loaded.chat.messages);
        SaveChat { unchanged, revision: Some(loaded.revision), ..SaveChat::new(chat) }
    }

    /// Sets after which time without another save the conversation is removed.
    #[must_use]
    pub fn with_keep_for(mut self, time: Option<Duration>) -> Self {
        self.keep_for = time;
        self
    }

    /// Sets how many conversations the owner may have with this one, if it is new.
    #[must_use]
    pub fn with_max_user_chats(mut self, chats: Option<usize>) -> Self {
        self.max_user_chats = chats;
        self
    }

    /// Returns the conversation without its messages, as JSON. It holds the number of the format,
    /// which is also that of the messages.
    ///
    /// # Errors
    /// [`ChatStoreError`] if the conversation cannot be written as JSON.
    pub fn head_json(&self) -> Result<String, ChatStoreError> {
        self.chat.head_json().map_err(ChatStoreError::new)
    }

    /// Returns the messages from [`unchanged`](Self::unchanged) on, each with its index and as JSON.
    ///
    /// # Errors
    /// [`ChatStoreError`] if a message cannot be written as JSON.
    pub fn changed_messages(
        &self,
    ) -> impl Iterator<Item = Result<(usize, String), ChatStoreError>> + use<'a> {
        let (messages, unchanged) = (&self.chat.messages, self.unchanged);
        (unchanged..messages.len()).filter_map(|at| Some((at, messages.get(at)?))).map(
            |(at, message)| {
                let json = serde_json::to_string(message).map_err(ChatStoreError::new)?;
                Ok((at, json))
            },
        )
    }
}

/// What a store did with a [`SaveChat`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum SaveResult {
    /// The conversation is stored, and has this revision.
    Saved(u64),
    /// The store holds another revision, or none. Nothing was changed.
    Conflict,
    /// The conversation is new, and its owner has [as many](SaveChat::max_user_chats) as allowed.
    /// Nothing was changed.
    TooManyChats,
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

impl VersionedChat {
    /// Reads a conversation that is stored as a [head](SaveChat::head_json) and
    /// [messages](SaveChat::changed_messages), oldest first.
    ///
    /// # Errors
    /// [`ChatStoreError`] if a text is not what was written, or has a newer format. The text of the
    /// cause names the format.
    pub fn from_json(
        head: &str,
        messages: impl IntoIterator<Item = impl AsRef<str>>,
        revision: u64,
    ) -> Result<Self, ChatStoreError> {
        // The head is read first: its error names a newer format.
        let mut chat = Chat::from_head_json(head).map_err(ChatStoreError::new)?;
        for json in messages {
            let message: UiMessage =
                serde_json::from_str(json.as_ref()).map_err(ChatStoreError::new)?;
            chat.messages.push(message);
        }
        Ok(VersionedChat { chat, revision })
    }
}

/// The result of [`reload`](super::ChatStore::reload).
#[derive(Debug, Clone)]
#[must_use]
pub enum ReloadedChat {
    /// The conversation still has this revision.
    Unchanged,
    /// The conversation has another revision.
    Changed(Box<VersionedChat>),
    /// There is no such conversation any more.
    NotFound,
}
