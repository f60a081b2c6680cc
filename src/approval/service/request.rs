//! [`ChatApprovals::request_approval`] requests an approval; [`IssuedApproval`] is the request that
//! the agent emits.

use super::{AuditEventKind, ChatApprovals, random_bytes};
use crate::approval::store::LedgerStoreError;
use crate::approval::{DefinitionDigest, InexactInputError, NewApprovalRequest, RecordId};
use crate::event::{AgentEvent, ApprovalRequestDetails};
use crate::id::{ApprovalId, MessageId, ToolCallId};
use crate::json::{Json, JsonError};

/// An approval request whose record is stored in the ledger: the data that the client shows to the
/// user.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct IssuedApproval {
    /// The approval id that the answer must carry.
    pub approval_id: ApprovalId,
    /// The id of the record in the ledger.
    pub record: RecordId,
    /// The data that the client shows beside the tool call.
    pub descriptor: Json,
}

/// The reason why no approval was requested.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestApprovalError {
    /// The client would show another input than the one that would be executed. The host must
    /// report the error to the model, as for any input that a tool does not accept.
    #[error("the input of a call that needs approval: {0}")]
    NotShownAsIs(#[from] InexactInputError),
    /// The descriptor holds a text that cannot be sent.
    #[error("the question cannot be sent: {0}")]
    Descriptor(#[from] JsonError),
    /// The toolbox has no tool with this name.
    #[error("there is no tool of this name")]
    UnknownTool,
    /// The ledger failed. An approval request that is not in the ledger cannot be approved.
    #[error(transparent)]
    Ledger(#[from] LedgerStoreError),
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

    /// Returns the details of the event, which hold the descriptor.
    pub fn details(&self) -> Box<ApprovalRequestDetails> {
        Box::new(ApprovalRequestDetails {
            descriptor: Some(self.descriptor.clone()),
            signature: None,
        })
    }
}

impl ChatApprovals {
    /// Requests the approval of the user for a tool call of this message.
    ///
    /// The user reads `description`, or if it is `None`, the name of the tool and its input. The
    /// approval request is stored in the ledger before this returns.
    ///
    /// # Errors
    /// - [`RequestApprovalError::NotShownAsIs`] if a client would show another input.
    /// - [`RequestApprovalError::Descriptor`] if a text cannot be sent.
    /// - [`RequestApprovalError::UnknownTool`] if the toolbox has no such tool.
    /// - [`RequestApprovalError::Ledger`] if the ledger fails.
    pub async fn request_approval(
        &self,
        message_id: &MessageId,
        tool_call_id: &ToolCallId,
        tool_name: &str,
        input: &Json,
        description: Option<&str>,
    ) -> Result<IssuedApproval, RequestApprovalError> {
        let tool = self.inner.toolbox.tool(tool_name).ok_or(RequestApprovalError::UnknownTool)?;
        let (definition, approval_ttl) = (tool.definition, tool.time_to_answer);
        let call = (message_id, tool_call_id, tool_name);
        let mut request = self.new_request(call, input, description, definition);
        request.idempotent = tool.idempotent;
        request.time_to_answer = approval_ttl.unwrap_or(request.time_to_answer);
        self.issue(request).await
    }

    /// Requests the approval of the user for a tool call that the provider executes.
    ///
    /// The answer is returned once, as
    /// [`DeferredOutcome::ForwardToProvider`](crate::approval::DeferredOutcome::ForwardToProvider).
    /// No tool is executed here. The toolbox is not called, neither now nor when the answer
    /// arrives: the tool belongs to the provider. When the answer arrives,
    /// [`Approvals::authorize_decision`](super::Approvals::authorize_decision) decides who may
    /// approve.
    ///
    /// # Errors
    /// As for [`request_approval`](Self::request_approval), but never for an unknown tool.
    pub async fn request_provider_approval(
        &self,
        message_id: &MessageId,
        tool_call_id: &ToolCallId,
        tool_name: &str,
        input: &Json,
        description: Option<&str>,
    ) -> Result<IssuedApproval, RequestApprovalError> {
        let definition = DefinitionDigest::new(tool_name, "", &Json::null());
        let call = (message_id, tool_call_id, tool_name);
        let mut request = self.new_request(call, input, description, definition);
        request.provider_executed = true;
        self.issue(request).await
    }

    fn new_request(
        &self,
        (message_id, tool_call_id, tool_name): (&MessageId, &ToolCallId, &str),
        input: &Json,
        description: Option<&str>,
        definition: DefinitionDigest,
    ) -> NewApprovalRequest {
        NewApprovalRequest {
            requester: self.owner.clone(),
            chat_id: self.chat.clone(),
            message_id: message_id.clone(),
            tool_call_id: tool_call_id.clone(),
            tool_name: tool_name.into(),
            definition,
            input: input.clone(),
            provider_executed: false,
            idempotent: false,
            description: description.map(Into::into),
            time_to_answer: self.inner.approval_ttl,
        }
    }

    /// Stores the record of an approval request in the ledger and creates its approval id.
    async fn issue(
        &self,
        request: NewApprovalRequest,
    ) -> Result<IssuedApproval, RequestApprovalError> {
        let inner = &self.inner;
        let now = inner.ledger.load(&[]).await?.now;
        let record = request.into_record(&inner.keys, RecordId::from_bytes(random_bytes()), now)?;
        // Never `None`: the record was made with the active key of the same key ring.
        let approval_id =
            record.approval_id(&inner.keys, now).ok_or(RequestApprovalError::UnknownTool)?;
        let descriptor = record.descriptor(now)?;
        if !inner.ledger.insert(&record).await? {
            return Err(LedgerStoreError::new("128 random bits were drawn twice").into());
        }
        let expires_at = record.expires_at;
        inner.audit_record(now, &record, &self.principal, AuditEventKind::Requested { expires_at });
        Ok(IssuedApproval { approval_id, record: record.id, descriptor })
    }
}
