//! Two calls of one id in one answer. rig's own providers are mended by rig; a model that a host
//! serves on a bus of its own is not.

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

use super::agents::{Done, became, built, calls, held, page};
use super::provider::{Provider, calling, fixture};

const LAST: &str = "Sun on “both” shores. 🚢";

/// A model that calls all of its calls the same.
struct OneId(ModelAdapter<Completion>);

impl Serve for OneId {
    type Family = family::Completion;

    fn descriptor(&self) -> HandlerDescriptor {
        self.0.descriptor()
    }

    async fn serve(&self, kind: EffectKind, dispatch: Dispatch) -> Reply {
        match self.0.serve(kind, dispatch).await {
            Reply::Stream(relayed) => Reply::Stream(Box::pin(relayed.map_ok(doubled))),
            reply => reply,
        }
    }
}

fn doubled(mut relayed: Relayed) -> Relayed {
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

/// An agent over a bus that the test serves.
fn doubling(provider: &Provider, done: &Done) -> Agent {
    let (dispatcher, registrar, mut driver) = Bus::channel();
    let model = OneId(ModelAdapter::new("model", provider.anthropic("claude-sonnet-4-5")));
    driver.register("host/model:model", model).unwrap();
    tokio::spawn(driver);
    let key = HandlerKey::from("host/model:model".to_owned());
    let builder = AgentBuilder::over_bus(dispatcher, registrar, "host", key);
    built(builder.max_tokens(999).default_max_turns(5), done)
}

#[tokio::test]
async fn two_calls_of_one_id_are_two() {
    let first = calling(&[("t1", "look", r#"{"what":"a"}"#), ("t2", "look", r#"{"what":"b"}"#)]);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let done = Done::default();
    let mut page = page(RigAgent::new(doubling(&provider, &done)));
    page.send("Go").await;
    assert_eq!(page.error(), None);
    let ran = |what| became("look", what, "output-available", json!({"done": what}));
    assert_eq!(calls(&page), [ran("a"), ran("b")]);
    assert_eq!(*done.lock().unwrap(), ["look a", "look b"]);
    assert_eq!(held(&page).text, format!("So.{LAST}"));
}

#[tokio::test]
async fn of_two_calls_of_one_id_the_one_that_is_asked_about_is_the_one_that_runs() {
    let first = calling(&[("t1", "delete", r#"{"what":"a"}"#), ("t2", "look", r#"{"what":"b"}"#)]);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let done = Done::default();
    let mut page = page(RigAgent::new(doubling(&provider, &done)).needs_approval("delete"));
    page.send("Go").await;
    assert_eq!(page.error(), None);
    let seen: Vec<_> = calls(&page).into_iter().map(|call| (call.0, call.2)).collect();
    let expected = [("delete", "approval-requested"), ("look", "output-available")];
    assert_eq!(seen, expected.map(|(tool, state)| (tool.to_owned(), state.to_owned())));
    page.approve("delete").await;
    assert_eq!(page.error(), None);
    let ran = |tool, what| became(tool, what, "output-available", json!({"done": what}));
    assert_eq!(calls(&page), [ran("delete", "a"), ran("look", "b")]);
    assert_eq!(*done.lock().unwrap(), ["look b", "delete a"]);
    assert_eq!(held(&page).text, format!("So.{LAST}"));
}

/// Its arguments are none, so that rig dispatches the other one alone.
#[tokio::test]
async fn of_two_calls_of_one_id_one_may_be_broken() {
    let first = calling(&[("t1", "look", r#"{"what":"a"#), ("t2", "look", r#"{"what":"b"}"#)]);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let done = Done::default();
    let mut page = page(RigAgent::new(doubling(&provider, &done)));
    page.send("Go").await;
    assert_eq!(page.error(), None);
    let states: Vec<String> = calls(&page).into_iter().map(|call| call.2).collect();
    assert_eq!(states, ["output-error", "output-available"]);
    assert_eq!(*done.lock().unwrap(), ["look b"]);
}
