//! [`Turn`]: the input of an agent for one turn.

use std::sync::Arc;

use futures_util::FutureExt;

use crate::Chat;
use crate::log::turn_io::CallAgent;
use ui_message_stream::approval::store::LedgerStoreError;
use ui_message_stream::approval::{
    Approvals, ChatApprovals, DeferredOutcome, DeferredToolResult, DeferredToolResults,
    PendingToolCall, Principal,
};
use ui_message_stream::id::MessageId;
use ui_message_stream::model::{ToModelMessages, Usage, UsageMetadata};
use ui_message_stream::request::ChatRequest;
use ui_message_stream::retry::{MAX_FAILURES, repeat};

/// The input of an agent for one turn. It contains the conversation and the results of earlier tool
/// calls, and it can request approvals.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use futures::stream;
/// use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
/// use ui_message_stream_chat::{ChatServer, Turn};
/// use ui_message_stream::request::Limits;
/// use ui_message_stream::response::ResponseOutcome;
/// use ui_message_stream::{AgentEvent, ChatRequest};
///
/// // The last message of the history is the user's new one.
/// let agent = |turn: Turn| {
///     let user = turn.principal.id().unwrap_or("guest").to_owned();
///     let messages = turn.chat.messages.len();
///     stream::iter([AgentEvent::text(format!("{user}, this is message {messages}"))])
/// };
/// let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox));
///
/// let body = br#"{"id": "c", "messages": [
///     {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}
/// ]}"#;
/// let request = ChatRequest::parse(body, &Limits::default())?;
/// let response = chats.complete_response(&Principal::new("ada"), request).await?;
/// assert_eq!(response.outcome, ResponseOutcome::Finished);
/// let message = serde_json::to_string(&response.message)?;
/// assert!(message.contains("ada, this is message 1"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Turn {
    /// The owner of the conversation.
    pub principal: Principal,
    /// The conversation as the server stores it. It includes the user's new message and the results
    /// of earlier calls.
    pub chat: Arc<Chat>,
    /// The id of the message that the agent writes: a new message, or the one that it continues.
    pub message_id: MessageId,
    /// The results of the calls that earlier turns left open. If the user sent a new message
    /// instead of waiting, some of these calls may still be
    /// [executing](ui_message_stream::approval::DeferredOutcome::Executing). The results also contain the
    /// user's decisions on calls that the [provider
    /// executes](ui_message_stream::approval::DeferredOutcome::ForwardToProvider). The first model call of this
    /// turn must send these decisions.
    pub deferred: DeferredToolResults,
    /// Requests approvals from the user in this conversation, for calls of the message that the
    /// agent writes:
    /// [`request_approval_of`](ChatApprovals::request_approval_of).
    pub approvals: ChatApprovals,
    /// The posted request, with the application's own fields. `None` if the turn was started by a
    /// decision that did not come in a chat request, as with
    /// [`ChatServer::decide`](crate::ChatServer::decide), or if it continues what a failed
    /// server has left.
    pub request: Option<Arc<ChatRequest>>,
}

impl Turn {
    /// Creates a turn for an agent that is used without a [`ChatServer`](crate::ChatServer), on
    /// messages that the host stores itself.
    ///
    /// `chat` holds the messages, with the user's new message and the results of earlier calls.
    /// `message_id` is the id of the message that the agent writes: a new id, or the id of the
    /// assistant message in `chat` that it continues. Approval requests are created in the name of
    /// the owner of `chat`. The turn has no [`deferred`](Self::deferred) results and no
    /// [`request`](Self::request). Set these fields if the host has them. Call
    /// [`ChatAgent::validate_request`](crate::ChatAgent::validate_request) for the request first:
    /// the turn of an invalid request fails.
    ///
    /// [`ChatAgent::respond`](crate::ChatAgent::respond) runs the turn and returns its events.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// use futures::StreamExt;
    /// use ui_message_stream::UiMessage;
    /// use ui_message_stream_agent::Agent;
    /// use ui_message_stream::approval::{Approvals, Principal};
    /// use ui_message_stream_chat::{Chat, ChatAgent, Recorder, Turn};
    /// # use ui_message_stream::AgentEvent;
    /// # use ui_message_stream::chunk::FinishReason;
    /// # use ui_message_stream::model::{Model, ModelEvent, ModelRequest, ModelStream};
    /// # #[derive(Debug)] struct MyModel;
    /// # impl Model for MyModel {
    /// #     fn call(&self, _: ModelRequest) -> ModelStream {
    /// #         let text = Ok(ModelEvent::Event(AgentEvent::text("Hello, Ada.")));
    /// #         Box::pin(futures::stream::iter([text, Ok(ModelEvent::Finished(FinishReason::Stop))]))
    /// #     }
    /// # }
    ///
    /// let agent = Agent::new(MyModel);
    /// let approvals = Approvals::new(agent.clone());
    ///
    /// // The messages come from your own database.
    /// let stored = r#"{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "I am Ada."}]}"#;
    /// let mut chat = Chat::new("chat", Principal::new("ada"));
    /// chat.messages.push(UiMessage::parse(stored)?);
    ///
    /// let mut events = agent.respond(Turn::new(chat, "m2", &approvals));
    /// let mut recorder = Recorder::new("m2");
    /// while let Some(event) = events.next().await {
    ///     recorder.handle_event(&event?);
    /// }
    /// let recorded = recorder.finish().expect("the agent emits events");
    /// let to_store = serde_json::to_string(&recorded.message)?;
    /// assert!(to_store.contains("Hello, Ada."));
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(
        chat: impl Into<Arc<Chat>>,
        message_id: impl Into<MessageId>,
        approvals: &Approvals,
    ) -> Self {
        let chat = chat.into();
        let message_id = message_id.into();
        Turn {
            principal: chat.owner.clone(),
            deferred: DeferredToolResults::default(),
            approvals: approvals.for_chat(&chat.owner, &chat.id).in_message(message_id.clone()),
            message_id,
            request: None,
            chat,
        }
    }

    /// Creates the turn of a model call of a run. `deferred` are the results of the answers that the
    /// run has redeemed.
    pub(crate) fn of_run(
        call: CallAgent,
        deferred: DeferredToolResults,
        request: Option<Arc<ChatRequest>>,
        approvals: &Approvals,
        has_approvals: bool,
    ) -> Self {
        let CallAgent { chat, message_id, sent, not_recorded, results: recorded, .. } = call;
        let mut results = sent;
        let is_new = |results: &[DeferredToolResult], other: &DeferredToolResult| {
            !results.iter().any(|result| result.approval_id == other.approval_id)
        };
        // The approvals that the provider has, or that another turn has lost.
        let mut forwarded = chat.forwarded_approvals();
        forwarded.retain(|forwarded| is_new(&results, forwarded));
        results.extend(forwarded);
        // An approval is sent only if this call has claimed it.
        results.extend(recorded.into_iter().chain(not_recorded).filter(|result| {
            !matches!(result.outcome, DeferredOutcome::ForwardToProvider { approved: true, .. })
        }));
        let mut turn = Turn::new(chat, message_id, approvals);
        if !has_approvals {
            turn.approvals = turn.approvals.without_requests();
        }
        Turn { deferred: deferred.with_results(results), request, ..turn }
    }

    /// Returns the [deferred results](Self::deferred) with what the ledger knows now of the calls that were
    /// open when the turn began: one that was running may have a result, for example. The turn begins with
    /// the newest results.
    ///
    /// An agent that calls the model several times in a turn passes them to
    /// [`with_deferred`](ToModelMessages::with_deferred) for each further call, as `Agent` does.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the ledger fails for half a minute. The model must not be called then: it would
    /// read that a call was not executed which may run.
    pub async fn newest_results(&self) -> Result<DeferredToolResults, LedgerStoreError> {
        let results = &self.deferred;
        let open = self.open_calls();
        let read = || self.approvals.with_newest_results(results.clone(), &open).boxed();
        repeat("look up open calls", MAX_FAILURES, read).await
    }

    /// The calls that wait for a decision or are executed. Of its own calls the provider says it.
    pub(super) fn open_calls(&self) -> Vec<PendingToolCall> {
        let mut open = self.chat.open_approvals();
        open.retain(|call| !call.provider_executed);
        open
    }

    /// Returns the results of the calls whose approval responses were not accepted.
    ///
    /// These calls are still open in the history. The messages for the model must state that they
    /// were not executed. [`to_model_messages`](Self::to_model_messages) adds this, except for a call
    /// that the chat does not hold, for example after the server has lost the chat and [imported its
    /// texts](crate::HistoryImport::Texts).
    pub fn not_executed(&self) -> impl Iterator<Item = &DeferredToolResult> {
        self.deferred.results().iter().filter(|result| !result.is_final)
    }

    /// Returns a converter from UI messages to model messages. The converter adds the [deferred
    /// results](Self::deferred), the [call outcomes](Chat::call_outcomes) and the marks of
    /// [unverified calls](Chat::is_unverified), which the UI messages do not contain. Pass it the
    /// messages of the [chat](Self::chat).
    ///
    /// ```
    /// use ui_message_stream_chat::Turn;
    /// use ui_message_stream::model::ModelMessage;
    ///
    /// fn prompt(turn: &Turn) -> Vec<ModelMessage> {
    ///     turn.to_model_messages().model_messages(&turn.chat.messages)
    /// }
    /// # let _ = prompt;
    /// ```
    pub fn to_model_messages(&self) -> ToModelMessages<'_> {
        ToModelMessages::new()
            .with_deferred(&self.deferred)
            .with_call_outcomes(&self.chat.call_outcomes)
            .with_unverified(|message, call| self.chat.is_unverified(message, call))
    }

    /// Returns the token usage that the message of this turn already records, zero if it records
    /// none. A turn that continues a message adds its own usage to it.
    pub fn prior_usage(&self) -> Usage {
        let message = self.chat.message(&self.message_id);
        let metadata = message.and_then(|message| message.metadata.as_ref());
        let recorded = metadata.and_then(|metadata| metadata.decode::<UsageMetadata>().ok());
        recorded.map_or_else(Usage::default, |recorded| recorded.usage)
    }
}
