//! A tool server in a separate process is killed with SIGKILL while its tool runs: that call fails,
//! the other calls complete, the stream ends with `finish`, and the model is not offered the tools
//! of the server any more.
//!
//! This program is the server and the test. Started with `serve`, it is the server, which reports a
//! call on standard error and never returns. Otherwise it starts the server, and kills it when it
//! reports the call.

use std::process::Stdio;

use chat_test_support::calling_model::{
    Calls, asked, chunks, finishes_without_error, outcomes, requests_approval,
};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorData, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::transport::{TokioChildProcess, stdio};
use rmcp::{RoleServer, ServerHandler, ServiceExt};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use ui_message_stream_agent::{Agent, Tool as OwnTool, ToolError};
use ui_message_stream_mcp::McpClient;

#[tokio::main]
async fn main() {
    if std::env::args().any(|argument| argument == "serve") {
        HangingServer.serve(stdio()).await.unwrap().waiting().await.unwrap();
        return;
    }
    kill_while_the_tool_runs("reads").await;
    kill_while_the_tool_runs("deletes").await;
    eprintln!("2 servers killed while a tool ran, every call has a result");
}

async fn kill_while_the_tool_runs(tool: &str) {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.arg("serve");
    let builder = TokioChildProcess::builder(program).stderr(Stdio::piped());
    let (server, stderr) = builder.spawn().unwrap();
    let id = server.id().unwrap().to_string();
    let stderr = BufReader::new(stderr.unwrap());
    let killer = tokio::spawn(async move {
        let mut lines = stderr.lines();
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("called"));
        // The one of the shell: a small image has no program of this name.
        let kill = format!("kill -KILL {id}");
        assert!(Command::new("sh").args(["-c", &kill]).status().await.unwrap().success());
    });

    let server = McpClient::connect((), server).await.unwrap();
    let calls = Calls::of(&[(tool, json!({})), ("own", json!({}))]);
    let agent = Agent::new(calls.clone())
        .tools(server.tools().await.unwrap())
        .tool(OwnTool::new("own", async |_: Nothing| Ok::<_, ToolError>("done")));
    let mut page = asked(agent, "Go").await;
    let mut results = outcomes(&chunks(&page));
    if requests_approval(&chunks(&page)) {
        assert_eq!(results, ["done"]);
        page.approve(tool).await;
        results.splice(..0, outcomes(&chunks(&page)));
    }
    assert_eq!(results, [SERVER_CLOSED, "done"]);
    assert!(finishes_without_error(&chunks(&page)));
    killer.await.unwrap();
    let offered: Vec<_> = calls.offered().into_iter().map(|tool| tool.name).collect();
    assert_eq!(offered, [Box::<str>::from("own")]);
}

/// Takes nothing.
#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// A server whose tools never return.
struct HangingServer;

impl ServerHandler for HangingServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("files", "1"))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tool = |name: &'static str, only_reads| {
            let schema = json!({"type": "object"}).as_object().unwrap().clone();
            let annotations = ToolAnnotations::new().read_only(only_reads);
            Tool::new(name, "Takes its time.", schema).annotate(annotations)
        };
        Ok(ListToolsResult::with_all_items(vec![tool("reads", true), tool("deletes", false)]))
    }

    async fn call_tool(
        &self,
        _: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        eprintln!("called");
        std::future::pending().await
    }
}

const SERVER_CLOSED: &str =
    "files: The tool server went away. What the tool did until then is not known.";
