//! What an agent does at the limits: too many approval requests, and long ids of a model.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Extension;
use axum::http::Method;
use chat_test_support::answers;
use chat_test_support::calling_model::{self, Calls, chunks, outcomes, page_of};
use chat_test_support::model_double::{ModelDouble, calls, says};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use test_support::ledger_double::{LedgerDouble, Operation};
use test_support::requests::{ada, request, user_message};
use test_support::responses::text_of;
use ui_message_stream::approval::Approvals;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::model::{
    AssistantContent, Model, ModelEvent, ModelMessage, ModelRequest, ModelStream, ToolContent,
};
use ui_message_stream::{Json, UiMessage, UserText};
use ui_message_stream_agent::{Agent, Tool};
use ui_message_stream_chat::ChatServer;
use ui_message_stream_chat::axum::chat_routes;

use super::inputs::{Number, double};

#[tokio::test(start_paused = true)]
async fn a_call_beyond_the_limit_of_approvals_is_answered_with_too_many_questions_wait() {
    let calls = Calls::of(&vec![("double", json!({"n": 1})); 66]);
    let agent = Agent::new(calls.clone())
        .with_max_step_calls(66)
        .tool(Tool::new("double", double).needs_approval());
    let chats = agent.into_chat_server();
    let mut page = page_of(&chats);
    page.send("Go").await;
    let chunks = chunks(&page);
    let asked = chunks.iter().filter(|chunk| chunk["type"] == "tool-approval-request");
    assert_eq!(asked.count(), 64);
    let text = "This tool call was not executed: too many questions wait.";
    assert_eq!(outcomes(&chunks), [text, text]);
    assert_eq!(chats.approvals().pending(&ada()).await.unwrap().len(), 64);
}

#[tokio::test(start_paused = true)]
async fn a_step_requests_all_its_approvals_in_one_insertion() {
    let mut others = Vec::new();
    for calls in [1, 2, 60] {
        let model = Calls::of(&vec![("double", json!({"n": 1})); calls]);
        let agent = Agent::new(model).tool(Tool::new("double", double).needs_approval());
        let insertions = Arc::<Mutex<Vec<usize>>>::default();
        let others_of_ledger = Arc::<AtomicUsize>::default();
        let (inserted, counted) = (Arc::clone(&insertions), Arc::clone(&others_of_ledger));
        let ledger = LedgerDouble::new(move |operation| {
            match operation {
                Operation::Insert(records) => inserted.lock().unwrap().push(records.len()),
                _ => drop(counted.fetch_add(1, Ordering::Relaxed)),
            }
            None
        });
        let approvals = Approvals::new(agent.clone()).with_ledger(Arc::new(ledger));
        let chats = ChatServer::new(agent, approvals);
        let ada = ada();
        let mut page = page_of(&chats);
        page.send("Go").await;
        assert_eq!(*insertions.lock().unwrap(), [calls]);
        others.push(others_of_ledger.load(Ordering::Relaxed));
        // The list has the order of the calls.
        let pending = chats.approvals().pending(&ada).await.unwrap();
        let ids: Vec<_> = pending.iter().map(|it| it.record.tool_call_id.to_string()).collect();
        let expected: Vec<_> = (0..calls).map(|at| format!("call_{at}")).collect();
        assert_eq!(ids, expected);
    }
    assert_eq!(others, [3, 3, 3], "operations of the ledger besides the insertion");
}

/// A model that makes so many calls in its first step, and counts the events that are read of it.
#[derive(Debug, Clone)]
struct ManyCalls {
    calls: usize,
    /// Whether the provider executes the calls.
    is_provider_executed: bool,
    read: Arc<AtomicUsize>,
    requests: Requests,
}

impl Model for ManyCalls {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let mut requests = self.requests.lock().unwrap();
        requests.push(request.messages);
        if requests.len() > 1 {
            return Box::pin(stream::iter(says("Done.")).map(Ok));
        }
        let is_provider_executed = self.is_provider_executed;
        let calls = (0..self.calls).flat_map(move |at| {
            let call = ToolCall::new(format!("call_{at}"), "double");
            let call = if is_provider_executed { call.provider_executed() } else { call };
            let (id, input) = (call.id.clone(), Json::parse(r#"{"n": 1}"#).unwrap());
            let mut events = vec![
                ModelEvent::Event(AgentEvent::tool_input_start(call.clone())),
                ModelEvent::Event(AgentEvent::tool_input_delta(id.clone(), r#"{"n": 1}"#)),
            ];
            if is_provider_executed {
                events.push(ModelEvent::Event(AgentEvent::tool_input(call, input)));
                events.push(ModelEvent::Event(AgentEvent::tool_output(id, Json::string("found"))));
            } else {
                events.push(ModelEvent::ToolCall(Box::new(call), input.to_string()));
            }
            events
        });
        let read = self.read.clone();
        let events = calls.chain([ModelEvent::Finished(FinishReason::ToolCalls)]);
        Box::pin(stream::iter(events.map(Ok)).inspect(move |_| {
            read.fetch_add(1, Ordering::Relaxed);
        }))
    }
}

/// Lets a model make so many calls in one step. Returns the model, the chunks of the response, and how
/// many calls were executed by the server.
async fn step_of(calls: usize) -> (ManyCalls, Vec<Value>, usize) {
    let (read, requests) = (Arc::default(), Arc::default());
    let model = ManyCalls { calls, is_provider_executed: false, read, requests };
    let executed = Arc::<AtomicUsize>::default();
    let counted = executed.clone();
    let tool = Tool::new("double", move |input: Number| {
        counted.fetch_add(1, Ordering::Relaxed);
        double(input)
    });
    let page = calling_model::asked(Agent::new(model.clone()).tool(tool), "Go").await;
    assert_eq!(page.last_text(), "Done.");
    (model, chunks(&page), executed.load(Ordering::Relaxed))
}

#[tokio::test(start_paused = true)]
async fn of_300_calls_of_a_step_64_are_executed_and_the_others_have_a_result_that_says_so() {
    let (model, chunks, executed) = step_of(300).await;
    assert_eq!(executed, 64);
    let text = "This tool call was not executed: a step may hold at most 64 tool calls.";
    let left_out: Vec<_> = chunks.iter().filter(|chunk| chunk["errorText"] == text).collect();
    assert_eq!(left_out.len(), 236);
    assert!(left_out.iter().all(|chunk| chunk["type"] == "tool-input-error"));
    // The inputs of the others are not streamed.
    let streamed = chunks.iter().filter(|chunk| chunk["type"] == "tool-input-delta").count();
    assert_eq!(streamed, 64);
    let requests = serde_json::to_string(&*model.requests.lock().unwrap()).unwrap();
    assert_eq!(requests.matches(text).count(), 236, "the model reads it");
}

#[tokio::test(start_paused = true)]
async fn a_response_of_20_000_calls_is_not_read_to_its_end_and_none_of_its_calls_runs() {
    let (model, chunks, executed) = step_of(20_000).await;
    assert_eq!(executed, 0);
    let read = model.read.load(Ordering::Relaxed);
    assert!(read < 3 * 1_064 + 20, "{read} events of the model were read");
    let errors: Vec<_> = chunks.iter().filter_map(|chunk| chunk["errorText"].as_str()).collect();
    assert_eq!(errors.len(), 1_064);
    assert_eq!(errors[1_000..], [UserText::NotStarted.text(); 64]);
    assert_eq!(
        errors[999],
        "This tool call was not executed: a step may hold at most 64 tool calls. \
         The rest of the response was not read."
    );
    assert!(chunks.len() < 1_000 + 5 * 64 + 20, "{} chunks", chunks.len());
}

#[tokio::test(start_paused = true)]
async fn calls_that_the_provider_executes_count_too() {
    let mut provider = step_of_provider(100).await;
    let text = "The output of this tool call was left out: a step may hold at most 64 tool calls.";
    assert_eq!(provider.iter().filter(|chunk| chunk["errorText"] == text).count(), 36);
    provider.retain(|chunk| chunk["type"] == "tool-output-available");
    assert_eq!(provider.len(), 64);
    // Nothing is left for the model to read, so this is the end of the answer.
    let provider = step_of_provider(20_000).await;
    assert_eq!(provider.last().unwrap()["finishReason"], "length");
}

/// Returns the chunks of a step in which the provider executes so many calls.
async fn step_of_provider(calls: usize) -> Vec<Value> {
    let (read, requests) = (Arc::default(), Arc::default());
    let model = ManyCalls { calls, is_provider_executed: true, read, requests };
    let page = calling_model::asked(Agent::new(model), "Go").await;
    chunks(&page)
}

fn long_id() -> String {
    format!("call_{}", "0123456789".repeat(400))
}

/// The messages of each request.
type Requests = Arc<Mutex<Vec<Vec<ModelMessage>>>>;

/// A model that gives its call an id of several kilobytes, as a proxy does that puts the state of
/// the provider into the id.
fn long_ids(requests: Requests) -> impl Model {
    ModelDouble::new(move |request, before| {
        requests.lock().unwrap().push(request.messages);
        let Some(tool) = ["double", "asks"].get(before) else { return says("Done.") };
        let start = AgentEvent::tool_input_start(ToolCall::new(long_id(), *tool));
        let events = calls(&long_id(), tool, r#"{"n": 1}"#);
        [vec![ModelEvent::Event(start)], events].concat()
    })
}

#[tokio::test(start_paused = true)]
async fn a_long_tool_call_id_is_short_everywhere_but_in_the_messages_for_the_model() {
    let requests = Requests::default();
    let agent = Agent::new(long_ids(requests.clone()))
        .tool(Tool::new("double", double))
        .tool(Tool::new("asks", double).needs_approval());
    let chats = agent.into_chat_server();
    let ada = ada();
    let mut page = page_of(&chats);
    page.send("Go").await;
    let first = serde_json::to_string(&chunks(&page)).unwrap();
    assert!(!first.contains(&long_id()), "{first}");
    let pending = chats.approvals().pending(&ada).await.unwrap();
    assert!(pending[0].record.tool_call_id.len() <= 128, "{:?}", pending[0].record);
    page.approve("asks").await;
    assert_eq!(page.last_text(), "Done.");
    let chat = chats.chat(&ada, &pending[0].record.chat_id).await.unwrap();
    let calls = chat.messages.iter().flat_map(UiMessage::tool_parts);
    let ids: Vec<String> = calls.map(|part| part.tool_call_id.to_string()).collect();
    assert_eq!(ids.len(), 2);
    assert!(ids[0] != ids[1] && ids.iter().all(|id| id.len() <= 128), "{ids:?}");

    let requests = requests.lock().unwrap();
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
    let agent = Agent::new(long_ids(Requests::default()))
        .tool(Tool::new("double", double))
        .tool(Tool::new("asks", double).needs_approval());
    let chats = agent.into_chat_server();
    let ada = ada();
    let body = json!({"id": "chat", "messages": [user_message("m1", "Go")]});
    let request = || request(&body);
    let stored = chats.complete_response(&ada, request()).await.unwrap().message.unwrap();
    assert!(serde_json::to_string(&stored).unwrap().contains(&long_id()));
    // The second request gets the stored message.
    let repeated: Vec<_> = chats.stream_response(&ada, request()).await.unwrap().collect().await;
    let repeated = format!("{repeated:?}");
    assert!(repeated.contains("asks"), "{repeated}");
    assert!(!repeated.contains(&long_id()), "{repeated}");

    let routes = chat_routes::<()>(chats).layer(Extension(ada));
    let accepts = [("accept", "application/json")];
    for (method, path, body) in
        [(Method::GET, "/chat", String::new()), (Method::POST, "/", body.to_string())]
    {
        let response = answers::send(&routes, method, path, &accepts, body).await;
        assert_eq!(response.status(), 200);
        let body = text_of(response.into_body()).await;
        assert!(body.contains("asks") && !body.contains(&long_id()), "{body}");
    }
}
