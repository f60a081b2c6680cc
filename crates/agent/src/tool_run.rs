//! The execution of a tool call: on its own task, with a timeout, and always with a final event.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::{FutureExt, Stream};
use tokio::sync::mpsc;
use tokio::task::JoinError;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::context::{PartEmitter, ToolContext};
use super::dyn_tool::DynTool;
use super::inner_calls::Suspended;
use super::telemetry::{record_failure, tool_span};
use super::tool_error::{ToolError, user_message};
use crate::tool_loop::{Input, ToolEvent};
use ui_message_stream::UserText;
use ui_message_stream::id::{ToolCallId, log_error};
use ui_message_stream::json::Json;

/// A running tool call: the events that the tool emits, then its final event.
pub(super) struct ToolRun {
    tool_call_id: ToolCallId,
    events: mpsc::Receiver<ToolEvent>,
    /// `None` after the call has ended. The task has its own timer, so the timeout applies even if
    /// this stream is not polled.
    task: Option<AbortOnDropHandle<ToolEvent>>,
    /// The final event, until it is emitted.
    end: Option<ToolEvent>,
}

impl ToolRun {
    /// Starts a call of a tool.
    pub(super) fn start(tool: Arc<dyn DynTool>, input: Json, mut context: ToolContext) -> Self {
        let tool_call_id = context.tool_call_id.clone();
        let (sender, events) = mpsc::channel(MAX_QUEUED_EVENTS);
        context.emitter = Some(PartEmitter::new(sender, tool.policy().max_output_bytes));
        let task = tokio::spawn(execute(tool, input, context).in_current_span());
        ToolRun { tool_call_id, events, task: Some(AbortOnDropHandle::new(task)), end: None }
    }

    /// Returns a run that fails immediately.
    pub(super) fn failed(tool_call_id: ToolCallId, error: &str) -> Self {
        let (_, events) = mpsc::channel(1);
        let end = Some(ToolEvent::Failed(error.to_owned()));
        ToolRun { tool_call_id, events, task: None, end }
    }

    fn input(&self, event: ToolEvent) -> Poll<Option<Input>> {
        Poll::Ready(Some(Input::Tool { tool_call_id: self.tool_call_id.clone(), event }))
    }
}

impl Stream for ToolRun {
    type Item = Input;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Input>> {
        if let Some(task) = &mut self.task
            && let Poll::Ready(result) = task.poll_unpin(cx)
        {
            self.task = None;
            self.end = Some(match result {
                Ok(end) => end,
                // The runtime shuts down. The tool may have done its work.
                Err(_) => ToolEvent::Failed(UserText::OutcomeUnknown.to_string()),
            });
            // Events that were emitted before the end are still delivered. A context that outlives
            // the call emits nothing more.
            self.events.close();
        }
        if self.task.is_some() {
            return match self.events.poll_recv(cx) {
                Poll::Ready(Some(event)) => self.input(event),
                _ => Poll::Pending,
            };
        }
        if self.end.is_none() {
            return Poll::Ready(None);
        }
        // `try_recv` and not `poll_recv`: the latter may return `Pending` for a non-empty channel
        // if the task has used up its cooperative budget.
        match self.events.try_recv().ok().or_else(|| self.end.take()) {
            Some(event) => self.input(event),
            None => Poll::Ready(None),
        }
    }
}

/// Runs a tool to its end, on its own task. A panic in the tool, or a wait that never ends, does
/// not affect other tasks.
///
/// # Errors
/// The reason of the failure, as text for the user and the model.
pub(super) async fn execute(
    tool: Arc<dyn DynTool>,
    input: Json,
    context: ToolContext,
) -> ToolEvent {
    let span = tool_span(tool.name(), &context);
    let max_time = tool.policy().timeout;
    let max_bytes = tool.policy().max_output_bytes;
    let call = async move { tool.call(input, context).await };
    let task = AbortOnDropHandle::new(tokio::spawn(call.instrument(span.clone())));
    let result = timeout(max_time, unless_cancelled(task)).await;
    let _entered = span.enter();
    let (kind, message) = match result {
        Ok(Ok(Ok(output))) if output.as_str().len() <= max_bytes => {
            return ToolEvent::Output(output);
        }
        Ok(Ok(Ok(_))) => ("too_large", UserText::OutputTooLarge.to_string()),
        Ok(Ok(Err(error))) if error.is::<Suspended>() => match error.downcast::<Suspended>() {
            Ok(suspended) => {
                let Suspended { state, calls } = *suspended;
                return ToolEvent::Suspended { state, calls };
            }
            Err(_) => ("tool", UserText::ToolFailed.to_string()),
        },
        Ok(Ok(Err(error))) if error.is::<ToolError>() => ("tool_error", user_message(&error)),
        Ok(Ok(Err(error))) => {
            tracing::error!(error = %log_error(&error), "a tool failed");
            ("tool", user_message(&error))
        }
        Ok(Err(error)) => {
            tracing::error!(error = %log_error(&error), "a tool panicked");
            ("panic", UserText::ToolFailed.to_string())
        }
        Err(_) => ("timeout", UserText::ToolTimedOut.to_string()),
    };
    record_failure(&span, kind);
    ToolEvent::Failed(message)
}

/// Waits for the end of a task. A task that was cancelled has no end.
///
/// Only the shutdown of the runtime cancels the task of a tool, which may have done its work. That
/// is not a failure of the tool. The caller is about to be cancelled as well, and so the outcome of
/// an approved call is recorded as unknown.
async fn unless_cancelled<T>(
    task: impl Future<Output = Result<T, JoinError>>,
) -> Result<T, JoinError> {
    match task.await {
        Err(error) if error.is_cancelled() => pending().await,
        ended => ended,
    }
}

/// The maximum number of emitted events that wait to be read.
const MAX_QUEUED_EVENTS: usize = 16;

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use schemars::JsonSchema;
    use serde::Deserialize;

    use super::*;
    use crate::{IntoTool, Tool};

    #[derive(Deserialize, JsonSchema)]
    struct NoInput {}

    fn begin(tool: Tool<NoInput>) -> Pin<Box<ToolRun>> {
        let input = Json::parse("{}").unwrap();
        Box::pin(ToolRun::start(tool.into_tool(), input, ToolContext::new("c")))
    }

    #[tokio::test(start_paused = true)]
    async fn a_tool_times_out_even_if_its_run_is_not_polled() {
        struct Runs(Arc<AtomicBool>);
        impl Drop for Runs {
            fn drop(&mut self) {
                self.0.store(false, Ordering::SeqCst);
            }
        }
        let runs = Arc::new(AtomicBool::new(true));
        let running = Runs(Arc::clone(&runs));
        let running = std::sync::Mutex::new(Some(running));
        let tool = Tool::new("tool", move |_: NoInput| {
            let running = running.lock().unwrap().take();
            async move {
                let _running = running;
                pending::<Result<u64, ToolError>>().await
            }
        });
        let _run = begin(tool.with_timeout(Duration::from_secs(5)));
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert!(runs.load(Ordering::SeqCst));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!runs.load(Ordering::SeqCst));
    }

    #[tokio::test(start_paused = true)]
    async fn a_tool_that_the_shutdown_of_the_runtime_cancels_has_not_failed() {
        let task = tokio::spawn(pending::<()>());
        task.abort();
        let waited = timeout(Duration::from_secs(5), unless_cancelled(task)).await;
        assert!(waited.is_err(), "{waited:?}");
        let task = tokio::spawn(async { panic!("of the tool") });
        let waited: Result<Result<(), _>, _> =
            timeout(Duration::from_secs(5), unless_cancelled(task)).await;
        assert!(waited.unwrap().unwrap_err().is_panic());
    }

    #[tokio::test(start_paused = true)]
    async fn emitted_parts_precede_the_end_even_if_the_channel_yields() {
        let tool = Tool::new("tool", async |_: NoInput, context: ToolContext| {
            for seen in 0..3 {
                context.emit_data("seen", &seen).await.unwrap();
            }
            Ok::<_, ToolError>("done")
        });
        let mut run = begin(tool);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut events = Vec::new();
        let mut is_first = true;
        loop {
            let next = poll_fn(|cx| {
                // Other work in the same task may use up its cooperative budget.
                let (fill, mut queue) = mpsc::unbounded_channel();
                (0..1_000).for_each(|_| fill.send(()).unwrap());
                while !is_first && queue.poll_recv(cx).is_ready() {}
                run.as_mut().poll_next(cx)
            });
            let Some(Input::Tool { event, .. }) = next.await else { break };
            events.push(event);
            is_first = false;
        }
        assert!(events[..3].iter().all(|event| matches!(event, ToolEvent::Data(_))), "{events:?}");
        assert_eq!(events[3..], [ToolEvent::Output(Json::string("done"))]);
    }
}
