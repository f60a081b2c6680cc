//! Cases in which the user could see something else than the model reads: an output that is too
//! long, a failure outside the tool, a prompt or a call that a hook replaced, a source that is
//! named late, an input that is sent twice.

use chat_test_support::browser::{agent as agent_of, approve, conversation, say};
use rig_agent::AgentBuilder;
use rig_agent::agent::{AgentHook, HookContext, RunStart, RunStartAction};
use rig_agent::tool::RegisteredTool;
use rig_core::effect::{EffectKind, FamilyDescriptor, HandlerDescriptor, HandlerKey, family};
use rig_core::error::{ErrorKind, ErrorReport};
use rig_core::serve::{Dispatch, Reply, Serve};
use serde_json::{Value, json};
use ui_message_stream_rig::RigAgent;
use ui_message_stream_rig::RigModel;

use super::agents::{
    Executed, agent_builder, answering, browser, build, calls, contents, started, tool_results,
};
use super::hooks::RepairHook;
use super::provider::{Provider, as_stream, fixture, lines_of, stream_with_calls};

#[tokio::test]
async fn a_call_whose_output_is_too_long_has_failed_for_the_user_and_for_the_model() {
    let error = "The tool returned more than can be shown.";
    let first = stream_with_calls(&[("t1", "look", r#"{"what":"12345678"}"#)]);
    for approved in [false, true] {
        let provider = Provider::with_streams([first.clone(), fixture("anthropic/text")]);
        let (builder, executed) = agent_builder(&provider);
        let agent = RigAgent::new(build(builder, &executed)).with_max_output_bytes(18);
        let mut browser = started(agent.needs_approval_when(move |_, _| approved)).await;
        if approved {
            browser.approve("look").await;
        }
        assert_eq!(browser.error(), None);
        assert_eq!(
            (&*calls(&browser)[0].2, &calls(&browser)[0].3),
            ("output-error", &json!(error))
        );
        assert!(
            tool_results(&provider, 1)[0].1.contains(error),
            "{:?}",
            tool_results(&provider, 1)
        );
    }
}

/// A tool whose runtime fails with an internal error message.
struct FailingTool;

impl Serve for FailingTool {
    type Family = family::Dynamic;

    fn descriptor(&self) -> HandlerDescriptor {
        HandlerDescriptor {
            key: HandlerKey::from("tool:reach"),
            family: FamilyDescriptor::Tool {
                name: "reach".into(),
                description: "Reaches.".into(),
                parameters: json!({"type": "object"}),
                embedding: None,
            },
            layers: Vec::new(),
        }
    }

    async fn serve(&self, _: EffectKind, _: Dispatch) -> Reply {
        Reply::Outcome(Err(ErrorReport::new(ErrorKind::Http, "no way to 10.0.0.7")))
    }
}

#[tokio::test]
async fn an_error_of_the_runtime_of_a_tool_is_masked_for_the_user_and_for_the_model() {
    for approved in [false, true] {
        let (provider, builder, executed) = answering(&[("t1", "reach", "{}")]);
        let rig = build(builder, &executed);
        rig.tool_server_handle()
            .add_registered_tool(RegisteredTool::from_handler(FailingTool).unwrap());
        let mut browser =
            started(RigAgent::new(rig).needs_approval_when(move |_, _| approved)).await;
        if approved {
            browser.approve("reach").await;
        }
        assert_eq!(browser.error(), None);
        let failed = ("output-error", &json!("The tool failed."));
        assert_eq!((&*calls(&browser)[0].2, &calls(&browser)[0].3), failed);
        let result = &tool_results(&provider, 1)[0].1;
        assert!(result.contains("The tool failed.") && !result.contains("10.0.0.7"), "{result}");
    }
}

/// A hook that replaces the prompt.
struct ReplacePrompt;

impl AgentHook for ReplacePrompt {
    async fn on_run_start(&self, _: &HookContext, _: RunStart<'_>) -> RunStartAction {
        RunStartAction::rewrite("Please.")
    }
}

#[tokio::test]
async fn tool_results_are_sent_before_a_prompt_that_a_hook_replaced() {
    let (provider, builder, executed) = answering(&[("t1", "delete", r#"{"what":"a"}"#)]);
    let rig = build(builder.add_hook(ReplacePrompt), &executed);
    let mut browser = started(RigAgent::new(rig).needs_approval("delete")).await;
    say(&mut browser, "Never mind").await;
    assert!(
        tool_results(&provider, 1)[0].1.contains("not executed"),
        "{:?}",
        tool_results(&provider, 1)
    );
    let messages = provider.requests()[1]["messages"].to_string();
    assert!(messages.contains("Please.") && !messages.contains("Never mind"), "{messages}");
}

#[tokio::test]
async fn reasoning_is_sent_back_if_a_hook_repaired_the_call_after_it() {
    let lines = lines_of("anthropic/thoughts_and_two_calls").replace("\"weather\"", "\"peek\"");
    let one_call = lines.lines().filter(|line| !line.contains(r#""index":4"#));
    let stream = one_call.collect::<Vec<&str>>().join("\n");
    let provider = Provider::with_streams([
        stream_with_calls(&[("t1", "send", r#"{"what":"a"}"#)]),
        as_stream(&stream),
        fixture("anthropic/text"),
        // The hook repeats a first response that is text.
        fixture("anthropic/text"),
    ]);
    let (builder, executed) = agent_builder(&provider);
    let rig = build(builder.add_hook(RepairHook), &executed);
    let mut browser = started(RigAgent::new(rig).needs_approval("look")).await;
    approve(&mut browser, "look").await;
    let messages = provider.requests()[2]["messages"].to_string();
    assert!(messages.contains("c2lnbmVkIGJ5IG5vYm9keQ=="), "{messages}");
}

/// Returns a response of Chat Completions that names the source of a text after the text has ended.
fn late_citation() -> String {
    let delta = |delta: Value| json!({"id": "c", "choices": [{"index": 0, "delta": delta}]});
    let call = json!({"index": 0, "id": "call_1", "type": "function",
        "function": {"name": "tides", "arguments": "{}"}});
    let citation = json!({"type": "url_citation",
        "url_citation": {"url": "https://news.example/a", "title": "News", "start_index": 0,
            "end_index": 3}});
    let end = json!({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
    let events = [
        delta(json!({"role": "assistant", "content": "News."})),
        delta(json!({"reasoning_content": "Hm."})),
        delta(json!({"tool_calls": [call]})),
        delta(json!({"annotations": [citation]})),
        end,
    ];
    as_stream(&events.map(|event| event.to_string()).join("\n"))
}

#[tokio::test]
async fn a_source_that_is_named_after_its_text_is_shown_once() {
    let streams = || [late_citation(), fixture("chat/text_is_joined")];
    let provider = Provider::default();
    let builder = AgentBuilder::new(provider.chat()).default_max_turns(5);
    let rig = build(builder, &Executed::default());
    rig.tool_server_handle().add_dynamic_tool(super::agents::awaiting_tool("tides", || async {}));
    let browsers =
        [conversation(agent_of(RigModel::new(provider.chat()))), browser(RigAgent::new(rig))];
    for mut browser in browsers {
        provider.respond_with(streams());
        say(&mut browser, "News?").await;
        assert_eq!(contents(&browser).sources, ["https://news.example/a"]);
    }
}

#[tokio::test]
async fn if_an_input_is_sent_twice_the_last_one_is_used() {
    let lines = lines_of("responses/reasoning_and_a_function_call");
    let restated = lines.lines().map(|line| {
        let mut event: Value = serde_json::from_str(line).unwrap();
        let is_done = event["type"] == "response.output_item.done";
        if is_done && event["item"]["type"] == "function_call" {
            event["item"]["arguments"] = r#"{"city":"Faro"}"#.into();
        }
        event.to_string()
    });
    let restated: Vec<String> = restated.collect();
    assert_ne!(restated.join("\n"), lines.trim());
    let streams = [as_stream(&restated.join("\n")), fixture("responses/text")];
    let provider = Provider::with_streams(streams);
    let mut browser = conversation(agent_of(RigModel::new(provider.responses())));
    say(&mut browser, "How is the weather?").await;
    assert_eq!(contents(&browser).calls[0].1, json!({"city": "Faro"}));
    let input = provider.requests()[1]["input"].to_string();
    assert!(input.contains("Faro: sun") && !input.contains("Lisbon"), "{input}");
}
