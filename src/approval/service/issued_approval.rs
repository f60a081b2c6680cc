//! [`CallToApprove`] and [`IssuedApproval`]: a call whose approval is requested, and the request that
//! the agent emits. [`RequestApprovalError`] is the reason why no approval was requested.
//!
//! # The approvals of a step are inserted at once
//!
//! The agent requests them after the model has finished and all its calls were decided. The store counts the
//! pending records and inserts in one atomic step, so simultaneous steps never exceed a limit together, and none
//! has to be revoked. Its indexes are ordered by expiry: a count begins after the expired records and ends at the
//! limit, and a list of pending approvals skips the expired ones. An insertion is repeated with the same ids if its
//! reply was lost. A step has at most 64 calls. Each call beyond them has one chunk, its error, and 1000 such calls
//! end the model call: a history without any trace of them would let the model make them again, and one with all of
//! them has no bound. A response that is not read to its end has not ended well, so its first 64 calls do not run
//! either.
//!
//! # No approval is requested from a client that cannot answer
//!
//! A client of `ai@5` has no part for an approval request, so it shows that the call was not executed. If the
//! request were pending in the ledger, the user could approve it elsewhere, and the tool would run. So the
//! approvals of a turn refuse to request, and the agent can tell the user what it would need. An agent may also
//! request with approvals of its own, of the same ledger. The run writes such a request as a failed call, for the
//! log and so for the response and the stored message. It is revoked by its id before the run writes it. The run
//! begins before its response is read. Therefore the version of the clients is a setting of the chat server, and
//! not of the response that it returns.
//!
//! A request that a newer page of the conversation can answer stays pending. An older page that is sent the stored
//! message reads its call without a result.

use super::inbox::{MAX_AUDIENCE_BYTES, MAX_AUDIENCES};
use crate::UserText;
use crate::approval::changed_input::MAX_INPUT_BYTES;
use crate::approval::store::LedgerStoreError;
use crate::approval::{InexactInputError, OuterCall, RecordId};
use crate::event::{AgentEvent, ApprovalRequestDetails};
use crate::id::{ApprovalId, ToolCallId, log_causes};
use crate::json::{Json, JsonError};

/// A tool call whose approval is requested with
/// [`ChatApprovals::request_approvals`](super::ChatApprovals::request_approvals).
#[derive(Clone, PartialEq)]
pub struct CallToApprove {
    pub(super) tool_call_id: ToolCallId,
    pub(super) tool_name: Box<str>,
    pub(super) input: Json,
    pub(super) description: Option<Box<str>>,
    pub(super) provider_executed: bool,
    pub(super) outer: Option<OuterCall>,
}

debug_without_content!(CallToApprove { tool_call_id, tool_name, provider_executed });

impl CallToApprove {
    /// Creates a call of this tool. The user reads the name of the tool and the beginning of the
    /// input.
    pub fn new(
        tool_call_id: impl Into<ToolCallId>,
        tool_name: impl Into<Box<str>>,
        input: Json,
    ) -> Self {
        CallToApprove {
            tool_call_id: tool_call_id.into(),
            tool_name: tool_name.into(),
            input,
            description: None,
            provider_executed: false,
            outer: None,
        }
    }

    /// Sets the description that the user reads.
    #[must_use]
    pub fn with_description(mut self, description: impl Into<Box<str>>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// Declares that the provider executes the call, as
    /// [`request_provider_approval`](super::ChatApprovals::request_provider_approval) does.
    #[must_use]
    pub fn provider_executed(mut self) -> Self {
        self.provider_executed = true;
        self
    }

    /// Sets the call inside which this one is made. The ledger keeps its state until
    /// [`ChatApprovals::take_outer_call`](super::ChatApprovals::take_outer_call). A newer message of the
    /// user closes such a request in any case.
    #[must_use]
    pub fn inside(mut self, outer: OuterCall) -> Self {
        self.outer = Some(outer);
        self
    }
}

/// An approval request whose record is stored in the ledger: the data that the client shows to the
/// user.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct IssuedApproval {
    /// The approval id that the answer must carry.
    pub approval_id: ApprovalId,
    /// The id of the record in the ledger.
    pub record: RecordId,
    /// The data that the client shows beside the tool call.
    pub descriptor: Json,
    /// The description of the call, if the host has given one.
    pub description: Option<Box<str>>,
}

debug_without_content!(IssuedApproval { approval_id, record });

/// The reason why no approval was requested.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestApprovalError {
    /// The client would show an input that differs from the one that the tool would receive, or the
    /// input is too long. The host must report the error to the model, as for any input that a tool
    /// does not accept.
    #[error("the input of a call that needs approval: {0}")]
    InexactInput(#[from] InexactInputError),
    /// A text of the request cannot be written as [`Json`].
    #[error("the question cannot be sent: {0}")]
    Descriptor(#[from] JsonError),
    /// The toolbox has no tool with this name.
    #[error(
        "`Approvals` has no tool `{0}`: add `.tool(\"{0}\", description, &input_schema)` to its \
         `ToolList`, or return the tool from `Toolbox::tool`"
    )]
    UnknownTool(Box<str>),
    /// The approval id cannot be created: the keys do not hold the key of the record.
    #[error("the approval id cannot be sealed")]
    NoKey,
    /// Too many approval requests of the chat or of its owner are pending.
    #[error("{limit} approval requests are pending; `ApprovalLimits::{setting}` allows more")]
    TooManyPending {
        /// The limit.
        limit: usize,
        /// The setting of [`ApprovalLimits`](super::ApprovalLimits) that allows more.
        setting: &'static str,
    },
    /// The description is longer than
    /// [`ApprovalLimits::with_max_description_bytes`](super::ApprovalLimits::with_max_description_bytes)
    /// allows.
    #[error(
        "the description of the call is longer than {limit} bytes; \
         `ApprovalLimits::with_max_description_bytes` allows more"
    )]
    DescriptionTooLong {
        /// The limit.
        limit: usize,
    },
    /// [`Approvals::with_audiences`](super::Approvals::with_audiences) has named too many audiences, or too
    /// long ones.
    #[error(
        "`Approvals::with_audiences` named more than {MAX_AUDIENCES} audiences for one request, or one of \
         more than {MAX_AUDIENCE_BYTES} bytes"
    )]
    TooManyAudiences,
    /// The state of the [outer call](OuterCall) is longer than a record may be.
    #[error("the state of an agent that asks is longer than {MAX_INPUT_BYTES} bytes")]
    StateTooLong,
    /// Nothing keeps the state of the outer call: the approvals are stateless.
    #[error("an agent inside a call cannot ask: it needs a ledger, as `Approvals::new` has one")]
    NeedsLedger,
    /// The client of the response cannot answer approval requests: its version does not know them
    /// ([`Version::V5`](crate::chunk::Version::V5)), or they are
    /// [disabled](super::ChatApprovals::without_requests).
    #[error("the client of this response cannot answer approval requests")]
    NotAnswerable,
    /// The ledger failed. An approval request that is not in the ledger cannot be approved.
    #[error(transparent)]
    Ledger(#[from] LedgerStoreError),
}

impl RequestApprovalError {
    /// Returns the error text of the call, which the model and the user read.
    pub fn error_text(&self) -> String {
        match self {
            RequestApprovalError::InexactInput(error) => error.to_string(),
            RequestApprovalError::TooManyPending { .. } => UserText::TooManyPending.to_string(),
            RequestApprovalError::DescriptionTooLong { .. } => {
                UserText::DescriptionTooLong.to_string()
            }
            RequestApprovalError::NotAnswerable => UserText::NotAnswerable.to_string(),
            _ => UserText::NotRequested.to_string(),
        }
    }
}

impl IssuedApproval {
    /// Returns the event that the agent must emit for this approval request.
    pub fn event(&self, tool_call_id: ToolCallId) -> AgentEvent {
        AgentEvent::ApprovalRequested {
            tool_call_id,
            approval_id: self.approval_id.clone(),
            details: Some(self.details()),
        }
    }

    /// Returns the details of the event: the descriptor, and the description as the reason.
    pub fn details(&self) -> Box<ApprovalRequestDetails> {
        Box::new(ApprovalRequestDetails {
            descriptor: Some(self.descriptor.clone()),
            reason: self.description.as_deref().map(|text| text.to_owned().into()),
            signature: None,
        })
    }
}

/// Returns the event that an agent emits for a call whose approval was requested.
pub(super) fn event_of_request(
    call: &ToolCallId,
    issued: Result<IssuedApproval, RequestApprovalError>,
) -> AgentEvent {
    match issued {
        Ok(issued) => issued.event(call.clone()),
        Err(error) => AgentEvent::tool_failed(call.clone(), error.error_text()),
    }
}

/// Logs the approvals that could not be requested: one line, with the first error.
pub fn log_refused(issued: &[Result<IssuedApproval, RequestApprovalError>]) {
    let mut errors = issued.iter().filter_map(|issued| issued.as_ref().err());
    if let Some(error) = errors.next() {
        let calls = errors.count() + 1;
        tracing::warn!(
            calls,
            error = log_causes(error),
            "the approvals of tool calls could not be requested"
        );
    }
}
