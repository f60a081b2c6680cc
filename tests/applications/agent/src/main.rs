//! An agent with typed tools and a custom model, behind the routes of a chat server.

use axum::Router;
use futures_util::stream;
use schemars::JsonSchema;
use serde::Deserialize;
use ui_message_stream::AgentEvent;
use ui_message_stream_agent::{Agent, ToolError, Tool};
use ui_message_stream::model::{Model, ModelEvent, ModelRequest, ModelStream};
use ui_message_stream::axum::without_authentication;
use ui_message_stream_chat::axum::chat_routes;

#[derive(Debug)]
struct Hello;

impl Model for Hello {
    fn call(&self, _: ModelRequest) -> ModelStream {
        Box::pin(stream::iter([Ok(ModelEvent::Event(AgentEvent::text("Hello")))]))
    }
}

/// Deletes a file.
#[derive(Debug, Deserialize, JsonSchema)]
struct DeleteFile {
    path: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let delete = async |file: DeleteFile| Ok::<_, ToolError>(format!("deleted {}", file.path));
    let agent = Agent::new(Hello).tool(Tool::new("delete_file", delete).needs_approval());
    let app = Router::new()
        .nest("/api/chat", chat_routes(agent.into_chat_server()))
        .layer(without_authentication());
    Ok(axum::serve(tokio::net::TcpListener::bind("127.0.0.1:3000").await?, app).await?)
}
