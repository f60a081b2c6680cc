//! Approval requests of the provider, through a model and through an agent of rig: the provider
//! receives the user's decision, an approval exactly once, and no other approval.

use chat_test_support::browser::{approve, say};
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt;
use rig_agent::AgentBuilder;
use rig_agent::agent::{
    AgentHook, HookContext, ModelTurnAction, ModelTurnFinished, OutcomeAction, OutcomeEvent,
};
use rig_core::effect::Outcome;
use rig_core::message::AssistantContent;
use serde_json::{Value, json};
use ui_message_stream::UiMessage;
use ui_message_stream::message::Part;
use ui_message_stream::model::{Model, ModelRequest, ToModelMessages};
use ui_message_stream_rig::RigAgent;
use ui_message_stream_rig::RigModel;

use super::super::agents::{Executed, browser, build, calls, contents};
use super::super::provider::{Provider, as_stream, fixture, lines_of};
use super::{browsers, check_items, items, sent_items, shorten_call};

fn approval_request() -> Value {
    items("mcp_approval_asked").pop().unwrap()
}

fn approval_response(approve: bool, reason: Option<&str>) -> Value {
    let mut approval_response = json!({
        "type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": approve,
    });
    if let Some(reason) = reason {
        approval_response["reason"] = reason.into();
    }
    approval_response
}

fn approval_items(items: Vec<Value>) -> Vec<Value> {
    let is_approval = |item: &Value| item["type"].as_str().unwrap().starts_with("mcp_approval");
    items.into_iter().filter(is_approval).collect()
}

#[tokio::test]
async fn an_approval_is_sent_to_the_provider_once_and_the_later_call_is_its_output() {
    let provider = Provider::default();
    for (at, mut browser) in browsers(|| provider.responses()).into_iter().enumerate() {
        let streams = ["mcp_approval_asked", "mcp_approval_approved", "text"];
        provider.respond_with(streams.map(|name| fixture(&format!("responses/{name}"))));
        say(&mut browser, "Shorten it").await;
        assert_eq!(calls(&browser), [shorten_call("approval-requested", Value::Null)]);
        let is_approval =
            |part: &Part| matches!(part, Part::Data(data) if &*data.name == "approval");
        assert!(
            browser.messages()[1].parts.iter().any(is_approval),
            "the user sees a description of the call"
        );
        assert_eq!(provider.requests().len(), 3 * at + 1);
        let chunks = serde_json::to_string(&browser.last_chunks()).unwrap();
        assert!(chunks.contains(r#""finishReason":"tool-calls""#), "{chunks}");

        approve(&mut browser, "mcp.links.shorten").await;
        let output = json!("✅ https://l.example/9");
        assert_eq!(calls(&browser), [shorten_call("output-available", output)]);
        assert_eq!(contents(&browser).text, "Here: https://l.example/9");
        let sent = approval_items(sent_items(&provider, 3 * at + 1));
        assert_eq!(sent, [approval_request(), approval_response(true, None)]);

        say(&mut browser, "Thanks").await;
        let sent = sent_items(&provider, 3 * at + 2);
        assert_eq!(
            approval_items(sent.clone()),
            Vec::<Value>::new(),
            "the approval request is resolved"
        );
        let executed_item = items("mcp_approval_approved").pop().unwrap();
        assert_eq!(executed_item["type"], "mcp_call");
        assert_eq!(sent.last(), Some(&executed_item), "{sent:?}");
    }
    check_items(&provider, &["mcp_approval_asked", "mcp_approval_approved"]);
}

#[tokio::test]
async fn a_denial_is_sent_to_the_provider_with_its_reason() {
    let provider = Provider::default();
    for (at, mut browser) in browsers(|| provider.responses()).into_iter().enumerate() {
        let streams = ["mcp_approval_asked", "mcp_approval_denied", "text"];
        provider.respond_with(streams.map(|name| fixture(&format!("responses/{name}"))));
        browser.send("Shorten it").await;
        browser.deny("mcp.links.shorten", "not that one").await;
        assert_eq!(browser.error(), None);
        assert_eq!(calls(&browser), [shorten_call("output-denied", Value::Null)]);
        assert_eq!(contents(&browser).text, "It was not approved.");
        let sent = approval_items(sent_items(&provider, 3 * at + 1));
        assert_eq!(sent, [approval_request(), approval_response(false, Some("not that one"))]);
        browser.send("Thanks").await;
        let later = approval_items(sent_items(&provider, 3 * at + 2));
        assert_eq!(later[0], approval_request());
        assert_eq!((later.len(), &later[1]["approve"]), (2, &json!(false)));
        assert!(later[1]["reason"].as_str().unwrap().contains("not that one"), "{later:?}");
    }
    check_items(&provider, &["mcp_approval_asked", "mcp_approval_denied"]);
}

#[tokio::test]
async fn a_user_message_instead_of_an_approval_response_denies_the_call() {
    let provider = Provider::default();
    for (at, mut browser) in browsers(|| provider.responses()).into_iter().enumerate() {
        provider.respond_with([fixture("responses/mcp_approval_asked"), fixture("responses/text")]);
        browser.send("Shorten it").await;
        say(&mut browser, "Never mind").await;
        let sent = approval_items(sent_items(&provider, 2 * at + 1));
        assert_eq!(sent[0], approval_request());
        assert_eq!((sent.len(), &sent[1]["approve"]), (2, &json!(false)));
    }
    check_items(&provider, &["mcp_approval_asked"]);
}

#[tokio::test]
async fn an_approval_without_a_resulting_call_has_an_unknown_outcome_and_is_not_repeated() {
    let provider = Provider::default();
    for (at, mut browser) in browsers(|| provider.responses()).into_iter().enumerate() {
        let first_events = lines_of("responses/mcp_approval_approved");
        let first_events: Vec<&str> = first_events.lines().take(3).collect();
        let cut_stream = first_events.iter().map(|line| format!("data: {line}\n\n")).collect();
        let request = fixture("responses/mcp_approval_asked");
        provider.respond_with([request, cut_stream, fixture("responses/text")]);
        browser.send("Shorten it").await;
        browser.approve("mcp.links.shorten").await;
        assert_eq!(browser.error(), Some("An error occurred."));
        say(&mut browser, "And?").await;
        let sent = sent_items(&provider, 3 * at + 2);
        assert_eq!(approval_items(sent.clone()), Vec::<Value>::new());
        let result = sent.iter().find(|item| item["type"] == "function_call_output").unwrap();
        assert!(result["output"].to_string().contains("not known whether it was executed"));
    }
    check_items(&provider, &["mcp_approval_asked"]);
}

/// Returns the number of approvals in a request.
fn approvals_sent(provider: &Provider, request: usize) -> usize {
    let items = approval_items(sent_items(provider, request));
    items.iter().filter(|item| item["approve"] == true).count()
}

/// Returns the function calls in a request: the name of the function and its output.
fn function_calls(provider: &Provider, request: usize) -> Vec<(String, String)> {
    let items = sent_items(provider, request);
    let calls = items.iter().filter(|item| item["type"] == "function_call");
    let results = calls.map(|call| {
        let is_output = |item: &&Value| {
            item["type"] == "function_call_output" && item["call_id"] == call["call_id"]
        };
        let output = items.iter().find(is_output).unwrap()["output"].to_string();
        (call["name"].as_str().unwrap().to_owned(), output)
    });
    results.collect()
}

#[tokio::test]
async fn an_approval_is_not_sent_again_in_the_step_after_a_tool_of_the_agent_ran() {
    let provider = Provider::default();
    for (at, mut browser) in browsers(|| provider.responses()).into_iter().enumerate() {
        let tool = if at == 0 { "weather" } else { "look" };
        let call = lines_of("responses/reasoning_and_a_function_call")
            .replace("\"weather\"", &json!(tool).to_string());
        provider.respond_with([
            fixture("responses/mcp_approval_asked"),
            as_stream(&call),
            fixture("responses/text"),
        ]);
        browser.send("Shorten it").await;
        approve(&mut browser, "mcp.links.shorten").await;
        assert_eq!(provider.requests().len(), 3 * (at + 1));
        assert_eq!(approvals_sent(&provider, 3 * at + 1), 1);
        assert_eq!(approval_items(sent_items(&provider, 3 * at + 2)), Vec::<Value>::new());
        let sent = function_calls(&provider, 3 * at + 2);
        let [(first, unknown), (second, _)] = &*sent else { panic!("{sent:?}") };
        assert_eq!((&**first, &**second), ("mcp_links_shorten", tool));
        assert!(unknown.contains("not known whether it was executed"), "{unknown}");
    }
    check_items(&provider, &["mcp_approval_asked", "reasoning_and_a_function_call"]);
}

#[tokio::test]
async fn the_output_of_an_approved_call_is_sent_once_after_a_tool_of_the_agent_ran() {
    let provider = Provider::default();
    for (at, mut browser) in browsers(|| provider.responses()).into_iter().enumerate() {
        let tool = if at == 0 { "weather" } else { "look" };
        let approved = lines_of("responses/mcp_approval_approved");
        let lines = approved.lines().filter(|line| !line.contains("msg_a"));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        let call = json!({"type": "function_call", "id": "fc_9", "call_id": "call_9", "name": tool,
            "arguments": "{\"city\":\"Faro\"}", "status": "completed"});
        let done = json!({"type": "response.output_item.done", "output_index": 7, "item": call});
        lines.insert(lines.len() - 1, done.to_string());
        provider.respond_with([
            fixture("responses/mcp_approval_asked"),
            as_stream(&lines.join("\n")),
            fixture("responses/text"),
        ]);
        browser.send("Shorten it").await;
        approve(&mut browser, "mcp.links.shorten").await;
        assert_eq!(
            calls(&browser)[0],
            shorten_call("output-available", json!("✅ https://l.example/9"))
        );
        let sent = sent_items(&provider, 3 * at + 2);
        assert_eq!(approval_items(sent.clone()), Vec::<Value>::new());
        assert!(sent.contains(items("mcp_approval_approved").last().unwrap()), "{sent:?}");
        let functions_sent = function_calls(&provider, 3 * at + 2);
        assert_eq!((functions_sent.len(), &*functions_sent[0].0), (1, tool), "{functions_sent:?}");
    }
    check_items(&provider, &["mcp_approval_asked"]);
}

/// A hook that repeats the model call after the first response with text.
#[derive(Default)]
struct RepeatFirstText(AtomicBool);

impl AgentHook for RepeatFirstText {
    async fn on_model_turn_finished(
        &self,
        _: &HookContext,
        turn: ModelTurnFinished<'_>,
    ) -> ModelTurnAction {
        let is_text = |content: &AssistantContent| matches!(content, AssistantContent::Text(_));
        match turn.content.iter().any(is_text) && !self.0.swap(true, Ordering::SeqCst) {
            true => ModelTurnAction::repeat(),
            false => ModelTurnAction::continue_run(),
        }
    }
}

#[tokio::test]
async fn an_approval_is_not_sent_again_if_a_hook_repeats_the_model_call() {
    let streams = ["mcp_approval_asked", "mcp_approval_approved", "text"];
    let streams = streams.map(|name| fixture(&format!("responses/{name}")));
    let provider = Provider::with_streams(streams);
    let builder = AgentBuilder::new(provider.responses()).default_max_turns(5);
    let rig = build(builder.add_hook(RepeatFirstText::default()), &Executed::default());
    let mut browser = browser(RigAgent::new(rig));
    browser.send("Shorten it").await;
    approve(&mut browser, "mcp.links.shorten").await;
    let sent: Vec<usize> = (0..3).map(|request| approvals_sent(&provider, request)).collect();
    assert_eq!(sent, [0, 1, 0]);
    let sent = function_calls(&provider, 2);
    assert!(sent.len() == 1 && sent[0].1.contains("not known whether it was executed"), "{sent:?}");
    check_items(&provider, &["mcp_approval_asked"]);
}

#[tokio::test]
async fn an_approval_request_in_an_incomplete_response_is_not_shown() {
    let provider = Provider::default();
    let errors = ["The model gave no answer.", "An error occurred."];
    for (at, mut browser) in browsers(|| provider.responses()).into_iter().enumerate() {
        let lines = lines_of("responses/mcp_approval_asked");
        let mut events: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let end = events.last_mut().unwrap();
        end["type"] = "response.incomplete".into();
        end["response"]["status"] = "incomplete".into();
        end["response"]["incomplete_details"] = json!({"reason": "max_output_tokens"});
        let events: Vec<String> = events.iter().map(Value::to_string).collect();
        provider.respond_with([as_stream(&events.join("\n"))]);
        browser.send("Shorten it").await;
        let message = serde_json::to_string(browser.messages().last().unwrap()).unwrap();
        assert!(!message.contains("data-approval"), "{message}");
        assert!(!message.contains("approval-requested"), "{message}");
        assert_eq!((provider.requests().len(), browser.error()), (at + 1, Some(errors[at])));
    }
}

/// A hook that replaces every response of the model.
struct ReplaceResponse;

impl AgentHook for ReplaceResponse {
    async fn on_outcome(&self, _: &HookContext, event: OutcomeEvent<'_>) -> OutcomeAction {
        let Some(response) = event.completion() else { return OutcomeAction::proceed() };
        let mut response = response.clone();
        response.choice = vec![AssistantContent::text("No comment.")];
        OutcomeAction::replace(Ok(Outcome::Completion(response)))
    }
}

#[tokio::test]
async fn the_turn_fails_if_a_hook_removes_an_approval_request_of_the_provider() {
    let provider = Provider::with_streams([fixture("responses/mcp_approval_asked")]);
    let builder = AgentBuilder::new(provider.responses()).add_hook(ReplaceResponse);
    let mut browser = browser(RigAgent::new(build(builder, &Executed::default())));
    browser.send("Shorten it").await;
    assert_eq!(browser.error(), Some("An error occurred."));
    assert_eq!(calls(&browser), []);
}

#[tokio::test]
async fn an_approval_response_in_stored_state_is_not_sent() {
    let provider = Provider::with_streams([fixture("responses/text")]);
    let state = json!({"rig": {
        "origin": {"api": "openai.responses", "provider": "openai", "model": "a-model"},
        "opaque": {"item": approval_response(true, None), "replay": true},
        "behind": [{"item": approval_response(true, None), "replay": true}],
    }});
    let history = json!([
        {"id": "u", "role": "user", "parts": [{"type": "text", "text": "Go"}]},
        {"id": "a", "role": "assistant", "parts": [
            {"type": "step-start"},
            {"type": "reasoning", "text": "", "providerMetadata": state},
            {"type": "tool-look", "toolCallId": "c", "state": "output-available", "input": {},
                "output": 1, "providerExecuted": true, "callProviderMetadata": state},
            {"type": "text", "text": "Well.", "providerMetadata": state},
        ]},
    ]);
    let messages: Vec<UiMessage> = history
        .as_array()
        .unwrap()
        .iter()
        .map(|message| UiMessage::parse(&message.to_string()).unwrap())
        .collect();
    let messages = ToModelMessages::new().model_messages(&messages);
    let mut stream = RigModel::new(provider.responses()).call(ModelRequest::new(messages));
    while stream.next().await.is_some() {}
    let input = provider.requests()[0]["input"].to_string();
    assert!(input.contains("Well.") && !input.contains("mcp_approval_response"), "{input}");
}
