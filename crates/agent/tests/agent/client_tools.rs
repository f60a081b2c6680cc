//! Client tools that a request declares, and the default approval policy.

use std::sync::{Arc, Mutex};

use chat_test_support::answers::{answer, stored};
use chat_test_support::model_double::{ModelDouble, calls, results_in, says};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use test_support::requests::{ada, request, user_message};
use test_support::responses::chunks_of;
use ui_message_stream::Json;
use ui_message_stream::model::{Model, ModelRequest};
use ui_message_stream::request::Limits;
use ui_message_stream_agent::{Agent, ApprovalContext, ClientExecuted, Tool, ToolError};
use ui_message_stream_chat::{ChatError, ChatServer, ClientAnswers, StopReason};

/// The requests that a model has received.
type Requests = Arc<Mutex<Vec<ModelRequest>>>;

/// Returns a model that calls this tool once, and the requests that it receives.
fn recorded(tool: &'static str) -> (Arc<dyn Model>, Requests) {
    let requests = Requests::default();
    let received = Arc::clone(&requests);
    let model = ModelDouble::new(move |request, _| {
        let results = results_in(&request);
        received.lock().unwrap().push(request);
        match results {
            0 => calls("call_1", tool, r#"{"city":"Lisbon"}"#),
            _ => says("Thanks"),
        }
    });
    (Arc::new(model), requests)
}

fn model(tool: &'static str) -> Arc<dyn Model> {
    recorded(tool).0
}

#[derive(Deserialize, JsonSchema)]
struct City {
    city: String,
}

async fn weather(city: City) -> Result<String, ToolError> {
    Ok(format!("sunny in {}", city.city))
}

fn body_with_client_tools(client_tools: Value) -> Value {
    json!({
        "id": "chat",
        "messages": [user_message("m1", "Go")],
        "clientTools": client_tools,
    })
}

async fn post(chats: &ChatServer, body: &Value) -> Result<Vec<Value>, ChatError> {
    Ok(chunks_of(&answer(chats, request(body)).await?))
}

fn has(chunks: &[Value], kind: &str) -> bool {
    chunks.iter().any(|chunk| chunk["type"] == kind)
}

#[tokio::test]
async fn a_tool_declared_by_the_request_is_executed_by_the_client() {
    let (model, requests_read) = recorded("show_map");
    let agent = Agent::new(model).tool(Tool::new("weather", weather)).with_client_tools();
    let chats = agent.into_chat_server();
    // A schema that rejects every input: the client validates the inputs of its own tools.
    let schema = json!({"type": "object", "not": {}});
    let map = json!({"name": "show_map", "description": "Shows a map.", "inputSchema": schema});
    let chunks = post(&chats, &body_with_client_tools(json!([map]))).await.unwrap();
    assert!(has(&chunks, "tool-input-available") && !has(&chunks, "tool-output-available"));
    assert_eq!(chunks.last().unwrap()["finishReason"], "tool-calls");
    let requests = requests_read.lock().unwrap()[0].tools.clone();
    assert_eq!(
        requests.iter().map(|tool| &*tool.name).collect::<Vec<_>>(),
        ["weather", "show_map"]
    );
    assert_eq!(requests[1].input_schema.as_str(), schema.to_string());

    // The request with the output does not have to declare the tool again.
    let answer = message_with_call(&chunks, "output-available", json!({"output": "shown"}));
    let chunks = post(&chats, &answer).await.unwrap();
    assert!(chunks.iter().any(|chunk| chunk["delta"] == "Thanks"), "{chunks:?}");
}

#[tokio::test]
async fn a_client_tool_without_a_schema_takes_any_object() {
    let (model, requests_read) = recorded("show_map");
    let chats = Agent::new(model).with_client_tools().into_chat_server();
    let body = body_with_client_tools(json!([{"name": "show_map"}]));
    assert!(has(&post(&chats, &body).await.unwrap(), "tool-input-available"));
    let requests = requests_read.lock().unwrap();
    assert_eq!(requests[0].tools[0].input_schema.as_str(), r#"{"type": "object"}"#);
}

/// The message of a response with one call, in this state.
fn message_with_call(chunks: &[Value], state: &str, fields: Value) -> Value {
    let mut part = json!({
        "type": "tool-show_map", "toolCallId": "call_1", "state": state,
        "input": {"city": "Lisbon"},
    });
    part.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let message = json!({"id": chunks[0]["messageId"], "role": "assistant", "parts": [part]});
    json!({"id": "chat", "messages": [message]})
}

/// What a response to the approval request of these chunks holds.
fn approval(asked: &[Value], approved: bool) -> Value {
    let request = asked.iter().find(|chunk| chunk["type"] == "tool-approval-request");
    json!({"id": request.unwrap()["approvalId"], "approved": approved})
}

/// Responds to the approval request of these chunks.
fn respond(asked: &[Value], approved: bool) -> Value {
    let approval = json!({"approval": approval(asked, approved)});
    message_with_call(asked, "approval-responded", approval)
}

#[tokio::test]
async fn a_client_executes_an_approved_call_once_and_gets_it_again_if_it_repeats_the_approval() {
    for (field, agent) in [
        ("requiresApproval", Agent::new(model("show_map")).with_client_tools()),
        ("requires_approval", Agent::new(model("show_map")).with_client_tools()),
        ("default_requires_approval", Agent::new(model("show_map")).with_client_tools()),
        // A tool of the server's agent.
        ("", Agent::new(model("show_map")).tool(client_tool().needs_approval())),
    ] {
        let chats = agent.into_chat_server();
        let tools = json!([{"name": "show_map", (field): true}]);
        let question = body_with_client_tools(tools);
        let asked = post(&chats, &question).await.unwrap();
        assert!(!has(&asked, "tool-input-available"), "the client would execute it: {asked:?}");
        assert_eq!(asked.last().unwrap()["finishReason"], "tool-calls");

        let repeated = post(&chats, &question).await.unwrap();
        assert!(has(&repeated, "tool-approval-request"), "{repeated:?}");
        assert!(!has(&repeated, "tool-input-available"), "{repeated:?}");

        let output = json!({"output": "shown", "approval": approval(&asked, true)});
        let executed = message_with_call(&asked, "output-available", output);
        // The client claims an output before the call is approved.
        let refused = post(&chats, &executed).await.unwrap();
        assert!(!refused.iter().any(|chunk| chunk["delta"] == "Thanks"), "{refused:?}");

        let answer = respond(&asked, true);
        for _ in 0..2 {
            let handed = post(&chats, &answer).await.unwrap();
            let at = handed.iter().position(|chunk| chunk["type"] == "tool-input-available");
            let available = &handed[at.unwrap_or_else(|| panic!("{handed:?}"))];
            assert_eq!(available["input"], json!({"city": "Lisbon"}));
            assert!(!has(&handed, "start-step"), "{handed:?}");
            assert_eq!(handed.last().unwrap()["finishReason"], "tool-calls", "{handed:?}");
            assert_eq!(stored(&chats).await.client_executed.len(), 1);
        }
        // Another page, which still asks, denies it.
        let overruled = post(&chats, &respond(&asked, false)).await.unwrap();
        assert!(!has(&overruled, "tool-output-denied"), "{overruled:?}");
        assert!(!has(&overruled, "tool-input-available"), "{overruled:?}");

        let answered = post(&chats, &executed).await.unwrap();
        assert!(answered.iter().any(|chunk| chunk["delta"] == "Thanks"), "{field}: {answered:?}");
        assert!(stored(&chats).await.client_executed.is_empty());
        let again = post(&chats, &answer).await.unwrap();
        assert!(has(&again, "tool-output-available"), "{again:?}");
        // A client that reads the whole response again must not execute the call again.
        let replayed = post(&chats, &question).await.unwrap();
        assert!(has(&replayed, "tool-output-available"), "{replayed:?}");
        assert!(!has(&replayed, "tool-input-available"), "{replayed:?}");
    }
}

#[tokio::test]
async fn a_call_of_the_client_that_is_denied_is_not_handed_to_it() {
    let chats = Agent::new(model("show_map")).tool(client_tool().needs_approval());
    let chats = chats.into_chat_server();
    let asked = post(&chats, &body_with_client_tools(json!([]))).await.unwrap();
    let denied = post(&chats, &respond(&asked, false)).await.unwrap();
    assert!(has(&denied, "tool-output-denied") && !has(&denied, "tool-input-available"));
    assert!(denied.iter().any(|chunk| chunk["delta"] == "Thanks"), "{denied:?}");
    let repeated = post(&chats, &body_with_client_tools(json!([]))).await.unwrap();
    assert!(has(&repeated, "tool-output-denied") && !has(&repeated, "tool-input-available"));
}

#[tokio::test]
async fn a_newer_message_says_what_is_known_of_a_call_that_waits_for_its_client() {
    for (is_approved, text) in [(false, "was not executed"), (true, "not known whether")] {
        let (model, requests_read) = recorded("show_map");
        let chats = Agent::new(model).tool(client_tool().needs_approval());
        let chats = chats.into_chat_server();
        let question = body_with_client_tools(json!([]));
        let asked = post(&chats, &question).await.unwrap();
        assert!(has(&asked, "tool-approval-request"), "{asked:?}");
        if is_approved {
            let handed = post(&chats, &respond(&asked, true)).await.unwrap();
            assert!(has(&handed, "tool-input-available"), "{handed:?}");
        }
        let newer = user_message("m2", "?");
        post(&chats, &json!({"id": "chat", "messages": [newer]})).await.unwrap();
        let read = format!("{:?}", requests_read.lock().unwrap().last().unwrap().messages);
        let stored = serde_json::to_value(&stored(&chats).await.messages[1]).unwrap();
        let error = stored["parts"][1]["errorText"].as_str().unwrap_or_default();
        assert!(error.contains(text), "{is_approved}: {stored}\n{read}");
        let repeated = post(&chats, &question).await.unwrap();
        assert!(!has(&repeated, "tool-input-available"), "{repeated:?}");
    }
}

fn client_tool() -> Tool<ClientExecuted> {
    Tool::client_executed("show_map", "Shows a map.", Json::parse("{}").unwrap())
}

#[tokio::test]
async fn client_tools_may_use_either_field_name_but_not_both() {
    let tools = json!([{"name": "show_map", "input_schema": {}}]);
    let model = model("show_map");
    let chats = Agent::new(model).with_client_tools().into_chat_server();
    let mut body = body_with_client_tools(json!(null));
    body.as_object_mut().unwrap().remove("clientTools");
    body["client_tools"] = tools.clone();
    assert!(has(&post(&chats, &body).await.unwrap(), "tool-input-available"));
    body["clientTools"] = tools;
    let error = post(&chats, &body).await.unwrap_err();
    assert_eq!(error.to_string(), "clientTools: given twice, as `client_tools` as well");
}

#[tokio::test]
async fn a_request_with_answers_by_id_declares_client_tools_too() {
    let (model, requests_read) = recorded("show_map");
    let agent = Agent::new(model).tool(Tool::new("weather", weather)).with_client_tools();
    let chats = agent.into_chat_server();
    let tools = json!([{"name": "show_map", "inputSchema": {}}]);
    post(&chats, &body_with_client_tools(tools.clone())).await.unwrap();
    let outputs = json!([{"toolCallId": "call_1", "output": "shown"}]);
    let body = json!({"toolOutputs": outputs, "clientTools": tools}).to_string();
    let answers = ClientAnswers::parse(body.as_bytes(), &Limits::default()).unwrap();
    let request = chats.request_from_answers(&ada(), &"chat".into(), &answers).await.unwrap();
    let answer = chats.complete_response(&ada(), request).await.unwrap();
    assert_eq!(answer.stop_reason, StopReason::Stop);
    let requests = requests_read.lock().unwrap();
    assert_eq!((requests.len(), requests[1].tools.len()), (2, 2));
}

#[tokio::test]
async fn a_request_can_neither_replace_a_server_tool_nor_declare_an_invalid_one() {
    let tool = |name: &str| json!({"name": name, "inputSchema": {}});
    for (client_tools, expected_error) in [
        (json!([tool("weather")]), "clientTools[0].name: is a tool of the server"),
        (json!([tool("a"), tool("weather")]), "clientTools[1].name: is a tool of the server"),
        (json!([tool("a"), tool("a")]), "clientTools[1].name: given twice"),
        (json!([tool("")]), "clientTools[0].name: takes letters"),
        (json!([tool("rm -rf")]), "clientTools[0].name: takes letters"),
        (json!([tool(&"a".repeat(65))]), "clientTools[0].name: takes letters"),
        (
            json!([{"name": "a", "inputSchema": true}]),
            "clientTools[0].inputSchema: expected an object",
        ),
        (json!([{"description": "a"}]), "clientTools: expected a list of"),
        (
            json!([{"name": "a", "inputSchema": null}]),
            "clientTools[0].inputSchema: expected an object",
        ),
        (json!({"a": {}}), "clientTools: expected a list of"),
        (
            Value::Array((0..129).map(|n| tool(&format!("t{n}"))).collect()),
            "clientTools: more than 128",
        ),
    ] {
        let (model, requests_read) = recorded("weather");
        let agent = Agent::new(model).tool(Tool::new("weather", weather));
        let chats = agent.with_client_tools().into_chat_server();
        let error = post(&chats, &body_with_client_tools(client_tools)).await.unwrap_err();
        assert!(matches!(error, ChatError::Request(_)), "{error:?}");
        assert!(error.to_string().starts_with(expected_error), "{error}");
        assert!(requests_read.lock().unwrap().is_empty());
        let stored = chats.chat(&ada(), &"chat".into()).await;
        assert!(matches!(stored, Err(ChatError::NotFound)), "the chat was not stored");
    }
}

#[tokio::test]
async fn an_agent_without_client_tools_ignores_declared_tools() {
    let (model, requests_read) = recorded("show_map");
    let agent = Agent::new(model).tool(Tool::new("weather", weather));
    let client_tools = json!([{"name": "show_map", "inputSchema": {}}]);
    let chunks =
        post(&agent.into_chat_server(), &body_with_client_tools(client_tools)).await.unwrap();
    assert!(has(&chunks, "tool-input-error"), "{chunks:?}");
    assert_eq!(requests_read.lock().unwrap()[0].tools.len(), 1);
}

#[tokio::test]
async fn the_agents_default_requires_approval_only_for_tools_without_a_setting() {
    let agent = |tool: Tool<City>, body_with_client_tools: bool| {
        let agent = Agent::new(model("weather")).tool(tool);
        if body_with_client_tools { agent.require_approval_by_default() } else { agent }
    };
    let tool = || Tool::new("weather", weather);
    for (tool, required_by_default, expects_approval) in [
        (tool(), false, false),
        (tool(), true, true),
        (tool().never_needs_approval(), true, false),
        (tool().needs_approval(), false, true),
        (tool().needs_approval_when(|city, _| city.city != "Lisbon"), true, false),
    ] {
        let chats = agent(tool, required_by_default).into_chat_server();
        let chunks = post(&chats, &body_with_client_tools(json!(null))).await.unwrap();
        assert_eq!(has(&chunks, "tool-approval-request"), expects_approval, "{chunks:?}");
        assert_eq!(has(&chunks, "tool-output-available"), !expects_approval, "{chunks:?}");
    }
}

#[tokio::test]
async fn a_predicate_that_panics_before_it_returns_a_future_requests_approval() {
    async fn is_dear(
        _: Arc<City>,
        _: ApprovalContext,
    ) -> Result<bool, ui_message_stream::BoxError> {
        Ok(false)
    }
    let tool =
        Tool::new("weather", weather).needs_approval_when_async(|city: Arc<City>, context| {
            assert!(city.city.len() > 100, "panics where it is called");
            is_dear(city, context)
        });
    let chats = Agent::new(model("weather")).tool(tool).into_chat_server();
    let chunks = post(&chats, &body_with_client_tools(json!(null))).await.unwrap();
    assert!(has(&chunks, "tool-approval-request"), "{chunks:?}");
}
