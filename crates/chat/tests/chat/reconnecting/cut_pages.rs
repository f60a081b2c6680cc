//! A page whose connection broke in the middle of a response, and that answers a call which it has
//! read before.

use std::sync::Arc;
use std::time::Duration;

use async_stream::stream;
use chat_test_support::answers::read_until;
use serde_json::{Value, json};
use test_support::any_tool::AnyTool;
use test_support::eventually;
use test_support::external_processes::{ask_judge, node_project};
use test_support::requests::{ada, call_mut, send, user_message};
use test_support::responses::{message_of, text_of};
use tokio::sync::Semaphore;
use ui_message_stream::approval::Approvals;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::ToolCall;
use ui_message_stream::{AgentEvent, Json, UiMessage};
use ui_message_stream_chat::{ChatServer, ChatStream, Turn};

/// A server whose agent requests approval of one call, and writes the input of a second one. It
/// writes the rest of that input after a permit.
fn server(permits: Arc<Semaphore>) -> ChatServer {
    let agent = move |turn: Turn| {
        let permits = Arc::clone(&permits);
        stream! {
            if !turn.deferred.is_empty() {
                yield AgentEvent::text("You heard it.");
                yield AgentEvent::finish(FinishReason::Stop);
                return;
            }
            let (ring, look) = (ToolCall::new("c1", "ring"), ToolCall::new("c2", "look"));
            yield AgentEvent::tool_input(ring.clone(), Json::null());
            yield turn.approvals.request_approval_of(&ring, &Json::null()).await;
            yield AgentEvent::tool_input_start(look.clone());
            yield AgentEvent::tool_input_delta("c2", r#"{"n""#);
            permits.acquire().await.unwrap().forget();
            yield AgentEvent::tool_input_delta("c2", ":2}");
            yield AgentEvent::tool_input(look, Json::parse(r#"{"n":2}"#).unwrap());
            yield AgentEvent::tool_output("c2", Json::parse("3").unwrap());
            yield AgentEvent::finish(FinishReason::Stop);
        }
    };
    ChatServer::new(agent, Approvals::new(AnyTool::with_output("it rang")))
}

async fn post(chats: &ChatServer, message: &Value) -> ChatStream {
    chats.stream_response(&ada(), send("chat", &json!([message]))).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_page_that_was_cut_in_the_input_of_a_call_and_answers_another_one_reads_both_results() {
    reads_both_results(false).await;
}

#[tokio::test(start_paused = true)]
async fn a_page_that_was_cut_in_the_input_of_a_call_reads_that_call_also_after_the_run_has_ended() {
    reads_both_results(true).await;
}

/// Cuts a page in the input of a call, and answers another one, perhaps after the run has ended.
async fn reads_both_results(is_ended: bool) {
    let permits = Arc::new(Semaphore::new(0));
    let chats = server(Arc::clone(&permits));
    let mut response = post(&chats, &user_message("m1", "Ring")).await;
    let cut = read_until(&mut response, "tool-input-delta").await;
    drop(response);
    let mut held = serde_json::to_value(message_of(None, &cut)).unwrap();
    let ring = call_mut(&mut held, "c1");
    (ring["state"], ring["approval"]["approved"]) = (json!("approval-responded"), json!(true));
    assert!(held.to_string().contains("input-streaming"), "{held}");
    if is_ended {
        permits.add_permits(1);
        eventually(async || chats.run_counts().live == 0).await;
    }

    let response = tokio::spawn(text_of(post(&chats, &held).await));
    tokio::time::sleep(Duration::from_millis(50)).await;
    permits.add_permits(1);
    let response = response.await.unwrap();
    let outputs = |message: &Value| -> Vec<Value> {
        let parts = message["parts"].as_array().unwrap().iter();
        let calls = parts.filter(|part| part["toolCallId"].is_string());
        calls.map(|part| json!([part["toolCallId"], part["input"], part["output"]])).collect()
    };
    let expected = [json!(["c1", null, "it rang"]), json!(["c2", {"n": 2}, 3])];
    let message = message_of(UiMessage::parse(&held.to_string()).ok(), &response);
    assert_eq!(outputs(&serde_json::to_value(&message).unwrap()), expected, "{response}");

    let Some(client) = node_project("tests/client") else { return };
    let question = json!({"case": "cut", "sse": response, "message": held});
    for (version, result) in ask_judge(&client, &[question])[0]["results"].as_object().unwrap() {
        assert_eq!(result["rejected"], Value::Null, "{version}");
        assert_eq!(outputs(&result["message"]), expected, "{version}");
    }
}
