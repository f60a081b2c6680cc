//! [`ChatAgent`]: an agent that answers the turns of conversations. [`Turn`] is its input.

use std::pin::Pin;
use std::sync::Arc;

use futures_core::Stream;
use futures_util::StreamExt;

use super::Chat;
use crate::approval::{
    Approvals, ChatApprovals, DeferredToolResult, DeferredToolResults, Principal,
};
use crate::event::AgentEvent;
use crate::id::MessageId;
use crate::json::Json;
use crate::message::UiMessage;
use crate::model::{ToModelMessages, Usage, UsageMetadata};
use crate::request::{ChatRequest, ParseRequestError};
use crate::response::{BoxError, IntoEvent};

/// An agent that answers chat turns.
///
/// [`Agent`](crate::agent::Agent) implements it. Each function that takes a [`Turn`] and returns a
/// stream of events implements it too.
///
/// ```
/// use futures::stream;
/// use ui_message_stream::AgentEvent;
/// use ui_message_stream::chat::{AgentEventStream, ChatAgent, Turn};
///
/// struct Echo;
///
/// impl ChatAgent for Echo {
///     fn respond(&self, turn: Turn) -> AgentEventStream {
///         let text = format!("{} messages so far", turn.chat.messages.len());
///         Box::pin(stream::iter([Ok(AgentEvent::text(text))]))
///     }
/// }
/// ```
///
/// A function around an [`Agent`](crate::agent::Agent) gives it the instructions of each turn, for
/// example `move |turn: Turn| agent.clone().with_instructions(…).respond(turn)`. A function has the
/// default [`validate_request`](Self::validate_request) and
/// [`structured_output`](Self::structured_output). If the agent
/// [accepts client tools](crate::agent::Agent::with_client_tools) or has an
/// [output](crate::agent::Agent::with_output), pass these calls on:
///
/// ```
/// use ui_message_stream::agent::Agent;
/// use ui_message_stream::chat::{AgentEventStream, ChatAgent, Turn};
/// use ui_message_stream::request::ParseRequestError;
/// use ui_message_stream::response::BoxError;
/// use ui_message_stream::{ChatRequest, Json, UiMessage};
///
/// struct AgentPerUser(Agent);
///
/// impl ChatAgent for AgentPerUser {
///     fn validate_request(&self, request: &ChatRequest) -> Result<(), ParseRequestError> {
///         self.0.validate_request(request)
///     }
///
///     fn structured_output(&self, message: &UiMessage) -> Option<Result<Json, BoxError>> {
///         self.0.structured_output(message)
///     }
///
///     fn respond(&self, turn: Turn) -> AgentEventStream {
///         let user = turn.principal.id().unwrap_or("a guest");
///         self.0.clone().with_instructions(format!("You help {user}.")).respond(turn)
///     }
/// }
/// ```
pub trait ChatAgent: Send + Sync + 'static {
    /// Checks whether the agent can answer this request. It is called before the request changes
    /// the stored conversation. The default accepts every request.
    ///
    /// # Errors
    /// The reason, which is sent to the client: over HTTP with status 413 if
    /// [`ParseRequestError::is_limit`] is true, and with status 400 otherwise.
    fn validate_request(&self, _request: &ChatRequest) -> Result<(), ParseRequestError> {
        Ok(())
    }

    /// Returns the structured output of a message that this agent wrote, or an error if the message
    /// does not contain valid output. Returns `None` if the agent does not produce structured
    /// output, which is the default.
    fn structured_output(&self, _message: &UiMessage) -> Option<Result<Json, BoxError>> {
        None
    }

    /// Answers a turn with a stream of events.
    ///
    /// A [`ChatServer`](super::ChatServer) polls the stream until it ends, even if the client
    /// disconnects. It drops the stream earlier if the stream yields an `Err` or one of the events
    /// `Finish`, `Abort` and `Error`, or if the run is stopped.
    ///
    /// # Cancel safety
    /// Dropping the stream stops the run: the model call, and the tools that run without approval.
    fn respond(&self, turn: Turn) -> AgentEventStream;
}

/// The stream of events with which an agent answers a [`Turn`].
pub type AgentEventStream = Pin<Box<dyn Stream<Item = Result<AgentEvent, BoxError>> + Send>>;

impl<F, S> ChatAgent for F
where
    F: Fn(Turn) -> S + Send + Sync + 'static,
    S: Stream<Item: IntoEvent> + Send + 'static,
{
    fn respond(&self, turn: Turn) -> AgentEventStream {
        self(turn).map(IntoEvent::into_event).boxed()
    }
}

/// The input of an agent for one turn. It contains the conversation and the results of earlier tool
/// calls, and it can request approvals.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use futures::stream;
/// use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
/// use ui_message_stream::chat::{ChatServer, Turn};
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
    /// [executing](crate::approval::DeferredOutcome::Executing). The results also contain the
    /// [approvals for the provider](crate::approval::DeferredOutcome::ForwardToProvider), which the
    /// first model call of this turn must send.
    pub deferred: DeferredToolResults,
    /// Requests approvals from the user in this conversation.
    pub approvals: ChatApprovals,
    /// The posted request, with the application's own fields. `None` if the turn was started by a
    /// decision that did not come in a chat request, as with
    /// [`ChatServer::decide`](super::ChatServer::decide).
    pub request: Option<Arc<ChatRequest>>,
}

impl Turn {
    /// Creates a turn for an agent that is used without a [`ChatServer`](super::ChatServer), on
    /// messages that the host stores itself.
    ///
    /// `chat` holds the messages, with the user's new message and the results of earlier calls.
    /// `message_id` is the id of the message that the agent writes: a new id, or the id of the
    /// assistant message in `chat` that it continues. The owner of `chat` requests the approvals.
    /// The turn has no [`deferred`](Self::deferred) results and no [`request`](Self::request). Set
    /// these fields if the host has them.
    ///
    /// [`ChatAgent::respond`] runs the turn and returns its events.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// use futures::StreamExt;
    /// use ui_message_stream::UiMessage;
    /// use ui_message_stream::agent::Agent;
    /// use ui_message_stream::approval::{Approvals, Principal};
    /// use ui_message_stream::chat::{Chat, ChatAgent, Recorder, Turn};
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
        Turn {
            principal: chat.owner.clone(),
            message_id: message_id.into(),
            deferred: DeferredToolResults::default(),
            approvals: approvals.for_chat(&chat.owner, &chat.id),
            request: None,
            chat,
        }
    }

    /// Returns the results of the calls whose approval responses were not accepted.
    ///
    /// These calls are still open in the history. The messages for the model must state that they
    /// were not executed. [`to_model_messages`](Self::to_model_messages) adds this.
    pub fn not_executed(&self) -> impl Iterator<Item = &DeferredToolResult> {
        self.deferred.results().iter().filter(|result| !result.is_final)
    }

    /// Returns a converter from UI messages to model messages. The converter adds the [deferred
    /// results](Self::deferred) and the [call outcomes](Chat::call_outcomes), which the UI messages
    /// do not contain. Pass it the messages of the [chat](Self::chat).
    ///
    /// ```
    /// use ui_message_stream::chat::Turn;
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

/// An event of an agent, or the error that ends its events.
pub(super) type Event = Result<AgentEvent, BoxError>;
