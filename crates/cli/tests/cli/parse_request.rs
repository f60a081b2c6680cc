use std::fs;

use serde_json::{Value, json};
use test_support::fixture_files::fixture_files;

use crate::program::{run, run_with, scratch, text};

#[test]
fn every_request_of_the_client_is_read_as_what_it_asks_for() {
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

        let parsed: Value = serde_json::from_str(&from_stdin.out).unwrap();
        let (approvals, outputs, pending) = decided(name);
        let expected = json!({
            "chatId": body["id"],
            "trigger": body["trigger"],
            "messageId": body["messageId"],
            "approvals": approvals,
            "toolOutputs": outputs,
            "pending": pending,
        });
        assert_eq!(parsed, expected, "{name}");
    }
}

/// What the recorded requests decide, by what their notes say: approvals, outputs, what is pending.
fn decided(name: &str) -> (Value, Value, Value) {
    let call = |path: &str, n: u32| {
        json!({
            "approvalId": format!("ap{n}"),
            "toolCallId": format!("c{n}"),
            "toolName": "delete",
            "input": { "path": path },
        })
    };
    let with = |mut call: Value, more: Value| {
        call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        call
    };
    let yes = |call: Value| with(call, json!({ "approved": true }));
    match name.split('-').next().unwrap() {
        "06" | "17" => (json!([yes(call("/a", 1))]), json!([]), json!([])),
        "07" => {
            let no = with(call("/a", 1), json!({ "approved": false, "reason": "not now" }));
            (json!([no]), json!([]), json!([]))
        }
        "09" => {
            let yes = with(yes(call("/a", 1)), json!({ "reason": "fine" }));
            let no = with(call("/b", 2), json!({ "approved": false }));
            (json!([yes, no]), json!([{ "toolCallId": "c3", "output": "data" }]), json!([]))
        }
        "10" => {
            let dynamic = with(yes(call("/a", 1)), json!({ "toolName": "mcp_delete" }));
            (json!([dynamic]), json!([]), json!([]))
        }
        "11" => {
            let provider =
                json!({ "toolName": "mcp.search", "input": { "q": 1 }, "providerExecuted": true });
            (json!([with(yes(call("/a", 1)), provider)]), json!([]), json!([]))
        }
        "12" => (json!([]), json!([{ "toolCallId": "c1", "output": "red" }]), json!([])),
        "13" => {
            (json!([]), json!([{ "toolCallId": "c1", "errorText": "dialog closed" }]), json!([]))
        }
        "14" => (json!([]), json!([{ "toolCallId": "c1", "output": null }]), json!([])),
        "15" => (json!([]), json!([{ "toolCallId": "c1", "output": "done by hand" }]), json!([])),
        "16" => (json!([]), json!([]), json!([call("/a", 1)])),
        _ => (json!([]), json!([]), json!([])),
    }
}

#[test]
fn keys_stand_in_the_order_of_the_documentation_and_numbers_stay_as_they_are() {
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
fn a_bad_body_is_exit_code_1_and_the_error_says_where() {
    let message = |message: &str| format!(r#"{{"id":"c","messages":[{message}]}}"#);
    for (body, says) in [
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
        let ran = run_with(&["parse-request"], &body);
        let shown: String = body.chars().take(80).collect();
        assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{shown}: {}", ran.err);
        assert_eq!(ran.err.lines().count(), 1, "{shown}: {}", ran.err);
        assert!(ran.err.contains(says), "{shown}: {}", ran.err);
    }
}
