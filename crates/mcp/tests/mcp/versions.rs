//! Servers of several versions of the protocol, each written as messages, and what their tools ask for
//! during a call.

use std::sync::{Arc, Mutex};

use chat_test_support::calling_model::{Calls, asked, chunks, outcomes};
use rmcp::model::{
    ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction,
    ErrorData, Implementation, ProtocolVersion,
};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt, RequestContext};
use rmcp::{ClientHandler, RoleClient};
use serde_json::{Value, json};
use test_support::eventually;
use test_support::thread_subscriber::captured;
use ui_message_stream::BoxError;
use ui_message_stream_agent::{Agent, DynTool};
use ui_message_stream_mcp::{McpClient, McpError, McpTool};

use super::server::{answer, initialized, refusal_of, response_to};
use super::tools::path_input;

/// The methods of the messages that a server received, in order.
#[derive(Debug, Clone, Default)]
struct Received(Arc<Mutex<Vec<Value>>>);

impl Received {
    fn methods(&self) -> Vec<String> {
        let received = self.0.lock().unwrap();
        let methods = received.iter().filter_map(|message| message["method"].as_str());
        methods.map(ToOwned::to_owned).collect()
    }

    fn all(&self, method: &str) -> Vec<Value> {
        let received = self.0.lock().unwrap();
        received.iter().filter(|message| message["method"] == method).cloned().collect()
    }
}

fn discovered() -> Value {
    json!({
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {"listChanged": true}},
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "written", "version": "2"}},
    })
}

fn question() -> Value {
    let name = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    json!({"mode": "form", "message": "Who?", "requestedSchema": name})
}

fn tools() -> Value {
    let annotations = json!({"readOnlyHint": true});
    let tool =
        json!({"name": "read", "inputSchema": {"type": "object"}, "annotations": annotations});
    json!({"resultType": "complete", "tools": [tool], "ttlMs": 0, "cacheScope": "private"})
}

fn text(text: &str) -> Value {
    json!({"resultType": "complete", "content": [{"type": "text", "text": text}]})
}

/// A server of 2026-07-28, whose tool asks for a name. It has no `initialize`.
fn new_server(received: &Received) -> tokio::io::DuplexStream {
    let received = received.clone();
    answer(move |message| {
        received.0.lock().unwrap().push(message.clone());
        let result = match message["method"].as_str().unwrap_or_default() {
            "server/discover" => discovered(),
            "tools/list" => tools(),
            "tools/call" => match &message["params"]["inputResponses"]["who"] {
                Value::Null => json!({
                    "resultType": "input_required",
                    "inputRequests": {
                        "who": {"method": "elicitation/create", "params": question()}
                    },
                    "requestState": "state",
                }),
                answer => {
                    assert_eq!(message["params"]["requestState"], "state");
                    text(&answer.to_string())
                }
            },
            "subscriptions/listen" => {
                let meta = json!({"io.modelcontextprotocol/subscriptionId": message["id"]});
                let notify = |what: &str, mut params: Value| {
                    params["_meta"] = meta.clone();
                    json!({"jsonrpc": "2.0", "method": format!("notifications/{what}"), "params": params})
                };
                let accepted = json!({"notifications": {"toolsListChanged": true}});
                return Some(vec![
                    notify("subscriptions/acknowledged", accepted),
                    notify("tools/list_changed", json!({})),
                ]);
            }
            _ => return Some(refusal_of(&message)),
        };
        Some(vec![response_to(&message, result)])
    })
}

/// A server of 2025-11-25, whose tool asks for a name.
fn old_server(received: &Received, ends_at_discover: bool) -> tokio::io::DuplexStream {
    let received = received.clone();
    let mut call = Value::Null;
    answer(move |message| {
        received.0.lock().unwrap().push(message.clone());
        if message["id"] == "who" {
            return Some(vec![response_to(&call, text(&message["result"].to_string()))]);
        }
        let result = match message["method"].as_str().unwrap_or_default() {
            "server/discover" if ends_at_discover => return None,
            "initialize" => initialized(),
            "tools/list" => tools(),
            "tools/call" => {
                call = message;
                return Some(vec![json!({
                    "jsonrpc": "2.0",
                    "id": "who",
                    "method": "elicitation/create",
                    "params": question(),
                })]);
            }
            _ => return Some(refusal_of(&message)),
        };
        Some(vec![response_to(&message, result)])
    })
}

/// Answers each question.
struct Ada;

impl ClientHandler for Ada {
    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder().enable_elicitation().build();
        ClientConfig::new(capabilities, Implementation::new("host", "1"))
    }

    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let answer = ElicitResult::new(ElicitationAction::Accept);
        Ok(answer.with_content(json!({"name": "Ada"})))
    }
}

/// Fails to answer each question.
struct Fails;

impl ClientHandler for Fails {
    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Err(ErrorData::invalid_params("secret", None))
    }
}

/// Returns the output of the tool.
async fn call(tools: Vec<McpTool>) -> Value {
    let page = asked(Agent::new(Calls::of(&[("read", path_input())])).tools(tools), "Go").await;
    outcomes(&chunks(&page)).remove(0)
}

fn decoded(output: &Value) -> Value {
    serde_json::from_str(output.as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn a_server_that_has_only_discover_is_connected_and_its_changes_are_listed() {
    let received = Received::default();
    let connected = McpClient::connect((), new_server(&received)).await.unwrap();
    assert_eq!(connected.server_name(), "written");
    let tools = connected.tools().await.unwrap();
    assert_eq!(tools[0].name(), "read");
    assert_eq!(received.methods()[0], "server/discover");
    let version = "io.modelcontextprotocol/protocolVersion";
    assert_eq!(received.all("tools/list")[0]["params"]["_meta"][version], "2026-07-28");
    // It reports a change when the client has subscribed.
    eventually(async || {
        let methods = received.methods();
        let subscribed = methods.iter().position(|method| method == "subscriptions/listen");
        subscribed.is_some_and(|at| methods[at..].iter().any(|method| method == "tools/list"))
            && received.all("tools/list").len() >= 2
    })
    .await;
    assert!(!received.methods().iter().any(|method| method == "initialize"));
}

#[tokio::test]
async fn a_tool_that_asks_for_input_is_answered_by_the_handler_in_either_version() {
    for is_new in [true, false] {
        let received = Received::default();
        let server = || match is_new {
            true => new_server(&received),
            false => old_server(&received, false),
        };
        let connected = McpClient::connect(Ada, server()).await.unwrap();
        let output = call(connected.tools().await.unwrap()).await;
        assert_eq!(decoded(&output), json!({"action": "accept", "content": {"name": "Ada"}}));
        assert_eq!(received.all("tools/call").len(), if is_new { 2 } else { 1 });
        assert_eq!(received.all("initialize").len(), usize::from(!is_new));

        // Without a handler, the question is declined.
        let connected = McpClient::connect((), server()).await.unwrap();
        let output = call(connected.tools().await.unwrap()).await;
        assert_eq!(decoded(&output)["action"], "decline");
    }
}

#[tokio::test]
async fn an_error_of_the_handler_is_not_shown() {
    let received = Received::default();
    let connected = McpClient::connect(Fails, new_server(&received)).await.unwrap();
    assert_eq!(call(connected.tools().await.unwrap()).await, "The tool failed.");
    assert_eq!(received.all("tools/call").len(), 1);
}

#[tokio::test]
async fn a_tool_that_asks_again_and_again_fails() {
    let received = Received::default();
    let asked = received.clone();
    let server = answer(move |message| {
        asked.0.lock().unwrap().push(message.clone());
        let result = match message["method"].as_str().unwrap_or_default() {
            "server/discover" => discovered(),
            "tools/list" => tools(),
            "tools/call" => json!({
                "resultType": "input_required",
                "inputRequests": {"who": {"method": "elicitation/create", "params": question()}},
            }),
            _ => return Some(refusal_of(&message)),
        };
        Some(vec![response_to(&message, result)])
    });
    let connected = McpClient::connect(Ada, server).await.unwrap();
    assert_eq!(call(connected.tools().await.unwrap()).await, "The tool failed.");
    assert_eq!(received.all("tools/call").len(), 10);
}

#[tokio::test]
async fn a_tool_that_asks_for_input_fails_over_a_connection_of_the_host_and_the_log_says_why() {
    let (log, _subscribed) = captured();
    let mode = ClientLifecycleMode::Auto {
        preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        legacy_version: None,
    };
    let server = new_server(&Received::default());
    let connection = ().serve_with_lifecycle(server, mode).await.unwrap();
    let connected = McpClient::from_peer(connection.peer().clone());
    assert_eq!(call(connected.tools().await.unwrap()).await, "The tool failed.");
    assert!(log.text().contains("`McpClient::from_peer` has no handler"), "{}", log.text());
}

#[tokio::test]
async fn an_older_server_that_ends_at_discover_is_connected_by_a_second_transport() {
    let received = Received::default();
    let connected = McpClient::connect((), old_server(&received, true)).await;
    assert!(matches!(connected, Err(McpError::Connect(_))), "{connected:?}");

    let servers = received.clone();
    let transport = move || {
        let server = old_server(&servers, true);
        async { Ok::<_, BoxError>(server) }
    };
    let connected = McpClient::reconnecting(Ada, transport).await.unwrap();
    let output = call(connected.tools().await.unwrap()).await;
    assert_eq!(decoded(&output)["content"], json!({"name": "Ada"}));
    assert_eq!(received.methods()[..3], ["server/discover", "server/discover", "initialize"]);
}
