//! [`ChatCursor`]: a place in the list of a user's conversations.
//!
//! # A list names the place after a chat by its time and id
//!
//! An index of a list moves with each message, and a chat that a cursor names may be deleted. The time of the last
//! append with a control entry and the id are a place in any database (`(updated_at, id) < (…)`), valid without the
//! chat. A chat that changes while pages are read moves to the front. The other chats are then still on one page
//! each.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Serialize, Serializer};

use ui_message_stream::approval::UnixMillis;
use ui_message_stream::id::ChatId;

/// A place in a list of conversations: after the one with this time and this id.
///
/// The place stays valid if that conversation is changed or deleted. Its text holds only
/// characters that a URL does not escape.
///
/// ```
/// use ui_message_stream::approval::UnixMillis;
/// use ui_message_stream_chat::store::ChatCursor;
///
/// let cursor = ChatCursor { updated_at: UnixMillis(1_000), id: "chat 1".into() };
/// assert_eq!(cursor.to_string(), "1000-Y2hhdCAx");
/// assert_eq!("1000-Y2hhdCAx".parse(), Ok(cursor));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChatCursor {
    /// The time of the last append with a control entry.
    pub updated_at: UnixMillis,
    /// The id of the conversation.
    pub id: ChatId,
}

impl fmt::Display for ChatCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.updated_at.0, URL_SAFE_NO_PAD.encode(self.id.as_str()))
    }
}

/// Writes the text of the place.
impl Serialize for ChatCursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
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
