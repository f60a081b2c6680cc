//! A Model Context Protocol server in this process, whose tools and results a test can change.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ErrorData, Implementation,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    ToolAnnotations,
};
use rmcp::service::{RequestContext, RunningService};
use rmcp::{RoleServer, ServerHandler, ServiceExt};
use serde_json::{Value, json};
use test_support::eventually;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream};
use ui_message_stream::BoxError;
use ui_message_stream_mcp::McpClient;

/// A server. Clones share their state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Server(pub(crate) Arc<State>);

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) tools: Mutex<Vec<Tool>>,
    /// The result of every call. If it is `None`, calls never return.
    pub(crate) returns: Mutex<Option<Result<CallToolResult, ErrorData>>>,
    /// The names of the called tools, in order.
    pub(crate) called_tools: Mutex<Vec<String>>,
    /// How the server answers a request for its tools.
    pub(crate) listing: Mutex<Listing>,
    pub(crate) listed: AtomicUsize,
    /// Whether it accepts no further connection.
    pub(crate) refuses: AtomicBool,
    /// How often it was connected, with and without success.
    pub(crate) attempts: AtomicUsize,
    /// Its side of the last connection of a client that reconnects.
    running: Mutex<Option<Running>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) enum Listing {
    /// With all tools, valid for a day.
    #[default]
    Cached,
    /// With a next page after every page.
    Endless,
    /// After six seconds.
    Slow,
    /// Never.
    Silent,
}

impl Server {
    /// Starts a server with these tools. Returns it, a connection to it, and its side of the
    /// connection.
    pub(crate) async fn start(tools: Vec<Tool>) -> (Self, McpClient, Running) {
        let server = Server::with_tools(tools);
        let (client, end) = tokio::io::duplex(1 << 16);
        let serving = tokio::spawn(server.clone().serve(end));
        let connected = McpClient::connect((), client).await.unwrap();
        (server, connected, serving.await.unwrap().unwrap())
    }

    /// Starts a server with these tools, and a client that connects again.
    pub(crate) async fn start_reconnecting(tools: Vec<Tool>) -> (Self, McpClient) {
        let server = Server::with_tools(tools);
        let this = server.clone();
        let transport = move || {
            let this = this.clone();
            async move { this.accept() }
        };
        let connected = McpClient::reconnecting((), transport).await.unwrap();
        (server, connected)
    }

    fn with_tools(tools: Vec<Tool>) -> Self {
        let server = Server::default();
        server.set_tools(tools);
        server.returns(CallToolResult::structured(json!({"ok": true})));
        server
    }

    fn accept(&self) -> Result<DuplexStream, BoxError> {
        self.0.attempts.fetch_add(1, Ordering::SeqCst);
        if self.0.refuses.load(Ordering::SeqCst) {
            return Err("nothing listens here".into());
        }
        let (client, end) = tokio::io::duplex(1 << 16);
        let server = self.clone();
        tokio::spawn(async move {
            let running = server.clone().serve(end).await.unwrap();
            *server.0.running.lock().unwrap() = Some(running);
        });
        Ok(client)
    }

    /// Ends the last connection of a client that reconnects.
    pub(crate) async fn hang_up(&self) {
        // The client may have been connected before the server knows.
        eventually(async || self.0.running.lock().unwrap().is_some()).await;
        let running = self.0.running.lock().unwrap().take();
        running.unwrap().cancel().await.unwrap();
    }

    /// Sets whether it accepts no further connection.
    pub(crate) fn refuse(&self, refuses: bool) {
        self.0.refuses.store(refuses, Ordering::SeqCst);
    }

    pub(crate) fn returns(&self, result: CallToolResult) {
        *self.0.returns.lock().unwrap() = Some(Ok(result));
    }

    pub(crate) fn set_tools(&self, tools: Vec<Tool>) {
        *self.0.tools.lock().unwrap() = tools;
    }

    pub(crate) fn called_tools(&self) -> Vec<String> {
        self.0.called_tools.lock().unwrap().clone()
    }
}

pub(crate) type Running = RunningService<RoleServer, Server>;

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(
            ServerCapabilities::builder().enable_tools().enable_tool_list_changed().build(),
        )
        .with_server_info(Implementation::new("files", "1"))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        self.0.listed.fetch_add(1, Ordering::SeqCst);
        let mut list = ListToolsResult::with_all_items(self.0.tools.lock().unwrap().clone());
        list.ttl_ms = Some(24 * 60 * 60 * 1000);
        let listing = *self.0.listing.lock().unwrap();
        match listing {
            Listing::Cached => {}
            Listing::Endless => list.next_cursor = Some("more".to_owned()),
            Listing::Slow => tokio::time::sleep(Duration::from_secs(6)).await,
            Listing::Silent => std::future::pending().await,
        }
        Ok(list)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.0.called_tools.lock().unwrap().push(request.name.to_string());
        let returns = self.0.returns.lock().unwrap().clone();
        match returns {
            Some(result) => result.map(Into::into),
            None => std::future::pending().await,
        }
    }
}

/// Returns a tool whose input has a path.
pub(crate) fn tool(name: &'static str) -> Tool {
    tool_with_schema(
        name,
        json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}),
    )
}

pub(crate) fn tool_with_schema(name: &'static str, schema: Value) -> Tool {
    Tool::new(name, "Does something to a file.", schema.as_object().unwrap().clone())
}

pub(crate) fn read_only_tool(name: &'static str) -> Tool {
    tool(name).annotate(ToolAnnotations::new().read_only(true))
}

/// Connects to a server that is not made with `rmcp`, which leaves out what an older client would not
/// know. It has a tool `read`, with this result.
pub(crate) async fn written_server(result: Value) -> McpClient {
    let server = answer(move |request| {
        let result = match request["method"].as_str().unwrap() {
            "initialize" => initialized(),
            "tools/list" => {
                json!({"tools": [{"name": "read", "inputSchema": {"type": "object"}}]})
            }
            "tools/call" => result.clone(),
            _ => return Some(refusal_of(&request)),
        };
        Some(vec![response_to(&request, result)])
    });
    McpClient::connect((), server).await.unwrap()
}

/// Returns the result of `initialize` of an older server.
pub(crate) fn initialized() -> Value {
    json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "written", "version": "1"},
    })
}

pub(crate) fn response_to(request: &Value, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": request["id"], "result": result})
}

/// Returns the response to a request of an unknown method, and none to a notification.
pub(crate) fn refusal_of(request: &Value) -> Vec<Value> {
    let error = json!({"code": -32601, "message": "unknown method"});
    match request["id"].is_null() {
        true => vec![],
        false => vec![json!({"jsonrpc": "2.0", "id": request["id"], "error": error})],
    }
}

/// Starts a server that answers each message with these, until its closure returns `None`.
pub(crate) fn answer(
    mut answers: impl FnMut(Value) -> Option<Vec<Value>> + Send + 'static,
) -> DuplexStream {
    let (client, end) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move {
        let (reader, mut writer) = tokio::io::split(end);
        let mut lines = BufReader::new(reader).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let Some(answers) = answers(serde_json::from_str(&line).unwrap()) else { return };
            for answer in answers {
                writer.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
            }
        }
    });
    client
}
