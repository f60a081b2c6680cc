//! Plays a recorded case: the history comes about by asking this crate's agent, the person answers
//! what was really asked, and the last request is the one that was recorded.

use std::sync::Arc;

use serde_json::{Value, json};
use ui_message_stream::approval::store::InMemoryLedger;
use ui_message_stream::approval::{Approvals, KeyRing};
use ui_message_stream::chat::ChatServer;
use ui_message_stream::chat::store::InMemoryChatStore;

use super::page::Page;
use super::script::{Script, Scripted};
use super::side_by_side::lines_of;
use super::tools::agent;

pub(crate) async fn play(case: &str, script: &Script) -> Vec<String> {
    let model = Scripted::default();
    let (ledger, chats) = (Arc::new(InMemoryLedger::new()), Arc::new(InMemoryChatStore::new()));
    let keys = KeyRing::new(1, &[7; 32]).unwrap();
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
        assert_eq!(message["role"], "user", "the client asks, and the server answers");
        page.messages.push(message.clone());
        if let Some(answer) = messages.next_if(|next| next["role"] == "assistant") {
            come_about(&before, &model, &mut page, answer).await;
            if case == "secret-missing-signature" {
                // What nobody was asked under.
                page.call(&json!("c1"))["approval"]["id"] = json!("ap-c1");
            }
        }
    }
    model.say(script.turns.clone());
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

/// Lets the agent write this message, with the person's answers.
async fn come_about(chats: &ChatServer, model: &Scripted, page: &mut Page, message: &Value) {
    let parts = message["parts"].as_array().unwrap();
    let steps = parts.split(|part| part["type"] == "step-start").filter(|step| !step.is_empty());
    model.say(steps.map(said_in).collect());
    page.post(chats).await;
    let calls = || parts.iter().filter(|part| part["toolCallId"].is_string());
    for call in calls() {
        let answered = page.call(&call["toolCallId"]);
        match call["state"].as_str().unwrap() {
            "approval-requested" => assert_eq!(answered["state"], "approval-requested"),
            "output-available" => {
                assert_eq!(answered["state"], "input-available");
                answered["state"] = json!("output-available");
                answered["output"] = call["output"].clone();
            }
            _ => {
                assert_eq!(answered["state"], "approval-requested");
                answered["state"] = json!("approval-responded");
                for key in ["approved", "reason"] {
                    if let Some(said) = call["approval"].get(key) {
                        answered["approval"][key] = said.clone();
                    }
                }
            }
        }
    }
    if calls().any(|call| call["state"] == "output-denied") {
        page.post(chats).await;
    }
}

/// What the model says in such a step.
fn said_in(parts: &[Value]) -> Vec<Value> {
    let mut said = Vec::new();
    for part in parts {
        match part["type"].as_str().unwrap() {
            "text" => {
                said.push(json!({"type": "text-start", "id": "0"}));
                said.push(json!({"type": "text-delta", "id": "0", "delta": part["text"]}));
                said.push(json!({"type": "text-end", "id": "0"}));
            }
            kind => {
                // What the provider runs it asks about itself.
                let (says, tool) = match kind.strip_prefix("tool-") {
                    Some(tool) => ("tool-call", tool),
                    None => ("provider-asks", part["toolName"].as_str().unwrap()),
                };
                said.push(json!({
                    "type": says, "toolCallId": part["toolCallId"], "toolName": tool,
                    "input": part["input"].to_string(),
                }));
            }
        }
    }
    let calls = parts.iter().any(|part| part["toolCallId"].is_string());
    let reason = if calls { "tool-calls" } else { "stop" };
    said.push(json!({"type": "finish", "finishReason": {"unified": reason}}));
    said
}
