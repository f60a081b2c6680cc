//! [`ApprovalRecord`]: one approval request as the server stores it, from creation to outcome.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};

use super::{Principal, UnixMillis};
use crate::id::{ChatId, MessageId, ToolCallId};
use crate::json::Json;

/// One approval request and its state, as a ledger store keeps it.
///
/// The record defines what the user approves: the tool runs with the record's
/// [`input`](Self::input), and never with an input that a client sends. The record does not contain
/// the approval id. The id is a token, which the server creates again from the record and a
/// [`KeyRing`](super::KeyRing). A process that can write records can approve calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ApprovalRecord {
    /// The id of the record: 16 random bytes. An idempotent tool gets it as its key on every
    /// attempt.
    pub id: RecordId,
    /// The id of the key that signed the approval id.
    pub key_id: u32,
    /// The time of the approval request.
    pub requested_at: UnixMillis,
    /// The time from which the request can no longer be approved.
    pub expires_at: UnixMillis,
    /// The principal that owns the chat.
    pub requester: Principal,
    /// The chat that contains the call.
    pub chat_id: ChatId,
    /// The assistant message that contains the call.
    pub message_id: MessageId,
    /// The host's id of the call. The id of the call on the wire may differ.
    pub tool_call_id: ToolCallId,
    /// The name of the tool.
    pub tool_name: Box<str>,
    /// The digest of the tool's definition at the time of the request.
    pub definition: DefinitionDigest,
    /// The tool input that the model produced.
    pub input: Json,
    /// Whether the provider executes the tool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub provider_executed: bool,
    /// Whether the tool may run again after a crash, because it recognizes the record's
    /// [`id`](Self::id).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub idempotent: bool,
    /// The description that the user reads.
    pub description: Box<str>,
    /// The state of the approval request.
    pub state: ApprovalState,
}

/// The state of an approval request.
///
/// ```text
/// Pending ──deny──▶ Denied          ──expire──▶ Expired          ──revoke──▶ Revoked
///    └────claim──▶ Claimed ──complete──▶ Completed
///                     └───lease lost──▶ OutcomeUnknown, or Claimed again if the tool is idempotent
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum ApprovalState {
    /// The request has no response yet.
    Pending,
    /// The user denied the call.
    Denied {
        /// The denial: decider, time and reason.
        decision: RecordedDecision,
    },
    /// The request expired without a response.
    Expired,
    /// The request was revoked before it was approved or denied.
    Revoked {
        /// The reason of the revocation.
        cause: RevocationReason,
        /// The time of the revocation.
        at: UnixMillis,
    },
    /// The user approved the call, and a lease holder runs the tool.
    Claimed {
        /// The approval: decider, time and reason.
        decision: RecordedDecision,
        /// The lease holder that runs the tool.
        claimant: LeaseHolderId,
        /// The number of the attempt, counted from 1.
        fence: u64,
        /// The end of the lease. Until then the lease holder counts as alive.
        lease_until: UnixMillis,
    },
    /// The tool has run.
    Completed {
        /// The approval: decider, time and reason.
        decision: RecordedDecision,
        /// The number of the attempt that completed the call.
        fence: u64,
        /// The outcome of the tool.
        outcome: ToolOutcome,
        /// The time at which the outcome was stored.
        at: UnixMillis,
    },
    /// The lease ended without an outcome. The tool may or may not have run, and is not run again.
    OutcomeUnknown {
        /// The approval: decider, time and reason.
        decision: RecordedDecision,
    },
}

/// The status of an approval request, as shown to users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalStatus {
    /// The request has no response yet.
    Pending,
    /// The call was approved.
    Approved,
    /// The call was denied.
    Denied,
    /// The request expired without a response.
    Expired,
    /// The request was revoked.
    Revoked,
}

/// A recorded approval or denial: decider, time and reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedDecision {
    /// The principal that decided, from the host's authentication.
    pub decided_by: Principal,
    /// The time of the decision.
    pub decided_at: UnixMillis,
    /// The reason that the user gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The reason why an approval request was revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RevocationReason {
    /// The host revoked the request.
    ByHost,
    /// The tool's definition changed, or the tool no longer exists.
    DefinitionChanged,
    /// The user may no longer run the tool, or the tool does not accept the input.
    NotPermitted,
}

/// The outcome of a tool that has run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ToolOutcome {
    /// The value that the tool returned.
    ///
    /// A peer may have produced this value, so fewer rules apply to it than to other [`Json`].
    Output(#[serde(deserialize_with = "Json::deserialize_received")] Json),
    /// The error text of a tool that failed. The user may read this text.
    Failed(String),
}

impl ApprovalRecord {
    /// Returns the status that users see at the time `now`.
    ///
    /// A pending request that has expired counts as expired, even if its state is still
    /// [`ApprovalState::Pending`].
    pub fn status(&self, now: UnixMillis) -> ApprovalStatus {
        match self.state {
            ApprovalState::Pending if self.expires_at <= now => ApprovalStatus::Expired,
            ApprovalState::Pending => ApprovalStatus::Pending,
            ApprovalState::Denied { .. } => ApprovalStatus::Denied,
            ApprovalState::Expired => ApprovalStatus::Expired,
            ApprovalState::Revoked { .. } => ApprovalStatus::Revoked,
            ApprovalState::Claimed { .. }
            | ApprovalState::Completed { .. }
            | ApprovalState::OutcomeUnknown { .. } => ApprovalStatus::Approved,
        }
    }

    /// Returns whether the state is [`ApprovalState::Pending`].
    ///
    /// A request that has expired remains pending until a ledger rule with a later time is applied
    /// to it.
    pub fn is_pending(&self) -> bool {
        self.state == ApprovalState::Pending
    }

    /// Returns the SHA-256 digest of the input, in lower-case hex.
    ///
    /// The digest identifies the input where the input itself must not be shown.
    pub fn input_digest(&self) -> String {
        let digest: [u8; 32] = Sha256::digest(self.input.as_str()).into();
        DefinitionDigest(digest).to_string()
    }

    /// Returns the recorded approval or denial, if there is one.
    pub fn decision(&self) -> Option<&RecordedDecision> {
        match &self.state {
            ApprovalState::Denied { decision }
            | ApprovalState::Claimed { decision, .. }
            | ApprovalState::Completed { decision, .. }
            | ApprovalState::OutcomeUnknown { decision } => Some(decision),
            _ => None,
        }
    }
}

/// A SHA-256 digest of a tool definition: name, description, input schema, and optional extras.
///
/// The extras are other properties of the tool that users rely on, such as a title.
///
/// An approval applies only to the tool that the user was asked about. A tool server may replace a
/// tool by another one with the same name before the user responds. The user must then be asked
/// again.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DefinitionDigest([u8; 32]);

impl DefinitionDigest {
    /// Computes the digest of a tool definition.
    pub fn new(tool_name: &str, description: &str, input_schema: &Json) -> Self {
        let mut digest = Sha256::new();
        for field in [tool_name, description, input_schema.as_str()] {
            digest.update((field.len() as u64).to_be_bytes());
            digest.update(field);
        }
        DefinitionDigest(digest.finalize().into())
    }

    /// Returns the digest of this definition with `extras`, such as a title or claims about the
    /// tool.
    #[must_use]
    pub fn with_extras(self, extras: &Json) -> Self {
        let mut digest = Sha256::new();
        digest.update(self.0);
        digest.update(extras.as_str());
        DefinitionDigest(digest.finalize().into())
    }

    pub(super) fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The id of an approval record. It is not the approval id: knowledge of a record id grants no
/// rights.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId([u8; 16]);

/// The id of an attempt to run an approved tool.
///
/// If the response to a claim was lost, the holder of this id can claim the record again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseHolderId([u8; 16]);

/// The error of a text that is not the expected number of bytes in lower-case hex.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected {0} bytes in lower-case hex")]
pub struct HexError(usize);

impl RecordId {
    /// Creates an id from 16 random bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        RecordId(bytes)
    }

    pub(super) fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl LeaseHolderId {
    /// Creates an id from 16 random bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        LeaseHolderId(bytes)
    }
}

macro_rules! impl_hex {
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

impl_hex! { RecordId(16) LeaseHolderId(16) DefinitionDigest(32) }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_a_definition_without_extras_never_changes() {
        let plain = DefinitionDigest::new("delete_file", "Deletes.", &Json::null());
        assert_eq!(plain.to_string(), PLAIN);
        let titled = |title| plain.with_extras(&Json::string(title));
        assert_eq!(titled("One"), titled("One"));
        assert_ne!(titled("One"), titled("Two"));
        assert_ne!(plain.with_extras(&Json::null()), plain);
    }

    #[test]
    fn an_outcome_from_a_peer_is_deserialized_unchanged() {
        // Such an output comes from a tool that queries another server and returns the response
        // unchanged.
        let raw = serde_json::value::RawValue::from_string(r#"{"a":"\ud800","a":1e400}"#.into());
        let outcome = ToolOutcome::Output(Json::received(&raw.unwrap()).unwrap());
        let text = serde_json::to_string(&outcome).unwrap();
        assert_eq!(serde_json::from_str::<ToolOutcome>(&text).unwrap(), outcome);
    }

    /// SHA-256 of the three fields, each preceded by its length as 8 bytes.
    const PLAIN: &str = "020b0eb83ba84859371dfb50eda4029ba18301ce110f636c20a4ea4ecffa06dc";
}
