//! What an agent built with rig answers in the end: what its hooks made of it, and what it answers
//! in a structure.

use rig_agent::agent::{AgentHook, HookContext, OutcomeAction, OutcomeEvent};
use rig_agent::run::OutputMode;
use rig_core::effect::Outcome;
use rig_core::message::AssistantContent;
use schemars::JsonSchema;
use serde_json::json;
use ui_message_stream_rig::RigAgent;

use super::agents::{agent, became, built, calls, held, page, told};
use super::provider::{Provider, calling, fixture};

const LAST: &str = "Sun on “both” shores. 🚢";

/// A hook that answers something else.
struct Answers;

impl AgentHook for Answers {
    async fn on_outcome(&self, _: &HookContext, event: OutcomeEvent<'_>) -> OutcomeAction {
        let is_text = |said: &AssistantContent| matches!(said, AssistantContent::Text(_));
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
async fn an_answer_that_a_hook_replaced_follows_the_one_that_was_streamed() {
    let first = calling(&[("t1", "look", r#"{"what":"a"}"#)]);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let mut page = page(RigAgent::new(built(builder.add_hook(Answers), &done)));
    page.send("Go").await;
    assert_eq!(page.error(), None);
    let expected = became("look", "a", "output-available", json!({"done": "a"}));
    assert_eq!(calls(&page), [expected]);
    assert_eq!(held(&page).text, format!("So.{LAST}No comment."));
}

#[derive(PartialEq, JsonSchema)]
struct Harbour {
    what: String,
}

#[tokio::test]
async fn an_answer_in_a_structure_is_said_and_its_call_has_its_end() {
    let first = calling(&[("t1", "look", r#"{"what":"a"}"#)]);
    let answer = r#"{"what":"calm"}"#;
    let structured = calling(&[("t2", "final_result", answer)]);
    let provider = Provider::streaming([first, structured, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let builder = builder.output_schema::<Harbour>().output_mode(OutputMode::Tool);
    let mut page = page(RigAgent::new(built(builder, &done)).needs_approval_when(|_, _| false));
    page.send("Go").await;
    assert_eq!(page.error(), None);
    assert_eq!(
        calls(&page),
        [
            became("look", "a", "output-available", json!({"done": "a"})),
            became("final_result", "calm", "output-available", json!("This is the answer.")),
        ]
    );
    assert_eq!(held(&page).text, format!("So.So.{answer}"));
    let chunks = serde_json::to_string(&page.last_chunks()).unwrap();
    assert!(chunks.contains(r#""finishReason":"stop""#), "{chunks}");
    // Behind the call: a client that goes on by itself where calls have their results does not.
    let parts = &page.messages().last().unwrap().parts;
    let kinds: Vec<String> = parts.iter().map(kind).collect();
    assert_eq!(kinds[kinds.len() - 3..], ["tool-final_result", "step-start", "text"]);

    page.send("And now?").await;
    let told = told(&provider, 2);
    assert!(told.len() == 2 && told[1].1.contains("This is the answer."), "{told:?}");
}

fn kind(part: &impl serde::Serialize) -> String {
    serde_json::to_value(part).unwrap()["type"].as_str().unwrap().to_owned()
}
