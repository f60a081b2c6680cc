//! The default features: a custom agent behind axum, whose tools need approval. No chat server is compiled.

use axum::extract::State;
use axum::{Router, routing::post};
use futures_util::stream;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream::axum::{ChatRejection, without_authentication};
use ui_message_stream::{AgentEvent, ChatRequest, UiMessageStream};

async fn chat(
    State(approvals): State<Approvals>,
    user: Principal,
    chat: ChatRequest,
) -> Result<UiMessageStream, ChatRejection> {
    let waiting = approvals.for_chat(&user, chat.id()).pending().await?.len();
    let text = AgentEvent::text(format!("{waiting} questions wait"));
    Ok(UiMessageStream::reply(&chat, stream::iter([text])))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let app = Router::new()
        .route("/api/chat", post(chat))
        .with_state(Approvals::new(EmptyToolbox))
        .layer(without_authentication());
    Ok(axum::serve(tokio::net::TcpListener::bind("127.0.0.1:3000").await?, app).await?)
}
