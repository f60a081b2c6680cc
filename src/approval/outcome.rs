//! [`Claim`]: the right to run an approved tool. [`ToolOutcome`]: what the tool has returned. [`DeferredOutcome`]: what
//! has happened to a tool call that an earlier turn left open.

use serde::{Deserialize, Serialize};

use super::RecordId;
use crate::json::Json;

/// The outcome of an approved call: of a tool that has run, or that the client is to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ToolOutcome {
    /// The value that the tool returned.
    ///
    /// A peer may have produced this value, so fewer rules apply to it than to other [`Json`].
    Output(#[serde(deserialize_with = "Json::deserialize_received")] Json),
    /// The error text of a tool that failed. The user may read this text.
    Failed(String),
    /// The client executes the approved call with this input, and answers with its output. Until it
    /// does, the call is open, as one that needed no approval.
    HandedToClient(Json),
}

impl From<Json> for ToolOutcome {
    fn from(output: Json) -> Self {
        ToolOutcome::Output(output)
    }
}

/// The error text is shown to the user and the model.
impl From<Result<Json, String>> for ToolOutcome {
    fn from(result: Result<Json, String>) -> Self {
        result.map_or_else(ToolOutcome::Failed, ToolOutcome::Output)
    }
}

/// The right to run an approved tool once.
///
/// The ledger has stored the lease holder before it grants a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Claim {
    /// The id of the record.
    pub record: RecordId,
    /// The number of the attempt, counted from 1. It is 0 if the approval is for a provider and the
    /// model call that sends it still has to claim it.
    pub fence: u64,
}

impl Claim {
    /// Returns the idempotency key of the call.
    ///
    /// The key is the same for every attempt to run this call. An idempotent tool recognizes the
    /// call by it.
    pub fn idempotency_key(&self) -> RecordId {
        self.record
    }
}

/// The outcome of a deferred tool call.
///
/// Only a call with [`DeferredOutcome::Approved`] is ever run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum DeferredOutcome {
    /// The user approved the call, and the tool must run. `ChatApprovals::resolve` runs it itself.
    /// After [`ResumePlan::settle`](super::ResumePlan::settle) the host must run it.
    Approved {
        /// The input from the host's own record.
        input: Json,
        /// The claim that the ledger granted.
        ///
        /// If it is `None`, the host itself must ensure that the tool runs only once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        claim: Option<Claim>,
    },
    /// The tool already ran for an earlier approval response. The call is shown with the outcome of
    /// that execution.
    Executed {
        /// The outcome of the tool.
        outcome: ToolOutcome,
    },
    /// The tool is running for an earlier approval response. Its outcome will be stored in the
    /// record.
    Executing {
        /// The id of the record.
        record: RecordId,
    },
    /// It is not known whether the tool ran, for one of these reasons:
    /// - An earlier approval response claimed the call, and the claim ended without an outcome: it
    ///   was dropped, its lease ended, or the outcome could not be stored.
    /// - The ledger failed while this approval was redeemed, and the request was pending before.
    /// - The host keeps no outcomes (`Approvals::stateless_replayable`, or a record of its own that
    ///   says `HandedOut`), and an earlier request executed the call or may have executed it.
    ///
    /// The tool is not run again. The call is shown as `tool-output-error` with the text
    /// [`UserText::OutcomeUnknown`](crate::UserText::OutcomeUnknown).
    OutcomeUnknown,
    /// The user denied the call. It is shown as `tool-output-denied`.
    Denied {
        /// The reason that the user gave.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The provider executes the tool and must get the user's response. This server runs nothing.
    ForwardToProvider {
        /// Whether the user approved the call (`true`) or denied it (`false`).
        approved: bool,
        /// The reason that the user gave.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// The claim that the ledger granted for an approval.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        claim: Option<Claim>,
    },
    /// An earlier approval was already forwarded to the provider.
    ///
    /// The approval is not forwarded again. The result of the call comes from the provider and is
    /// recorded in the history.
    ForwardedToProvider,
    /// The approval request expired without a response.
    ///
    /// The call is shown as `tool-output-error` with the text [`UserText::Expired`](crate::UserText::Expired).
    Expired,
    /// The user sent another message instead of a response to the approval request.
    ///
    /// The call is shown as `tool-output-error` with the text [`UserText::Superseded`](crate::UserText::Superseded).
    Superseded,
    /// The user approved the call, but the approval arrived with or after a newer message of the
    /// user. The tool is not run.
    ///
    /// The call is shown as `tool-output-error` with the text [`UserText::Lapsed`](crate::UserText::Lapsed).
    Lapsed,
    /// The approval request was revoked, or the tool's definition changed, or the call is no longer
    /// permitted.
    ///
    /// The call is shown as `tool-output-error` with the text [`UserText::Revoked`](crate::UserText::Revoked).
    Revoked,
    /// The approval response does not match an approval request of the host. The tool is not run.
    ///
    /// The call is shown as `tool-output-error` with the text [`UserText::Refused`](crate::UserText::Refused).
    Rejected,
    /// The host has sealed the approval request for this user and call, and has lost its record: the
    /// ledger was emptied, or has evicted it. The tool is not run.
    ///
    /// The call is shown as `tool-output-error` with the text [`UserText::Forgotten`](crate::UserText::Forgotten).
    Forgotten,
    /// The client executed the tool and already shows the output.
    Output {
        /// The value that the tool returned.
        #[serde(deserialize_with = "Json::deserialize_received")]
        output: Json,
    },
    /// The client executed the tool, the tool failed, and the client already shows the error.
    OutputError {
        /// The error text.
        error_text: String,
    },
}

impl DeferredOutcome {
    /// Returns whether the approval request was closed without a decision that counts. The tool did
    /// not run.
    #[cfg(feature = "approvals")]
    pub fn is_closed_undecided(&self) -> bool {
        matches!(
            self,
            DeferredOutcome::Expired
                | DeferredOutcome::Superseded
                | DeferredOutcome::Lapsed
                | DeferredOutcome::Revoked
        )
    }

    /// Returns whether the approval response does not count, and the tool did not run because of it.
    pub(crate) fn is_rejected(&self) -> bool {
        matches!(self, DeferredOutcome::Rejected | DeferredOutcome::Forgotten)
    }

    /// Returns whether this outcome follows from an approval (`approved` is `true`) or from a
    /// denial (`false`).
    ///
    /// Returns `false` for an outcome that follows from no decision, such as
    /// [`DeferredOutcome::Expired`].
    pub fn matches_decision(&self, approved: bool) -> bool {
        match self {
            DeferredOutcome::Denied { .. } => !approved,
            DeferredOutcome::ForwardToProvider { approved: forwarded, .. } => {
                *forwarded == approved
            }
            DeferredOutcome::Approved { .. }
            | DeferredOutcome::Executed { .. }
            | DeferredOutcome::Executing { .. }
            | DeferredOutcome::ForwardedToProvider
            | DeferredOutcome::OutcomeUnknown => approved,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_from_a_peer_is_deserialized_unchanged() {
        // Such an output comes from a tool that queries another server and returns the response
        // unchanged.
        let raw = serde_json::value::RawValue::from_string(r#"{"a":"\ud800","a":1e400}"#.into());
        let outcome = ToolOutcome::Output(Json::received(&raw.unwrap()).unwrap());
        let text = serde_json::to_string(&outcome).unwrap();
        assert_eq!(serde_json::from_str::<ToolOutcome>(&text).unwrap(), outcome);
    }

    #[test]
    fn an_outcome_follows_from_an_approval_or_a_denial_or_from_no_decision() {
        let forwarded =
            |approved| DeferredOutcome::ForwardToProvider { approved, reason: None, claim: None };
        for (outcome, of_approval, of_denial) in [
            (DeferredOutcome::Denied { reason: None }, false, true),
            (forwarded(true), true, false),
            (forwarded(false), false, true),
            (DeferredOutcome::OutcomeUnknown, true, false),
            (DeferredOutcome::Expired, false, false),
            (DeferredOutcome::Superseded, false, false),
            (DeferredOutcome::Rejected, false, false),
        ] {
            assert_eq!(outcome.matches_decision(true), of_approval, "{outcome:?}");
            assert_eq!(outcome.matches_decision(false), of_denial, "{outcome:?}");
        }
    }

    #[test]
    fn only_a_rejected_or_forgotten_response_does_not_count() {
        assert!(DeferredOutcome::Rejected.is_rejected());
        assert!(DeferredOutcome::Forgotten.is_rejected());
        assert!(!DeferredOutcome::Denied { reason: None }.is_rejected());
        assert!(!DeferredOutcome::Expired.is_rejected());
    }

    #[cfg(feature = "approvals")]
    #[test]
    fn a_request_that_was_closed_undecided_is_no_denial() {
        for closed in [
            DeferredOutcome::Expired,
            DeferredOutcome::Superseded,
            DeferredOutcome::Lapsed,
            DeferredOutcome::Revoked,
        ] {
            assert!(closed.is_closed_undecided(), "{closed:?}");
        }
        assert!(!DeferredOutcome::Denied { reason: None }.is_closed_undecided());
        assert!(!DeferredOutcome::Rejected.is_closed_undecided());
    }
}
