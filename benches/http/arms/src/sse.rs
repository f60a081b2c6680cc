//! Idiomatic axum without this crate: the agent sends chunks over a channel, and the response is an `Sse` of
//! `Event::json_data` that keeps the connection alive.

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use axum::{Json, Router};
use futures::{Stream, StreamExt};
use tokio::sync::mpsc;

use crate::chunk::{ChatBody, Chunk, answer, text_at_pace};

pub(crate) fn routes(deltas: usize) -> Router {
    Router::new()
        .route("/text", route(|| answer(bench_work::text())))
        .route("/outputs", route(|| answer(bench_work::outputs())))
        .route("/paced", route(move || text_at_pace(deltas)))
}

fn route<S>(agent: impl Fn() -> S + Clone + Send + Sync + 'static) -> MethodRouter
where
    S: Stream<Item = Chunk> + Send + 'static,
{
    post(async move |Json(_): Json<ChatBody>| respond(agent()))
}

fn respond(agent: impl Stream<Item = Chunk> + Send + 'static) -> Response {
    let (sender, mut receiver) = mpsc::channel(64);
    tokio::spawn(async move {
        let mut agent = std::pin::pin!(agent);
        while let Some(chunk) = agent.next().await {
            if sender.send(chunk).await.is_err() {
                break;
            }
        }
    });
    let events = async_stream::stream! {
        while let Some(chunk) = receiver.recv().await {
            yield Event::default().json_data(&chunk);
        }
        yield Ok(Event::default().data("[DONE]"));
    };
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}
