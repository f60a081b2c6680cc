//! Approval requests to users, and the checks that decide which approval responses count.
//!
//! ```text
//! NewApprovalRequest ──▶ ApprovalRecord ──▶ ApprovalId ──▶ client ──▶ messages ──▶ ResumePlan
//!                        │ stored in the ledger                                        │ judge
//!                        └────────▶ deny, lapse, claim ◀── Step ── Verdict ◀───────────┘
//!                                        └── outcome_of ──▶ DeferredToolResults ──▶ agent
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
//! `judge` combines the three: it says of each approval response whether it is refused, or which step of
//! its record the ledger takes. `outcome_of` is the outcome after that step. All rejections look the same to the client, for
//! every reason. A rejected response does not change the record: a valid response can still follow,
//! and the chat can continue. A denial needs no proof, because it runs nothing.
//!
//! The types, in the order in which an approval passes them:
//!
//! | type | what it is |
//! |---|---|
//! | [`NewApprovalRequest`] | what is known of a call whose approval is requested |
//! | [`ApprovalRecord`], [`ApprovalState`] | the request as the ledger keeps it, and in which of ten states it is |
//! | `Token` | what an approval id holds, sealed with a [`KeyRing`] |
//! | [`ResumePlan`] | the calls of a history that are still open; nothing in it is verified |
//! | [`UnverifiedApprovalResponse`], [`UnverifiedApprovalRequest`], [`UnverifiedToolOutput`] | what a client claims; none of them has an accessor for an input |
//! | `Answer` | an approval response with its opened token |
//! | `Verdict` | what an answer does, by its record: nothing, a refusal, or a `Step` |
//! | `Step` | deny, lapse or claim |
//! | [`Transition`] | the output of a rule of the ledger, and the next record |
//! | [`Stepped`] | what a decision has done: a [`Claim`] is granted, it counts, or it is refused |
//! | [`RecordedDecision`] | who decided, when, why, and with which input |
//! | [`RejectionReason`] | why a decision does not count; for the audit alone |
//! | [`ToolOutcome`] | what the tool of an approved call has returned |
//! | [`DeferredOutcome`] | what has happened to a call, by its record ([`ApprovalRecord::outcome_at`]), and by the answer if it came too late |
//! | [`DeferredToolResult`], [`DeferredToolResults`] | the outcome of one call, and of all calls, for the page and the model |
//! | [`PendingToolCall`] | a call without a result, in the host's own record |
//!
//! The status that users see, the outcome, the [events](ApprovalEvent) for a notifier and the kind of an audit event are
//! each one match over the state of the record.
//!
//! Alternatively the host keeps its own list of pending calls. The approval ids can then be any
//! strings. Such a host checks the approval responses against its list with [`ResumePlan::settle`].
//!
//! This module does not store records (see `approval::store`) and does not run tools (see
//! `Approvals`).

mod canonical_json;
mod changed_input;
mod decision;
mod deferred;
mod delivery;
mod ids;
mod hidden_characters;
mod history;
#[cfg(feature = "approvals")]
mod judge;
mod key_ring;
mod new_request;
mod outcome;
mod outer_call;
mod pending_call;
mod principal;
mod record;
#[cfg(feature = "approvals")]
mod reopen;
mod resume;
#[cfg(feature = "approvals")]
mod resumed_call;
#[cfg(feature = "approvals")]
mod service;
#[cfg(feature = "approvals")]
pub mod store;
mod time;
mod token;
mod transitions;

pub use self::canonical_json::{CanonicalJson, InexactInputError};
pub use self::changed_input::{APPROVAL_DATA_NAME, ChangedInput, EditableInput, InputError};
pub use self::decision::{ApprovalDecision, OnNewMessage, RecordedDecision, RevocationReason};
pub use self::deferred::{DeferredToolResult, DeferredToolResults, DeferredToolResultsBuilder};
pub use self::delivery::ApprovalEvent;
pub use self::history::{
    ClientToolResult, UnverifiedApprovalRequest, UnverifiedApprovalResponse, UnverifiedToolOutput,
};
pub use self::ids::{DefinitionDigest, HexError, KeyId, LeaseHolderId, RecordId};
pub use self::key_ring::{KeyRing, KeyRingError};
pub use self::new_request::NewApprovalRequest;
pub use self::outcome::{Claim, DeferredOutcome, ToolOutcome};
pub use self::outer_call::OuterCall;
pub use self::pending_call::{CallProgress, PendingToolCall};
pub use self::principal::Principal;
pub use self::record::{ApprovalRecord, ApprovalState, ApprovalStatus, NoticeDelivery};
pub use self::resume::ResumePlan;
#[cfg(feature = "approvals")]
pub use self::resumed_call::ResumedCall;
#[cfg(feature = "approvals")]
pub use self::service::ResolvedRequest;
#[cfg(feature = "approvals")]
pub use self::service::{
    ApprovalLimits, ApprovalNotice, Approvals, ApprovedCall, AuditEvent, AuditEventKind, AuditSink,
    CallToApprove, CallUpdate, ChatApprovals, ClaimedCall, DeferredCall, DeferredCalls,
    EditableToolError, EmptyToolbox, ExpiredApprovals, InFlightCall, InboxQuery, IssuedApproval,
    MessageDecisions, NewEvents, Notifier, PendingApproval, PendingApprovals, Progress,
    RequestApprovalError, RunningCall, RunningCalls, SettledCall, TooManyParts, ToolInfo, ToolList,
    Toolbox, TracingAudit, log_refused,
};
pub use self::time::UnixMillis;
pub use self::transitions::{LeaseResult, RejectionReason, Stepped, Transition};
