//! Makes the record of an approval request again from the approval id and the call in the client's
//! history, for a host that keeps no records.
//!
//! The approval id holds the times and a digest over all properties of the request. The properties
//! come from the server (requester, chat, definition of the tool) and from the client (call, tool,
//! input). A record is used only if the digest over them is the one in the id.

use super::new_request::default_description;
use super::token::Token;
use super::{
    ApprovalRecord, ApprovalState, CanonicalJson, DefinitionDigest, EditableInput,
    InexactInputError, KeyRing, OnNewMessage, Principal, UnixMillis, UnverifiedApprovalRequest,
    UnverifiedApprovalResponse,
};
use crate::id::{ApprovalId, ChatId, MessageId, ToolCallId};
use crate::json::{Format, Json};

/// A call with an approval id, as a client sent it.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentCall<'a> {
    pub(super) approval_id: &'a ApprovalId,
    /// The id of the call on the wire.
    pub(super) tool_call_id: &'a ToolCallId,
    pub(super) tool_name: &'a str,
    pub(super) input: Option<&'a Json>,
    pub(super) provider_executed: bool,
}

/// What the server knows about a request and about the tool of a call.
#[derive(Debug, Clone)]
pub(super) struct KnownFacts {
    pub(super) requester: Principal,
    pub(super) chat_id: ChatId,
    /// The message of the call.
    pub(super) message_id: MessageId,
    pub(super) definition: DefinitionDigest,
    pub(super) idempotent: bool,
    pub(super) on_new_message: OnNewMessage,
    pub(super) decided_by_others: bool,
}

impl<'a> SentCall<'a> {
    pub(super) fn answered(response: &'a UnverifiedApprovalResponse) -> Self {
        SentCall {
            approval_id: &response.approval_id,
            tool_call_id: &response.tool_call_id,
            tool_name: &response.tool_name,
            input: response.input.as_ref(),
            provider_executed: response.provider_executed,
        }
    }

    pub(super) fn requested(request: &'a UnverifiedApprovalRequest) -> Self {
        SentCall {
            approval_id: &request.approval_id,
            tool_call_id: &request.tool_call_id,
            tool_name: &request.tool_name,
            input: request.input.as_ref(),
            provider_executed: request.provider_executed,
        }
    }

    /// Makes the record again. Returns `None` unless its approval id was sealed for exactly this
    /// record.
    pub(super) fn reopen(
        self,
        facts: &KnownFacts,
        keys: &KeyRing,
        now: UnixMillis,
    ) -> Option<ApprovalRecord> {
        let token = Token::open(keys, self.approval_id, now)?;
        let sent = self.input?;
        // A host that keeps no records seals the canonical form, and any other the text of the model.
        let inputs = [canonical_input(sent).ok(), Some(sent.clone())].into_iter().flatten();
        // A repeated call id is sent with a hyphen and a number appended.
        let first_id = self.tool_call_id.rsplit_once('-').map(|(id, _)| ToolCallId::from(id));
        let ids = [Some(self.tool_call_id.clone()), first_id];
        let calls = inputs.flat_map(|input| ids.clone().map(|id| Some((id?, input.clone()))));
        let mut records = calls.flatten().map(|(id, input)| self.record(facts, token, id, input));
        records.find(|record| token == record.token())
    }

    fn record(
        self,
        facts: &KnownFacts,
        token: Token,
        tool_call_id: ToolCallId,
        input: Json,
    ) -> ApprovalRecord {
        let (requested_at, expires_at) = token.times();
        ApprovalRecord {
            format: Format::default(),
            id: token.record,
            key_id: token.key_id(),
            requested_at,
            expires_at,
            requester: facts.requester.clone(),
            chat_id: facts.chat_id.clone(),
            message_id: facts.message_id.clone(),
            tool_call_id,
            tool_name: self.tool_name.into(),
            definition: facts.definition,
            provider_executed: self.provider_executed,
            idempotent: facts.idempotent,
            on_new_message: facts.on_new_message,
            decided_by_others: facts.decided_by_others,
            // Nothing keeps a changed input.
            editable: EditableInput::Nothing,
            audience: Vec::new(),
            delivery: None,
            outer: None,
            // What the host described is not known any more. It is not bound to the id.
            description: default_description(self.tool_name, &input),
            input,
            state: ApprovalState::Pending,
        }
    }
}

/// Returns the canonical form of an input, which is the same after a browser has sent it back.
pub(super) fn canonical_input(input: &Json) -> Result<Json, InexactInputError> {
    Ok(Json::parse(CanonicalJson::new(input)?.as_str())?)
}

/// The message of a record that no host stores: decisions come only in chat requests, which hold
/// the message.
pub(super) fn stateless_message_id() -> MessageId {
    MessageId::new("")
}
