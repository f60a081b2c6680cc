//! What the provider asks before it runs a tool, through a model and through an agent of rig: it is
//! told what the person said, a yes once, and nothing else is one.

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

use super::super::agents::{Done, built, calls, held, page};
use super::super::provider::{Provider, as_stream, fixture, lines_of};
use super::{both, check_items, items, sent_items, shorten};

fn question() -> Value {
    items("mcp_approval_asked").pop().unwrap()
}

fn answer(approve: bool, reason: Option<&str>) -> Value {
    let mut answer = json!({
        "type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": approve,
    });
    if let Some(reason) = reason {
        answer["reason"] = reason.into();
    }
    answer
}

fn of_approvals(items: Vec<Value>) -> Vec<Value> {
    let is_it = |item: &Value| item["type"].as_str().unwrap().starts_with("mcp_approval");
    items.into_iter().filter(is_it).collect()
}

#[tokio::test]
async fn a_yes_is_told_once_and_the_later_call_is_the_approved_ones_output() {
    let provider = Provider::default();
    for (at, mut page) in both(|| provider.responses()).into_iter().enumerate() {
        let answers = ["mcp_approval_asked", "mcp_approval_approved", "text"];
        provider.then(answers.map(|name| fixture(&format!("responses/{name}"))));
        page.send("Shorten it").await;
        assert_eq!(page.error(), None);
        assert_eq!(calls(&page), [shorten("approval-requested", Value::Null)]);
        let asks = |part: &Part| matches!(part, Part::Data(data) if &*data.name == "approval");
        assert!(page.messages()[1].parts.iter().any(asks), "the person sees what is asked");
        assert_eq!(provider.asked().len(), 3 * at + 1);
        let chunks = serde_json::to_string(&page.last_chunks()).unwrap();
        assert!(chunks.contains(r#""finishReason":"tool-calls""#), "{chunks}");

        page.approve("mcp.links.shorten").await;
        assert_eq!(page.error(), None);
        let output = json!("✅ https://l.example/9");
        assert_eq!(calls(&page), [shorten("output-available", output)]);
        assert_eq!(held(&page).text, "Here: https://l.example/9");
        let sent = of_approvals(sent_items(&provider, 3 * at + 1));
        assert_eq!(sent, [question(), answer(true, None)]);

        page.send("Thanks").await;
        assert_eq!(page.error(), None);
        let sent = sent_items(&provider, 3 * at + 2);
        assert_eq!(of_approvals(sent.clone()), Vec::<Value>::new(), "it is over");
        let ran = items("mcp_approval_approved").pop().unwrap();
        assert_eq!(ran["type"], "mcp_call");
        assert_eq!(sent.last(), Some(&ran), "{sent:?}");
    }
    check_items(&provider, &["mcp_approval_asked", "mcp_approval_approved"]);
}

#[tokio::test]
async fn a_no_is_told_with_its_reason() {
    let provider = Provider::default();
    for (at, mut page) in both(|| provider.responses()).into_iter().enumerate() {
        let answers = ["mcp_approval_asked", "mcp_approval_denied", "text"];
        provider.then(answers.map(|name| fixture(&format!("responses/{name}"))));
        page.send("Shorten it").await;
        page.deny("mcp.links.shorten", "not that one").await;
        assert_eq!(page.error(), None);
        assert_eq!(calls(&page), [shorten("output-denied", Value::Null)]);
        assert_eq!(held(&page).text, "It was not approved.");
        let sent = of_approvals(sent_items(&provider, 3 * at + 1));
        assert_eq!(sent, [question(), answer(false, Some("not that one"))]);
        page.send("Thanks").await;
        let later = of_approvals(sent_items(&provider, 3 * at + 2));
        assert_eq!(later[0], question());
        assert_eq!((later.len(), &later[1]["approve"]), (2, &json!(false)));
        assert!(later[1]["reason"].as_str().unwrap().contains("not that one"), "{later:?}");
    }
    check_items(&provider, &["mcp_approval_asked", "mcp_approval_denied"]);
}

#[tokio::test]
async fn who_writes_on_instead_of_answering_has_not_approved() {
    let provider = Provider::default();
    for (at, mut page) in both(|| provider.responses()).into_iter().enumerate() {
        provider.then([fixture("responses/mcp_approval_asked"), fixture("responses/text")]);
        page.send("Shorten it").await;
        page.send("Never mind").await;
        assert_eq!(page.error(), None);
        let sent = of_approvals(sent_items(&provider, 2 * at + 1));
        assert_eq!(sent[0], question());
        assert_eq!((sent.len(), &sent[1]["approve"]), (2, &json!(false)));
    }
    check_items(&provider, &["mcp_approval_asked"]);
}

#[tokio::test]
async fn a_yes_that_no_call_came_of_is_told_as_unknown_and_not_again() {
    let provider = Provider::default();
    for (at, mut page) in both(|| provider.responses()).into_iter().enumerate() {
        let begun = lines_of("responses/mcp_approval_approved");
        let begun: Vec<&str> = begun.lines().take(3).collect();
        let broken = begun.iter().map(|line| format!("data: {line}\n\n")).collect();
        let asks = fixture("responses/mcp_approval_asked");
        provider.then([asks, broken, fixture("responses/text")]);
        page.send("Shorten it").await;
        page.approve("mcp.links.shorten").await;
        assert_eq!(page.error(), Some("An error occurred."));
        page.send("And?").await;
        assert_eq!(page.error(), None);
        let sent = sent_items(&provider, 3 * at + 2);
        assert_eq!(of_approvals(sent.clone()), Vec::<Value>::new());
        let told = sent.iter().find(|item| item["type"] == "function_call_output").unwrap();
        assert!(
            told["output"].to_string().contains("has an effect is not known") || {
                told["output"].to_string().contains("had an effect is not known")
            }
        );
    }
    check_items(&provider, &["mcp_approval_asked"]);
}

/// How often a request allows the provider something.
fn yeses(provider: &Provider, request: usize) -> usize {
    let items = of_approvals(sent_items(provider, request));
    items.iter().filter(|item| item["approve"] == true).count()
}

/// What the model reads of calls that are functions to it: the name of each and what came of it.
fn functions(provider: &Provider, request: usize) -> Vec<(String, String)> {
    let items = sent_items(provider, request);
    let calls = items.iter().filter(|item| item["type"] == "function_call");
    let told = calls.map(|call| {
        let is_its = |item: &&Value| {
            item["type"] == "function_call_output" && item["call_id"] == call["call_id"]
        };
        let output = items.iter().find(is_its).unwrap()["output"].to_string();
        (call["name"].as_str().unwrap().to_owned(), output)
    });
    told.collect()
}

#[tokio::test]
async fn a_yes_is_not_told_again_when_a_tool_here_ran() {
    let provider = Provider::default();
    for (at, mut page) in both(|| provider.responses()).into_iter().enumerate() {
        let tool = if at == 0 { "weather" } else { "look" };
        let call = lines_of("responses/reasoning_and_a_function_call")
            .replace("\"weather\"", &json!(tool).to_string());
        provider.then([
            fixture("responses/mcp_approval_asked"),
            as_stream(&call),
            fixture("responses/text"),
        ]);
        page.send("Shorten it").await;
        page.approve("mcp.links.shorten").await;
        assert_eq!(page.error(), None);
        assert_eq!(provider.asked().len(), 3 * (at + 1));
        assert_eq!(yeses(&provider, 3 * at + 1), 1);
        assert_eq!(of_approvals(sent_items(&provider, 3 * at + 2)), Vec::<Value>::new());
        let told = functions(&provider, 3 * at + 2);
        let [(shortens, unknown), (called, _)] = &*told else { panic!("{told:?}") };
        assert_eq!((&**shortens, &**called), ("mcp_links_shorten", tool));
        assert!(unknown.contains("effect is not known"), "{unknown}");
    }
    check_items(&provider, &["mcp_approval_asked", "reasoning_and_a_function_call"]);
}

#[tokio::test]
async fn what_came_of_a_yes_stands_there_alone_when_a_tool_here_ran() {
    let provider = Provider::default();
    for (at, mut page) in both(|| provider.responses()).into_iter().enumerate() {
        let tool = if at == 0 { "weather" } else { "look" };
        let approved = lines_of("responses/mcp_approval_approved");
        let ran = approved.lines().filter(|line| !line.contains("msg_a"));
        let mut ran: Vec<String> = ran.map(str::to_owned).collect();
        let call = json!({"type": "function_call", "id": "fc_9", "call_id": "call_9", "name": tool,
            "arguments": "{\"city\":\"Faro\"}", "status": "completed"});
        let done = json!({"type": "response.output_item.done", "output_index": 7, "item": call});
        ran.insert(ran.len() - 1, done.to_string());
        provider.then([
            fixture("responses/mcp_approval_asked"),
            as_stream(&ran.join("\n")),
            fixture("responses/text"),
        ]);
        page.send("Shorten it").await;
        page.approve("mcp.links.shorten").await;
        assert_eq!(page.error(), None);
        assert_eq!(calls(&page)[0], shorten("output-available", json!("✅ https://l.example/9")));
        let sent = sent_items(&provider, 3 * at + 2);
        assert_eq!(of_approvals(sent.clone()), Vec::<Value>::new());
        assert!(sent.contains(items("mcp_approval_approved").last().unwrap()), "{sent:?}");
        let told = functions(&provider, 3 * at + 2);
        assert_eq!((told.len(), &*told[0].0), (1, tool), "{told:?}");
    }
    check_items(&provider, &["mcp_approval_asked"]);
}

/// A hook that has the model say its first words anew.
#[derive(Default)]
struct Again(AtomicBool);

impl AgentHook for Again {
    async fn on_model_turn_finished(
        &self,
        _: &HookContext,
        turn: ModelTurnFinished<'_>,
    ) -> ModelTurnAction {
        let is_text = |said: &AssistantContent| matches!(said, AssistantContent::Text(_));
        match turn.content.iter().any(is_text) && !self.0.swap(true, Ordering::SeqCst) {
            true => ModelTurnAction::repeat(),
            false => ModelTurnAction::continue_run(),
        }
    }
}

#[tokio::test]
async fn a_yes_is_not_told_again_when_a_hook_has_the_answer_said_anew() {
    let answers = ["mcp_approval_asked", "mcp_approval_approved", "text"];
    let answers = answers.map(|name| fixture(&format!("responses/{name}")));
    let provider = Provider::streaming(answers);
    let builder = AgentBuilder::new(provider.responses()).default_max_turns(5);
    let rig = built(builder.add_hook(Again::default()), &Done::default());
    let mut page = page(RigAgent::new(rig));
    page.send("Shorten it").await;
    page.approve("mcp.links.shorten").await;
    assert_eq!(page.error(), None);
    let asked: Vec<usize> = (0..3).map(|request| yeses(&provider, request)).collect();
    assert_eq!(asked, [0, 1, 0]);
    let told = functions(&provider, 2);
    assert!(told.len() == 1 && told[0].1.contains("effect is not known"), "{told:?}");
    check_items(&provider, &["mcp_approval_asked"]);
}

#[tokio::test]
async fn nobody_is_asked_about_an_answer_that_was_cut_off() {
    let provider = Provider::default();
    for (at, mut page) in both(|| provider.responses()).into_iter().enumerate() {
        let asks = lines_of("responses/mcp_approval_asked");
        let mut events: Vec<Value> =
            asks.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let end = events.last_mut().unwrap();
        end["type"] = "response.incomplete".into();
        end["response"]["status"] = "incomplete".into();
        end["response"]["incomplete_details"] = json!({"reason": "max_output_tokens"});
        let events: Vec<String> = events.iter().map(Value::to_string).collect();
        provider.then([as_stream(&events.join("\n"))]);
        page.send("Shorten it").await;
        let message = serde_json::to_string(page.messages().last().unwrap()).unwrap();
        assert!(!message.contains("data-approval"), "{message}");
        assert!(!message.contains("approval-requested"), "{message}");
        assert_eq!((provider.asked().len(), page.error()), (at + 1, Some("An error occurred.")));
    }
}

/// A hook that says something else.
struct Silences;

impl AgentHook for Silences {
    async fn on_outcome(&self, _: &HookContext, event: OutcomeEvent<'_>) -> OutcomeAction {
        let Some(response) = event.completion() else { return OutcomeAction::proceed() };
        let mut response = response.clone();
        response.choice = vec![AssistantContent::text("No comment.")];
        OutcomeAction::replace(Ok(Outcome::Completion(response)))
    }
}

#[tokio::test]
async fn an_answer_in_which_the_provider_asked_and_a_hook_took_it_out_fails() {
    let provider = Provider::streaming([fixture("responses/mcp_approval_asked")]);
    let builder = AgentBuilder::new(provider.responses()).add_hook(Silences);
    let mut page = page(RigAgent::new(built(builder, &Done::default())));
    page.send("Shorten it").await;
    assert_eq!(page.error(), Some("An error occurred."));
    assert_eq!(calls(&page), []);
}

#[tokio::test]
async fn a_yes_that_was_kept_is_no_yes() {
    let provider = Provider::streaming([fixture("responses/text")]);
    let yes = json!({"rig": {
        "origin": {"api": "openai.responses", "provider": "openai", "model": "a-model"},
        "opaque": {"item": answer(true, None), "replay": true},
        "behind": [{"item": answer(true, None), "replay": true}],
    }});
    let history = json!([
        {"id": "u", "role": "user", "parts": [{"type": "text", "text": "Go"}]},
        {"id": "a", "role": "assistant", "parts": [
            {"type": "step-start"},
            {"type": "reasoning", "text": "", "providerMetadata": yes},
            {"type": "tool-look", "toolCallId": "c", "state": "output-available", "input": {},
                "output": 1, "providerExecuted": true, "callProviderMetadata": yes},
            {"type": "text", "text": "Well.", "providerMetadata": yes},
        ]},
    ]);
    let messages: Vec<UiMessage> = history
        .as_array()
        .unwrap()
        .iter()
        .map(|message| UiMessage::parse(&message.to_string()).unwrap())
        .collect();
    let messages = ToModelMessages::new().model_messages(&messages);
    let mut said = RigModel::new(provider.responses()).call(ModelRequest::new(messages));
    while said.next().await.is_some() {}
    let asked = provider.asked()[0]["input"].to_string();
    assert!(asked.contains("Well.") && !asked.contains("mcp_approval_response"), "{asked}");
}
