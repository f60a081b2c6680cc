//! Bytes → [`Body`]: the outer shape of a request, read once. Its [`Trigger`] says why it was sent.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::text_lengths::check_message;
use super::{Limits, ParseRequestError};
use crate::id::{ApprovalId, ChatId, MessageId};
use crate::json::{ExtraFields, FieldError, Key, Object, string_end, unescaped};
use crate::message::{
    Budget, Fault, MessageSeed, Part, Reader, Role, ToolState, UiMessage, push_tightly,
};

/// A request as it was sent.
pub(super) struct Body {
    pub(super) id: ChatId,
    pub(super) trigger: Trigger,
    pub(super) message_id: Option<MessageId>,
    pub(super) messages: Vec<UiMessage>,
    pub(super) last_message_only: bool,
    pub(super) custom: ExtraFields,
}

/// Why the client sends the request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Trigger {
    /// A new or edited message, an answered approval, or the output of a client-executed tool.
    /// Also the trigger of a body that names none.
    #[default]
    SubmitMessage,
    /// A new answer in place of the last one, which the client has removed.
    RegenerateMessage,
    /// A trigger that this crate does not know.
    Other(Box<str>),
}

impl Trigger {
    /// Returns the word on the wire.
    pub fn as_str(&self) -> &str {
        match self {
            Trigger::SubmitMessage => "submit-message",
            Trigger::RegenerateMessage => "regenerate-message",
            Trigger::Other(word) => word,
        }
    }

    fn from_wire(word: &str) -> Self {
        match word {
            "submit-message" => Trigger::SubmitMessage,
            "regenerate-message" => Trigger::RegenerateMessage,
            other => Trigger::Other(other.into()),
        }
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

pub(super) fn body(bytes: &[u8], limits: &Limits) -> Result<Body, ParseRequestError> {
    let text = limits.text_of_any_depth(bytes)?;
    let mut reader = Reader::new(Budget {
        messages: limits.max_messages,
        parts: limits.max_parts,
        nodes: limits.max_nodes,
        levels: limits.max_depth,
    });
    let body = reader.read(text, |reader, deserializer| {
        let id_field = &*limits.chat_id_field;
        BodySeed { reader, id_field }.deserialize(deserializer)
    });
    // Where it is read, a value that is too deep is an error of its field. That a body is too deep comes before every
    // other error.
    if body.is_err() {
        limits.check_depth(bytes)?;
    }
    let body = body.map_err(|fault| match fault {
        Fault::Syntax(error) => ParseRequestError::NotJson(error),
        Fault::Field(error) => ParseRequestError::Field(error),
        Fault::TooManyMessages => ParseRequestError::TooManyMessages { limit: limits.max_messages },
        Fault::TooManyParts => ParseRequestError::TooManyParts { limit: limits.max_parts },
        Fault::TooManyNodes => ParseRequestError::TooManyNodes { limit: limits.max_nodes },
    })?;
    refuse_large_files(&body, limits)?;
    refuse_long_texts(&body, limits)?;
    refuse_contradictions(&body)?;
    Ok(body)
}

fn refuse_long_texts(body: &Body, limits: &Limits) -> Result<(), ParseRequestError> {
    let check_id = limits.check_chat_id(ID, &body.id);
    check_id.map_err(|error| error.renamed(limits.chat_id_field.clone()))?;
    if let Some(id) = &body.message_id {
        limits.check_id("messageId", id)?;
    }
    for (at, message) in body.messages.iter().enumerate() {
        check_message(message, limits).map_err(|error| {
            if body.last_message_only {
                error.within("message")
            } else {
                error.within(&format!("messages[{at}]"))
            }
        })?;
    }
    Ok(())
}

fn refuse_large_files(body: &Body, limits: &Limits) -> Result<(), ParseRequestError> {
    // A file in an assistant message may be one that the server made itself.
    let uploads = body.messages.iter().filter(|message| message.role != Role::Assistant);
    let mut parts = uploads.flat_map(|message| &message.parts);
    let is_large = |part: &Part| matches!(part, Part::File(file) | Part::ReasoningFile(file) if limits.is_too_long_data_url(&file.url));
    if parts.any(is_large) {
        Err(ParseRequestError::DataUrlTooLong { limit: limits.max_data_url_bytes })
    } else {
        Ok(())
    }
}

impl Limits {
    /// Checks the length and the depth of a body, and returns its text.
    pub fn text<'a>(&self, bytes: &'a [u8]) -> Result<&'a str, ParseRequestError> {
        let text = self.text_of_any_depth(bytes)?;
        self.check_depth(bytes)?;
        Ok(text)
    }

    fn text_of_any_depth<'a>(&self, bytes: &'a [u8]) -> Result<&'a str, ParseRequestError> {
        if bytes.len() > self.max_bytes {
            return Err(ParseRequestError::TooLong { limit: self.max_bytes });
        }
        std::str::from_utf8(bytes)
            .map_err(|error| ParseRequestError::NotUtf8 { at: error.valid_up_to() })
    }

    fn check_depth(&self, bytes: &[u8]) -> Result<(), ParseRequestError> {
        let limit = self.max_depth;
        if nests_deeper_than(limit, bytes) {
            Err(ParseRequestError::TooDeep { limit })
        } else {
            Ok(())
        }
    }

    /// Refuses more answers than [`Limits::with_max_parts`] allows parts.
    pub fn check_answer_count(&self, answers: usize) -> Result<(), ParseRequestError> {
        let limit = self.max_parts;
        if answers > limit { Err(ParseRequestError::TooManyAnswers { limit }) } else { Ok(()) }
    }
}

/// Returns whether brackets nest deeper than `limit`. Stops at the first level that is too deep,
/// and does not recurse.
fn nests_deeper_than(limit: usize, bytes: &[u8]) -> bool {
    let mut depth = 0_usize;
    let mut i = 0;
    while let Some(byte) = bytes.get(i) {
        match byte {
            b'"' => {
                i = string_end(bytes, i);
                continue;
            }
            b'{' | b'[' => {
                depth += 1;
                if depth > limit {
                    return true;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        i += 1;
    }
    false
}

struct BodySeed<'r> {
    reader: &'r mut Reader,
    /// The field that holds the id of the chat.
    id_field: &'r str,
}

impl<'de> DeserializeSeed<'de> for BodySeed<'_> {
    type Value = Body;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Body, D::Error> {
        let BodySeed { reader, id_field } = self;
        reader.expects("", "a chat request, which is an object");
        reader
            .one_level_deeper(|reader| deserializer.deserialize_map(BodySeed { reader, id_field }))
    }
}

impl<'de> Visitor<'de> for BodySeed<'_> {
    type Value = Body;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Body, A::Error> {
        let BodySeed { reader, id_field } = self;
        let mut object = reader.new_object();
        let mut messages = None;
        while let Some(Key(key)) = map.next_key()? {
            if key == id_field {
                let added = object.add(ID, map.next_value()?, KNOWN);
                added.map_err(|error| reader.stop(error.renamed(id_field.to_owned())))?;
            } else if key != "messages" {
                // If another field holds the id of the chat, `id` belongs to the application.
                let known: &[&str] = if key == ID { &[] } else { KNOWN };
                if !known.contains(&&*key) {
                    reader.count_node().map_err(|fault| reader.stop(fault))?;
                }
                object.add(&key, map.next_value()?, known).map_err(|error| reader.stop(error))?;
            } else if messages.is_none() {
                messages = Some(map.next_value_seed(MessagesSeed(reader))?);
            } else {
                return Err(reader.stop(FieldError::new("messages", "given twice")));
            }
        }
        fields(object, messages, id_field, reader).map_err(|fault| reader.stop(fault))
    }
}

fn fields(
    mut object: Object<'_>,
    messages: Option<Vec<UiMessage>>,
    id_field: &str,
    reader: &mut Reader,
) -> Result<Body, Fault> {
    let id = object.text_if_any(ID).map_err(|error| error.renamed(id_field.to_owned()))?;
    let id = id.ok_or_else(|| FieldError::new(id_field.to_owned(), missing_id(id_field)))?;
    let id = ChatId::new(&*id);
    let trigger = text_or_null(&mut object, "trigger")?;
    let trigger = trigger.map(|word| Trigger::from_wire(&word)).unwrap_or_default();
    let is_regeneration = trigger == Trigger::RegenerateMessage;
    let message_id = text_or_null(&mut object, "messageId")?;
    let last_message_only = messages.is_none();
    let messages = match messages {
        Some(messages) => messages,
        // If there is a list `messages`, a field `message` belongs to the application.
        None => match object.take("message") {
            Some(raw) => {
                let message = UiMessage::read(raw.get(), reader);
                vec![message.map_err(|fault| fault.within("message"))?]
            }
            // The server has the chat, and regenerates its response.
            None if is_regeneration => Vec::new(),
            None => return Err(FieldError::missing("messages").into()),
        },
    };
    Ok(Body {
        id,
        trigger,
        message_id: message_id.map(|id| MessageId::new(&*id)),
        messages,
        last_message_only,
        custom: object.into_extra()?,
    })
}

/// Returns what is wrong with a body without the id of its chat.
///
/// `useChat` sends the id. A page that builds the body by itself may leave it out, or send it in
/// another field.
fn missing_id(field: &str) -> String {
    let sent = match field {
        ID => "id, messages, trigger, messageId".to_owned(),
        field => format!("{field}: id, messages, trigger, messageId"),
    };
    format!(
        "missing; this field holds the id of the chat, which a `prepareSendMessagesRequest` has to \
         return as `body: {{ {sent} }}`; the server can read another field with \
         `Limits::with_chat_id_field`"
    )
}

/// Removes a string field and returns it, if it is present. `null` counts as absent, because the
/// body may be written by an application.
fn text_or_null<'a>(
    object: &mut Object<'a>,
    key: &'static str,
) -> Result<Option<Cow<'a, str>>, FieldError> {
    match object.take(key).map(RawValue::get) {
        None | Some("null") => Ok(None),
        Some(token) if token.starts_with('"') => Ok(Some(unescaped(token))),
        Some(_) => Err(FieldError::expected(key, "a string")),
    }
}

const KNOWN: &[&str] = &[ID, "message", "messageId", "trigger"];

/// The field of the chat id in [`Object`], and in a body if no other one is set.
const ID: &str = "id";

struct MessagesSeed<'r>(&'r mut Reader);

impl<'de> DeserializeSeed<'de> for MessagesSeed<'_> {
    type Value = Vec<UiMessage>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        self.0.expects("messages", "an array");
        self.0.one_level_deeper(|reader| deserializer.deserialize_seq(MessagesSeed(reader)))
    }
}

impl<'de> Visitor<'de> for MessagesSeed<'_> {
    type Value = Vec<UiMessage>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let reader = self.0;
        let mut messages = Vec::new();
        loop {
            match list.next_element_seed(MessageSeed(reader)) {
                Ok(Some(message)) => push_tightly(&mut messages, message),
                Ok(None) => return Ok(messages),
                Err(error) => {
                    reader.stopped_within(&format!("messages[{}]", messages.len()));
                    return Err(error);
                }
            }
        }
    }
}

/// Refuses a request that both approves and denies the same approval, unless a part with that
/// approval already has its result.
fn refuse_contradictions(body: &Body) -> Result<(), ParseRequestError> {
    let mut responses: Vec<(&ApprovalId, usize, usize, bool)> = Vec::new();
    let mut settled = HashSet::new();
    for (message_at, message) in body.messages.iter().enumerate() {
        for (part_at, part) in message.parts.iter().enumerate() {
            let Some(part) = part.as_tool().filter(|_| message.role == Role::Assistant) else {
                continue;
            };
            if let ToolState::ApprovalResponded { approval, .. } = &part.state {
                let response = (&approval.id, message_at, part_at, approval.approved);
                push_tightly(&mut responses, response);
            } else if part.is_settled() {
                settled.extend(part.approval_id());
            }
        }
    }
    responses.sort_unstable();
    let contradicts = |two: &&[(&ApprovalId, usize, usize, bool)]| {
        two[0].0 == two[1].0 && two[0].3 != two[1].3 && !settled.contains(two[0].0)
    };
    let Some(two) = responses.windows(2).find(contradicts) else { return Ok(()) };
    let message = if body.last_message_only {
        "message".to_owned()
    } else {
        format!("messages[{}]", two[1].1)
    };
    Err(ParseRequestError::Field(FieldError::new(
        format!("{message}.parts[{}].approval.approved", two[1].2),
        "contradicts another answer to the same approval",
    )))
}
