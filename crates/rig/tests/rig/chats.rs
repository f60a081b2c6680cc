//! Several chats of one agent: what goes wrong in one ends no answer in another.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::Notify;
use ui_message_stream_rig::RigAgent;

use super::agents::{agent, built_with, calls, ending, held, page};
use super::provider::{Provider, calling, fixture};

const LAST: &str = "Sun on “both” shores. 🚢";

/// Two ends of a tool: that it has begun, and that it may end.
#[derive(Clone, Default)]
struct Ends(Arc<(Notify, Notify)>);

impl Ends {
    async fn end(self) {
        self.0.0.notify_one();
        self.0.1.notified().await;
    }

    async fn has_begun(&self) {
        self.0.0.notified().await;
    }

    fn may_end(&self) {
        self.0.1.notify_one();
    }
}

#[tokio::test]
async fn a_tool_that_panics_fails_its_own_call_and_nothing_else() {
    let (waits, panics) = (Ends::default(), Ends::default());
    let provider = Provider::streaming([
        calling(&[("t1", "waits", "{}")]),
        calling(&[("t1", "breaks", "{}"), ("t2", "look", r#"{"what":"a"}"#)]),
        fixture("anthropic/text"),
        fixture("anthropic/text"),
    ]);
    let (builder, done) = agent(&provider);
    let (waiting, breaking) = (waits.clone(), panics.clone());
    let tools = [
        ending("waits", move || waiting.clone().end()),
        ending("breaks", move || {
            let breaking = breaking.clone();
            async move {
                breaking.end().await;
                panic!("a secret of the tool")
            }
        }),
    ];
    let agent = RigAgent::new(built_with(builder, &done, tools));
    let (mut one, mut other) = (page(agent.clone()), page(agent));
    let begin_the_other = async {
        waits.has_begun().await;
        other.send("Go").await;
        waits.may_end();
    };
    let break_it = async {
        panics.has_begun().await;
        panics.may_end();
    };
    tokio::join!(one.send("Go"), begin_the_other, break_it);

    assert_eq!(one.error(), None);
    assert_eq!(calls(&one)[0].3, json!("it ended"));
    assert_eq!(held(&one).text, format!("So.{LAST}"));
    assert_eq!(other.error(), None);
    let broken = &calls(&other)[0];
    assert_eq!((&*broken.2, &broken.3), ("output-error", &json!("The tool failed.")));
    assert_eq!(*done.lock().unwrap(), ["look a"]);
    assert_eq!(held(&other).text, format!("So.{LAST}"));
}

/// What a server keeps for its whole life is used by runtimes that come and go in its tests.
#[test]
fn an_agent_goes_on_in_another_runtime() {
    let text = fixture("anthropic/text");
    let first = calling(&[("t1", "look", r#"{"what":"a"}"#)]);
    let provider = Provider::streaming([first.clone(), text.clone(), first, text]);
    let (builder, done) = agent(&provider);
    let agent = RigAgent::new(built_with(builder, &done, []));
    for _ in 0..2 {
        let mut page = page(agent.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(page.send("Go"));
        assert_eq!(page.error(), None);
        assert_eq!(held(&page).text, format!("So.{LAST}"));
    }
    assert_eq!(*done.lock().unwrap(), ["look a", "look a"]);
}

#[tokio::test]
async fn what_is_left_of_an_agent_ends_with_it() {
    let provider = Provider::streaming([fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let mut page = page(RigAgent::new(built_with(builder, &done, [])));
    page.send("Go").await;
    assert_eq!(page.error(), None);
    drop(page);
    let left = Arc::downgrade(&done);
    drop(done);
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(left.strong_count(), 0);
}
