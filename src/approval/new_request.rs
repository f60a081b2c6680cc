//! [`NewApprovalRequest`]: an approval request to be created, and its conversion to a record and an
//! id.

use std::fmt;
use std::time::Duration;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{
    ApprovalRecord, ApprovalState, ApprovalStatus, CanonicalJson, DefinitionDigest,
    InexactInputError, KeyRing, Principal, RecordId, UnixMillis, token,
};
use crate::id::{ApprovalId, ChatId, MessageId, ToolCallId};
use crate::json::{Json, JsonError};

/// An approval request that is about to be created.
///
/// ```
/// use std::time::Duration;
///
/// use ui_message_stream::Json;
/// use ui_message_stream::approval::{
///     DefinitionDigest, KeyRing, NewApprovalRequest, Principal, RecordId, UnixMillis,
/// };
///
/// let request = NewApprovalRequest {
///     requester: Principal::new("ada"),
///     chat_id: "chat-1".into(),
///     message_id: "m2".into(),
///     tool_call_id: "call_1".into(),
///     tool_name: "delete_file".into(),
///     definition: DefinitionDigest::new("delete_file", "Deletes a file.", &Json::null()),
///     input: Json::parse(r#"{"path":"notes.txt"}"#)?,
///     provider_executed: false,
///     idempotent: false,
///     description: None,
///     time_to_answer: Duration::from_secs(60 * 60),
/// };
///
/// // The host provides the key, the random bytes and the time.
/// let keys = KeyRing::new(1, b"thirty-two bytes from a good source")?;
/// let now = UnixMillis(1_795_000_000_000);
/// let record = request.into_record(&keys, RecordId::from_bytes([7; 16]), now)?;
/// assert!(record.is_pending());
/// assert_eq!(&*record.description, r#"delete_file {"path":"notes.txt"}"#);
///
/// // The client gets the approval id. It is bound to exactly this record.
/// let approval_id = record.approval_id(&keys, now).expect("the active key never expires");
/// assert!(record.is_bound_to(&approval_id, &keys, now));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct NewApprovalRequest {
    /// The principal that owns the chat.
    pub requester: Principal,
    /// The chat that contains the call.
    pub chat_id: ChatId,
    /// The assistant message that contains the call.
    pub message_id: MessageId,
    /// The id of the tool call.
    pub tool_call_id: ToolCallId,
    /// The name of the tool.
    pub tool_name: Box<str>,
    /// The digest of the tool's definition.
    pub definition: DefinitionDigest,
    /// The tool input that the model produced.
    pub input: Json,
    /// Whether the provider executes the tool.
    pub provider_executed: bool,
    /// Whether the tool recognizes a repeated call, and may therefore run again after a crash.
    pub idempotent: bool,
    /// The description that the user reads.
    ///
    /// If it is `None`, the description is the tool's name and the first 200 characters of the
    /// input.
    pub description: Option<Box<str>>,
    /// The time that the user has to respond. The request expires after it.
    pub time_to_answer: Duration,
}

impl NewApprovalRequest {
    /// Creates the record of this approval request, in the state [`ApprovalState::Pending`].
    ///
    /// `id` must be made from 16 random bytes.
    ///
    /// # Errors
    /// [`InexactInputError`] if a browser would show another input than the one that the tool would
    /// run with, or if the input is longer than 256 KiB. The user is not asked in that case. The
    /// model should get the error, as for any other input that the tool does not accept.
    pub fn into_record(
        self,
        keys: &KeyRing,
        id: RecordId,
        now: UnixMillis,
    ) -> Result<ApprovalRecord, InexactInputError> {
        if self.input.as_str().len() > MAX_INPUT_BYTES {
            return Err(InexactInputError::TooLong);
        }
        CanonicalJson::of(&self.input)?;
        let description = self.description.unwrap_or_else(|| {
            format!("{} {}", self.tool_name, shorten_input(self.input.as_str())).into()
        });
        Ok(ApprovalRecord {
            id,
            key_id: keys.active_key().id,
            requested_at: now,
            expires_at: now.after(self.time_to_answer),
            requester: self.requester,
            chat_id: self.chat_id,
            message_id: self.message_id,
            tool_call_id: self.tool_call_id,
            tool_name: self.tool_name,
            definition: self.definition,
            input: self.input,
            provider_executed: self.provider_executed,
            idempotent: self.idempotent,
            description,
            state: ApprovalState::Pending,
        })
    }
}

impl ApprovalRecord {
    /// Returns the approval id, which the client gets and must send back as proof of this request.
    ///
    /// The id is computed from the record and is not stored. Returns `None` if the key that signed
    /// the id is not in the ring or is past its `not_after`.
    pub fn approval_id(&self, keys: &KeyRing, now: UnixMillis) -> Option<ApprovalId> {
        token::seal(keys, self, now)
    }

    /// Returns the data of the `data-approval` part that the client shows next to the call.
    ///
    /// The data is an object with these fields:
    ///
    /// - `state`: the [`ApprovalStatus`] at the time `now`
    /// - `description`
    /// - `requestedAt` and `expiresAt`, in milliseconds since 1970
    /// - `hidesCharacters`: `true` if the input holds characters that a reader does not see as they
    ///   are; absent otherwise
    /// - `approvedBy` and `respondedAt`, once there is an approval or a denial
    /// - `reason`, if the user gave one with the approval or denial
    ///
    /// # Errors
    /// [`JsonError`] if a text in the object cannot be sent.
    pub fn descriptor(&self, now: UnixMillis) -> Result<Json, JsonError> {
        let decision = self.decision();
        Json::from_serialize(&Descriptor {
            state: self.status(now),
            description: &self.description,
            requested_at: self.requested_at,
            expires_at: self.expires_at,
            hides_characters: has_hidden_characters(&self.input),
            approved_by: decision.map(|decision| decision.decided_by.to_string()),
            responded_at: decision.map(|decision| decision.decided_at),
            reason: decision.and_then(|decision| decision.reason.as_deref()),
        })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor<'a> {
    state: ApprovalStatus,
    description: &'a str,
    requested_at: UnixMillis,
    expires_at: UnixMillis,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    hides_characters: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    approved_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    responded_at: Option<UnixMillis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

/// Shortens an input to fit into a description. The client shows the complete input separately.
fn shorten_input(input: &str) -> String {
    match input.char_indices().nth(MAX_DESCRIBED_INPUT_CHARS) {
        Some((end, _)) => format!("{}…", &input[..end]),
        None => input.to_owned(),
    }
}

/// Returns whether an input holds invisible characters, or characters that change how others look.
///
/// A prompt injection may use such characters to hide the real input from the user.
fn has_hidden_characters(input: &Json) -> bool {
    input.decode().is_ok_and(|HasHiddenCharacters(hides)| hides)
}

/// Whether any string or key of a value holds such characters.
struct HasHiddenCharacters(bool);

impl<'de> Deserialize<'de> for HasHiddenCharacters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self(false))
    }
}

impl<'de> Visitor<'de> for HasHiddenCharacters {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Self, E> {
        Ok(HasHiddenCharacters(text.chars().any(is_hidden)))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Self, A::Error> {
        while let Some(HasHiddenCharacters(hides)) = items.next_element()? {
            self.0 |= hides;
        }
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<Self, A::Error> {
        while let Some((HasHiddenCharacters(key), HasHiddenCharacters(value))) =
            entries.next_entry()?
        {
            self.0 |= key | value;
        }
        Ok(self)
    }
}

/// Returns whether a character is a control character other than tab, line feed and carriage
/// return, a bidirectional control character, or a character that is invisible or has no width.
fn is_hidden(c: char) -> bool {
    let is_plain_white_space = matches!(c, '\t' | '\n' | '\r');
    c.is_control() && !is_plain_white_space
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

const MAX_DESCRIBED_INPUT_CHARS: usize = 200;

/// The maximum length of an input that needs approval, in bytes.
const MAX_INPUT_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_of_more_than_256_kib_is_rejected() {
        let request_with_input_of = |bytes: usize| {
            let request = NewApprovalRequest {
                requester: Principal::anonymous(),
                chat_id: "c".into(),
                message_id: "m".into(),
                tool_call_id: "call".into(),
                tool_name: "write".into(),
                definition: DefinitionDigest::new("write", "", &Json::null()),
                input: Json::string(&"a".repeat(bytes - 2)),
                provider_executed: false,
                idempotent: false,
                description: None,
                time_to_answer: Duration::from_secs(1),
            };
            let keys = KeyRing::new(1, &[7; 32]).unwrap();
            request.into_record(&keys, RecordId::from_bytes([0; 16]), UnixMillis(0))
        };
        assert!(request_with_input_of(256 << 10).is_ok());
        assert!(matches!(request_with_input_of((256 << 10) + 1), Err(InexactInputError::TooLong)));
    }

    #[test]
    fn an_input_with_hidden_characters_is_detected() {
        for (text, hides) in [
            (r#"{"path":"notes.txt"}"#, false),
            (r#"{"path":"a\nb\tc \\u202e"}"#, false),
            ("{\"path\":\"a\u{202e}txt.exe\"}", true),
            (r#"{"path":"a\u202etxt.exe"}"#, true),
            (r#"{"path":"\\\u200b"}"#, true),
            (r#"{"pa\u200dth":"x"}"#, true),
            (r#"{"path":"\u0007"}"#, true),
            (r#"{"path":"\ud83d\ude00 naïve 日本"}"#, false),
            ("{\"path\":\"\u{e0041}\"}", true),
            (r#"{"path":"\udb40\udc41"}"#, true),
        ] {
            assert_eq!(has_hidden_characters(&Json::parse(text).unwrap()), hides, "{text}");
        }
    }
}
