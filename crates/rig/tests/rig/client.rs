//! The real client, in every pinned version of v6, accepts the responses of an agent built with
//! rig, and does not submit the same message again automatically.

use serde_json::{Value, json};
use test_support::external_processes::{ask_judge, node_project, say};
use ui_message_stream::testing::Conversation;
use ui_message_stream_rig::RigAgent;

use super::agents::{agent_builder, browser, build};
use super::hooks::{HostHook, RepairHook};
use super::provider::{Provider, fixture, stream_with_calls};

/// Returns the last response, and the message that it continues.
fn judge_case(case: &str, browser: &Conversation<'_>, message: Option<Value>) -> Value {
    let chunks = browser.last_chunks();
    let events = chunks.iter().map(|chunk| {
        let chunk = serde_json::to_string(chunk).unwrap();
        format!("data: {chunk}\n\n")
    });
    let sse = format!("{}data: [DONE]\n\n", events.collect::<String>());
    let mut judge_case = json!({"case": case, "sse": sse});
    if let Some(message) = message {
        judge_case["message"] = message;
    }
    judge_case
}

fn last_message(browser: &Conversation<'_>) -> Option<Value> {
    browser.messages().last().map(|message| serde_json::to_value(message).unwrap())
}

/// Returns the response of an agent in its first turn.
async fn first_turn(case: &str, calls: &[(&str, &str, &str)], hooks: bool) -> Value {
    let text = fixture("anthropic/text");
    let provider = Provider::with_streams([stream_with_calls(calls), text.clone(), text]);
    let (builder, executed) = agent_builder(&provider);
    let builder = if hooks { builder.add_hook(RepairHook).add_hook(HostHook) } else { builder };
    let mut browser = browser(RigAgent::new(build(builder, &executed)).needs_approval("delete"));
    browser.send("Go").await;
    judge_case(case, &browser, None)
}

/// Returns the response of an agent after the user has approved or denied a call.
async fn resumed_turn(case: &str, approves: bool) -> Value {
    let calls = [("t1", "look", r#"{"what":"a"}"#), ("t2", "delete", r#"{"what":"b"}"#)];
    let provider = Provider::with_streams([stream_with_calls(&calls), fixture("anthropic/text")]);
    let (builder, executed) = agent_builder(&provider);
    let agent = RigAgent::new(build(builder, &executed)).needs_approval("delete");
    let mut browser = browser(agent).send_automatically_when(|_| false);
    browser.send("Go").await;
    match approves {
        true => browser.approve("delete").await,
        false => browser.deny("delete", "no").await,
    }
    let continued = last_message(&browser);
    browser.submit().await;
    assert_eq!(provider.requests().len(), 2, "{case}");
    judge_case(case, &browser, continued)
}

#[tokio::test]
async fn every_client_accepts_the_responses_of_a_rig_agent() {
    let Some(client) = node_project("tests/client") else { return };
    let look = ("t0", "look", r#"{"what":"a"}"#);
    let cases = [
        first_turn("asks", &[look, ("t1", "delete", r#"{"what":"b"}"#)], false).await,
        resumed_turn("approved", true).await,
        resumed_turn("denied", false).await,
        first_turn("fails", &[look, ("t1", "fails", "{}")], false).await,
        first_turn("panics", &[look, ("t1", "panics", "{}")], false).await,
        first_turn("half an input", &[look, ("t1", "look", r#"{"wha"#)], false).await,
        first_turn("no such tool", &[look, ("t1", "nosuch", "{}")], false).await,
        first_turn("edited", &[look, ("t1", "look", r#"{"what":"edit"}"#)], true).await,
        first_turn("refused", &[look, ("t1", "look", r#"{"what":"refuse"}"#)], true).await,
        first_turn("stopped", &[look, ("t1", "look", r#"{"what":"stop"}"#)], true).await,
        first_turn("given up", &[look, ("t1", "nosuch", "{}")], true).await,
        first_turn("mended", &[look, ("t1", "peek", "{}")], true).await,
    ];
    let verdicts = ask_judge(&client, &cases);
    assert_eq!(verdicts.len(), cases.len(), "{verdicts:?}");
    for verdict in verdicts {
        let results = verdict["results"].as_object().unwrap();
        assert!(results.len() > 3, "{verdict}");
        for (version, result) in results {
            let case = format!("{} in {version}", verdict["case"]);
            assert_eq!(result["rejected"], Value::Null, "{case}");
            assert_eq!(result["resubmits"]["approvals"], false, "{case}");
            assert_eq!(result["resubmits"]["toolCalls"], false, "{case}");
        }
    }
    say(&format!("responses of a rig agent: {} accepted by every client", cases.len()));
}
