//! Provider-executed tools, through a model and through an agent of rig: the user sees the calls
//! and their outputs, and the provider receives its own items unchanged.

mod approvals;

use std::collections::HashSet;
use std::future::ready;

use chat_test_support::browser::{agent, asked, conversation, say};
use futures::StreamExt;
use rig_agent::AgentBuilder;
use rig_core::DynModel;
use rig_core::operation::Completion;
use serde_json::{Value, json};
use ui_message_stream::UiMessage;
use ui_message_stream::message::Part;
use ui_message_stream::model::{Model, ModelMessage, ModelRequest, ToModelMessages};
use ui_message_stream::testing::Conversation;
use ui_message_stream_rig::RigAgent;
use ui_message_stream_rig::RigModel;

use super::agents::{Executed, browser, build, calls, contents, started};
use super::provider::{Provider, as_stream, fixture, lines_of};

type Call = (String, Value, String, Value);

/// Returns a browser that uses a model of rig, and one that uses an agent of rig.
fn browsers(model: impl Fn() -> DynModel<Completion>) -> [Conversation<'static>; 2] {
    let limited = |model| RigModel::new(model).map_request(|request| request.max_tokens(999));
    let builder = AgentBuilder::new(model()).max_tokens(999).default_max_turns(5);
    let rig = build(builder, &Executed::default());
    [conversation(agent(limited(model()))), browser(RigAgent::new(rig))]
}

fn call_with(name: &str, input: Value, state: &str, output: Value) -> Call {
    (name.to_owned(), input, state.to_owned(), output)
}

fn executed_call(name: &str, input: Value, output: Value) -> Call {
    call_with(name, input, "output-available", output)
}

fn shorten_call(state: &str, output: Value) -> Call {
    let input = json!({"url": "https://example.com/", "max_clicks": 100});
    call_with("mcp.links.shorten", input, state, output)
}

/// Returns the calls of a fixture, as the adapter for OpenAI shows them.
fn expected_calls(name: &str) -> Vec<Call> {
    let sources = json!([
        {"type": "url", "url": "https://news.example/a"},
        {"type": "url", "url": "https://news.example/b"},
    ]);
    let search = json!({"type": "search", "query": "harbour news", "sources": sources});
    let open_page = json!({"type": "open_page", "url": "https://news.example/a"});
    let image = json!({
        "background": "opaque", "output_format": "png", "quality": "low",
        "revised_prompt": "A calm harbour.", "size": "1024x1024",
    });
    let mut image_output = image.clone();
    image_output["status"] = "completed".into();
    match name {
        "web_search_with_sources" => vec![
            executed_call(
                "web_search",
                json!({"type": "search", "query": "harbour news"}),
                json!({"status": "completed", "action": search}),
            ),
            executed_call(
                "web_search",
                open_page.clone(),
                json!({"status": "completed", "action": open_page}),
            ),
        ],
        "code_that_the_provider_runs" => vec![executed_call(
            "code_interpreter",
            json!({"code": "print(6*7)", "container_id": "cntr_1"}),
            json!({"code": "print(6*7)", "container_id": "cntr_1", "status": "completed",
                "outputs": [{"type": "logs", "logs": "42"}]}),
        )],
        "a_picture" => vec![executed_call("image_generation", image, image_output)],
        "mcp_calls" => vec![
            shorten_call("output-available", json!("✅ https://l.example/1")),
            shorten_call("output-error", json!("too many links")),
        ],
        "thoughts_around_an_mcp_call" => {
            vec![shorten_call("output-available", json!("✅ https://l.example/1"))]
        }
        other => panic!("{other}"),
    }
}

/// Returns the items of a fixture.
fn all_items(name: &str) -> Vec<Value> {
    let lines = lines_of(&format!("responses/{name}"));
    let events = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let done = events.filter(|event| event["type"] == "response.output_item.done");
    done.map(|mut event| event["item"].take()).collect()
}

/// Returns the items of a fixture that are not messages.
fn items(name: &str) -> Vec<Value> {
    all_items(name).into_iter().filter(is_tool_item).collect()
}

/// Panics if a request contains what OpenAI refuses: an item twice, or reasoning without the item
/// that followed it in the response. `responses` are the fixtures of the responses.
fn check_items(provider: &Provider, responses: &[&str]) {
    let responses: Vec<Value> = responses.iter().flat_map(|name| all_items(name)).collect();
    for request in provider.requests() {
        let sent = request["input"].as_array().unwrap();
        let ids: Vec<&str> = sent.iter().filter_map(|item| item["id"].as_str()).collect();
        let distinct: HashSet<&&str> = ids.iter().collect();
        assert_eq!(ids.len(), distinct.len(), "an item twice: {ids:?}");
        for (at, reasoning) in sent.iter().enumerate().filter(|(_, item)| is_reasoning(item)) {
            let position = responses.iter().position(|item| item["id"] == reasoning["id"]).unwrap();
            let next = sent.get(at + 1).map(|item| &item["id"]);
            assert_eq!(next, Some(&responses[position + 1]["id"]), "after {reasoning}: {sent:?}");
        }
    }
}

fn is_reasoning(item: &Value) -> bool {
    item["type"] == "reasoning"
}

fn is_tool_item(item: &Value) -> bool {
    !matches!(item["type"].as_str(), None | Some("message"))
}

/// Returns the items of a request that are not messages.
fn sent_items(provider: &Provider, request: usize) -> Vec<Value> {
    let input = provider.requests()[request]["input"].as_array().unwrap().clone();
    input.into_iter().filter(is_tool_item).collect()
}

const FIXTURES: [&str; 5] = [
    "web_search_with_sources",
    "code_that_the_provider_runs",
    "a_picture",
    "mcp_calls",
    "thoughts_around_an_mcp_call",
];

#[tokio::test]
async fn provider_executed_calls_are_shown_and_their_items_are_sent_back_unchanged() {
    for name in FIXTURES {
        let provider = Provider::default();
        for (at, mut browser) in browsers(|| provider.responses()).into_iter().enumerate() {
            provider
                .respond_with([fixture(&format!("responses/{name}")), fixture("responses/text")]);
            browser.send("Go").await;
            assert_eq!(browser.error(), None, "{name}");
            assert_eq!(calls(&browser), expected_calls(name), "{name}");
            let message = serde_json::to_string(browser.messages().last().unwrap()).unwrap();
            assert!(message.matches("iVBORw0KGgo=").count() <= 1, "{message}");
            let provider_executed = message.matches(r#""providerExecuted":true"#).count();
            assert_eq!(provider_executed, expected_calls(name).len(), "{message}");
            browser.send("And now?").await;
            assert_eq!(browser.error(), None, "{name}");
            assert_eq!(sent_items(&provider, 2 * at + 1), items(name), "{name}");
        }
        check_items(&provider, &[name]);
    }
}

#[tokio::test]
async fn an_image_generated_by_the_provider_is_one_file_part() {
    let provider = Provider::default();
    for mut browser in browsers(|| provider.responses()) {
        provider.respond_with([fixture("responses/a_picture")]);
        browser.send("Draw").await;
        let is_picture = |part: &&Part| matches!(part, Part::File(file) if *file.url == *PICTURE);
        assert_eq!(browser.messages()[1].parts.iter().filter(is_picture).count(), 1);
    }
}

const PICTURE: &str = "data:image/png;base64,iVBORw0KGgo=";

/// Returns the history of a chat in which the provider generated an image.
async fn history_with_image(provider: &Provider) -> Vec<Value> {
    provider.respond_with([fixture("responses/a_picture")]);
    let mut browser = conversation(agent(RigModel::new(provider.responses())));
    say(&mut browser, "Draw").await;
    browser.messages().iter().map(|message| serde_json::to_value(message).unwrap()).collect()
}

/// Returns the request that a model sends for this history.
async fn sent(provider: &Provider, history: &[Value], model: DynModel<Completion>) -> String {
    let messages: Vec<UiMessage> =
        history.iter().map(|message| UiMessage::parse(&message.to_string()).unwrap()).collect();
    let mut messages = ToModelMessages::new().model_messages(&messages);
    messages.push(ModelMessage::user("And now?"));
    let model = RigModel::new(model).map_request(|request| request.max_tokens(999));
    model.call(ModelRequest::new(messages)).for_each(|_| ready(())).await;
    provider.requests().last().unwrap().to_string()
}

/// Whether the body describes the image with the text of rig or with the text of this crate.
fn describes_image(body: &str) -> bool {
    body.contains("image omitted") || body.contains("A file of type image/png")
}

#[tokio::test]
async fn a_generated_image_is_described_as_text_if_its_item_is_not_sent_back() {
    let provider = Provider::default();
    let history = history_with_image(&provider).await;
    let same = sent(&provider, &history, provider.responses()).await;
    assert!(same.contains("image_generation_call") && !describes_image(&same), "{same}");

    // The text is from another model of OpenAI.
    let mut mixed = history.clone();
    let parts = mixed[1]["parts"].as_array_mut().unwrap();
    let origin = parts.last_mut().unwrap().pointer_mut("/providerMetadata/rig/origin/model");
    *origin.unwrap() = "another".into();
    let mixed = sent(&provider, &mixed, provider.responses()).await;
    assert!(!mixed.contains("image_generation_call") && describes_image(&mixed), "{mixed}");

    let chat = sent(&provider, &history, provider.chat()).await;
    assert!(describes_image(&chat), "{chat}");
    let anthropic = sent(&provider, &history, provider.anthropic(CLAUDE)).await;
    assert!(describes_image(&anthropic), "{anthropic}");
}

/// With OpenAI, whose adapter sends a call as a function if its item cannot be sent.
#[tokio::test]
async fn an_item_that_is_too_large_to_be_stored_is_sent_as_an_ordinary_call() {
    let large = "a".repeat(1_100_000);
    let calls = lines_of("responses/mcp_calls").replace("✅ https://l.example/1", &large);
    let provider = Provider::with_streams([as_stream(&calls), fixture("responses/text")]);
    let mut browser = asked(RigModel::new(provider.responses()), "Go").await;
    say(&mut browser, "And now?").await;
    let sent = sent_items(&provider, 1);
    let kinds: Vec<&str> = sent.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["mcp_list_tools", "function_call", "mcp_call", "function_call_output"]);
}

/// Returns the blocks of the assistant messages in a request to Anthropic.
fn blocks(provider: &Provider, request: usize) -> Vec<Value> {
    let messages = provider.requests()[request]["messages"].as_array().unwrap().clone();
    let assistant = messages.into_iter().filter(|message| message["role"] == "assistant");
    assistant.flat_map(|message| message["content"].as_array().unwrap().clone()).collect()
}

/// Returns the complete blocks of a fixture.
fn blocks_of(name: &str) -> Vec<Value> {
    let mut blocks: Vec<Value> = Vec::new();
    let mut input = String::new();
    for line in lines_of(&format!("anthropic/{name}")).lines() {
        let mut event: Value = serde_json::from_str(line).unwrap();
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                input.clear();
                blocks.push(event["content_block"].take());
            }
            "content_block_delta" => {
                let block = blocks.last_mut().unwrap();
                if let Some(text) = event["delta"]["text"].as_str() {
                    block["text"] = format!("{}{text}", block["text"].as_str().unwrap()).into();
                }
                input += event["delta"]["partial_json"].as_str().unwrap_or_default();
            }
            "content_block_stop" if !input.is_empty() => {
                blocks.last_mut().unwrap()["input"] = serde_json::from_str(&input).unwrap();
            }
            _ => {}
        }
    }
    blocks
}

const CLAUDE: &str = "claude-sonnet-4-5";

#[tokio::test]
async fn tools_executed_by_anthropic_are_shown_and_their_blocks_are_sent_back_unchanged() {
    let provider = Provider::default();
    let results = json!([{
        "type": "web_search_result", "url": "https://news.example/a", "title": "Harbour reopens",
        "page_age": "May 2, 2026",
    }]);
    let url = json!({"url": "https://news.example/a"});
    for (at, mut browser) in browsers(|| provider.anthropic(CLAUDE)).into_iter().enumerate() {
        provider.respond_with([fixture("anthropic/web_search"), fixture("anthropic/text")]);
        say(&mut browser, "News?").await;
        assert_eq!(
            calls(&browser),
            [
                executed_call("web_search", json!({"query": "harbour news"}), results.clone()),
                call_with(
                    "web_search",
                    json!({"query": "tides"}),
                    "output-error",
                    json!("max_uses_exceeded")
                ),
                executed_call("mcp.links.shorten", url.clone(), json!("✅ https://l.example/1")),
            ]
        );
        assert_eq!(contents(&browser).text, "I look.It reopened.");
        say(&mut browser, "And now?").await;
        assert_eq!(blocks(&provider, 2 * at + 1), blocks_of("web_search"));
    }
}

#[tokio::test]
async fn a_container_named_at_the_end_of_a_response_is_sent_back() {
    let provider = Provider::default();
    for (at, mut browser) in browsers(|| provider.anthropic(CLAUDE)).into_iter().enumerate() {
        let text = r#""content":[],"container":{"id":"container_02"}"#;
        let text = lines_of("anthropic/text").replace(r#""content":[]"#, text);
        provider.respond_with([as_stream(&text), fixture("anthropic/text")]);
        browser.send("Go").await;
        say(&mut browser, "And now?").await;
        assert_eq!(provider.requests()[2 * at + 1]["container"], "container_02");
    }
}

#[tokio::test]
async fn provider_code_that_calls_a_tool_of_the_agent_completes_in_the_next_response() {
    let provider = Provider::default();
    for (at, browser) in browsers(|| provider.anthropic(CLAUDE)).into_iter().enumerate() {
        let tool = if at == 0 { "weather" } else { "look" };
        let first = lines_of("anthropic/code_that_calls_a_tool")
            .replace("\"weather\"", &json!(tool).to_string());
        provider.respond_with([
            as_stream(&first),
            fixture("anthropic/code_that_ran"),
            fixture("anthropic/text"),
        ]);
        let mut browser = browser;
        say(&mut browser, "Go").await;
        let outcome = json!({"type": "code_execution_result", "stdout": "Faro: sun\n", "stderr": "",
            "return_code": 0, "content": []});
        let code = json!({"code": "print(await weather())"});
        assert_eq!(calls(&browser)[0], executed_call("code_execution", code, outcome));
        assert_eq!((&*calls(&browser)[1].0, &*calls(&browser)[1].2), (tool, "output-available"));
        assert_eq!(provider.requests()[3 * at + 1]["container"], "container_01");
        say(&mut browser, "And now?").await;
        assert_eq!(provider.requests()[3 * at + 2]["container"], "container_01");
        let mut expected = blocks_of("code_that_calls_a_tool");
        expected[2]["name"] = tool.into();
        expected.extend(blocks_of("code_that_ran"));
        assert_eq!(blocks(&provider, 3 * at + 2), expected);
    }
}

#[tokio::test]
async fn provider_code_continues_after_a_call_that_it_made_is_approved() {
    let first = lines_of("anthropic/code_that_calls_a_tool").replace("\"weather\"", "\"look\"");
    let streams = [as_stream(&first), fixture("anthropic/code_that_ran")];
    let provider = Provider::with_streams(streams);
    let builder = AgentBuilder::new(provider.anthropic(CLAUDE)).max_tokens(999);
    let rig = build(builder.default_max_turns(5), &Executed::default());
    let mut browser = started(RigAgent::new(rig).needs_approval("look")).await;
    browser.approve("look").await;
    // A client does not submit automatically while a call is open.
    browser.submit().await;
    assert_eq!(browser.error(), None);
    let expected = blocks_of("code_that_calls_a_tool");
    let sent = blocks(&provider, 1);
    assert_eq!((sent.len(), &sent[1]), (3, &expected[1]));
    assert_eq!(provider.requests()[1]["container"], "container_01");
    assert_eq!(calls(&browser)[0].2, "output-available");
}

#[tokio::test]
async fn an_image_generated_by_gemini_is_sent_back_with_its_signature() {
    let provider = Provider::default();
    for (at, mut browser) in browsers(|| provider.gemini()).into_iter().enumerate() {
        // A stream of Gemini has no `[DONE]` after the last event.
        let streams = ["gemini/picture", "gemini/text"].map(fixture);
        provider.respond_with(streams.map(|stream| stream.replace("data: [DONE]\n\n", "")));
        say(&mut browser, "Draw").await;
        let is_picture = |part: &&Part| matches!(part, Part::File(file) if *file.url == *PICTURE);
        assert_eq!(browser.messages()[1].parts.iter().filter(is_picture).count(), 1);
        let message = serde_json::to_string(&browser.messages()[1]).unwrap();
        assert_eq!(message.matches("iVBORw0KGgo=").count(), 1, "{message}");
        say(&mut browser, "Bluer").await;
        assert_eq!(contents(&browser).text, "It is bluer.");
        let contents = &provider.requests()[2 * at + 1]["contents"];
        let parts = contents[1]["parts"].as_array().unwrap();
        let picture = json!({
            "inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="},
            "thoughtSignature": "c2lnbmVkIGJ5IG5vYm9keQ==",
        });
        assert!(parts.contains(&picture), "{contents}");
    }
}
