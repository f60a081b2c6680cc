//! The smallest feature set for an axum route, without approvals.

use axum::{Router, routing::post};
use futures_util::{Stream, stream};
use ui_message_stream::{AgentEvent, ChatRequest, UiMessageStream};

fn run(chat: &ChatRequest) -> impl Stream<Item = AgentEvent> + Send + use<> {
    stream::iter([AgentEvent::text("Hello, "), AgentEvent::text(format!("chat {}!", chat.id()))])
}

async fn chat(chat: ChatRequest) -> UiMessageStream {
    UiMessageStream::reply(&chat, run(&chat))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let app = Router::new().route("/api/chat", post(chat));
    Ok(axum::serve(tokio::net::TcpListener::bind("127.0.0.1:3000").await?, app).await?)
}
