//! A chat server with a custom agent behind axum: conversations whose tools need approval.
//! Neither `Agent` nor a JSON Schema validator is compiled.

use axum::{Router, routing::post};
use futures_util::stream;
use ui_message_stream::approval::{Approvals, EmptyToolbox};
use ui_message_stream::axum::without_authentication;
use ui_message_stream_chat::axum::chat_routes;
use ui_message_stream_chat::{ChatServer, Turn};
use ui_message_stream::{AgentEvent, BoxError, ChatRequest, UiMessageStream};

async fn chat(chat: ChatRequest) -> UiMessageStream {
    UiMessageStream::reply(&chat, stream::iter([AgentEvent::text("Hello")]))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let respond = |_: Turn| {
        stream::iter([Ok::<_, BoxError>(AgentEvent::text("Hello from the server's chat"))])
    };
    let chats = ChatServer::new(respond, Approvals::new(EmptyToolbox));
    let app = Router::new()
        .route("/api/hello", post(chat))
        .nest("/api/chat", chat_routes(chats))
        .layer(without_authentication());
    Ok(axum::serve(tokio::net::TcpListener::bind("127.0.0.1:3000").await?, app).await?)
}
