//! Running a tool: on a task of its own, for so long and no longer, and whatever it does, with an
//! end.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::Instrument;

use super::tool::{ToolContext, told};
use super::tools::AnyTool;
use crate::approval::TOOL_FAILED;
use crate::id::ToolCallId;
use crate::json::Json;
use crate::run::{Input, ToolEvent};

/// A call that runs: its preliminary outputs as they come, then its end.
pub(super) struct ToolRun {
    id: ToolCallId,
    preliminary: mpsc::Receiver<ToolEvent>,
    /// `None` once it has ended.
    task: Option<JoinHandle<ToolEvent>>,
    /// How it ended, until that is told.
    end: Option<ToolEvent>,
}

impl ToolRun {
    pub(super) fn of(
        tool: Arc<dyn AnyTool>,
        id: ToolCallId,
        input: Json,
        mut context: ToolContext,
    ) -> Self {
        let (sender, preliminary) = mpsc::channel(PRELIMINARY_AHEAD);
        context.preliminary = Some(sender);
        let run = async move { outcome(&*tool, input, context).await };
        let task = tokio::spawn(run.in_current_span());
        ToolRun { id, preliminary, task: Some(task), end: None }
    }

    pub(super) fn failed(id: ToolCallId) -> Self {
        let (_, preliminary) = mpsc::channel(1);
        let task = tokio::spawn(async { ToolEvent::Failed(TOOL_FAILED.to_owned()) });
        ToolRun { id, preliminary, task: Some(task), end: None }
    }

    fn news(&self, event: ToolEvent) -> Poll<Option<Input>> {
        Poll::Ready(Some(Input::Tool { tool_call_id: self.id.clone(), event }))
    }
}

/// A run that is stopped stops its tools.
impl Drop for ToolRun {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Stream for ToolRun {
    type Item = Input;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Input>> {
        loop {
            match self.preliminary.poll_recv(cx) {
                Poll::Ready(Some(event)) => return self.news(event),
                Poll::Ready(None) if self.task.is_none() => {
                    return match self.end.take() {
                        Some(end) => self.news(end),
                        None => Poll::Ready(None),
                    };
                }
                _ => {}
            }
            let Some(task) = &mut self.task else {
                return Poll::Pending;
            };
            let ended = std::task::ready!(Pin::new(task).poll(cx));
            self.task = None;
            self.end = Some(ended.unwrap_or_else(|error| {
                tracing::error!(%error, "a tool panicked");
                ToolEvent::Failed(TOOL_FAILED.to_owned())
            }));
            // What it showed before its end is told first; what a context shows that outlives it, no
            // more.
            self.preliminary.close();
        }
    }
}

/// Runs a tool to its end.
pub(super) async fn outcome(tool: &dyn AnyTool, input: Json, context: ToolContext) -> ToolEvent {
    let span = tracing::info_span!(
        "execute_tool",
        gen_ai.operation.name = "execute_tool",
        gen_ai.tool.name = tool.name(),
        gen_ai.tool.call.id = context.tool_call_id.as_str(),
    );
    run_to_end(tool, input, context).instrument(span).await
}

async fn run_to_end(tool: &dyn AnyTool, input: Json, context: ToolContext) -> ToolEvent {
    match timeout(tool.timeout(), tool.call(input, context)).await {
        Ok(Ok(output)) if output.as_str().len() > tool.most_output_bytes() => {
            ToolEvent::Failed(TOO_LARGE.to_owned())
        }
        Ok(Ok(output)) => ToolEvent::Output(output),
        Ok(Err(error)) => {
            tracing::error!(%error, "a tool failed");
            ToolEvent::Failed(told(&error))
        }
        Err(_) => ToolEvent::Failed(TOO_LONG.to_owned()),
    }
}

/// One input, once it is there.
pub(super) struct Once(Option<Pin<Box<dyn Future<Output = Input> + Send>>>);

impl Once {
    pub(super) fn of(input: impl Future<Output = Input> + Send + 'static) -> Self {
        Once(Some(Box::pin(input)))
    }
}

impl Stream for Once {
    type Item = Input;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Input>> {
        let Some(input) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let input = std::task::ready!(input.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(Some(input))
    }
}

/// How many preliminary outputs may wait to be shown.
const PRELIMINARY_AHEAD: usize = 16;

/// Said of an output that is longer than it may be.
pub(crate) const TOO_LARGE: &str = "The tool returned more than can be shown.";

/// Said of a tool that did not come to its end in time.
pub(crate) const TOO_LONG: &str =
    "The tool took too long and was stopped. What it did until then is not known.";
