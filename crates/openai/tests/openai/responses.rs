//! Responses: reasoning, tools of the provider, and questions that it asks before it runs one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::{Request, StatusCode};
use futures::StreamExt;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use test_support::browser::{Forecast, Held, agent, app, conversation, over};
use tower::ServiceExt;
use ui_message_stream::Json;
use ui_message_stream::agent::{Agent, Tool, ToolError};
use ui_message_stream::message::Part;
use ui_message_stream::model::{Model, ModelEvent, ModelMessage, ModelRequest};
use ui_message_stream::testing::Conversation;
use ui_message_stream_openai::{Endpoint, Responses};

use super::chat_completions::asked_for;
use super::provider::{Provider, as_stream, fixture, lines_of};

pub(crate) fn model(provider: &Provider) -> Responses {
    let endpoint = Endpoint::new(&provider.address).unwrap().with_key("sk-test").unwrap();
    Responses::new(endpoint, "a-model")
}

pub(crate) async fn provider(fixtures: &[&str]) -> Provider {
    Provider::streaming(fixtures.iter().map(|name| fixture(&format!("responses/{name}")))).await
}

pub(crate) fn held(browser: &Conversation<'_>) -> Held {
    assert_eq!(browser.error(), None);
    Held::of(browser.messages().last().unwrap())
}

pub(crate) const THE_TEXT: &str = "All is “calm” 🚢.";

#[tokio::test]
async fn text_arrives_whole_and_the_request_is_what_the_api_takes() {
    let provider = provider(&["text", "text"]).await;
    let mut browser = conversation(agent(model(&provider)));
    browser.send("How is it?").await;
    assert_eq!(held(&browser), Held { text: THE_TEXT.to_owned(), ..Held::default() });
    browser.send("And now?").await;
    let asked = &provider.asked()[1];
    assert_eq!(asked.uri, "/v1/responses");
    let body = &asked.body;
    assert_eq!((&body["model"], &body["store"]), (&json!("a-model"), &json!(false)));
    assert_eq!((&body["stream"], &body["instructions"]), (&json!(true), &json!("Be brief.")));
    assert_eq!(
        body["input"],
        json!([
            {"role": "user", "content": [{"type": "input_text", "text": "How is it?"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": THE_TEXT}]},
            {"role": "user", "content": [{"type": "input_text", "text": "And now?"}]},
        ])
    );
    let tool = &body["tools"][0];
    assert_eq!((&tool["type"], &tool["name"]), (&json!("function"), &json!("weather")));
    assert_eq!(tool["parameters"]["properties"]["city"]["type"], "string");
}

#[tokio::test]
async fn an_answer_in_a_structure_is_asked_for_beside_what_the_host_sets() {
    let provider = provider(&["text"]).await;
    let model =
        model(&provider).with_field("text", &Json::parse(r#"{"verbosity":"low"}"#).unwrap());
    conversation(agent(model).with_output::<Forecast>()).send("How is it?").await;
    let mut format = asked_for();
    format["type"] = "json_schema".into();
    assert_eq!(provider.asked()[0].body["text"], json!({"verbosity": "low", "format": format}));
}

#[tokio::test]
async fn an_answer_in_a_structure_is_not_asked_for_where_the_host_leaves_that_out() {
    let provider = provider(&["text"]).await;
    let model = model(&provider).with_field("text", &Json::null());
    let mut browser = conversation(agent(model).with_output::<Forecast>());
    browser.send("How is it?").await;
    assert_eq!(provider.asked()[0].body.get("text"), None);
    assert_eq!(browser.error(), Some("The answer is not in the form that it was to have."));
}

#[tokio::test]
async fn a_call_that_was_cut_off_before_its_arguments_does_not_run() {
    let provider = provider(&["a_call_cut_off_before_its_arguments", "text"]).await;
    let mut browser = conversation(agent(model(&provider)));
    browser.send("Tides?").await;
    let held = held(&browser);
    let [(tool, _, state, said)] = &held.calls[..] else { panic!("{held:?}") };
    assert_eq!((&**tool, &**state), ("tides", "output-error"));
    assert!(said.as_str().unwrap().starts_with("the input is not usable"), "{said}");
    assert_eq!(provider.asked()[1].body["input"][2]["output"], *said);
}

#[tokio::test]
async fn a_picture_is_shown_and_told_in_words_where_nothing_is_stored() {
    let provider = provider(&["a_picture", "text"]).await;
    let mut browser = conversation(agent(model(&provider)));
    browser.send("Draw").await;
    let shown = |part: &Part| matches!(part, Part::File(file) if *file.url == *PICTURE);
    assert!(browser.messages()[1].parts.iter().any(shown));
    browser.send("Bluer").await;
    assert_eq!(held(&browser).text, THE_TEXT);
    let input = provider.asked()[1].body["input"].as_array().unwrap().clone();
    let [call, told] = &input[1..3] else { panic!("{input:?}") };
    assert_eq!((&call["type"], &call["call_id"]), (&json!("function_call"), &json!("ig_1")));
    assert_eq!((&call["name"], &told["call_id"]), (&json!("image_generation"), &json!("ig_1")));
    assert!(told["output"].as_str().unwrap().contains("A calm harbour."), "{told}");
    assert!(!input.iter().any(|item| item["type"] == "image_generation_call"), "{input:?}");
}

const PICTURE: &str = "data:image/png;base64,iVBORw0KGgo=";

#[tokio::test]
async fn what_the_provider_runs_is_shown_with_its_results_and_sources() {
    let provider =
        provider(&["web_search_with_sources", "code_that_the_provider_runs", "text"]).await;
    let search = Json::parse(r#"{"type":"web_search"}"#).unwrap();
    let model = model(&provider).with_hosted_tool(&search);
    let mut browser = conversation(agent(model.with_include("web_search_call.action.sources")));
    browser.send("News?").await;
    let news = held(&browser);
    assert_eq!(news.text, "The harbour reopened today.");
    assert_eq!(news.sources, ["https://news.example/a?utm_source=x"]);
    let sources = json!([
        {"type": "url", "url": "https://news.example/a"},
        {"type": "url", "url": "https://news.example/b"},
    ]);
    let action = json!({"type": "search", "query": "harbour news", "sources": sources});
    let opened = json!({"type": "open_page", "url": "https://news.example/a"});
    let call = |name: &str, input: &Value, output: Value| {
        (name.to_owned(), input.clone(), "output-available".to_owned(), output)
    };
    assert_eq!(
        news.calls,
        [
            call(
                "web_search",
                &json!({"type": "search", "query": "harbour news"}),
                json!({"status": "completed", "action": action}),
            ),
            call("web_search", &opened, json!({"status": "completed", "action": opened})),
        ]
    );
    browser.send("6 * 7?").await;
    let logs = json!([{"type": "logs", "logs": "42"}]);
    let code = json!({"code": "print(6*7)", "container_id": "cntr_1"});
    let mut output = code.clone();
    output["status"] = "completed".into();
    output["outputs"] = logs;
    assert_eq!(held(&browser).calls, [call("code_interpreter", &code, output)]);
    browser.send("Thanks").await;
    let body = &provider.asked()[2].body;
    let tools = body["tools"].as_array().unwrap();
    assert_eq!(tools.last(), Some(&json!({"type": "web_search"})));
    assert_eq!(body["include"], json!(["web_search_call.action.sources"]));
    let input = body["input"].as_array().unwrap();
    // The thoughts before it cannot go back.
    let searched = action.to_string();
    let [call, told] = &input[1..3] else { panic!("{input:?}") };
    assert_eq!((&call["type"], &call["call_id"]), (&json!("function_call"), &json!("ws_1")));
    assert_eq!((&call["name"], &told["call_id"]), (&json!("web_search"), &json!("ws_1")));
    assert!(told["output"].as_str().unwrap().contains(&searched), "{told}");
    assert!(!input.iter().any(|item| item["type"] == "web_search_call"), "{input:?}");
    let code = input.iter().find(|item| item["type"] == "code_interpreter_call").unwrap();
    assert_eq!(code["outputs"], json!([{"type": "logs", "logs": "42"}]));
    assert!(!input.iter().any(|item| item["type"] == "reasoning"), "thoughts without content");
}

/// A stream whose server calls an item something else in every event, as Copilot's does.
fn renamed(name: &str) -> String {
    let (lines, mut count) = (lines_of(name), 0);
    let renamed = lines.lines().map(|line| {
        let mut event: Value = serde_json::from_str(line).unwrap();
        let mut rename = |id: &mut Value| {
            count += 1;
            *id = json!(format!("{}-{count}", id.as_str().unwrap()));
        };
        event.get_mut("item_id").map(&mut rename);
        event.get_mut("item").and_then(|item| item.get_mut("id")).map(&mut rename);
        event.to_string()
    });
    as_stream(&renamed.collect::<Vec<String>>().join("\n"))
}

#[tokio::test]
async fn an_item_whose_id_changes_with_every_event_is_one() {
    let fixtures = ["reasoning_and_a_function_call", "web_search_with_sources"];
    let fixtures = fixtures.map(|name| renamed(&format!("responses/{name}")));
    let provider = Provider::streaming(fixtures).await;
    let mut browser = conversation(agent(model(&provider).with_reasoning("low")));
    browser.send("How is the weather?").await;
    let said = held(&browser);
    assert_eq!((&*said.text, said.sources.len()), ("The harbour reopened today.", 1));
    let tools: Vec<&str> = said.calls.iter().map(|(tool, ..)| &**tool).collect();
    assert_eq!(tools, ["weather", "web_search", "web_search"]);
    let parts = &browser.messages().last().unwrap().parts;
    let texts = parts.iter().filter(|part| matches!(part, Part::Text(_))).count();
    let thoughts = parts.iter().filter(|part| matches!(part, Part::Reasoning(_))).count();
    assert_eq!((texts, thoughts), (1, 3), "two thoughts, and one that says nothing");
    let input = provider.asked()[1].body["input"].as_array().unwrap().clone();
    assert_eq!(input[1]["summary"].as_array().unwrap().len(), 2);
    assert_eq!(input[1]["id"], "rs_1-1");
}

#[tokio::test]
async fn a_message_that_says_nothing_has_no_text() {
    let item = json!({"id": "msg_0", "type": "message", "content": []});
    let item = |kind: &str| json!({"type": kind, "output_index": 0, "item": item});
    let completed = json!({"type": "response.completed", "response": {"id": "resp_0"}});
    let events = ["response.output_item.added", "response.output_item.done"].map(item);
    let lines: Vec<String> = events.iter().chain([&completed]).map(Value::to_string).collect();
    let provider = Provider::streaming([as_stream(&lines.join("\n"))]).await;
    let request = ModelRequest::new(vec![ModelMessage::user("Hello")]);
    let said: Vec<_> = model(&provider).call(request).collect().await;
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(matches!(&said[0], Ok(ModelEvent::Finished(_))), "{said:?}");
}

const ARGUMENTS: &str = r#"{"url":"https://example.com/","max_clicks":100}"#;

fn shorten(state: &str, output: Value) -> (String, Value, String, Value) {
    let input = serde_json::from_str(ARGUMENTS).unwrap();
    ("mcp.links.shorten".to_owned(), input, state.to_owned(), output)
}

#[tokio::test]
async fn calls_of_a_tool_server_have_their_outputs_and_failures() {
    let provider = provider(&["mcp_calls", "text"]).await;
    let mut browser = conversation(agent(model(&provider)));
    browser.send("Shorten twice").await;
    let held = held(&browser);
    let calls = [
        shorten("output-available", json!("✅ https://l.example/1")),
        shorten("output-error", json!("too many links")),
    ];
    assert_eq!(held.calls, calls);
    assert_eq!(held.text, "Done and not.");
    browser.send("Thanks").await;
    let input = &provider.asked()[1].body["input"];
    let input = input.as_array().unwrap().clone();
    // An `mcp_call` would be taken, and its output dropped.
    let pair = |id: &str, output: &str| {
        [
            json!({"type": "function_call", "call_id": id, "name": "mcp_links_shorten",
                "arguments": ARGUMENTS}),
            json!({"type": "function_call_output", "call_id": id, "output": output}),
        ]
    };
    assert_eq!(input[1..3], pair("mcp_1", "✅ https://l.example/1"));
    assert_eq!(input[3..5], pair("mcp_2", "too many links"));
}

#[tokio::test]
async fn the_name_of_a_tool_servers_call_is_one_that_a_function_may_have() {
    let strange = fixture("responses/mcp_calls")
        .replace(r#""links""#, r#""my links/öffentlich""#)
        .replace(r#""shorten""#, &format!(r#""{}""#, "shorten.it ".repeat(9)));
    let provider = Provider::streaming([strange, fixture("responses/text")]).await;
    let mut browser = conversation(agent(model(&provider)));
    browser.send("Shorten twice").await;
    browser.send("Thanks").await;
    assert_eq!(held(&browser).text, THE_TEXT);
    let input = provider.asked()[1].body["input"].as_array().unwrap().clone();
    let names: Vec<&str> = input.iter().filter_map(|item| item["name"].as_str()).collect();
    assert_eq!(names.len(), 2);
    let is_taken = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    assert!(names.iter().all(|name| name.chars().all(is_taken) && name.len() <= 64), "{names:?}");
}

/// A chat that a provider asked something, with a tool here of the same name, which must not run.
async fn asked(then: &str) -> (Provider, Router, Conversation<'static>, Arc<AtomicUsize>) {
    let provider = provider(&["mcp_approval_asked", then, "text"]).await;
    let ran = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&ran);
    let own =
        Tool::new("mcp_links_shorten", move |_: std::collections::BTreeMap<String, Anything>| {
            counter.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, ToolError>("it ran here") }
        });
    let app = app(Agent::new(model(&provider)).tool(own));
    let mut browser = over(app.clone());
    browser.send("Shorten it").await;
    let held = held(&browser);
    assert_eq!(held.calls, [shorten("approval-requested", Value::Null)]);
    let asks = |part: &Part| matches!(part, Part::Data(data) if &*data.name == "approval");
    assert!(browser.messages()[1].parts.iter().any(asks), "the person sees what is asked");
    assert_eq!(provider.asked().len(), 1);
    (provider, app, browser, ran)
}

/// Anything at all.
#[derive(PartialEq, serde::Deserialize, schemars::JsonSchema)]
#[serde(transparent)]
struct Anything(Value);

fn question() -> Value {
    json!({
        "type": "mcp_approval_request", "id": "mcpr_1", "server_label": "links", "name": "shorten",
        "arguments": ARGUMENTS,
    })
}

#[tokio::test]
async fn a_yes_is_forwarded_once_and_the_later_call_is_the_approved_ones_output() {
    let (provider, app, mut browser, ran) = asked("mcp_approval_approved").await;
    browser.approve("mcp.links.shorten").await;
    let held_now = held(&browser);
    assert_eq!(held_now.calls, [shorten("output-available", json!("✅ https://l.example/9"))]);
    assert_eq!(held_now.text, "Here: https://l.example/9");
    let input = provider.asked()[1].body["input"].as_array().unwrap().clone();
    let yes =
        json!({"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": true});
    assert_eq!(input[1..], [question(), yes]);

    // The same request again, as a browser sends it that heard no answer: nothing is forwarded.
    let request = Request::post("/api/chat").header("host", "localhost");
    let request = request.header("content-type", "application/json");
    let again = axum::body::Body::from(browser.requests().last().unwrap().clone());
    let again = request.body(again).unwrap();
    let again = app.oneshot(again).await.unwrap().into_body().collect().await.unwrap();
    let again = String::from_utf8(again.to_bytes().to_vec()).unwrap();
    assert!(again.contains(r#""output":"✅ https://l.example/9""#), "{again}");
    assert!(!again.contains("errorText"), "{again}");
    assert_eq!(provider.asked().len(), 2);

    browser.send("Thanks").await;
    assert_eq!(held(&browser).text, THE_TEXT);
    let later = provider.asked()[2].body["input"].to_string();
    assert!(!later.contains("mcp_approval"), "it is over: {later}");
    assert!(later.contains("https://l.example/9"), "{later}");
    assert_eq!(ran.load(Ordering::SeqCst), 0);
}

/// A proxy says the same of a request that was lost, and of an answer.
#[tokio::test]
async fn a_provider_that_may_have_run_something_is_not_asked_again() {
    let answers = [
        (StatusCode::SERVICE_UNAVAILABLE, "reset before headers".to_owned()),
        (StatusCode::OK, fixture("responses/text")),
    ];
    for (hosted, asked) in [(true, 1), (false, 2)] {
        let provider = Provider::answering(answers.clone()).await;
        let search = Json::parse(r#"{"type": "web_search"}"#).unwrap();
        let model = model(&provider);
        let model = if hosted { model.with_hosted_tool(&search) } else { model };
        let mut browser = conversation(agent(model));
        browser.send("How is it?").await;
        assert_eq!((browser.error().is_some(), provider.asked().len()), (hosted, asked));
    }
}

#[tokio::test]
async fn a_no_is_forwarded_with_its_reason() {
    let (provider, _, mut browser, ran) = asked("mcp_approval_denied").await;
    browser.deny("mcp.links.shorten", "not that one").await;
    let held_now = held(&browser);
    assert_eq!(held_now.calls, [shorten("output-denied", Value::Null)]);
    assert_eq!(held_now.text, "It was not approved.");
    let no = json!({
        "type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": false,
        "reason": "not that one",
    });
    let input = provider.asked()[1].body["input"].as_array().unwrap().clone();
    assert_eq!(input[1..], [question(), no.clone()]);
    browser.send("Thanks").await;
    let input = provider.asked()[2].body["input"].as_array().unwrap().clone();
    assert_eq!(input[1..3], [question(), no]);
    assert_eq!(ran.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn who_writes_on_instead_of_answering_has_not_approved() {
    let (provider, _, mut browser, ran) = asked("text").await;
    browser.send("Never mind").await;
    assert_eq!(held(&browser).text, THE_TEXT);
    let input = provider.asked()[1].body["input"].as_array().unwrap().clone();
    assert_eq!(input[1], question());
    assert_eq!(input[2]["type"], "mcp_approval_response");
    assert_eq!(input[2]["approve"], false);
    assert_eq!(ran.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_tool_search_of_the_client_is_a_call_of_a_tool_here() {
    let provider = provider(&["tool_search_by_the_client", "text"]).await;
    let search =
        Tool::new("tool_search", async |_: std::collections::BTreeMap<String, Anything>| {
            Ok::<_, ToolError>(json!({"tools": [{"type": "function", "name": "weather"}]}))
        });
    let mut browser = conversation(Agent::new(model(&provider)).tool(search));
    browser.send("Weather?").await;
    assert_eq!(held(&browser).calls[0].1, json!({"goal": "weather"}));
    let input = provider.asked()[1].body["input"].as_array().unwrap().clone();
    let found = json!([{"type": "function", "name": "weather"}]);
    assert_eq!(
        input[1..],
        [
            json!({"type": "tool_search_call", "call_id": "call_s", "execution": "client",
                "status": "completed", "arguments": {"goal": "weather"}}),
            json!({"type": "tool_search_output", "call_id": "call_s", "execution": "client",
                "status": "completed", "tools": found}),
        ]
    );
}

#[tokio::test]
async fn the_namespace_of_a_function_goes_back_with_its_call() {
    let found = fixture("responses/reasoning_and_a_function_call")
        .replace(r#""name":"weather""#, r#""name":"weather","namespace":"sky""#);
    let provider = Provider::streaming([found, fixture("responses/text")]).await;
    let mut browser = conversation(agent(model(&provider)));
    browser.send("Weather?").await;
    assert_eq!(held(&browser).calls[0].3, "Lisbon: sun");
    let call = &provider.asked()[1].body["input"][1];
    assert_eq!((&call["name"], &call["namespace"]), (&json!("weather"), &json!("sky")));
}

#[tokio::test]
async fn a_response_that_fails_or_is_cut_is_an_error_and_a_short_one_is_not() {
    let whole = lines_of("responses/text");
    let begun: Vec<&str> = whole.lines().take(5).collect();
    let stream = |last: Value| format!("data: {}\n\ndata: {last}\n\n", begun.join("\n\ndata: "));
    let error = json!({"code": "server_error", "message": "a secret"});
    for last in [
        json!({"error": error}),
        json!({"type": "response.failed", "response": {"status": "failed", "error": error}}),
        json!({"type": "error", "code": "server_error", "message": "a secret"}),
        json!({"type": "response.in_progress"}),
    ] {
        let provider = Provider::streaming([stream(last)]).await;
        let mut browser = conversation(agent(model(&provider)));
        browser.send("Hello").await;
        assert_eq!(browser.error(), Some("An error occurred."));
        assert_eq!(Held::of(browser.messages().last().unwrap()).text, "All is ");
    }
    let details = json!({"reason": "max_output_tokens"});
    let last = json!({"type": "response.incomplete", "response": {"incomplete_details": details}});
    let provider = Provider::streaming([stream(last)]).await;
    let mut browser = conversation(agent(model(&provider)));
    browser.send("Hello").await;
    assert_eq!(held(&browser).text, "All is ");
    let last = serde_json::to_value(browser.last_chunks().last().unwrap()).unwrap();
    assert_eq!(last["finishReason"], "length");
}

#[test]
fn what_a_tool_server_is_shown_is_never_shown() {
    let tool = r#"{"type":"mcp","server_label":"links","authorization":"secret-1",
        "headers":{"x-key":"secret-2"}}"#;
    let model = Responses::new(Endpoint::openai("sk-secret").unwrap(), "a-model")
        .with_hosted_tool(&Json::parse(tool).unwrap())
        .with_field("metadata", &Json::parse(r#"{"a":"secret"}"#).unwrap());
    let shown = format!("{model:?}");
    assert!(shown.contains("mcp") && !shown.contains("secret"), "{shown}");
}
