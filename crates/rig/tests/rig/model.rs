//! The adapter of rig's models, in an agent behind the route.

use serde_json::{Value, json};
use test_support::browser::{Forecast, Held, Turns, agent, conversation};
use ui_message_stream::UiMessage;
use ui_message_stream::message::Part;
use ui_message_stream_rig::RigModel;

use super::provider::{Provider, fixture, lines_of};

const CLAUDE: &str = "claude-sonnet-4-5";

fn claude(provider: &Provider) -> RigModel {
    RigModel::new(provider.anthropic(CLAUDE)).map_request(|request| request.max_tokens(999))
}

fn ran(city: &str) -> (String, Value, String, Value) {
    let output = json!(format!("{city}: sun"));
    ("weather".into(), json!({"city": city}), "output-available".into(), output)
}

/// The second of them reads its thoughts only where tools and instructions are the same.
#[tokio::test]
async fn thoughts_text_and_parallel_calls_arrive_whole_and_go_back_as_they_came() {
    for model in [CLAUDE, "claude-opus-5"] {
        arrive_whole_and_go_back(model).await;
    }
}

async fn arrive_whole_and_go_back(model: &str) {
    let name = "anthropic/thoughts_and_two_calls";
    let provider = Provider::streaming([fixture(name), fixture("anthropic/text")]);
    let model =
        RigModel::new(provider.anthropic(model)).map_request(|request| request.max_tokens(999));
    let mut browser = conversation(agent(model).with_usage_in_metadata());
    browser.send("How is the weather?").await;
    assert_eq!(browser.error(), None);
    let message = browser.messages().last().unwrap();
    let held = Held::of(message);
    assert_eq!(held.reasoning, "Two towns — both by the sea.");
    assert_eq!(held.text, "I look at both.Sun on “both” shores. 🚢");
    assert_eq!(held.calls, [ran("Porto"), ran("Faro")]);
    let usage: Value = message.metadata.as_ref().unwrap().decode().unwrap();
    assert_eq!(usage["usage"], json!({"inputTokens": 201, "outputTokens": 99}));

    let asked = provider.asked();
    assert_eq!(asked[0]["max_tokens"], 999);
    assert_eq!(asked[0]["tools"][0]["name"], "weather");
    assert_eq!(asked[0]["tools"][0]["input_schema"]["properties"]["city"]["type"], "string");
    assert!(asked[0]["system"].to_string().contains("Be brief."), "{}", asked[0]["system"]);
    let messages = &asked[1]["messages"];
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
async fn what_a_model_kept_goes_to_no_other_model() {
    let provider = Provider::streaming([fixture("anthropic/thoughts_and_two_calls")]);
    let other = Provider::streaming([fixture("anthropic/text")]);
    let opus = RigModel::new(other.anthropic("claude-opus-4-1"));
    let mut browser = conversation(agent(Turns::new(claude(&provider), opus)));
    browser.send("How is the weather?").await;
    assert_eq!(browser.error(), None);
    let asked = other.asked()[0].to_string();
    assert!(asked.contains("I look at both.") && asked.contains("Porto: sun"), "{asked}");
    assert!(!asked.contains("c2lnbmVk") && !asked.contains("bm90IGZvciB5b3U="), "{asked}");
}

#[tokio::test]
async fn a_text_is_not_kept_twice() {
    let provider = Provider::streaming([fixture("anthropic/text")]);
    let mut browser = conversation(agent(claude(&provider)));
    browser.send("Hello").await;
    let message = browser.messages().last().unwrap();
    let text = message.parts.iter().find_map(|part| match part {
        Part::Text(text) => Some(text),
        _ => None,
    });
    assert_eq!(text.unwrap().provider_metadata, None);
}

#[tokio::test]
async fn chat_completions_arrive_through_rig_as_they_do_without() {
    let two = [ran("Porto"), ran("Faro")];
    let tides = ("tides".to_owned(), json!({}), "output-available".to_owned(), json!("low"));
    let thought = "They ask for the weather.";
    for (name, reasoning, text, calls) in [
        ("text_is_joined", "", "", &[][..]),
        ("two_calls_whose_pieces_alternate", "", "", &two[..]),
        ("a_call_without_arguments", "", "", &[tides][..]),
        ("reasoning_then_arguments_in_pieces", thought, "I look.", &[ran("Lisbon")][..]),
    ] {
        let last = "The harbour is “calm” — 🚢\ntoday.";
        let answers = [fixture(&format!("chat/{name}")), fixture("chat/text_is_joined")];
        let provider = Provider::streaming(answers);
        let mut browser = conversation(agent(RigModel::new(provider.chat())));
        browser.send("How is the weather?").await;
        assert_eq!(browser.error(), None, "{name}");
        let held = Held::of(browser.messages().last().unwrap());
        assert_eq!(held.reasoning, reasoning, "{name}");
        let closing = if calls.is_empty() { "" } else { last };
        let text = if calls.is_empty() { last } else { text };
        assert_eq!(held.text, format!("{text}{closing}"), "{name}");
        assert_eq!(held.calls, calls, "{name}");
        let asked = provider.asked();
        assert_eq!(asked.len(), if calls.is_empty() { 1 } else { 2 }, "{name}");
        let Some(again) = asked.get(1) else { continue };
        let messages = again["messages"].as_array().unwrap();
        let made = messages.iter().find_map(|message| message["tool_calls"].as_array()).unwrap();
        let answered: Vec<&Value> =
            messages.iter().filter(|message| message["role"] == "tool").collect();
        assert_eq!((made.len(), answered.len()), (calls.len(), calls.len()), "{name}");
        for (made, answered) in made.iter().zip(answered) {
            assert_eq!(made["id"], answered["tool_call_id"], "{name}");
        }
    }
}

/// rig tells some providers only once a tool has answered.
#[tokio::test]
async fn an_answer_in_a_structure_is_asked_for() {
    let answers = ["chat/a_call_without_arguments", "chat/text_is_joined", "anthropic/text"];
    let provider = Provider::streaming(answers.map(fixture));
    for model in [RigModel::new(provider.chat()), claude(&provider)] {
        let mut browser = conversation(agent(model).with_output::<Forecast>());
        browser.send("How is the weather?").await;
        assert_eq!(browser.error(), Some("The answer is not in the form that it was to have."));
    }
    let asked = provider.asked();
    let (chat, claude) = (&asked[1]["response_format"], &asked[2]["output_config"]["format"]);
    assert_eq!(chat["json_schema"]["name"], "Forecast", "{}", asked[1]);
    for (format, schema) in [(chat, &chat["json_schema"]["schema"]), (claude, &claude["schema"])] {
        assert_eq!(format["type"], "json_schema");
        assert_eq!(schema["properties"]["city"]["type"], "string");
    }
}

#[tokio::test]
async fn an_encrypted_thought_goes_back_with_its_item() {
    let answers = ["reasoning_and_a_function_call", "text"];
    let provider = Provider::streaming(answers.map(|name| fixture(&format!("responses/{name}"))));
    let mut browser = conversation(agent(RigModel::new(provider.responses())));
    browser.send("How is the weather?").await;
    assert_eq!(browser.error(), None);
    let held = Held::of(browser.messages().last().unwrap());
    assert!(!held.reasoning.is_empty() && held.calls.len() == 1, "{held:?}");
    let events = lines_of("responses/reasoning_and_a_function_call");
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut done = events.filter(|event| event["type"] == "response.output_item.done");
    let thought = done.find(|event| event["item"]["type"] == "reasoning").unwrap()["item"].clone();
    assert!(thought["encrypted_content"].is_string(), "{thought}");
    let input = provider.asked()[1]["input"].as_array().unwrap().clone();
    let back = input.iter().find(|item| item["type"] == "reasoning").unwrap();
    assert_eq!(back["encrypted_content"], thought["encrypted_content"]);
    assert_eq!(back["id"], thought["id"]);
}

#[tokio::test]
async fn half_an_input_is_shown_as_it_came_and_the_model_reads_why() {
    let answers = ["chat/a_call_with_half_an_input", "chat/text_is_joined"].map(fixture);
    let provider = Provider::streaming(answers);
    let mut browser = conversation(agent(RigModel::new(provider.chat())));
    browser.send("How is the weather?").await;
    assert_eq!(browser.error(), None);
    let message = serde_json::to_value(browser.messages().last().unwrap()).unwrap();
    let parts = message["parts"].as_array().unwrap();
    let call = parts.iter().find(|part| part["type"] == "tool-weather").unwrap();
    assert_eq!(call["rawInput"], "{\"city\": \"Fa");
    assert_eq!(call["state"], "output-error");
    let told = provider.asked()[1]["messages"].to_string();
    assert!(told.contains("the input is not usable"), "{told}");
}

#[tokio::test]
async fn two_calls_of_one_id_are_two() {
    let doubled = lines_of("anthropic/thoughts_and_two_calls").replace("toolu_02", "toolu_01");
    let answers = [super::provider::as_stream(&doubled), fixture("anthropic/text")];
    let provider = Provider::streaming(answers);
    let mut browser = conversation(agent(claude(&provider)));
    browser.send("How is the weather?").await;
    assert_eq!(browser.error(), None);
    let held = Held::of(browser.messages().last().unwrap());
    assert_eq!(held.calls, [ran("Porto"), ran("Faro")]);
    let results = provider.asked()[1]["messages"][2]["content"].as_array().unwrap().clone();
    assert_eq!(results.len(), 2);
    assert_ne!(results[0]["tool_use_id"], results[1]["tool_use_id"]);
}

#[tokio::test]
async fn files_are_sent_as_rig_takes_them_or_named() {
    let provider = Provider::streaming([fixture("anthropic/text")]);
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
    let content = provider.asked()[0]["messages"][0]["content"].clone();
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
async fn a_failure_is_masked_wherever_it_comes_and_no_call_of_it_runs() {
    let whole = lines_of("anthropic/thoughts_and_two_calls");
    let lines: Vec<&str> = whole.lines().collect();
    let cut = |events: usize| -> String {
        lines[..events].iter().map(|line| format!("data: {line}\n\n")).collect()
    };
    let error = r#"{"type":"error","error":{"type":"overloaded_error","message":"at 10.0.0.7"}}"#;
    let refused = (401, r#"{"error":{"message":"bad key sk-very-secret"}}"#.to_owned());
    let mut answers = vec![refused, (200, format!("{}data: {error}\n\n", cut(21)))];
    // With the reason why it stops, an answer is whole.
    answers.extend((0..lines.len() - 1).map(|events| (200, cut(events))));
    for (at, answer) in answers.into_iter().enumerate() {
        let provider = Provider::answering([answer]);
        let mut browser = conversation(agent(claude(&provider)));
        browser.send("How is the weather?").await;
        assert_eq!(browser.error(), Some("An error occurred."), "{at}");
        assert_eq!(provider.asked().len(), 1, "{at}");
        let held = browser.messages().last().map(Held::of).unwrap_or_default();
        let ran = held.calls.iter().any(|call| call.2 == "output-available");
        assert!(!ran, "{at}: {held:?}");
    }
}
