//! Chat Completions: each provider's way of saying the same.

use serde_json::{Value, json};
use test_support::browser::{Forecast, Held, Turns, agent, conversation};
use ui_message_stream::Json;
use ui_message_stream::message::Part;
use ui_message_stream_openai::{ChatCompletions, Endpoint};

use super::provider::{Provider, fixture, lines_of};

fn model(provider: &Provider) -> ChatCompletions {
    let endpoint = Endpoint::new(&provider.address).unwrap().with_key("sk-test").unwrap();
    ChatCompletions::new(endpoint, "a-model")
}

/// What the browser holds when a provider answers a question with these fixtures, one a step.
async fn held(fixtures: &[&str]) -> (Held, Provider) {
    let answers = fixtures.iter().map(|name| fixture(&format!("chat/{name}")));
    let provider = Provider::streaming(answers).await;
    let mut browser = conversation(agent(model(&provider)));
    browser.send("How is the weather?").await;
    assert_eq!(browser.error(), None);
    (Held::of(browser.messages().last().unwrap()), provider)
}

fn ran(city: &str) -> (String, Value, String, Value) {
    let output = json!(format!("{city}: sun"));
    ("weather".into(), json!({"city": city}), "output-available".into(), output)
}

const THE_TEXT: &str = "The harbour is “calm” — 🚢\ntoday.";

#[tokio::test]
async fn text_arrives_whole_and_the_request_is_what_the_api_takes() {
    let (held, provider) = held(&["text_is_joined"]).await;
    assert_eq!(held, Held { text: THE_TEXT.to_owned(), ..Held::default() });
    let asked = &provider.asked()[0];
    assert_eq!(asked.uri, "/v1/chat/completions");
    assert_eq!(asked.headers["authorization"], "Bearer sk-test");
    assert_eq!(asked.headers["content-type"], "application/json");
    let body = &asked.body;
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
async fn each_providers_calls_run_and_the_model_reads_the_results() {
    let two = [ran("Porto"), ran("Faro")];
    let tides = ("tides".to_owned(), json!({}), "output-available".to_owned(), json!("low"));
    for (name, reasoning, text, calls) in [
        (
            "reasoning_then_arguments_in_pieces",
            "They ask for the weather.",
            "I look.",
            &[ran("Lisbon")][..],
        ),
        ("two_calls_whose_pieces_alternate", "", "", &two[..]),
        ("a_call_without_arguments", "", "", &[tides][..]),
        ("a_call_without_an_index_in_the_last_chunk", "", "", &[ran("Coimbra")][..]),
        ("usage_behind_the_finish_reason", "First, look.", "", &[ran("Braga")][..]),
        ("whole_calls_of_one_index", "", "", &two[..]),
        ("a_call_whose_pieces_are_counted", "", "", &[ran("Tavira")][..]),
    ] {
        let (held, provider) = held(&[name, "text_is_joined"]).await;
        assert_eq!(held.reasoning, reasoning, "{name}");
        assert_eq!(held.text, format!("{text}{THE_TEXT}"), "{name}");
        assert_eq!(held.calls, calls, "{name}");
        let messages = provider.asked()[1].body["messages"].as_array().unwrap().clone();
        let said = &messages[2];
        assert_eq!(said["content"], if text.is_empty() { Value::Null } else { text.into() });
        assert_eq!(said.get("reasoning_content"), None, "{name}");
        let made = said["tool_calls"].as_array().unwrap();
        assert_eq!(made.len(), calls.len(), "{name}");
        for (at, (made, (tool, input, _, output))) in made.iter().zip(calls).enumerate() {
            assert_eq!(made["function"]["name"], **tool, "{name}");
            let arguments = made["function"]["arguments"].as_str().unwrap();
            assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), *input, "{name}");
            let result = &messages[3 + at];
            assert_eq!(result["role"], "tool", "{name}");
            assert_eq!(result["tool_call_id"], made["id"], "{name}");
            assert_eq!(result["content"], *output, "{name}");
        }
        assert_eq!(messages.len(), 3 + calls.len(), "{name}");
    }
}

#[tokio::test]
async fn reasoning_that_stands_among_the_content_is_reasoning() {
    let (held, _) = held(&["reasoning_in_pieces_of_content"]).await;
    assert_eq!((&*held.reasoning, &*held.text), ("Let me think.", "It is."));
}

#[tokio::test]
async fn pages_that_are_cited_are_sources() {
    let provider = Provider::streaming(
        ["text_with_citations"; 2].map(|name| fixture(&format!("chat/{name}"))),
    )
    .await;
    let mut browser = conversation(agent(model(&provider)));
    browser.send("News?").await;
    browser.send("And?").await;
    assert_eq!(browser.error(), None);
    let held = Held::of(browser.messages().last().unwrap());
    assert_eq!(held.text, "It reopened today.");
    assert_eq!(held.sources, ["https://news.example/a", "https://news.example/b"]);
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
async fn a_denied_call_is_told_to_the_model_as_not_executed() {
    let answers = ["a_call_without_arguments", "text_is_joined"];
    let provider = Provider::streaming(answers.map(|name| fixture(&format!("chat/{name}")))).await;
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Nothing {}
    let tides = ui_message_stream::agent::Tool::new("tides", async |_: Nothing| {
        Err::<u8, _>(std::io::Error::other("it ran"))
    });
    let agent = ui_message_stream::agent::Agent::new(model(&provider)).tool(tides.needs_approval());
    let mut browser = conversation(agent);
    browser.send("Tides?").await;
    browser.deny("tides", "not today").await;
    assert_eq!(browser.last_text(), THE_TEXT);
    assert_eq!(
        provider.asked()[1].body["messages"][2]["content"],
        "This tool call was denied. It was not executed, and it is not queued. Reason: not today"
    );
}

#[tokio::test]
async fn the_host_sets_fields_and_may_send_the_reasoning_back() {
    let answers = ["reasoning_then_arguments_in_pieces", "text_is_joined"];
    let provider = Provider::streaming(answers.map(|name| fixture(&format!("chat/{name}")))).await;
    let model = model(&provider)
        .with_field("temperature", &Json::parse("0.5").unwrap())
        .with_field("stream_options", &Json::null())
        .with_reasoning_content();
    conversation(agent(model)).send("How is the weather?").await;
    let body = &provider.asked()[1].body;
    assert_eq!(body["temperature"], 0.5);
    assert_eq!(body.get("stream_options"), None);
    assert_eq!(body["messages"][2]["reasoning_content"], "They ask for the weather.");
}

/// How a provider is asked for it.
pub(crate) fn asked_for() -> Value {
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
async fn an_answer_in_a_structure_is_asked_for() {
    let provider = Provider::streaming([fixture("chat/text_is_joined")]).await;
    let mut browser = conversation(agent(model(&provider)).with_output::<Forecast>());
    browser.send("How is the weather?").await;
    assert_eq!(
        provider.asked()[0].body["response_format"],
        json!({"type": "json_schema", "json_schema": asked_for()})
    );
    assert_eq!(browser.error(), Some("The answer is not in the form that it was to have."));
}

/// What the model is told it said, once it reads the results of these calls.
async fn told(name: &str) -> Value {
    let (_, provider) = held(&[name, "text_is_joined"]).await;
    provider.asked()[1].body["messages"][2].clone()
}

#[tokio::test]
async fn signatures_of_calls_go_back_with_the_calls() {
    let said = told("calls_with_signatures").await;
    let signature = json!({"google": {"thought_signature": "EjQK-first"}});
    assert_eq!(said["tool_calls"][0]["extra_content"], signature);
    assert_eq!(said["tool_calls"][1].get("extra_content"), None);
    assert_eq!(said.get("reasoning_details"), None);
}

#[tokio::test]
async fn what_a_server_wants_to_know_of_the_thoughts_goes_back_as_it_was() {
    let said = told("reasoning_details_in_pieces").await;
    let sealed = |data: &str, id: &str| {
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
        said["reasoning_details"],
        json!([text, sealed("CiQB-sealed", "toolu_1"), sealed("CiQB-sealed-too", "toolu_2")])
    );
}

#[tokio::test]
async fn thinking_blocks_go_back_whole_with_their_signatures() {
    let said = told("thinking_blocks_in_pieces").await;
    let thought = |text: &str, signature: &str| json!({"type": "thinking", "thinking": text, "signature": signature});
    assert_eq!(
        said["thinking_blocks"],
        json!([
            thought("They ask for it.", "EqoB-signed"),
            {"type": "redacted_thinking", "data": "EroB-sealed"},
            thought("Now.", "EqoB-again"),
        ])
    );
    assert_eq!(said["tool_calls"][0]["id"], "toolu_1");
}

#[tokio::test]
async fn another_model_is_not_told_what_this_ones_server_wants_back() {
    for name in
        ["calls_with_signatures", "reasoning_details_in_pieces", "thinking_blocks_in_pieces"]
    {
        let answers = [name, "text_is_joined"].map(|name| fixture(&format!("chat/{name}")));
        let provider = Provider::streaming(answers).await;
        let endpoint = Endpoint::new(&provider.address).unwrap();
        let other = ChatCompletions::new(endpoint, "another-model");
        let mut browser = conversation(agent(Turns::new(model(&provider), other)));
        browser.send("How is the weather?").await;
        assert_eq!(browser.error(), None);
        let said = &provider.asked()[1].body["messages"][2];
        assert_eq!(said["tool_calls"][0].get("extra_content"), None);
        assert_eq!(said.get("reasoning_details"), None);
        assert_eq!(said.get("thinking_blocks"), None);
        let sent = browser.last_chunks().iter().map(|chunk| format!("{chunk:?}"));
        assert!(!sent.collect::<String>().contains("a-model"), "it is nothing for the browser");
    }
}

#[tokio::test]
async fn nor_is_a_model_of_the_same_name_behind_another_port() {
    let here = Provider::streaming([fixture("chat/calls_with_signatures")]).await;
    let there = Provider::streaming([fixture("chat/text_is_joined")]).await;
    let turns = Turns::new(model(&here), model(&there));
    conversation(agent(turns)).send("How is the weather?").await;
    let said = &there.asked()[0].body["messages"][2];
    assert_eq!(said["tool_calls"].as_array().unwrap().len(), 2);
    assert_eq!(said["tool_calls"][0].get("extra_content"), None);
}

#[tokio::test]
async fn a_call_that_was_cut_off_before_its_arguments_does_not_run() {
    let lines = lines_of("chat/a_call_cut_off_before_its_arguments");
    let ends = ["length", "content_filter", "error"];
    let ends = ends.map(|end| super::provider::as_stream(&lines.replace("length", end)));
    for stream in ends {
        let provider = Provider::streaming([stream.clone(), fixture("chat/text_is_joined")]).await;
        let mut browser = conversation(agent(model(&provider)));
        browser.send("Tides?").await;
        let held = Held::of(browser.messages().last().unwrap());
        let [(tool, _, state, said)] = &held.calls[..] else { panic!("{held:?}") };
        assert_eq!((&**tool, &**state), ("tides", "output-error"), "{stream}");
        assert!(said.as_str().unwrap().starts_with("the input is not usable"), "{said}");
        assert_eq!(provider.asked()[1].body["messages"][3]["content"], *said);
    }
}
