//! All decisions on up to four calls of one step, in every order, in one request and one by one,
//! over the chat route and through the agent: a denied call never runs, an approved call runs once,
//! the client accepts the stream, and the model reads exactly one result for every call.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::Method;
use chat_test_support::answers::send;
use chat_test_support::model_double::{ModelDouble, calls_all, says};
use chat_test_support::test_server::{Answer, Client};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use serde_json::json;
use test_support::requests::{respond, user_message};
use test_support::responses::text_of;
use ui_message_stream::axum::without_authentication;
use ui_message_stream::model::{
    AssistantContent, ModelMessage, ToolContent, ToolResult, ToolResultContent,
};
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_chat::axum::chat_routes;

#[derive(Deserialize, JsonSchema)]
struct Input {
    n: usize,
}

/// A chat with pending calls.
struct PendingChat {
    routes: Router,
    client: Client,
    read: Arc<Mutex<Vec<Vec<ModelMessage>>>>,
    ran: Arc<Mutex<Vec<usize>>>,
}

impl PendingChat {
    async fn new(count: usize) -> Self {
        let (read, ran) = (Arc::<Mutex<Vec<_>>>::default(), Arc::new(Mutex::new(Vec::new())));
        let effects = Arc::clone(&ran);
        let act = Tool::new("act", move |input: Input| {
            effects.lock().unwrap().push(input.n);
            async move { Ok::<_, ToolError>(input.n) }
        });
        let reads = Arc::clone(&read);
        let model = ModelDouble::new(move |request, calls_before| {
            reads.lock().unwrap().push(request.messages);
            match calls_before {
                0 => calls_all((0..count).map(|n| ("act", json!({"n": n})))),
                _ => says("So be it."),
            }
        });
        let chats = Agent::new(model).tool(act.needs_approval()).into_chat_server();
        let mut client = Client::new("ada", "chat");
        client.messages.push(user_message("u1", "Act"));
        let routes = chat_routes(chats).layer(without_authentication());
        let mut chat = PendingChat { routes, client, read, ran };
        chat.post().await;
        chat
    }

    async fn post(&mut self) {
        let body = self.client.body().to_string();
        let response = send(&self.routes, Method::POST, "/", &[], body).await;
        let (parts, body) = response.into_parts();
        let text = text_of(body).await;
        self.client.apply_response(&Answer { status: parts.status, headers: parts.headers, text });
    }

    fn answer(&mut self, call: usize, approved: bool) {
        let id = format!("call_{call}");
        let message = self.client.messages.last_mut().unwrap();
        let mut parts = message["parts"].as_array_mut().unwrap().iter_mut();
        let part = parts.find(|part| part["toolCallId"] == id.as_str()).unwrap();
        respond(part, approved);
    }

    fn state(&self, call: usize) -> Value {
        let id = format!("call_{call}");
        let mut parts = self.client.last()["parts"].as_array().unwrap().iter();
        parts.find(|part| part["toolCallId"] == id.as_str()).unwrap()["state"].clone()
    }
}

/// The results that a model reads, by call. Panics if a call has no result or two.
fn results(messages: &[ModelMessage]) -> BTreeMap<String, ToolResult> {
    let mut calls = Vec::new();
    let mut results = BTreeMap::new();
    for message in messages {
        match message {
            ModelMessage::Assistant { content } => {
                calls.extend(content.iter().filter_map(|part| match part {
                    AssistantContent::ToolCall(call) => Some(call.tool_call_id.to_string()),
                    _ => None,
                }))
            }
            ModelMessage::Tool { content } => {
                for content in content {
                    let ToolContent::Result(ToolResultContent { tool_call_id, result, .. }) =
                        content
                    else {
                        panic!("{content:?}");
                    };
                    let twice = results.insert(tool_call_id.to_string(), result.clone());
                    assert_eq!(twice, None, "two results of {tool_call_id}");
                }
            }
            _ => {}
        }
    }
    calls.sort();
    assert_eq!(results.keys().cloned().collect::<Vec<_>>(), calls);
    results
}

fn orders(items: usize) -> Vec<Vec<usize>> {
    let Some(last) = items.checked_sub(1) else {
        return vec![Vec::new()];
    };
    let longer = orders(last).into_iter().flat_map(|order| {
        (0..items).map(move |at| {
            let mut order = order.clone();
            order.insert(at, last);
            order
        })
    });
    longer.collect()
}

async fn check_sequence(answers: &[bool], order: &[usize], at_once: usize) {
    let sequence = || format!("{answers:?} in the order {order:?}, {at_once} at once");
    let mut chat = PendingChat::new(answers.len()).await;
    for (round, calls) in order.chunks(at_once).enumerate() {
        for &call in calls {
            chat.answer(call, answers[call]);
        }
        chat.post().await;
        let is_last = (round + 1) * at_once >= order.len();
        let model_calls = chat.read.lock().unwrap().len();
        assert_eq!(model_calls, 1 + usize::from(is_last), "{}", sequence());
    }
    let approved = (0..answers.len()).filter(|&call| answers[call]);
    let mut ran = chat.ran.lock().unwrap().clone();
    ran.sort_unstable();
    assert_eq!(ran, approved.collect::<Vec<_>>(), "{}", sequence());
    let read = chat.read.lock().unwrap().last().unwrap().clone();
    for (call, result) in results(&read).values().enumerate() {
        let (state, is_right) = match answers[call] {
            true => (
                "output-available",
                matches!(result, ToolResult::Output(n) if n.decode::<usize>().unwrap() == call),
            ),
            false => ("output-denied", matches!(result, ToolResult::Denied { .. })),
        };
        assert!(is_right, "call {call}: {result:?}, {}", sequence());
        assert_eq!(chat.state(call), state, "{}", sequence());
    }
    let parts = chat.client.last()["parts"].as_array().unwrap().clone();
    assert_eq!(parts.last().unwrap()["text"], "So be it.", "{}", sequence());
}

#[tokio::test]
async fn in_every_order_of_decisions_each_call_settles_once_over_http() {
    let mut sequences = 0;
    for calls in 1..=4_usize {
        for bits in 0..1_u32 << calls {
            let answers: Vec<bool> = (0..calls).map(|call| bits & 1 << call != 0).collect();
            for order in orders(calls) {
                for at_once in [1, calls].into_iter().take(calls) {
                    check_sequence(&answers, &order, at_once).await;
                    sequences += 1;
                }
            }
        }
    }
    println!("{sequences} sequences of decisions");
    assert_eq!(sequences, 2 + 4 * 2 * 2 + 8 * 6 * 2 + 16 * 24 * 2);
}
