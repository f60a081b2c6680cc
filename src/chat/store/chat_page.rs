//! [`ChatPage`]: a page of the list of a user's conversations.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::approval::UnixMillis;
use crate::id::ChatId;

/// Selects a page of the conversations of one owner.
#[derive(Debug, Clone, Copy)]
pub struct ListChats<'a> {
    /// The maximum number of conversations in the page, at least 1.
    pub limit: usize,
    /// The place after which the page begins. `None` for the first page.
    pub after: Option<&'a ChatCursor>,
}

/// A place in a list of conversations: after the one with this time and this id.
///
/// The place stays valid if that conversation is saved again or deleted. Its text holds only
/// characters that a URL does not escape.
///
/// ```
/// use ui_message_stream::approval::UnixMillis;
/// use ui_message_stream::chat::store::ChatCursor;
///
/// let cursor = ChatCursor { updated_at: UnixMillis(1_000), id: "chat 1".into() };
/// assert_eq!(cursor.to_string(), "1000-Y2hhdCAx");
/// assert_eq!("1000-Y2hhdCAx".parse(), Ok(cursor));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChatCursor {
    /// The time of the last save of the conversation.
    pub updated_at: UnixMillis,
    /// The id of the conversation.
    pub id: ChatId,
}

impl fmt::Display for ChatCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.updated_at.0, URL_SAFE_NO_PAD.encode(self.id.as_str()))
    }
}

impl FromStr for ChatCursor {
    type Err = ChatCursorError;

    fn from_str(text: &str) -> Result<Self, ChatCursorError> {
        let (time, id) = text.split_once('-').ok_or(ChatCursorError)?;
        let updated_at = UnixMillis(time.parse().map_err(|_| ChatCursorError)?);
        let id = URL_SAFE_NO_PAD.decode(id).map_err(|_| ChatCursorError)?;
        let id = String::from_utf8(id).map_err(|_| ChatCursorError)?;
        Ok(ChatCursor { updated_at, id: id.into() })
    }
}

/// The error of a text that is not a [`ChatCursor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a place in the list of chats")]
pub struct ChatCursorError;

/// A page of the conversations of one owner, the last saved first.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ChatPage {
    /// The conversations of the page.
    pub chats: Vec<ChatSummary>,
    /// Where the next page begins. `None` if there are no more conversations.
    pub next: Option<ChatCursor>,
}

impl ChatPage {
    /// Creates a page of at most `limit` conversations. If there are more in `chats`, the next page
    /// begins with the first of these. A store reads one conversation more than the limit.
    pub fn new(mut chats: Vec<ChatSummary>, limit: usize) -> Self {
        let has_more = chats.len() > limit;
        chats.truncate(limit);
        let next = chats.last().filter(|_| has_more).map(ChatSummary::cursor);
        ChatPage { chats, next }
    }
}

/// A conversation in a list.
#[derive(Clone, PartialEq)]
pub struct ChatSummary {
    /// The id of the conversation.
    pub id: ChatId,
    /// The [title](crate::chat::Chat::title) of the conversation when it was saved.
    pub title: String,
    /// The time of the last save, by the clock of the store.
    pub updated_at: UnixMillis,
}

debug_without_content!(ChatSummary { id, updated_at });

impl ChatSummary {
    /// Returns the place after this conversation.
    pub fn cursor(&self) -> ChatCursor {
        ChatCursor { updated_at: self.updated_at, id: self.id.clone() }
    }
}
