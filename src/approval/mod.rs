//! Asking a person, and what of the answers may be acted on.
//!
//! ```text
//! Question ──▶ ApprovalRecord ──▶ ApprovalId ──▶ the client ──▶ messages ──▶ ResumePlan
//!                   │   the ledger keeps it        what it says                  │ redeem
//!                   └────────────────────▶ claim, deny ◀── wishes ── Redemption ◀┘
//!                                               └── outcomes ──▶ DeferredToolResults ──▶ agent
//! ```
//!
//! A client answers inside the tool parts of the history that it sends back, and a history can be
//! forged. So [`ResumePlan`] only reads: the answers, the outputs of client-executed tools, and the
//! questions still open. Whether an answer counts is said by what the server has itself:
//!
//! - the approval's id is a token that nobody else can make, bound to person, chat, call, tool,
//!   definition, input and times;
//! - the [`ApprovalRecord`] holds what was asked, and the tool runs with that input;
//! - the [ledger's rules](Transition) let a yes claim the record once, before the tool runs, and keep
//!   its outcome for whoever asks again.
//!
//! [`Redemption`] puts them together: it says what is to be looked up and asked for, and what became
//! of each answer. What may not run is refused in one way, whatever the cause: nothing is consumed,
//! and no chat is locked. A denial needs no proof, since nothing runs.
//!
//! A host that keeps its own record of open calls, without ids that prove anything, holds the answers
//! against that instead: [`ResumePlan::settle`].
//!
//! Left out here: where records are kept (`ledger_store`) and running the
//! tools (`approvals`).

mod ai_sdk_signature;
mod ask;
mod canonical_json;
mod deferred;
mod key_ring;
mod ledger;
mod principal;
mod record;
mod redeem;
mod resume;
mod time;
mod token;

use serde::{Deserialize, Serialize};

pub use self::ai_sdk_signature::{
    AiSdkSignature, SecretTooShort, SignCallError, SignatureForm, SignedCall, VerifySignatureError,
};
pub use self::ask::Question;
pub use self::canonical_json::{CanonicalJson, InputNotShownAsIs};
pub use self::deferred::{DeferredOutcome, DeferredToolResult, DeferredToolResults, HostDecisions};
pub use self::key_ring::{KeyRing, KeyRingError};
pub use self::ledger::{Claim, ClaimAnswer, ClaimantAnswer, DenyAnswer, Transition};
pub use self::principal::Principal;
pub use self::record::{
    ApprovalRecord, ApprovalState, ApprovalStatus, ClaimantId, Decision, DefinitionDigest,
    HexError, RecordId, Revocation, ToolOutcome,
};
pub use self::redeem::{Answered, PersonsDecision, Redemption, Refusal, RefusalCause, Wish};
pub use self::resume::ResumePlan;
pub use self::time::UnixMillis;

use crate::id::{ApprovalId, ToolCallId};
use crate::json::Json;

/// What a person reads of a call that may not run, whatever the cause is.
pub const REFUSED: &str = "This tool call was not executed.";

/// What a person reads of a call that nobody answered in time.
pub const EXPIRED: &str = "This tool call was not executed: nobody approved it in time.";

/// What a person reads of a call that was taken back before it was answered.
pub const REVOKED: &str = "This tool call was not executed: it is no longer permitted.";

/// What a person reads of a call whose outcome was lost.
pub const OUTCOME_UNKNOWN: &str =
    "It is not known whether this tool call was executed. Verify before repeating it.";

/// The error text of a tool that failed without a text for the user and the model.
pub const TOOL_FAILED: &str = "The tool failed.";

/// A question to a person that has no answer yet, as a client's history holds it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ApprovalRequest {
    /// Names the question.
    pub approval_id: ApprovalId,
    /// Names the call.
    pub tool_call_id: ToolCallId,
    /// Which tool.
    pub tool_name: Box<str>,
    /// The input, as the client holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Json>,
    /// Whether the provider is to run the tool.
    #[serde(skip_serializing_if = "is_false")]
    pub provider_executed: bool,
}

/// A person's answer to a question, as a client's history holds it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ApprovalResponse {
    /// Names the question.
    pub approval_id: ApprovalId,
    /// Names the call.
    pub tool_call_id: ToolCallId,
    /// Which tool.
    pub tool_name: Box<str>,
    /// The input, as the client holds it. It never runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Json>,
    /// Yes or no.
    pub approved: bool,
    /// Why, in the person's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether the provider is to run the tool.
    #[serde(skip_serializing_if = "is_false")]
    pub provider_executed: bool,
}

/// A result that a client's history holds for a call, perhaps given by the client itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ClientOutput {
    /// Names the call.
    pub tool_call_id: ToolCallId,
    /// What came of it.
    #[serde(flatten)]
    pub result: ClientResult,
}

/// What came of a call that a client ran.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ClientResult {
    /// What it returned.
    Output(Json),
    /// Why it failed.
    ErrorText(String),
}

/// A call that the host left open when a response ended, from the host's own record.
///
/// ```
/// use ui_message_stream::Json;
/// use ui_message_stream::approval::OpenCall;
///
/// let asked = OpenCall::awaiting_approval("ap_1", "call_1", "delete_file", Json::of("notes.txt")?);
/// let left = OpenCall::left_to_client("call_2", "get_location", Json::of(&())?);
/// # let _ = (asked, left);
/// # Ok::<(), ui_message_stream::json::JsonError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct OpenCall {
    /// Names the call.
    pub tool_call_id: ToolCallId,
    /// Which tool.
    pub tool_name: Box<str>,
    /// The input that the model gave.
    pub input: Json,
    /// The question that a person was asked. Without one the call was left to the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_id: Option<ApprovalId>,
    /// Whether the provider is to run the tool.
    #[serde(default, skip_serializing_if = "is_false")]
    pub provider_executed: bool,
}

impl OpenCall {
    /// A call that a person was asked about.
    pub fn awaiting_approval(
        approval_id: impl Into<ApprovalId>,
        tool_call_id: impl Into<ToolCallId>,
        tool_name: impl Into<Box<str>>,
        input: Json,
    ) -> Self {
        OpenCall {
            approval_id: Some(approval_id.into()),
            ..Self::left_to_client(tool_call_id, tool_name, input)
        }
    }

    /// A call that the client runs. Its id must be unique in the chat: the client answers in the
    /// first message that has it, and within a message a repeated one goes out under another id.
    pub fn left_to_client(
        tool_call_id: impl Into<ToolCallId>,
        tool_name: impl Into<Box<str>>,
        input: Json,
    ) -> Self {
        OpenCall {
            tool_call_id: tool_call_id.into(),
            tool_name: tool_name.into(),
            input,
            approval_id: None,
            provider_executed: false,
        }
    }

    /// What became of it in the end.
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

    /// The provider runs the tool: it is handed the person's answer.
    #[must_use]
    pub fn provider_executed(mut self) -> Self {
        self.provider_executed = true;
        self
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}
