//! Streams as providers send them: what is understood arrives, an answer is never empty in silence, and no call of a
//! response that was cut off runs.

use axum::http::StatusCode;
use chat_test_support::browser::asked;
use futures::StreamExt;
use test_support::message_contents::MessageContents;
use test_support::recorded_streams::lines_of;
use test_support::thread_subscriber::captured;
use ui_message_stream::model::{Model, ModelEvent, ModelMessage, ModelRequest, ModelStream};
use ui_message_stream::{AgentEvent, UserText};
use ui_message_stream_openai::{ChatCompletions, Endpoint, Responses};

use super::failures::fails;
use super::provider::{Provider, fixture};

/// The model of the API after which the folder of a fixture is named.
fn model(fixture: &str, provider: &Provider) -> AnyModel {
    let endpoint = Endpoint::new(&provider.address).unwrap();
    AnyModel(match fixture.split_once('/').unwrap().0 {
        "chat" => Box::new(ChatCompletions::new(endpoint, "a-model")),
        _ => Box::new(Responses::new(endpoint, "a-model")),
    })
}

#[derive(Debug)]
struct AnyModel(Box<dyn Model>);

impl Model for AnyModel {
    fn call(&self, request: ModelRequest) -> ModelStream {
        self.0.call(request)
    }
}

/// Returns the contents of an answer whose first response is this body. A second response is a text.
async fn contents_of(name: &str, body: String) -> (MessageContents, Option<String>, Provider) {
    let then = if name.starts_with("chat") { "chat/text_is_joined" } else { "responses/text" };
    let provider = Provider::with_streams([body, fixture(then)]).await;
    let browser = asked(model(name, &provider), "Tides?").await;
    let contents = MessageContents::of(browser.messages().last().unwrap());
    (contents, browser.error().map(str::to_owned), provider)
}

#[tokio::test]
async fn what_is_understood_of_a_stream_arrives() {
    let sources = ["https://a.example/", "https://b.example/"];
    for (name, reasoning, cited) in [
        ("chat/text_without_a_finish_reason", "", 0),
        ("chat/keep_alives_as_data", "", 0),
        ("chat/a_message_in_place_of_a_delta", "", 0),
        ("chat/the_whole_message_behind_its_deltas", "", 0),
        ("chat/messages_in_pieces", "", 0),
        ("chat/a_message_beside_an_empty_delta", "", 0),
        ("chat/errors_that_are_none", "", 0),
        ("chat/text_with_a_finish_reason_of_calls", "", 0),
        ("chat/fields_of_other_types", "", 0),
        ("chat/search_results_of_the_response", "", 2),
        ("chat/citations_of_the_response", "", 1),
        ("responses/keep_alives_as_data", "", 0),
        ("responses/fields_of_other_types", "", 0),
        ("responses/text_whose_item_does_not_end", "", 0),
        ("responses/items_that_end_under_another_index", "Let me think.", 0),
        ("responses/a_whole_message_behind_reasoning_without_an_index", "Let me think.", 0),
        ("responses/arguments_without_an_item", "", 0),
    ] {
        let (contents, error, _) = contents_of(name, fixture(name)).await;
        assert_eq!((&*contents.text, error), ("It is.", None), "{name}");
        assert_eq!(contents.reasoning, reasoning, "{name}");
        assert_eq!(contents.sources, sources[..cited], "{name}");
        assert!(contents.calls.is_empty(), "{name}: {contents:?}");
    }
}

#[tokio::test]
async fn a_call_runs_once_in_whichever_event_it_is_complete() {
    for (name, text) in [
        ("chat/a_call_without_a_finish_reason", ""),
        ("chat/a_call_with_null_for_its_arguments", ""),
        ("chat/a_call_only_in_the_message_behind_the_deltas", "It is."),
        ("chat/a_call_repeated_in_the_message_behind_the_deltas", "It is."),
        ("chat/a_finish_reason_in_capitals", ""),
        ("chat/null_among_the_pieces_of_a_call", ""),
        ("responses/output_only_in_the_last_event", "It is."),
        ("responses/arguments_without_the_end_of_the_item", ""),
        ("responses/a_call_whose_item_is_complete_in_the_last_event", ""),
        ("responses/items_without_an_index", "It is."),
        ("responses/items_that_are_numbered_in_two_ways", "It is."),
        ("responses/a_call_with_another_id_in_each_event", ""),
        ("responses/a_call_whose_name_comes_with_another_id", ""),
        ("responses/arguments_of_a_call_with_another_id_in_the_last_event", ""),
        ("responses/a_number_between_deltas_of_arguments_that_come_again", ""),
        ("responses/a_delta_of_text_that_is_missing_before_a_call", ""),
    ] {
        let (contents, error, provider) = contents_of(name, fixture(name)).await;
        assert_eq!(error, None, "{name}");
        assert!(contents.text.starts_with(text), "{name}: {contents:?}");
        assert_eq!(
            contents.text.matches("It is.").count(),
            usize::from(!text.is_empty()),
            "{name}"
        );
        let [(tool, input, state, _)] = &contents.calls[..] else { panic!("{name}: {contents:?}") };
        assert_eq!(
            (&**tool, input.to_string(), &**state),
            ("tides", "{}".into(), "output-available")
        );
        assert_eq!(provider.requests().len(), 2, "{name}");
        let has_reasoning =
            name.ends_with("last_event") && !text.is_empty() || name.ends_with("two_ways");
        assert_eq!(contents.reasoning, if has_reasoning { "Let me think." } else { "" }, "{name}");
    }
}

#[tokio::test]
async fn the_arguments_before_the_name_of_a_call_are_kept() {
    let name = "responses/a_call_whose_name_comes_with_its_end";
    let (contents, error, _provider) = contents_of(name, fixture(name)).await;
    assert_eq!(error, None);
    let [(tool, input, state, _)] = &contents.calls[..] else { panic!("{contents:?}") };
    let input = input.to_string();
    assert_eq!((&**tool, &*input, &**state), ("tides", r#"{"at":"ebb"}"#, "output-available"));
}

#[tokio::test]
async fn a_call_of_a_response_that_was_cut_off_does_not_run() {
    for name in [
        "chat/a_call_cut_off_before_its_arguments",
        "chat/a_finish_reason_behind_the_one_of_a_cut_off_call",
        "chat/a_call_without_arguments_or_a_finish_reason",
        "responses/a_call_of_a_response_that_is_completed_as_incomplete",
        "responses/a_call_of_a_response_that_is_completed_as_cancelled",
        "responses/a_call_cut_off_before_its_arguments",
        "responses/a_call_cut_off_in_progress",
        "responses/a_call_cut_off_without_a_status",
        "responses/a_whole_call_of_a_response_that_was_cut_off",
    ] {
        let (contents, error, _) = contents_of(name, fixture(name)).await;
        let [(tool, _, state, result)] = &contents.calls[..] else {
            panic!("{name}: {contents:?}")
        };
        assert_eq!((&**tool, &**state, error), ("tides", "output-error", None), "{name}");
        assert_eq!(*result, UserText::NotStarted.in_english(), "{name}");
    }
}

#[tokio::test]
async fn a_call_whose_input_may_lack_a_piece_does_not_run() {
    for (name, calls) in [
        ("chat/a_value_between_pieces_of_arguments", 1),
        ("chat/half_an_event_between_pieces_of_arguments", 1),
        ("chat/a_fragment_of_another_type", 1),
        ("chat/a_fragment_whose_index_is_not_a_number", 2),
        ("responses/a_number_between_deltas_of_arguments", 1),
        ("responses/a_delta_of_arguments_that_is_missing", 1),
    ] {
        let (contents, error, provider) = contents_of(name, fixture(name)).await;
        assert_eq!((contents.calls.len(), error), (calls, None), "{name}: {contents:?}");
        for (tool, _, state, result) in &contents.calls {
            assert_eq!((&**tool, &**state), ("tides", "output-error"), "{name}");
            assert_eq!(*result, UserText::NotStarted.in_english(), "{name}");
        }
        // The model reads it.
        assert_eq!(provider.requests().len(), 2, "{name}");
    }
}

/// Returns the deltas of tool inputs, and the arguments of the calls and approval requests.
async fn inputs_of(name: &str) -> (String, Vec<String>) {
    let provider = Provider::with_streams([fixture(name)]).await;
    let request = ModelRequest::new(vec![ModelMessage::user("Tides?")]);
    let (mut deltas, mut inputs) = (String::new(), Vec::new());
    for event in model(name, &provider).call(request).collect::<Vec<_>>().await {
        match event.unwrap() {
            ModelEvent::Event(AgentEvent::ToolInputDelta { delta, .. }) => deltas += &delta,
            ModelEvent::ToolCall(_, input) | ModelEvent::ProviderApprovalRequest(_, input) => {
                inputs.push(input);
            }
            _ => {}
        }
    }
    (deltas, inputs)
}

#[tokio::test]
async fn a_character_that_is_split_over_two_deltas_is_joined() {
    for api in ["chat", "responses"] {
        let name = &*format!("{api}/a_character_split_over_two_deltas");
        let (contents, error, _) = contents_of(name, fixture(name)).await;
        assert_eq!((&*contents.reasoning, error), ("Hm 😀.", None), "{name}");
        assert!(contents.text.starts_with("It 😀 is\u{FFFD}"), "{name}: {contents:?}");
        assert_eq!(contents.text.matches('\u{FFFD}').count(), 1, "{name}: {contents:?}");
        let (deltas, inputs) = inputs_of(name).await;
        let input = r#"{"at":"😀"}"#;
        assert_eq!(deltas, input, "{name}");
        let [sent] = &inputs[..] else { panic!("{name}: {inputs:?}") };
        let [sent, input] =
            [sent, input].map(|json| serde_json::from_str::<serde_json::Value>(json).unwrap());
        assert_eq!(sent, input, "{name}");
    }
}

#[tokio::test]
async fn arguments_that_are_a_json_value_keep_each_digit() {
    for (api, calls) in [("chat", 1), ("responses", 2)] {
        let (_, inputs) = inputs_of(&format!("{api}/arguments_as_a_json_value")).await;
        let input = r#"{"at": 12345678901234567890, "height": 1.10}"#;
        assert_eq!(inputs, vec![input; calls], "{api}");
    }
}

#[tokio::test]
async fn an_item_without_its_arguments_has_those_that_were_streamed() {
    let (deltas, inputs) = inputs_of("responses/an_item_without_its_arguments").await;
    assert_eq!((&*deltas, &inputs[..]), (r#"{"at":"ebb"}"#, &[deltas.clone()][..]));
}

#[tokio::test]
async fn what_follows_the_end_of_a_response_is_left_out() {
    assert_eq!(inputs_of("responses/an_item_behind_the_end").await.1, ["{}"]);
}

#[tokio::test]
async fn what_is_left_out_is_logged_once() {
    for (name, fields) in [
        (
            "chat/fields_of_other_types",
            &[
                "choices.finish_reason",
                "delta.reasoning_content",
                "delta.tool_calls",
                "event.usage",
            ][..],
        ),
        (
            "responses/fields_of_other_types",
            &["event.item", "event.item_id", "item.id", "response.output", "text.delta"],
        ),
        ("chat/a_value_between_pieces_of_arguments", &["function.arguments"]),
        ("responses/a_delta_of_arguments_that_is_missing", &["arguments.delta"]),
        // Calls that were lost.
        ("chat/text_with_a_finish_reason_of_calls", &["choices.finish_reason"]),
        ("responses/arguments_without_an_end", &["response.output"]),
        ("responses/arguments_without_an_item", &["response.output"]),
    ] {
        let (log, guard) = captured();
        inputs_of(name).await;
        drop(guard);
        let log = log.text();
        let lines = log.lines().filter(|line| line.contains("is not understood"));
        let mut logged: Vec<&str> = lines.map(|line| line.split('`').nth(1).unwrap()).collect();
        logged.sort_unstable();
        assert_eq!(logged, fields, "{name}: {log}");
    }
}

#[tokio::test]
async fn an_empty_answer_is_a_failure() {
    for name in ["chat/a_finish_reason_of_calls_without_a_call", "responses/no_output"] {
        let (contents, error, _) = contents_of(name, fixture(name)).await;
        assert_eq!(contents, MessageContents::default(), "{name}");
        assert_eq!(error.as_deref(), Some(UserText::AnswerEmpty.in_english()), "{name}");
    }
}

#[tokio::test]
async fn an_error_is_logged_in_each_form_in_which_a_provider_sends_it() {
    for (name, logged) in [
        ("chat/an_event_that_is_an_error", "529: Overloaded"),
        ("chat/an_event_that_is_an_error_in_words", "Overloaded"),
        ("chat/an_error_beside_a_choice", "529: Overloaded"),
        ("chat/a_choice_with_an_error", "502: The provider went away"),
        ("chat/an_error_as_the_finish_reason", "finish_reason: error"),
        ("responses/an_event_that_is_an_error", "529: Overloaded"),
    ] {
        let provider = Provider::with_streams([fixture(name)]).await;
        let (text, error) = fails(model(name, &provider)).await;
        assert_eq!(text, "It ", "{name}");
        assert!(
            error.contains(&format!("reports an error in its stream: {logged}")),
            "{name}: {error}"
        );
    }
}

#[tokio::test]
async fn a_server_that_does_not_stream_is_understood() {
    let last = |name: &str| {
        let lines = lines_of(name);
        serde_json::from_str::<serde_json::Value>(lines.lines().last().unwrap()).unwrap()
    };
    let chat = last("chat/a_message_in_place_of_a_delta");
    let (contents, error, _) = contents_of("chat/", chat.to_string()).await;
    assert_eq!((&*contents.text, error), ("It is.", None));
    let response = last("responses/output_only_in_the_last_event")["response"].take();
    let (contents, error, _) = contents_of("responses/", format!("{response:#}")).await;
    assert_eq!((contents.text.starts_with("It is."), error), (true, None), "{contents:?}");
    assert_eq!(contents.calls.len(), 1);
}

#[tokio::test]
async fn an_id_that_the_api_does_not_accept_is_adapted_in_the_call_and_its_result() {
    let long = "call_".to_owned() + &"x".repeat(78);
    for (name, id, longest, has_only_letters) in [
        ("chat/a_call_without_arguments", &*long, 40, false),
        // The chat templates of some models read such ids.
        ("chat/a_call_without_arguments", "functions.tides:0", 40, false),
        ("responses/output_only_in_the_last_event", &*long, 64, true),
        ("responses/output_only_in_the_last_event", "functions.tides:0", 64, true),
    ] {
        let lines = lines_of(name);
        let known = if name.starts_with("chat") { "tk1" } else { "call_x" };
        assert!(lines.contains(&format!("\"{known}\"")), "{lines}");
        let lines = lines.replace(&format!("\"{known}\""), &format!("\"{id}\""));
        let body = super::provider::as_stream(&lines);
        let (_, error, provider) = contents_of(name, body).await;
        assert_eq!(error, None, "{name}");
        let request = provider.requests()[1].body.clone();
        let list = request.get("messages").or(request.get("input")).unwrap().as_array().unwrap();
        let mut sent = Vec::new();
        for item in list {
            sent.extend(item["tool_calls"].as_array().into_iter().flatten().map(|it| &it["id"]));
            sent.extend([&item["tool_call_id"], &item["call_id"]]);
        }
        sent.retain(|id| !id.is_null());
        let [call, result] = sent[..] else { panic!("{request}") };
        assert_eq!(call, result, "{name}");
        let sent = call.as_str().unwrap();
        assert!(sent.len() <= longest, "{sent}");
        let is_plain = sent.chars().all(|it| it.is_ascii_alphanumeric() || "_-".contains(it));
        assert!(is_plain || !has_only_letters, "{sent}");
        assert_eq!(sent == id, id.len() <= longest && !has_only_letters, "{sent}");
    }
}

#[tokio::test]
async fn an_error_status_is_no_stream() {
    let body = (StatusCode::BAD_REQUEST, fixture("chat/text_is_joined"));
    let provider = Provider::with_responses([body]).await;
    assert!(fails(model("chat/", &provider)).await.1.starts_with("Some(400)"));
}
