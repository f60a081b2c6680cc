//! Idiomatic axum with a log, so that a client can rejoin: the agent writes the log of its chat in a task of its own,
//! and the response reads the log. The newest logs are kept.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use axum::{Json, Router};
use futures::{Stream, StreamExt};
use tokio::sync::Notify;

use crate::chunk::{ChatBody, Chunk, answer, text_at_pace};

/// The logs of the newest chats, by the id of the chat.
type Logs = Arc<Mutex<VecDeque<(String, Arc<Log>)>>>;

/// Chunks as JSON, as far as they are written.
#[derive(Default)]
struct Log {
    chunks: Mutex<Vec<String>>,
    has_grown: Notify,
}

pub(crate) fn routes(deltas: usize) -> Router {
    Router::new()
        .route("/text", route(|| answer(bench_work::text())))
        .route("/outputs", route(|| answer(bench_work::outputs())))
        .route("/paced", route(move || text_at_pace(deltas)))
        .with_state(Logs::default())
}

fn route<S>(agent: impl Fn() -> S + Clone + Send + Sync + 'static) -> MethodRouter<Logs>
where
    S: Stream<Item = Chunk> + Send + 'static,
{
    post(async move |State(logs): State<Logs>, Json(chat): Json<ChatBody>| {
        let log = Arc::new(Log::default());
        let mut logs = logs.lock().expect("no thread has panicked");
        logs.push_back((chat.id, log.clone()));
        if logs.len() > MAX_LOGS {
            logs.pop_front();
        }
        tokio::spawn(write(log.clone(), agent()));
        respond(log)
    })
}

async fn write(log: Arc<Log>, agent: impl Stream<Item = Chunk>) {
    let mut agent = std::pin::pin!(agent);
    while let Some(chunk) = agent.next().await {
        log.push(serde_json::to_string(&chunk).expect("a chunk is JSON"));
        // A stream that is always ready must not keep the thread.
        tokio::task::consume_budget().await;
    }
    log.push(DONE.into());
}

fn respond(log: Arc<Log>) -> Response {
    let events = async_stream::stream! {
        for position in 0.. {
            let chunk = log.chunk_at(position).await;
            yield Ok::<_, Infallible>(Event::default().id(position.to_string()).data(&chunk));
            if chunk == DONE {
                break;
            }
        }
    };
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

impl Log {
    fn push(&self, chunk: String) {
        self.chunks.lock().expect("no thread has panicked").push(chunk);
        self.has_grown.notify_waiters();
    }

    /// Waits until there is a chunk at this position.
    async fn chunk_at(&self, position: usize) -> String {
        loop {
            let grows = self.has_grown.notified();
            if let Some(chunk) = self.chunks.lock().expect("no thread has panicked").get(position) {
                return chunk.clone();
            }
            grows.await;
        }
    }
}

const DONE: &str = "[DONE]";
const MAX_LOGS: usize = 2_000;
