//! The tools of `tests/client/verify/server.mjs`, in Rust.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use ui_message_stream::Json;
use ui_message_stream_agent::{Agent, Tool, ToolContext, ToolError};

use super::script::Scripted;

#[derive(Deserialize, JsonSchema)]
struct File {
    path: String,
}

#[derive(Deserialize, JsonSchema)]
struct AnyFile {
    path: Value,
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// The agent that answers. With `before` set: the agent at the time of the approval request, in the
/// cases where it changed since.
pub(crate) fn agent(model: &Scripted, case: &str, before: bool) -> Agent {
    let changed = |name: &str| before && case == name;
    let free = Tool::new("free", async |_: Nothing| Ok::<_, ToolError>("free"));
    let free = match changed("approved-but-no-approval-needed") {
        true => free.needs_approval(),
        false => free,
    };
    let late = Tool::new("late", async |_: Nothing| slowly().await).needs_approval();
    let ask = Tool::client_executed("ask", "", Json::parse(r#"{"type":"object"}"#).unwrap());
    let agent = Agent::new(model.clone())
        .tool(free)
        .tool(Tool::new("slow", async |_: Nothing| slowly().await))
        .tool(late)
        .tool(ask)
        .tool(Tool::new("bad", bad).needs_approval())
        .tool(Tool::new("gen", generate).needs_approval());
    let agent = match changed("approved-invalid-input") {
        true => agent.tool(Tool::new("del", del_anything).needs_approval()),
        false => agent.tool(Tool::new("del", del).needs_approval()),
    };
    match changed("approved-unknown-tool") {
        true => agent.tool(Tool::new("gone", del).needs_approval()),
        false => agent,
    }
}

async fn del(file: File) -> Result<Value, ToolError> {
    Ok(json!({"deleted": file.path}))
}

async fn del_anything(file: AnyFile) -> Result<Value, ToolError> {
    Ok(json!({"deleted": file.path}))
}

async fn slowly() -> Result<&'static str, ToolError> {
    tokio::time::sleep(Duration::from_millis(50)).await;
    Ok("slow")
}

async fn bad(_: Nothing) -> Result<Value, std::io::Error> {
    Err(std::io::Error::other("secret detail"))
}

async fn generate(_: Nothing, context: ToolContext) -> Result<Value, ToolError> {
    for p in 1..=2 {
        context.emit_preliminary(&json!({"p": p})).await.unwrap();
    }
    Ok(json!({"p": 2}))
}
