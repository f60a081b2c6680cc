//! The final response of an agent built with rig: a replacement by a hook, and structured output.

use rig_agent::agent::{AgentHook, HookContext, OutcomeAction, OutcomeEvent};
use rig_agent::run::OutputMode;
use rig_core::effect::Outcome;
use rig_core::message::AssistantContent;
use schemars::JsonSchema;
use serde_json::json;
use ui_message_stream_rig::RigAgent;

use super::agents::{
    agent_builder, answering, build, calls, contents, expected_call, started, tool_results,
};
use super::provider::{Provider, fixture, stream_with_calls};

const LAST: &str = "Sun on “both” shores. 🚢";

/// A hook that replaces a response that contains only text.
struct ReplaceText;

impl AgentHook for ReplaceText {
    async fn on_outcome(&self, _: &HookContext, event: OutcomeEvent<'_>) -> OutcomeAction {
        let is_text = |content: &AssistantContent| matches!(content, AssistantContent::Text(_));
        match event.completion() {
            Some(response) if response.choice.iter().all(is_text) => {
                let mut response = response.clone();
                response.choice = vec![AssistantContent::text("No comment.")];
                OutcomeAction::replace(Ok(Outcome::Completion(response)))
            }
            _ => OutcomeAction::proceed(),
        }
    }
}

#[tokio::test]
async fn the_text_with_which_a_hook_replaces_a_response_follows_the_streamed_text() {
    let (_provider, builder, executed) = answering(&[("t1", "look", r#"{"what":"a"}"#)]);
    let browser = started(RigAgent::new(build(builder.add_hook(ReplaceText), &executed))).await;
    let expected = expected_call("look", "a", "output-available", json!({"done": "a"}));
    assert_eq!(calls(&browser), [expected]);
    assert_eq!(contents(&browser).text, format!("So.{LAST}No comment."));
}

#[derive(PartialEq, JsonSchema)]
struct Harbour {
    what: String,
}

#[tokio::test]
async fn structured_output_is_emitted_as_text_after_the_call_that_contains_it() {
    let first = stream_with_calls(&[("t1", "look", r#"{"what":"a"}"#)]);
    let output = r#"{"what":"calm"}"#;
    let structured = stream_with_calls(&[("t2", "final_result", output)]);
    let provider = Provider::with_streams([first, structured, fixture("anthropic/text")]);
    let (builder, executed) = agent_builder(&provider);
    let builder = builder.output_schema::<Harbour>().output_mode(OutputMode::Tool);
    let mut browser =
        started(RigAgent::new(build(builder, &executed)).needs_approval_when(|_, _| false)).await;
    assert_eq!(
        calls(&browser),
        [
            expected_call("look", "a", "output-available", json!({"done": "a"})),
            expected_call("final_result", "calm", "output-available", json!("This is the answer.")),
        ]
    );
    assert_eq!(contents(&browser).text, format!("So.So.{output}"));
    let chunks = serde_json::to_string(&browser.last_chunks()).unwrap();
    assert!(chunks.contains(r#""finishReason":"stop""#), "{chunks}");
    // The text is after the call, so that a client that submits completed calls does not submit it.
    let parts = &browser.messages().last().unwrap().parts;
    let kinds: Vec<String> = parts.iter().map(kind).collect();
    assert_eq!(kinds[kinds.len() - 3..], ["tool-final_result", "step-start", "text"]);

    browser.send("And now?").await;
    let results = tool_results(&provider, 2);
    assert!(results.len() == 2 && results[1].1.contains("This is the answer."), "{results:?}");
}

#[tokio::test]
async fn structured_output_is_recognised_by_the_name_of_the_tool_and_not_by_its_input() {
    let calls_of_response =
        [("t1", "look", r#"{"what":"calm"}"#), ("t2", "final_result", r#"{"what":"calm"}"#)];
    let provider = Provider::with_streams([stream_with_calls(&calls_of_response)]);
    let (builder, executed) = agent_builder(&provider);
    let builder = builder.output_schema::<Harbour>().output_mode(OutputMode::Tool);
    let browser =
        started(RigAgent::new(build(builder, &executed)).needs_approval_when(|_, _| false)).await;
    // rig does not execute the other call.
    let expected =
        expected_call("final_result", "calm", "output-available", json!("This is the answer."));
    assert_eq!(calls(&browser)[1..], [expected]);
    assert_eq!(calls(&browser)[0].2, "output-error");
}

fn kind(part: &impl serde::Serialize) -> String {
    serde_json::to_value(part).unwrap()["type"].as_str().unwrap().to_owned()
}
