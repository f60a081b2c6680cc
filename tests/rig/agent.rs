//! An agent built with rig, behind the route: what its hooks decide, what a person decides, and what
//! the model reads of both.

use std::sync::{Arc, Mutex};

use axum::Router;
use rig_agent::agent::{
    AgentHook, DispatchAction, DispatchEvent, HookContext, OutcomeAction, OutcomeEvent,
};
use rig_agent::tool::{DynamicTool, ToolExecutionError, ToolOutput};
use rig_agent::{Agent, AgentBuilder};
use rig_core::message::ToolName;
use serde_json::{Value, json};
use ui_message_stream::axum::chat_routes;
use ui_message_stream::rig::RigAgent;
use ui_message_stream::testing::Conversation;

use super::provider::{Provider, calling, fixture, lines_of};
use crate::browser::{Held, over};

const LAST: &str = "Sun on “both” shores. 🚢";

/// What the tools did.
type Done = Arc<Mutex<Vec<String>>>;

fn tool(name: &'static str, done: &Done) -> DynamicTool {
    let done = Arc::clone(done);
    let schema = json!({"type": "object", "properties": {"what": {"type": "string"}}});
    DynamicTool::new(ToolName::new(name).unwrap(), "Does it.", schema, move |input: Value| {
        let done = Arc::clone(&done);
        Box::pin(async move {
            if name == "fails" {
                let error = std::io::Error::other("postgres://user:secret@host");
                return Err(ToolExecutionError::from_error(error));
            }
            let what = input["what"].as_str().unwrap_or_default();
            done.lock().unwrap().push(format!("{name} {what}"));
            Ok(ToolOutput::json(json!({"done": what})))
        })
    })
}

/// An agent of these tools, each of which writes down what it does.
fn agent(provider: &Provider) -> (AgentBuilder, Done) {
    let builder = AgentBuilder::new(provider.anthropic("claude-sonnet-4-5"));
    (builder.preamble("Be brief.").max_tokens(999).default_max_turns(5), Done::default())
}

fn built(builder: AgentBuilder, done: &Done) -> Agent {
    let tools = ["look", "delete", "send", "fails"].map(|name| tool(name, done));
    builder.dynamic_tools(tools.into()).build()
}

fn page(agent: RigAgent) -> Conversation<'static> {
    over(Router::new().nest("/api/chat", chat_routes(agent.into_chats())))
}

fn held(page: &Conversation<'_>) -> Held {
    Held::of(page.messages().last().unwrap())
}

/// What became of the calls: tool, input, state and output.
fn calls(page: &Conversation<'_>) -> Vec<(String, Value, String, Value)> {
    held(page).calls
}

fn became(tool: &str, what: &str, state: &str, output: Value) -> (String, Value, String, Value) {
    (tool.to_owned(), json!({"what": what}), state.to_owned(), output)
}

/// What the model was told of its calls, by its own ids for them.
fn told(provider: &Provider, request: usize) -> Vec<(String, String)> {
    let asked = provider.asked();
    let messages = asked[request]["messages"].as_array().unwrap();
    let content = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    let results = content.filter(|content| content["type"] == "tool_result");
    let told = results.map(|result| {
        let id = result["tool_use_id"].as_str().unwrap().to_owned();
        (id, result["content"].to_string())
    });
    told.collect()
}

#[tokio::test]
async fn an_agents_tools_run_and_its_words_arrive_in_their_order() {
    let first = calling(&[("t1", "look", r#"{"what":"a"}"#), ("t2", "fails", r#"{"what":"b"}"#)]);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let mut page = page(RigAgent::new(built(builder, &done)).with_usage_in_metadata());
    page.send("Go").await;
    assert_eq!(page.error(), None);
    assert_eq!(
        calls(&page),
        [
            became("look", "a", "output-available", json!({"done": "a"})),
            became("fails", "b", "output-error", json!("the tool failed")),
        ]
    );
    assert_eq!(held(&page).text, format!("So.{LAST}"));
    let kinds: Vec<String> = page.last_chunks().iter().map(kind).collect();
    let steps = kinds.iter().filter(|kind| *kind == "start-step").count();
    assert_eq!(steps, 2, "{kinds:?}");
    let message = page.messages().last().unwrap();
    let usage: Value = message.metadata.as_ref().unwrap().to().unwrap();
    assert_eq!(usage["usage"], json!({"inputTokens": 163, "outputTokens": 16}));
    assert_eq!(told(&provider, 1).len(), 2);
    assert!(!format!("{:?}", provider.asked()).contains("secret@"));
}

fn kind(chunk: &impl serde::Serialize) -> String {
    serde_json::to_value(chunk).unwrap()["type"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn what_a_person_approves_runs_once_and_the_agent_goes_on() {
    let first = calling(&[("t1", "delete", r#"{"what":"a"}"#)]);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let agent = RigAgent::new(built(builder, &done)).needs_approval("delete");
    let mut page = page(agent.describe(|tool, _| Some(format!("May it {tool}?"))));
    page.send("Go").await;
    assert_eq!(page.error(), None);
    assert_eq!(calls(&page)[0].2, "approval-requested");
    assert_eq!((provider.asked().len(), done.lock().unwrap().len()), (1, 0));
    let message = serde_json::to_string(page.messages().last().unwrap()).unwrap();
    assert!(message.contains("May it delete?"), "{message}");
    page.approve("delete").await;
    assert_eq!(page.error(), None);
    assert_eq!(*done.lock().unwrap(), ["delete a"]);
    let expected = became("delete", "a", "output-available", json!({"done": "a"}));
    assert_eq!(calls(&page), [expected]);
    assert_eq!(held(&page).text, format!("So.{LAST}"));
    let told = told(&provider, 1);
    assert_eq!(told.len(), 1);
    assert!(told[0].0 == "t1" && told[0].1.contains("done"), "{told:?}");
}

#[tokio::test]
async fn what_a_person_denies_does_not_run_and_the_model_reads_why() {
    let first = calling(&[("t1", "delete", r#"{"what":"a"}"#)]);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let mut page = page(RigAgent::new(built(builder, &done)).needs_approval("delete"));
    page.send("Go").await;
    page.deny("delete", "it is mine").await;
    assert_eq!(page.error(), None);
    assert_eq!(calls(&page)[0].2, "output-denied");
    assert!(done.lock().unwrap().is_empty());
    let told = told(&provider, 1);
    assert!(told[0].1.contains("was denied") && told[0].1.contains("it is mine"), "{told:?}");
    assert_eq!(held(&page).text, format!("So.{LAST}"));
}

#[tokio::test]
async fn of_one_step_some_run_at_once_some_are_approved_and_some_denied() {
    let first = calling(&[
        ("t1", "delete", r#"{"what":"a"}"#),
        ("t2", "look", r#"{"what":"b"}"#),
        ("t3", "send", r#"{"what":"c"}"#),
    ]);
    for side_by_side in [1, 4] {
        let provider = Provider::streaming([first.clone(), fixture("anthropic/text")]);
        let (builder, done) = agent(&provider);
        let agent = RigAgent::new(built(builder, &done))
            .needs_approval("delete")
            .needs_approval_when(|tool, input| tool == "send" && input.as_str().contains('c'))
            .with_run(move |run, _| run.tool_concurrency(side_by_side));
        let mut page = page(agent);
        page.send("Go").await;
        assert_eq!(page.error(), None);
        let states: Vec<String> = calls(&page).into_iter().map(|call| call.2).collect();
        assert_eq!(states, ["approval-requested", "output-available", "approval-requested"]);
        assert_eq!(*done.lock().unwrap(), ["look b"]);
        page.approve("delete").await;
        assert_eq!(provider.asked().len(), 1);
        page.deny("send", "no").await;
        assert_eq!(page.error(), None);
        let states: Vec<String> = calls(&page).into_iter().map(|call| call.2).collect();
        assert_eq!(states, ["output-available", "output-available", "output-denied"]);
        assert_eq!(*done.lock().unwrap(), ["look b", "delete a"]);
        let ids: Vec<String> = told(&provider, 1).into_iter().map(|(id, _)| id).collect();
        assert_eq!(ids, ["t1", "t2", "t3"]);
        assert_eq!(held(&page).text, format!("So.{LAST}"));
    }
}

#[tokio::test]
async fn a_predicate_that_panics_means_ask() {
    let first = calling(&[("t1", "delete", r#"{"what":"a"}"#)]);
    let provider = Provider::streaming([first]);
    let (builder, done) = agent(&provider);
    let agent = RigAgent::new(built(builder, &done));
    let mut page = page(agent.needs_approval_when(|_, _| panic!("a predicate")));
    page.send("Go").await;
    assert_eq!(calls(&page)[0].2, "approval-requested");
    assert!(done.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_tool_that_became_another_since_does_not_run() {
    let first = calling(&[("t1", "delete", r#"{"what":"a"}"#)]);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let rig = built(builder, &done);
    let mut page = page(RigAgent::new(rig.clone()).needs_approval("delete"));
    page.send("Go").await;
    let schema = json!({"type": "object"});
    let other = DynamicTool::new(ToolName::new("delete").unwrap(), "Else.", schema, |_| {
        Box::pin(async { panic!("it ran") })
    });
    rig.tool_server_handle().add_dynamic_tool(other);
    page.approve("delete").await;
    assert_eq!(page.error(), None);
    assert_eq!(calls(&page)[0].2, "output-error");
    assert!(done.lock().unwrap().is_empty());
}

/// A hook of the agent's own.
struct Host;

impl AgentHook for Host {
    async fn on_dispatch(&self, _: &HookContext, event: DispatchEvent<'_>) -> DispatchAction {
        match event.tool_args() {
            Some(args) if args.contains("edit") => {
                DispatchAction::rewrite_tool_args(event.kind, json!({"what": "edited"}))
            }
            Some(args) if args.contains("refuse") => DispatchAction::skip("not on a Sunday"),
            Some(args) if args.contains("stop") => DispatchAction::stop("a secret of the host"),
            _ => DispatchAction::proceed(),
        }
    }

    async fn on_outcome(&self, _: &HookContext, event: OutcomeEvent<'_>) -> OutcomeAction {
        match event.tool_args() {
            Some(args) if args.contains("redact") => {
                OutcomeAction::rewrite_tool_result(&event, "redacted")
            }
            _ => OutcomeAction::proceed(),
        }
    }
}

#[tokio::test]
async fn what_the_agents_hook_edits_is_what_is_shown_asked_about_and_run() {
    let first = calling(&[
        ("t1", "look", r#"{"what":"edit"}"#),
        ("t2", "look", r#"{"what":"redact"}"#),
        ("t3", "delete", r#"{"what":"edit"}"#),
    ]);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let rig = built(builder.add_hook(Host), &done);
    let mut page = page(RigAgent::new(rig).needs_approval("delete"));
    page.send("Go").await;
    let asked = calls(&page);
    let expected = became("look", "edited", "output-available", json!({"done": "edited"}));
    assert_eq!(asked[0], expected);
    assert_eq!(asked[1], became("look", "redact", "output-available", json!("redacted")));
    assert_eq!((&asked[2].1, &*asked[2].2), (&json!({"what": "edited"}), "approval-requested"));
    page.approve("delete").await;
    assert_eq!(page.error(), None);
    assert_eq!(*done.lock().unwrap(), ["look edited", "look redact", "delete edited"]);
    assert!(told(&provider, 1)[1].1.contains("redacted"));
}

#[tokio::test]
async fn what_the_agents_hook_refuses_failed_for_the_person_and_for_the_model() {
    let first = calling(&[("t1", "delete", r#"{"what":"refuse"}"#)]);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let rig = built(builder.add_hook(Host), &done);
    let mut page = page(RigAgent::new(rig).needs_approval("delete"));
    page.send("Go").await;
    assert_eq!(page.error(), None);
    let expected = became("delete", "refuse", "output-error", json!("not on a Sunday"));
    assert_eq!(calls(&page), [expected]);
    assert!(told(&provider, 1)[0].1.contains("not on a Sunday"));
    assert!(done.lock().unwrap().is_empty());
}

#[tokio::test]
async fn where_the_agents_hook_stops_what_ran_is_shown_and_nothing_else_runs() {
    let first = calling(&[
        ("t1", "look", r#"{"what":"a"}"#),
        ("t2", "delete", r#"{"what":"stop"}"#),
        ("t3", "look", r#"{"what":"b"}"#),
    ]);
    let provider = Provider::streaming([first]);
    let (builder, done) = agent(&provider);
    let rig = built(builder.add_hook(Host), &done);
    let mut page = page(RigAgent::new(rig).needs_approval("delete"));
    page.send("Go").await;
    let chunks = serde_json::to_string(&page.last_chunks()).unwrap();
    assert!(chunks.contains(r#""type":"abort""#) && !chunks.contains("a secret"), "{chunks}");
    assert_eq!(calls(&page)[0].2, "output-available");
    assert!(calls(&page)[1..].iter().all(|call| call.2 == "output-error"), "{:?}", calls(&page));
    assert_eq!(*done.lock().unwrap(), ["look a"]);
    assert_eq!(provider.asked().len(), 1);
}

#[tokio::test]
async fn half_an_input_reaches_no_tool_and_the_model_reads_why() {
    let first = calling(&[("t1", "look", r#"{"what":"a"#), ("t2", "look", r#"{"what":"b"}"#)]);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let mut page = page(RigAgent::new(built(builder, &done)));
    page.send("Go").await;
    assert_eq!(page.error(), None);
    let message = serde_json::to_value(page.messages().last().unwrap()).unwrap();
    let call = message["parts"].as_array().unwrap().iter().find(|part| part["type"] == "tool-look");
    assert_eq!(call.unwrap()["rawInput"], r#"{"what":"a"#);
    assert_eq!(*done.lock().unwrap(), ["look b"]);
    assert_eq!(told(&provider, 1).len(), 2);
}

#[tokio::test]
async fn a_failure_of_the_provider_is_masked_and_a_used_up_budget_is_an_end() {
    let whole = lines_of("anthropic/thoughts_and_two_calls");
    let begun: String = whole.lines().take(9).map(|line| format!("data: {line}\n\n")).collect();
    let error = r#"{"type":"error","error":{"type":"overloaded_error","message":"at 10.0.0.7"}}"#;
    let provider = Provider::streaming([format!("{begun}data: {error}\n\n")]);
    let (builder, done) = agent(&provider);
    let mut failing = page(RigAgent::new(built(builder, &done)));
    failing.send("Go").await;
    assert_eq!(failing.error(), Some("An error occurred."));
    assert_eq!(held(&failing).reasoning, "Two towns — both by the sea.");

    let provider = Provider::streaming([calling(&[("t1", "look", r#"{"what":"a"}"#)])]);
    let (builder, done) = agent(&provider);
    let rig = RigAgent::new(built(builder.default_max_turns(1), &done));
    let mut page = page(rig);
    page.send("Go").await;
    assert_eq!(page.error(), None);
    assert_eq!(calls(&page)[0].2, "output-available");
}

#[tokio::test]
async fn thoughts_go_back_to_the_model_after_an_approval() {
    let thinking =
        lines_of("anthropic/thoughts_and_two_calls").replace("\"weather\"", "\"delete\"");
    let first = super::provider::as_stream(&thinking);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let agent = RigAgent::new(built(builder, &done));
    let mut page = page(agent.needs_approval_when(|_, input| input.as_str().contains("Faro")));
    page.send("Go").await;
    page.approve("delete").await;
    assert_eq!(page.error(), None);
    let said = provider.asked()[1]["messages"][1]["content"].clone();
    assert_eq!(said[0]["signature"], "c2lnbmVkIGJ5IG5vYm9keQ==");
    assert_eq!(said[1], json!({"type": "redacted_thinking", "data": "bm90IGZvciB5b3U="}));
    assert_eq!(said[4]["id"], "toolu_02");
    assert_eq!(done.lock().unwrap().len(), 2);
}
