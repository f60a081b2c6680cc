//! Approval requests to users, and the checks that decide which approval responses count.
//!
//! ```text
//! NewApprovalRequest ──▶ ApprovalRecord ──▶ ApprovalId ──▶ client ──▶ messages ──▶ ResumePlan
//!                        │ stored in the ledger                                        │ redeem
//!                        └────────▶ claim, deny ◀── LedgerRequest ── Redemption ◀──────┘
//!                                        └── LedgerResponse ──▶ DeferredToolResults ──▶ agent
//! ```
//!
//! A client sends its approval responses inside the tool parts of the chat history, and a client
//! can forge a history. [`ResumePlan`] therefore only reads the history: the approval responses,
//! the outputs of client-executed tools, and the approval requests without a response. Whether a
//! response counts depends only on data that the server itself holds:
//!
//! - The approval id is a token that only this server can create. The token is bound to the
//!   principal, chat, message, call, tool, tool definition, input and times.
//! - The [`ApprovalRecord`] holds the call that the user was asked about. The tool runs with the
//!   input of the record.
//! - The [rules of the ledger](Transition) let an approval claim the record once, before the tool
//!   runs. The record keeps the outcome, and every repetition of the approval gets that outcome.
//!
//! [`Redemption`] combines the three: it lists the records to load and the requests to the ledger,
//! and returns the result of each approval response. Every call that must not run is rejected in
//! the same way, for every reason. A rejection consumes nothing and locks no chat. A denial needs
//! no proof, because it runs nothing.
//!
//! A host may keep its own record of pending calls instead, with approval ids that prove nothing.
//! Such a host checks the approval responses against that record with [`ResumePlan::settle`].
//!
//! This module does not store records (see `approval::store`) and does not run tools (see
//! `Approvals`).

mod canonical_json;
mod deferred;
mod key_ring;
mod new_request;
mod principal;
mod record;
mod redeem;
mod resume;
#[cfg(feature = "approvals")]
mod service;
#[cfg(feature = "approvals")]
pub mod store;
mod time;
mod token;
mod transitions;

use serde::{Deserialize, Serialize};

pub use self::canonical_json::{CanonicalJson, InexactInputError};
pub use self::deferred::{
    DeferredOutcome, DeferredToolResult, DeferredToolResults, DeferredToolResultsBuilder,
};
pub use self::key_ring::{KeyRing, KeyRingError};
pub use self::new_request::NewApprovalRequest;
pub use self::principal::Principal;
pub use self::record::{
    ApprovalRecord, ApprovalState, ApprovalStatus, DefinitionDigest, HexError, LeaseHolderId,
    RecordId, RecordedDecision, RevocationReason, ToolOutcome,
};
pub use self::redeem::{
    ApprovalDecision, LedgerRequest, LedgerResponse, Redemption, RejectedResponse, RejectionReason,
};
pub use self::resume::ResumePlan;
#[cfg(feature = "approvals")]
pub use self::service::{
    Approvals, ApprovedCall, AuditEvent, AuditEventKind, AuditSink, ChatApprovals, EmptyToolbox,
    IssuedApproval, MessageDecisions, PendingApproval, RequestApprovalError, ResolvedApprovals,
    ToolInfo, Toolbox, TracingAudit,
};
pub use self::time::UnixMillis;
pub use self::transitions::{Claim, ClaimResult, DenyResult, LeaseResult, Transition};

use crate::id::{ApprovalId, ToolCallId};
use crate::json::Json;

/// The error text shown to the user for a call that must not run. It is the same for every reason.
pub const REFUSED: &str = "This tool call was not executed.";

/// The error text shown to the user for a call that was not approved or denied in time.
pub const EXPIRED: &str = "This tool call was not executed: nobody approved it in time.";

/// The error text shown to the user for a call whose approval request was revoked.
pub const REVOKED: &str = "This tool call was not executed: it is no longer permitted.";

/// The error text shown to the user for a call whose outcome was lost.
pub const OUTCOME_UNKNOWN: &str =
    "It is not known whether this tool call was executed. Verify before repeating it.";

/// The error text of a tool that failed without a text for the user and the model.
pub const TOOL_FAILED: &str = "The tool failed.";

/// An approval request without a response, as the client's history holds it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ApprovalRequest {
    /// The id of the approval request.
    pub approval_id: ApprovalId,
    /// The id of the tool call.
    pub tool_call_id: ToolCallId,
    /// The name of the tool.
    pub tool_name: Box<str>,
    /// The tool input, as the client holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Json>,
    /// Whether the provider executes the tool.
    #[serde(skip_serializing_if = "is_false")]
    pub provider_executed: bool,
}

/// A user's response to an approval request, as the client's history holds it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ApprovalResponse {
    /// The id of the approval request.
    pub approval_id: ApprovalId,
    /// The id of the tool call.
    pub tool_call_id: ToolCallId,
    /// The name of the tool.
    pub tool_name: Box<str>,
    /// The tool input, as the client holds it. No tool ever runs with this input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Json>,
    /// Whether the user approved the call (`true`) or denied it (`false`).
    pub approved: bool,
    /// The reason that the user gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether the provider executes the tool.
    #[serde(skip_serializing_if = "is_false")]
    pub provider_executed: bool,
}

/// A tool result that the client's history holds. The client itself may have produced the result.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ClientToolOutput {
    /// The id of the tool call.
    pub tool_call_id: ToolCallId,
    /// The output or the error of the call.
    #[serde(flatten)]
    pub result: ClientToolResult,
}

/// The result of a tool call that a client executed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ClientToolResult {
    /// The value that the tool returned.
    Output(Json),
    /// The error text of a tool that failed.
    ErrorText(String),
}

/// A tool call that was still open when a response ended, taken from the host's own record.
///
/// ```
/// use ui_message_stream::Json;
/// use ui_message_stream::approval::PendingToolCall;
///
/// let input = Json::from_serialize("notes.txt")?;
/// let needs_approval = PendingToolCall::awaiting_approval("ap_1", "call_1", "delete_file", input);
/// assert!(needs_approval.approval_id.is_some());
///
/// let on_client = PendingToolCall::client_executed("call_2", "get_location", Json::null());
/// assert!(on_client.approval_id.is_none());
/// # Ok::<(), ui_message_stream::json::JsonError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PendingToolCall {
    /// The id of the tool call.
    pub tool_call_id: ToolCallId,
    /// The name of the tool.
    pub tool_name: Box<str>,
    /// The tool input that the model produced.
    pub input: Json,
    /// The id of the approval request for this call. `None` if the client executes the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_id: Option<ApprovalId>,
    /// Whether the provider executes the tool.
    #[serde(default, skip_serializing_if = "is_false")]
    pub provider_executed: bool,
}

impl PendingToolCall {
    /// Creates a call that waits for a user's approval.
    pub fn awaiting_approval(
        approval_id: impl Into<ApprovalId>,
        tool_call_id: impl Into<ToolCallId>,
        tool_name: impl Into<Box<str>>,
        input: Json,
    ) -> Self {
        PendingToolCall {
            approval_id: Some(approval_id.into()),
            ..Self::client_executed(tool_call_id, tool_name, input)
        }
    }

    /// Creates a call that the client executes.
    ///
    /// The call id must be unique in the chat. The client answers in the first message that holds
    /// the id. If an id is repeated within a message, the later call is sent under another id.
    pub fn client_executed(
        tool_call_id: impl Into<ToolCallId>,
        tool_name: impl Into<Box<str>>,
        input: Json,
    ) -> Self {
        PendingToolCall {
            tool_call_id: tool_call_id.into(),
            tool_name: tool_name.into(),
            input,
            approval_id: None,
            provider_executed: false,
        }
    }

    /// Returns the final result of this call.
    #[cfg(feature = "approvals")]
    pub(crate) fn became(&self, outcome: DeferredOutcome) -> DeferredToolResult {
        DeferredToolResult {
            message_id: None,
            tool_call_id: self.tool_call_id.clone(),
            tool_name: self.tool_name.clone(),
            approval_id: self.approval_id.clone(),
            outcome,
            is_final: true,
        }
    }

    /// Marks the tool as executed by the provider. The provider then receives the user's response.
    #[must_use]
    pub fn provider_executed(mut self) -> Self {
        self.provider_executed = true;
        self
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}
