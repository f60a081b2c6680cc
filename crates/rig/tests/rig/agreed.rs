//! An agent built with rig, where what the person sees and what the model reads could come apart: an
//! output that is too long, a failure that is none of the tool's, a prompt or a call that a hook wrote
//! anew, a source that is known late, an input that was written twice.

use rig_agent::AgentBuilder;
use rig_agent::agent::{AgentHook, HookContext, RunStart, RunStartAction};
use rig_agent::tool::RegisteredTool;
use rig_core::effect::{EffectKind, FamilyDescriptor, HandlerDescriptor, HandlerKey, family};
use rig_core::error::{ErrorKind, ErrorReport};
use rig_core::serve::{Dispatch, Reply, Serve};
use serde_json::{Value, json};
use test_support::browser::{agent as agent_of, conversation};
use ui_message_stream_rig::RigAgent;
use ui_message_stream_rig::RigModel;

use super::agents::{Done, agent, built, calls, held, page, told};
use super::hooks::Mends;
use super::provider::{Provider, as_stream, calling, fixture, lines_of};

#[tokio::test]
async fn an_output_that_is_too_long_failed_for_the_person_and_for_the_model() {
    let why = "The tool returned more than can be shown.";
    let first = calling(&[("t1", "look", r#"{"what":"12345678"}"#)]);
    for approved in [false, true] {
        let provider = Provider::streaming([first.clone(), fixture("anthropic/text")]);
        let (builder, done) = agent(&provider);
        let agent = RigAgent::new(built(builder, &done)).with_max_output_bytes(18);
        let mut page = page(agent.needs_approval_when(move |_, _| approved));
        page.send("Go").await;
        if approved {
            page.approve("look").await;
        }
        assert_eq!(page.error(), None);
        assert_eq!((&*calls(&page)[0].2, &calls(&page)[0].3), ("output-error", &json!(why)));
        assert!(told(&provider, 1)[0].1.contains(why), "{:?}", told(&provider, 1));
    }
}

/// A tool whose runtime fails, in words that are nobody's business.
struct Breaks;

impl Serve for Breaks {
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
async fn what_rig_says_where_a_tool_could_not_run_nobody_reads() {
    for approved in [false, true] {
        let first = calling(&[("t1", "reach", "{}")]);
        let provider = Provider::streaming([first, fixture("anthropic/text")]);
        let (builder, done) = agent(&provider);
        let rig = built(builder, &done);
        rig.tool_server_handle().add_registered_tool(RegisteredTool::from_handler(Breaks).unwrap());
        let mut page = page(RigAgent::new(rig).needs_approval_when(move |_, _| approved));
        page.send("Go").await;
        if approved {
            page.approve("reach").await;
        }
        assert_eq!(page.error(), None);
        let failed = ("output-error", &json!("The tool failed."));
        assert_eq!((&*calls(&page)[0].2, &calls(&page)[0].3), failed);
        let told = &told(&provider, 1)[0].1;
        assert!(told.contains("The tool failed.") && !told.contains("10.0.0.7"), "{told}");
    }
}

/// A hook that writes another prompt.
struct Politely;

impl AgentHook for Politely {
    async fn on_run_start(&self, _: &HookContext, _: RunStart<'_>) -> RunStartAction {
        RunStartAction::rewrite("Please.")
    }
}

#[tokio::test]
async fn a_hook_that_writes_another_prompt_leaves_the_results_in_front_of_it() {
    let first = calling(&[("t1", "delete", r#"{"what":"a"}"#)]);
    let provider = Provider::streaming([first, fixture("anthropic/text")]);
    let (builder, done) = agent(&provider);
    let rig = built(builder.add_hook(Politely), &done);
    let mut page = page(RigAgent::new(rig).needs_approval("delete"));
    page.send("Go").await;
    page.send("Never mind").await;
    assert_eq!(page.error(), None);
    assert!(told(&provider, 1)[0].1.contains("not executed"), "{:?}", told(&provider, 1));
    let asked = provider.asked()[1]["messages"].to_string();
    assert!(asked.contains("Please.") && !asked.contains("Never mind"), "{asked}");
}

#[tokio::test]
async fn thoughts_go_back_where_a_hook_mended_the_call_behind_them() {
    let lines = lines_of("anthropic/thoughts_and_two_calls").replace("\"weather\"", "\"peek\"");
    let one_call = lines.lines().filter(|line| !line.contains(r#""index":4"#));
    let thinking = one_call.collect::<Vec<&str>>().join("\n");
    let provider = Provider::streaming([
        calling(&[("t1", "send", r#"{"what":"a"}"#)]),
        as_stream(&thinking),
        fixture("anthropic/text"),
        // The hook has a first answer in words said anew.
        fixture("anthropic/text"),
    ]);
    let (builder, done) = agent(&provider);
    let rig = built(builder.add_hook(Mends), &done);
    let mut page = page(RigAgent::new(rig).needs_approval("look"));
    page.send("Go").await;
    assert_eq!(page.error(), None);
    page.approve("look").await;
    assert_eq!(page.error(), None);
    let asked = provider.asked()[2]["messages"].to_string();
    assert!(asked.contains("c2lnbmVkIGJ5IG5vYm9keQ=="), "{asked}");
}

/// An answer of Chat Completions whose source is named when its text has ended.
fn cited_late() -> String {
    let delta = |delta: Value| json!({"id": "c", "choices": [{"index": 0, "delta": delta}]});
    let call = json!({"index": 0, "id": "call_1", "type": "function",
        "function": {"name": "tides", "arguments": "{}"}});
    let cited = json!({"type": "url_citation",
        "url_citation": {"url": "https://news.example/a", "title": "News", "start_index": 0,
            "end_index": 3}});
    let end = json!({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
    let events = [
        delta(json!({"role": "assistant", "content": "News."})),
        delta(json!({"reasoning_content": "Hm."})),
        delta(json!({"tool_calls": [call]})),
        delta(json!({"annotations": [cited]})),
        end,
    ];
    as_stream(&events.map(|event| event.to_string()).join("\n"))
}

#[tokio::test]
async fn a_source_that_is_known_late_is_shown_once() {
    let answers = || [cited_late(), fixture("chat/text_is_joined")];
    let provider = Provider::default();
    let builder = AgentBuilder::new(provider.chat()).default_max_turns(5);
    let rig = built(builder, &Done::default());
    rig.tool_server_handle().add_dynamic_tool(super::agents::ending("tides", || async {}));
    let pages = [conversation(agent_of(RigModel::new(provider.chat()))), page(RigAgent::new(rig))];
    for mut page in pages {
        provider.then(answers());
        page.send("News?").await;
        assert_eq!(page.error(), None);
        assert_eq!(held(&page).sources, ["https://news.example/a"]);
    }
}

#[tokio::test]
async fn of_an_input_that_was_written_twice_the_last_one_counts() {
    let lines = lines_of("responses/reasoning_and_a_function_call");
    let restated = lines.lines().map(|line| {
        let mut event: Value = serde_json::from_str(line).unwrap();
        let is_it = event["type"] == "response.output_item.done";
        if is_it && event["item"]["type"] == "function_call" {
            event["item"]["arguments"] = r#"{"city":"Faro"}"#.into();
        }
        event.to_string()
    });
    let restated: Vec<String> = restated.collect();
    assert_ne!(restated.join("\n"), lines.trim());
    let answers = [as_stream(&restated.join("\n")), fixture("responses/text")];
    let provider = Provider::streaming(answers);
    let mut browser = conversation(agent_of(RigModel::new(provider.responses())));
    browser.send("How is the weather?").await;
    assert_eq!(browser.error(), None);
    assert_eq!(held(&browser).calls[0].1, json!({"city": "Faro"}));
    let told = provider.asked()[1]["input"].to_string();
    assert!(told.contains("Faro: sun") && !told.contains("Lisbon"), "{told}");
}
