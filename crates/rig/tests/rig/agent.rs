//! An agent built with rig, behind the route: what a person decides, and what the model reads of it.

use std::time::Duration;

use rig_agent::tool::DynamicTool;
use rig_core::message::ToolName;
use serde_json::{Value, json};
use ui_message_stream::approval::Principal;
use ui_message_stream_rig::RigAgent;

use super::agents::{Asker, agent, became, built, built_with, calls, ending, held, page, told};
use super::provider::{Provider, as_stream, calling, fixture, lines_of};

const LAST: &str = "Sun on “both” shores. 🚢";

#[tokio::test]
async fn an_agents_tools_run_and_its_words_arrive_in_their_order() {
    let first = calling(&[("t1", "look", r#"{"what":"a"}"#), ("t2", "fails", r#"{"what":"b"}"#)]);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let mut page = page(RigAgent::new(built(builder, &done)).with_usage_in_metadata());
    page.send("Go").await;
    assert_eq!(page.error(), None);
    assert_eq!(
        calls(&page),
        [
            became("look", "a", "output-available", json!({"done": "a"})),
            became("fails", "b", "output-error", json!("the tool failed")),
        ]
    );
    assert_eq!(held(&page).text, format!("So.{LAST}"));
    let kinds: Vec<String> = page.last_chunks().iter().map(kind).collect();
    let steps = kinds.iter().filter(|kind| *kind == "start-step").count();
    assert_eq!(steps, 2, "{kinds:?}");
    let message = page.messages().last().unwrap();
    let usage: Value = message.metadata.as_ref().unwrap().decode().unwrap();
    assert_eq!(usage["usage"], json!({"inputTokens": 163, "outputTokens": 16}));
    assert_eq!(told(&provider, 1).len(), 2);
    assert!(!format!("{:?}", provider.asked()).contains("secret@"));
}

fn kind(chunk: &impl serde::Serialize) -> String {
    serde_json::to_value(chunk).unwrap()["type"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn what_a_person_approves_runs_once_and_the_agent_goes_on() {
    let first = calling(&[("t1", "delete", r#"{"what":"a"}"#)]);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let agent = RigAgent::new(built(builder, &done)).needs_approval("delete");
    let agent = agent.approval_description(|tool, _| Some(format!("May it {tool}?")));
    let mut page = page(agent.with_usage_in_metadata());
    page.send("Go").await;
    assert_eq!(page.error(), None);
    assert_eq!(calls(&page)[0].2, "approval-requested");
    assert_eq!((provider.asked().len(), done.lock().unwrap().len()), (1, 0));
    let message = serde_json::to_string(page.messages().last().unwrap()).unwrap();
    assert!(message.contains("May it delete?"), "{message}");
    page.approve("delete").await;
    assert_eq!(page.error(), None);
    assert_eq!(*done.lock().unwrap(), ["delete a"]);
    let expected = became("delete", "a", "output-available", json!({"done": "a"}));
    assert_eq!(calls(&page), [expected]);
    assert_eq!(held(&page).text, format!("So.{LAST}"));
    let told = told(&provider, 1);
    assert_eq!(told.len(), 1);
    assert!(told[0].0 == "t1" && told[0].1.contains("done"), "{told:?}");
    let message = page.messages().last().unwrap();
    let usage: Value = message.metadata.as_ref().unwrap().decode().unwrap();
    assert_eq!(usage["usage"], json!({"inputTokens": 163, "outputTokens": 16}));
}

#[tokio::test(start_paused = true)]
async fn an_approved_tool_that_hangs_is_stopped_and_the_agent_goes_on() {
    for its_own in [None, Some(Duration::from_secs(5))] {
        let first = calling(&[("t1", "hangs", "{}")]);
        let provider = Provider::streaming([first, fixture("anthropic/text")]);
        let (builder, done) = agent(&provider);
        let tools = [ending("hangs", std::future::pending)];
        let agent = RigAgent::new(built_with(builder, &done, tools)).needs_approval("hangs");
        let (agent, longest) = match its_own {
            None => (agent, Duration::from_secs(90)),
            Some(time) => (agent.with_tool_timeout(time), Duration::from_secs(30)),
        };
        let mut page = page(agent);
        page.send("Go").await;
        tokio::time::timeout(longest, page.approve("hangs")).await.expect("the tool has its end");
        assert_eq!(page.error(), None);
        let why = "The tool took too long and was stopped. What it did until then is not known.";
        assert_eq!((&*calls(&page)[0].2, &calls(&page)[0].3), ("output-error", &json!(why)));
        assert_eq!(held(&page).text, format!("So.{LAST}"));
    }
}

#[tokio::test]
async fn what_a_person_denies_does_not_run_and_the_model_reads_why() {
    let first = calling(&[("t1", "delete", r#"{"what":"a"}"#)]);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let mut page = page(RigAgent::new(built(builder, &done)).needs_approval("delete"));
    page.send("Go").await;
    page.deny("delete", "it is mine").await;
    assert_eq!(page.error(), None);
    assert_eq!(calls(&page)[0].2, "output-denied");
    assert!(done.lock().unwrap().is_empty());
    let told = told(&provider, 1);
    assert!(told[0].1.contains("was denied") && told[0].1.contains("it is mine"), "{told:?}");
    assert_eq!(held(&page).text, format!("So.{LAST}"));
}

#[tokio::test]
async fn of_one_step_some_run_at_once_some_are_approved_and_some_denied() {
    let first = calling(&[
        ("t1", "delete", r#"{"what":"a"}"#),
        ("t2", "look", r#"{"what":"b"}"#),
        ("t3", "send", r#"{"what":"c"}"#),
    ]);
    for side_by_side in [1, 4] {
        let provider = Provider::streaming([first.clone(), fixture("anthropic/text")]);
        let (builder, done) = agent(&provider);
        let agent = RigAgent::new(built(builder, &done))
            .needs_approval("delete")
            .needs_approval_when(|tool, input| tool == "send" && input.as_str().contains('c'))
            .map_runner(move |run, _| run.tool_concurrency(side_by_side));
        let mut page = page(agent);
        page.send("Go").await;
        assert_eq!(page.error(), None);
        let states: Vec<String> = calls(&page).into_iter().map(|call| call.2).collect();
        assert_eq!(states, ["approval-requested", "output-available", "approval-requested"]);
        assert_eq!(*done.lock().unwrap(), ["look b"]);
        page.approve("delete").await;
        assert_eq!(provider.asked().len(), 1);
        page.deny("send", "no").await;
        assert_eq!(page.error(), None);
        let states: Vec<String> = calls(&page).into_iter().map(|call| call.2).collect();
        assert_eq!(states, ["output-available", "output-available", "output-denied"]);
        assert_eq!(*done.lock().unwrap(), ["look b", "delete a"]);
        let ids: Vec<String> = told(&provider, 1).into_iter().map(|(id, _)| id).collect();
        assert_eq!(ids, ["t1", "t2", "t3"]);
        assert_eq!(held(&page).text, format!("So.{LAST}"));
    }
}

#[tokio::test]
async fn a_predicate_that_panics_means_ask() {
    let first = calling(&[("t1", "delete", r#"{"what":"a"}"#)]);
    let provider = Provider::streaming([first]);
    let (builder, done) = agent(&provider);
    let agent = RigAgent::new(built(builder, &done));
    let mut page = page(agent.needs_approval_when(|_, _| panic!("a predicate")));
    page.send("Go").await;
    assert_eq!(calls(&page)[0].2, "approval-requested");
    assert!(done.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_tool_that_became_another_since_does_not_run() {
    let first = calling(&[("t1", "delete", r#"{"what":"a"}"#)]);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let rig = built(builder, &done);
    let mut page = page(RigAgent::new(rig.clone()).needs_approval("delete"));
    page.send("Go").await;
    let schema = json!({"type": "object"});
    let other = DynamicTool::new(ToolName::new("delete").unwrap(), "Else.", schema, |_| {
        Box::pin(async { panic!("it ran") })
    });
    rig.tool_server_handle().add_dynamic_tool(other);
    page.approve("delete").await;
    assert_eq!(page.error(), None);
    assert_eq!(calls(&page)[0].2, "output-error");
    assert!(done.lock().unwrap().is_empty());
}

#[tokio::test]
async fn half_an_input_reaches_no_tool_and_the_model_reads_why() {
    let first = calling(&[("t1", "look", r#"{"what":"a"#), ("t2", "look", r#"{"what":"b"}"#)]);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let mut page = page(RigAgent::new(built(builder, &done)));
    page.send("Go").await;
    assert_eq!(page.error(), None);
    let message = serde_json::to_value(page.messages().last().unwrap()).unwrap();
    let call = message["parts"].as_array().unwrap().iter().find(|part| part["type"] == "tool-look");
    assert_eq!(call.unwrap()["rawInput"], r#"{"what":"a"#);
    assert_eq!(*done.lock().unwrap(), ["look b"]);
    assert_eq!(told(&provider, 1).len(), 2);
}

#[tokio::test]
async fn a_failure_of_the_provider_is_masked_and_a_used_up_budget_is_an_end() {
    let whole = lines_of("anthropic/thoughts_and_two_calls");
    let begun: String = whole.lines().take(9).map(|line| format!("data: {line}\n\n")).collect();
    let error = r#"{"type":"error","error":{"type":"overloaded_error","message":"at 10.0.0.7"}}"#;
    let provider = Provider::streaming([format!("{begun}data: {error}\n\n")]);
    let (builder, done) = agent(&provider);
    let mut failing = page(RigAgent::new(built(builder, &done)));
    failing.send("Go").await;
    assert_eq!(failing.error(), Some("An error occurred."));
    assert_eq!(held(&failing).reasoning, "Two towns — both by the sea.");

    let provider = Provider::streaming([calling(&[("t1", "look", r#"{"what":"a"}"#)])]);
    let (builder, done) = agent(&provider);
    let rig = RigAgent::new(built(builder.default_max_turns(1), &done));
    let mut page = page(rig);
    page.send("Go").await;
    assert_eq!(page.error(), None);
    assert_eq!(calls(&page)[0].2, "output-available");
}

#[tokio::test]
async fn thoughts_go_back_to_the_model_after_an_approval() {
    let thinking =
        lines_of("anthropic/thoughts_and_two_calls").replace("\"weather\"", "\"delete\"");
    let first = as_stream(&thinking);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let agent = RigAgent::new(built(builder, &done));
    let mut page = page(agent.needs_approval_when(|_, input| input.as_str().contains("Faro")));
    page.send("Go").await;
    page.approve("delete").await;
    assert_eq!(page.error(), None);
    let said = provider.asked()[1]["messages"][1]["content"].clone();
    assert_eq!(said[0]["signature"], "c2lnbmVkIGJ5IG5vYm9keQ==");
    assert_eq!(said[1], json!({"type": "redacted_thinking", "data": "bm90IGZvciB5b3U="}));
    assert_eq!(said[4]["id"], "toolu_02");
    assert_eq!(done.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_tool_that_panics_fails_the_run_of_an_agent_that_is_shared_and_approved_only_its_call() {
    let panics = calling(&[("t1", "look", r#"{"what":"a"}"#), ("t2", "panics", "{}")]);
    let provider = Provider::streaming([panics.clone(), panics, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let rig = built(builder, &done);
    let mut failing = page(RigAgent::new(rig.clone()));
    failing.send("Go").await;
    assert_eq!(failing.error(), Some("An error occurred."));
    assert_eq!(calls(&failing)[0].2, "output-available");
    assert_eq!(calls(&failing)[1].2, "output-error");

    let mut page = page(RigAgent::new(rig).needs_approval("panics"));
    page.send("Go").await;
    page.approve("panics").await;
    assert_eq!(page.error(), None);
    assert_eq!(
        (&*calls(&page)[1].2, &calls(&page)[1].3),
        ("output-error", &json!("The tool failed."))
    );
    assert_eq!(held(&page).text, format!("So.{LAST}"));
}

#[tokio::test]
async fn tools_are_told_whose_chat_it_is_whether_or_not_somebody_was_asked() {
    let first = calling(&[("t1", "look", r#"{"what":"a"}"#), ("t2", "delete", r#"{"what":"b"}"#)]);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let agent = RigAgent::new(built(builder, &done)).needs_approval("delete");
    let agent = agent.map_runner(|run, _| run.tool_context(rig_agent::tool::ToolContext::new()));
    let mut page = page(agent.with_tool_context(|principal, chat| {
        assert_eq!(*principal, Principal::anonymous());
        let mut context = rig_agent::tool::ToolContext::new();
        context.insert(Asker(chat.to_string())).unwrap();
        context
    }));
    page.send("Go").await;
    page.approve("delete").await;
    assert_eq!(*done.lock().unwrap(), ["look a for chat-1", "delete b for chat-1"]);
}

#[tokio::test]
async fn a_picture_that_a_tool_made_is_a_picture_in_the_next_turn_too() {
    let first = calling(&[("t1", "draws", "{}")]);
    let text = fixture("anthropic/text");
    let provider = Provider::streaming([first, text.clone(), text]);
    let (builder, done) = agent(&provider);
    let mut page = page(RigAgent::new(built(builder, &done)));
    page.send("Go").await;
    page.send("And now?").await;
    assert_eq!(page.error(), None);
    let (in_run, later) = (&told(&provider, 1)[0].1, &told(&provider, 2)[0].1);
    assert!(in_run.contains(r#""data":"iVBORw0KGgo=""#) && in_run == later, "{in_run} {later}");
}

#[tokio::test]
async fn thoughts_go_back_to_the_model_when_the_person_writes_on() {
    let lines = lines_of("anthropic/thoughts_and_two_calls");
    let no_call = |line: &&str| !line.contains(r#""index":3"#) && !line.contains(r#""index":4"#);
    let lines: Vec<&str> = lines.lines().filter(no_call).collect();
    let thinking = lines.join("\n").replace(r#""tool_use""#, r#""end_turn""#);
    let provider = Provider::streaming([as_stream(&thinking), fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let mut page = page(RigAgent::new(built(builder, &done)));
    page.send("Go").await;
    page.send("And now?").await;
    assert_eq!(page.error(), None);
    assert_eq!(
        provider.asked()[1]["messages"][1]["content"],
        json!([
            {"type": "thinking", "thinking": "Two towns — both by the sea.",
                "signature": "c2lnbmVkIGJ5IG5vYm9keQ=="},
            {"type": "redacted_thinking", "data": "bm90IGZvciB5b3U="},
            {"type": "text", "text": "I look at both."},
        ])
    );
}

#[tokio::test]
async fn nobody_is_asked_about_an_input_that_a_browser_shows_as_another() {
    let first = calling(&[("t1", "delete", r#"{"what":"a","n":9007199254740993}"#)]);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let mut page = page(RigAgent::new(built(builder, &done)).needs_approval("delete"));
    page.send("Go").await;
    assert_eq!(page.error(), None);
    assert_eq!(calls(&page)[0].2, "output-error");
    assert!(done.lock().unwrap().is_empty());
    let chunks = serde_json::to_string(&page.last_chunks()).unwrap();
    assert!(!chunks.contains("tool-approval-request"), "{chunks}");
    assert_eq!(chunks.matches("tool-output-error").count(), 1, "{chunks}");
    let told = &told(&provider, 1)[0].1;
    assert!(told.contains("send large numbers as strings"), "{told}");
    assert_eq!(held(&page).text, format!("So.{LAST}"));
}
