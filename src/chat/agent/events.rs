//! [`AgentEvents`]: the events of an agent, without panics, and with the pieces of a tool input
//! joined.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_util::future::BoxFuture;
use futures_util::stream::CatchUnwind;
use futures_util::{StreamExt, stream};

use super::{AgentEventStream, ChatAgent, Event, Turn};
use crate::approval::store::LedgerStoreError;
use crate::boxed::BoxError;
use crate::event::AgentEvent;
use crate::id::ApprovalId;
use crate::response::{MASKED_ERROR, panic_message};

/// The events of an agent. A failure and a panic end them with a masked error, and are logged.
pub(in crate::chat) struct AgentEvents {
    /// `None` after their end.
    events: Option<CatchUnwind<AssertUnwindSafe<AgentEventStream>>>,
    /// An event that was read after the last one that was returned.
    ahead: Option<AgentEvent>,
}

impl AgentEvents {
    /// If the client cannot answer approval requests, `revoke` is called for each request before its
    /// event is returned, because the client is told that the call was not executed. If `revoke` fails,
    /// the events end with an error.
    pub(in crate::chat) fn new(agent: &dyn ChatAgent, turn: Turn, revoke: Option<Revoke>) -> Self {
        let events = catch_unwind(AssertUnwindSafe(|| agent.respond(turn)));
        let events = events.unwrap_or_else(|panic| {
            let panicked: Event = Err(panic_message(&*panic).into());
            stream::iter([panicked]).boxed()
        });
        let events = match revoke {
            None => events,
            Some(revoke) => events.then(move |event| revoke_request(revoke.clone(), event)).boxed(),
        };
        AgentEvents { events: Some(AssertUnwindSafe(events).catch_unwind()), ahead: None }
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<AgentEvent>> {
        if let Some(ahead) = self.ahead.take() {
            return Poll::Ready(Some(ahead));
        }
        let Some(events) = &mut self.events else { return Poll::Ready(None) };
        let event = ready!(events.poll_next_unpin(cx));
        if event.is_none() {
            self.events = None;
        }
        let failed = |cause: BoxError| {
            tracing::error!(%cause, "the agent failed");
            AgentEvent::error(MASKED_ERROR)
        };
        Poll::Ready(event.map(|event| match event {
            Ok(Ok(event)) => event,
            Ok(Err(error)) => failed(error),
            Err(panic) => failed(panic_message(&*panic).into()),
        }))
    }
}

impl Stream for AgentEvents {
    type Item = AgentEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<AgentEvent>> {
        let first = ready!(self.poll_event(cx));
        let Some(AgentEvent::ToolInputDelta { tool_call_id, delta }) = first else {
            return Poll::Ready(first);
        };
        // A client parses the whole input again for each piece, so pieces that are ready at the same
        // time are sent as one.
        let mut joined = delta.to_string();
        while joined.len() < MAX_JOINED_BYTES {
            match self.poll_event(cx) {
                Poll::Ready(Some(AgentEvent::ToolInputDelta { tool_call_id: id, delta }))
                    if id == tool_call_id =>
                {
                    joined.push_str(&delta);
                }
                Poll::Ready(other) => {
                    self.ahead = other;
                    break;
                }
                Poll::Pending => break,
            }
        }
        let delta = joined.into();
        Poll::Ready(Some(AgentEvent::ToolInputDelta { tool_call_id, delta }))
    }
}

/// Revokes an approval request.
pub(in crate::chat) type Revoke =
    Arc<dyn Fn(ApprovalId) -> BoxFuture<'static, Result<(), LedgerStoreError>> + Send + Sync>;

async fn revoke_request(revoke: Revoke, event: Event) -> Event {
    if let Some(approval_id) = event.as_ref().ok().and_then(AgentEvent::requested_approval) {
        revoke(approval_id).await?;
    }
    event
}

/// How many bytes of a tool input are joined.
const MAX_JOINED_BYTES: usize = 8 * 1024;
