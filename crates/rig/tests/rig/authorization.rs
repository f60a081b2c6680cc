//! Who may make the calls of an agent built with rig, and approval by default.

use chat_test_support::browser::{approve, say};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use ui_message_stream::BoxError;
use ui_message_stream::UiMessage;
use ui_message_stream::UserText;
use ui_message_stream::approval::{OnNewMessage, Toolbox};
use ui_message_stream_rig::RigAgent;

use super::agents::{
    agent_builder, answering, browser, build, calls, contents, expected_call, started, tool_results,
};
use super::provider::{Provider, stream_with_calls};

type Refuse = fn(RigAgent) -> RigAgent;

/// Authorizations that refuse the calls of `delete`, each in another way.
const REFUSE: [Refuse; 5] = [
    |agent| agent.authorize(|_, tool, _| tool != "delete"),
    |agent| agent.authorize(|_, tool, input| tool != "delete" || !input.as_str().contains('a')),
    |agent| {
        agent.authorize(|_, tool, _| {
            assert_ne!(tool, "delete", "no decision");
            true
        })
    },
    |agent| {
        agent.authorize_async(async |_, tool, _| match &*tool {
            "delete" => Err(BoxError::from("the directory is down")),
            _ => Ok(true),
        })
    },
    |agent| {
        let agent = agent.with_tool_timeout(Duration::from_millis(50));
        agent.authorize_async(async |_, tool, _| {
            if tool == "delete" {
                std::future::pending::<()>().await;
            }
            Ok(true)
        })
    },
];

#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_permitted_is_not_executed_and_approval_is_not_requested() {
    for refuse in REFUSE {
        for needs_approval in [false, true] {
            let (provider, builder, executed) = answering(&[
                ("t1", "delete", r#"{"what":"a"}"#),
                ("t2", "look", r#"{"what":"b"}"#),
            ]);
            let agent = refuse(RigAgent::new(build(builder, &executed)));
            let agent = if needs_approval { agent.needs_approval("delete") } else { agent };
            let browser = started(agent).await;
            assert_eq!(
                calls(&browser),
                [
                    expected_call(
                        "delete",
                        "a",
                        "output-error",
                        json!(UserText::NotPermitted.text())
                    ),
                    expected_call("look", "b", "output-available", json!({"done": "b"})),
                ]
            );
            assert_eq!(*executed.lock().unwrap(), ["look b"]);
            assert!(tool_results(&provider, 1)[0].1.contains(UserText::NotPermitted.text()));
        }
    }
}

#[tokio::test]
async fn a_call_that_is_no_longer_permitted_when_it_is_approved_is_not_executed() {
    for is_withdrawn in [false, true] {
        let (_provider, builder, executed) = answering(&[("t1", "delete", r#"{"what":"a"}"#)]);
        let is_permitted = Arc::new(AtomicBool::new(true));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (permits, asks) = (Arc::clone(&is_permitted), Arc::clone(&asked));
        let agent = RigAgent::new(build(builder, &executed)).needs_approval("delete");
        let mut browser = started(agent.authorize_async(move |principal, tool, input| {
            asks.lock().unwrap().push((principal, tool, input.to_string()));
            let decision = Ok(permits.load(Ordering::SeqCst));
            async { decision }
        }))
        .await;
        assert_eq!(calls(&browser)[0].2, "approval-requested");
        is_permitted.store(!is_withdrawn, Ordering::SeqCst);
        approve(&mut browser, "delete").await;
        let (state, result) = match is_withdrawn {
            true => ("output-error", json!(UserText::Revoked.text())),
            false => ("output-available", json!({"done": "a"})),
        };
        assert_eq!(calls(&browser), [expected_call("delete", "a", state, result)]);
        assert_eq!(executed.lock().unwrap().is_empty(), is_withdrawn);
        let asked = asked.lock().unwrap();
        let [at_the_request, at_the_approval] = &asked[..] else { panic!("{asked:?}") };
        assert_eq!(at_the_request, at_the_approval);
        assert_eq!((&*asked[0].1, &*asked[0].2), ("delete", r#"{"what":"a"}"#));
    }
}

#[tokio::test]
async fn each_call_needs_approval_by_default_except_those_of_the_named_tools() {
    let (_provider, builder, executed) = answering(&[
        ("t1", "delete", r#"{"what":"a"}"#),
        ("t2", "look", r#"{"what":"b"}"#),
        ("t3", "look", r#"{"what":"c"}"#),
    ]);
    let agent = RigAgent::new(build(builder, &executed))
        .require_approval_by_default()
        .never_needs_approval("look")
        .needs_approval_when(|_, input| input.as_str().contains('c'));
    let browser = started(agent).await;
    let states: Vec<String> = calls(&browser).into_iter().map(|call| call.2).collect();
    assert_eq!(states, ["approval-requested", "output-available", "approval-requested"]);
    assert_eq!(*executed.lock().unwrap(), ["look b"]);
}

#[tokio::test]
async fn structured_output_needs_no_approval_by_default() {
    use rig_agent::run::OutputMode;
    #[derive(PartialEq, schemars::JsonSchema)]
    struct Harbour {
        what: String,
    }
    let output = stream_with_calls(&[("t1", "final_result", r#"{"what":"calm"}"#)]);
    let provider = Provider::with_streams([output]);
    let (builder, executed) = agent_builder(&provider);
    let builder = builder.output_schema::<Harbour>().output_mode(OutputMode::Tool);
    let agent = RigAgent::new(build(builder, &executed)).require_approval_by_default();
    let browser = started(agent).await;
    assert_eq!(calls(&browser)[0].2, "output-available");
    assert!(contents(&browser).text.contains("calm"));
}

#[tokio::test]
async fn a_name_that_no_tool_has_is_found_when_the_agent_is_built() {
    type Name = fn(RigAgent) -> RigAgent;
    let names: [Name; 2] =
        [|agent| agent.needs_approval("delet"), |agent| agent.never_needs_approval("delet")];
    for name in names {
        let provider = Provider::with_streams([]);
        let (builder, executed) = agent_builder(&provider);
        let agent = RigAgent::new(build(builder, &executed));
        let panic = catch_unwind(AssertUnwindSafe(|| name(agent))).unwrap_err();
        let message = panic.downcast_ref::<String>().unwrap();
        assert_eq!(
            message,
            "the agent has no tool named \"delet\", only \
             [\"look\", \"delete\", \"send\", \"fails\", \"panics\", \"draws\"]"
        );
    }
}

#[tokio::test]
async fn a_rule_over_the_input_decides_itself_if_the_history_is_imported() {
    let (_provider, builder, executed) = answering(&[("t1", "look", r#"{"what":"a"}"#)]);
    let agent = RigAgent::new(build(builder, &executed)).needs_approval_when(|_, _| false);
    let messages = r#"[{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]},
        {"id": "m2", "role": "assistant", "parts": [{"type": "text", "text": "Hello"}]}]"#;
    let messages: Vec<UiMessage> = serde_json::from_str(messages).unwrap();
    let mut browser = browser(agent).with_messages(messages);
    say(&mut browser, "Go").await;
    assert_eq!(calls(&browser)[0].2, "output-available");
}

#[test]
fn a_tool_can_have_its_own_policy_for_newer_messages_and_other_deciders() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _guard = runtime.enter();
    let provider = Provider::with_streams([]);
    let (builder, executed) = agent_builder(&provider);
    let agent =
        RigAgent::new(build(builder, &executed)).on_new_message("delete", OnNewMessage::Run);
    assert_eq!(agent.tool("delete").unwrap().on_new_message, Some(OnNewMessage::Run));
    assert_eq!(agent.tool("look").unwrap().on_new_message, None);
    let agent = agent.decided_by_others("delete");
    assert!(agent.tool("delete").unwrap().decided_by_others);
    assert!(!agent.tool("look").unwrap().decided_by_others);
    let misspelt = AssertUnwindSafe(|| agent.on_new_message("delte", OnNewMessage::Run));
    assert!(catch_unwind(misspelt).is_err());
}
