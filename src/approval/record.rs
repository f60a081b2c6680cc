//! [`ApprovalRecord`]: one question to a person, as the server keeps it, from asking to outcome.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};

use super::{Principal, UnixMillis};
use crate::id::{ChatId, MessageId, ToolCallId};
use crate::json::Json;

/// One question to a person, and what became of it: what a ledger store keeps.
///
/// It is what was approved: the tool runs with [`input`](Self::input) as it stands here, whatever a
/// client sends. It holds no token; the approval's id is made from it anew, by whoever has the key.
/// Whoever can write records can approve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ApprovalRecord {
    /// Names the record, and is the key that an idempotent tool gets on every attempt. Random.
    pub id: RecordId,
    /// Which key sealed the approval's id.
    pub key_id: u32,
    /// When the person was asked.
    pub requested_at: UnixMillis,
    /// From when on nobody can approve any more.
    pub expires_at: UnixMillis,
    /// Whose chat it is.
    pub requester: Principal,
    /// Which chat.
    pub chat_id: ChatId,
    /// The assistant message that holds the call.
    pub message_id: MessageId,
    /// Names the call, in the host's own word.
    pub tool_call_id: ToolCallId,
    /// Which tool.
    pub tool_name: Box<str>,
    /// What the tool was when it was asked about.
    pub definition: DefinitionDigest,
    /// The input that the model gave.
    pub input: Json,
    /// Whether the provider runs the tool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub provider_executed: bool,
    /// Whether the tool may be run again after a crash: it recognises [`id`](Self::id).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub idempotent: bool,
    /// What the person reads.
    pub description: Box<str>,
    /// What became of it.
    pub state: ApprovalState,
}

/// What became of a question.
///
/// ```text
/// Pending ──deny──▶ Denied          ──expire──▶ Expired          ──revoke──▶ Revoked
///    └────claim──▶ Claimed ──complete──▶ Done
///                     └───lease lost──▶ Unknown, or Claimed anew if the tool is idempotent
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum ApprovalState {
    /// It waits for an answer.
    Pending,
    /// The person said no.
    Denied {
        /// Who, when and why.
        decision: Decision,
    },
    /// Nobody answered in time.
    Expired,
    /// It was taken back.
    Revoked {
        /// Why.
        cause: Revocation,
        /// When.
        at: UnixMillis,
    },
    /// The person said yes, and somebody runs the tool.
    Claimed {
        /// Who said yes, when and why.
        decision: Decision,
        /// Who runs it.
        claimant: ClaimantId,
        /// Counts the attempts, from 1.
        fence: u64,
        /// Until then the claimant is taken to be alive.
        lease_until: UnixMillis,
    },
    /// The tool ran.
    Done {
        /// Who said yes, when and why.
        decision: Decision,
        /// The attempt that it was.
        fence: u64,
        /// What came of it.
        outcome: ToolOutcome,
        /// When it was stored.
        at: UnixMillis,
    },
    /// Whoever ran the tool is gone. Perhaps it ran, perhaps it did not: it is not run again.
    Unknown {
        /// Who said yes, when and why.
        decision: Decision,
    },
}

/// What a question looks like to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalStatus {
    /// It waits for an answer.
    Pending,
    /// Somebody said yes.
    Approved,
    /// Somebody said no.
    Denied,
    /// Nobody answered in time.
    Expired,
    /// It was taken back.
    Revoked,
}

/// An answer: who gave it, when, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// Who, as the host's authentication says.
    pub approved_by: Principal,
    /// When.
    pub responded_at: UnixMillis,
    /// Why, in the person's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Why a question was taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Revocation {
    /// The host took it back.
    ByHost,
    /// The tool is not what it was, or is gone.
    DefinitionChanged,
    /// The person may not run it any more, or its input is not what it takes.
    NotPermitted,
}

/// What came of running a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ToolOutcome {
    /// What it returned. That may be a peer's, held to fewer rules.
    Output(#[serde(deserialize_with = "Json::deserialize_received")] Json),
    /// Why it failed, in words that the person may read.
    Failed(String),
}

impl ApprovalRecord {
    /// What it looks like to people.
    pub fn status(&self, now: UnixMillis) -> ApprovalStatus {
        match self.state {
            ApprovalState::Pending if self.expires_at <= now => ApprovalStatus::Expired,
            ApprovalState::Pending => ApprovalStatus::Pending,
            ApprovalState::Denied { .. } => ApprovalStatus::Denied,
            ApprovalState::Expired => ApprovalStatus::Expired,
            ApprovalState::Revoked { .. } => ApprovalStatus::Revoked,
            ApprovalState::Claimed { .. }
            | ApprovalState::Done { .. }
            | ApprovalState::Unknown { .. } => ApprovalStatus::Approved,
        }
    }

    /// Whether it waits for an answer. One that has expired still does, until somebody looks.
    pub fn is_pending(&self) -> bool {
        self.state == ApprovalState::Pending
    }

    /// SHA-256 of the input, in hex: names it where it may not be shown.
    pub fn input_digest(&self) -> String {
        let digest: [u8; 32] = Sha256::digest(self.input.as_str()).into();
        DefinitionDigest(digest).to_string()
    }

    /// The answer, if there is one.
    pub fn decision(&self) -> Option<&Decision> {
        match &self.state {
            ApprovalState::Denied { decision }
            | ApprovalState::Claimed { decision, .. }
            | ApprovalState::Done { decision, .. }
            | ApprovalState::Unknown { decision } => Some(decision),
            _ => None,
        }
    }
}

/// A digest of what a tool is: its name, its description, the schema of its input, and what else is
/// said of it that people go by.
///
/// An approval is for the tool that the person was asked about. If another one stands under the
/// name by the time of the answer, as a tool server may make it, the person is asked again.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DefinitionDigest([u8; 32]);

impl DefinitionDigest {
    /// The digest of a definition.
    pub fn of(tool_name: &str, description: &str, input_schema: &Json) -> Self {
        let mut digest = Sha256::new();
        for field in [tool_name, description, input_schema.as_str()] {
            digest.update((field.len() as u64).to_be_bytes());
            digest.update(field);
        }
        DefinitionDigest(digest.finalize().into())
    }

    /// The digest of this definition and more: a title, say, or what is claimed of the tool.
    #[must_use]
    pub fn with_further(self, further: &Json) -> Self {
        let mut digest = Sha256::new();
        digest.update(self.0);
        digest.update(further.as_str());
        DefinitionDigest(digest.finalize().into())
    }

    pub(super) fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Names a record. It is not the approval's id: whoever knows it can do nothing with it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId([u8; 16]);

/// Names an attempt to run an approved tool, so that a claim whose answer was lost can be asked
/// for again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimantId([u8; 16]);

/// Text that is not so many bytes in lower-case hex.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected {0} bytes in lower-case hex")]
pub struct HexError(usize);

impl RecordId {
    /// Takes 16 random bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        RecordId(bytes)
    }

    pub(super) fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl ClaimantId {
    /// Takes 16 random bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        ClaimantId(bytes)
    }
}

macro_rules! written_in_hex {
    ($($name:ident($bytes:literal))*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = HexError;

            fn from_str(text: &str) -> Result<Self, HexError> {
                let digit = |byte: u8| match byte {
                    b'0'..=b'9' => Ok(byte - b'0'),
                    b'a'..=b'f' => Ok(byte - b'a' + 10),
                    _ => Err(HexError($bytes)),
                };
                if text.len() != 2 * $bytes {
                    return Err(HexError($bytes));
                }
                let mut bytes = [0; $bytes];
                for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
                    *byte = digit(pair[0])? << 4 | digit(pair[1])?;
                }
                Ok($name(bytes))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    )*};
}

written_in_hex! { RecordId(16) ClaimantId(16) DefinitionDigest(32) }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_without_more_has_the_digest_that_it_always_had() {
        let plain = DefinitionDigest::of("delete_file", "Deletes.", &Json::null());
        assert_eq!(plain.to_string(), PLAIN);
        let titled = |title| plain.with_further(&Json::string(title));
        assert_eq!(titled("One"), titled("One"));
        assert_ne!(titled("One"), titled("Two"));
        assert_ne!(plain.with_further(&Json::null()), plain);
    }

    #[test]
    fn an_outcome_that_a_peer_gave_is_read_back() {
        // As a tool passes it on that asks another server.
        let raw = serde_json::value::RawValue::from_string(r#"{"a":"\ud800","a":1e400}"#.into());
        let outcome = ToolOutcome::Output(Json::received(&raw.unwrap()).unwrap());
        let text = serde_json::to_string(&outcome).unwrap();
        assert_eq!(serde_json::from_str::<ToolOutcome>(&text).unwrap(), outcome);
    }

    /// SHA-256 of the three fields, each after its length in eight bytes.
    const PLAIN: &str = "020b0eb83ba84859371dfb50eda4029ba18301ce110f636c20a4ea4ecffa06dc";
}
