//! [`RunningCall`]: an approved tool call that is executed on its own task, as a stream of events.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_util::FutureExt;
use tokio::task::JoinHandle;
use tracing::Instrument;

use super::ApprovedCall;
use super::claimed_call::ClaimedCall;
use super::progress::Progress;
use super::settled_call::SettledCall;
use crate::UserText;
use crate::approval::{DeferredOutcome, ToolOutcome};
use crate::event::AgentEvent;
use crate::id::{log_error, log_text};

impl ClaimedCall {
    /// Executes the call on its own task, stores its outcome, and returns the events of the call.
    ///
    /// The call is executed to its end and its outcome is stored even if the returned value is
    /// dropped, for example because the client disconnected. A panic counts as a failure of the
    /// tool. `run` returns a [`ToolOutcome`], or what can be converted to one: the output as
    /// [`Json`](crate::Json), or a `Result` of it with an error text for the user and the model.
    ///
    /// ```
    /// use ui_message_stream::approval::{ClaimedCall, RunningCall};
    /// use ui_message_stream::Json;
    ///
    /// fn delete(call: ClaimedCall) -> RunningCall {
    ///     call.run(|call, progress| async move {
    ///         progress.emit("looking for the file").map_err(|error| error.to_string())?;
    ///         // Delete the file that `call.input` names.
    ///         Ok::<_, String>(Json::string("deleted"))
    ///     })
    /// }
    /// ```
    pub fn run<F, Fut>(self, run: F) -> RunningCall
    where
        F: FnOnce(ApprovedCall, Progress) -> Fut + Send + 'static,
        Fut: Future<Output: Into<ToolOutcome>> + Send,
    {
        let progress = Progress::default();
        let report = self.report().clone();
        let (call, emitter) = (self.call().clone(), progress.clone());
        let tool = async move { run(call, emitter).await.into() };
        let tool = tokio::spawn(tool.in_current_span());
        let settling = tokio::spawn(self.settle_after(tool).in_current_span());
        let changed = AgentEvent::input_changed(report.result());
        let state = State::Running(settling);
        RunningCall { report, progress, state, changed, events: VecDeque::new() }
    }

    /// Waits for the task of the tool, and stores its outcome.
    async fn settle_after(self, tool: JoinHandle<ToolOutcome>) -> SettledCall {
        let outcome = match tool.await {
            Ok(outcome) => outcome,
            Err(error) if error.is_panic() => {
                let tool = &*log_text(self.tool_name());
                tracing::error!(tool, error = %log_error(&error), "an approved tool panicked");
                ToolOutcome::Failed(UserText::ToolFailed.to_string())
            }
            // The runtime shuts down. The tool may have done its work.
            Err(_) => return self.abandon(),
        };
        self.settle(outcome).await
    }
}

/// An approved tool call that is being executed on its own task.
///
/// It is a stream of the events to send: the changed input, the preliminary outputs and the parts, then the
/// events of the outcome.
/// If this value is dropped, the call is executed to its end nevertheless.
pub struct RunningCall {
    report: SettledCall,
    progress: Progress,
    state: State,
    /// The event of the input that the approver changed, which was not returned yet.
    changed: Option<AgentEvent>,
    /// The events of the outcome that were not returned yet.
    events: VecDeque<AgentEvent>,
}

enum State {
    Running(JoinHandle<SettledCall>),
    Settled(SettledCall),
}

impl RunningCall {
    /// Returns the next event, or `None` after the events of the outcome.
    ///
    /// # Cancel safety
    /// No event is lost if the future is dropped.
    pub async fn next_event(&mut self) -> Option<AgentEvent> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Waits until the call has an outcome. Its events are left to the caller.
    pub async fn settled(mut self) -> SettledCall {
        poll_fn(|cx| self.poll_settled(cx).map(Clone::clone)).await
    }

    /// Returns the event of the changed input, of a part, or of the preliminary output, that was not returned
    /// yet.
    fn next_progress(&mut self, cx: &mut Context<'_>) -> Option<AgentEvent> {
        self.progress.register(cx.waker());
        let is_running = matches!(self.state, State::Running(_));
        let changed = self.changed.take().filter(|_| is_running);
        changed.or_else(|| self.progress.take_part()).or_else(|| {
            let output = self.progress.take_output().filter(|_| is_running)?;
            let id = self.report.result().tool_call_id.clone();
            Some(AgentEvent::preliminary_output(id, output))
        })
    }

    /// Returns what the call shows next, or `None` if it has an outcome and has shown everything.
    pub(super) fn poll_progress(&mut self, cx: &mut Context<'_>) -> Poll<Option<AgentEvent>> {
        let progress = self.next_progress(cx);
        if progress.is_some() {
            return Poll::Ready(progress);
        }
        ready!(self.poll_settled(cx));
        // The tool may have emitted parts before it ended.
        Poll::Ready(self.next_progress(cx))
    }

    /// Returns whether a response can show this event of the call.
    pub(super) fn shows(&self, event: &AgentEvent) -> bool {
        self.report.shows(event)
    }

    pub(super) fn poll_settled(&mut self, cx: &mut Context<'_>) -> Poll<&SettledCall> {
        if let State::Running(settling) = &mut self.state {
            let settled = ready!(settling.poll_unpin(cx));
            // The task panics only in the store or in the audit sink, or if the runtime ends.
            let unknown = || self.report.clone().with_outcome(DeferredOutcome::OutcomeUnknown);
            let settled = settled.unwrap_or_else(|_| unknown());
            self.events.extend(settled.events());
            self.state = State::Settled(settled);
        }
        match &self.state {
            State::Settled(settled) => Poll::Ready(settled),
            State::Running(_) => Poll::Pending,
        }
    }
}

impl Stream for RunningCall {
    type Item = AgentEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<AgentEvent>> {
        loop {
            match ready!(self.poll_progress(cx)) {
                Some(event) if self.shows(&event) => return Poll::Ready(Some(event)),
                Some(_) => {}
                None => return Poll::Ready(self.events.pop_front()),
            }
        }
    }
}

impl fmt::Debug for RunningCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningCall").field("call", &self.report).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;
    use crate::approval::{Approvals, DeferredCall, Principal, ToolList};
    use crate::event::ToolCall;
    use crate::json::Json;
    use crate::request::{ChatRequest, Limits};

    #[tokio::test]
    async fn a_tool_that_the_shutdown_of_the_runtime_cancels_has_an_unknown_outcome() {
        let approvals = Approvals::new(ToolList::new().tool("delete", "Deletes.", &Json::null()));
        let (ada, chat) = (Principal::new("ada"), "chat".into());
        let approvals_of_chat = approvals.for_chat(&ada, &chat);
        let requested = approvals_of_chat
            .request_approval_of(&ToolCall::new("call_1", "delete"), &Json::null())
            .await;
        let AgentEvent::ApprovalRequested { approval_id, .. } = requested else {
            panic!("{requested:?}")
        };
        let body = serde_json::json!({"id": "chat", "messageId": "m", "messages": [
            {"id": "m", "role": "assistant", "parts": [{
                "type": "tool-delete", "toolCallId": "call_1", "input": null,
                "state": "approval-responded",
                "approval": {"id": approval_id.as_str(), "approved": true},
            }]},
        ]});
        let request = ChatRequest::parse(body.to_string().as_bytes(), &Limits::default()).unwrap();
        let mut calls = approvals.redeem(&ada, &request).await.unwrap().into_iter();
        let Some(DeferredCall::Approved(call)) = calls.next() else { panic!("not approved") };

        let tool = tokio::spawn(pending());
        tool.abort();
        let settled = call.settle_after(tool).await;
        assert_eq!(settled.result().outcome, DeferredOutcome::OutcomeUnknown);
        // The ledger learns it from the claim that was dropped.
        let ids = [approval_id];
        for _ in 0..1000 {
            let outcomes = approvals_of_chat.outcomes(&ids).await.unwrap();
            if matches!(outcomes[..], [(_, DeferredOutcome::OutcomeUnknown)]) {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{:?}", approvals_of_chat.outcomes(&ids).await);
    }
}
