//! Responses that the provider stores: a request contains only the new messages, and a chat
//! continues if the provider does not find a response or did not complete it.

use axum::http::StatusCode;
use chat_test_support::browser::{agent, asked, conversation, say};
use futures::StreamExt;
use serde_json::{Value, json};
use test_support::message_contents::MessageContents;
use ui_message_stream::Json;
use ui_message_stream::metadata::ProviderMetadata;
use ui_message_stream::model::{
    AssistantContent, Model, ModelMessage, ModelRequest, ModelStream, NotExecutedReason,
    TextContent, ToolCallContent, ToolResult, ToolResultContent,
};
use ui_message_stream_openai::{Endpoint, Responses};

use super::failures::fails;
use super::provider::{Provider, fixture, lines_of};

fn model(provider: &Provider) -> Responses {
    let endpoint = Endpoint::new(&provider.address).unwrap();
    Responses::new(endpoint, "a-model").with_stored_responses()
}

fn bodies(provider: &Provider) -> Vec<Value> {
    provider.requests().into_iter().map(|request| request.body).collect()
}

fn user_message(text: &str) -> Value {
    json!({"role": "user", "content": [{"type": "input_text", "text": text}]})
}

/// Returns a stream of the first events of a fixture, followed by other events.
fn cut(name: &str, events: usize, then: &[Value]) -> String {
    let lines = lines_of(name);
    let first_events = lines.lines().take(events).map(str::to_owned);
    let events = first_events.chain(then.iter().map(Value::to_string));
    events.map(|event| format!("data: {event}\n\n")).collect()
}

#[tokio::test]
async fn only_messages_after_the_stored_response_are_sent() {
    let fixtures = ["reasoning_and_a_function_call", "text", "text"];
    let fixtures = fixtures.map(|name| fixture(&format!("responses/{name}")));
    let provider = Provider::with_streams(fixtures).await;
    let mut browser = asked(model(&provider), "How is the weather?").await;
    say(&mut browser, "And now?").await;
    let bodies = bodies(&provider);
    assert_eq!(bodies[0].get("previous_response_id"), None);
    assert_eq!(bodies[0]["store"], true);
    assert_eq!(bodies[1]["previous_response_id"], "resp_r");
    let output =
        json!({"type": "function_call_output", "call_id": "call_1", "output": "Lisbon: sun"});
    assert_eq!(bodies[1]["input"], json!([output]));
    assert_eq!(bodies[2]["previous_response_id"], "resp_t");
    assert_eq!(bodies[2]["input"], json!([user_message("And now?")]));
}

#[tokio::test]
async fn a_whole_message_comes_before_the_error_that_ends_the_response() {
    let body = fixture("responses/an_error_behind_a_whole_message");
    let provider = Provider::with_streams([body]).await;
    let (text, error) = fails(model(&provider)).await;
    assert_eq!(text, "It ");
    assert!(error.contains("529: Overloaded"), "{error}");
}

#[tokio::test]
async fn an_approval_whose_response_was_cut_off_is_neither_sent_again_nor_revoked() {
    for is_stored in [false, true] {
        let responses = [
            fixture("responses/mcp_approval_asked"),
            cut("responses/mcp_approval_approved", 1, &[]),
            fixture("responses/text"),
        ];
        let provider = Provider::with_streams(responses).await;
        let endpoint = Endpoint::new(&provider.address).unwrap();
        let not_stored = Responses::new(endpoint, "a-model");
        let model = if is_stored { model(&provider) } else { not_stored };
        let mut browser = asked(model, "Shorten it").await;
        browser.approve("mcp.links.shorten").await;
        let bodies = bodies(&provider);
        assert!(bodies[1]["input"].to_string().contains(r#""approve":true"#), "{bodies:?}");
        browser.send("And now?").await;
        let last_body = &provider.requests()[2].body;
        let input = last_body["input"].to_string();
        assert!(!input.contains("mcp_approval"), "{input}");
        assert!(input.contains("no result"), "{input}");
        assert_eq!(last_body.get("previous_response_id"), None, "{last_body}");
    }
}

#[tokio::test]
async fn a_request_continues_from_the_last_completed_response() {
    let failed = json!({"type": "response.failed", "response": {"id": "resp_c", "error": null}});
    let details = json!({"id": "resp_c", "incomplete_details": {"reason": "max_output_tokens"}});
    let short = json!({"type": "response.incomplete", "response": details});
    for (name, events, then) in [
        ("responses/reasoning_and_a_function_call", 14, &[][..]),
        ("responses/reasoning_and_a_function_call", 20, &[]),
        ("responses/code_that_the_provider_runs", 5, &[failed]),
        ("responses/code_that_the_provider_runs", 6, &[]),
        ("responses/code_that_the_provider_runs", 12, &[short]),
    ] {
        let text = || fixture("responses/text");
        let provider = Provider::with_streams([text(), cut(name, events, then), text()]).await;
        let mut browser = conversation(agent(model(&provider)));
        for text in ["One", "Two", "Three"] {
            browser.send(text).await;
        }
        assert_eq!(browser.error(), None);
        let bodies = bodies(&provider);
        assert_eq!(bodies[2]["previous_response_id"], "resp_t", "{name}, {events}");
        let input = bodies[2]["input"].as_array().unwrap();
        assert_eq!(input[0]["content"][0]["text"], "Two", "{name}, {events}");
        let last = input.last().unwrap()["content"].as_array().unwrap();
        assert_eq!(last.last().unwrap()["text"], "Three", "{name}, {events}");
    }
}

#[tokio::test]
async fn a_call_that_was_complete_before_the_response_failed_is_shown() {
    let failed = json!({"type": "response.failed", "response": {"error": {"message": "no"}}});
    let stream = cut("responses/code_that_the_provider_runs", 5, &[failed]);
    let provider = Provider::with_streams([stream]).await;
    let browser = asked(model(&provider), "6 * 7?").await;
    let contents = MessageContents::of(browser.messages().last().unwrap());
    assert_eq!(contents.calls[0].2, "output-available");
}

#[tokio::test]
async fn if_the_stored_response_is_not_found_the_whole_history_is_sent_once() {
    let error = json!({"error": {
        "message": "Previous response with id 'resp_t' not found.", "type": "invalid_request_error",
        "param": "previous_response_id", "code": "previous_response_not_found",
    }});
    let whole_history = json!([
        user_message("One"),
        {"role": "assistant", "content": [{"type": "output_text", "text": "All is “calm” 🚢."}]},
        user_message("Two"),
    ]);
    let text = || (StatusCode::OK, fixture("responses/text"));
    for status in [StatusCode::BAD_REQUEST, StatusCode::NOT_FOUND] {
        let not_found = || (status, error.to_string());
        for (responses, succeeds) in [
            (vec![text(), not_found(), text()], true),
            (vec![text(), not_found(), not_found()], false),
        ] {
            let provider = Provider::with_responses(responses).await;
            let mut browser = asked(model(&provider), "One").await;
            browser.send("Two").await;
            assert_eq!(browser.error().is_none(), succeeds);
            let bodies = bodies(&provider);
            assert_eq!(bodies.len(), 3);
            assert_eq!(bodies[1]["previous_response_id"], "resp_t");
            assert_eq!(bodies[2].get("previous_response_id"), None);
            assert_eq!((&bodies[2]["input"], &bodies[2]["store"]), (&whole_history, &json!(true)));
        }
    }
}

#[tokio::test]
async fn a_stored_response_that_is_not_found_does_not_change_later_requests() {
    let not_found = (StatusCode::NOT_FOUND, "Response 'resp_t' not found.".to_owned());
    let text = || (StatusCode::OK, fixture("responses/text"));
    let provider = Provider::with_responses([text(), not_found, text(), text()]).await;
    let mut browser = conversation(agent(model(&provider)));
    for text in ["One", "Two", "Three"] {
        browser.send(text).await;
    }
    let bodies = bodies(&provider);
    let ids = bodies.iter().map(|body| body["previous_response_id"].as_str());
    assert_eq!(ids.collect::<Vec<_>>(), [None, Some("resp_t"), None, Some("resp_t")]);
}

#[tokio::test]
async fn the_request_is_not_repeated_after_other_errors() {
    let server_error = (StatusCode::INTERNAL_SERVER_ERROR, String::new());
    let bad_request = (StatusCode::BAD_REQUEST, String::new());
    let text = (StatusCode::OK, fixture("responses/text"));
    for (responses, requests) in [(vec![bad_request], 1), (vec![text, server_error], 2)] {
        let provider = Provider::with_responses(responses).await;
        let mut browser = conversation(agent(model(&provider)));
        for _ in 0..requests {
            browser.send("Hello").await;
        }
        assert_eq!(browser.error(), Some("An error occurred."));
        assert_eq!(provider.requests().len(), requests);
    }
}

#[tokio::test]
async fn an_approval_request_that_no_client_can_show_is_denied() {
    let stream = fixture("responses/mcp_approval_asked").replace(":100}", ":9007199254740993}");
    let provider = Provider::with_streams([stream, fixture("responses/text")]).await;
    let mut browser = conversation(agent(model(&provider)));
    say(&mut browser, "Shorten it").await;
    let contents = MessageContents::of(browser.messages().last().unwrap());
    let (.., state, reason) = &contents.calls[0];
    assert_eq!(state, "output-error");
    let bodies = bodies(&provider);
    assert_eq!(bodies[1]["previous_response_id"], "resp_a1");
    let denial = json!({
        "type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": false,
        "reason": reason,
    });
    assert_eq!(bodies[1]["input"], json!([denial]));
}

/// A model that sends the given messages instead of those of the request.
#[derive(Debug)]
struct FixedMessages<M>(M, Vec<ModelMessage>);

impl<M: Model> Model for FixedMessages<M> {
    fn call(&self, mut request: ModelRequest) -> ModelStream {
        request.messages = self.1.clone();
        self.0.call(request)
    }
}

/// Returns an approval request of the provider in a stored response, and its result.
fn approval_request_with(result: ToolResult) -> Vec<AssistantContent> {
    let response = r#""responseId":"resp_a1""#;
    approval_request("mcpr_1", response, result)
}

fn approval_request(id: &str, response: &str, result: ToolResult) -> Vec<AssistantContent> {
    let mut call = ToolCallContent::new(id, "mcp_links_shorten", Json::parse("{}").unwrap());
    call.provider_executed = true;
    let metadata = format!(
        r#"{{"openai":{{"itemId":"{id}","itemType":"mcp_approval_request","name":"shorten",
        "serverLabel":"links",{response}}}}}"#
    );
    call.provider_metadata = Some(ProviderMetadata::parse(&metadata).unwrap());
    let result = ToolResultContent::new(id, "mcp_links_shorten", result);
    vec![AssistantContent::ToolCall(call), AssistantContent::ToolResult(result)]
}

/// Returns the body of the request that follows this assistant message.
async fn request_after(content: Vec<AssistantContent>) -> Value {
    let messages = vec![
        ModelMessage::user("Shorten it"),
        ModelMessage::assistant(content),
        ModelMessage::user("And?"),
    ];
    let provider = Provider::with_streams([fixture("responses/text")]).await;
    let mut browser = conversation(agent(FixedMessages(model(&provider), messages)));
    say(&mut browser, "And?").await;
    bodies(&provider).remove(0)
}

#[tokio::test]
async fn the_output_of_an_approved_call_keeps_its_call_id_if_a_user_message_followed() {
    let mut content = approval_request_with(NotExecutedReason::Expired.into());
    content.truncate(1);
    let approval = serde_json::json!({"tool": {"content": [{"provider-approval": {
        "approvalId": "ap", "toolCallId": "mcpr_1", "approved": true,
    }}]}});
    let messages = vec![
        ModelMessage::user("Shorten it"),
        ModelMessage::assistant(content),
        serde_json::from_value(approval).unwrap(),
        ModelMessage::user("And?"),
    ];
    let provider = Provider::with_streams([fixture("responses/mcp_approval_approved")]).await;
    let endpoint = Endpoint::new(&provider.address).unwrap();
    let model = Responses::new(endpoint, "a-model");
    let events: Vec<_> = model.call(ModelRequest::new(messages)).collect().await;
    let events = format!("{events:?}");
    assert!(events.contains(r#"ToolOutput { tool_call_id: "mcpr_1""#), "{events}");
    assert!(!events.contains("mcp_9"), "the output has no other call id: {events}");
}

#[tokio::test]
async fn an_expired_revoked_or_refused_approval_request_is_denied_with_the_reason() {
    for reason in
        [NotExecutedReason::Expired, NotExecutedReason::Revoked, NotExecutedReason::Rejected]
    {
        let body = request_after(approval_request_with(reason.into())).await;
        assert_eq!(body["previous_response_id"], "resp_a1");
        let denial = json!({
            "type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": false,
            "reason": reason.to_string(),
        });
        assert_eq!(body["input"], json!([denial, user_message("And?")]));
    }
}

#[tokio::test]
async fn each_approval_request_of_the_last_response_is_denied_and_no_earlier_one() {
    let expired = || NotExecutedReason::Expired.into();
    let mut content = approval_request("mcpr_0", r#""responseId":"resp_a0""#, expired());
    content.extend(approval_request("mcpr_2", r#""x":null"#, expired()));
    content.extend(approval_request_with(expired()));
    let body = request_after(content).await;
    let input = body["input"].as_array().unwrap().iter();
    let denied: Vec<&str> = input.filter_map(|item| item["approval_request_id"].as_str()).collect();
    assert_eq!(denied, ["mcpr_2", "mcpr_1"]);
}

#[tokio::test]
async fn an_approval_request_whose_call_ran_in_a_cut_response_is_not_resolved_again() {
    let ran = ToolResult::Output(Json::string("https://l.example/9"));
    let mut content = approval_request_with(ran);
    content.push(AssistantContent::Text(TextContent::new("Here")));
    let body = request_after(content).await;
    assert_eq!(body.get("previous_response_id"), None);
    let input = body["input"].as_array().unwrap();
    let kinds: Vec<&str> = input.iter().filter_map(|item| item["type"].as_str()).collect();
    assert_eq!(kinds, ["function_call", "function_call_output"]);
    assert_eq!(input[2]["output"], "https://l.example/9");
    assert_eq!((&input[3]["role"], input.len()), (&json!("assistant"), 5));
}

#[tokio::test]
async fn text_after_the_stored_response_is_sent() {
    let mut content = approval_request_with(NotExecutedReason::Expired.into());
    content.push(AssistantContent::Text(TextContent::new("It is too la")));
    let body = request_after(content).await;
    let kinds = body["input"].as_array().unwrap().iter();
    let kinds: Vec<&Value> = kinds.map(|item| item.get("type").unwrap_or(&item["role"])).collect();
    assert_eq!(kinds, ["mcp_approval_response", "assistant", "user"]);
}

#[tokio::test]
async fn a_generated_image_is_referenced_and_is_described_as_text_if_it_is_not_found() {
    let cut_response = || (StatusCode::OK, cut("responses/a_picture", 6, &[]));
    let text = || (StatusCode::OK, fixture("responses/text"));
    let not_found = || (StatusCode::NOT_FOUND, "Item with id 'ig_1' not found.".to_owned());
    let provider = Provider::with_responses([cut_response(), not_found(), text()]).await;
    let mut browser = asked(model(&provider), "Draw").await;
    say(&mut browser, "Bluer").await;
    let bodies = bodies(&provider);
    let items = |body: &Value| body["input"].as_array().unwrap().clone();
    let reference = json!({"type": "image_generation_call", "id": "ig_1"});
    assert!(items(&bodies[1]).contains(&reference), "{}", bodies[1]["input"]);
    let function_items: Vec<Value> =
        items(&bodies[2]).into_iter().filter(|item| item["call_id"] == "ig_1").collect();
    assert_eq!((function_items.len(), &function_items[0]["name"]), (2, &json!("image_generation")));
}

/// Returns the requests of a chat whose first response ended after its first search.
async fn requests_after_half_a_search(
    encrypted_content: &str,
    configure: impl Fn(Responses) -> Responses,
    responses: Vec<(StatusCode, String)>,
) -> Vec<Value> {
    let first_half =
        cut("responses/web_search_with_sources", 9, &[]).replace("null", encrypted_content);
    let responses = [(StatusCode::OK, first_half)].into_iter().chain(responses);
    let provider = Provider::with_responses(responses).await;
    let mut browser = asked(configure(model(&provider)), "News?").await;
    say(&mut browser, "Go on").await;
    bodies(&provider)
}

#[tokio::test]
async fn a_search_whose_reasoning_cannot_be_sent_back_is_sent_as_a_function_call() {
    let responses = vec![(StatusCode::OK, fixture("responses/text"))];
    let bodies = requests_after_half_a_search("null", |model| model, responses).await;
    let input = bodies[1]["input"].as_array().unwrap();
    let kinds: Vec<Option<&str>> = input.iter().map(|item| item["type"].as_str()).collect();
    assert_eq!(kinds, [None, Some("function_call"), Some("function_call_output"), None]);
    assert!(input.iter().all(|item| item.get("id").is_none()), "{input:?}");
}

#[tokio::test]
async fn reasoning_of_a_stored_response_is_sent_back_without_its_ids() {
    let responses = vec![(StatusCode::OK, fixture("responses/text"))];
    let configure = |model: Responses| model.with_include("reasoning.encrypted_content");
    let bodies = requests_after_half_a_search(r#""gAAA-half""#, configure, responses).await;
    let input = bodies[1]["input"].as_array().unwrap();
    assert_eq!((&input[1]["type"], input[1].get("id")), (&json!("reasoning"), None));
    assert_eq!(input[1]["encrypted_content"], "gAAA-half");
    assert_eq!(input[2]["type"], "function_call");
}

#[tokio::test]
async fn an_item_that_the_provider_does_not_find_is_sent_as_a_function_call() {
    let first_half = cut("responses/code_that_the_provider_runs", 5, &[]);
    let not_found = "Item with id 'ci_1' not found.".to_owned();
    let provider = Provider::with_responses([
        (StatusCode::OK, first_half),
        (StatusCode::NOT_FOUND, not_found),
        (StatusCode::OK, fixture("responses/text")),
    ])
    .await;
    let mut browser = asked(model(&provider), "6 * 7?").await;
    say(&mut browser, "Go on").await;
    let bodies = bodies(&provider);
    assert_eq!(bodies[1]["input"][1]["type"], "code_interpreter_call");
    assert_eq!(bodies[2]["input"][1]["name"], "code_interpreter");
}
