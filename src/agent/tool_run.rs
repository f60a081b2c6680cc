//! Running a tool: on a task of its own, for so long and no longer, and whatever it does, with an
//! end.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::timeout;
use tracing::{Instrument, field};

use super::any_tool::AnyTool;
use super::context::{Beside, ToolContext};
use super::model::failed;
use super::tool::{Told, told};
use crate::adapter::tools::{OUTPUT_TOO_LARGE, TOOL_TIMED_OUT};
use crate::approval::TOOL_FAILED;
use crate::id::ToolCallId;
use crate::json::Json;
use crate::run::{Input, ToolEvent};

/// A call that runs: what it shows as it comes, then its end.
pub(super) struct ToolRun {
    id: ToolCallId,
    shown: mpsc::Receiver<ToolEvent>,
    /// `None` once it has ended. On a task of its own, with its clock: nobody may ask for news.
    run: Option<Task<Result<Json, String>>>,
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
        let (sender, shown) = mpsc::channel(SHOWN_AHEAD);
        context.beside = Some(Beside::new(sender, tool.most_output_bytes()));
        let run = Task::begin(outcome(tool, input, context).in_current_span());
        ToolRun { id, shown, run: Some(run), end: None }
    }

    pub(super) fn failed(id: ToolCallId) -> Self {
        let (_, shown) = mpsc::channel(1);
        let end = Some(ToolEvent::Failed(TOOL_FAILED.to_owned()));
        ToolRun { id, shown, run: None, end }
    }

    fn news(&self, event: ToolEvent) -> Poll<Option<Input>> {
        Poll::Ready(Some(Input::Tool { tool_call_id: self.id.clone(), event }))
    }
}

impl Stream for ToolRun {
    type Item = Input;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Input>> {
        if let Some(run) = &mut self.run
            && let Poll::Ready(ended) = run.poll_end(cx)
        {
            self.run = None;
            self.end = Some(match ended {
                Ok(Ok(output)) => ToolEvent::Output(output),
                Ok(Err(why)) => ToolEvent::Failed(why),
                Err(_) => ToolEvent::Failed(TOOL_FAILED.to_owned()),
            });
            // What it showed before its end is told first; what a context shows that outlives it, no
            // more.
            self.shown.close();
        }
        if self.run.is_some() {
            return match self.shown.poll_recv(cx) {
                Poll::Ready(Some(event)) => self.news(event),
                _ => Poll::Pending,
            };
        }
        if self.end.is_none() {
            return Poll::Ready(None);
        }
        // What is there is told now: a queue that is polled may also say that it is not its turn.
        match self.shown.try_recv().ok().or_else(|| self.end.take()) {
            Some(event) => self.news(event),
            None => Poll::Ready(None),
        }
    }
}

/// Runs a tool to its end, on a task of its own: neither a panic in it nor a wait that it never comes
/// to is anybody else's.
///
/// # Errors
/// Why it failed, in words for the person and the model.
pub(super) async fn outcome(
    tool: Arc<dyn AnyTool>,
    input: Json,
    context: ToolContext,
) -> Result<Json, String> {
    let span = tracing::info_span!(
        "execute_tool",
        otel.name = format!("execute_tool {}", tool.name()),
        otel.status_code = field::Empty,
        gen_ai.operation.name = "execute_tool",
        gen_ai.conversation.id = context.chat_id.as_str(),
        gen_ai.tool.name = tool.name(),
        gen_ai.tool.type = "function",
        gen_ai.tool.call.id = context.tool_call_id.as_str(),
        error.type = field::Empty,
    );
    let (longest, most_bytes) = (tool.timeout(), tool.most_output_bytes());
    let call = async move { tool.call(input, context).await };
    let mut task = Task::begin(call.instrument(span.clone()));
    let ended = timeout(longest, poll_fn(|cx| task.poll_end(cx))).await;
    let _entered = span.enter();
    let (kind, why) = match ended {
        Ok(Ok(Ok(output))) if output.as_str().len() <= most_bytes => {
            return Ok(output);
        }
        Ok(Ok(Ok(_))) => ("too_large", OUTPUT_TOO_LARGE.to_owned()),
        Ok(Ok(Err(error))) if error.is::<Told>() => ("told", told(&error)),
        Ok(Ok(Err(error))) => {
            tracing::error!(%error, "a tool failed");
            ("tool", told(&error))
        }
        Ok(Err(error)) => {
            tracing::error!(%error, "a tool panicked");
            ("panic", TOOL_FAILED.to_owned())
        }
        Err(_) => ("timeout", TOOL_TIMED_OUT.to_owned()),
    };
    failed(&span, kind);
    Err(why)
}

/// A task that is stopped when nobody waits for it any more.
pub(super) struct Task<T>(JoinHandle<T>);

impl<T: Send + 'static> Task<T> {
    pub(super) fn begin(task: impl Future<Output = T> + Send + 'static) -> Self {
        Task(tokio::spawn(task))
    }

    /// # Errors
    /// It panicked.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// One item, once it is there.
pub(super) struct Once<T>(Option<Pin<Box<dyn Future<Output = T> + Send>>>);

impl<T> Once<T> {
    pub(super) fn of(item: impl Future<Output = T> + Send + 'static) -> Self {
        Once(Some(Box::pin(item)))
    }
}

impl<T> Stream for Once<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let Some(item) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let item = std::task::ready!(item.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(Some(item))
    }
}

/// How much may wait to be shown.
const SHOWN_AHEAD: usize = 16;

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use schemars::JsonSchema;
    use serde::Deserialize;

    use super::*;
    use crate::agent::{IntoTool, Tool};

    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}

    fn begin(tool: Tool<Nothing>) -> Pin<Box<ToolRun>> {
        let input = Json::parse("{}").unwrap();
        Box::pin(ToolRun::of(tool.into_tool(), "c".into(), input, ToolContext::new("c")))
    }

    #[tokio::test(start_paused = true)]
    async fn a_tool_ends_in_its_time_though_nobody_asks_for_news() {
        struct Runs(Arc<AtomicBool>);
        impl Drop for Runs {
            fn drop(&mut self) {
                self.0.store(false, Ordering::SeqCst);
            }
        }
        let runs = Arc::new(AtomicBool::new(true));
        let running = Runs(Arc::clone(&runs));
        let running = std::sync::Mutex::new(Some(running));
        let tool = Tool::new("tool", move |_: Nothing| {
            let running = running.lock().unwrap().take();
            async move {
                let _running = running;
                pending::<Result<u64, Told>>().await
            }
        });
        let _run = begin(tool.with_timeout(Duration::from_secs(5)));
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert!(runs.load(Ordering::SeqCst));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!runs.load(Ordering::SeqCst));
    }

    #[tokio::test(start_paused = true)]
    async fn what_it_showed_is_told_before_its_end_though_it_is_not_the_queues_turn() {
        let tool = Tool::new("tool", async |_: Nothing, context: ToolContext| {
            for seen in 0..3 {
                context.data("seen", &seen).await.unwrap();
            }
            Ok::<_, Told>("done")
        });
        let mut run = begin(tool);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut news = Vec::new();
        let mut is_first = true;
        loop {
            let next = poll_fn(|cx| {
                // Whatever else the task polls may use up what it may do at once.
                let (fill, mut queue) = mpsc::unbounded_channel();
                (0..1_000).for_each(|_| fill.send(()).unwrap());
                while !is_first && queue.poll_recv(cx).is_ready() {}
                run.as_mut().poll_next(cx)
            });
            let Some(Input::Tool { event, .. }) = next.await else { break };
            news.push(event);
            is_first = false;
        }
        assert!(news[..3].iter().all(|event| matches!(event, ToolEvent::Data(_))), "{news:?}");
        assert_eq!(news[3..], [ToolEvent::Output(Json::string("done"))]);
    }
}
