//! The main job: a chat whose tools ask a person first. No key, no service, no build step.
//!
//! `cargo run --example chat`, then open the page and ask it to delete a file.

mod model;
mod open_calls;
mod script;
mod world;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{Html, Json};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::sync::watch;
use ui_message_stream::approval::ResumePlan;
use ui_message_stream::axum::ChatPolicy;
use ui_message_stream::id::ChatId;
use ui_message_stream::{ChatRequest, UiMessageStream};

use open_calls::OpenCalls;
use world::{SharedWorld, World};

/// What the routes share.
#[derive(Debug, Default)]
struct Demo {
    world: SharedWorld,
    open_calls: OpenCalls,
    /// Sending `()` stops the run of a chat.
    runs: Mutex<HashMap<ChatId, watch::Sender<()>>>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().init();
    let app = Router::new()
        .route("/", get(async || Html(include_str!("page.html"))))
        .route("/api/chat", post(chat))
        .route("/api/chat/{id}/stream", get(async || StatusCode::NO_CONTENT).delete(stop))
        .route("/api/world", get(async |State(demo): State<Arc<Demo>>| world_now(&demo)))
        // The chat judges for itself who asks; the other routes do with this around them.
        .layer(ChatPolicy::default())
        .with_state(Arc::new(Demo::default()));

    let port = std::env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    println!("Open http://{address} and ask it to delete a file. Or, without a browser:");
    println!(
        "curl -N http://{address}/api/chat -H 'content-type: application/json' \
         -d '{{\"id\":\"1\",\"messages\":[{{\"id\":\"1\",\"role\":\"user\",\"parts\":[{{\"type\":\"text\",\"text\":\"weather\"}}]}}]}}'"
    );
    // Without it the last frame of a turn waits 40 ms for the client's acknowledgement.
    let listener = listener.tap_io(|connection| {
        if let Err(error) = connection.set_nodelay(true) {
            tracing::warn!(%error, "no TCP_NODELAY");
        }
    });
    axum::serve(listener, app).await?;
    Ok(())
}

/// Answers a request: what was decided is looked up, then the agent goes on.
async fn chat(State(demo): State<Arc<Demo>>, chat: ChatRequest) -> UiMessageStream {
    let plan = ResumePlan::new(chat.messages(), chat.continued());
    let deferred = demo.open_calls.redeem(chat.id(), plan);
    let (sender, mut receiver) = watch::channel(());
    demo.runs().insert(chat.id().clone(), sender.clone());
    let stop = async move {
        // Its own end of the channel lives as long as the response.
        let _ = receiver.changed().await;
    };
    let events = script::run(Arc::clone(&demo), &chat, deferred);
    let id = chat.id().clone();
    UiMessageStream::reply(&chat, events).stop_when(stop).on_finish(move |_| {
        // Another run of the chat may have taken the place.
        let mut runs = demo.runs();
        if runs.get(&id).is_some_and(|run| run.same_channel(&sender)) {
            runs.remove(&id);
        }
    })
}

async fn stop(State(demo): State<Arc<Demo>>, Path(id): Path<String>) -> StatusCode {
    if let Some(run) = demo.runs().remove(id.as_str()) {
        let _ = run.send(());
    }
    StatusCode::NO_CONTENT
}

fn world_now(demo: &Demo) -> Json<World> {
    Json(demo.world.now())
}

impl Demo {
    fn runs(&self) -> std::sync::MutexGuard<'_, HashMap<ChatId, watch::Sender<()>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
