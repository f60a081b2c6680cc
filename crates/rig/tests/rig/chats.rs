//! Several chats of one agent: a failure in one chat ends no response in another.

use std::sync::Arc;

use axum::Router;
use chat_test_support::browser::{over, say};
use serde_json::json;
use tokio::sync::Notify;
use ui_message_stream::UserText;
use ui_message_stream::approval::Principal;
use ui_message_stream::axum::without_authentication;
use ui_message_stream::chunk::Version;
use ui_message_stream_chat::axum::chat_routes;
use ui_message_stream_rig::RigAgent;

use super::agents::{
    agent_builder, answering, awaiting_tool, browser, build, build_with, calls, contents, started,
    tool_results,
};
use super::provider::{Provider, fixture, stream_with_calls};

const LAST: &str = "Sun on “both” shores. 🚢";

/// Two signals: that a tool has started, and that it may return.
#[derive(Clone, Default)]
struct ToolGate(Arc<(Notify, Notify)>);

impl ToolGate {
    async fn run(self) {
        self.0.0.notify_one();
        self.0.1.notified().await;
    }

    async fn started(&self) {
        self.0.0.notified().await;
    }

    fn release(&self) {
        self.0.1.notify_one();
    }
}

#[tokio::test]
async fn a_panic_of_a_tool_fails_its_own_call_and_no_other_chat() {
    let (waiting_gate, panicking_gate) = (ToolGate::default(), ToolGate::default());
    let provider = Provider::with_streams([
        stream_with_calls(&[("t1", "waits", "{}")]),
        stream_with_calls(&[("t1", "breaks", "{}"), ("t2", "look", r#"{"what":"a"}"#)]),
        fixture("anthropic/text"),
        fixture("anthropic/text"),
    ]);
    let (builder, executed) = agent_builder(&provider);
    let (waiting, breaking) = (waiting_gate.clone(), panicking_gate.clone());
    let tools = [
        awaiting_tool("waits", move || waiting.clone().run()),
        awaiting_tool("breaks", move || {
            let breaking = breaking.clone();
            async move {
                breaking.run().await;
                panic!("a secret of the tool")
            }
        }),
    ];
    let agent = RigAgent::new(build_with(builder, &executed, tools));
    let (mut first, mut second) = (browser(agent.clone()), browser(agent));
    let run_second_chat = async {
        waiting_gate.started().await;
        second.send("Go").await;
        waiting_gate.release();
    };
    let release_panic = async {
        panicking_gate.started().await;
        panicking_gate.release();
    };
    tokio::join!(first.send("Go"), run_second_chat, release_panic);

    assert_eq!(first.error(), None);
    assert_eq!(calls(&first)[0].3, json!("it ended"));
    assert_eq!(contents(&first).text, format!("So.{LAST}"));
    assert_eq!(second.error(), None);
    let failed = &calls(&second)[0];
    assert_eq!((&*failed.2, &failed.3), ("output-error", &json!("The tool failed.")));
    assert_eq!(*executed.lock().unwrap(), ["look a"]);
    assert_eq!(contents(&second).text, format!("So.{LAST}"));
}

/// A server keeps its agent for its whole life, but each of its tests has another runtime.
#[tokio::test]
async fn no_approval_is_requested_from_a_client_that_cannot_answer_and_the_model_reads_why() {
    let (provider, builder, executed) = answering(&[("t1", "delete", r#"{"what":"a"}"#)]);
    let agent = RigAgent::new(build(builder, &executed)).needs_approval("delete");
    let chats = agent.into_chat_server().with_version(Version::V5);
    let routes = Router::new().nest("/api/chat", chat_routes(chats.clone()));
    let mut browser = over(routes.layer(without_authentication()));
    say(&mut browser, "Go").await;
    let call = &calls(&browser)[0];
    assert_eq!((&*call.2, &call.3), ("output-error", &json!(UserText::NotAnswerable.text())));
    assert!(tool_results(&provider, 1)[0].1.contains(UserText::NotAnswerable.text()));
    assert!(executed.lock().unwrap().is_empty());
    let pending = chats.approvals().pending(&Principal::anonymous()).await.unwrap();
    assert!(pending.is_empty(), "{pending:?}");
}

#[test]
fn an_agent_works_on_a_second_runtime_after_the_first_has_ended() {
    let text = fixture("anthropic/text");
    let first = stream_with_calls(&[("t1", "look", r#"{"what":"a"}"#)]);
    let provider = Provider::with_streams([first.clone(), text.clone(), first, text]);
    let (builder, executed) = agent_builder(&provider);
    let agent = RigAgent::new(build_with(builder, &executed, []));
    for _ in 0..2 {
        let mut browser = browser(agent.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(browser.send("Go"));
        assert_eq!(browser.error(), None);
        assert_eq!(contents(&browser).text, format!("So.{LAST}"));
    }
    assert_eq!(*executed.lock().unwrap(), ["look a", "look a"]);
}

#[tokio::test]
async fn dropping_the_agent_drops_its_tools() {
    let provider = Provider::with_streams([fixture("anthropic/text")]);
    let (builder, executed) = agent_builder(&provider);
    let browser = started(RigAgent::new(build_with(builder, &executed, []))).await;
    drop(browser);
    let remaining = Arc::downgrade(&executed);
    drop(executed);
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(remaining.strong_count(), 0);
}
