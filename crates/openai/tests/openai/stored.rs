//! Responses that the provider stores: only what is new is sent, and a response that it does not
//! know, or never ended, ends no chat.

use axum::http::StatusCode;
use futures::StreamExt;
use serde_json::{Value, json};
use test_support::browser::{Held, agent, conversation};
use ui_message_stream::Json;
use ui_message_stream::metadata::ProviderMetadata;
use ui_message_stream::model::{
    AssistantContent, Model, ModelMessage, ModelRequest, ModelStream, NotExecutedReason,
    TextContent, ToolCallContent, ToolResult, ToolResultContent,
};
use ui_message_stream_openai::{Endpoint, Responses};

use super::provider::{Provider, fixture, lines_of};

fn model(provider: &Provider) -> Responses {
    let endpoint = Endpoint::new(&provider.address).unwrap();
    Responses::new(endpoint, "a-model").with_stored_responses()
}

fn asked(provider: &Provider) -> Vec<Value> {
    provider.asked().into_iter().map(|asked| asked.body).collect()
}

fn question(text: &str) -> Value {
    json!({"role": "user", "content": [{"type": "input_text", "text": text}]})
}

/// The first events of a fixture, and then these.
fn cut(name: &str, events: usize, then: &[Value]) -> String {
    let lines = lines_of(name);
    let begun = lines.lines().take(events).map(str::to_owned);
    let events = begun.chain(then.iter().map(Value::to_string));
    events.map(|event| format!("data: {event}\n\n")).collect()
}

#[tokio::test]
async fn only_what_is_new_is_sent() {
    let fixtures = ["reasoning_and_a_function_call", "text", "text"];
    let fixtures = fixtures.map(|name| fixture(&format!("responses/{name}")));
    let provider = Provider::streaming(fixtures).await;
    let mut browser = conversation(agent(model(&provider)));
    browser.send("How is the weather?").await;
    browser.send("And now?").await;
    assert_eq!(browser.error(), None);
    let asked = asked(&provider);
    assert_eq!(asked[0].get("previous_response_id"), None);
    assert_eq!(asked[0]["store"], true);
    assert_eq!(asked[1]["previous_response_id"], "resp_r");
    let output =
        json!({"type": "function_call_output", "call_id": "call_1", "output": "Lisbon: sun"});
    assert_eq!(asked[1]["input"], json!([output]));
    assert_eq!(asked[2]["previous_response_id"], "resp_t");
    assert_eq!(asked[2]["input"], json!([question("And now?")]));
}

#[tokio::test]
async fn a_yes_whose_answer_was_cut_off_is_not_taken_back_and_not_told_again() {
    for is_stored in [false, true] {
        let responses = [
            fixture("responses/mcp_approval_asked"),
            cut("responses/mcp_approval_approved", 1, &[]),
            fixture("responses/text"),
        ];
        let provider = Provider::streaming(responses).await;
        let endpoint = Endpoint::new(&provider.address).unwrap();
        let not_stored = Responses::new(endpoint, "a-model");
        let model = if is_stored { model(&provider) } else { not_stored };
        let mut browser = conversation(agent(model));
        browser.send("Shorten it").await;
        browser.approve("mcp.links.shorten").await;
        let asked = asked(&provider);
        assert!(asked[1]["input"].to_string().contains(r#""approve":true"#), "{asked:?}");
        browser.send("And now?").await;
        let later = &provider.asked()[2].body;
        let input = later["input"].to_string();
        assert!(!input.contains("mcp_approval"), "{input}");
        assert!(input.contains("no result"), "{input}");
        assert_eq!(later.get("previous_response_id"), None, "{later}");
    }
}

#[tokio::test]
async fn a_response_that_never_ended_is_not_gone_on_from() {
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
        let provider = Provider::streaming([text(), cut(name, events, then), text()]).await;
        let mut browser = conversation(agent(model(&provider)));
        for text in ["One", "Two", "Three"] {
            browser.send(text).await;
        }
        assert_eq!(browser.error(), None);
        let asked = asked(&provider);
        assert_eq!(asked[2]["previous_response_id"], "resp_t", "{name}, {events}");
        let input = asked[2]["input"].as_array().unwrap();
        assert_eq!(input[0]["content"][0]["text"], "Two", "{name}, {events}");
        let last = input.last().unwrap()["content"].as_array().unwrap();
        assert_eq!(last.last().unwrap()["text"], "Three", "{name}, {events}");
    }
}

#[tokio::test]
async fn what_was_whole_before_a_response_broke_off_is_shown() {
    let failed = json!({"type": "response.failed", "response": {"error": {"message": "no"}}});
    let answer = cut("responses/code_that_the_provider_runs", 5, &[failed]);
    let provider = Provider::streaming([answer]).await;
    let mut browser = conversation(agent(model(&provider)));
    browser.send("6 * 7?").await;
    let held = Held::of(browser.messages().last().unwrap());
    assert_eq!(held.calls[0].2, "output-available");
}

#[tokio::test]
async fn a_response_that_is_forgotten_is_made_up_for_once_with_the_whole_history() {
    let error = json!({"error": {
        "message": "Previous response with id 'resp_t' not found.", "type": "invalid_request_error",
        "param": "previous_response_id", "code": "previous_response_not_found",
    }});
    let whole = json!([
        question("One"),
        {"role": "assistant", "content": [{"type": "output_text", "text": "All is “calm” 🚢."}]},
        question("Two"),
    ]);
    let text = || (StatusCode::OK, fixture("responses/text"));
    for status in [StatusCode::BAD_REQUEST, StatusCode::NOT_FOUND] {
        let forgotten = || (status, error.to_string());
        for (answers, is_answered) in [
            (vec![text(), forgotten(), text()], true),
            (vec![text(), forgotten(), forgotten()], false),
        ] {
            let provider = Provider::answering(answers).await;
            let mut browser = conversation(agent(model(&provider)));
            browser.send("One").await;
            browser.send("Two").await;
            assert_eq!(browser.error().is_none(), is_answered);
            let asked = asked(&provider);
            assert_eq!(asked.len(), 3);
            assert_eq!(asked[1]["previous_response_id"], "resp_t");
            assert_eq!(asked[2].get("previous_response_id"), None);
            assert_eq!((&asked[2]["input"], &asked[2]["store"]), (&whole, &json!(true)));
        }
    }
}

#[tokio::test]
async fn other_errors_are_no_reason_to_ask_again() {
    let busy = (StatusCode::INTERNAL_SERVER_ERROR, String::new());
    let wrong = (StatusCode::BAD_REQUEST, String::new());
    let text = (StatusCode::OK, fixture("responses/text"));
    for (answers, requests) in [(vec![wrong], 1), (vec![text, busy], 2)] {
        let provider = Provider::answering(answers).await;
        let mut browser = conversation(agent(model(&provider)));
        for _ in 0..requests {
            browser.send("Hello").await;
        }
        assert_eq!(browser.error(), Some("An error occurred."));
        assert_eq!(provider.asked().len(), requests);
    }
}

#[tokio::test]
async fn a_question_that_nobody_can_be_asked_is_answered_with_a_no() {
    let asks = fixture("responses/mcp_approval_asked").replace(":100}", ":9007199254740993}");
    let provider = Provider::streaming([asks, fixture("responses/text")]).await;
    let mut browser = conversation(agent(model(&provider)));
    browser.send("Shorten it").await;
    assert_eq!(browser.error(), None);
    let held = Held::of(browser.messages().last().unwrap());
    let (.., state, why) = &held.calls[0];
    assert_eq!(state, "output-error");
    let asked = asked(&provider);
    assert_eq!(asked[1]["previous_response_id"], "resp_a1");
    let no = json!({
        "type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": false,
        "reason": why,
    });
    assert_eq!(asked[1]["input"], json!([no]));
}

/// A model that reads this, whatever was said.
#[derive(Debug)]
struct Reads<M>(M, Vec<ModelMessage>);

impl<M: Model> Model for Reads<M> {
    fn call(&self, mut request: ModelRequest) -> ModelStream {
        request.messages = self.1.clone();
        self.0.call(request)
    }
}

/// A question of the provider and what became of it, in a response that is known.
fn question_and(result: ToolResult) -> Vec<AssistantContent> {
    let ends = r#""responseId":"resp_a1""#;
    question_of("mcpr_1", ends, result)
}

fn question_of(id: &str, ends: &str, result: ToolResult) -> Vec<AssistantContent> {
    let mut call = ToolCallContent::new(id, "mcp_links_shorten", Json::parse("{}").unwrap());
    call.provider_executed = true;
    let kept = format!(
        r#"{{"openai":{{"itemId":"{id}","itemType":"mcp_approval_request","name":"shorten",
        "serverLabel":"links",{ends}}}}}"#
    );
    call.provider_metadata = Some(ProviderMetadata::parse(&kept).unwrap());
    let result = ToolResultContent::new(id, "mcp_links_shorten", result);
    vec![AssistantContent::ToolCall(call), AssistantContent::ToolResult(result)]
}

async fn sent(content: Vec<AssistantContent>) -> Value {
    let messages = vec![
        ModelMessage::user("Shorten it"),
        ModelMessage::assistant(content),
        ModelMessage::user("And?"),
    ];
    let provider = Provider::streaming([fixture("responses/text")]).await;
    let mut browser = conversation(agent(Reads(model(&provider), messages)));
    browser.send("And?").await;
    assert_eq!(browser.error(), None);
    asked(&provider).remove(0)
}

#[tokio::test]
async fn the_output_of_an_approved_call_is_its_own_though_the_person_wrote_on() {
    let mut said = question_and(NotExecutedReason::Expired.into());
    said.truncate(1);
    let yes = serde_json::json!({"tool": {"content": [{"provider-approval": {
        "approvalId": "ap", "toolCallId": "mcpr_1", "approved": true,
    }}]}});
    let messages = vec![
        ModelMessage::user("Shorten it"),
        ModelMessage::assistant(said),
        serde_json::from_value(yes).unwrap(),
        ModelMessage::user("And?"),
    ];
    let provider = Provider::streaming([fixture("responses/mcp_approval_approved")]).await;
    let endpoint = Endpoint::new(&provider.address).unwrap();
    let model = Responses::new(endpoint, "a-model");
    let events: Vec<_> = model.call(ModelRequest::new(messages)).collect().await;
    let events = format!("{events:?}");
    assert!(events.contains(r#"ToolOutput { tool_call_id: "mcpr_1""#), "{events}");
    assert!(!events.contains("mcp_9"), "it is no other call: {events}");
}

#[tokio::test]
async fn a_question_that_expired_or_was_revoked_is_answered_with_a_no() {
    for why in [NotExecutedReason::Expired, NotExecutedReason::Revoked, NotExecutedReason::Refused]
    {
        let body = sent(question_and(why.into())).await;
        assert_eq!(body["previous_response_id"], "resp_a1");
        let no = json!({
            "type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": false,
            "reason": why.to_string(),
        });
        assert_eq!(body["input"], json!([no, question("And?")]));
    }
}

#[tokio::test]
async fn each_question_of_the_last_response_is_answered_and_none_of_an_earlier_one() {
    let no = || NotExecutedReason::Expired.into();
    let mut content = question_of("mcpr_0", r#""responseId":"resp_a0""#, no());
    content.extend(question_of("mcpr_2", r#""x":null"#, no()));
    content.extend(question_and(no()));
    let body = sent(content).await;
    let input = body["input"].as_array().unwrap().iter();
    let answered: Vec<&str> =
        input.filter_map(|item| item["approval_request_id"].as_str()).collect();
    assert_eq!(answered, ["mcpr_2", "mcpr_1"]);
}

#[tokio::test]
async fn a_question_whose_call_ran_in_a_response_that_never_ended_is_not_answered_again() {
    let ran = ToolResult::Output(Json::string("https://l.example/9"));
    let mut content = question_and(ran);
    content.push(AssistantContent::Text(TextContent::new("Here")));
    let body = sent(content).await;
    assert_eq!(body.get("previous_response_id"), None);
    let input = body["input"].as_array().unwrap();
    let kinds: Vec<&str> = input.iter().filter_map(|item| item["type"].as_str()).collect();
    assert_eq!(kinds, ["function_call", "function_call_output"]);
    assert_eq!(input[2]["output"], "https://l.example/9");
    assert_eq!((&input[3]["role"], input.len()), (&json!("assistant"), 5));
}

#[tokio::test]
async fn what_was_said_after_the_known_response_is_news() {
    let mut content = question_and(NotExecutedReason::Expired.into());
    content.push(AssistantContent::Text(TextContent::new("It is too la")));
    let body = sent(content).await;
    let kinds = body["input"].as_array().unwrap().iter();
    let kinds: Vec<&Value> = kinds.map(|item| item.get("type").unwrap_or(&item["role"])).collect();
    assert_eq!(kinds, ["mcp_approval_response", "assistant", "user"]);
}

#[tokio::test]
async fn a_picture_is_referred_to_where_it_is_stored_and_told_where_it_is_not() {
    let cut = || (StatusCode::OK, cut("responses/a_picture", 6, &[]));
    let text = || (StatusCode::OK, fixture("responses/text"));
    let forgotten = || (StatusCode::NOT_FOUND, "Item with id 'ig_1' not found.".to_owned());
    let provider = Provider::answering([cut(), forgotten(), text()]).await;
    let mut browser = conversation(agent(model(&provider)));
    browser.send("Draw").await;
    browser.send("Bluer").await;
    assert_eq!(browser.error(), None);
    let asked = asked(&provider);
    let items = |body: &Value| body["input"].as_array().unwrap().clone();
    let referred = json!({"type": "image_generation_call", "id": "ig_1"});
    assert!(items(&asked[1]).contains(&referred), "{}", asked[1]["input"]);
    let told: Vec<Value> =
        items(&asked[2]).into_iter().filter(|item| item["call_id"] == "ig_1").collect();
    assert_eq!((told.len(), &told[0]["name"]), (2, &json!("image_generation")));
}

/// What is sent after a response that broke off behind its first search, by a model set up like this.
async fn after_half_a_search(
    thoughts: &str,
    set_up: impl Fn(Responses) -> Responses,
    answers: Vec<(StatusCode, String)>,
) -> Vec<Value> {
    let half = cut("responses/web_search_with_sources", 9, &[]).replace("null", thoughts);
    let answers = [(StatusCode::OK, half)].into_iter().chain(answers);
    let provider = Provider::answering(answers).await;
    let mut browser = conversation(agent(set_up(model(&provider))));
    browser.send("News?").await;
    browser.send("Go on").await;
    assert_eq!(browser.error(), None);
    asked(&provider)
}

#[tokio::test]
async fn a_search_whose_thoughts_cannot_go_back_is_told_as_a_call() {
    let answers = vec![(StatusCode::OK, fixture("responses/text"))];
    let asked = after_half_a_search("null", |model| model, answers).await;
    let input = asked[1]["input"].as_array().unwrap();
    let kinds: Vec<Option<&str>> = input.iter().map(|item| item["type"].as_str()).collect();
    assert_eq!(kinds, [None, Some("function_call"), Some("function_call_output"), None]);
    assert!(input.iter().all(|item| item.get("id").is_none()), "{input:?}");
}

#[tokio::test]
async fn thoughts_of_a_stored_response_go_back_without_its_ids() {
    let answers = vec![(StatusCode::OK, fixture("responses/text"))];
    let set_up = |model: Responses| model.with_include("reasoning.encrypted_content");
    let asked = after_half_a_search(r#""gAAA-half""#, set_up, answers).await;
    let input = asked[1]["input"].as_array().unwrap();
    assert_eq!((&input[1]["type"], input[1].get("id")), (&json!("reasoning"), None));
    assert_eq!(input[1]["encrypted_content"], "gAAA-half");
    assert_eq!(input[2]["type"], "function_call");
}

#[tokio::test]
async fn what_the_provider_ran_and_forgot_is_told_as_a_call_when_it_refuses() {
    let half = cut("responses/code_that_the_provider_runs", 5, &[]);
    let lost = "Item with id 'ci_1' not found.".to_owned();
    let provider = Provider::answering([
        (StatusCode::OK, half),
        (StatusCode::NOT_FOUND, lost),
        (StatusCode::OK, fixture("responses/text")),
    ])
    .await;
    let mut browser = conversation(agent(model(&provider)));
    browser.send("6 * 7?").await;
    browser.send("Go on").await;
    assert_eq!(browser.error(), None);
    let asked = asked(&provider);
    assert_eq!(asked[1]["input"][1]["type"], "code_interpreter_call");
    assert_eq!(asked[2]["input"][1]["name"], "code_interpreter");
}
