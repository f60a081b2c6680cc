//! A server that goes away and comes back: what the model and the user read meanwhile, and that no
//! call is sent twice.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chat_test_support::calling_model::{
    Calls, asked, chunks, finishes_without_error, outcomes, requests_approval,
};
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, JsonRpcMessage, ServerJsonRpcMessage, ToolAnnotations,
};
use rmcp::transport::{IntoTransport, Transport};
use rmcp::{RoleClient, ServiceExt};
use serde_json::{Value, json};
use test_support::eventually;
use test_support::thread_subscriber::captured;
use tokio::time::Instant;
use ui_message_stream::UserText;
use ui_message_stream_agent::{Agent, DynTool};
use ui_message_stream_mcp::{McpClient, McpError, McpTool};

use super::server::{Server, read_only_tool, tool};
use super::tools::{delete_tool, path_input};

pub(crate) const AWAY: &str = "files: This tool call was not executed: the tool server is away.";

const LOST: &str = "files: The tool server went away. What the tool did until then is not known.";

/// Starts a server with a tool that needs approval and one that needs none.
async fn start() -> (Server, McpClient, Vec<McpTool>) {
    let tools = vec![read_only_tool("read"), delete_tool()];
    let (server, connected) = Server::start_reconnecting(tools).await;
    let tools = connected.tools().await.unwrap();
    (server, connected, tools)
}

/// Makes the server go away.
async fn lose(server: &Server, connected: &McpClient) {
    server.hang_up().await;
    eventually(async || !connected.is_connected()).await;
}

/// Lets a model call a tool. Returns the chunks, and the model.
async fn call(tools: &[McpTool], name: &str) -> (Vec<Value>, Calls) {
    let model = Calls::of(&[(name, path_input())]);
    let page = asked(Agent::new(model.clone()).tools(tools.to_vec()), "Go").await;
    let chunks = chunks(&page);
    assert!(finishes_without_error(&chunks), "{chunks:#?}");
    (chunks, model)
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_is_named_and_its_tools_run_when_it_is_back() {
    let (log, _subscribed) = captured();
    let (server, connected, tools) = start().await;
    assert!(connected.is_connected());
    assert_eq!(connected.server_name(), "files");

    server.refuse(true);
    lose(&server, &connected).await;
    for name in ["read", "delete"] {
        let (chunks, model) = call(&tools, name).await;
        assert_eq!(outcomes(&chunks), [AWAY]);
        assert!(!requests_approval(&chunks));
        assert!(model.read().contains(AWAY), "{}", model.read());
        assert_eq!(model.offered().len(), 2);
    }
    assert!(matches!(connected.tools().await, Err(McpError::Timeout)));
    assert!(server.called_tools().is_empty());
    let of_server = |text: &str| {
        let log = log.text();
        log.lines().any(|line| line.contains(text) && line.contains(r#"server="files""#))
    };
    assert!(of_server("WARN") && of_server("a tool server is away"), "{}", log.text());
    assert!(of_server("nothing listens here"), "{}", log.text());

    server.refuse(false);
    eventually(async || connected.is_connected()).await;
    assert!(of_server("a tool server is back"), "{}", log.text());
    let (chunks, _) = call(&tools, "read").await;
    assert_eq!(outcomes(&chunks), [json!({"ok": true})]);
    assert_eq!(server.called_tools(), ["read"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_server_goes_away_is_not_sent_again() {
    let (server, connected, tools) = start().await;
    *server.0.returns.lock().unwrap() = None;
    let going_away = async {
        eventually(async || !server.called_tools().is_empty()).await;
        lose(&server, &connected).await;
        eventually(async || connected.is_connected()).await;
    };
    let ((chunks, model), ()) = tokio::join!(call(&tools, "read"), going_away);
    assert_eq!(outcomes(&chunks), [LOST]);
    assert!(model.read().contains(LOST), "{}", model.read());
    assert_eq!(server.called_tools(), ["read"]);
}

/// A transport that cannot send calls, as over HTTP to a server that does not respond.
struct CannotCall<T>(T);

impl<T: Transport<RoleClient, Error = io::Error>> Transport<RoleClient> for CannotCall<T> {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let is_call = matches!(&message, JsonRpcMessage::Request(request)
            if matches!(request.request, ClientRequest::CallToolRequest(_)));
        let sent = (!is_call).then(|| self.0.send(message));
        async move {
            match sent {
                Some(sent) => sent.await,
                None => Err(io::Error::other("secret.example does not respond")),
            }
        }
    }

    fn receive(&mut self) -> impl Future<Output = Option<ServerJsonRpcMessage>> + Send {
        self.0.receive()
    }

    fn close(&mut self) -> impl Future<Output = io::Result<()>> + Send {
        self.0.close()
    }
}

#[tokio::test]
async fn a_call_that_a_transport_cannot_send_names_the_server_and_not_the_reason() {
    let server = Server::default();
    server.set_tools(vec![read_only_tool("read")]);
    let (client, end) = tokio::io::duplex(1 << 16);
    let _serving = tokio::spawn(async move { server.serve(end).await.unwrap().waiting().await });
    let transport = CannotCall(IntoTransport::<RoleClient, _, _>::into_transport(client));
    let connected = McpClient::connect((), transport).await.unwrap();
    let (chunks, model) = call(&connected.tools().await.unwrap(), "read").await;
    assert_eq!(outcomes(&chunks), [LOST]);
    assert!(model.read().contains(LOST) && !model.read().contains("secret"), "{}", model.read());
}

#[tokio::test(start_paused = true)]
async fn an_approved_call_waits_for_a_server_that_comes_back_and_names_it_otherwise() {
    for comes_back in [true, false] {
        let (server, connected, tools) = start().await;
        let model = Calls::of(&[("delete", path_input())]);
        let mut page = asked(Agent::new(model.clone()).tools(tools), "Go").await;
        assert!(requests_approval(&chunks(&page)));
        server.refuse(!comes_back);
        lose(&server, &connected).await;
        page.approve("delete").await;
        let (outcome, called): (_, &[&str]) = match comes_back {
            true => (json!({"ok": true}), &["delete"]),
            false => (json!(AWAY), &[]),
        };
        assert_eq!(outcomes(&chunks(&page)), [outcome]);
        assert!(finishes_without_error(&chunks(&page)));
        assert_eq!(model.read().contains(AWAY), !comes_back, "{}", model.read());
        assert_eq!(server.called_tools(), called);
    }
}

#[tokio::test(start_paused = true)]
async fn an_approved_call_does_not_run_if_the_server_comes_back_with_another_tool() {
    let (server, connected, tools) = start().await;
    let read = tools[0].clone();
    let mut page =
        asked(Agent::new(Calls::of(&[("delete", path_input())])).tools(tools.clone()), "Go").await;
    server.set_tools(vec![
        read_only_tool("read").annotate(ToolAnnotations::new().read_only(true).open_world(true)),
        tool("delete"),
    ]);
    lose(&server, &connected).await;
    page.approve("delete").await;
    assert_eq!(outcomes(&chunks(&page)), [UserText::Revoked.text()]);
    // The tools were listed before the connection was used.
    assert!(connected.is_connected() && read.definition().unwrap().has_changed);
    let (chunks, _) = call(&tools, "read").await;
    assert!(requests_approval(&chunks) && outcomes(&chunks).is_empty());
    assert!(server.called_tools().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stays_away_is_connected_less_and_less_often() {
    let (server, connected, _tools) = start().await;
    let attempts = || server.0.attempts.load(Ordering::SeqCst);
    server.refuse(true);
    lose(&server, &connected).await;
    let before = attempts();
    tokio::time::sleep(Duration::from_secs(600)).await;
    // After 1, 3, 7, 15 and 31 seconds, and then once in 30.
    let while_away = attempts() - before;
    assert!((20..=25).contains(&while_away), "{while_away} attempts");

    // So is one that ends at once each time.
    server.refuse(false);
    eventually(async || connected.is_connected()).await;
    let begun = Instant::now();
    for _ in 0..5 {
        lose(&server, &connected).await;
        eventually(async || connected.is_connected()).await;
    }
    assert!(begun.elapsed() >= Duration::from_secs(100), "{:?}", begun.elapsed());
    // One that was there for a while is connected soon.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let begun = Instant::now();
    lose(&server, &connected).await;
    eventually(async || connected.is_connected()).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_server_that_cannot_be_connected_first_is_an_error() {
    let transport = || async { Err::<tokio::io::DuplexStream, _>("nothing listens here".into()) };
    let connected = McpClient::reconnecting((), transport).await;
    assert!(matches!(connected, Err(McpError::Connect(_))), "{connected:?}");
}
