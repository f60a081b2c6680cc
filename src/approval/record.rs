//! [`ApprovalRecord`]: one approval request as the server stores it, from creation to outcome.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::hidden_characters::has_hidden_characters;
use super::token::Token;
use super::{
    DeferredOutcome, DefinitionDigest, EditableInput, KeyId, KeyRing, LeaseHolderId, OnNewMessage,
    OuterCall, Principal, RecordId, RecordedDecision, RevocationReason, ToolOutcome, UnixMillis,
};
use crate::id::{ApprovalId, ChatId, MessageId, ToolCallId};
use crate::json::{Format, FormatError, Json, JsonError, RecordKind, check_format};

/// One approval request and its state, as a ledger store keeps it.
///
/// The record defines what the user approves: the tool runs with the record's
/// [`input`](Self::input), or with the one that the approver sent with the approval, as far as the tool
/// is [`editable`](Self::editable). The record does not contain
/// the approval id. The id is a token, which the server creates again from the record and a
/// [`KeyRing`](super::KeyRing). A process that can write records can approve calls.
///
/// # Stored form
/// The record is serialized as JSON with the number of its format, which is 1. A record of a newer
/// format is an error that names the format, as [`check_format`](Self::check_format) does.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ApprovalRecord {
    pub(super) format: Format<LedgerRecord>,
    /// The id of the record, which names the [bucket](RecordId::bucket) of the requester. An idempotent tool
    /// gets it as its key on every attempt.
    pub id: RecordId,
    /// The id of the key that seals the approval id. Without this key the request is void: it is not
    /// listed, and cannot be approved or denied.
    pub key_id: KeyId,
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
    /// What happens to an approval that arrives with or after a newer message of the user.
    #[serde(default, skip_serializing_if = "OnNewMessage::is_default")]
    pub on_new_message: OnNewMessage,
    /// Whether another principal than the requester decides. The requester can deny the call, and
    /// cannot approve it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub decided_by_others: bool,
    /// What the approver may change of the input.
    #[serde(default, skip_serializing_if = "EditableInput::is_nothing")]
    pub editable: EditableInput,
    /// Who is asked in addition to the requester: names that the host has set, for example of teams. A
    /// principal of the requester's tenant that belongs to one of them finds the request in its inbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audience: Vec<Box<str>>,
    /// Which events were delivered to a notifier. `None` if the host had none when it made the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<NoticeDelivery>,
    /// The call inside which this one is made. `None` if the model of the chat has made the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outer: Option<OuterCall>,
    /// The description that the user reads.
    pub description: Box<str>,
    /// The state of the approval request.
    pub state: ApprovalState,
}

/// Leaves out the input, the description, the reason and the outcome.
impl fmt::Debug for ApprovalRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApprovalRecord")
            .field("id", &self.id)
            .field("requested_at", &self.requested_at)
            .field("expires_at", &self.expires_at)
            .field("requester", &self.requester)
            .field("chat_id", &self.chat_id)
            .field("message_id", &self.message_id)
            .field("tool_call_id", &self.tool_call_id)
            .field("tool_name", &self.tool_name)
            .field("input_digest", &self.input_digest())
            .field("status", &self.status(self.requested_at))
            .finish_non_exhaustive()
    }
}

/// The kind of an [`ApprovalRecord`] among the stored records.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct LedgerRecord;

impl RecordKind for LedgerRecord {
    const NAME: &'static str = "ledger record";
    const FORMAT: u64 = 1;
}

/// The state of an approval request.
///
/// ```text
/// Pending ──deny──▶ Denied          ──expire──▶ Expired          ──revoke──▶ Revoked
///    ├────lapse──▶ Lapsed          ──supersede──▶ Superseded
///    ├────grant──▶ Granted ──forward──▶ Claimed
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
    /// The user sent another message instead of a response.
    Superseded {
        /// The time at which the message arrived.
        at: UnixMillis,
    },
    /// The approval arrived with or after a newer message of the user, and the tool did not run.
    Lapsed {
        /// The approval: decider, time and reason.
        decision: RecordedDecision,
    },
    /// The request was revoked before it was approved or denied.
    Revoked {
        /// The reason of the revocation.
        cause: RevocationReason,
        /// The time of the revocation.
        at: UnixMillis,
    },
    /// The user approved a call that the provider executes, and no model call has sent the approval
    /// yet.
    Granted {
        /// The approval: decider, time and reason.
        decision: RecordedDecision,
    },
    /// The user approved the call, and a lease holder runs the tool.
    Claimed {
        /// The approval: decider, time and reason.
        decision: RecordedDecision,
        /// The lease holder that runs the tool.
        lease_holder: LeaseHolderId,
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
    /// The user sent another message instead of a response.
    Superseded,
    /// The call was approved too late: with or after a newer message of the user. It did not run.
    Lapsed,
}

words! {
    ApprovalStatus {
        Pending "pending" Approved "approved" Denied "denied" Expired "expired" Revoked "revoked"
        Superseded "superseded" Lapsed "lapsed"
    }
}

/// Which events of an approval request were delivered to a notifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NoticeDelivery {
    /// How many events were delivered, from the first on.
    pub(super) delivered: usize,
    /// The end of the lease of the server that delivers the next one.
    pub(super) leased_until: UnixMillis,
    /// How often the next one was begun and not delivered.
    pub(super) failures: u32,
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
            ApprovalState::Superseded { .. } => ApprovalStatus::Superseded,
            ApprovalState::Lapsed { .. } => ApprovalStatus::Lapsed,
            ApprovalState::Revoked { .. } => ApprovalStatus::Revoked,
            ApprovalState::Granted { .. }
            | ApprovalState::Claimed { .. }
            | ApprovalState::Completed { .. }
            | ApprovalState::OutcomeUnknown { .. } => ApprovalStatus::Approved,
        }
    }

    /// Returns the outcome of the approval request, or `None` while it is pending.
    pub fn outcome(&self) -> Option<DeferredOutcome> {
        Some(match &self.state {
            ApprovalState::Pending => return None,
            ApprovalState::Denied { decision } => {
                DeferredOutcome::Denied { reason: decision.reason.clone() }
            }
            ApprovalState::Expired => DeferredOutcome::Expired,
            ApprovalState::Superseded { .. } => DeferredOutcome::Superseded,
            ApprovalState::Lapsed { .. } => DeferredOutcome::Lapsed,
            ApprovalState::Revoked { .. } => DeferredOutcome::Revoked,
            ApprovalState::Granted { .. } => DeferredOutcome::ForwardedToProvider,
            ApprovalState::Claimed { .. } if self.provider_executed => {
                DeferredOutcome::ForwardedToProvider
            }
            ApprovalState::Claimed { .. } => DeferredOutcome::Executing { record: self.id },
            ApprovalState::Completed { outcome, .. } => {
                DeferredOutcome::Executed { outcome: outcome.clone() }
            }
            ApprovalState::OutcomeUnknown { .. } => DeferredOutcome::OutcomeUnknown,
        })
    }

    /// Returns the outcome of the approval request at the time `now`, or `None` while it is
    /// pending.
    ///
    /// It differs from [`outcome`](Self::outcome) for a provider-executed tool after the end of its
    /// lease. From then on no server waits for the provider's result, and the outcome is
    /// [`DeferredOutcome::OutcomeUnknown`]. An approval that no model call has sent has no lease.
    pub fn outcome_at(&self, now: UnixMillis) -> Option<DeferredOutcome> {
        match &self.state {
            ApprovalState::Claimed { lease_until, .. }
                if self.provider_executed && *lease_until <= now =>
            {
                Some(DeferredOutcome::OutcomeUnknown)
            }
            _ => self.outcome(),
        }
    }

    /// Returns whether the server that executes the call was lost, and the next approval executes it again.
    #[cfg(feature = "approvals")]
    pub(crate) fn can_be_executed_again(&self, now: UnixMillis) -> bool {
        let ApprovalState::Claimed { lease_until, .. } = &self.state else { return false };
        self.idempotent && !self.provider_executed && *lease_until <= now
    }

    /// Returns the outcome of an approval that was granted and that no model call has
    /// claimed.
    #[cfg(feature = "approvals")]
    pub(crate) fn granted(&self) -> Option<DeferredOutcome> {
        match &self.state {
            ApprovalState::Granted { decision } => Some(DeferredOutcome::ForwardToProvider {
                approved: true,
                reason: decision.reason.clone(),
                claim: Some(super::Claim { record: self.id, fence: 0 }),
            }),
            _ => None,
        }
    }

    /// Returns whether the state is [`ApprovalState::Pending`].
    ///
    /// A request that has expired remains pending until a ledger rule with a later time is applied
    /// to it.
    pub fn is_pending(&self) -> bool {
        self.state == ApprovalState::Pending
    }

    /// Returns whether a newer message of the requester closes this request.
    pub(super) fn is_closed_by_new_message(&self) -> bool {
        // A message ends the outer call, so nothing would read the result.
        self.outer.is_some() || self.on_new_message.closes() && !self.decided_by_others
    }

    /// Returns whether an approval by this principal is one of its own request, although others
    /// decide on it.
    pub(super) fn is_self_approval(&self, principal: &Principal) -> bool {
        self.decided_by_others && self.requester == *principal
    }

    /// Returns the SHA-256 digest of the input, in lower-case hex.
    ///
    /// The digest identifies the input where the input itself must not be shown.
    pub fn input_digest(&self) -> String {
        let digest: [u8; 32] = Sha256::digest(self.input.as_str()).into();
        DefinitionDigest(digest).to_string()
    }

    /// Returns the input with which an approved call runs: the one that its approver sent, or
    /// [`input`](Self::input).
    pub fn approved_input(&self) -> &Json {
        self.changed_input().unwrap_or(&self.input)
    }

    /// Returns the input that the approver sent, if it was changed.
    pub fn changed_input(&self) -> Option<&Json> {
        self.decision()?.changed_input.as_ref()
    }

    /// Returns the recorded approval or denial, if there is one.
    pub fn decision(&self) -> Option<&RecordedDecision> {
        match &self.state {
            ApprovalState::Denied { decision }
            | ApprovalState::Lapsed { decision }
            | ApprovalState::Granted { decision }
            | ApprovalState::Claimed { decision, .. }
            | ApprovalState::Completed { decision, .. }
            | ApprovalState::OutcomeUnknown { decision } => Some(decision),
            _ => None,
        }
    }

    /// Returns the approval id, which the client gets and must send back as proof of this request.
    ///
    /// The id is computed from the record and is not stored. Returns `None` if the key that sealed
    /// the id is not in the ring or is past its `not_after`.
    pub fn approval_id(&self, keys: &KeyRing, now: UnixMillis) -> Option<ApprovalId> {
        self.token().seal(keys, now)
    }

    /// Returns the data of the `data-approval` part that the client shows next to the call.
    ///
    /// The data is an object with these fields:
    ///
    /// - `state`: the [`ApprovalStatus`] at the time `now`
    /// - `description`
    /// - `requestedAt` and `expiresAt`, in milliseconds since 1970; `expiresAt` is absent if the request
    ///   [never](UnixMillis::is_never) expires
    /// - `editable`: what the approver may change of the input: `true`, or the names of its fields; absent
    ///   if nothing
    /// - `originalInput` and `changedInput`, if the approver has changed the input ([`ChangedInput`](super::ChangedInput))
    /// - `hidesCharacters`: `true` if the input holds characters that a reader does not see as they
    ///   are; absent otherwise
    /// - `decidedByOthers`: `true` if the requester cannot approve the call; absent otherwise
    /// - `staysOpen`: `true` if a newer message does not close the request, which is pending; absent otherwise
    /// - `agents`: the names of the tools that ask, from the outermost one, if the call is made
    ///   [inside](super::OuterCall) another one; absent otherwise
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
            editable: &self.editable,
            original_input: self.changed_input().map(|_| &self.input),
            changed_input: self.changed_input(),
            hides_characters: has_hidden_characters(self.approved_input()),
            decided_by_others: self.decided_by_others,
            stays_open: self.is_pending() && !self.is_closed_by_new_message(),
            agents: self.outer.as_ref().map(|outer| &*outer.agents),
            approved_by: decision.map(|decision| decision.decided_by.to_string()),
            responded_at: decision.map(|decision| decision.decided_at),
            reason: decision.and_then(|decision| decision.reason.as_deref()),
        })
    }

    /// Checks the format of a stored record, and nothing else of it.
    ///
    /// A store calls this function for a record that cannot be read. A newer format may have fields
    /// that this version cannot read, and a store may return the fields in another order, so that
    /// the error of `serde_json` does not name the format. Unlike that error, this one holds no
    /// contents of the record.
    ///
    /// ```
    /// use ui_message_stream::approval::ApprovalRecord;
    ///
    /// let error = ApprovalRecord::check_format(r#"{"format": 2, "state": "paused"}"#).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "ledger record: format 2 is newer than this version of ui-message-stream reads (1); \
    ///      upgrade the server"
    /// );
    /// ```
    ///
    /// # Errors
    /// [`FormatError`] if this version does not read the format.
    pub fn check_format(json: &str) -> Result<(), FormatError> {
        check_format::<LedgerRecord>(json)
    }

    /// Returns the id of the record that an approval id refers to.
    ///
    /// Returns `None` if this server did not seal the approval id, or if its key is no longer
    /// valid.
    pub fn record_id_from_token(
        id: &ApprovalId,
        keys: &KeyRing,
        now: UnixMillis,
    ) -> Option<RecordId> {
        Some(Token::open(keys, id, now)?.record)
    }

    /// Returns whether this approval id is valid and was sealed for exactly this record.
    pub fn is_bound_to(&self, id: &ApprovalId, keys: &KeyRing, now: UnixMillis) -> bool {
        Token::open(keys, id, now).is_some_and(|token| token == self.token())
    }

    /// Returns the token of this record, which is its approval id without the MAC.
    pub(super) fn token(&self) -> Token {
        Token::new(self.id, self.key_id, self.requested_at, self.expires_at, self.binding())
    }

    /// Returns the SHA-256 over all properties that the approval is bound to: tenant, principal,
    /// chat, tool call, tool, the digest of its definition, the digest of the input, message,
    /// whether the provider executes the tool, and whether the tool is idempotent.
    ///
    /// Every field of variable length is preceded by its length, so that two different approvals
    /// never have the same bytes.
    fn binding(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        for name in [self.requester.tenant(), self.requester.id()] {
            digest.update([u8::from(name.is_some())]);
            update_with_length(&mut digest, name.unwrap_or_default().as_bytes());
        }
        for field in [&*self.chat_id, &*self.tool_call_id, &*self.tool_name] {
            update_with_length(&mut digest, field.as_bytes());
        }
        digest.update(self.definition.as_bytes());
        digest.update(Sha256::digest(self.input.as_str()));
        // The message and the executor of the tool are also part of what the user approved.
        update_with_length(&mut digest, self.message_id.as_bytes());
        digest.update([u8::from(self.provider_executed), u8::from(self.idempotent)]);
        digest.finalize().into()
    }
}

/// The data that the client shows next to the call.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor<'a> {
    state: ApprovalStatus,
    description: &'a str,
    requested_at: UnixMillis,
    #[serde(skip_serializing_if = "UnixMillis::is_never")]
    expires_at: UnixMillis,
    #[serde(skip_serializing_if = "EditableInput::is_nothing")]
    editable: &'a EditableInput,
    #[serde(skip_serializing_if = "Option::is_none")]
    original_input: Option<&'a Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    changed_input: Option<&'a Json>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    hides_characters: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    decided_by_others: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stays_open: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    agents: Option<&'a [Box<str>]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    approved_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    responded_at: Option<UnixMillis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

fn update_with_length(digest: &mut Sha256, field: &[u8]) {
    digest.update((field.len() as u64).to_be_bytes());
    digest.update(field);
}
