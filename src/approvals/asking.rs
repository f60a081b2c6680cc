//! Asking a person: [`ChatApprovals::ask`], and what an agent says then.

use super::{ChatApprovals, Happened, random};
use crate::approval::{
    DefinitionDigest, InputNotShownAsIs, Question, RecordId, SignCallError, SignedCall,
};
use crate::event::{AgentEvent, QuestionDetails};
use crate::id::{ApprovalId, MessageId, ToolCallId};
use crate::json::{Json, JsonError};
use crate::ledger_store::LedgerStoreError;

/// A question that was asked: what the person is to see of it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Asked {
    /// Names the question.
    pub approval_id: ApprovalId,
    /// Names its record.
    pub record: RecordId,
    /// What is shown beside the call.
    pub descriptor: Json,
    /// The AI SDK's signature, [where that is set](super::Approvals::with_ai_sdk_signature).
    pub signature: Option<String>,
}

/// Why nobody was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The person would see another input than the one that would run. The model is to be told, as
    /// of any input that a tool does not take.
    #[error("the input of a call that needs approval: {0}")]
    NotShownAsIs(#[from] InputNotShownAsIs),
    /// A text in it cannot be sent.
    #[error("the question cannot be sent: {0}")]
    Descriptor(#[from] JsonError),
    /// The AI SDK's signature does not fit a call of these names.
    #[error("the question cannot be signed: {0}")]
    Signature(#[from] SignCallError),
    /// There is no such tool.
    #[error("there is no tool of this name")]
    UnknownTool,
    /// The ledger does not answer: what it does not have, nobody could approve.
    #[error(transparent)]
    Ledger(#[from] LedgerStoreError),
}

impl Asked {
    /// What the agent says then.
    pub fn event(&self, tool_call_id: ToolCallId) -> AgentEvent {
        AgentEvent::ApprovalRequested {
            tool_call_id,
            approval_id: self.approval_id.clone(),
            details: Some(self.details()),
        }
    }

    /// What comes with the question.
    pub fn details(&self) -> Box<QuestionDetails> {
        Box::new(QuestionDetails {
            descriptor: Some(self.descriptor.clone()),
            signature: self.signature.clone().map(Into::into),
        })
    }
}

impl ChatApprovals {
    /// Asks the person about a call of this message.
    ///
    /// `description` is what the person reads; without one, the tool's name and its input.
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn ask(
        &self,
        message_id: &MessageId,
        tool_call_id: &ToolCallId,
        tool_name: &str,
        input: &Json,
        description: Option<&str>,
    ) -> Result<Asked, AskError> {
        let tool = self.desk.toolbox.tool(tool_name).ok_or(AskError::UnknownTool)?;
        let (definition, time_to_answer) = (tool.definition, tool.time_to_answer);
        let call = (message_id, tool_call_id, tool_name);
        let mut question = self.question(call, input, description, definition);
        question.idempotent = tool.idempotent;
        question.time_to_answer = time_to_answer.unwrap_or(question.time_to_answer);
        self.ask_about(question).await
    }

    /// Asks the person about a call that the provider runs, if the person says yes: the answer comes
    /// back as [`DeferredOutcome::ForProvider`](crate::approval::DeferredOutcome::ForProvider), once, and nothing is run here. The toolbox is not
    /// asked about the tool, neither now nor when the answer comes: it is the provider's. Who may
    /// say yes, [`Approvals::authorize_decision`](super::Approvals::authorize_decision) is asked then.
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn ask_for_provider(
        &self,
        message_id: &MessageId,
        tool_call_id: &ToolCallId,
        tool_name: &str,
        input: &Json,
        description: Option<&str>,
    ) -> Result<Asked, AskError> {
        let definition = DefinitionDigest::of(tool_name, "", &Json::null());
        let call = (message_id, tool_call_id, tool_name);
        let mut question = self.question(call, input, description, definition);
        question.provider_executed = true;
        self.ask_about(question).await
    }

    fn question(
        &self,
        (message_id, tool_call_id, tool_name): (&MessageId, &ToolCallId, &str),
        input: &Json,
        description: Option<&str>,
        definition: DefinitionDigest,
    ) -> Question {
        Question {
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
            time_to_answer: self.desk.time_to_answer,
        }
    }

    async fn ask_about(&self, question: Question) -> Result<Asked, AskError> {
        let desk = &self.desk;
        let now = desk.ledger.load(&[]).await?.now;
        let record = question.into_record(&desk.keys, RecordId::from_bytes(random()), now)?;
        // The key that made the record is there to seal it.
        let approval_id = record.approval_id(&desk.keys, now).ok_or(AskError::UnknownTool)?;
        let descriptor = record.descriptor(now)?;
        let signature = desk.signature.as_ref().map(|(signature, form)| {
            let call = SignedCall {
                approval_id: &approval_id,
                tool_call_id: &record.tool_call_id,
                tool_name: &record.tool_name,
                input: &record.input,
            };
            signature.sign(*form, call)
        });
        let signature = signature.transpose()?;
        if !desk.ledger.insert(&record).await? {
            return Err(LedgerStoreError::new("128 random bits were drawn twice").into());
        }
        let expires_at = record.expires_at;
        desk.tell_at(now, &record, &self.principal, Happened::Requested { expires_at });
        Ok(Asked { approval_id, record: record.id, descriptor, signature })
    }
}
