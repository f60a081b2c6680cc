//! Irregular histories, and what the model reads of them.

use serde_json::{Value, json};
use ui_message_stream::UserText;
use ui_message_stream::approval::DeferredToolResult;
use ui_message_stream::model::{
    ModelMessage, NotExecutedReason, ToModelMessages, ToolCallContent, ToolResult,
};
use ui_message_stream::{Json, UiMessage};

use super::brief::brief;

/// Messages of `(role, parts)`.
pub(crate) fn history(messages: &[(&str, Value)]) -> Vec<UiMessage> {
    let messages = messages.iter().enumerate().map(|(at, (role, parts))| {
        let message = json!({"id": format!("m{at}"), "role": role, "parts": parts});
        UiMessage::parse(&message.to_string()).unwrap()
    });
    messages.collect()
}

/// A tool part of `t`.
pub(crate) fn call(id: &str, state: &str, more: Value) -> Value {
    let mut part = json!({"type": "tool-t", "toolCallId": id, "state": state, "input": {}});
    part.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    part
}

fn read(messages: &[(&str, Value)]) -> Vec<String> {
    brief(&ToModelMessages::new().model_messages(&history(messages)))
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

#[test]
fn system_messages_of_a_history_are_dropped() {
    let messages = [("system", json!([text("obey")])), ("user", json!([text("hi")]))];
    assert_eq!(read(&messages), [r#"user: "hi""#]);
}

#[test]
fn an_empty_history_gives_no_messages() {
    assert_eq!(ToModelMessages::new().model_messages(&[]), []);
    assert_eq!(read(&[("assistant", json!([])), ("system", json!([text("obey")]))]), [""; 0]);
}

#[test]
fn calls_with_the_same_id_get_unique_ids() {
    let done = |id: &str, output: u8| call(id, "output-available", json!({"output": output}));
    let step = json!({"type": "step-start"});
    let lines = read(&[
        ("user", json!([text("go")])),
        ("assistant", json!([step, done("call_0", 1), step, done("call_0", 2)])),
        ("user", json!([text("again")])),
        ("assistant", json!([done("call_0", 3), done("call_0_2", 4), done("", 5)])),
    ]);
    assert_eq!(
        lines,
        [
            r#"user: "go""#,
            "assistant: call_0 calls t {}",
            "tool: call_0 = 1",
            "assistant: call_0_2 calls t {}",
            "tool: call_0_2 = 2",
            r#"user: "again""#,
            "assistant: call_0_3 calls t {}, call_0_2_2 calls t {}, call calls t {}",
            "tool: call_0_3 = 3, call_0_2_2 = 4, call = 5",
        ]
    );
}

#[test]
fn a_call_that_is_repeated_in_the_history_is_read_once() {
    let approval = json!({"approval": {"id": "ap"}});
    let lines = read(&[
        ("user", json!([text("go")])),
        (
            "assistant",
            json!([
                call("c", "approval-requested", approval),
                {"type": "step-start"},
                call("c", "output-available", json!({"output": 1}))
            ]),
        ),
    ]);
    assert_eq!(lines, [r#"user: "go""#, "assistant: c calls t {}", "tool: c = 1"]);
}

#[test]
fn an_unfinished_step_is_dropped_with_its_reasoning() {
    let lines = read(&[
        ("user", json!([text("go")])),
        (
            "assistant",
            json!([
                {"type": "step-start"},
                {"type": "reasoning", "text": "I could", "providerMetadata": {"p": {"signature": "s"}}},
                call("c", "input-streaming", json!({"input": {"path": "/"}}))
            ]),
        ),
        ("user", json!([text("stop")])),
    ]);
    assert_eq!(lines, [r#"user: "go", "stop""#]);
}

#[test]
fn an_invalid_input_is_passed_on_as_the_model_wrote_it() {
    let failed = json!({
        "type": "tool-t", "toolCallId": "c", "state": "output-error", "rawInput": "{\"pa",
        "errorText": "not JSON"
    });
    let messages = history(&[("user", json!([text("go")])), ("assistant", json!([failed]))]);
    let messages = ToModelMessages::new().model_messages(&messages);
    let lines = brief(&messages);
    assert_eq!(lines[1..], [r#"assistant: c calls t "{\"pa""#, "tool: c failed: not JSON"]);
}

#[test]
fn input_object_wraps_an_input_that_is_not_an_object() {
    let object = |input: &str| {
        let received = format!(r#"{{"toolCallId":"c","toolName":"t","input":{input}}}"#);
        let call: ToolCallContent = serde_json::from_str(&received).unwrap();
        call.input_object().to_string()
    };
    assert_eq!(object(r#"{"a":1}"#), r#"{"a":1}"#);
    assert_eq!(object("null"), "{}");
    assert_eq!(object("[1]"), r#"{"input":[1]}"#);
    assert_eq!(object(r#"{"a":"\ud800"}"#), r#"{"input":"{\"a\":\"\\ud800\"}"}"#);
    assert_eq!(object(r#"{"a":1e999}"#), r#"{"input":"{\"a\":1e999}"}"#);
    let deep = format!("{}{}", "[".repeat(Json::MAX_DEPTH), "]".repeat(Json::MAX_DEPTH));
    assert_eq!(object(&deep), format!(r#"{{"input":{deep}}}"#));
}

#[test]
fn an_invalid_tool_name_is_replaced_by_one_that_providers_accept() {
    let lines = read(&[
        ("user", json!([text("go")])),
        (
            "assistant",
            json!([{
                "type": "dynamic-tool", "toolName": "functions.rm rf", "toolCallId": "c",
                "state": "output-error", "input": {}, "errorText": "no such tool"
            }]),
        ),
    ]);
    assert_eq!(
        lines[1..],
        ["assistant: c calls functions_rm_rf {}", "tool: c failed: no such tool"]
    );
}

#[test]
fn a_rejection_by_the_server_is_not_a_denial_by_the_user() {
    for approval in [json!({}), json!({"approval": {"id": "ap", "approved": true}})] {
        let denied = call("c", "output-denied", approval);
        let lines = read(&[("user", json!([text("go")])), ("assistant", json!([denied]))]);
        assert_eq!(lines[2], "tool: c not executed: Rejected");
    }
    let no = json!({"approval": {"id": "ap", "approved": false, "reason": "mine"}});
    let denied = call("c", "output-denied", no);
    let lines = read(&[("user", json!([text("go")])), ("assistant", json!([denied]))]);
    assert_eq!(lines[2], "tool: c denied: mine");
}

#[test]
fn a_recorded_outcome_replaces_the_error_text() {
    for (outcome, expected) in [
        ("rejected", "not executed: Rejected"),
        ("expired", "not executed: Expired"),
        ("revoked", "not executed: Revoked"),
        ("outcome-unknown", "unknown"),
    ] {
        let failed = |id: &str| call(id, "output-error", json!({"errorText": "disk full"}));
        let messages = history(&[
            ("user", json!([text("go")])),
            ("assistant", json!([failed("c"), failed("d")])),
            ("assistant", json!([failed("c")])),
        ]);
        let recorded = json!([
            {"messageId": "m1", "toolCallId": "c", "toolName": "t", "outcome": outcome}
        ]);
        let recorded: Vec<DeferredToolResult> = serde_json::from_value(recorded).unwrap();
        let read = ToModelMessages::new().with_call_outcomes(&recorded);
        let lines = brief(&read.model_messages(&messages));
        assert_eq!(lines[2], format!("tool: c {expected}, d failed: disk full"));
        assert_eq!(lines[4], "tool: c_2 failed: disk full");
    }
}

#[test]
fn an_error_text_equal_to_a_text_of_this_crate_is_an_error() {
    for shown in [
        UserText::Refused.text(),
        UserText::Expired.text(),
        UserText::Revoked.text(),
        UserText::OutcomeUnknown.text(),
    ] {
        let failed = call("c", "output-error", json!({"errorText": shown}));
        let lines = read(&[("user", json!([text("go")])), ("assistant", json!([failed]))]);
        assert_eq!(lines[2], format!("tool: c failed: {shown}"));
    }
}

#[test]
fn the_text_for_a_call_that_did_not_run_says_that_it_did_not_run() {
    for why in [
        NotExecutedReason::Unanswered,
        NotExecutedReason::Expired,
        NotExecutedReason::Revoked,
        NotExecutedReason::Rejected,
    ] {
        let text = ToolResult::from(why).text().into_owned();
        assert!(text.contains("not executed") && text.contains("not queued"), "{text}");
    }
    for why in [NotExecutedReason::AwaitsApproval, NotExecutedReason::AwaitsClient] {
        let text = ToolResult::from(why).text().into_owned();
        assert!(text.contains("not executed") && text.contains("waits"), "{text}");
    }
    let denied = ToolResult::Denied { reason: Some(" ".into()) }.text().into_owned();
    assert!(denied.contains("not executed") && denied.ends_with("not queued."), "{denied}");
    let unknown =
        ToolResult::OutcomeUnknown { so_far: Some(Json::string("half")) }.text().into_owned();
    assert!(unknown.contains("not known") && unknown.ends_with(": half"), "{unknown}");
    let executing = ToolResult::Executing.text().into_owned();
    assert!(executing.contains("is running") && !executing.contains("not executed"), "{executing}");
    assert_eq!(ToolResult::Error("\n".into()).text(), "The tool failed.");
    assert_eq!(ToolResult::Output(Json::string("a\nb")).text(), "a\nb");
}

#[test]
fn a_message_without_readable_parts_gets_a_placeholder_text() {
    let hi = || json!([text("hi")]);
    let lines = read(&[
        ("assistant", hi()),
        ("user", json!([{"type": "data-x", "data": 1}, text(" \n")])),
        ("assistant", hi()),
    ]);
    assert_eq!(
        lines,
        [
            r#"user: "(The conversation begins here.)""#,
            r#"assistant: "hi""#,
            r#"user: "(Nothing of this message can be shown.)""#,
            r#"assistant: "hi""#,
        ]
    );
}

#[test]
fn a_part_that_was_still_streaming_loses_its_metadata() {
    let metadata = json!({"p": {"signature": "half"}});
    let half = |kind: &str| json!({"type": kind, "text": "x", "state": "streaming", "providerMetadata": metadata});
    let messages = history(&[
        ("user", json!([text("go")])),
        ("assistant", json!([half("reasoning"), half("text")])),
    ]);
    let messages = ToModelMessages::new().model_messages(&messages);
    assert_eq!(brief(&messages)[1], r#"assistant: thinks "x", "x""#);
    assert!(!serde_json::to_string(&messages).unwrap().contains("half"));
}

#[test]
fn model_messages_with_unusual_client_values_can_be_stored_and_read_back() {
    let deep = format!("{}1{}", "[".repeat(60), "]".repeat(60));
    let text = format!(
        r#"{{"id":"m","role":"assistant","parts":[{{"type":"tool-t","toolCallId":"c",
        "state":"output-available","input":{deep},"output":"\ud800","callProviderMetadata":{{"p":{{"a":{deep}}}}}}}]}}"#
    );
    let messages = ToModelMessages::new().model_messages(&[UiMessage::parse(&text).unwrap()]);
    let stored = serde_json::to_string(&messages).unwrap();
    assert!(stored.contains(r#""\ud800""#) && stored.contains(&deep));
    assert_eq!(serde_json::from_str::<Vec<ModelMessage>>(&stored).unwrap(), messages);
}

#[test]
fn a_long_history_of_calls_with_one_id_is_converted_completely() {
    let parts: Vec<Value> =
        (0..20_000).map(|_| call("c", "output-available", json!({"output": 1}))).collect();
    let messages = history(&[("user", json!([text("go")])), ("assistant", json!(parts))]);
    let messages = ToModelMessages::new().model_messages(&messages);
    let ModelMessage::Tool { content } = &messages[2] else { panic!() };
    assert_eq!(content.len(), 20_000);
}
