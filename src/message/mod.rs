//! [`UiMessage`]: what the client keeps of a conversation, and sends back with every request.
//!
//! The reader is tolerant: parts, fields and states that this crate does not know are kept, and
//! writing a message gives back the object that was read. But a known field of a wrong type is an
//! error that names its path, and of two readers none may see another value: an object that
//! repeats a key is refused, and so is a key that the client itself refuses (`__proto__`).
//!
//! A message from a browser is the browser's word; what of it may be believed is decided by the
//! [request](crate::request) and [approval](crate::approval) rooms.
//!
//! Wire: [UI messages](https://ai-sdk.dev/docs/reference/ai-sdk-core/ui-message)

mod approval;
mod part;
mod read;
mod tool_part;

use serde::de::DeserializeOwned;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

pub use self::approval::{AnsweredApproval, Approval, ApprovalDetails, PastApproval};
pub use self::part::{
    DataPart, FilePart, Part, ReasoningPart, SourceDocumentPart, SourceUrlPart, TextPart,
    TextState, UnknownPart,
};
pub use self::tool_part::{ToolKind, ToolPart, ToolState};

pub(crate) use self::read::{Budget, Fault, MessageSeed, Reader, push_tightly};
use crate::id::MessageId;
use crate::json::Json;
use crate::record::{Extra, FieldError};

/// One message of a conversation, as the client keeps it.
///
/// ```
/// use ui_message_stream::UiMessage;
/// use ui_message_stream::message::{Part, Role};
///
/// let text = r#"{"id":"m1","role":"user","parts":[{"type":"text","text":"Hi"}],"later":1}"#;
/// let message = UiMessage::parse(text)?;
/// assert_eq!(message.role, Role::User);
/// assert!(matches!(&message.parts[..], [Part::Text(part)] if part.text == "Hi"));
/// assert_eq!(message.extra.get("later").unwrap().as_str(), "1");
///
/// let error = UiMessage::parse(r#"{"id":"m1","role":"user","parts":[{"type":"text"}]}"#);
/// assert_eq!(error.unwrap_err().to_string(), "parts[0].text: missing");
/// # Ok::<(), ui_message_stream::message::ReadMessageError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct UiMessage {
    /// Names the message. A client makes it as it likes; it may be empty.
    pub id: MessageId,
    /// Who speaks.
    pub role: Role,
    /// What the application attaches. `null` is a value.
    pub metadata: Option<Json>,
    /// What it says, in order.
    pub parts: Vec<Part>,
    /// Fields that this crate does not know.
    pub extra: Extra,
}

impl UiMessage {
    /// A message of these parts.
    pub fn new(id: impl Into<MessageId>, role: Role, parts: Vec<Part>) -> Self {
        UiMessage { id: id.into(), role, metadata: None, parts, extra: Extra::default() }
    }

    /// Reads a message from its JSON.
    ///
    /// # Errors
    /// - [`ReadMessageError::Syntax`] if the text is not JSON.
    /// - [`ReadMessageError::Field`] names the field that is missing or of a wrong type.
    pub fn parse(text: &str) -> Result<Self, ReadMessageError> {
        Reader::unlimited().message(text).map_err(|fault| match fault {
            Fault::Syntax(error) => ReadMessageError::Syntax(error),
            Fault::Field(error) => ReadMessageError::Field(error),
            Fault::TooManyMessages | Fault::TooManyParts | Fault::TooManyNodes => {
                FieldError::new("", "larger than the address space").into()
            }
        })
    }

    /// The tool calls of the message, settled or not.
    pub fn tool_parts(&self) -> impl Iterator<Item = &ToolPart> {
        self.parts.iter().filter_map(Part::as_tool)
    }

    /// Reads the last text of the message's last step, which is JSON where an agent answers in a
    /// structure (`Agent::with_output`, for one).
    ///
    /// # Errors
    /// What `serde_json` says of a text that is not a `T`.
    ///
    /// ```
    /// use ui_message_stream::UiMessage;
    ///
    /// let message = UiMessage::parse(r#"{"id": "m1", "role": "assistant", "parts": [
    ///     {"type": "step-start"}, {"type": "text", "text": "Let me see."},
    ///     {"type": "step-start"}, {"type": "text", "text": "[1, 2]"}
    /// ]}"#)?;
    /// assert_eq!(message.output::<Vec<u8>>()?, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn output<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.last_text())
    }

    /// The text that stands last in its last step, from the last call before it on. A step without any
    /// content is not in a message, so what is said before a call is no answer; unless the provider
    /// ran the call: in one step with it the answer may stand before.
    pub(crate) fn last_text(&self) -> String {
        let goes_on =
            |part: &ToolPart| part.provider_executed == Some(true) && part.approval_id().is_none();
        let begins_last = |part: &Part| match part.as_tool() {
            Some(part) => !goes_on(part),
            None => matches!(part, Part::StepStart { .. }),
        };
        let step = self.parts.iter().rposition(begins_last).unwrap_or(0);
        let said = self.parts.iter().rposition(|part| matches!(part, Part::Text(_)));
        let Some(said) = said.filter(|said| *said >= step) else { return String::new() };
        let to_last = &self.parts[step..=said];
        let behind_call = to_last.iter().rposition(|part| part.as_tool().is_some()).unwrap_or(0);
        let texts = to_last[behind_call..].iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// Where parts stand whose tool call id another part of this message has too, and with more
    /// right: a result beats a no, that a yes, that a question, and the earlier one of two alike.
    /// Such a part is nobody's to act on.
    pub(crate) fn overruled_tool_parts(&self) -> Vec<usize> {
        let count = self.tool_parts().count();
        if count < 2 {
            return Vec::new();
        }
        let mut calls: Vec<(usize, &ToolPart)> = Vec::with_capacity(count);
        let parts = self.parts.iter().enumerate();
        calls.extend(parts.filter_map(|(at, part)| Some((at, part.as_tool()?))));
        calls.sort_unstable_by(|(at, part), (other_at, other)| {
            let by_id = part.tool_call_id.cmp(&other.tool_call_id);
            by_id.then(other.progress().cmp(&part.progress())).then(at.cmp(other_at))
        });
        let repeats = calls.windows(2).filter(|two| two[0].1.tool_call_id == two[1].1.tool_call_id);
        let mut overruled: Vec<usize> = repeats.map(|two| two[1].0).collect();
        overruled.sort_unstable();
        overruled
    }
}

impl Serialize for UiMessage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("role", &self.role)?;
        entry_if_any(&mut map, "metadata", &self.metadata)?;
        map.serialize_entry("parts", &self.parts)?;
        self.extra.write(&mut map)?;
        map.end()
    }
}

/// Reads what [`UiMessage::parse`] reads; from `serde_json` only.
impl<'de> Deserialize<'de> for UiMessage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        UiMessage::parse(raw.get()).map_err(serde::de::Error::custom)
    }
}

/// Writes an optional field: absent is absent, never `null`.
fn entry_if_any<M: SerializeMap, T: Serialize>(
    map: &mut M,
    key: &'static str,
    value: &Option<T>,
) -> Result<(), M::Error> {
    value.as_ref().map_or(Ok(()), |value| map.serialize_entry(key, value))
}

/// Who speaks in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions of the application.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

impl Role {
    fn from_wire(word: &str) -> Option<Self> {
        Some(match word {
            "system" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            _ => return None,
        })
    }
}

/// Why a text is not a UI message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadMessageError {
    /// It is not JSON.
    #[error("not JSON: {0}")]
    Syntax(#[source] serde_json::Error),
    /// A field is missing or of a wrong type.
    #[error(transparent)]
    Field(#[from] FieldError),
}
