//! Tools that a request brings for the client to run, and who is asked by default.

use std::sync::{Arc, Mutex};

use futures::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use ui_message_stream::ChatRequest;
use ui_message_stream::agent::{Agent, ApprovalContext, Tool, ToolError};
use ui_message_stream::approval::Principal;
use ui_message_stream::chat::{ChatError, ChatServer, ClientAnswers, StopReason};
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::model::{Model, ModelEvent, ModelMessage, ModelRequest, ModelStream};
use ui_message_stream::request::Limits;

/// Calls this tool once, and keeps what it was told of tools and results.
#[derive(Debug, Clone)]
struct CallsOnce {
    tool: &'static str,
    told: Arc<Mutex<Vec<ModelRequest>>>,
}

impl Model for CallsOnce {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let is_result = |message: &ModelMessage| matches!(message, ModelMessage::Tool { .. });
        let was_called = request.messages.iter().any(is_result);
        self.told.lock().unwrap().push(request);
        let said = match was_called {
            true => ModelEvent::Event(AgentEvent::text("Thanks")),
            false => {
                let call = ToolCall::new("call_1", self.tool);
                ModelEvent::ToolCall(Box::new(call), r#"{"city":"Lisbon"}"#.to_owned())
            }
        };
        let finished = ModelEvent::Finished(FinishReason::Stop);
        Box::pin(stream::iter([Ok(said), Ok(finished)]))
    }
}

fn model(tool: &'static str) -> CallsOnce {
    CallsOnce { tool, told: Arc::default() }
}

#[derive(Deserialize, JsonSchema)]
struct City {
    city: String,
}

async fn weather(city: City) -> Result<String, ToolError> {
    Ok(format!("sunny in {}", city.city))
}

fn asks(client_tools: Value) -> Value {
    json!({
        "id": "chat",
        "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Go"}]}],
        "clientTools": client_tools,
    })
}

async fn post(chats: &ChatServer, body: &Value) -> Result<Vec<Value>, ChatError> {
    let request = ChatRequest::parse(body.to_string().as_bytes(), &Limits::default()).unwrap();
    let response = chats.stream_response(&Principal::new("ada"), request).await?;
    let bytes: Vec<u8> =
        response.map(|bytes| bytes.unwrap().to_vec()).collect::<Vec<_>>().await.concat();
    let text = String::from_utf8(bytes).unwrap();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let chunks = data.filter(|data| *data != "[DONE]");
    Ok(chunks.map(|data| serde_json::from_str(data).unwrap()).collect())
}

fn has(chunks: &[Value], kind: &str) -> bool {
    chunks.iter().any(|chunk| chunk["type"] == kind)
}

#[tokio::test]
async fn a_tool_of_the_request_is_the_clients_to_run() {
    let model = model("show_map");
    let agent = Agent::new(model.clone()).tool(Tool::new("weather", weather)).with_client_tools();
    let chats = agent.into_chat_server();
    // A schema that no input fits: whether it does is the client's affair.
    let schema = json!({"type": "object", "not": {}});
    let map = json!({"name": "show_map", "description": "Shows a map.", "inputSchema": schema});
    let chunks = post(&chats, &asks(json!([map]))).await.unwrap();
    assert!(has(&chunks, "tool-input-available") && !has(&chunks, "tool-output-available"));
    assert_eq!(chunks.last().unwrap()["finishReason"], "tool-calls");
    let told = model.told.lock().unwrap()[0].tools.clone();
    assert_eq!(told.iter().map(|tool| &*tool.name).collect::<Vec<_>>(), ["weather", "show_map"]);
    assert_eq!(told[1].input_schema.as_str(), schema.to_string());

    // The next request need not bring it to answer.
    let message = json!({"id": chunks[0]["messageId"], "role": "assistant", "parts": [{
        "type": "tool-show_map", "toolCallId": "call_1", "state": "output-available",
        "input": {"city": "Lisbon"}, "output": "shown",
    }]});
    let chunks = post(&chats, &json!({"id": "chat", "messages": [message]})).await.unwrap();
    assert!(chunks.iter().any(|chunk| chunk["delta"] == "Thanks"), "{chunks:?}");
}

#[tokio::test]
async fn they_may_come_under_either_name_and_not_under_both() {
    let tools = json!([{"name": "show_map", "input_schema": {}}]);
    let model = model("show_map");
    let chats = Agent::new(model.clone()).with_client_tools().into_chat_server();
    let mut body = asks(json!(null));
    body.as_object_mut().unwrap().remove("clientTools");
    body["client_tools"] = tools.clone();
    assert!(has(&post(&chats, &body).await.unwrap(), "tool-input-available"));
    body["clientTools"] = tools;
    let error = post(&chats, &body).await.unwrap_err();
    assert_eq!(error.to_string(), "clientTools: given twice, as `client_tools` as well");
}

#[tokio::test]
async fn who_answers_by_id_brings_the_tools_along_as_well() {
    let model = model("show_map");
    let agent = Agent::new(model.clone()).tool(Tool::new("weather", weather)).with_client_tools();
    let chats = agent.into_chat_server();
    let tools = json!([{"name": "show_map", "inputSchema": {}}]);
    post(&chats, &asks(tools.clone())).await.unwrap();
    let outputs = json!([{"toolCallId": "call_1", "output": "shown"}]);
    let body = json!({"toolOutputs": outputs, "clientTools": tools}).to_string();
    let answers = ClientAnswers::parse(body.as_bytes(), &Limits::default()).unwrap();
    let request =
        chats.request_from_answers(&Principal::new("ada"), &"chat".into(), &answers).await.unwrap();
    let answer = chats.complete_response(&Principal::new("ada"), request).await.unwrap();
    assert_eq!(answer.stop_reason, StopReason::Stop);
    let told = model.told.lock().unwrap();
    assert_eq!((told.len(), told[1].tools.len()), (2, 2));
}

#[tokio::test]
async fn a_request_cannot_take_over_a_tool_of_the_server_nor_bring_what_is_none() {
    let tool = |name: &str| json!({"name": name, "inputSchema": {}});
    for (brought, why) in [
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
        (json!([{"name": "a"}]), "clientTools: expected a list of"),
        (json!({"a": {}}), "clientTools: expected a list of"),
        (
            Value::Array((0..129).map(|n| tool(&format!("t{n}"))).collect()),
            "clientTools: more than 128",
        ),
    ] {
        let model = model("weather");
        let agent = Agent::new(model.clone()).tool(Tool::new("weather", weather));
        let chats = agent.with_client_tools().into_chat_server();
        let error = post(&chats, &asks(brought)).await.unwrap_err();
        assert!(matches!(error, ChatError::Request(_)), "{error:?}");
        assert!(error.to_string().starts_with(why), "{error}");
        assert!(model.told.lock().unwrap().is_empty());
        let kept = chats.chat(&Principal::new("ada"), &"chat".into()).await;
        assert!(matches!(kept, Err(ChatError::NotFound)), "nothing of it is taken");
    }
}

#[tokio::test]
async fn an_agent_that_takes_none_passes_them_over() {
    let model = model("show_map");
    let agent = Agent::new(model.clone()).tool(Tool::new("weather", weather));
    let brought = json!([{"name": "show_map", "inputSchema": {}}]);
    let chunks = post(&agent.into_chat_server(), &asks(brought)).await.unwrap();
    assert!(has(&chunks, "tool-input-error"), "{chunks:?}");
    assert_eq!(model.told.lock().unwrap()[0].tools.len(), 1);
}

#[tokio::test]
async fn by_default_a_person_is_asked_where_the_agent_says_so_and_the_tool_nothing() {
    let agent = |tool: Tool<City>, asks: bool| {
        let agent = Agent::new(model("weather")).tool(tool);
        if asks { agent.require_approval_by_default() } else { agent }
    };
    let tool = || Tool::new("weather", weather);
    for (tool, by_default, is_asked) in [
        (tool(), false, false),
        (tool(), true, true),
        (tool().never_needs_approval(), true, false),
        (tool().needs_approval(), false, true),
        (tool().needs_approval_when(|city, _| city.city != "Lisbon"), true, false),
    ] {
        let chats = agent(tool, by_default).into_chat_server();
        let chunks = post(&chats, &asks(json!(null))).await.unwrap();
        assert_eq!(has(&chunks, "tool-approval-request"), is_asked, "{chunks:?}");
        assert_eq!(has(&chunks, "tool-output-available"), !is_asked, "{chunks:?}");
    }
}

#[tokio::test]
async fn a_predicate_that_panics_before_it_waits_asks() {
    async fn is_dear(
        _: Arc<City>,
        _: ApprovalContext,
    ) -> Result<bool, ui_message_stream::response::BoxError> {
        Ok(false)
    }
    let tool =
        Tool::new("weather", weather).needs_approval_when_async(|city: Arc<City>, context| {
            assert!(city.city.len() > 100, "panics where it is called");
            is_dear(city, context)
        });
    let chats = Agent::new(model("weather")).tool(tool).into_chat_server();
    let chunks = post(&chats, &asks(json!(null))).await.unwrap();
    assert!(has(&chunks, "tool-approval-request"), "{chunks:?}");
}
