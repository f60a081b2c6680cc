use std::fs;

use serde_json::{Value, json};
use test_support::fixture_files::fixture_files;
use ui_message_stream::ChatRequest;
use ui_message_stream::approval::ResumePlan;
use ui_message_stream::request::Limits;

use crate::program::{run, run_with, scratch, text};

#[test]
fn the_decisions_in_every_recorded_request_are_printed() {
    let folder = scratch("parse_request");
    for path in fixture_files("upstream/requests", ".json") {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let request: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let Some(body) = request.get("body").filter(|body| !body.is_null()) else {
            assert_eq!(request["method"], "GET", "{name}");
            continue;
        };
        let from_stdin = run_with(&["parse-request"], &body.to_string());
        assert_eq!((from_stdin.code, from_stdin.err.as_str()), (0, ""), "{name}");
        let file = folder.join(name);
        fs::write(&file, body.to_string()).unwrap();
        assert_eq!(run(&["parse-request", text(&file)]), from_stdin, "{name}");

        let chat = ChatRequest::parse(body.to_string().as_bytes(), &Limits::default()).unwrap();
        let plan = ResumePlan::new(chat.messages(), chat.continued_message());
        let pending: Vec<_> = plan.superseded().iter().chain(plan.pending()).collect();
        let expected = json!({
            "chatId": body["id"],
            "trigger": body["trigger"],
            "messageId": body["messageId"],
            "approvals": plan.unverified_responses().collect::<Vec<_>>(),
            "toolOutputs": plan.unverified_outputs().collect::<Vec<_>>(),
            "pending": pending,
        });
        let parsed: Value = serde_json::from_str(&from_stdin.out).unwrap();
        assert_eq!(parsed, expected, "{name}");
    }
}

#[test]
fn keys_are_in_the_documented_order_and_numbers_are_unchanged() {
    let body = r#"{"id":"c","messages":[{"id":"m","role":"assistant","parts":[{"type":"tool-pay",
        "toolCallId":"t","state":"approval-requested","input":{"b":12345678901234567890123,"a":1.50},
        "approval":{"id":"ap"}}]}]}"#;
    assert_eq!(
        run_with(&["parse-request"], body).out,
        "{\"chatId\":\"c\",\"trigger\":\"submit-message\",\"messageId\":null,\"approvals\":[],\
         \"toolOutputs\":[],\"pending\":[{\"approvalId\":\"ap\",\"toolCallId\":\"t\",\
         \"toolName\":\"pay\",\"input\":{\"b\":12345678901234567890123,\"a\":1.50}}]}\n"
    );
}

#[test]
fn an_invalid_body_exits_with_code_1_and_the_error_names_the_place() {
    let message = |message: &str| format!(r#"{{"id":"c","messages":[{message}]}}"#);
    for (body, expected) in [
        (String::new(), "not JSON"),
        ("{".to_owned(), "not JSON"),
        ("[]".to_owned(), "object"),
        ("{}".to_owned(), "id"),
        (r#"{"id":1,"messages":[]}"#.to_owned(), "id"),
        (r#"{"id":"c"}"#.to_owned(), "messages"),
        (r#"{"id":"c","messages":{}}"#.to_owned(), "messages"),
        (message("7"), "messages[0]"),
        (message(r#"{"id":"m","role":"user","parts":[{}]}"#), "messages[0].parts[0]"),
        (message(r#"{"id":"m","role":"user","parts":[{"type":"text"}]}"#), "messages[0].parts[0]"),
        (message(r#"{"id":"m","role":"nobody","parts":[]}"#), "role"),
        (format!("{{\"id\":\"c\",\"x\":{}", "[".repeat(100_000)), "deep"),
    ] {
        let result = run_with(&["parse-request"], &body);
        let shown: String = body.chars().take(80).collect();
        assert_eq!((result.code, result.out.as_str()), (1, ""), "{shown}: {}", result.err);
        assert_eq!(result.err.lines().count(), 1, "{shown}: {}", result.err);
        assert!(result.err.contains(expected), "{shown}: {}", result.err);
    }
}
