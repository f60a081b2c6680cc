//! Responses of Chat Completions in the variants that different providers send.

use chat_test_support::browser::{Forecast, Turns, agent, asked, conversation, say};
use serde_json::{Value, json};
use test_support::message_contents::MessageContents;
use ui_message_stream::message::Part;
use ui_message_stream::{Json, UserText};
use ui_message_stream_openai::{ChatCompletions, Endpoint};

use super::provider::{Provider, fixture, lines_of};

fn model(provider: &Provider) -> ChatCompletions {
    let endpoint = Endpoint::new(&provider.address).unwrap().with_key("sk-test").unwrap();
    ChatCompletions::new(endpoint, "a-model")
}

/// Runs a turn in which the provider answers each step with the next fixture. Returns the contents
/// of the browser's message, and the provider.
async fn run_turn(fixtures: &[&str]) -> (MessageContents, Provider) {
    let streams = fixtures.iter().map(|name| fixture(&format!("chat/{name}")));
    let provider = Provider::with_streams(streams).await;
    let mut browser = conversation(agent(model(&provider)));
    say(&mut browser, "How is the weather?").await;
    (MessageContents::of(browser.messages().last().unwrap()), provider)
}

fn weather_call(city: &str) -> (String, Value, String, Value) {
    let output = json!(format!("{city}: sun"));
    ("weather".into(), json!({"city": city}), "output-available".into(), output)
}

const THE_TEXT: &str = "The harbour is “calm” — 🚢\ntoday.";

#[tokio::test]
async fn text_arrives_complete_and_the_request_has_the_form_of_the_api() {
    let (contents, provider) = run_turn(&["text_is_joined"]).await;
    assert_eq!(
        contents,
        MessageContents { text: THE_TEXT.to_owned(), ..MessageContents::default() }
    );
    let request = &provider.requests()[0];
    assert_eq!(request.uri, "/v1/chat/completions");
    assert_eq!(request.headers["authorization"], "Bearer sk-test");
    assert_eq!(request.headers["content-type"], "application/json");
    let body = &request.body;
    assert_eq!(body["model"], "a-model");
    assert_eq!(body["stream"], true);
    assert_eq!(body["stream_options"], json!({"include_usage": true}));
    assert_eq!(
        body["messages"],
        json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "How is the weather?"},
        ])
    );
    let tool = &body["tools"][0];
    assert_eq!(tool["type"], "function");
    assert_eq!(tool["function"]["name"], "weather");
    assert_eq!(tool["function"]["parameters"]["properties"]["city"]["type"], "string");
}

#[tokio::test]
async fn the_calls_of_each_provider_run_and_their_results_are_sent_to_the_model() {
    let two = [weather_call("Porto"), weather_call("Faro")];
    let tides = ("tides".to_owned(), json!({}), "output-available".to_owned(), json!("low"));
    for (name, reasoning, text, calls) in [
        (
            "reasoning_then_arguments_in_pieces",
            "They ask for the weather.",
            "I look.",
            &[weather_call("Lisbon")][..],
        ),
        ("two_calls_whose_pieces_alternate", "", "", &two[..]),
        ("a_call_without_arguments", "", "", &[tides][..]),
        ("a_call_without_an_index_in_the_last_chunk", "", "", &[weather_call("Coimbra")][..]),
        ("usage_behind_the_finish_reason", "First, look.", "", &[weather_call("Braga")][..]),
        ("whole_calls_of_one_index", "", "", &two[..]),
        ("a_call_whose_pieces_are_counted", "", "", &[weather_call("Tavira")][..]),
    ] {
        let (contents, provider) = run_turn(&[name, "text_is_joined"]).await;
        assert_eq!(contents.reasoning, reasoning, "{name}");
        assert_eq!(contents.text, format!("{text}{THE_TEXT}"), "{name}");
        assert_eq!(contents.calls, calls, "{name}");
        let messages = provider.requests()[1].body["messages"].as_array().unwrap().clone();
        let message = &messages[2];
        assert_eq!(message["content"], if text.is_empty() { Value::Null } else { text.into() });
        assert_eq!(message.get("reasoning_content"), None, "{name}");
        let sent_calls = message["tool_calls"].as_array().unwrap();
        assert_eq!(sent_calls.len(), calls.len(), "{name}");
        for (at, (sent_call, (tool, input, _, output))) in sent_calls.iter().zip(calls).enumerate()
        {
            assert_eq!(sent_call["function"]["name"], **tool, "{name}");
            let arguments = sent_call["function"]["arguments"].as_str().unwrap();
            assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), *input, "{name}");
            let result = &messages[3 + at];
            assert_eq!(result["role"], "tool", "{name}");
            assert_eq!(result["tool_call_id"], sent_call["id"], "{name}");
            assert_eq!(result["content"], *output, "{name}");
        }
        assert_eq!(messages.len(), 3 + calls.len(), "{name}");
    }
}

#[tokio::test]
async fn reasoning_inside_the_content_becomes_a_reasoning_part() {
    let (contents, _) = run_turn(&["reasoning_in_pieces_of_content"]).await;
    assert_eq!((&*contents.reasoning, &*contents.text), ("Let me think.", "It is."));
}

#[tokio::test]
async fn cited_pages_become_source_parts_with_different_ids() {
    let provider = Provider::with_streams(
        ["text_with_citations"; 2].map(|name| fixture(&format!("chat/{name}"))),
    )
    .await;
    let mut browser = asked(model(&provider), "News?").await;
    say(&mut browser, "And?").await;
    let contents = MessageContents::of(browser.messages().last().unwrap());
    assert_eq!(contents.text, "It reopened today.");
    assert_eq!(contents.sources, ["https://news.example/a", "https://news.example/b"]);
    let parts = browser.messages().iter().flat_map(|message| &message.parts);
    let titles_and_ids = parts.filter_map(|part| match part {
        Part::SourceUrl(source) => Some((source.title.as_deref(), &*source.source_id)),
        _ => None,
    });
    let (titles, mut ids): (Vec<Option<&str>>, Vec<&str>) = titles_and_ids.unzip();
    assert_eq!(titles, [Some("Harbour reopens"), None, Some("Harbour reopens"), None]);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 4);
}

#[tokio::test]
async fn the_model_reads_that_a_denied_call_was_not_executed() {
    let streams = ["a_call_without_arguments", "text_is_joined"];
    let provider =
        Provider::with_streams(streams.map(|name| fixture(&format!("chat/{name}")))).await;
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Nothing {}
    let tides = ui_message_stream_agent::Tool::new("tides", async |_: Nothing| {
        Err::<u8, _>(std::io::Error::other("it ran"))
    });
    let agent = ui_message_stream_agent::Agent::new(model(&provider)).tool(tides.needs_approval());
    let mut browser = conversation(agent);
    browser.send("Tides?").await;
    browser.deny("tides", "not today").await;
    assert_eq!(browser.last_text(), THE_TEXT);
    assert_eq!(
        provider.requests()[1].body["messages"][2]["content"],
        "This tool call was denied. It was not executed, and it is not queued. Reason: not today"
    );
}

#[tokio::test]
async fn the_host_can_set_and_remove_fields_and_send_reasoning_back() {
    let streams = ["reasoning_then_arguments_in_pieces", "text_is_joined"];
    let provider =
        Provider::with_streams(streams.map(|name| fixture(&format!("chat/{name}")))).await;
    let model = model(&provider)
        .with_field("temperature", &Json::parse("0.5").unwrap())
        .with_field("stream_options", &Json::null())
        .with_reasoning_content();
    conversation(agent(model)).send("How is the weather?").await;
    let body = &provider.requests()[1].body;
    assert_eq!(body["temperature"], 0.5);
    assert_eq!(body.get("stream_options"), None);
    assert_eq!(body["messages"][2]["reasoning_content"], "They ask for the weather.");
}

/// Returns the output format with which a `Forecast` is requested.
pub(crate) fn forecast_format() -> Value {
    json!({"name": "Forecast", "strict": true, "schema": {
        "title": "Forecast", "description": "An answer in a structure.", "type": "object",
        "properties": {
            "city": {"type": "string"},
            "degrees": {"type": ["integer", "null"], "minimum": -128, "maximum": 127},
        },
        "required": ["city", "degrees"], "additionalProperties": false,
    }})
}

#[tokio::test]
async fn structured_output_is_requested_with_its_schema() {
    let streams = ["chat/text_is_joined"; 2].map(fixture);
    let provider = Provider::with_streams(streams).await;
    let mut browser = conversation(agent(model(&provider)).with_output::<Forecast>());
    browser.send("How is the weather?").await;
    assert_eq!(
        provider.requests()[0].body["response_format"],
        json!({"type": "json_schema", "json_schema": forecast_format()})
    );
    assert_eq!(browser.error(), Some("The answer is not in the form that it was to have."));
}

/// Returns the assistant message of the second request, after a first response with this fixture.
async fn message_sent_after(name: &str) -> Value {
    let (_, provider) = run_turn(&[name, "text_is_joined"]).await;
    provider.requests()[1].body["messages"][2].clone()
}

#[tokio::test]
async fn signatures_of_calls_are_sent_back_with_the_calls() {
    let message = message_sent_after("calls_with_signatures").await;
    let signature = json!({"google": {"thought_signature": "EjQK-first"}});
    assert_eq!(message["tool_calls"][0]["extra_content"], signature);
    assert_eq!(message["tool_calls"][1].get("extra_content"), None);
    assert_eq!(message.get("reasoning_details"), None);
}

#[tokio::test]
async fn reasoning_details_are_sent_back_unchanged() {
    let message = message_sent_after("reasoning_details_in_pieces").await;
    let encrypted = |data: &str, id: &str| {
        json!({
            "type": "reasoning.encrypted", "data": data, "id": id,
            "format": "google-gemini-v1", "index": 0,
        })
    };
    let text = json!({
        "type": "reasoning.text", "text": "They ask for it.", "signature": "Er4-signed",
        "format": "anthropic-claude-v1", "index": 0,
    });
    assert_eq!(
        message["reasoning_details"],
        json!([text, encrypted("CiQB-sealed", "toolu_1"), encrypted("CiQB-sealed-too", "toolu_2")])
    );
}

#[tokio::test]
async fn thinking_blocks_are_sent_back_complete_with_their_signatures() {
    let message = message_sent_after("thinking_blocks_in_pieces").await;
    let thinking = |text: &str, signature: &str| json!({"type": "thinking", "thinking": text, "signature": signature});
    assert_eq!(
        message["thinking_blocks"],
        json!([
            thinking("They ask for it.", "EqoB-signed"),
            {"type": "redacted_thinking", "data": "EroB-sealed"},
            thinking("Now.", "EqoB-again"),
        ])
    );
    assert_eq!(message["tool_calls"][0]["id"], "toolu_1");
}

#[tokio::test]
async fn state_of_one_model_is_not_sent_to_another_model() {
    for name in
        ["calls_with_signatures", "reasoning_details_in_pieces", "thinking_blocks_in_pieces"]
    {
        let streams = [name, "text_is_joined"].map(|name| fixture(&format!("chat/{name}")));
        let provider = Provider::with_streams(streams).await;
        let endpoint = Endpoint::new(&provider.address).unwrap();
        let other_model = ChatCompletions::new(endpoint, "another-model");
        let mut browser = conversation(agent(Turns::new(model(&provider), other_model)));
        say(&mut browser, "How is the weather?").await;
        let message = &provider.requests()[1].body["messages"][2];
        assert_eq!(message["tool_calls"][0].get("extra_content"), None);
        assert_eq!(message.get("reasoning_details"), None);
        assert_eq!(message.get("thinking_blocks"), None);
        let chunks = browser.last_chunks().iter().map(|chunk| format!("{chunk:?}"));
        assert!(
            !chunks.collect::<String>().contains("a-model"),
            "the browser does not receive the name of the model"
        );
    }
}

#[tokio::test]
async fn state_of_a_model_is_not_sent_to_a_model_of_the_same_name_at_another_address() {
    let first = Provider::with_streams([fixture("chat/calls_with_signatures")]).await;
    let second = Provider::with_streams([fixture("chat/text_is_joined")]).await;
    let turns = Turns::new(model(&first), model(&second));
    conversation(agent(turns)).send("How is the weather?").await;
    let message = &second.requests()[0].body["messages"][2];
    assert_eq!(message["tool_calls"].as_array().unwrap().len(), 2);
    assert_eq!(message["tool_calls"][0].get("extra_content"), None);
}

#[tokio::test]
async fn a_call_that_was_cut_off_before_its_arguments_does_not_run() {
    let lines = lines_of("chat/a_call_cut_off_before_its_arguments");
    let ends = ["length", "content_filter", "insufficient_system_resource", "abort"];
    let ends = ends.map(|end| super::provider::as_stream(&lines.replace("length", end)));
    for stream in ends {
        let provider =
            Provider::with_streams([stream.clone(), fixture("chat/text_is_joined")]).await;
        let browser = asked(model(&provider), "Tides?").await;
        let contents = MessageContents::of(browser.messages().last().unwrap());
        let [(tool, _, state, error)] = &contents.calls[..] else { panic!("{contents:?}") };
        assert_eq!((&**tool, &**state), ("tides", "output-error"), "{stream}");
        assert_eq!(*error, UserText::NotStarted.in_english());
        assert_eq!(provider.requests()[1].body["messages"][3]["content"], *error);
    }
}

#[tokio::test]
async fn a_call_without_arguments_runs_after_each_reason_that_ends_a_complete_response() {
    let lines = lines_of("chat/a_call_without_arguments");
    for end in ["tool_calls", "function_call", "tool_use", "stop", "stop_sequence", "eos_token"] {
        let stream = lines.replace(r#""tool_calls"}"#, &format!(r#""{end}"}}"#));
        assert!(stream.contains(&format!(r#""finish_reason":"{end}""#)), "{stream}");
        let streams = [super::provider::as_stream(&stream), fixture("chat/text_is_joined")];
        let provider = Provider::with_streams(streams).await;
        let browser = asked(model(&provider), "Tides?").await;
        let contents = MessageContents::of(browser.messages().last().unwrap());
        let [(tool, _, state, _)] = &contents.calls[..] else { panic!("{contents:?}") };
        assert_eq!((&**tool, &**state), ("tides", "output-available"), "{end}");
    }
}
