//! What decides an approval request: the [`ApprovalDecision`] that a client sends, the [`RecordedDecision`] that the
//! ledger keeps, a newer message ([`OnNewMessage`]) or the host ([`RevocationReason`]).

use serde::{Deserialize, Serialize};

use super::canonical_json::is_same_value;
use super::{Principal, UnixMillis};
use crate::id::ApprovalId;
use crate::json::{Json, json_or_null, optional_text};

/// A user's decision about an approval request, sent separately from the chat history.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalDecision {
    /// The id of the approval request.
    pub approval_id: ApprovalId,
    /// Whether the user approved the call (`true`) or denied it (`false`).
    pub approved: bool,
    /// The reason that the user gave. Half a surrogate pair, as a browser's string may hold it, is
    /// read as U+FFFD.
    #[serde(default, deserialize_with = "optional_text", skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The input with which the call runs, if the user changed it. It is the whole input, and it counts
    /// only for a tool that is [`editable`](super::EditableInput), with the first approval.
    #[serde(default, deserialize_with = "json_or_null", skip_serializing_if = "Option::is_none")]
    pub input: Option<Json>,
}

impl ApprovalDecision {
    /// Creates a decision without a reason and without a changed input.
    pub fn new(approval_id: ApprovalId, approved: bool) -> Self {
        ApprovalDecision { approval_id, approved, reason: None, input: None }
    }
}

debug_without_content!(ApprovalDecision { approval_id, approved });

/// A recorded approval or denial: decider, time and reason, and the input that the approver changed.
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
    /// The input with which the tool runs, if the approver has changed it. It may be `null`.
    #[serde(default, deserialize_with = "json_or_null", skip_serializing_if = "Option::is_none")]
    pub changed_input: Option<Json>,
}

impl RecordedDecision {
    /// Creates a decision without a reason and without a changed input.
    pub fn new(decided_by: Principal, decided_at: UnixMillis) -> Self {
        RecordedDecision { decided_by, decided_at, reason: None, changed_input: None }
    }

    /// Adds the input that the approver sent in place of the original one. An equal input is no change.
    #[must_use]
    pub fn with_changed_input(self, input: Option<Json>, original: &Json) -> Self {
        let changed_input = input.filter(|input| !is_same_value(input, original));
        RecordedDecision { changed_input, ..self }
    }
}

/// What happens to the approval request of a call when its requester sends a newer message.
///
/// A user who writes "No, stop" may have approved the call before, in a response that reaches the
/// server only with that message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum OnNewMessage {
    /// An unanswered request is superseded. An approval that arrives with or after the message
    /// lapses: the tool does not run, and the model may request the approval again.
    #[default]
    Lapse,
    /// The message denies an unanswered request in the name of its requester, with the reason
    /// [`UserText::DeniedByMessage`](crate::UserText::DeniedByMessage). An approval that arrives with or after the
    /// message does not count: the request is denied as if there were no approval.
    Deny,
    /// The request stays open, and an approval that arrives later runs the tool. Use it for
    /// approval requests that do not depend on the conversation. A request that
    /// [others decide](super::ApprovalRecord::decided_by_others) on always stays open.
    ///
    /// The name `keep` of other servers is read as this one.
    #[doc(alias = "keep")]
    #[serde(alias = "keep")]
    Run,
}

words! { OnNewMessage { Lapse "lapse" Deny "deny" Run "run" } }

impl OnNewMessage {
    /// Returns whether a newer message closes the request.
    pub(super) fn closes(self) -> bool {
        self != OnNewMessage::Run
    }

    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
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

words! {
    RevocationReason {
        ByHost "by-host" DefinitionChanged "definition-changed" NotPermitted "not-permitted"
    }
}
