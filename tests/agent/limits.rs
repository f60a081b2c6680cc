//! What an agent does at the limits: too many approval requests, and long ids of a model.

use std::sync::{Arc, Mutex};

use axum::Extension;
use axum::body::Body;
use axum::http::Request;
use futures::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use test_support::calling_model::{Calls, chunks, outcomes};
use tower::ServiceExt;
use ui_message_stream::agent::{Agent, Tool, ToolError};
use ui_message_stream::approval::Principal;
use ui_message_stream::axum::chat_routes;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::model::{
    AssistantContent, Model, ModelEvent, ModelMessage, ModelRequest, ModelStream, ToolContent,
};
use ui_message_stream::request::Limits;
use ui_message_stream::testing::Conversation;
use ui_message_stream::{ChatRequest, UiMessage};

#[derive(Deserialize, JsonSchema)]
struct Input {
    n: u64,
}

async fn double(input: Input) -> Result<u64, ToolError> {
    Ok(2 * input.n)
}

#[tokio::test(start_paused = true)]
async fn a_call_beyond_the_limit_of_approvals_is_answered_with_too_many_questions_wait() {
    let calls = Calls::of(&vec![("double", json!({"n": 1})); 66]);
    let agent = Agent::new(calls.clone()).tool(Tool::new("double", double).needs_approval());
    let chats = agent.into_chat_server();
    let mut page = Conversation::new(async |chat: ChatRequest| {
        chats.stream_response(&Principal::new("ada"), chat).await.unwrap()
    });
    page.send("Go").await;
    let chunks = chunks(&page);
    let asked = chunks.iter().filter(|chunk| chunk["type"] == "tool-approval-request");
    assert_eq!(asked.count(), 64);
    let text = "This tool call was not executed: too many questions wait.";
    assert_eq!(outcomes(&chunks), [text, text]);
    assert_eq!(chats.approvals().pending(&Principal::new("ada")).await.unwrap().len(), 64);
}

/// A model that gives its call an id of several kilobytes, as a proxy does that puts the state of
/// the provider into the id.
#[derive(Debug, Clone, Default)]
struct LongIds {
    requests: Arc<Mutex<Vec<Vec<ModelMessage>>>>,
}

fn long_id() -> String {
    format!("call_{}", "0123456789".repeat(400))
}

impl Model for LongIds {
    fn call(&self, request: ModelRequest) -> ModelStream {
        self.requests.lock().unwrap().push(request.messages);
        let count = self.requests.lock().unwrap().len();
        let events = match count {
            1 | 2 => {
                let tool = if count == 1 { "double" } else { "asks" };
                let call = || ToolCall::new(long_id(), tool);
                vec![
                    ModelEvent::Event(AgentEvent::ToolInputStart { call: Box::new(call()) }),
                    ModelEvent::ToolCall(Box::new(call()), r#"{"n": 1}"#.to_owned()),
                    ModelEvent::Finished(FinishReason::ToolCalls),
                ]
            }
            _ => vec![
                ModelEvent::Event(AgentEvent::text("Done.")),
                ModelEvent::Finished(FinishReason::Stop),
            ],
        };
        Box::pin(stream::iter(events.into_iter().map(Ok)))
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_tool_call_id_is_short_everywhere_but_in_the_messages_for_the_model() {
    let model = LongIds::default();
    let agent = Agent::new(model.clone())
        .tool(Tool::new("double", double))
        .tool(Tool::new("asks", double).needs_approval());
    let chats = agent.into_chat_server();
    let ada = Principal::new("ada");
    let mut page = Conversation::new(async |chat: ChatRequest| {
        chats.stream_response(&ada, chat).await.unwrap()
    });
    page.send("Go").await;
    let first = serde_json::to_string(&chunks(&page)).unwrap();
    assert!(!first.contains(&long_id()), "{first}");
    let pending = chats.approvals().pending(&ada).await.unwrap();
    assert!(pending[0].record.tool_call_id.len() <= 128, "{:?}", pending[0].record);
    page.approve("asks").await;
    assert_eq!(page.last_text(), "Done.");
    let chat = chats.chat(&ada, &pending[0].record.chat_id).await.unwrap();
    let ids: Vec<String> = chat
        .messages
        .iter()
        .flat_map(UiMessage::tool_parts)
        .map(|part| part.tool_call_id.to_string())
        .collect();
    assert_eq!(ids.len(), 2);
    assert!(ids[0] != ids[1] && ids.iter().all(|id| id.len() <= 128), "{ids:?}");

    let requests = model.requests.lock().unwrap();
    let mut calls = Vec::new();
    let mut results = Vec::new();
    for message in requests.last().unwrap() {
        match message {
            ModelMessage::Assistant { content } => {
                calls.extend(content.iter().filter_map(|content| match content {
                    AssistantContent::ToolCall(call) => Some(call.tool_call_id.to_string()),
                    _ => None,
                }));
            }
            ModelMessage::Tool { content } => {
                results.extend(content.iter().filter_map(|content| match content {
                    ToolContent::Result(result) => Some(result.tool_call_id.to_string()),
                    ToolContent::ProviderApproval(_) => None,
                }));
            }
            _ => {}
        }
    }
    // The two calls have one id of the model, which is only unique with a number.
    let expected = [long_id(), format!("{}_2", long_id())];
    assert_eq!(calls, expected);
    assert_eq!(results, expected);
}

#[tokio::test(start_paused = true)]
async fn no_response_holds_the_long_id_of_a_call() {
    let agent = Agent::new(LongIds::default())
        .tool(Tool::new("double", double))
        .tool(Tool::new("asks", double).needs_approval());
    let chats = agent.into_chat_server();
    let ada = Principal::new("ada");
    let request = || {
        let message =
            json!({"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Go"}]});
        let body = json!({"id": "chat", "messages": [message]}).to_string();
        ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap()
    };
    let stored = chats.complete_response(&ada, request()).await.unwrap().message.unwrap();
    assert!(serde_json::to_string(&stored).unwrap().contains(&long_id()));
    // The second request gets the stored message.
    let repeated: Vec<_> = chats.stream_response(&ada, request()).await.unwrap().collect().await;
    let repeated = format!("{repeated:?}");
    assert!(repeated.contains("asks"), "{repeated}");
    assert!(!repeated.contains(&long_id()), "{repeated}");

    let routes = chat_routes::<()>(chats).layer(Extension(ada));
    let posted = Request::post("/")
        .header("content-type", "application/json")
        .header("accept", "application/json");
    let message = json!({"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Go"}]});
    let body = json!({"id": "chat", "messages": [message]}).to_string();
    for request in
        [Request::get("/chat").body(Body::empty()).unwrap(), posted.body(Body::from(body)).unwrap()]
    {
        let response = routes.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 200);
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(body.contains("asks") && !body.contains(&long_id()), "{body}");
    }
}
