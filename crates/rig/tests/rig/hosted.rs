//! Tools that the provider runs, through a model and through an agent of rig: a person sees what they
//! did, and the provider gets its own items back as they were.

mod approvals;

use std::collections::HashSet;
use std::future::ready;

use futures::StreamExt;
use rig_agent::AgentBuilder;
use rig_core::DynModel;
use rig_core::operation::Completion;
use serde_json::{Value, json};
use test_support::browser::{agent, conversation};
use ui_message_stream::UiMessage;
use ui_message_stream::message::Part;
use ui_message_stream::model::{Model, ModelMessage, ModelRequest, ToModelMessages};
use ui_message_stream::testing::Conversation;
use ui_message_stream_rig::RigAgent;
use ui_message_stream_rig::RigModel;

use super::agents::{Done, built, calls, held, page};
use super::provider::{Provider, as_stream, fixture, lines_of};

type Call = (String, Value, String, Value);

/// A page in front of a model, and one in front of an agent.
fn both(model: impl Fn() -> DynModel<Completion>) -> [Conversation<'static>; 2] {
    let limited = |model| RigModel::new(model).map_request(|request| request.max_tokens(999));
    let builder = AgentBuilder::new(model()).max_tokens(999).default_max_turns(5);
    let rig = built(builder, &Done::default());
    [conversation(agent(limited(model()))), page(RigAgent::new(rig))]
}

fn became(name: &str, input: Value, state: &str, output: Value) -> Call {
    (name.to_owned(), input, state.to_owned(), output)
}

fn ran(name: &str, input: Value, output: Value) -> Call {
    became(name, input, "output-available", output)
}

fn shorten(state: &str, output: Value) -> Call {
    let input = json!({"url": "https://example.com/", "max_clicks": 100});
    became("mcp.links.shorten", input, state, output)
}

/// What OpenAI's own adapter shows of the same.
fn shown(name: &str) -> Vec<Call> {
    let sources = json!([
        {"type": "url", "url": "https://news.example/a"},
        {"type": "url", "url": "https://news.example/b"},
    ]);
    let searched = json!({"type": "search", "query": "harbour news", "sources": sources});
    let opened = json!({"type": "open_page", "url": "https://news.example/a"});
    let drawn = json!({
        "background": "opaque", "output_format": "png", "quality": "low",
        "revised_prompt": "A calm harbour.", "size": "1024x1024",
    });
    let mut drawn_output = drawn.clone();
    drawn_output["status"] = "completed".into();
    match name {
        "web_search_with_sources" => vec![
            ran(
                "web_search",
                json!({"type": "search", "query": "harbour news"}),
                json!({"status": "completed", "action": searched}),
            ),
            ran("web_search", opened.clone(), json!({"status": "completed", "action": opened})),
        ],
        "code_that_the_provider_runs" => vec![ran(
            "code_interpreter",
            json!({"code": "print(6*7)", "container_id": "cntr_1"}),
            json!({"code": "print(6*7)", "container_id": "cntr_1", "status": "completed",
                "outputs": [{"type": "logs", "logs": "42"}]}),
        )],
        "a_picture" => vec![ran("image_generation", drawn, drawn_output)],
        "mcp_calls" => vec![
            shorten("output-available", json!("✅ https://l.example/1")),
            shorten("output-error", json!("too many links")),
        ],
        "thoughts_around_an_mcp_call" => {
            vec![shorten("output-available", json!("✅ https://l.example/1"))]
        }
        other => panic!("{other}"),
    }
}

/// The items of a fixture.
fn all_items(name: &str) -> Vec<Value> {
    let lines = lines_of(&format!("responses/{name}"));
    let events = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let done = events.filter(|event| event["type"] == "response.output_item.done");
    done.map(|mut event| event["item"].take()).collect()
}

/// The items of a fixture that are not words.
fn items(name: &str) -> Vec<Value> {
    all_items(name).into_iter().filter(is_of_tools).collect()
}

/// Panics over what OpenAI refuses: an item that stands there twice, and thoughts without the item
/// that followed them in their answer, which was one of these fixtures.
fn check_items(provider: &Provider, answers: &[&str]) {
    let answers: Vec<Value> = answers.iter().flat_map(|name| all_items(name)).collect();
    for asked in provider.asked() {
        let sent = asked["input"].as_array().unwrap();
        let ids: Vec<&str> = sent.iter().filter_map(|item| item["id"].as_str()).collect();
        let different: HashSet<&&str> = ids.iter().collect();
        assert_eq!(ids.len(), different.len(), "an item twice: {ids:?}");
        for (at, thought) in sent.iter().enumerate().filter(|(_, item)| is_thought(item)) {
            let place = answers.iter().position(|item| item["id"] == thought["id"]).unwrap();
            let follows = sent.get(at + 1).map(|item| &item["id"]);
            assert_eq!(follows, Some(&answers[place + 1]["id"]), "behind {thought}: {sent:?}");
        }
    }
}

fn is_thought(item: &Value) -> bool {
    item["type"] == "reasoning"
}

fn is_of_tools(item: &Value) -> bool {
    !matches!(item["type"].as_str(), None | Some("message"))
}

/// What of a request is not words.
fn sent_items(provider: &Provider, request: usize) -> Vec<Value> {
    let input = provider.asked()[request]["input"].as_array().unwrap().clone();
    input.into_iter().filter(is_of_tools).collect()
}

const FIXTURES: [&str; 5] = [
    "web_search_with_sources",
    "code_that_the_provider_runs",
    "a_picture",
    "mcp_calls",
    "thoughts_around_an_mcp_call",
];

#[tokio::test]
async fn what_the_provider_runs_is_shown_and_goes_back_as_it_was() {
    for name in FIXTURES {
        let provider = Provider::default();
        for (at, mut page) in both(|| provider.responses()).into_iter().enumerate() {
            provider.then([fixture(&format!("responses/{name}")), fixture("responses/text")]);
            page.send("Go").await;
            assert_eq!(page.error(), None, "{name}");
            assert_eq!(calls(&page), shown(name), "{name}");
            let message = serde_json::to_string(page.messages().last().unwrap()).unwrap();
            assert!(message.matches("iVBORw0KGgo=").count() <= 1, "{message}");
            let of_provider = message.matches(r#""providerExecuted":true"#).count();
            assert_eq!(of_provider, shown(name).len(), "{message}");
            page.send("And now?").await;
            assert_eq!(page.error(), None, "{name}");
            assert_eq!(sent_items(&provider, 2 * at + 1), items(name), "{name}");
        }
        check_items(&provider, &[name]);
    }
}

#[tokio::test]
async fn a_picture_that_the_provider_made_is_a_file_once() {
    let provider = Provider::default();
    for mut page in both(|| provider.responses()) {
        provider.then([fixture("responses/a_picture")]);
        page.send("Draw").await;
        let is_picture = |part: &&Part| matches!(part, Part::File(file) if *file.url == *PICTURE);
        assert_eq!(page.messages()[1].parts.iter().filter(is_picture).count(), 1);
    }
}

const PICTURE: &str = "data:image/png;base64,iVBORw0KGgo=";

/// The history of a picture that the provider made.
async fn drawn(provider: &Provider) -> Vec<Value> {
    provider.then([fixture("responses/a_picture")]);
    let mut page = conversation(agent(RigModel::new(provider.responses())));
    page.send("Draw").await;
    assert_eq!(page.error(), None);
    page.messages().iter().map(|message| serde_json::to_value(message).unwrap()).collect()
}

/// What a model is sent of this history.
async fn sent(provider: &Provider, history: &[Value], model: DynModel<Completion>) -> String {
    let messages: Vec<UiMessage> =
        history.iter().map(|message| UiMessage::parse(&message.to_string()).unwrap()).collect();
    let mut messages = ToModelMessages::new().model_messages(&messages);
    messages.push(ModelMessage::user("And now?"));
    let model = RigModel::new(model).map_request(|request| request.max_tokens(999));
    model.call(ModelRequest::new(messages)).for_each(|_| ready(())).await;
    provider.asked().last().unwrap().to_string()
}

/// What rig says of a picture, and what this crate does.
fn tells(body: &str) -> bool {
    body.contains("image omitted") || body.contains("A file of type image/png")
}

#[tokio::test]
async fn a_picture_is_told_where_what_the_provider_made_of_it_does_not_go_back() {
    let provider = Provider::default();
    let history = drawn(&provider).await;
    let same = sent(&provider, &history, provider.responses()).await;
    assert!(same.contains("image_generation_call") && !tells(&same), "{same}");

    // Another model of OpenAI's said the words.
    let mut mixed = history.clone();
    let parts = mixed[1]["parts"].as_array_mut().unwrap();
    let origin = parts.last_mut().unwrap().pointer_mut("/providerMetadata/rig/origin/model");
    *origin.unwrap() = "another".into();
    let mixed = sent(&provider, &mixed, provider.responses()).await;
    assert!(!mixed.contains("image_generation_call") && tells(&mixed), "{mixed}");

    let chat = sent(&provider, &history, provider.chat()).await;
    assert!(tells(&chat), "{chat}");
    let anthropic = sent(&provider, &history, provider.anthropic(CLAUDE)).await;
    assert!(tells(&anthropic), "{anthropic}");
}

/// OpenAI's, whose own adapter sends a call as a function where it cannot be sent as it was.
#[tokio::test]
async fn an_item_that_is_too_large_to_be_kept_is_a_call_as_any_other() {
    let large = "a".repeat(1_100_000);
    let calls = lines_of("responses/mcp_calls").replace("✅ https://l.example/1", &large);
    let provider = Provider::streaming([as_stream(&calls), fixture("responses/text")]);
    let mut page = conversation(agent(RigModel::new(provider.responses())));
    page.send("Go").await;
    page.send("And now?").await;
    assert_eq!(page.error(), None);
    let sent = sent_items(&provider, 1);
    let kinds: Vec<&str> = sent.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["mcp_list_tools", "function_call", "mcp_call", "function_call_output"]);
}

/// The blocks of the assistant's in a request to Anthropic.
fn blocks(provider: &Provider, request: usize) -> Vec<Value> {
    let messages = provider.asked()[request]["messages"].as_array().unwrap().clone();
    let said = messages.into_iter().filter(|message| message["role"] == "assistant");
    said.flat_map(|message| message["content"].as_array().unwrap().clone()).collect()
}

/// The blocks of a fixture, each as a whole.
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
async fn what_anthropic_runs_is_shown_and_goes_back_block_by_block() {
    let provider = Provider::default();
    let found = json!([{
        "type": "web_search_result", "url": "https://news.example/a", "title": "Harbour reopens",
        "page_age": "May 2, 2026",
    }]);
    let url = json!({"url": "https://news.example/a"});
    for (at, mut page) in both(|| provider.anthropic(CLAUDE)).into_iter().enumerate() {
        provider.then([fixture("anthropic/web_search"), fixture("anthropic/text")]);
        page.send("News?").await;
        assert_eq!(page.error(), None);
        assert_eq!(
            calls(&page),
            [
                ran("web_search", json!({"query": "harbour news"}), found.clone()),
                became(
                    "web_search",
                    json!({"query": "tides"}),
                    "output-error",
                    json!("max_uses_exceeded")
                ),
                ran("mcp.links.shorten", url.clone(), json!("✅ https://l.example/1")),
            ]
        );
        assert_eq!(held(&page).text, "I look.It reopened.");
        page.send("And now?").await;
        assert_eq!(page.error(), None);
        assert_eq!(blocks(&provider, 2 * at + 1), blocks_of("web_search"));
    }
}

#[tokio::test]
async fn the_container_goes_back_from_the_end_of_an_answer() {
    let provider = Provider::default();
    for (at, mut page) in both(|| provider.anthropic(CLAUDE)).into_iter().enumerate() {
        let text = r#""content":[],"container":{"id":"container_02"}"#;
        let text = lines_of("anthropic/text").replace(r#""content":[]"#, text);
        provider.then([as_stream(&text), fixture("anthropic/text")]);
        page.send("Go").await;
        page.send("And now?").await;
        assert_eq!(page.error(), None);
        assert_eq!(provider.asked()[2 * at + 1]["container"], "container_02");
    }
}

#[tokio::test]
async fn code_of_the_providers_that_calls_a_tool_here_ends_in_the_next_answer() {
    let provider = Provider::default();
    for (at, page) in both(|| provider.anthropic(CLAUDE)).into_iter().enumerate() {
        let tool = if at == 0 { "weather" } else { "look" };
        let first = lines_of("anthropic/code_that_calls_a_tool")
            .replace("\"weather\"", &json!(tool).to_string());
        provider.then([
            as_stream(&first),
            fixture("anthropic/code_that_ran"),
            fixture("anthropic/text"),
        ]);
        let mut page = page;
        page.send("Go").await;
        assert_eq!(page.error(), None);
        let outcome = json!({"type": "code_execution_result", "stdout": "Faro: sun\n", "stderr": "",
            "return_code": 0, "content": []});
        let code = json!({"code": "print(await weather())"});
        assert_eq!(calls(&page)[0], ran("code_execution", code, outcome));
        assert_eq!((&*calls(&page)[1].0, &*calls(&page)[1].2), (tool, "output-available"));
        assert_eq!(provider.asked()[3 * at + 1]["container"], "container_01");
        page.send("And now?").await;
        assert_eq!(page.error(), None);
        assert_eq!(provider.asked()[3 * at + 2]["container"], "container_01");
        let mut expected = blocks_of("code_that_calls_a_tool");
        expected[2]["name"] = tool.into();
        expected.extend(blocks_of("code_that_ran"));
        assert_eq!(blocks(&provider, 3 * at + 2), expected);
    }
}

#[tokio::test]
async fn code_of_the_providers_goes_on_when_a_call_it_made_was_approved() {
    let first = lines_of("anthropic/code_that_calls_a_tool").replace("\"weather\"", "\"look\"");
    let answers = [as_stream(&first), fixture("anthropic/code_that_ran")];
    let provider = Provider::streaming(answers);
    let builder = AgentBuilder::new(provider.anthropic(CLAUDE)).max_tokens(999);
    let rig = built(builder.default_max_turns(5), &Done::default());
    let mut page = page(RigAgent::new(rig).needs_approval("look"));
    page.send("Go").await;
    page.approve("look").await;
    // A client does not go on by itself while a call is open.
    page.submit().await;
    assert_eq!(page.error(), None);
    let expected = blocks_of("code_that_calls_a_tool");
    let sent = blocks(&provider, 1);
    assert_eq!((sent.len(), &sent[1]), (3, &expected[1]));
    assert_eq!(provider.asked()[1]["container"], "container_01");
    assert_eq!(calls(&page)[0].2, "output-available");
}

#[tokio::test]
async fn a_picture_of_geminis_goes_back_with_its_signature() {
    let provider = Provider::default();
    for (at, mut page) in both(|| provider.gemini()).into_iter().enumerate() {
        // Here nothing stands behind the last event.
        let answers = ["gemini/picture", "gemini/text"].map(fixture);
        provider.then(answers.map(|answer| answer.replace("data: [DONE]\n\n", "")));
        page.send("Draw").await;
        assert_eq!(page.error(), None);
        let is_picture = |part: &&Part| matches!(part, Part::File(file) if *file.url == *PICTURE);
        assert_eq!(page.messages()[1].parts.iter().filter(is_picture).count(), 1);
        let message = serde_json::to_string(&page.messages()[1]).unwrap();
        assert_eq!(message.matches("iVBORw0KGgo=").count(), 1, "{message}");
        page.send("Bluer").await;
        assert_eq!(page.error(), None);
        assert_eq!(held(&page).text, "It is bluer.");
        let contents = &provider.asked()[2 * at + 1]["contents"];
        let parts = contents[1]["parts"].as_array().unwrap();
        let picture = json!({
            "inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="},
            "thoughtSignature": "c2lnbmVkIGJ5IG5vYm9keQ==",
        });
        assert!(parts.contains(&picture), "{contents}");
    }
}
