//! This crate, behind an agent of the host: `UiMessageStream::reply`.

use axum::Router;
use axum::routing::{MethodRouter, post};
use bench_work::said;
use futures::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use ui_message_stream::{AgentEvent, ChatRequest, UiMessageStream};

use crate::events::{answer, text_at_pace};

/// The body of the response polls the stream of the agent.
pub(crate) fn direct(deltas: usize) -> Router {
    let (text, outputs) = (said(bench_work::text()), said(bench_work::outputs()));
    Router::new()
        .route("/text", reply(move || answer(text)))
        .route("/outputs", reply(move || answer(outputs)))
        .route("/paced", reply(move || text_at_pace(deltas)))
}

/// The agent runs in a task of its own and sends its events over a channel.
pub(crate) fn own_task(deltas: usize) -> Router {
    let (text, outputs) = (said(bench_work::text()), said(bench_work::outputs()));
    Router::new()
        .route("/text", reply(move || from_task(answer(text))))
        .route("/outputs", reply(move || from_task(answer(outputs))))
        .route("/paced", reply(move || from_task(text_at_pace(deltas))))
}

fn reply<S>(agent: impl Fn() -> S + Clone + Send + Sync + 'static) -> MethodRouter
where
    S: Stream<Item = AgentEvent> + Send + 'static,
{
    post(async move |chat: ChatRequest| UiMessageStream::reply(&chat, agent()))
}

fn from_task(
    agent: impl Stream<Item = AgentEvent> + Send + 'static,
) -> impl Stream<Item = AgentEvent> + Send {
    let (sender, receiver) = mpsc::channel(64);
    tokio::spawn(async move {
        let mut agent = std::pin::pin!(agent);
        while let Some(event) = agent.next().await {
            if sender.send(event).await.is_err() {
                break;
            }
        }
    });
    ReceiverStream::new(receiver)
}
