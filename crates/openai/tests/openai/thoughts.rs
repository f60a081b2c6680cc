//! The reasoning of a response: shown, and sent back to its provider with the items that follow it.

use axum::http::StatusCode;
use chat_test_support::browser::{Turns, agent, asked, conversation};
use serde_json::{Value, json};
use test_support::thread_subscriber::captured;
use ui_message_stream::Json;
use ui_message_stream_openai::{Endpoint, Responses};

use super::provider::{Provider, fixture};
use super::responses::{THE_TEXT, last_contents, model, provider};

#[tokio::test]
async fn reasoning_is_shown_and_is_sent_back_unchanged() {
    let provider = provider(&["reasoning_and_a_function_call", "text"]).await;
    let browser = asked(model(&provider).with_reasoning("low"), "How is the weather?").await;
    let contents = last_contents(&browser);
    assert_eq!(contents.reasoning, "**Looking**\n\nThey ask.**Calling**");
    let weather = ("weather", json!({"city": "Lisbon"}), "output-available", "Lisbon: sun");
    let (tool, input, state, output) = &contents.calls[0];
    assert_eq!(
        (&**tool, input, &**state, output),
        (weather.0, &weather.1, weather.2, &json!(weather.3))
    );
    assert_eq!(contents.text, THE_TEXT);
    let body = &provider.requests()[1].body;
    assert_eq!(body["include"], json!(["reasoning.encrypted_content"]));
    assert_eq!(body["reasoning"], json!({"effort": "low", "summary": "auto"}));
    let input = body["input"].as_array().unwrap();
    assert_eq!(
        input[1..],
        [
            json!({"type": "reasoning", "id": "rs_1", "encrypted_content": "gAAA-whole", "summary": [
                {"type": "summary_text", "text": "**Looking**\n\nThey ask."},
                {"type": "summary_text", "text": "**Calling**"},
            ]}),
            json!({"type": "function_call", "call_id": "call_1", "name": "weather",
                "arguments": "{\"city\":\"Lisbon\"}"}),
            json!({"type": "function_call_output", "call_id": "call_1", "output": "Lisbon: sun"}),
        ]
    );
}

#[tokio::test]
async fn the_reasoning_of_another_model_is_sent_only_to_a_model_that_is_configured_for_reasoning() {
    let effort = Json::parse(r#"{"effort":"low"}"#).unwrap();
    for (configure, is_sent) in [
        ((|model| model) as fn(Responses) -> Responses, false),
        (|model| model.with_reasoning("low"), true),
        (|model| model.with_include("reasoning.encrypted_content"), true),
        (|model| model.with_include("web_search_call.action.sources"), false),
        (|model| model.with_reasoning("low").with_field("reasoning", &Json::null()), false),
    ] {
        let provider = provider(&["reasoning_and_a_function_call", "text"]).await;
        let endpoint = Endpoint::new(&provider.address).unwrap();
        let first_model = Responses::new(endpoint, "another").with_field("reasoning", &effort);
        let turns = Turns::new(first_model, configure(model(&provider)));
        conversation(agent(turns)).send("How is the weather?").await;
        let body = &provider.requests()[1].body;
        let input = body["input"].as_array().unwrap();
        assert_eq!(input.iter().any(|item| item["type"] == "reasoning"), is_sent, "{body}");
        assert!(input.iter().any(|item| item["type"] == "function_call"));
    }
}

/// Some servers send encrypted reasoning without being asked for it.
#[tokio::test]
async fn reasoning_that_a_model_sent_unasked_goes_back_to_this_model_at_this_endpoint() {
    let (first, second) = (
        provider(&["reasoning_and_a_function_call", "text", "text"]).await,
        provider(&["text"]).await,
    );
    let mut browser = asked(Turns::new(model(&first), model(&first)), "How is the weather?").await;
    browser.send("Thanks").await;
    let requests = first.requests();
    assert!(requests.iter().all(|request| request.body.get("reasoning").is_none()));
    for request in &requests[1..] {
        let reasoning = &request.body["input"][1];
        assert_eq!(reasoning["encrypted_content"], "gAAA-whole", "{}", request.body);
    }

    let first = provider(&["reasoning_and_a_function_call"]).await;
    conversation(agent(Turns::new(model(&first), model(&second)))).send("And now?").await;
    let body = &second.requests()[0].body;
    assert!(!body.to_string().contains("gAAA-whole"), "{body}");
}

#[tokio::test]
async fn provider_executed_calls_that_follow_reasoning_are_sent_back_with_it() {
    let search_stream = fixture("responses/web_search_with_sources")
        .replace(r#""encrypted_content":null"#, r#""encrypted_content":"gAAA-search""#);
    let provider = Provider::with_streams([search_stream, fixture("responses/text")]).await;
    let mut browser = asked(model(&provider).with_reasoning("low"), "News?").await;
    browser.send("Thanks").await;
    assert_eq!(last_contents(&browser).text, THE_TEXT);
    let input = provider.requests()[1].body["input"].as_array().unwrap().clone();
    let items = input.iter().map(|item| (item["type"].as_str(), item["id"].as_str()));
    let items: Vec<(Option<&str>, Option<&str>)> = items.collect();
    let search = Some("web_search_call");
    assert_eq!(
        items[1..4],
        [(Some("reasoning"), Some("rs_w")), (search, Some("ws_1")), (search, Some("ws_2"))]
    );
    assert_eq!(input[2]["action"]["query"], "harbour news");
}

/// Azure sends it so.
#[tokio::test]
async fn encrypted_reasoning_that_comes_only_in_the_last_event_is_sent_back_in_its_place() {
    for is_stored in [false, true] {
        let provider =
            provider(&["encrypted_reasoning_only_in_the_last_event", "text", "text"]).await;
        let model = model(&provider).with_reasoning("low");
        let model = if is_stored { model.with_stored_responses() } else { model };
        let mut browser = asked(model, "How is the weather?").await;
        browser.send("Thanks").await;
        let contents = last_contents(&browser);
        assert_eq!(contents.text, THE_TEXT);
        let requests = provider.requests();
        assert_eq!(requests.len(), 3);
        if is_stored {
            assert_eq!(requests[1].body["previous_response_id"], "resp_z");
            let input = &requests[1].body["input"];
            assert_eq!(input.as_array().unwrap().len(), 1, "{input}");
            continue;
        }
        // In the same turn, and from the history that the page sends.
        for request in &requests[1..] {
            let input = request.body["input"].as_array().unwrap();
            assert!(input.len() > 5, "{input:#?}");
            assert_eq!(
                input[1..6],
                [
                    json!({"type": "reasoning", "id": "rs_z", "encrypted_content": "gAAA-late",
                        "summary": [{"type": "summary_text", "text": "They ask."}]}),
                    json!({"type": "web_search_call", "id": "ws_z", "status": "completed",
                        "action": {"type": "search", "query": "harbour news"}}),
                    json!({"type": "reasoning", "id": "rs_y", "encrypted_content": "gAAA-later",
                        "summary": []}),
                    json!({"type": "function_call", "call_id": "call_z", "name": "weather",
                        "arguments": "{\"city\":\"Lisbon\"}"}),
                    json!({"type": "function_call_output", "call_id": "call_z",
                        "output": "Lisbon: sun"}),
                ]
            );
        }
    }
}

#[tokio::test]
async fn reasoning_that_the_provider_cannot_decrypt_any_more_is_left_out() {
    let error = json!({"error": {
        "message": "The encrypted content gAAA...hole could not be verified.",
        "type": "invalid_request_error", "param": null, "code": "invalid_encrypted_content",
    }});
    let search_stream = fixture("responses/web_search_with_sources")
        .replace(r#""encrypted_content":null"#, r#""encrypted_content":"gAAA-search""#);
    let provider = Provider::with_responses([
        (StatusCode::OK, search_stream),
        (StatusCode::BAD_REQUEST, error.to_string()),
        (StatusCode::OK, fixture("responses/text")),
    ])
    .await;
    let mut browser = asked(model(&provider).with_reasoning("low"), "News?").await;
    browser.send("Thanks").await;
    assert_eq!(last_contents(&browser).text, THE_TEXT);
    let input = provider.requests()[2].body["input"].as_array().unwrap().clone();
    let kinds: Vec<&str> =
        input.iter().map(|item| item["type"].as_str().unwrap_or("message")).collect();
    let (call, output) = ("function_call", "function_call_output");
    assert_eq!(kinds, ["message", call, output, call, output, "message", "message"]);
}

fn refusal(message: &str) -> (StatusCode, String) {
    (StatusCode::BAD_REQUEST, json!({"error": {"message": message}}).to_string())
}

/// Returns the reasoning of a request.
fn reasoning(body: &Value) -> Option<&Value> {
    body["input"].as_array().unwrap().iter().find(|item| item["type"] == "reasoning")
}

#[tokio::test]
async fn reasoning_that_the_server_refuses_by_its_id_is_sent_without_it_from_then_on() {
    let text = || (StatusCode::OK, fixture("responses/text"));
    let provider = Provider::with_responses([
        (StatusCode::OK, fixture("responses/reasoning_and_a_function_call")),
        refusal("Item with id 'rs_1' not found. Items are not persisted when `store` is false."),
        text(),
        text(),
    ])
    .await;
    let (log, _guard) = captured();
    let mut browser = asked(model(&provider).with_reasoning("low"), "How is the weather?").await;
    browser.send("Thanks").await;
    assert_eq!(last_contents(&browser).text, THE_TEXT);
    let requests = provider.requests();
    assert_eq!(requests.len(), 4, "the last one is accepted at once");
    assert_eq!(reasoning(&requests[1].body).unwrap()["id"], "rs_1");
    for request in &requests[2..] {
        let reasoning = reasoning(&request.body).unwrap();
        assert_eq!(
            (&reasoning["encrypted_content"], reasoning.get("id")),
            (&json!("gAAA-whole"), None)
        );
        assert_eq!(reasoning["summary"].as_array().unwrap().len(), 2);
    }
    let log = log.text();
    assert_eq!(log.matches("the provider refused the request").count(), 1, "{log}");
    assert!(log.contains("left_out=\"the ids of the provider's items\""), "{log}");
}

#[tokio::test]
async fn reasoning_that_is_also_refused_without_its_id_is_left_out_of_this_request() {
    let text = || (StatusCode::OK, fixture("responses/text"));
    let other_key = || refusal("The encrypted content could not be verified.");
    let provider = Provider::with_responses([
        (StatusCode::OK, fixture("responses/reasoning_and_a_function_call")),
        refusal("Item with id 'rs_1' not found."),
        other_key(),
        text(),
        other_key(),
        text(),
    ])
    .await;
    let mut browser = asked(model(&provider).with_reasoning("low"), "How is the weather?").await;
    browser.send("Thanks").await;
    assert_eq!(last_contents(&browser).text, THE_TEXT);
    let requests = provider.requests();
    let sent = requests
        .iter()
        .map(|request| reasoning(&request.body).map(|reasoning| reasoning.get("id").is_some()));
    // Another conversation may have reasoning that the server can read.
    let (with_id, without_id) = (Some(true), Some(false));
    assert_eq!(sent.collect::<Vec<_>>(), [None, with_id, without_id, None, without_id, None]);
}

#[tokio::test]
async fn reasoning_is_sent_only_to_the_address_that_it_came_from() {
    let first = provider(&["reasoning_and_a_function_call"]).await;
    let second = provider(&["text"]).await;
    let reasoning_model = |provider: &Provider| model(provider).with_reasoning("low");
    conversation(agent(Turns::new(reasoning_model(&first), reasoning_model(&second))))
        .send("How is the weather?")
        .await;
    let requests = second.requests();
    let input = requests[0].body["input"].as_array().unwrap();
    let kinds: Vec<Option<&str>> = input.iter().map(|item| item["type"].as_str()).collect();
    assert_eq!(kinds, [None, Some("function_call"), Some("function_call_output")]);
}
