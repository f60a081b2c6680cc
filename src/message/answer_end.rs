//! [`AnswerEnd`]: how an answer has ended, which its message says in its metadata.

use serde::{Deserialize, Serialize};

use super::UiMessage;
#[cfg(feature = "body")]
use crate::json::Json;

/// How an answer has ended. Its parts do not show it.
///
/// The message of an answer that has not finished says it under the key `ui-message-stream` of its
/// metadata: `{"ui-message-stream": {"ended": "stopped"}}`. The value is `null` while the message is continued.
/// A message without parts, and one whose metadata is not an object, does not say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AnswerEnd {
    /// The agent has ended it, or it waits for answers of the user.
    Finished,
    /// The user has stopped it, or has sent another request.
    Stopped,
    /// The agent has failed.
    Failed,
    /// The server was lost that wrote it, or, without a chat server, its reader has left. What the rest would
    /// have been is not known.
    Interrupted,
    /// It has reached a limit of the server.
    Limit,
}

words! {
    AnswerEnd {
        Finished "finished" Stopped "stopped" Failed "failed" Interrupted "interrupted"
        Limit "limit"
    }
}

/// The metadata of this crate itself.
#[derive(Serialize, Deserialize)]
struct Own {
    #[serde(rename = "ui-message-stream")]
    own: OwnFields,
}

#[derive(Serialize, Deserialize)]
struct OwnFields {
    ended: Option<AnswerEnd>,
}

impl UiMessage {
    /// Returns how this answer has ended, if its metadata says it. Otherwise it has finished, is being written,
    /// or is not known.
    ///
    /// ```
    /// use ui_message_stream::UiMessage;
    /// use ui_message_stream::message::AnswerEnd;
    ///
    /// let message = UiMessage::parse(r#"{"id": "m1", "role": "assistant", "metadata":
    ///     {"ui-message-stream": {"ended": "stopped"}}, "parts": [{"type": "text", "text": "One"}]}"#)?;
    /// assert_eq!(message.answer_end(), Some(AnswerEnd::Stopped));
    /// # Ok::<(), ui_message_stream::message::ReadMessageError>(())
    /// ```
    pub fn answer_end(&self) -> Option<AnswerEnd> {
        self.metadata.as_ref()?.decode::<Own>().ok()?.own.ended
    }

    /// Returns the metadata which says that this answer has ended, or is continued (`None`). `None` if it
    /// cannot be merged into the metadata of the message, or if the message has no parts.
    #[cfg(feature = "body")]
    pub fn end_metadata(&self, ended: Option<AnswerEnd>) -> Option<Json> {
        let is_object = self.metadata.as_ref().is_none_or(Json::is_object);
        let can_say = is_object && !self.parts.is_empty();
        can_say.then(|| Json::from_serialize(&Own { own: OwnFields { ended } }).ok()).flatten()
    }
}
