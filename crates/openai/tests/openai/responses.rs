//! The Responses API: text, tools that the provider executes, and its approval requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::{Request, StatusCode};
use chat_test_support::browser::{Forecast, agent, app, asked, conversation, over};
use futures::StreamExt;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use test_support::message_contents::MessageContents;
use tower::ServiceExt;
use ui_message_stream::message::Part;
use ui_message_stream::model::{Model, ModelEvent, ModelMessage, ModelRequest};
use ui_message_stream::testing::Conversation;
use ui_message_stream::{AgentEvent, Json, UserText};
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_openai::{Endpoint, Responses};

use super::chat_completions::forecast_format;
use super::provider::{Provider, as_stream, fixture, lines_of};

pub(crate) fn model(provider: &Provider) -> Responses {
    let endpoint = Endpoint::new(&provider.address).unwrap().with_key("sk-test").unwrap();
    Responses::new(endpoint, "a-model")
}

pub(crate) async fn provider(fixtures: &[&str]) -> Provider {
    Provider::with_streams(fixtures.iter().map(|name| fixture(&format!("responses/{name}")))).await
}

/// Returns the contents of the last message, and asserts that there is no error.
pub(crate) fn last_contents(browser: &Conversation<'_>) -> MessageContents {
    assert_eq!(browser.error(), None);
    MessageContents::of(browser.messages().last().unwrap())
}

pub(crate) const THE_TEXT: &str = "All is “calm” 🚢.";

#[tokio::test]
async fn text_arrives_complete_and_the_request_has_the_form_of_the_api() {
    let provider = provider(&["text", "text"]).await;
    let mut browser = asked(model(&provider), "How is it?").await;
    assert_eq!(
        last_contents(&browser),
        MessageContents { text: THE_TEXT.to_owned(), ..MessageContents::default() }
    );
    browser.send("And now?").await;
    let request = &provider.requests()[1];
    assert_eq!(request.uri, "/v1/responses");
    let body = &request.body;
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
async fn structured_output_is_requested_together_with_the_fields_of_the_host() {
    let provider = provider(&["text"]).await;
    let model =
        model(&provider).with_field("text", &Json::parse(r#"{"verbosity":"low"}"#).unwrap());
    conversation(agent(model).with_output::<Forecast>()).send("How is it?").await;
    let mut format = forecast_format();
    format["type"] = "json_schema".into();
    assert_eq!(provider.requests()[0].body["text"], json!({"verbosity": "low", "format": format}));
}

#[tokio::test]
async fn structured_output_is_not_requested_if_the_host_removes_the_field() {
    let provider = provider(&["text", "text"]).await;
    let model = model(&provider).with_field("text", &Json::null());
    let mut browser = conversation(agent(model).with_output::<Forecast>());
    browser.send("How is it?").await;
    assert_eq!(provider.requests()[0].body.get("text"), None);
    assert_eq!(browser.error(), Some("The answer is not in the form that it was to have."));
}

#[tokio::test]
async fn a_call_that_was_cut_off_before_its_arguments_does_not_run() {
    let provider = provider(&["a_call_cut_off_before_its_arguments", "text"]).await;
    let browser = asked(model(&provider), "Tides?").await;
    let contents = last_contents(&browser);
    let [(tool, _, state, error)] = &contents.calls[..] else { panic!("{contents:?}") };
    assert_eq!((&**tool, &**state), ("tides", "output-error"));
    assert_eq!(*error, UserText::NotStarted.in_english());
    assert_eq!(provider.requests()[1].body["input"][2]["output"], *error);
}

#[tokio::test]
async fn a_generated_image_is_shown_and_is_sent_back_as_text_if_nothing_is_stored() {
    let provider = provider(&["a_picture", "text"]).await;
    let mut browser = asked(model(&provider), "Draw").await;
    let is_picture = |part: &Part| matches!(part, Part::File(file) if *file.url == *PICTURE);
    assert!(browser.messages()[1].parts.iter().any(is_picture));
    browser.send("Bluer").await;
    assert_eq!(last_contents(&browser).text, THE_TEXT);
    let input = provider.requests()[1].body["input"].as_array().unwrap().clone();
    let [call, output] = &input[1..3] else { panic!("{input:?}") };
    assert_eq!((&call["type"], &call["call_id"]), (&json!("function_call"), &json!("ig_1")));
    assert_eq!((&call["name"], &output["call_id"]), (&json!("image_generation"), &json!("ig_1")));
    assert!(output["output"].as_str().unwrap().contains("A calm harbour."), "{output}");
    assert!(!input.iter().any(|item| item["type"] == "image_generation_call"), "{input:?}");
}

const PICTURE: &str = "data:image/png;base64,iVBORw0KGgo=";

#[tokio::test]
async fn provider_executed_calls_are_shown_with_their_outputs_and_sources() {
    let provider =
        provider(&["web_search_with_sources", "code_that_the_provider_runs", "text"]).await;
    let search = Json::parse(r#"{"type":"web_search"}"#).unwrap();
    let model = model(&provider).with_hosted_tool(&search);
    let mut browser = asked(model.with_include("web_search_call.action.sources"), "News?").await;
    let news = last_contents(&browser);
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
    assert_eq!(last_contents(&browser).calls, [call("code_interpreter", &code, output)]);
    browser.send("Thanks").await;
    let body = &provider.requests()[2].body;
    let tools = body["tools"].as_array().unwrap();
    assert_eq!(tools.last(), Some(&json!({"type": "web_search"})));
    assert_eq!(body["include"], json!(["web_search_call.action.sources"]));
    let input = body["input"].as_array().unwrap();
    // The reasoning before the search has no encrypted content and cannot be sent back.
    let search_action = action.to_string();
    let [call, output] = &input[1..3] else { panic!("{input:?}") };
    assert_eq!((&call["type"], &call["call_id"]), (&json!("function_call"), &json!("ws_1")));
    assert_eq!((&call["name"], &output["call_id"]), (&json!("web_search"), &json!("ws_1")));
    assert!(output["output"].as_str().unwrap().contains(&search_action), "{output}");
    assert!(!input.iter().any(|item| item["type"] == "web_search_call"), "{input:?}");
    let code = input.iter().find(|item| item["type"] == "code_interpreter_call").unwrap();
    assert_eq!(code["outputs"], json!([{"type": "logs", "logs": "42"}]));
    assert!(
        !input.iter().any(|item| item["type"] == "reasoning"),
        "reasoning without encrypted content is not sent"
    );
}

#[tokio::test]
async fn a_text_names_the_web_pages_that_it_cites() {
    let provider = provider(&["web_search_with_sources", "web_search_with_sources"]).await;
    for model in [model(&provider), model(&provider).with_stored_responses()] {
        let events = model
            .call(ModelRequest::new(vec![ModelMessage::user("News?")]))
            .collect::<Vec<_>>()
            .await;
        let ends = events.iter().filter_map(|event| match event {
            Ok(ModelEvent::Event(AgentEvent::Chunk(chunk))) => serde_json::to_value(chunk).ok(),
            _ => None,
        });
        let ends: Vec<Value> = ends.filter(|chunk| chunk["type"] == "text-end").collect();
        let [end] = &ends[..] else { panic!("{events:?}") };
        let source = json!({
            "type": "source", "sourceType": "url", "id": "msg_w:0",
            "url": "https://news.example/a?utm_source=x", "title": "Harbour reopens",
        });
        let cited = json!([{"source": source, "startIndex": 4, "endIndex": 20}]);
        assert_eq!(end["citations"], cited, "{end}");
    }
}

/// Returns a stream in which the id of an item differs in every event, as in the streams of
/// Copilot.
fn with_changing_item_ids(name: &str) -> String {
    let (lines, mut count) = (lines_of(name), 0);
    let events = lines.lines().map(|line| {
        let mut event: Value = serde_json::from_str(line).unwrap();
        let mut rename = |id: &mut Value| {
            count += 1;
            *id = json!(format!("{}-{count}", id.as_str().unwrap()));
        };
        event.get_mut("item_id").map(&mut rename);
        event.get_mut("item").and_then(|item| item.get_mut("id")).map(&mut rename);
        event.to_string()
    });
    as_stream(&events.collect::<Vec<String>>().join("\n"))
}

#[tokio::test]
async fn an_item_whose_id_changes_in_every_event_is_one_part() {
    let fixtures = ["reasoning_and_a_function_call", "web_search_with_sources"];
    let fixtures = fixtures.map(|name| with_changing_item_ids(&format!("responses/{name}")));
    let provider = Provider::with_streams(fixtures).await;
    let browser = asked(model(&provider).with_reasoning("low"), "How is the weather?").await;
    let contents = last_contents(&browser);
    assert_eq!((&*contents.text, contents.sources.len()), ("The harbour reopened today.", 1));
    let tools: Vec<&str> = contents.calls.iter().map(|(tool, ..)| &**tool).collect();
    assert_eq!(tools, ["weather", "web_search", "web_search"]);
    let parts = &browser.messages().last().unwrap().parts;
    let texts = parts.iter().filter(|part| matches!(part, Part::Text(_))).count();
    let reasoning = parts.iter().filter(|part| matches!(part, Part::Reasoning(_))).count();
    assert_eq!((texts, reasoning), (1, 3), "two reasoning parts with text, and an empty one");
    let input = provider.requests()[1].body["input"].as_array().unwrap().clone();
    assert_eq!(input[1]["summary"].as_array().unwrap().len(), 2);
    assert_eq!(input[1]["id"], "rs_1-1");
}

#[tokio::test]
async fn a_message_without_content_emits_no_text_events() {
    let item = json!({"id": "msg_0", "type": "message", "content": []});
    let item = |kind: &str| json!({"type": kind, "output_index": 0, "item": item});
    let completed = json!({"type": "response.completed", "response": {"id": "resp_0"}});
    let item_events = ["response.output_item.added", "response.output_item.done"].map(item);
    let lines: Vec<String> = item_events.iter().chain([&completed]).map(Value::to_string).collect();
    let provider = Provider::with_streams([as_stream(&lines.join("\n"))]).await;
    let request = ModelRequest::new(vec![ModelMessage::user("Hello")]);
    let events: Vec<_> = model(&provider).call(request).collect().await;
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(matches!(&events[0], Ok(ModelEvent::Finished(_))), "{events:?}");
}

const ARGUMENTS: &str = r#"{"url":"https://example.com/","max_clicks":100}"#;

fn shorten_call(state: &str, output: Value) -> (String, Value, String, Value) {
    let input = serde_json::from_str(ARGUMENTS).unwrap();
    ("mcp.links.shorten".to_owned(), input, state.to_owned(), output)
}

#[tokio::test]
async fn calls_of_an_mcp_server_have_outputs_or_errors_and_are_sent_back_as_functions() {
    let provider = provider(&["mcp_calls", "text"]).await;
    let mut browser = asked(model(&provider), "Shorten twice").await;
    let contents = last_contents(&browser);
    let calls = [
        shorten_call("output-available", json!("✅ https://l.example/1")),
        shorten_call("output-error", json!("too many links")),
    ];
    assert_eq!(contents.calls, calls);
    assert_eq!(contents.text, "Done and not.");
    browser.send("Thanks").await;
    let input = &provider.requests()[1].body["input"];
    let input = input.as_array().unwrap().clone();
    // The provider would accept an `mcp_call` item, but would drop its output.
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
async fn the_error_of_an_mcp_call_does_not_show_the_secrets_of_its_server() {
    let said = "401 of https://links.example/mcp?key=url-secret for Bearer token-secret, x-secret";
    let stream = fixture("responses/mcp_calls").replace("too many links", said);
    let provider = Provider::with_streams([stream, fixture("responses/text")]).await;
    let tool = r#"{"type":"mcp","server_label":"links","authorization":"Bearer token-secret",
        "server_url":"https://links.example/mcp?key=url-secret","headers":{"x-key":"x-secret"}}"#;
    let model = model(&provider).with_hosted_tool(&Json::parse(tool).unwrap());
    let mut browser = asked(model, "Shorten both.").await;
    let shown = "401 of https://links.example/mcp?key=[redacted] for [redacted], [redacted]";
    assert_eq!(last_contents(&browser).calls[1].3, shown);
    browser.send("Why?").await;
    let requests = provider.requests();
    let input = requests.last().unwrap().body["input"].to_string();
    assert!(input.contains(shown) && !input.contains("secret"), "{input}");
}

#[tokio::test]
async fn the_name_of_an_mcp_call_is_changed_to_a_valid_function_name() {
    let stream = fixture("responses/mcp_calls")
        .replace(r#""links""#, r#""my links/öffentlich""#)
        .replace(r#""shorten""#, &format!(r#""{}""#, "shorten.it ".repeat(9)));
    let provider = Provider::with_streams([stream, fixture("responses/text")]).await;
    let mut browser = asked(model(&provider), "Shorten twice").await;
    browser.send("Thanks").await;
    assert_eq!(last_contents(&browser).text, THE_TEXT);
    let input = provider.requests()[1].body["input"].as_array().unwrap().clone();
    let names: Vec<&str> = input.iter().filter_map(|item| item["name"].as_str()).collect();
    assert_eq!(names.len(), 2);
    let is_valid = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    assert!(names.iter().all(|name| name.chars().all(is_valid) && name.len() <= 64), "{names:?}");
}

/// Runs the first turn of a chat, in which the provider requests approval. The agent has a tool
/// with the name of the provider's tool, which must not run.
async fn pending_chat(second: &str) -> (Provider, Router, Conversation<'static>, Arc<AtomicUsize>) {
    let provider = provider(&["mcp_approval_asked", second, "text"]).await;
    let executions = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&executions);
    let tool_of_host =
        Tool::new("mcp_links_shorten", move |_: std::collections::BTreeMap<String, Anything>| {
            counter.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, ToolError>("it ran here") }
        });
    let app = app(Agent::new(model(&provider)).tool(tool_of_host));
    let mut browser = over(app.clone());
    browser.send("Shorten it").await;
    let contents = last_contents(&browser);
    assert_eq!(contents.calls, [shorten_call("approval-requested", Value::Null)]);
    let is_approval = |part: &Part| matches!(part, Part::Data(data) if &*data.name == "approval");
    assert!(
        browser.messages()[1].parts.iter().any(is_approval),
        "the user sees a description of the call"
    );
    assert_eq!(provider.requests().len(), 1);
    (provider, app, browser, executions)
}

/// Anything at all.
#[derive(PartialEq, serde::Deserialize, schemars::JsonSchema)]
#[serde(transparent)]
struct Anything(Value);

fn approval_request() -> Value {
    json!({
        "type": "mcp_approval_request", "id": "mcpr_1", "server_label": "links", "name": "shorten",
        "arguments": ARGUMENTS,
    })
}

#[tokio::test]
async fn an_approval_is_sent_to_the_provider_once_and_the_later_call_is_its_output() {
    let (provider, app, mut browser, executions) = pending_chat("mcp_approval_approved").await;
    browser.approve("mcp.links.shorten").await;
    let contents = last_contents(&browser);
    assert_eq!(contents.calls, [shorten_call("output-available", json!("✅ https://l.example/9"))]);
    assert_eq!(contents.text, "Here: https://l.example/9");
    let input = provider.requests()[1].body["input"].as_array().unwrap().clone();
    let approval =
        json!({"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": true});
    assert_eq!(input[1..], [approval_request(), approval]);

    // The browser received no response and repeats its request: the approval is not sent again.
    let request = Request::post("/api/chat").header("host", "localhost");
    let request = request.header("content-type", "application/json");
    let repeated = axum::body::Body::from(browser.requests().last().unwrap().clone());
    let repeated = request.body(repeated).unwrap();
    let repeated = app.oneshot(repeated).await.unwrap().into_body().collect().await.unwrap();
    let repeated = String::from_utf8(repeated.to_bytes().to_vec()).unwrap();
    assert!(repeated.contains(r#""output":"✅ https://l.example/9""#), "{repeated}");
    assert!(!repeated.contains("errorText"), "{repeated}");
    assert_eq!(provider.requests().len(), 2);

    browser.send("Thanks").await;
    assert_eq!(last_contents(&browser).text, THE_TEXT);
    let later = provider.requests()[2].body["input"].to_string();
    assert!(!later.contains("mcp_approval"), "the approval request is resolved: {later}");
    assert!(later.contains("https://l.example/9"), "{later}");
    assert_eq!(executions.load(Ordering::SeqCst), 0);
}

/// A proxy sends the same status whether the request or the response was lost.
#[tokio::test]
async fn a_request_with_hosted_tools_is_not_repeated_because_they_may_have_run() {
    let responses = [
        (StatusCode::SERVICE_UNAVAILABLE, "reset before headers".to_owned()),
        (StatusCode::OK, fixture("responses/text")),
    ];
    for (hosted, requests) in [(true, 1), (false, 2)] {
        let provider = Provider::with_responses(responses.clone()).await;
        let search = Json::parse(r#"{"type": "web_search"}"#).unwrap();
        let model = model(&provider);
        let model = if hosted { model.with_hosted_tool(&search) } else { model };
        let browser = asked(model, "How is it?").await;
        assert_eq!((browser.error().is_some(), provider.requests().len()), (hosted, requests));
    }
}

#[tokio::test]
async fn a_denial_is_sent_to_the_provider_with_its_reason() {
    let (provider, _, mut browser, executions) = pending_chat("mcp_approval_denied").await;
    browser.deny("mcp.links.shorten", "not that one").await;
    let contents = last_contents(&browser);
    assert_eq!(contents.calls, [shorten_call("output-denied", Value::Null)]);
    assert_eq!(contents.text, "It was not approved.");
    let denial = json!({
        "type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": false,
        "reason": "not that one",
    });
    let input = provider.requests()[1].body["input"].as_array().unwrap().clone();
    assert_eq!(input[1..], [approval_request(), denial.clone()]);
    browser.send("Thanks").await;
    let input = provider.requests()[2].body["input"].as_array().unwrap().clone();
    assert_eq!(input[1..3], [approval_request(), denial]);
    assert_eq!(executions.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_user_message_instead_of_an_approval_response_denies_the_call() {
    let (provider, _, mut browser, executions) = pending_chat("text").await;
    browser.send("Never mind").await;
    assert_eq!(last_contents(&browser).text, THE_TEXT);
    let input = provider.requests()[1].body["input"].as_array().unwrap().clone();
    assert_eq!(input[1], approval_request());
    assert_eq!(input[2]["type"], "mcp_approval_response");
    assert_eq!(input[2]["approve"], false);
    assert_eq!(executions.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_tool_search_that_the_client_executes_calls_a_tool_of_the_agent() {
    let provider = provider(&["tool_search_by_the_client", "text"]).await;
    let search =
        Tool::new("tool_search", async |_: std::collections::BTreeMap<String, Anything>| {
            Ok::<_, ToolError>(json!({"tools": [{"type": "function", "name": "weather"}]}))
        });
    let mut browser = conversation(Agent::new(model(&provider)).tool(search));
    browser.send("Weather?").await;
    assert_eq!(last_contents(&browser).calls[0].1, json!({"goal": "weather"}));
    let input = provider.requests()[1].body["input"].as_array().unwrap().clone();
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
async fn the_namespace_of_a_function_is_sent_back_with_its_call() {
    let found = fixture("responses/reasoning_and_a_function_call")
        .replace(r#""name":"weather""#, r#""name":"weather","namespace":"sky""#);
    let provider = Provider::with_streams([found, fixture("responses/text")]).await;
    let browser = asked(model(&provider), "Weather?").await;
    assert_eq!(last_contents(&browser).calls[0].3, "Lisbon: sun");
    let call = &provider.requests()[1].body["input"][2];
    assert_eq!((&call["name"], &call["namespace"]), (&json!("weather"), &json!("sky")));
}

#[tokio::test]
async fn a_failed_or_cut_response_is_an_error_and_an_incomplete_one_is_not() {
    let all_events = lines_of("responses/text");
    let first_events: Vec<&str> = all_events.lines().take(5).collect();
    let stream =
        |last: Value| format!("data: {}\n\ndata: {last}\n\n", first_events.join("\n\ndata: "));
    let error = json!({"code": "server_error", "message": "a secret"});
    for last in [
        json!({"error": error}),
        json!({"type": "response.failed", "response": {"status": "failed", "error": error}}),
        json!({"type": "error", "code": "server_error", "message": "a secret"}),
        json!({"type": "response.in_progress"}),
    ] {
        let provider = Provider::with_streams([stream(last)]).await;
        let browser = asked(model(&provider), "Hello").await;
        assert_eq!(browser.error(), Some("An error occurred."));
        assert_eq!(MessageContents::of(browser.messages().last().unwrap()).text, "All is ");
    }
    let details = json!({"reason": "max_output_tokens"});
    let last = json!({"type": "response.incomplete", "response": {"incomplete_details": details}});
    let provider = Provider::with_streams([stream(last)]).await;
    let browser = asked(model(&provider), "Hello").await;
    assert_eq!(last_contents(&browser).text, "All is ");
    let last = serde_json::to_value(browser.last_chunks().last().unwrap()).unwrap();
    assert_eq!(last["finishReason"], "length");
}

#[test]
fn debug_contains_no_credentials_of_a_tool_server_and_no_field_values() {
    let tool = r#"{"type":"mcp","server_label":"links","authorization":"secret-1",
        "headers":{"x-key":"secret-2"}}"#;
    let model = Responses::new(Endpoint::openai("sk-secret").unwrap(), "a-model")
        .with_hosted_tool(&Json::parse(tool).unwrap())
        .with_field("metadata", &Json::parse(r#"{"a":"secret"}"#).unwrap());
    let debug = format!("{model:?}");
    assert!(debug.contains("mcp") && !debug.contains("secret"), "{debug}");
}
