//! An axum route on the server of the crate.

use axum::{Router, routing::post};
use futures_util::stream;
use ui_message_stream::axum::serve;
use ui_message_stream::{AgentEvent, ChatRequest, UiMessageStream};

async fn chat(chat: ChatRequest) -> UiMessageStream {
    UiMessageStream::reply(&chat, stream::iter([AgentEvent::text("Hello")]))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let app = Router::new().route("/api/chat", post(chat));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    serve(listener, app).await;
    Ok(())
}
