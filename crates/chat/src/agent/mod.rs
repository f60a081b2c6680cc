//! [`ChatAgent`]: an agent that answers the turns of conversations.

pub(super) mod events;
mod turn;

use std::pin::Pin;

use futures_core::Stream;
use futures_util::StreamExt;

pub use self::turn::Turn;
use ui_message_stream::BoxError;
use ui_message_stream::event::AgentEvent;
use ui_message_stream::json::Json;
use ui_message_stream::message::UiMessage;
use ui_message_stream::request::{ChatRequest, ParseRequestError};
use ui_message_stream::response::IntoEvent;

/// An agent that answers chat turns.
///
/// `Agent` implements it. Each function that takes a [`Turn`] and returns a
/// stream of events implements it too.
///
/// ```
/// use futures::stream;
/// use ui_message_stream::AgentEvent;
/// use ui_message_stream_chat::{AgentEventStream, ChatAgent, Turn};
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
/// A function around an `Agent` gives it the instructions of each turn, for
/// example `move |turn: Turn| agent.clone().with_instructions(…).respond(turn)`. A function has the
/// default [`validate_request`](Self::validate_request) and
/// [`structured_output`](Self::structured_output). If the agent
/// accepts client tools (`Agent::with_client_tools`) or has an
/// output (`Agent::with_output`), pass these calls on:
///
/// ```
/// use ui_message_stream_agent::Agent;
/// use ui_message_stream_chat::{AgentEventStream, ChatAgent, Turn};
/// use ui_message_stream::request::ParseRequestError;
/// use ui_message_stream::{BoxError, ChatRequest, Json, UiMessage};
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
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an agent of chats",
    note = "an agent is an `Agent`, or a function from a `Turn` to a stream of `AgentEvent` or `Result<AgentEvent, E>`"
)]
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

/// An event of an agent, or the error that ends its events.
pub(super) type Event = Result<AgentEvent, BoxError>;
