//! What the hooks of an agent built with rig decide, as the page and the model see it.

use std::collections::BTreeSet;

use rig_agent::AgentBuilder;
use rig_agent::agent::{
    AgentHook, DispatchAction, DispatchEvent, HookContext, InvalidToolCallAction,
    InvalidToolCallContext, ModelTurnAction, ModelTurnFinished, OutcomeAction, OutcomeEvent,
};
use rig_agent::run::UnhandledInvalidToolCall;
use serde_json::json;
use ui_message_stream::message::Part;
use ui_message_stream_rig::RigAgent;

use super::agents::{Done, agent, became, built, calls, held, page, told};
use super::provider::{Provider, calling, fixture};

/// A hook of the agent's own.
pub(crate) struct Host;

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
async fn where_a_question_waits_a_hook_that_stops_the_run_does_not_take_it_back() {
    let first =
        calling(&[("t1", "delete", r#"{"what":"a"}"#), ("t2", "look", r#"{"what":"stop"}"#)]);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let rig = built(builder.add_hook(Host), &done);
    let mut page = page(RigAgent::new(rig).needs_approval("delete"));
    page.send("Go").await;
    assert_eq!(page.error(), None);
    let chunks = serde_json::to_string(&page.last_chunks()).unwrap();
    assert!(!chunks.contains(r#""type":"abort""#), "{chunks}");
    let states: Vec<String> = calls(&page).into_iter().map(|call| call.2).collect();
    assert_eq!(states, ["approval-requested", "output-error"]);
    page.approve("delete").await;
    assert_eq!(page.error(), None);
    assert_eq!(*done.lock().unwrap(), ["delete a"]);
    assert_eq!(told(&provider, 1).len(), 2);
}

/// A hook that mends what the model does wrong.
pub(crate) struct Mends;

impl AgentHook for Mends {
    async fn on_invalid_tool_call(
        &self,
        _: &HookContext,
        call: &InvalidToolCallContext,
    ) -> Option<InvalidToolCallAction> {
        Some(match call.tool_name.as_str() {
            "peek" => InvalidToolCallAction::repair("look"),
            _ => InvalidToolCallAction::skip("there is no such tool"),
        })
    }

    async fn on_model_turn_finished(
        &self,
        context: &HookContext,
        turn: ModelTurnFinished<'_>,
    ) -> ModelTurnAction {
        let has_calls = turn
            .content
            .iter()
            .any(|said| matches!(said, rig_core::message::AssistantContent::ToolCall(_)));
        match context.turn() {
            1 if !has_calls => ModelTurnAction::repeat(),
            _ => ModelTurnAction::continue_run(),
        }
    }
}

#[tokio::test]
async fn a_tool_that_there_is_none_of_fails_the_run_unless_the_host_says_else() {
    let first = calling(&[("t1", "look", r#"{"what":"a"}"#), ("t2", "nosuch", "{}")]);
    let text = fixture("anthropic/text");
    let provider = Provider::streaming([first.clone(), first.clone(), text.clone(), first, text]);
    let (builder, done) = agent(&provider);
    let rig = built(builder, &done);
    let mut failing = page(RigAgent::new(rig.clone()));
    failing.send("Go").await;
    assert_eq!(failing.error(), Some("An error occurred."));

    let ignoring = RigAgent::new(rig.clone())
        .map_runner(|run, _| run.unhandled_invalid_tool_call(UnhandledInvalidToolCall::Ignore));
    let mut ignoring = page(ignoring);
    ignoring.send("Go").await;
    assert_eq!(ignoring.error(), None);
    let expected = became("look", "a", "output-available", json!({"done": "a"}));
    assert_eq!(calls(&ignoring), [expected]);

    // rig gives up the whole step, the call before it too.
    let mut skipping = page(RigAgent::new(rig).map_runner(|run, _| run.add_hook(Mends)));
    skipping.send("Go").await;
    assert_eq!(skipping.error(), None);
    assert_eq!(calls(&skipping)[0].2, "output-error");
    assert_eq!(*done.lock().unwrap(), ["look a"]);
}

#[tokio::test]
async fn what_the_agents_hook_mends_is_shown_as_it_is_then() {
    let first = calling(&[("t1", "peek", r#"{"what":"a"}"#)]);
    let text = fixture("anthropic/text");
    let provider = Provider::streaming([first, text.clone(), text.clone(), text]);
    let (builder, done) = agent(&provider);
    let rig = built(builder.add_hook(Mends), &done);
    let mut repaired = page(RigAgent::new(rig.clone()));
    repaired.send("Go").await;
    assert_eq!(repaired.error(), None);
    let expected = became("look", "a", "output-available", json!({"done": "a"}));
    assert_eq!(calls(&repaired), [expected]);

    let mut repeated = page(RigAgent::new(rig));
    repeated.send("Go").await;
    assert_eq!(repeated.error(), None);
    let said = "Sun on “both” shores. 🚢";
    assert_eq!(held(&repeated).text, format!("{said}{said}"));
    assert_eq!(told(&provider, 3), []);
}

#[tokio::test]
async fn sources_of_two_answers_in_one_message_are_not_mixed_up() {
    let searched = fixture("responses/web_search_with_sources");
    let provider = Provider::streaming([searched.clone(), searched]);
    let builder = AgentBuilder::new(provider.responses()).default_max_turns(5);
    let rig = built(builder.add_hook(Mends), &Done::default());
    let mut page = page(RigAgent::new(rig));
    page.send("Go").await;
    assert_eq!(page.error(), None);
    let parts = &page.messages().last().unwrap().parts;
    let sources = parts.iter().filter_map(|part| match part {
        Part::SourceUrl(source) => Some(source.source_id.to_string()),
        _ => None,
    });
    let sources: Vec<String> = sources.collect();
    let different: BTreeSet<&String> = sources.iter().collect();
    assert!(sources.len() > 1 && different.len() == sources.len(), "{sources:?}");
}
