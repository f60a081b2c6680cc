//! Plays a recorded case: this crate's agent produces the history, the client answers its real
//! approval requests, and the last request is the recorded one.

use std::sync::Arc;

use serde_json::{Value, json};
use ui_message_stream::approval::store::InMemoryLedger;
use ui_message_stream::approval::{Approvals, KeyRing};
use ui_message_stream_chat::ChatServer;
use ui_message_stream_chat::store::InMemoryLogStore;

use super::page::Page;
use super::script::{Script, Scripted};
use super::side_by_side::lines_of;
use super::tools::agent;

pub(crate) async fn play(case: &str, script: &Script) -> Vec<String> {
    let model = Scripted::default();
    let (ledger, chats) = (Arc::new(InMemoryLedger::new()), Arc::new(InMemoryLogStore::new()));
    let keys = KeyRing::new(1, &test_support::secret(7)).unwrap();
    let server = |before| {
        let agent = agent(&model, case, before).with_max_steps(script.most_steps);
        let approvals = Approvals::new(agent.clone());
        let approvals = approvals.with_ledger(ledger.clone()).with_keys(keys.clone());
        ChatServer::new(agent, approvals).with_store(chats.clone())
    };
    let (before, now) = (server(true), server(false));
    let mut page = Page::default();
    let mut messages = script.messages.iter().peekable();
    while let Some(message) = messages.next() {
        assert_eq!(message["role"], "user", "user messages and assistant messages alternate");
        page.messages.push(message.clone());
        if let Some(answer) = messages.next_if(|next| next["role"] == "assistant") {
            replay_message(&before, &model, &mut page, answer).await;
        }
    }
    model.set_turns(script.turns.clone());
    let last = page.messages.last().unwrap();
    let continued = (last["role"] == "assistant").then(|| last["id"].clone());
    let mut chunks = page.post(&now).await;
    match continued {
        Some(id) => assert_eq!(chunks[0]["messageId"], id, "the message keeps its id"),
        None => assert!(chunks[0]["messageId"].is_string()),
    }
    let last = script.messages.last().unwrap();
    let id = if last["role"] == "assistant" { &last["id"] } else { &json!("srv-new") };
    chunks[0]["messageId"] = id.clone();
    lines_of(&chunks, model.calls())
}

/// Lets the agent produce this message, with the user's decisions.
async fn replay_message(chats: &ChatServer, model: &Scripted, page: &mut Page, message: &Value) {
    let parts = message["parts"].as_array().unwrap();
    let steps = parts.split(|part| part["type"] == "step-start").filter(|step| !step.is_empty());
    model.set_turns(steps.map(model_output_of).collect());
    page.post(chats).await;
    let calls = || parts.iter().filter(|part| part["toolCallId"].is_string());
    for call in calls() {
        let part = page.call(&call["toolCallId"]);
        match call["state"].as_str().unwrap() {
            "approval-requested" => assert_eq!(part["state"], "approval-requested"),
            "output-available" => {
                assert_eq!(part["state"], "input-available");
                part["state"] = json!("output-available");
                part["output"] = call["output"].clone();
            }
            _ => {
                assert_eq!(part["state"], "approval-requested");
                part["state"] = json!("approval-responded");
                for key in ["approved", "reason"] {
                    if let Some(value) = call["approval"].get(key) {
                        part["approval"][key] = value.clone();
                    }
                }
            }
        }
    }
    if calls().any(|call| call["state"] == "output-denied") {
        page.post(chats).await;
    }
}

/// The model output of such a step.
fn model_output_of(parts: &[Value]) -> Vec<Value> {
    let mut output = Vec::new();
    for part in parts {
        match part["type"].as_str().unwrap() {
            "text" => {
                output.push(json!({"type": "text-start", "id": "0"}));
                output.push(json!({"type": "text-delta", "id": "0", "delta": part["text"]}));
                output.push(json!({"type": "text-end", "id": "0"}));
            }
            kind => {
                // A provider-executed call is requested by the provider.
                let (kind_of_call, tool) = match kind.strip_prefix("tool-") {
                    Some(tool) => ("tool-call", tool),
                    None => ("provider-asks", part["toolName"].as_str().unwrap()),
                };
                output.push(json!({
                    "type": kind_of_call, "toolCallId": part["toolCallId"], "toolName": tool,
                    "input": part["input"].to_string(),
                }));
            }
        }
    }
    let calls = parts.iter().any(|part| part["toolCallId"].is_string());
    let reason = if calls { "tool-calls" } else { "stop" };
    output.push(json!({"type": "finish", "finishReason": {"unified": reason}}));
    output
}
