//! The effect of the hooks of an agent built with rig on what the browser shows and the model
//! reads.

use chat_test_support::browser::{approve, say};
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

use super::agents::{
    Executed, agent_builder, answering, browser, build, calls, contents, expected_call, started,
    tool_results,
};
use super::provider::{Provider, fixture, stream_with_calls};

/// A hook of the host that edits, refuses, stops and redacts calls.
pub(crate) struct HostHook;

impl AgentHook for HostHook {
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
async fn arguments_that_a_hook_changed_are_shown_submitted_for_approval_and_executed() {
    let (provider, builder, executed) = answering(&[
        ("t1", "look", r#"{"what":"edit"}"#),
        ("t2", "look", r#"{"what":"redact"}"#),
        ("t3", "delete", r#"{"what":"edit"}"#),
    ]);
    let rig = build(builder.add_hook(HostHook), &executed);
    let mut browser = started(RigAgent::new(rig).needs_approval("delete")).await;
    let shown = calls(&browser);
    let expected = expected_call("look", "edited", "output-available", json!({"done": "edited"}));
    assert_eq!(shown[0], expected);
    assert_eq!(shown[1], expected_call("look", "redact", "output-available", json!("redacted")));
    assert_eq!((&shown[2].1, &*shown[2].2), (&json!({"what": "edited"}), "approval-requested"));
    approve(&mut browser, "delete").await;
    assert_eq!(*executed.lock().unwrap(), ["look edited", "look redact", "delete edited"]);
    assert!(tool_results(&provider, 1)[1].1.contains("redacted"));
}

#[tokio::test]
async fn a_call_that_a_hook_refuses_has_failed_for_the_user_and_for_the_model() {
    let (provider, builder, executed) = answering(&[("t1", "delete", r#"{"what":"refuse"}"#)]);
    let rig = build(builder.add_hook(HostHook), &executed);
    let browser = started(RigAgent::new(rig).needs_approval("delete")).await;
    let expected = expected_call("delete", "refuse", "output-error", json!("not on a Sunday"));
    assert_eq!(calls(&browser), [expected]);
    assert!(tool_results(&provider, 1)[0].1.contains("not on a Sunday"));
    assert!(executed.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_hook_that_stops_the_run_aborts_it_and_no_later_call_runs() {
    let first = stream_with_calls(&[
        ("t1", "look", r#"{"what":"a"}"#),
        ("t2", "delete", r#"{"what":"stop"}"#),
        ("t3", "look", r#"{"what":"b"}"#),
    ]);
    let provider = Provider::with_streams([first]);
    let (builder, executed) = agent_builder(&provider);
    let rig = build(builder.add_hook(HostHook), &executed);
    let browser = started(RigAgent::new(rig).needs_approval("delete")).await;
    let chunks = serde_json::to_string(&browser.last_chunks()).unwrap();
    assert!(chunks.contains(r#""type":"abort""#) && !chunks.contains("a secret"), "{chunks}");
    assert_eq!(calls(&browser)[0].2, "output-available");
    assert!(
        calls(&browser)[1..].iter().all(|call| call.2 == "output-error"),
        "{:?}",
        calls(&browser)
    );
    assert_eq!(*executed.lock().unwrap(), ["look a"]);
    assert_eq!(provider.requests().len(), 1);
}

#[tokio::test]
async fn a_hook_that_stops_the_run_does_not_revoke_a_pending_approval_request() {
    let (provider, builder, executed) =
        answering(&[("t1", "delete", r#"{"what":"a"}"#), ("t2", "look", r#"{"what":"stop"}"#)]);
    let rig = build(builder.add_hook(HostHook), &executed);
    let mut browser = started(RigAgent::new(rig).needs_approval("delete")).await;
    let chunks = serde_json::to_string(&browser.last_chunks()).unwrap();
    assert!(!chunks.contains(r#""type":"abort""#), "{chunks}");
    let states: Vec<String> = calls(&browser).into_iter().map(|call| call.2).collect();
    assert_eq!(states, ["approval-requested", "output-error"]);
    approve(&mut browser, "delete").await;
    assert_eq!(*executed.lock().unwrap(), ["delete a"]);
    assert_eq!(tool_results(&provider, 1).len(), 2);
}

/// A hook that repairs or skips invalid calls, and repeats a first response without calls.
pub(crate) struct RepairHook;

impl AgentHook for RepairHook {
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
            .any(|content| matches!(content, rig_core::message::AssistantContent::ToolCall(_)));
        match context.turn() {
            1 if !has_calls => ModelTurnAction::repeat(),
            _ => ModelTurnAction::continue_run(),
        }
    }
}

#[tokio::test]
async fn a_call_of_an_unknown_tool_fails_the_run_unless_the_host_configures_otherwise() {
    let first = stream_with_calls(&[("t1", "look", r#"{"what":"a"}"#), ("t2", "nosuch", "{}")]);
    let text = fixture("anthropic/text");
    let provider =
        Provider::with_streams([first.clone(), first.clone(), text.clone(), first, text]);
    let (builder, executed) = agent_builder(&provider);
    let rig = build(builder, &executed);
    let mut failing = browser(RigAgent::new(rig.clone()));
    failing.send("Go").await;
    assert_eq!(failing.error(), Some("An error occurred."));

    let ignoring = RigAgent::new(rig.clone())
        .map_runner(|run, _| run.unhandled_invalid_tool_call(UnhandledInvalidToolCall::Ignore));
    let mut ignoring = browser(ignoring);
    say(&mut ignoring, "Go").await;
    let expected = expected_call("look", "a", "output-available", json!({"done": "a"}));
    assert_eq!(calls(&ignoring), [expected]);

    // rig discards the whole step, including the valid call.
    let mut skipping = browser(RigAgent::new(rig).map_runner(|run, _| run.add_hook(RepairHook)));
    say(&mut skipping, "Go").await;
    assert_eq!(calls(&skipping)[0].2, "output-error");
    assert_eq!(*executed.lock().unwrap(), ["look a"]);
}

#[tokio::test]
async fn a_call_that_a_hook_repairs_and_a_response_that_it_repeats_are_shown() {
    let first = stream_with_calls(&[("t1", "peek", r#"{"what":"a"}"#)]);
    let stream = fixture("anthropic/text");
    let provider = Provider::with_streams([first, stream.clone(), stream.clone(), stream]);
    let (builder, executed) = agent_builder(&provider);
    let rig = build(builder.add_hook(RepairHook), &executed);
    let mut repaired = browser(RigAgent::new(rig.clone()));
    say(&mut repaired, "Go").await;
    let expected = expected_call("look", "a", "output-available", json!({"done": "a"}));
    assert_eq!(calls(&repaired), [expected]);

    let mut repeated = browser(RigAgent::new(rig));
    say(&mut repeated, "Go").await;
    let text = "Sun on “both” shores. 🚢";
    assert_eq!(contents(&repeated).text, format!("{text}{text}"));
    assert_eq!(tool_results(&provider, 3), []);
}

#[tokio::test]
async fn sources_of_two_responses_in_one_message_have_different_ids() {
    let search_stream = fixture("responses/web_search_with_sources");
    let provider = Provider::with_streams([search_stream.clone(), search_stream]);
    let builder = AgentBuilder::new(provider.responses()).default_max_turns(5);
    let rig = build(builder.add_hook(RepairHook), &Executed::default());
    let browser = started(RigAgent::new(rig)).await;
    let parts = &browser.messages().last().unwrap().parts;
    let sources = parts.iter().filter_map(|part| match part {
        Part::SourceUrl(source) => Some(source.source_id.to_string()),
        _ => None,
    });
    let sources: Vec<String> = sources.collect();
    let distinct: BTreeSet<&String> = sources.iter().collect();
    assert!(sources.len() > 1 && distinct.len() == sources.len(), "{sources:?}");
}
