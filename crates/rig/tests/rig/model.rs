//! `RigModel`: rig's models in an agent behind the route.

use chat_test_support::browser::{Forecast, Turns, agent, asked, conversation, say};
use serde_json::{Value, json};
use test_support::message_contents::MessageContents;
use ui_message_stream::message::Part;
use ui_message_stream::{UiMessage, UserText};
use ui_message_stream_rig::RigModel;

use super::provider::{Provider, fixture, lines_of};

const CLAUDE: &str = "claude-sonnet-4-5";

fn claude(provider: &Provider) -> RigModel {
    RigModel::new(provider.anthropic(CLAUDE)).map_request(|request| request.max_tokens(999))
}

fn weather_call(city: &str) -> (String, Value, String, Value) {
    let output = json!(format!("{city}: sun"));
    ("weather".into(), json!({"city": city}), "output-available".into(), output)
}

/// The second model accepts its reasoning only if the tools and the instructions are the same.
#[tokio::test]
async fn reasoning_text_and_parallel_calls_arrive_complete_and_are_sent_back_unchanged() {
    for model in [CLAUDE, "claude-opus-5"] {
        check_arrival_and_return(model).await;
    }
}

async fn check_arrival_and_return(model: &str) {
    let name = "anthropic/thoughts_and_two_calls";
    let provider = Provider::with_streams([fixture(name), fixture("anthropic/text")]);
    let model =
        RigModel::new(provider.anthropic(model)).map_request(|request| request.max_tokens(999));
    let mut browser = conversation(agent(model).with_usage_metadata());
    say(&mut browser, "How is the weather?").await;
    let message = browser.messages().last().unwrap();
    let contents = MessageContents::of(message);
    assert_eq!(contents.reasoning, "Two towns — both by the sea.");
    assert_eq!(contents.text, "I look at both.Sun on “both” shores. 🚢");
    assert_eq!(contents.calls, [weather_call("Porto"), weather_call("Faro")]);
    let usage: Value = message.metadata.as_ref().unwrap().decode().unwrap();
    assert_eq!(usage["usage"], json!({"inputTokens": 201, "outputTokens": 99}));

    let requests = provider.requests();
    assert_eq!(requests[0]["max_tokens"], 999);
    assert_eq!(requests[0]["tools"][0]["name"], "weather");
    assert_eq!(requests[0]["tools"][0]["input_schema"]["properties"]["city"]["type"], "string");
    assert!(requests[0]["system"].to_string().contains("Be brief."), "{}", requests[0]["system"]);
    let messages = &requests[1]["messages"];
    assert_eq!(
        messages[1]["content"],
        json!([
            {"type": "thinking", "thinking": "Two towns — both by the sea.",
                "signature": "c2lnbmVkIGJ5IG5vYm9keQ=="},
            {"type": "redacted_thinking", "data": "bm90IGZvciB5b3U="},
            {"type": "text", "text": "I look at both."},
            {"type": "tool_use", "id": "toolu_01", "name": "weather", "input": {"city": "Porto"}},
            {"type": "tool_use", "id": "toolu_02", "name": "weather", "input": {"city": "Faro"}},
        ])
    );
    let results = messages[2]["content"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    for (result, (id, text)) in results.iter().zip([("toolu_01", "Porto"), ("toolu_02", "Faro")]) {
        assert_eq!(result["type"], "tool_result");
        assert_eq!(result["tool_use_id"], id);
        assert!(result["content"].to_string().contains(&format!("{text}: sun")), "{result}");
    }
}

#[tokio::test]
async fn stored_state_of_a_model_is_not_sent_to_another_model() {
    let provider = Provider::with_streams([fixture("anthropic/thoughts_and_two_calls")]);
    let other = Provider::with_streams([fixture("anthropic/text")]);
    let opus = RigModel::new(other.anthropic("claude-opus-4-1"));
    let mut browser = conversation(agent(Turns::new(claude(&provider), opus)));
    say(&mut browser, "How is the weather?").await;
    let request = other.requests()[0].to_string();
    assert!(request.contains("I look at both.") && request.contains("Porto: sun"), "{request}");
    assert!(!request.contains("c2lnbmVk") && !request.contains("bm90IGZvciB5b3U="), "{request}");
}

#[tokio::test]
async fn a_text_part_stores_no_copy_of_its_text() {
    let provider = Provider::with_streams([fixture("anthropic/text")]);
    let browser = asked(claude(&provider), "Hello").await;
    let message = browser.messages().last().unwrap();
    let text = message.parts.iter().find_map(|part| match part {
        Part::Text(text) => Some(text),
        _ => None,
    });
    assert_eq!(text.unwrap().provider_metadata, None);
}

#[tokio::test]
async fn chat_completions_arrive_through_rig_as_through_our_own_adapter() {
    let two = [weather_call("Porto"), weather_call("Faro")];
    let tides = ("tides".to_owned(), json!({}), "output-available".to_owned(), json!("low"));
    let thinking = "They ask for the weather.";
    for (name, reasoning, text, calls) in [
        ("text_is_joined", "", "", &[][..]),
        ("two_calls_whose_pieces_alternate", "", "", &two[..]),
        ("a_call_without_arguments", "", "", &[tides][..]),
        ("reasoning_then_arguments_in_pieces", thinking, "I look.", &[weather_call("Lisbon")][..]),
    ] {
        let last = "The harbour is “calm” — 🚢\ntoday.";
        let streams = [fixture(&format!("chat/{name}")), fixture("chat/text_is_joined")];
        let provider = Provider::with_streams(streams);
        let browser = asked(RigModel::new(provider.chat()), "How is the weather?").await;
        assert_eq!(browser.error(), None, "{name}");
        let contents = MessageContents::of(browser.messages().last().unwrap());
        assert_eq!(contents.reasoning, reasoning, "{name}");
        let closing = if calls.is_empty() { "" } else { last };
        let text = if calls.is_empty() { last } else { text };
        assert_eq!(contents.text, format!("{text}{closing}"), "{name}");
        assert_eq!(contents.calls, calls, "{name}");
        let requests = provider.requests();
        assert_eq!(requests.len(), if calls.is_empty() { 1 } else { 2 }, "{name}");
        let Some(second) = requests.get(1) else { continue };
        let messages = second["messages"].as_array().unwrap();
        let sent_calls =
            messages.iter().find_map(|message| message["tool_calls"].as_array()).unwrap();
        let results: Vec<&Value> =
            messages.iter().filter(|message| message["role"] == "tool").collect();
        assert_eq!((sent_calls.len(), results.len()), (calls.len(), calls.len()), "{name}");
        for (call, result) in sent_calls.iter().zip(results) {
            assert_eq!(call["id"], result["tool_call_id"], "{name}");
        }
    }
}

/// rig sends the schema to some providers only after a tool has returned.
#[tokio::test]
async fn structured_output_is_requested_with_its_schema() {
    // Each model is asked once more.
    let streams = [
        "chat/a_call_without_arguments",
        "chat/text_is_joined",
        "chat/text_is_joined",
        "anthropic/text",
        "anthropic/text",
    ];
    let provider = Provider::with_streams(streams.map(fixture));
    for model in [RigModel::new(provider.chat()), claude(&provider)] {
        let mut browser = conversation(agent(model).with_output::<Forecast>());
        browser.send("How is the weather?").await;
        assert_eq!(browser.error(), Some("The answer is not in the form that it was to have."));
    }
    let requests = provider.requests();
    let (chat, claude) = (&requests[1]["response_format"], &requests[3]["output_config"]["format"]);
    assert_eq!(chat["json_schema"]["name"], "Forecast", "{}", requests[1]);
    for (format, schema) in [(chat, &chat["json_schema"]["schema"]), (claude, &claude["schema"])] {
        assert_eq!(format["type"], "json_schema");
        assert_eq!(schema["properties"]["city"]["type"], "string");
    }
}

#[tokio::test]
async fn encrypted_reasoning_is_sent_back_with_the_id_of_its_item() {
    let streams = ["reasoning_and_a_function_call", "text"];
    let provider =
        Provider::with_streams(streams.map(|name| fixture(&format!("responses/{name}"))));
    let mut browser = conversation(agent(RigModel::new(provider.responses())));
    say(&mut browser, "How is the weather?").await;
    let contents = MessageContents::of(browser.messages().last().unwrap());
    assert!(!contents.reasoning.is_empty() && contents.calls.len() == 1, "{contents:?}");
    let events = lines_of("responses/reasoning_and_a_function_call");
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut done = events.filter(|event| event["type"] == "response.output_item.done");
    let reasoning_item =
        done.find(|event| event["item"]["type"] == "reasoning").unwrap()["item"].clone();
    assert!(reasoning_item["encrypted_content"].is_string(), "{reasoning_item}");
    let input = provider.requests()[1]["input"].as_array().unwrap().clone();
    let sent = input.iter().find(|item| item["type"] == "reasoning").unwrap();
    assert_eq!(sent["encrypted_content"], reasoning_item["encrypted_content"]);
    assert_eq!(sent["id"], reasoning_item["id"]);
}

#[tokio::test]
async fn an_incomplete_input_is_shown_as_received_and_the_model_reads_the_error() {
    let streams = ["chat/a_call_with_half_an_input", "chat/text_is_joined"].map(fixture);
    let provider = Provider::with_streams(streams);
    let mut browser = conversation(agent(RigModel::new(provider.chat())));
    say(&mut browser, "How is the weather?").await;
    let message = serde_json::to_value(browser.messages().last().unwrap()).unwrap();
    let parts = message["parts"].as_array().unwrap();
    let call = parts.iter().find(|part| part["type"] == "tool-weather").unwrap();
    assert_eq!(call["rawInput"], "{\"city\": \"Fa");
    assert_eq!(call["state"], "output-error");
    let sent = provider.requests()[1]["messages"].to_string();
    assert!(sent.contains("the input is not usable"), "{sent}");
}

#[tokio::test]
async fn a_call_that_was_cut_off_before_its_arguments_does_not_run() {
    let lines = lines_of("chat/a_call_cut_off_before_its_arguments");
    // rig itself fails a response with the other reasons.
    for (end, is_failed) in [("length", false), ("content_filter", true), ("abort", true)] {
        let cut = super::provider::as_stream(&lines.replace("length", end));
        let provider = Provider::with_streams([cut, fixture("chat/text_is_joined")]);
        let browser = asked(RigModel::new(provider.chat()), "Tides?").await;
        assert_eq!(browser.error().is_some(), is_failed, "{end}");
        let contents = MessageContents::of(browser.messages().last().unwrap());
        let [(tool, _, state, error)] = &contents.calls[..] else { panic!("{contents:?}") };
        assert_eq!((&**tool, &**state), ("tides", "output-error"), "{end}");
        let is_cut_off = *error == UserText::NotStarted.in_english();
        assert_eq!(is_cut_off, !is_failed, "{error}");
    }
}

#[tokio::test]
async fn two_calls_with_the_same_id_both_run_and_get_different_ids() {
    let same_ids = lines_of("anthropic/thoughts_and_two_calls").replace("toolu_02", "toolu_01");
    let streams = [super::provider::as_stream(&same_ids), fixture("anthropic/text")];
    let provider = Provider::with_streams(streams);
    let mut browser = conversation(agent(claude(&provider)));
    say(&mut browser, "How is the weather?").await;
    let contents = MessageContents::of(browser.messages().last().unwrap());
    assert_eq!(contents.calls, [weather_call("Porto"), weather_call("Faro")]);
    let results = provider.requests()[1]["messages"][2]["content"].as_array().unwrap().clone();
    assert_eq!(results.len(), 2);
    assert_ne!(results[0]["tool_use_id"], results[1]["tool_use_id"]);
}

#[tokio::test]
async fn files_are_sent_in_the_form_of_rig_or_described_as_text() {
    let provider = Provider::with_streams([fixture("anthropic/text")]);
    let mut browser = conversation(agent(claude(&provider)));
    let message = UiMessage::parse(
        r#"{"id": "m", "role": "user", "parts": [
            {"type": "text", "text": "Look"},
            {"type": "file", "mediaType": "image/png", "url": "https://example.com/a.png"},
            {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,iVBORw0KGgo="},
            {"type": "file", "mediaType": "application/pdf",
                "url": "data:application/pdf;base64,JVBERi0="},
            {"type": "file", "mediaType": "text/csv", "filename": "a.csv",
                "url": "data:text/csv;base64,YSxi"},
            {"type": "file", "mediaType": "application/zip", "filename": "a.zip",
                "url": "https://example.com/a.zip"}
        ]}"#,
    );
    browser.send_parts(message.unwrap().parts).await;
    let content = provider.requests()[0]["messages"][0]["content"].clone();
    assert_eq!(
        content,
        json!([
            {"type": "text", "text": "Look"},
            {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
            {"type": "image", "source":
                {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
            {"type": "document", "source":
                {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}},
            {"type": "text", "text": "(A file of type text/csv named \"a.csv\", which says:)\n\na,b"},
            {"type": "text",
                "text": "(A file of type application/zip named \"a.zip\", which cannot be shown here.)"},
        ])
    );
}

#[tokio::test]
async fn a_failure_at_any_point_of_a_response_is_masked_and_none_of_its_calls_run() {
    let all_events = lines_of("anthropic/thoughts_and_two_calls");
    let lines: Vec<&str> = all_events.lines().collect();
    let cut = |events: usize| -> String {
        lines[..events].iter().map(|line| format!("data: {line}\n\n")).collect()
    };
    let error = r#"{"type":"error","error":{"type":"overloaded_error","message":"at 10.0.0.7"}}"#;
    let unauthorized = (401, r#"{"error":{"message":"bad key sk-very-secret"}}"#.to_owned());
    let mut responses = vec![unauthorized, (200, format!("{}data: {error}\n\n", cut(21)))];
    // A response with a stop reason is complete.
    responses.extend((0..lines.len() - 1).map(|events| (200, cut(events))));
    for (at, response) in responses.into_iter().enumerate() {
        let provider = Provider::with_responses([response]);
        let browser = asked(claude(&provider), "How is the weather?").await;
        assert_eq!(browser.error(), Some("An error occurred."), "{at}");
        assert_eq!(provider.requests().len(), 1, "{at}");
        let contents = browser.messages().last().map(MessageContents::of).unwrap_or_default();
        let has_output = contents.calls.iter().any(|call| call.2 == "output-available");
        assert!(!has_output, "{at}: {contents:?}");
    }
}
