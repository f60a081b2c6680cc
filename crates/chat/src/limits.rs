//! [`ChatLimits`]: how much a conversation, and the conversations of a user, may hold.

use std::time::Duration;

/// How much conversations may hold: each of them, and those of one user.
///
/// A [`ChatServer`](crate::ChatServer) applies them with every store. What a store in memory
/// keeps is limited by the store, for example by
/// [`InMemoryLogStore::with_max_store_bytes`](crate::store::InMemoryLogStore::with_max_store_bytes).
/// How much one request may hold is limited by [`Limits`](ui_message_stream::request::Limits), and how many questions
/// may wait by [`ApprovalLimits`](ui_message_stream::approval::ApprovalLimits). A refusal because of the size of a
/// chat or the number of chats names its setting and its value.
///
/// | setting | default | where it is reached |
/// |---|---|---|
/// | [`with_max_chat_messages`](Self::with_max_chat_messages) | 10 000 | a new message is refused with status 413 |
/// | [`with_max_chat_bytes`](Self::with_max_chat_bytes) | 16 MiB | a new message or tool output of the client is refused with status 413 |
/// | [`with_max_user_chats`](Self::with_max_user_chats) | 4 096 | a new chat is refused with status 413; `InMemoryLogStore` evicts the user's oldest one instead |
/// | [`with_max_log_bytes`](Self::with_max_log_bytes) | 16 MiB | the run ends as if it were stopped, and its message is kept |
/// | [`with_max_user_runs`](Self::with_max_user_runs) | 16 | of the runs that no client has read for 30 seconds, the one that was unread for longest ends; if there is none, a new one is refused with status 429 |
/// | [`with_max_user_readers`](Self::with_max_user_readers) | 64 | a request for a response is refused with status 429 |
/// | [`with_max_unread_time`](Self::with_max_unread_time) | 10 minutes | a run that no client reads ends, and its message is kept |
/// | [`with_max_stalled_time`](Self::with_max_stalled_time) | 30 seconds | a response that the client does not read ends; the client can reconnect |
/// | [`with_chat_ttl`](Self::with_chat_ttl) | none | a chat to whose log nothing but frames was added for this time is removed |
///
/// The bytes of a chat are those of [`Chat::bytes`](crate::Chat::bytes). What the agent writes
/// is stored even if the chat then exceeds its limit, because its tools have run. Such a chat is
/// full: the user can only approve and deny, regenerate a response, and shorten a message by an edit.
///
/// ```
/// use ui_message_stream_chat::ChatLimits;
///
/// let limits = ChatLimits::default().with_max_chat_bytes(64 << 20);
/// assert_eq!((limits.max_chat_messages(), limits.max_chat_bytes()), (10_000, 64 << 20));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatLimits {
    max_chat_messages: usize,
    max_chat_bytes: usize,
    max_user_chats: usize,
    max_log_bytes: usize,
    max_user_runs: usize,
    max_user_readers: usize,
    max_unread_time: Duration,
    max_stalled_time: Duration,
    chat_ttl: Option<Duration>,
}

impl Default for ChatLimits {
    /// The defaults of the table above.
    fn default() -> Self {
        ChatLimits {
            max_chat_messages: 10_000,
            max_chat_bytes: 16 << 20,
            max_user_chats: 4_096,
            max_log_bytes: 16 << 20,
            max_user_runs: 16,
            max_user_readers: 64,
            max_unread_time: Duration::from_secs(10 * 60),
            max_stalled_time: Duration::from_secs(30),
            chat_ttl: None,
        }
    }
}

impl ChatLimits {
    /// Returns the maximum number of messages of a chat.
    pub fn max_chat_messages(&self) -> usize {
        self.max_chat_messages
    }

    /// Sets the maximum number of messages of a chat to which the user may add one.
    #[must_use]
    pub fn with_max_chat_messages(mut self, messages: usize) -> Self {
        self.max_chat_messages = messages;
        self
    }

    /// Returns the maximum number of bytes of a chat.
    pub fn max_chat_bytes(&self) -> usize {
        self.max_chat_bytes
    }

    /// Sets the maximum number of bytes of a chat to which the user adds a message or a tool output,
    /// with this addition, as [`Chat::bytes`](crate::Chat::bytes) counts them.
    #[must_use]
    pub fn with_max_chat_bytes(mut self, bytes: usize) -> Self {
        self.max_chat_bytes = bytes;
        self
    }

    /// Returns the maximum number of chats of a user.
    pub fn max_user_chats(&self) -> usize {
        self.max_user_chats
    }

    /// Sets the maximum number of chats of a user.
    ///
    /// At the limit a new chat is refused, and no stored chat is removed: the user has to delete one.
    /// Only [`InMemoryLogStore`](crate::store::InMemoryLogStore) removes the user's oldest
    /// chat without questions, and creates the new one.
    #[must_use]
    pub fn with_max_user_chats(mut self, chats: usize) -> Self {
        self.max_user_chats = chats;
        self
    }

    /// Returns the maximum number of bytes of the log of a run.
    pub fn max_log_bytes(&self) -> usize {
        self.max_log_bytes
    }

    /// Sets the maximum number of bytes of the log of a run, which holds all frames of its response.
    #[must_use]
    pub fn with_max_log_bytes(mut self, bytes: usize) -> Self {
        self.max_log_bytes = bytes;
        self
    }

    /// Returns the maximum number of live runs of a user.
    pub fn max_user_runs(&self) -> usize {
        self.max_user_runs
    }

    /// Sets the maximum number of live runs of a user, in all chats together.
    #[must_use]
    pub fn with_max_user_runs(mut self, runs: usize) -> Self {
        self.max_user_runs = runs;
        self
    }

    /// Returns the maximum number of responses that a user reads at once.
    pub fn max_user_readers(&self) -> usize {
        self.max_user_readers
    }

    /// Sets the maximum number of responses that a user reads at once from this server: to its messages
    /// and answers, as a stream or as JSON, the streams of pages that are opened again, and those that follow all
    /// chats. Each counts from its request until its body has ended or its client has disconnected. The page of a
    /// chat, the lists, Stop and deleting do not count.
    #[must_use]
    pub fn with_max_user_readers(mut self, readers: usize) -> Self {
        self.max_user_readers = readers;
        self
    }

    /// Returns how long a run continues without a reader.
    pub fn max_unread_time(&self) -> Duration {
        self.max_unread_time
    }

    /// Sets how long a run continues without a reader.
    #[must_use]
    pub fn with_max_unread_time(mut self, time: Duration) -> Self {
        self.max_unread_time = time;
        self
    }

    /// Returns how long a response waits for its client.
    pub fn max_stalled_time(&self) -> Duration {
        self.max_stalled_time
    }

    /// Sets how long a response waits for a client that does not read.
    #[must_use]
    pub fn with_max_stalled_time(mut self, time: Duration) -> Self {
        self.max_stalled_time = time;
        self
    }

    /// Returns the time to live of a chat. `None` if chats are kept until they are deleted.
    pub fn chat_ttl(&self) -> Option<Duration> {
        self.chat_ttl
    }

    /// Sets the time to live of a chat. It begins again with each control entry of its log: a message
    /// of the user, the beginning and the end of a run, a call that waits, and a result.
    ///
    /// Every [`LogStore`](crate::store::LogStore) removes the chat after this time. Its pending
    /// approval requests have a time to live of their own.
    ///
    /// An append of a control entry stores the time to live with the chat, so a new value applies to each
    /// chat from its next one on. **A chat that has none, and that is not written to any more, is kept
    /// until it is deleted.** `docs/limits.md` has the statement that gives the stored chats in SQLite and
    /// Postgres an end.
    #[must_use]
    pub fn with_chat_ttl(mut self, ttl: Duration) -> Self {
        self.chat_ttl = Some(ttl);
        self
    }

    /// Checks the size of a chat to which the user has added a message or a tool output.
    ///
    /// # Errors
    /// [`ChatLimitError`] if the chat exceeds a limit.
    pub fn check_chat(&self, messages: usize, bytes: usize) -> Result<(), ChatLimitError> {
        if messages > self.max_chat_messages {
            return Err(ChatLimitError::TooManyMessages { limit: self.max_chat_messages });
        }
        if bytes > self.max_chat_bytes {
            return Err(ChatLimitError::TooManyBytes { limit: self.max_chat_bytes });
        }
        Ok(())
    }
}

/// Why a message or a tool output cannot be added to a chat, or a new chat not be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChatLimitError {
    /// The chat would have more messages than
    /// [`ChatLimits::with_max_chat_messages`] allows.
    #[error(
        "the chat is full: more than {limit} messages; `ChatLimits::with_max_chat_messages` allows more"
    )]
    TooManyMessages {
        /// The limit.
        limit: usize,
    },
    /// The chat would have more bytes than [`ChatLimits::with_max_chat_bytes`] allows.
    #[error(
        "the chat is full: more than {limit} bytes; `ChatLimits::with_max_chat_bytes` allows more"
    )]
    TooManyBytes {
        /// The limit.
        limit: usize,
    },
    /// The user has as many chats as [`ChatLimits::with_max_user_chats`] allows.
    #[error(
        "you have {limit} chats or more: delete one before you begin another; \
         `ChatLimits::with_max_user_chats` allows more"
    )]
    TooManyChats {
        /// The limit.
        limit: usize,
    },
}
