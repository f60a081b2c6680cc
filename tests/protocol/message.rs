//! A message that a client holds is parsed into typed parts and serialized without loss.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use ui_message_stream::UiMessage;
use ui_message_stream::message::{Part, ToolKind, ToolState};

/// The lines of a fixture as `(note, message)`.
fn messages(name: &str) -> Vec<(String, Value)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/upstream").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines()
        .map(|line| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            (line["note"].as_str().unwrap_or_default().to_owned(), line["message"].take())
        })
        .collect()
}

/// A message of the assistant with this part.
fn with_part(part: &Value) -> Value {
    json!({"id": "m", "role": "assistant", "parts": [part]})
}

fn assert_round_trip(note: &str, message: &Value) -> UiMessage {
    let parsed = UiMessage::parse(&message.to_string()).unwrap_or_else(|e| panic!("{note}: {e}"));
    assert_eq!(serde_json::to_value(&parsed).unwrap(), *message, "{note}");
    parsed
}

#[test]
fn a_message_that_the_client_accepts_is_read_and_written_back_unchanged() {
    let cases = messages("messages.valid.jsonl");
    assert!(cases.len() > 70);
    for (note, message) in cases {
        assert_round_trip(&note, &message);
    }
}

/// Accepted although `validateUIMessages` rejects them. The same for static and dynamic tools.
const TOLERATED: &[(&str, &[&str])] = &[
    (
        "a request must not hold such a message, but a file that is withheld may leave one behind, \
         and what is written must be read again",
        &["user with empty parts", "system with empty parts"],
    ),
    (
        "a state, or a kind of part, of a later version is kept, and nothing acts on it",
        &[
            "unknown state result (v4)",
            "unknown state output-streaming",
            "unknown part type",
            "v7 part custom",
            "v7 part reasoning-file",
        ],
    ),
    (
        "`addToolOutput` gives a call its output in any approval state",
        &[
            "output-available with approval not yet answered",
            "output-available with approved false",
            "output-error with approved false",
        ],
    ),
    (
        "a server that refuses by itself with `tool-output-denied` leaves this behind",
        &[
            "output-denied without approval",
            "output-denied with approved true",
            "output-denied with only approval id",
        ],
    ),
    (
        "a field of another state is kept unread: clients keep `approval` when a server repeats \
         `tool-input-*`, and the output when it asks again; stores write `null` for none",
        &[
            "input-available with output",
            "input-available with output null",
            "input-available with errorText",
            "input-available with errorText null",
            "input-available with approval",
            "input-available with approval null",
            "input-streaming with approval",
            "approval-requested with output",
            "output-available with errorText",
            "output-available with errorText null",
            "output-error with output",
            "output-error with output null",
            "output-denied with output",
            "output-denied with errorText",
        ],
    ),
];

#[test]
fn a_message_that_the_client_rejects_is_rejected_unless_real_clients_hold_it() {
    let tolerated: Vec<&str> = TOLERATED.iter().flat_map(|(_, notes)| *notes).copied().collect();
    let cases = messages("messages.invalid.jsonl");
    assert!(cases.len() > 100);
    let mut seen = Vec::new();
    for (note, message) in &cases {
        let case = note.trim_start_matches("static ").trim_start_matches("dynamic ");
        if tolerated.contains(&case) {
            assert_round_trip(note, message);
            seen.push(case);
        } else {
            let parsed = UiMessage::parse(&message.to_string());
            assert!(parsed.is_err(), "{note}: {parsed:?}");
        }
    }
    for note in tolerated {
        assert!(seen.contains(&note), "no such fixture: {note}");
    }
}

#[test]
fn an_invalid_field_is_reported_with_its_path() {
    let tool = |state: &str, more: Value| {
        let mut part = json!({"type": "tool-t", "toolCallId": "c", "state": state, "input": {}});
        part.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        with_part(&part).to_string()
    };
    let responded = |approved: Value| {
        tool("approval-responded", json!({"approval": {"id": "a", "approved": approved}}))
    };
    for (text, error) in [
        ("[]".into(), "expected an object"),
        ("{}".into(), "id: missing"),
        (json!({"id": "m", "role": "user"}).to_string(), "parts: missing"),
        (json!({"id": "m", "role": "user", "parts": 1}).to_string(), "parts: expected an array"),
        (
            json!({"id": "m", "role": "data", "parts": []}).to_string(),
            "role: expected `system`, `user` or `assistant`",
        ),
        (with_part(&json!(7)).to_string(), "parts[0]: expected an object"),
        (with_part(&json!({})).to_string(), "parts[0].type: missing"),
        (with_part(&json!({"type": "text"})).to_string(), "parts[0].text: missing"),
        (responded(json!(1)), "parts[0].approval.approved: expected a boolean"),
        (responded(json!("true")), "parts[0].approval.approved: expected a boolean"),
        (responded(json!(null)), "parts[0].approval.approved: expected a boolean"),
        (
            tool("approval-responded", json!({"approval": {"id": "a"}})),
            "parts[0].approval.approved: missing",
        ),
        (tool("approval-responded", json!({})), "parts[0].approval: missing"),
        (
            tool("approval-responded", json!({"approval": 1})),
            "parts[0].approval: expected an object",
        ),
        (
            tool("approval-requested", json!({"approval": {"id": "a", "approved": true}})),
            "parts[0].approval.approved: expected only with an answer",
        ),
        (
            tool("input-streaming", json!({"inputEncoding": "xml"})),
            "parts[0].inputEncoding: expected `json` or `text`",
        ),
        (
            tool("input-available", json!({"callProviderMetadata": {"p": 1}})),
            "parts[0].callProviderMetadata: not an object (of objects, for a provider)",
        ),
        (
            r#"{"id":"m","role":"user","parts":[{"type":"text","text":"a","text":"b"}]}"#.into(),
            "parts[0].text: given twice",
        ),
        (r#"{"id":"m","id":"n","role":"user","parts":[]}"#.into(), "id: given twice"),
        (r#"{"id":"m","role":"assistant","parts":[],"parts":[]}"#.into(), "parts: given twice"),
        (
            r#"{"id":"m","role":"assistant","parts":[],"x":1,"\u0078":2}"#.into(),
            "an object repeats a key",
        ),
        (
            r#"{"id":"m","role":"assistant","parts":[{"type":"data-x","data":{"a":1,"a":2}}]}"#
                .into(),
            "parts[0].data: an object repeats a key",
        ),
        (
            r#"{"id":"m","role":"assistant","parts":[{"type":"step-start","__proto__":1}]}"#.into(),
            "parts[0]: a key `__proto__` or `constructor.prototype`, which the client refuses",
        ),
        (
            r#"{"id":"m","role":"assistant","parts":[],"constructor":{"prototype":1}}"#.into(),
            "a key `__proto__` or `constructor.prototype`, which the client refuses",
        ),
    ] {
        let text: String = text;
        let refused = UiMessage::parse(&text).map(|_| text).unwrap_err();
        assert_eq!(refused.to_string(), error);
    }
    let broken = UiMessage::parse(r#"{"id":"m","secret":"s3cr3t"#).unwrap_err().to_string();
    assert!(broken.starts_with("not JSON: EOF") && !broken.contains("s3cr3t"), "{broken}");
}

#[test]
fn a_tool_state_holds_its_own_fields_and_other_fields_are_preserved() {
    let part = json!({
        "type": "dynamic-tool", "toolName": "t", "toolCallId": "c", "state": "approval-requested",
        "title": {"any": "thing"}, "input": {"a": 1}, "output": "of before", "later": [1],
        "approval": {"id": "ap", "signature": "s", "isAutomatic": false, "later": 2}
    });
    let message = assert_round_trip("approval-requested", &with_part(&part));
    let [Part::Tool(part)] = &message.parts[..] else { panic!("{message:?}") };
    let ToolState::ApprovalRequested { approval, .. } = &part.state else { panic!("{part:?}") };
    assert_eq!(part.kind, ToolKind::Dynamic);
    assert!(!part.is_settled());
    assert_eq!(part.input().unwrap().as_str(), r#"{"a":1}"#);
    assert_eq!(approval.id.as_str(), "ap");
    assert_eq!(approval.details.signature.as_deref(), Some("s"));
    assert_eq!(approval.details.is_automatic, Some(false));
    assert_eq!(approval.details.extra.get("later").unwrap().as_str(), "2");
    assert_eq!(part.extra.get("output").unwrap().as_str(), r#""of before""#);
    assert_eq!(part.extra.get("later").unwrap().as_str(), "[1]");
    assert!(part.extra.get("title").is_none());
}

#[test]
fn each_field_of_an_unknown_part_is_written_back_byte_for_byte() {
    let text =
        r#"{"id":"m","role":"user","parts":[{"b":1.0, "type" : "later", "a":1e400,"é":"\ud800"}]}"#;
    let part = r#"{"type":"later","b":1.0,"a":1e400,"é":"\ud800"}"#;
    let message = UiMessage::parse(text).unwrap();
    let [Part::Unknown(unknown)] = &message.parts[..] else { panic!("{message:?}") };
    assert_eq!(unknown.kind(), "later");
    assert_eq!(unknown.as_json().as_str(), part);
    let written = format!(r#"{{"id":"m","role":"user","parts":[{part}]}}"#);
    assert_eq!(serde_json::to_string(&message).unwrap(), written);
}

#[test]
fn a_text_with_an_unpaired_surrogate_is_read_as_a_browser_shows_it() {
    let text = r#"{"id":"\ud800","role":"user","parts":[{"type":"text","text":"a\udc00b"}]}"#;
    let message = UiMessage::parse(text).unwrap();
    let [Part::Text(part)] = &message.parts[..] else { panic!("{message:?}") };
    assert!(part.text.starts_with("a\u{FFFD}") && part.text.ends_with('b'));
}

#[test]
fn a_message_can_be_stored_with_serde() {
    for (note, message) in messages("messages.valid.jsonl") {
        let parsed = UiMessage::parse(&message.to_string()).unwrap();
        let stored = serde_json::to_string(&vec![&parsed]).unwrap();
        let read: Vec<UiMessage> = serde_json::from_str(&stored).unwrap();
        assert_eq!(read, [parsed], "{note}");
    }
}

/// Parts of the fixtures, with additional unknown fields of any JSON.
fn any_message() -> impl Strategy<Value = Value> {
    let parts: Vec<Value> = messages("messages.valid.jsonl")
        .into_iter()
        .flat_map(|(_, message)| message["parts"].as_array().unwrap().clone())
        .collect();
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    let json = leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".{0,4}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    });
    let extra = prop::collection::btree_map("x.{0,4}", json, 0..3);
    let part = (prop::sample::select(parts), extra.clone()).prop_map(|(mut part, extra)| {
        part.as_object_mut().unwrap().extend(extra);
        part
    });
    (prop::collection::vec(part, 0..6), extra, ".{0,8}").prop_map(|(parts, extra, id)| {
        let mut message = json!({"id": id, "role": "assistant", "parts": parts});
        message.as_object_mut().unwrap().extend(extra);
        message
    })
}

proptest! {
    #[test]
    fn all_unknown_fields_of_a_message_are_written_back(message in any_message()) {
        assert_round_trip("generated", &message);
    }
}
