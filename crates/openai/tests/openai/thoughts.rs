//! Thoughts of a response: shown, and sent back to who made them, with what was made upon them.

use axum::http::StatusCode;
use serde_json::json;
use test_support::browser::{Turns, agent, conversation};
use ui_message_stream::Json;
use ui_message_stream_openai::Responses;

use super::provider::{Provider, fixture};
use super::responses::{THE_TEXT, held, model, provider};

#[tokio::test]
async fn thoughts_are_shown_and_go_back_as_the_provider_made_them() {
    let provider = provider(&["reasoning_and_a_function_call", "text"]).await;
    let mut browser = conversation(agent(model(&provider).with_reasoning("low")));
    browser.send("How is the weather?").await;
    let held = held(&browser);
    assert_eq!(held.reasoning, "**Looking**\n\nThey ask.**Calling**");
    let weather = ("weather", json!({"city": "Lisbon"}), "output-available", "Lisbon: sun");
    let (tool, input, state, output) = &held.calls[0];
    assert_eq!(
        (&**tool, input, &**state, output),
        (weather.0, &weather.1, weather.2, &json!(weather.3))
    );
    assert_eq!(held.text, THE_TEXT);
    let body = &provider.asked()[1].body;
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
async fn thoughts_go_only_to_a_model_that_is_set_up_to_reason() {
    let effort = Json::parse(r#"{"effort":"low"}"#).unwrap();
    for (set_up, reads_thoughts) in [
        ((|model| model) as fn(Responses) -> Responses, false),
        (|model| model.with_reasoning("low"), true),
        (|model| model.with_include("reasoning.encrypted_content"), true),
        (|model| model.with_include("web_search_call.action.sources"), false),
        (|model| model.with_reasoning("low").with_field("reasoning", &Json::null()), false),
    ] {
        let provider = provider(&["reasoning_and_a_function_call", "text"]).await;
        let reasons = model(&provider).with_field("reasoning", &effort);
        let turns = Turns::new(reasons, set_up(model(&provider)));
        conversation(agent(turns)).send("How is the weather?").await;
        let body = &provider.asked()[1].body;
        let input = body["input"].as_array().unwrap();
        assert_eq!(input.iter().any(|item| item["type"] == "reasoning"), reads_thoughts, "{body}");
        assert!(input.iter().any(|item| item["type"] == "function_call"));
    }
}

#[tokio::test]
async fn what_the_provider_ran_upon_thoughts_goes_back_with_them() {
    let searched = fixture("responses/web_search_with_sources")
        .replace(r#""encrypted_content":null"#, r#""encrypted_content":"gAAA-search""#);
    let provider = Provider::streaming([searched, fixture("responses/text")]).await;
    let mut browser = conversation(agent(model(&provider).with_reasoning("low")));
    browser.send("News?").await;
    browser.send("Thanks").await;
    assert_eq!(held(&browser).text, THE_TEXT);
    let input = provider.asked()[1].body["input"].as_array().unwrap().clone();
    let items = input.iter().map(|item| (item["type"].as_str(), item["id"].as_str()));
    let items: Vec<(Option<&str>, Option<&str>)> = items.collect();
    let search = Some("web_search_call");
    assert_eq!(
        items[1..4],
        [(Some("reasoning"), Some("rs_w")), (search, Some("ws_1")), (search, Some("ws_2"))]
    );
    assert_eq!(input[2]["action"]["query"], "harbour news");
}

#[tokio::test]
async fn thoughts_that_cannot_be_read_any_more_are_left_out_when_it_refuses_them() {
    let error = json!({"error": {
        "message": "The encrypted content gAAA...hole could not be verified.",
        "type": "invalid_request_error", "param": null, "code": "invalid_encrypted_content",
    }});
    let searched = fixture("responses/web_search_with_sources")
        .replace(r#""encrypted_content":null"#, r#""encrypted_content":"gAAA-search""#);
    let provider = Provider::answering([
        (StatusCode::OK, searched),
        (StatusCode::BAD_REQUEST, error.to_string()),
        (StatusCode::OK, fixture("responses/text")),
    ])
    .await;
    let mut browser = conversation(agent(model(&provider).with_reasoning("low")));
    browser.send("News?").await;
    browser.send("Thanks").await;
    assert_eq!(held(&browser).text, THE_TEXT);
    let input = provider.asked()[2].body["input"].as_array().unwrap().clone();
    let kinds: Vec<&str> =
        input.iter().map(|item| item["type"].as_str().unwrap_or("message")).collect();
    let (call, output) = ("function_call", "function_call_output");
    assert_eq!(kinds, ["message", call, output, call, output, "message", "message"]);
}

#[tokio::test]
async fn thoughts_go_only_to_where_they_were_made() {
    let here = provider(&["reasoning_and_a_function_call"]).await;
    let there = provider(&["text"]).await;
    let turns = |provider: &Provider| model(provider).with_reasoning("low");
    conversation(agent(Turns::new(turns(&here), turns(&there)))).send("How is the weather?").await;
    let asked = there.asked();
    let input = asked[0].body["input"].as_array().unwrap();
    let kinds: Vec<Option<&str>> = input.iter().map(|item| item["type"].as_str()).collect();
    assert_eq!(kinds, [None, Some("function_call"), Some("function_call_output")]);
}
