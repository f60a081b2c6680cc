//! The real client, in every pinned version of v6, takes what an agent built with rig says, and does
//! not send the same again by itself.

use serde_json::{Value, json};
use test_support::external_processes::{ask_judge, node_project, say};
use ui_message_stream::testing::Conversation;
use ui_message_stream_rig::RigAgent;

use super::agents::{agent, built, page};
use super::hooks::{Host, Mends};
use super::provider::{Provider, calling, fixture};

/// The last answer, and the message that it goes on with.
fn question(case: &str, page: &Conversation<'_>, message: Option<Value>) -> Value {
    let chunks = page.last_chunks();
    let events = chunks.iter().map(|chunk| {
        let chunk = serde_json::to_string(chunk).unwrap();
        format!("data: {chunk}\n\n")
    });
    let sse = format!("{}data: [DONE]\n\n", events.collect::<String>());
    let mut question = json!({"case": case, "sse": sse});
    if let Some(message) = message {
        question["message"] = message;
    }
    question
}

fn last_message(page: &Conversation<'_>) -> Option<Value> {
    page.messages().last().map(|message| serde_json::to_value(message).unwrap())
}

/// What an agent says in one turn.
async fn says(case: &str, calls: &[(&str, &str, &str)], hooks: bool) -> Value {
    let text = fixture("anthropic/text");
    let provider = Provider::streaming([calling(calls), text.clone(), text]);
    let (builder, done) = agent(&provider);
    let builder = if hooks { builder.add_hook(Mends).add_hook(Host) } else { builder };
    let mut page = page(RigAgent::new(built(builder, &done)).needs_approval("delete"));
    page.send("Go").await;
    question(case, &page, None)
}

/// What it says once a person has answered.
async fn goes_on(case: &str, approves: bool) -> Value {
    let calls = [("t1", "look", r#"{"what":"a"}"#), ("t2", "delete", r#"{"what":"b"}"#)];
    let provider = Provider::streaming([calling(&calls), fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let agent = RigAgent::new(built(builder, &done)).needs_approval("delete");
    let mut page = page(agent).send_automatically_when(|_| false);
    page.send("Go").await;
    match approves {
        true => page.approve("delete").await,
        false => page.deny("delete", "no").await,
    }
    let answered = last_message(&page);
    page.submit().await;
    assert_eq!(provider.asked().len(), 2, "{case}");
    question(case, &page, answered)
}

#[tokio::test]
async fn every_client_takes_what_a_rig_agent_says() {
    let Some(client) = node_project("tests/client") else {
        return;
    };
    let look = ("t0", "look", r#"{"what":"a"}"#);
    let questions = [
        says("asks", &[look, ("t1", "delete", r#"{"what":"b"}"#)], false).await,
        goes_on("approved", true).await,
        goes_on("denied", false).await,
        says("fails", &[look, ("t1", "fails", "{}")], false).await,
        says("panics", &[look, ("t1", "panics", "{}")], false).await,
        says("half an input", &[look, ("t1", "look", r#"{"wha"#)], false).await,
        says("no such tool", &[look, ("t1", "nosuch", "{}")], false).await,
        says("edited", &[look, ("t1", "look", r#"{"what":"edit"}"#)], true).await,
        says("refused", &[look, ("t1", "look", r#"{"what":"refuse"}"#)], true).await,
        says("stopped", &[look, ("t1", "look", r#"{"what":"stop"}"#)], true).await,
        says("given up", &[look, ("t1", "nosuch", "{}")], true).await,
        says("mended", &[look, ("t1", "peek", "{}")], true).await,
    ];
    let answers = ask_judge(&client, &questions);
    assert_eq!(answers.len(), questions.len(), "{answers:?}");
    for answer in answers {
        let results = answer["results"].as_object().unwrap();
        assert!(results.len() > 3, "{answer}");
        for (version, result) in results {
            let case = format!("{} in {version}", answer["case"]);
            assert_eq!(result["rejected"], Value::Null, "{case}");
            assert_eq!(result["resubmits"]["approvals"], false, "{case}");
            assert_eq!(result["resubmits"]["toolCalls"], false, "{case}");
        }
    }
    say(&format!("what a rig agent says: {} accepted by every client", questions.len()));
}
