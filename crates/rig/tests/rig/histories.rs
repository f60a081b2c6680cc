//! Random histories with random stored provider state: no provider refuses what rig sends.
//!
//! `RIG_CASES` sets the number of histories (150), `RIG_SEED` the seed.

use std::collections::HashSet;

use chat_test_support::browser::agent;
use futures::StreamExt;
use rig_core::message::{DocumentSourceKind, Image, ImageMediaType, ToolResultContent};
use serde_json::{Value, json};
use test_support::random_messages::history::message_text;
use test_support::rng::{Dice, Shown, setting};
use ui_message_stream::approval::{Approvals, Principal};
use ui_message_stream::message::{Part, Role};
use ui_message_stream::{AgentEvent, UiMessage};
use ui_message_stream_agent::Agent;
use ui_message_stream_chat::{Chat, ChatAgent, Turn};
use ui_message_stream_rig::RigModel;

use super::provider::{Provider, fixture};

#[tokio::test]
async fn a_random_history_never_makes_rig_send_what_a_provider_refuses() {
    let seed = setting("RIG_SEED").unwrap_or(20_261_120);
    let cases = setting("RIG_CASES").unwrap_or(150);
    let (mut calls, mut reasoning_parts) = (0, 0);
    for case in 0..cases {
        let _shown = Shown { seed, case };
        let mut dice = Dice::new(seed, case);
        let history = history(&mut dice);
        let body = sent(&history, "anthropic/text", |provider| {
            RigModel::new(provider.anthropic(MODEL)).map_request(|request| request.max_tokens(9))
        })
        .await;
        check_messages(&body);
        let count = |kind: &str| body.to_string().matches(&format!(r#""type":"{kind}""#)).count();
        calls += count("tool_use");
        reasoning_parts += count("redacted_thinking") + count("thinking");
        let chat = |provider: &Provider| RigModel::new(provider.chat());
        check_chat(&sent(&history, "chat/text_is_joined", chat).await);
        let responses = |provider: &Provider| RigModel::new(provider.responses());
        check_responses(&sent(&history, "responses/text", responses).await);
    }
    println!("{cases} histories, {calls} calls, {reasoning_parts} reasoning parts");
    assert!(
        calls > cases as usize / 2 && reasoning_parts > cases as usize / 20,
        "{calls}, {reasoning_parts}"
    );
}

const MODEL: &str = "claude-sonnet-4-5";

#[tokio::test]
async fn providers_get_only_ids_files_and_schemas_that_they_accept() {
    let call = |id: &str| {
        json!({"type": "tool-tides", "toolCallId": id, "state": "output-available", "input": {},
            "output": "low"})
    };
    let file = |kind: &str| json!({"type": "file", "mediaType": kind, "url": format!("data:{kind};base64,AAAA")});
    let files =
        ["image/heic", "image/heif", "image/svg+xml", "image/jpg", "image/pjpeg", "image/x-png"];
    let drawn = [ToolResultContent::Image(Image {
        data: DocumentSourceKind::Base64("AAAA".to_owned()),
        media_type: Some(ImageMediaType::SVG),
        ..Image::default()
    })];
    let mut draws = call("draws");
    draws["output"] = serde_json::to_value(drawn).unwrap();
    // A model of another provider has made the last ones, also through rig.
    let origin = json!({"api": "gemini", "provider": "gemini", "model": "gemini-3"});
    let made = |id: &str| {
        let mut call = call(id);
        let state = json!({"call": {"provider": id}, "origin": origin});
        call["callProviderMetadata"] = json!({"rig": state});
        call
    };
    let [other, last] = [made("functions.moon:1"), made(&"y".repeat(83))];
    let calls = [call("functions.tides:0"), call(&"x".repeat(83)), draws, other, last];
    let history = [
        json!({"id": "u", "role": "user", "parts": files.map(file)}),
        json!({"id": "a", "role": "assistant", "parts": calls}),
    ];
    let history = history.map(|message| UiMessage::parse(&message.to_string()).unwrap());
    let messages = sent(&history, "anthropic/text", |provider| {
        RigModel::new(provider.anthropic(MODEL)).map_request(|request| request.max_tokens(9))
    })
    .await;
    check_messages(&messages);
    let chat = sent(&history, "chat/text_is_joined", |it| RigModel::new(it.chat())).await;
    check_chat(&chat);
    let responses = sent(&history, "responses/text", |it| RigModel::new(it.responses())).await;
    check_responses(&responses);
    for body in [messages, chat, responses] {
        let sent = body.to_string();
        for (kind, times) in [("image/jpeg", 2), ("image/png", 1)] {
            assert_eq!(sent.matches(kind).count(), times, "{kind}: {sent}");
        }
        assert_eq!(sent.matches("which cannot be shown here").count(), 4, "{sent}");
        for tool in body["tools"].as_array().unwrap() {
            let tool = tool.get("function").unwrap_or(tool);
            let schema = tool.get("parameters").or(tool.get("input_schema")).unwrap();
            assert!(schema["type"] == "object" && schema["properties"].is_object(), "{tool}");
        }
    }
}

fn history(dice: &mut Dice) -> Vec<UiMessage> {
    let mut messages = Vec::new();
    for _ in 0..1 + dice.below(5) {
        let Ok(mut message) = serde_json::from_str::<Value>(&message_text(dice)) else { continue };
        let Some(parts) = message["parts"].as_array_mut() else { continue };
        for _ in 0..dice.below(3) {
            let at = dice.below(parts.len() + 1);
            parts.insert(at, json!({"type": "reasoning", "text": "Hm"}));
        }
        for part in parts {
            let is_call = part.get("toolCallId").is_some();
            let name = if is_call { "callProviderMetadata" } else { "providerMetadata" };
            if dice.chance(70) && part["type"] != "file" {
                part[name] = stored_state(dice);
            }
        }
        messages.extend(UiMessage::parse(&message.to_string()));
    }
    messages
}

/// Returns stored state under `rig`, valid or invalid.
fn stored_state(dice: &mut Dice) -> Value {
    let origin = json!({"api": "anthropic.messages", "provider": "anthropic", "model": MODEL});
    let search = json!({"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}});
    let native = json!({"item": {"type": "text", "text": "a"}, "fingerprint": "00000000deadbeef"});
    let approval_request = json!({"type": "mcp_approval_request", "id": "mcpr_1", "name": "a",
        "server_label": "s", "arguments": "{}"});
    let search_result =
        json!({"type": "web_search_tool_result", "tool_use_id": "s1", "content": []});
    let container = json!({"type": "container", "container": {"id": "c"}});
    let mut state = match dice.below(11) {
        0 => json!({"call": {"provider": "toolu_1"}}),
        1 => json!({"redacted": true}),
        2 => json!({"opaque": {"item": search, "replay": true}}),
        3 => json!({"native": native}),
        4 => json!({"opaque": {"item": approval_request, "replay": true}}),
        5 => json!({"opaque": {"item": search_result, "replay": true}}),
        6 => json!({"behind": [{"item": container, "replay": true}]}),
        7 => json!({"call": {"local": "not a uuid"}}),
        _ => {
            let mut reasoning = rig_core::message::AssistantContent::reasoning("Hm");
            reasoning = reasoning.with_native(json!({
                "type": "thinking", "thinking": "Hm", "signature": "c2ln",
            }));
            let rig_core::message::AssistantContent::Reasoning(reasoning) = reasoning else {
                panic!()
            };
            json!({"native": reasoning.native})
        }
    };
    if dice.chance(90) {
        state["origin"] = origin;
    }
    json!({"rig": state})
}

/// Returns the request that a provider receives after a user message in a chat with this history.
async fn sent(
    history: &[UiMessage],
    fixture_name: &str,
    model: impl Fn(&Provider) -> RigModel,
) -> Value {
    let provider = Provider::with_streams([fixture(fixture_name)]);
    let mut chat = Chat::new("c", Principal::anonymous());
    chat.messages = history.to_vec().into();
    chat.messages.push(UiMessage::new("last", Role::User, vec![Part::text("Go on")]));
    let agent: Agent = agent(model(&provider));
    let approvals = Approvals::new(agent.clone());
    let events: Vec<_> = agent.respond(Turn::new(chat, "answer", &approvals)).collect().await;
    assert!(events.iter().all(|event| !matches!(event, Ok(AgentEvent::Error { .. }) | Err(_))));
    let requests = provider.requests();
    assert_eq!(requests.len(), 1, "rig refused the history");
    requests[0].clone()
}

/// Panics if Anthropic's Messages refuse the body.
fn check_messages(body: &Value) {
    let (mut waiting, mut ids) = (HashSet::new(), HashSet::new());
    for (at, message) in body["messages"].as_array().unwrap().iter().enumerate() {
        assert_eq!(message["role"], ["user", "assistant"][at % 2], "the roles alternate");
        let blocks = message["content"].as_array().unwrap();
        assert!(!blocks.is_empty(), "the message is empty");
        for block in blocks {
            match block["type"].as_str().unwrap() {
                "text" => {
                    assert!(!block["text"].as_str().unwrap().trim().is_empty(), "a blank text")
                }
                "tool_use" => {
                    assert!(block["input"].is_object(), "{block}");
                    assert!(is_plain_id(&block["id"], 64), "{block}");
                    assert!(ids.insert(block["id"].to_string()), "two calls have the same id");
                    waiting.insert(block["id"].to_string());
                }
                "tool_result" => {
                    assert!(waiting.remove(&block["tool_use_id"].to_string()), "{block}");
                }
                _ => {}
            }
        }
        let last = blocks.last().unwrap()["type"].as_str().unwrap();
        if message["role"] == "assistant" {
            assert!(!last.ends_with("thinking"), "the message ends with reasoning: {blocks:?}");
        } else {
            assert!(waiting.is_empty(), "a call without a result after it");
        }
    }
    assert!(waiting.is_empty(), "a call without a result");
}

/// Panics if Chat Completions refuse the body.
fn check_chat(body: &Value) {
    let mut waiting: Vec<String> = Vec::new();
    for message in body["messages"].as_array().unwrap() {
        if message["role"] == "tool" {
            let id = message["tool_call_id"].as_str().unwrap();
            let at = waiting.iter().position(|waiting| waiting == id);
            waiting.remove(at.expect("a result without a call"));
            continue;
        }
        assert!(waiting.is_empty(), "calls without results: {waiting:?}");
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        waiting.extend(calls.map(|call| {
            let id = call["id"].as_str().unwrap();
            assert!(id.len() <= 40, "{call}");
            id.to_owned()
        }));
    }
    assert!(waiting.is_empty(), "calls without results: {waiting:?}");
}

/// Panics if Responses refuse the body.
fn check_responses(body: &Value) {
    let items = body["input"].as_array().unwrap();
    let ids = |kind: &str| -> Vec<&str> {
        let items = items.iter().filter(|item| item["type"] == kind);
        items.map(|item| item["call_id"].as_str().unwrap()).collect()
    };
    let (mut called, mut results) = (ids("function_call"), ids("function_call_output"));
    called.sort_unstable();
    results.sort_unstable();
    assert_eq!(called, results);
    called.dedup();
    assert_eq!(called.len(), results.len(), "two calls have the same id");
    assert!(called.iter().all(|id| is_plain_id(&json!(id), 64)), "{called:?}");
}

fn is_plain_id(id: &Value, longest: usize) -> bool {
    let id = id.as_str().unwrap();
    id.len() <= longest && id.chars().all(|it| it.is_ascii_alphanumeric() || "_-".contains(it))
}
