//! An agent built with rig, behind the route: the user's decisions, and what the model reads.

use chat_test_support::browser::{approve, say};
use std::time::Duration;

use rig_agent::tool::DynamicTool;
use rig_core::message::ToolName;
use serde_json::{Value, json};
use ui_message_stream::UserText;
use ui_message_stream::approval::Principal;
use ui_message_stream_rig::{RigAgent, RigModel};

use super::agents::{
    Requester, agent_builder, answering, awaiting_tool, browser, build, build_with, calls,
    contents, expected_call, started, tool_results,
};
use super::provider::{Provider, as_stream, fixture, lines_of, stream_with_calls};

const LAST: &str = "Sun on “both” shores. 🚢";

#[tokio::test]
async fn the_tools_of_an_agent_run_and_its_text_and_calls_arrive_in_order() {
    let (provider, builder, executed) =
        answering(&[("t1", "look", r#"{"what":"a"}"#), ("t2", "fails", r#"{"what":"b"}"#)]);
    let browser = started(RigAgent::new(build(builder, &executed)).with_usage_metadata()).await;
    assert_eq!(
        calls(&browser),
        [
            expected_call("look", "a", "output-available", json!({"done": "a"})),
            expected_call("fails", "b", "output-error", json!("the tool failed")),
        ]
    );
    assert_eq!(contents(&browser).text, format!("So.{LAST}"));
    let kinds: Vec<String> = browser.last_chunks().iter().map(kind).collect();
    let steps = kinds.iter().filter(|kind| *kind == "start-step").count();
    assert_eq!(steps, 2, "{kinds:?}");
    let message = browser.messages().last().unwrap();
    let usage: Value = message.metadata.as_ref().unwrap().decode().unwrap();
    assert_eq!(usage["usage"], json!({"inputTokens": 163, "outputTokens": 16}));
    assert_eq!(tool_results(&provider, 1).len(), 2);
    assert!(!format!("{:?}", provider.requests()).contains("secret@"));
}

fn kind(chunk: &impl serde::Serialize) -> String {
    serde_json::to_value(chunk).unwrap()["type"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_call_that_was_cut_off_before_its_arguments_does_not_run() {
    for (end, is_cut) in [("tool_use", false), ("max_tokens", true)] {
        let first = stream_with_calls(&[("t1", "ring", "")])
            .replace(r#""stop_reason":"tool_use""#, &format!(r#""stop_reason":"{end}""#));
        let provider = Provider::with_streams([first, fixture("anthropic/text")]);
        let (builder, executed) = agent_builder(&provider);
        let tools = [awaiting_tool("ring", || std::future::ready(()))];
        let browser = started(RigAgent::new(build_with(builder, &executed, tools))).await;
        let [(_, _, state, output)] = &calls(&browser)[..] else { panic!() };
        let result = &tool_results(&provider, 1)[0].1;
        if is_cut {
            assert_eq!(state, "output-error");
            assert_eq!(*output, UserText::NotStarted.in_english());
            assert!(result.contains(UserText::NotStarted.in_english()), "{result}");
        } else {
            assert_eq!((&**state, output), ("output-available", &json!("it ended")));
        }
    }
}

#[tokio::test]
async fn an_approved_call_runs_once_and_the_agent_continues() {
    let (provider, builder, executed) = answering(&[("t1", "delete", r#"{"what":"a"}"#)]);
    let agent = RigAgent::new(build(builder, &executed)).needs_approval("delete");
    let agent = agent.with_approval_description(|tool, _| Some(format!("May it {tool}?")));
    let mut browser = started(agent.with_usage_metadata()).await;
    assert_eq!(calls(&browser)[0].2, "approval-requested");
    assert_eq!((provider.requests().len(), executed.lock().unwrap().len()), (1, 0));
    let message = serde_json::to_string(browser.messages().last().unwrap()).unwrap();
    assert!(message.contains("May it delete?"), "{message}");
    approve(&mut browser, "delete").await;
    assert_eq!(*executed.lock().unwrap(), ["delete a"]);
    let expected = expected_call("delete", "a", "output-available", json!({"done": "a"}));
    assert_eq!(calls(&browser), [expected]);
    assert_eq!(contents(&browser).text, format!("So.{LAST}"));
    let results = tool_results(&provider, 1);
    assert_eq!(results.len(), 1);
    assert!(results[0].0 == "t1" && results[0].1.contains("done"), "{results:?}");
    let message = browser.messages().last().unwrap();
    let usage: Value = message.metadata.as_ref().unwrap().decode().unwrap();
    assert_eq!(usage["usage"], json!({"inputTokens": 163, "outputTokens": 16}));
}

#[tokio::test(start_paused = true)]
async fn an_approved_tool_that_hangs_is_stopped_and_the_agent_continues() {
    for tool_timeout in [None, Some(Duration::from_secs(5))] {
        let (_provider, builder, executed) = answering(&[("t1", "hangs", "{}")]);
        let tools = [awaiting_tool("hangs", std::future::pending)];
        let agent = RigAgent::new(build_with(builder, &executed, tools)).needs_approval("hangs");
        let (agent, limit) = match tool_timeout {
            None => (agent, Duration::from_secs(90)),
            Some(time) => (agent.with_tool_timeout(time), Duration::from_secs(30)),
        };
        let mut browser = started(agent).await;
        tokio::time::timeout(limit, browser.approve("hangs")).await.expect("the tool is stopped");
        assert_eq!(browser.error(), None);
        let error = "The tool took too long and was stopped. What it did until then is not known.";
        assert_eq!(
            (&*calls(&browser)[0].2, &calls(&browser)[0].3),
            ("output-error", &json!(error))
        );
        assert_eq!(contents(&browser).text, format!("So.{LAST}"));
    }
}

#[tokio::test]
async fn a_denied_call_does_not_run_and_the_model_reads_the_reason() {
    let (provider, builder, executed) = answering(&[("t1", "delete", r#"{"what":"a"}"#)]);
    let mut browser =
        started(RigAgent::new(build(builder, &executed)).needs_approval("delete")).await;
    browser.deny("delete", "it is mine").await;
    assert_eq!(browser.error(), None);
    assert_eq!(calls(&browser)[0].2, "output-denied");
    assert!(executed.lock().unwrap().is_empty());
    let result = &tool_results(&provider, 1)[0].1;
    assert!(result.contains("was denied") && result.contains("it is mine"), "{result}");
    assert_eq!(contents(&browser).text, format!("So.{LAST}"));
}

#[tokio::test]
async fn the_calls_of_one_step_may_run_immediately_be_approved_or_be_denied() {
    let first = stream_with_calls(&[
        ("t1", "delete", r#"{"what":"a"}"#),
        ("t2", "look", r#"{"what":"b"}"#),
        ("t3", "send", r#"{"what":"c"}"#),
    ]);
    for concurrency in [1, 4] {
        let provider = Provider::with_streams([first.clone(), fixture("anthropic/text")]);
        let (builder, executed) = agent_builder(&provider);
        let agent = RigAgent::new(build(builder, &executed))
            .needs_approval("delete")
            .needs_approval_when(|tool, input| tool == "send" && input.as_str().contains('c'))
            .map_runner(move |run, _| run.tool_concurrency(concurrency));
        let mut browser = started(agent).await;
        let states: Vec<String> = calls(&browser).into_iter().map(|call| call.2).collect();
        assert_eq!(states, ["approval-requested", "output-available", "approval-requested"]);
        assert_eq!(*executed.lock().unwrap(), ["look b"]);
        browser.approve("delete").await;
        assert_eq!(provider.requests().len(), 1);
        browser.deny("send", "no").await;
        assert_eq!(browser.error(), None);
        let states: Vec<String> = calls(&browser).into_iter().map(|call| call.2).collect();
        assert_eq!(states, ["output-available", "output-available", "output-denied"]);
        assert_eq!(*executed.lock().unwrap(), ["look b", "delete a"]);
        let ids: Vec<String> = tool_results(&provider, 1).into_iter().map(|(id, _)| id).collect();
        assert_eq!(ids, ["t1", "t2", "t3"]);
        assert_eq!(contents(&browser).text, format!("So.{LAST}"));
    }
}

#[tokio::test]
async fn a_predicate_that_panics_requires_approval() {
    let first = stream_with_calls(&[("t1", "delete", r#"{"what":"a"}"#)]);
    let provider = Provider::with_streams([first]);
    let (builder, executed) = agent_builder(&provider);
    let agent = RigAgent::new(build(builder, &executed));
    let browser = started(agent.needs_approval_when(|_, _| panic!("a predicate"))).await;
    assert_eq!(calls(&browser)[0].2, "approval-requested");
    assert!(executed.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_approved_tool_whose_definition_has_changed_does_not_run() {
    let (_provider, builder, executed) = answering(&[("t1", "delete", r#"{"what":"a"}"#)]);
    let rig = build(builder, &executed);
    let mut browser = started(RigAgent::new(rig.clone()).needs_approval("delete")).await;
    let schema = json!({"type": "object"});
    let other = DynamicTool::new(ToolName::new("delete").unwrap(), "Else.", schema, |_| {
        Box::pin(async { panic!("it ran") })
    });
    rig.tool_server_handle().add_dynamic_tool(other);
    approve(&mut browser, "delete").await;
    assert_eq!(calls(&browser)[0].2, "output-error");
    assert!(executed.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_incomplete_input_reaches_no_tool_and_the_model_reads_the_error() {
    let (provider, builder, executed) =
        answering(&[("t1", "look", r#"{"what":"a"#), ("t2", "look", r#"{"what":"b"}"#)]);
    let browser = started(RigAgent::new(build(builder, &executed))).await;
    let message = serde_json::to_value(browser.messages().last().unwrap()).unwrap();
    let call = message["parts"].as_array().unwrap().iter().find(|part| part["type"] == "tool-look");
    assert_eq!(call.unwrap()["rawInput"], r#"{"what":"a"#);
    assert_eq!(*executed.lock().unwrap(), ["look b"]);
    assert_eq!(tool_results(&provider, 1).len(), 2);
}

#[tokio::test]
async fn a_failure_of_the_provider_is_masked_and_reaching_the_turn_limit_is_no_error() {
    let all_events = lines_of("anthropic/thoughts_and_two_calls");
    let first_events: String =
        all_events.lines().take(9).map(|line| format!("data: {line}\n\n")).collect();
    let error = r#"{"type":"error","error":{"type":"overloaded_error","message":"at 10.0.0.7"}}"#;
    let provider = Provider::with_streams([format!("{first_events}data: {error}\n\n")]);
    let (builder, executed) = agent_builder(&provider);
    let mut failing = browser(RigAgent::new(build(builder, &executed)));
    failing.send("Go").await;
    assert_eq!(failing.error(), Some("An error occurred."));
    assert_eq!(contents(&failing).reasoning, "Two towns — both by the sea.");

    let provider =
        Provider::with_streams([stream_with_calls(&[("t1", "look", r#"{"what":"a"}"#)])]);
    let (builder, executed) = agent_builder(&provider);
    let rig = RigAgent::new(build(builder.default_max_turns(1), &executed));
    let browser = started(rig).await;
    assert_eq!(calls(&browser)[0].2, "output-available");
}

#[tokio::test]
async fn reasoning_is_sent_back_to_the_model_after_an_approval() {
    let lines = lines_of("anthropic/thoughts_and_two_calls").replace("\"weather\"", "\"delete\"");
    let first = as_stream(&lines);
    let provider = Provider::with_streams([first, fixture("anthropic/text")]);
    let (builder, executed) = agent_builder(&provider);
    let agent = RigAgent::new(build(builder, &executed));
    let mut browser =
        started(agent.needs_approval_when(|_, input| input.as_str().contains("Faro"))).await;
    approve(&mut browser, "delete").await;
    let content = provider.requests()[1]["messages"][1]["content"].clone();
    assert_eq!(content[0]["signature"], "c2lnbmVkIGJ5IG5vYm9keQ==");
    assert_eq!(content[1], json!({"type": "redacted_thinking", "data": "bm90IGZvciB5b3U="}));
    assert_eq!(content[4]["id"], "toolu_02");
    assert_eq!(executed.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_panic_of_a_tool_fails_the_run_but_if_the_call_was_approved_only_the_call() {
    let panics = stream_with_calls(&[("t1", "look", r#"{"what":"a"}"#), ("t2", "panics", "{}")]);
    let provider = Provider::with_streams([panics.clone(), panics, fixture("anthropic/text")]);
    let (builder, executed) = agent_builder(&provider);
    let rig = build(builder, &executed);
    let mut failing = browser(RigAgent::new(rig.clone()));
    failing.send("Go").await;
    assert_eq!(failing.error(), Some("An error occurred."));
    assert_eq!(calls(&failing)[0].2, "output-available");
    assert_eq!(calls(&failing)[1].2, "output-error");

    let mut browser = started(RigAgent::new(rig).needs_approval("panics")).await;
    approve(&mut browser, "panics").await;
    assert_eq!(
        (&*calls(&browser)[1].2, &calls(&browser)[1].3),
        ("output-error", &json!("The tool failed."))
    );
    assert_eq!(contents(&browser).text, format!("So.{LAST}"));
}

#[tokio::test]
async fn tools_receive_their_context_with_and_without_an_approval() {
    let (_provider, builder, executed) =
        answering(&[("t1", "look", r#"{"what":"a"}"#), ("t2", "delete", r#"{"what":"b"}"#)]);
    let agent = RigAgent::new(build(builder, &executed)).needs_approval("delete");
    let agent = agent.map_runner(|run, _| run.tool_context(rig_agent::tool::ToolContext::new()));
    let mut browser = browser(agent.with_tool_context(|principal, chat| {
        assert_eq!(*principal, Principal::anonymous());
        let mut context = rig_agent::tool::ToolContext::new();
        context.insert(Requester(chat.to_string())).unwrap();
        context
    }));
    browser.send("Go").await;
    browser.approve("delete").await;
    assert_eq!(*executed.lock().unwrap(), ["look a for chat-1", "delete b for chat-1"]);
}

#[tokio::test]
async fn an_image_returned_by_a_tool_is_sent_as_an_image_in_the_next_turn_too() {
    let first = stream_with_calls(&[("t1", "draws", "{}")]);
    let text = fixture("anthropic/text");
    let provider = Provider::with_streams([first, text.clone(), text]);
    let (builder, executed) = agent_builder(&provider);
    let mut browser = started(RigAgent::new(build(builder, &executed))).await;
    say(&mut browser, "And now?").await;
    let (in_run, later) = (&tool_results(&provider, 1)[0].1, &tool_results(&provider, 2)[0].1);
    assert!(in_run.contains(r#""data":"iVBORw0KGgo=""#) && in_run == later, "{in_run} {later}");
}

#[tokio::test]
async fn reasoning_is_sent_back_to_the_model_with_the_next_user_message() {
    let lines = lines_of("anthropic/thoughts_and_two_calls");
    let no_call = |line: &&str| !line.contains(r#""index":3"#) && !line.contains(r#""index":4"#);
    let lines: Vec<&str> = lines.lines().filter(no_call).collect();
    let thinking = lines.join("\n").replace(r#""tool_use""#, r#""end_turn""#);
    let provider = Provider::with_streams([as_stream(&thinking), fixture("anthropic/text")]);
    let (builder, executed) = agent_builder(&provider);
    let mut browser = started(RigAgent::new(build(builder, &executed))).await;
    say(&mut browser, "And now?").await;
    assert_eq!(
        provider.requests()[1]["messages"][1]["content"],
        json!([
            {"type": "thinking", "thinking": "Two towns — both by the sea.",
                "signature": "c2lnbmVkIGJ5IG5vYm9keQ=="},
            {"type": "redacted_thinking", "data": "bm90IGZvciB5b3U="},
            {"type": "text", "text": "I look at both."},
        ])
    );
}

#[tokio::test]
async fn no_approval_is_requested_for_an_input_that_a_browser_would_show_changed() {
    let (provider, builder, executed) =
        answering(&[("t1", "delete", r#"{"what":"a","n":9007199254740993}"#)]);
    let browser = started(RigAgent::new(build(builder, &executed)).needs_approval("delete")).await;
    assert_eq!(calls(&browser)[0].2, "output-error");
    assert!(executed.lock().unwrap().is_empty());
    let chunks = serde_json::to_string(&browser.last_chunks()).unwrap();
    assert!(!chunks.contains("tool-approval-request"), "{chunks}");
    assert_eq!(chunks.matches("tool-output-error").count(), 1, "{chunks}");
    let result = &tool_results(&provider, 1)[0].1;
    assert!(result.contains("send large numbers as strings"), "{result}");
    assert_eq!(contents(&browser).text, format!("So.{LAST}"));
}

#[test]
fn the_debug_output_of_agents_and_models_holds_no_key_and_no_instructions() {
    let provider = Provider::with_streams([]);
    let (builder, executed) = agent_builder(&provider);
    let agent = RigAgent::new(build(builder, &executed)).needs_approval("delete");
    let model = RigModel::new(provider.anthropic("claude-sonnet-4-5"));
    let printed = format!("{agent:?} {:?} {model:?}", agent.clone().into_chat_server());
    assert!(printed.contains("claude-sonnet-4-5"), "{printed}");
    for text in ["secret", "Be brief."] {
        assert!(!printed.contains(text), "{printed}");
    }
}
