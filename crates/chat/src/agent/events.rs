//! [`AgentEvents`]: the events of an agent, without panics, and with the pieces of a tool input
//! joined.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};

use super::{AgentEventStream, ChatAgent, Event, Turn};
use ui_message_stream::BoxError;
use ui_message_stream::UserText;
use ui_message_stream::approval::store::LedgerStoreError;
use ui_message_stream::chunk::Chunk;
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::{ApprovalId, ToolCallId, log_error};
use ui_message_stream::response::panic_message;

/// The events of an agent. A failure and a panic end them with a masked error, and are logged.
pub(crate) struct AgentEvents {
    /// `None` after their end, and after a failure.
    events: Option<AgentEventStream>,
    /// An event that was read after the last one that was returned.
    ahead: Option<Box<AgentEvent>>,
}

impl AgentEvents {
    /// `revoke` is given if the client cannot answer approval requests. It is called for each request,
    /// before the event of the request is returned. The client is told that the call was not executed.
    /// If `revoke` fails, the events end with an error.
    pub(crate) fn new(agent: &Arc<dyn ChatAgent>, turn: Turn, revoke: Option<Revoke>) -> Self {
        let events = match turn.open_calls().is_empty() {
            true => respond(&**agent, turn),
            // An earlier turn may have left one of them running, or another one has decided it since.
            false => {
                let agent = Arc::clone(agent);
                let responding = async move {
                    match turn.newest_results().await {
                        Ok(deferred) => respond(&*agent, Turn { deferred, ..turn }),
                        Err(error) => failed(error.into()),
                    }
                };
                responding.flatten_stream().boxed()
            }
        };
        let events = match revoke {
            None => events,
            Some(revoke) => events.then(move |event| revoke_request(revoke.clone(), event)).boxed(),
        };
        AgentEvents { events: Some(events), ahead: None }
    }

    // A call would move each event once more.
    #[inline(always)]
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<AgentEvent>> {
        if self.ahead.is_some() {
            return Poll::Ready(self.ahead.take().map(|event| *event));
        }
        let Some(events) = &mut self.events else { return Poll::Ready(None) };
        match catch_unwind(AssertUnwindSafe(|| events.as_mut().poll_next(cx))) {
            Ok(Poll::Ready(Some(Ok(event)))) => Poll::Ready(Some(event)),
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(None)) => Poll::Ready(self.end(None)),
            Ok(Poll::Ready(Some(Err(error)))) => Poll::Ready(self.end(Some(error))),
            Err(panic) => Poll::Ready(self.end(Some(panic_message(&*panic).into()))),
        }
    }

    /// Ends the events. Returns the last one, if they have failed.
    #[cold]
    fn end(&mut self, failure: Option<BoxError>) -> Option<AgentEvent> {
        self.events = None;
        let cause = failure?;
        tracing::error!(cause = %log_error(&cause), "the agent failed");
        Some(AgentEvent::error(UserText::AnswerFailed))
    }

    /// Joins a piece of a tool input with the pieces that are ready at the same time: a client parses
    /// the whole input again for each piece.
    #[cold]
    fn joined(&mut self, call: &ToolCallId, first: &str, cx: &mut Context<'_>) -> String {
        let mut joined = first.to_owned();
        while joined.len() < MAX_JOINED_BYTES {
            match self.poll_event(cx) {
                Poll::Ready(Some(AgentEvent::ToolInputDelta { tool_call_id, delta }))
                    if tool_call_id == *call =>
                {
                    joined.push_str(&delta);
                }
                Poll::Ready(other) => {
                    self.ahead = other.map(Box::new);
                    break;
                }
                Poll::Pending => break,
            }
        }
        joined
    }
}

fn respond(agent: &dyn ChatAgent, turn: Turn) -> AgentEventStream {
    let events = catch_unwind(AssertUnwindSafe(|| agent.respond(turn)));
    events.unwrap_or_else(|panic| failed(panic_message(&*panic).into()))
}

fn failed(error: BoxError) -> AgentEventStream {
    let failed: Event = Err(error);
    stream::iter([failed]).boxed()
}

impl Stream for AgentEvents {
    type Item = AgentEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<AgentEvent>> {
        match self.poll_event(cx) {
            Poll::Ready(Some(AgentEvent::ToolInputDelta { tool_call_id, delta })) => {
                let delta = self.joined(&tool_call_id, &delta, cx);
                Poll::Ready(Some(AgentEvent::tool_input_delta(tool_call_id, delta)))
            }
            polled => polled,
        }
    }
}

/// Revokes an approval request.
pub(crate) type Revoke =
    Arc<dyn Fn(ApprovalId) -> BoxFuture<'static, Result<(), LedgerStoreError>> + Send + Sync>;

async fn revoke_request(revoke: Revoke, event: Event) -> Event {
    if let Some(approval_id) = event.as_ref().ok().and_then(requested_approval) {
        revoke(approval_id).await?;
    }
    event
}

/// Returns the id of the approval that an event requests.
fn requested_approval(event: &AgentEvent) -> Option<ApprovalId> {
    match event {
        AgentEvent::ApprovalRequested { approval_id, .. } => Some(approval_id.clone()),
        AgentEvent::Chunk(chunk) => match &**chunk {
            Chunk::ToolApprovalRequest { approval_id, .. } => Some(ApprovalId::new(&**approval_id)),
            _ => None,
        },
        _ => None,
    }
}

/// How many bytes of a tool input are joined.
const MAX_JOINED_BYTES: usize = 8 * 1024;
