//! An agent with the tools of a Model Context Protocol server, one of which needs approval. It
//! needs no key and no service.
//!
//! `cargo run -p ui-message-stream-mcp --example mcp_tools` starts a second instance of itself as
//! the server, in a separate process, and connects to it. A scripted model lists the files and
//! deletes one; you are asked to approve the deletion.

use std::io::Write;
use std::sync::Mutex;

use futures::{StreamExt, stream};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::transport::{TokioChildProcess, stdio};
use rmcp::{RoleServer, ServerHandler, ServiceExt};
use serde_json::{Value, json};
use tokio::process::Command;
use ui_message_stream::ChatRequest;
use ui_message_stream::approval::Principal;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::model::{Model, ModelEvent, ModelMessage, ModelRequest, ModelStream};
use ui_message_stream::request::Limits;
use ui_message_stream_agent::Agent;
use ui_message_stream_chat::ChatServer;
use ui_message_stream_mcp::McpClient;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        let files = Files(Mutex::new(vec!["notes.txt".into(), "plan.txt".into()]));
        files.serve(stdio()).await?.waiting().await?;
        return Ok(());
    }
    let mut server = Command::new(std::env::current_exe()?);
    server.arg("serve");
    let files = McpClient::connect((), TokioChildProcess::new(server)?).await?;
    let chats = Agent::new(ScriptedModel).tools(files.tools().await?).into_chat_server();

    let user =
        json!({"id": "1", "role": "user", "parts": [{"type": "text", "text": "Delete a file."}]});
    let mut message = turn(&chats, &[&user]).await?;
    for part in message["parts"].as_array_mut().into_iter().flatten() {
        if part["state"] != "approval-requested" {
            continue;
        }
        print!("May {} run with {}? [y/N] ", part["toolName"], part["input"]);
        std::io::stdout().flush()?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        part["state"] = "approval-responded".into();
        part["approval"]["approved"] = (answer.trim() == "y").into();
    }
    turn(&chats, &[&user, &message]).await?;
    Ok(())
}

/// Sends the request that a browser would send, prints the frames of the response, and returns the
/// resulting message.
async fn turn(chats: &ChatServer, messages: &[&Value]) -> anyhow::Result<Value> {
    let me = Principal::new("me");
    let body = json!({"id": "chat", "messages": messages}).to_string();
    let request = ChatRequest::parse(body.as_bytes(), &Limits::default())?;
    let id = request.id().clone();
    let mut response = chats.stream_response(&me, request).await?;
    while let Some(frames) = response.next().await {
        print!("{}", String::from_utf8_lossy(&frames?).replace("\n\n", "\n"));
    }
    let chat = chats.chat(&me, &id).await?;
    Ok(serde_json::to_value(chat.messages.last())?)
}

/// The server: its tools list and delete files.
struct Files(Mutex<Vec<String>>);

impl ServerHandler for Files {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = |properties: Value| {
            let required: Vec<&String> =
                properties.as_object().into_iter().flatten().map(|p| p.0).collect();
            json!({"type": "object", "required": required, "properties": properties})
        };
        let tool = |name: &'static str, description: &'static str, schema: Value, is_read_only| {
            let schema = schema.as_object().cloned().unwrap_or_default();
            Tool::new(name, description, schema)
                .annotate(ToolAnnotations::new().read_only(is_read_only))
        };
        Ok(ListToolsResult::with_all_items(vec![
            tool("list_files", "Lists the files.", schema(json!({})), true),
            tool("delete_file", "Deletes it.", schema(json!({"name": {"type": "string"}})), false),
        ]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let mut files = self.0.lock().map_err(|_| ErrorData::internal_error("poisoned", None))?;
        if request.name == "delete_file" {
            let arguments = request.arguments.unwrap_or_default();
            files.retain(|file| arguments.get("name") != Some(&json!(file)));
        }
        Ok(CallToolResult::success(vec![ContentBlock::text(files.join(", "))]).into())
    }
}

/// A model that lists the files, deletes one, and ends with a text.
#[derive(Debug)]
struct ScriptedModel;

impl Model for ScriptedModel {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let is_result = |message: &&ModelMessage| matches!(message, ModelMessage::Tool { .. });
        let call = |tool, input: Value| {
            let call = ToolCall::new(tool, tool);
            (ModelEvent::ToolCall(Box::new(call), input.to_string()), FinishReason::ToolCalls)
        };
        let (event, reason) = match request.messages.iter().filter(is_result).count() {
            0 => call("list_files", json!({})),
            1 => call("delete_file", json!({"name": "notes.txt"})),
            _ => (ModelEvent::Event(AgentEvent::text("That was that.")), FinishReason::Stop),
        };
        Box::pin(stream::iter([Ok(event), Ok(ModelEvent::Finished(reason))]))
    }
}
