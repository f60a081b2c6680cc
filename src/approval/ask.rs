//! [`Question`]: what a person is to be asked, and how it becomes a record and an id.

use std::fmt;
use std::time::Duration;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{
    ApprovalRecord, ApprovalState, ApprovalStatus, CanonicalJson, DefinitionDigest,
    InputNotShownAsIs, KeyRing, Principal, RecordId, UnixMillis, token,
};
use crate::id::{ApprovalId, ChatId, MessageId, ToolCallId};
use crate::json::{Json, JsonError};

/// What a person is to be asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Whose chat it is.
    pub requester: Principal,
    /// Which chat.
    pub chat_id: ChatId,
    /// The assistant message that holds the call.
    pub message_id: MessageId,
    /// Names the call.
    pub tool_call_id: ToolCallId,
    /// Which tool.
    pub tool_name: Box<str>,
    /// What the tool is.
    pub definition: DefinitionDigest,
    /// The input that the model gave.
    pub input: Json,
    /// Whether the provider runs the tool.
    pub provider_executed: bool,
    /// Whether the tool recognises a call that it gets twice, and may be run again after a crash.
    pub idempotent: bool,
    /// What the person reads; `None`: the tool's name and the input.
    pub description: Option<Box<str>>,
    /// How long an answer is waited for.
    pub time_to_answer: Duration,
}

impl Question {
    /// Makes the record of this question. `id` is 16 random bytes.
    ///
    /// # Errors
    /// [`InputNotShownAsIs`]: a browser would show another input than the one that would run. Nobody is
    /// asked then; the model is told, as of any other input that is not what the tool takes.
    pub fn into_record(
        self,
        keys: &KeyRing,
        id: RecordId,
        now: UnixMillis,
    ) -> Result<ApprovalRecord, InputNotShownAsIs> {
        if self.input.as_str().len() > MOST_ASKED_ABOUT {
            return Err(InputNotShownAsIs::TooLong);
        }
        CanonicalJson::of(&self.input)?;
        let description = self.description.unwrap_or_else(|| {
            format!("{} {}", self.tool_name, beginning_of(self.input.as_str())).into()
        });
        Ok(ApprovalRecord {
            id,
            key_id: keys.active().id,
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
    /// The id that the client gets, and has to send back: the proof that this was asked.
    ///
    /// Made from the record, so that it is stored nowhere. `None` once the key that sealed it may
    /// not be used any more.
    pub fn approval_id(&self, keys: &KeyRing, now: UnixMillis) -> Option<ApprovalId> {
        token::seal(keys, self, now)
    }

    /// What a person is shown beside the call, as the data of a `data-approval` part.
    ///
    /// An object with `state`, `description`, `requestedAt`, `expiresAt`
    /// (milliseconds since 1970), `hidesCharacters: true` if the input holds characters that a
    /// reader does not see as they are, and once there is an answer `approvedBy`, `respondedAt` and
    /// `reason`.
    ///
    /// # Errors
    /// [`JsonError`], if a text in it cannot be sent.
    pub fn descriptor(&self, now: UnixMillis) -> Result<Json, JsonError> {
        let decision = self.decision();
        Json::of(&Descriptor {
            state: self.status(now),
            description: &self.description,
            requested_at: self.requested_at,
            expires_at: self.expires_at,
            hides_characters: hides_characters(&self.input),
            approved_by: decision.map(|decision| decision.approved_by.to_string()),
            responded_at: decision.map(|decision| decision.responded_at),
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

/// As much of an input as fits into a sentence; the whole of it stands beside.
fn beginning_of(input: &str) -> String {
    match input.char_indices().nth(DESCRIBED_CHARACTERS) {
        Some((end, _)) => format!("{}…", &input[..end]),
        None => input.to_owned(),
    }
}

/// Whether an input holds characters that change how others look, or that cannot be seen: a prompt
/// injection may hide in them what is really asked for.
fn hides_characters(input: &Json) -> bool {
    input.to().is_ok_and(|Hides(hides)| hides)
}

/// Whether a value holds such characters, in whatever string or key.
struct Hides(bool);

impl<'de> Deserialize<'de> for Hides {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self(false))
    }
}

impl<'de> Visitor<'de> for Hides {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Self, E> {
        Ok(Hides(text.chars().any(is_hidden)))
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
        while let Some(Hides(hides)) = items.next_element()? {
            self.0 |= hides;
        }
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<Self, A::Error> {
        while let Some((Hides(key), Hides(value))) = entries.next_entry()? {
            self.0 |= key | value;
        }
        Ok(self)
    }
}

/// Control characters, those that turn the direction of writing, and those without a width.
fn is_hidden(c: char) -> bool {
    let is_plain_white_space = matches!(c, '\t' | '\n' | '\r');
    c.is_control() && !is_plain_white_space
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

const DESCRIBED_CHARACTERS: usize = 200;

/// How many bytes an input may have that a person is asked about.
const MOST_ASKED_ABOUT: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_asked_about_more_than_they_can_read() {
        let ask = |bytes: usize| {
            let question = Question {
                requester: Principal::anonymous(),
                chat_id: "c".into(),
                message_id: "m".into(),
                tool_call_id: "call".into(),
                tool_name: "write".into(),
                definition: DefinitionDigest::of("write", "", &Json::null()),
                input: Json::string(&"a".repeat(bytes - 2)),
                provider_executed: false,
                idempotent: false,
                description: None,
                time_to_answer: Duration::from_secs(1),
            };
            let keys = KeyRing::new(1, &[7; 32]).unwrap();
            question.into_record(&keys, RecordId::from_bytes([0; 16]), UnixMillis(0))
        };
        assert!(ask(256 << 10).is_ok());
        assert!(matches!(ask((256 << 10) + 1), Err(InputNotShownAsIs::TooLong)));
    }

    #[test]
    fn an_input_that_hides_characters_is_told_from_one_that_does_not() {
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
            assert_eq!(hides_characters(&Json::parse(text).unwrap()), hides, "{text}");
        }
    }
}
