//! Two calls with the same id in one response. rig corrects this for its own providers, but not for
//! a model that a host serves on a bus of its own.

use chat_test_support::browser::approve;
use futures::TryStreamExt;
use rig_agent::bus::Bus;
use rig_agent::{Agent, AgentBuilder};
use rig_core::effect::{EffectKind, HandlerDescriptor, HandlerKey, family};
use rig_core::message::{AssistantContent, CallId};
use rig_core::operation::Completion;
use rig_core::serve::adapters::ModelAdapter;
use rig_core::serve::{Dispatch, Reply, Serve};
use rig_core::streaming::{Item, Relayed, StreamEvent};
use serde_json::json;
use ui_message_stream_rig::RigAgent;

use super::agents::{Executed, build, calls, contents, expected_call, started};
use super::provider::{Provider, fixture, stream_with_calls};

const LAST: &str = "Sun on “both” shores. 🚢";

/// A model whose calls all have the same id.
struct OneId(ModelAdapter<Completion>);

impl Serve for OneId {
    type Family = family::Completion;

    fn descriptor(&self) -> HandlerDescriptor {
        self.0.descriptor()
    }

    async fn serve(&self, kind: EffectKind, dispatch: Dispatch) -> Reply {
        match self.0.serve(kind, dispatch).await {
            Reply::Stream(relayed) => Reply::Stream(Box::pin(relayed.map_ok(with_one_call_id))),
            reply => reply,
        }
    }
}

fn with_one_call_id(mut relayed: Relayed) -> Relayed {
    match &mut relayed {
        Relayed::Item(Item::Event(StreamEvent::End { content, .. })) => rename(content),
        Relayed::Done(response) => response.choice.iter_mut().for_each(rename),
        _ => {}
    }
    relayed
}

fn rename(content: &mut AssistantContent) {
    if let AssistantContent::ToolCall(call) = content {
        call.id = CallId::from_wire("t1");
    }
}

/// Creates an agent over a bus that the test serves.
fn agent_with_one_call_id(provider: &Provider, executed: &Executed) -> Agent {
    let (dispatcher, registrar, mut driver) = Bus::channel();
    let model = OneId(ModelAdapter::new("model", provider.anthropic("claude-sonnet-4-5")));
    driver.register("host/model:model", model).unwrap();
    tokio::spawn(driver);
    let key = HandlerKey::from("host/model:model".to_owned());
    let builder = AgentBuilder::over_bus(dispatcher, registrar, "host", key);
    build(builder.max_tokens(999).default_max_turns(5), executed)
}

#[tokio::test]
async fn two_calls_with_the_same_id_both_run() {
    let first =
        stream_with_calls(&[("t1", "look", r#"{"what":"a"}"#), ("t2", "look", r#"{"what":"b"}"#)]);
    let provider = Provider::with_streams([first, fixture("anthropic/text")]);
    let executed = Executed::default();
    let browser = started(RigAgent::new(agent_with_one_call_id(&provider, &executed))).await;
    let call = |what| expected_call("look", what, "output-available", json!({"done": what}));
    assert_eq!(calls(&browser), [call("a"), call("b")]);
    assert_eq!(*executed.lock().unwrap(), ["look a", "look b"]);
    assert_eq!(contents(&browser).text, format!("So.{LAST}"));
}

#[tokio::test]
async fn of_two_calls_with_the_same_id_only_the_one_that_needs_approval_waits_for_it() {
    let first = stream_with_calls(&[
        ("t1", "delete", r#"{"what":"a"}"#),
        ("t2", "look", r#"{"what":"b"}"#),
    ]);
    let provider = Provider::with_streams([first, fixture("anthropic/text")]);
    let executed = Executed::default();
    let mut browser = started(
        RigAgent::new(agent_with_one_call_id(&provider, &executed)).needs_approval("delete"),
    )
    .await;
    let states: Vec<_> = calls(&browser).into_iter().map(|call| (call.0, call.2)).collect();
    let expected = [("delete", "approval-requested"), ("look", "output-available")];
    assert_eq!(states, expected.map(|(tool, state)| (tool.to_owned(), state.to_owned())));
    approve(&mut browser, "delete").await;
    let call = |tool, what| expected_call(tool, what, "output-available", json!({"done": what}));
    assert_eq!(calls(&browser), [call("delete", "a"), call("look", "b")]);
    assert_eq!(*executed.lock().unwrap(), ["look b", "delete a"]);
    assert_eq!(contents(&browser).text, format!("So.{LAST}"));
}

/// The arguments are not JSON, so rig dispatches only the other call.
#[tokio::test]
async fn of_two_calls_with_the_same_id_one_may_have_an_incomplete_input() {
    let first =
        stream_with_calls(&[("t1", "look", r#"{"what":"a"#), ("t2", "look", r#"{"what":"b"}"#)]);
    let provider = Provider::with_streams([first, fixture("anthropic/text")]);
    let executed = Executed::default();
    let browser = started(RigAgent::new(agent_with_one_call_id(&provider, &executed))).await;
    let states: Vec<String> = calls(&browser).into_iter().map(|call| call.2).collect();
    assert_eq!(states, ["output-error", "output-available"]);
    assert_eq!(*executed.lock().unwrap(), ["look b"]);
}
