//! [`UiMessage`]: a message as the client keeps it, and sends it back with every request.
//!
//! The reader is tolerant: parts, fields and states that this crate does not know are kept, and
//! writing a message gives back the object that was read. But a known field of a wrong type is an
//! error that names its path. An object that repeats a key is refused, because two readers could
//! read two different values, and so is a key that the client itself refuses (`__proto__`).
//!
//! A message from a browser is not trusted. The [request](crate::request) and
//! [approval](crate::approval) rooms decide which parts of it are used.
//!
//! Wire: [UI messages](https://ai-sdk.dev/docs/reference/ai-sdk-core/ui-message)

mod answer_end;
mod approval;
mod for_version;
mod part;
mod read;
mod tool_part;
mod url;

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

pub use self::answer_end::AnswerEnd;
pub use self::approval::{ApprovalDetails, RequestedApproval, RespondedApproval, SettledApproval};
pub use self::part::{
    CustomPart, DataPart, FilePart, Part, ReasoningPart, SourceDocumentPart, SourceUrlPart,
    TextPart, TextState, UnknownPart,
};
pub use self::tool_part::{ToolKind, ToolPart, ToolState, ToolStateError};

use self::for_version::parts_for;
use self::part::PartSeed;
pub(crate) use self::read::{Budget, Fault, Reader, push_tightly};
pub(crate) use self::url::has_scheme;
use crate::chunk::Version;
use crate::id::MessageId;
use crate::json::{ExtraFields, FieldError, Json, Key, Object, entry_if_any};

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
    /// The id of the message. A client chooses it freely; it may be empty.
    pub id: MessageId,
    /// Who wrote the message.
    pub role: Role,
    /// Metadata of the application. `null` is a value.
    pub metadata: Option<Json>,
    /// The content, in order.
    pub parts: Vec<Part>,
    /// Fields that this crate does not know.
    pub extra: ExtraFields,
}

impl UiMessage {
    /// Creates a message of these parts.
    pub fn new(id: impl Into<MessageId>, role: Role, parts: Vec<Part>) -> Self {
        UiMessage { id: id.into(), role, metadata: None, parts, extra: ExtraFields::default() }
    }

    /// Returns this message as clients of this version show it. For `ai@5` and `ai@6`, parts
    /// `custom` and `reasoning-file` and the keys `requestReason` and `isAutomatic` of an approval are removed, and a
    /// call that the server has refused has failed. `citations` stay, because these clients ignore them. For `ai@5`,
    /// and for `ai@7` from 7.0.119 on, the `rawInput` of a failed call is its `input`.
    ///
    /// Use it for the history that a page loads, if the stored messages are those of
    /// [`Version::NEWEST`].
    ///
    /// ```
    /// use ui_message_stream::chunk::Version;
    /// use ui_message_stream::message::UiMessage;
    ///
    /// let stored = UiMessage::parse(
    ///     r#"{"id": "m2", "role": "assistant", "parts": [{"type": "custom", "kind": "openai.compaction"}]}"#,
    /// )?;
    /// assert!(stored.for_version(Version::V6).parts.is_empty());
    /// assert_eq!(*stored.for_version(Version::V7), stored);
    /// # Ok::<(), ui_message_stream::message::ReadMessageError>(())
    /// ```
    pub fn for_version(&self, version: Version) -> Cow<'_, UiMessage> {
        match parts_for(version, &self.parts) {
            Some(parts) => Cow::Owned(UiMessage { parts, ..self.clone() }),
            None => Cow::Borrowed(self),
        }
    }

    /// Returns the text of the message: its text parts, joined.
    pub fn text(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            Part::Text(part) => Some(&*part.text),
            _ => None,
        });
        texts.collect()
    }

    /// Reads a message from its JSON.
    ///
    /// # Errors
    /// - [`ReadMessageError::Syntax`] if the text is not JSON.
    /// - [`ReadMessageError::Field`] if a field is missing or of a wrong type. It names the field.
    pub fn parse(text: &str) -> Result<Self, ReadMessageError> {
        Self::read(text, &mut Reader::unlimited()).map_err(|fault| match fault {
            Fault::Syntax(error) => ReadMessageError::Syntax(error),
            Fault::Field(error) => ReadMessageError::Field(error),
            Fault::TooManyMessages | Fault::TooManyParts | Fault::TooManyNodes => {
                FieldError::new("", "larger than the address space").into()
            }
        })
    }

    /// Reads a message from its JSON, within the reader's budget.
    pub(crate) fn read(text: &str, reader: &mut Reader) -> Result<Self, Fault> {
        reader.read(text, |reader, deserializer| MessageSeed(reader).deserialize(deserializer))
    }

    /// Iterates over the tool calls of the message, settled or not.
    pub fn tool_parts(&self) -> impl Iterator<Item = &ToolPart> {
        self.parts.iter().filter_map(Part::as_tool)
    }

    /// Returns the calls that can go on: each has no result, its tool has asked for calls
    /// [inside](ToolPart::outer_call) it, and all of those have a result.
    pub fn answered_outer_calls(&self) -> Vec<&ToolPart> {
        let mut open: Vec<&ToolPart> =
            self.tool_parts().filter(|part| !part.is_settled()).collect();
        if open.is_empty() {
            return open;
        }
        let inner: Vec<_> =
            self.tool_parts().filter_map(|part| Some((part.outer_call()?, part))).collect();
        open.retain(|outer| {
            let of_it = || inner.iter().filter(|(id, _)| *id == outer.tool_call_id);
            of_it().next().is_some() && of_it().all(|(_, part)| part.is_settled())
        });
        open
    }

    /// Iterates over the tool calls of the message, to answer them. Examples at
    /// [`ToolPart::respond`] and [`ToolPart::set_output`].
    pub fn tool_parts_mut(&mut self) -> impl Iterator<Item = &mut ToolPart> {
        self.parts.iter_mut().filter_map(|part| match part {
            Part::Tool(part) => Some(&mut **part),
            _ => None,
        })
    }

    /// Parses the last text of the message's last step as JSON. It is JSON if the agent gives a
    /// structured answer, for example with `Agent::with_output`.
    ///
    /// # Errors
    /// The error of `serde_json` if the text is not a `T`.
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

    /// Returns the last text of the last step: all text parts after the last tool call before it.
    ///
    /// A message holds no step without content, so a text before a call of the server or the client
    /// is not the answer: the step after the call may be missing. A call that the
    /// provider executed belongs to the step of the answer. The answer may precede it.
    pub fn last_text(&self) -> String {
        let is_within_step =
            |part: &ToolPart| part.provider_executed == Some(true) && part.approval_id().is_none();
        let begins_last = |part: &Part| match part.as_tool() {
            Some(part) => !is_within_step(part),
            None => matches!(part, Part::StepStart { .. }),
        };
        let step = self.parts.iter().rposition(begins_last).unwrap_or(0);
        let last = self.parts.iter().rposition(|part| matches!(part, Part::Text(_)));
        let Some(last) = last.filter(|last| *last >= step) else { return String::new() };
        let to_last = &self.parts[step..=last];
        let after_call = to_last.iter().rposition(|part| part.as_tool().is_some()).unwrap_or(0);
        let texts = to_last[after_call..].iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// Returns the indexes of the tool parts to ignore, in ascending order: another part of the
    /// message has the same tool call id, and takes precedence.
    ///
    /// The order of precedence is: a result, a denial, an approval, an approval request, the other
    /// states. Of two parts with equal precedence the earlier one wins.
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

/// Reads as [`UiMessage::parse`] does. Works with deserializers of `serde_json` only.
impl<'de> Deserialize<'de> for UiMessage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        UiMessage::parse(raw.get()).map_err(serde::de::Error::custom)
    }
}

/// Who wrote a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The application: instructions for the model.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
}

words! { read Role { System "system" User "user" Assistant "assistant" } }

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

/// Reads a message in place, without a copy of its text.
pub(crate) struct MessageSeed<'r>(pub(crate) &'r mut Reader);

impl<'de> DeserializeSeed<'de> for MessageSeed<'_> {
    type Value = UiMessage;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<UiMessage, D::Error> {
        self.0.count_message().map_err(|fault| self.0.stop(fault))?;
        self.0.expects("", "an object");
        self.0.one_level_deeper(|reader| deserializer.deserialize_map(MessageSeed(reader)))
    }
}

impl<'de> Visitor<'de> for MessageSeed<'_> {
    type Value = UiMessage;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UiMessage, A::Error> {
        let reader = self.0;
        let mut object = reader.new_object();
        let mut parts = None;
        while let Some(Key(key)) = map.next_key()? {
            if key != "parts" && !KNOWN.contains(&&*key) {
                reader.count_node().map_err(|fault| reader.stop(fault))?;
            }
            if key != "parts" {
                let value = map.next_value()?;
                object.add(&key, value, KNOWN).map_err(|error| reader.stop(error))?;
            } else if parts.is_none() {
                parts = Some(map.next_value_seed(PartsSeed(reader))?);
            } else {
                return Err(reader.stop(FieldError::new("parts", "given twice")));
            }
        }
        from_fields(object, parts).map_err(|error| reader.stop(error))
    }
}

fn from_fields(mut object: Object<'_>, parts: Option<Vec<Part>>) -> Result<UiMessage, FieldError> {
    let id = MessageId::new(&*object.text("id")?);
    let role = Role::from_wire(&object.text("role")?)
        .ok_or_else(|| FieldError::expected("role", "`system`, `user` or `assistant`"))?;
    let parts = parts.ok_or_else(|| FieldError::missing("parts"))?;
    let metadata = object.json_if_any("metadata")?;
    Ok(UiMessage { id, role, metadata, parts, extra: object.into_extra()? })
}

/// Reads the parts of a message in place.
struct PartsSeed<'r>(&'r mut Reader);

impl<'de> DeserializeSeed<'de> for PartsSeed<'_> {
    type Value = Vec<Part>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Part>, D::Error> {
        self.0.expects("parts", "an array");
        self.0.one_level_deeper(|reader| deserializer.deserialize_seq(PartsSeed(reader)))
    }
}

impl<'de> Visitor<'de> for PartsSeed<'_> {
    type Value = Vec<Part>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Part>, A::Error> {
        let reader = self.0;
        let mut parts = Vec::new();
        loop {
            match list.next_element_seed(PartSeed(reader)) {
                Ok(Some(part)) => push_tightly(&mut parts, part),
                Ok(None) => return Ok(parts),
                Err(error) => {
                    reader.stopped_within(&format!("parts[{}]", parts.len()));
                    return Err(error);
                }
            }
        }
    }
}

/// The fields of a message, without `parts`.
const KNOWN: &[&str] = &["id", "role", "metadata"];
