//! Requests of real clients are parsed, invalid bodies are rejected with the path of the error, and
//! fields that a server must not use are removed.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use ui_message_stream::message::{Part, Role, ToolState};
use ui_message_stream::request::{Limits, ParseRequestError, Trigger};
use ui_message_stream::{ChatRequest, Json, UiMessage};

fn parse(body: &Value) -> Result<ChatRequest, ParseRequestError> {
    ChatRequest::parse(body.to_string().as_bytes(), &Limits::default())
}

/// The recorded POST bodies, by file name.
fn recorded() -> Vec<(String, Value)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/upstream/requests");
    let mut bodies: Vec<(String, Value)> = fs::read_dir(&path)
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let mut text: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
            (name, text["body"].take())
        })
        .filter(|(_, body)| body.is_object())
        .collect();
    bodies.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(bodies.len() > 20);
    bodies
}

/// A request with this history.
fn with_messages(messages: Value) -> Value {
    json!({"id": "chat", "messages": messages, "trigger": "submit-message"})
}

fn assistant(parts: Value) -> Value {
    with_messages(json!([{"id": "m", "role": "assistant", "parts": parts}]))
}

#[test]
fn every_recorded_request_is_parsed() {
    for (name, body) in recorded() {
        let chat = parse(&body).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(chat.id().as_str(), body["id"], "{name}");
        assert_eq!(chat.trigger().as_str(), body["trigger"], "{name}");
        assert_eq!(chat.message_id().map(|id| id.as_str()), body["messageId"].as_str(), "{name}");
        assert_eq!(chat.is_last_message_only(), body.get("messages").is_none(), "{name}");
        let sent: Vec<_> =
            chat.unsanitized_messages().map(|m| serde_json::to_value(m).unwrap()).collect();
        let expected = match body.get("messages") {
            Some(messages) => messages.clone(),
            None => json!([body["message"]]),
        };
        assert_eq!(json!(sent), expected, "{name}");
        for (field, value) in body.as_object().unwrap() {
            let own = !["id", "messages", "message", "trigger", "messageId"].contains(&&**field);
            let custom = chat.custom(field).map(|json| json.decode::<Value>().unwrap());
            assert_eq!(custom.as_ref(), own.then_some(value), "{name}: {field}");
        }
    }
}

#[test]
fn the_continued_message_is_the_one_that_the_request_answers() {
    // The name, the message that is continued, the user's message that is answered.
    let expected = [
        ("01-first-message", None, Some("id-1")),
        ("02-second-message-with-file-and-metadata", None, Some("id-3")),
        ("03-regenerate", None, Some("id-1")),
        ("04-regenerate-with-message-id", None, Some("id-1")),
        ("05-edit-user-message", None, Some("id-1")),
        ("06-approval-approved", Some("srv-1"), None),
        ("07-approval-denied-with-reason", Some("srv-1"), None),
        ("08-turn-after-denied", None, Some("id-4")),
        ("09-approval-mixed", Some("srv-1"), None),
        ("10-approval-dynamic-tool", Some("srv-1"), None),
        ("11-approval-provider-executed", Some("srv-1"), None),
        ("12-client-tool-output", Some("srv-1"), None),
        ("13-client-tool-output-error", Some("srv-1"), None),
        ("14-client-tool-output-from-on-tool-call", Some("srv-1"), None),
        ("15-tool-output-for-unanswered-approval", Some("srv-1"), None),
        ("16-new-message-while-approval-pending", None, Some("id-3")),
        ("17-approval-on-earlier-message", Some("srv-1"), None),
        ("18-custom-body-and-headers", None, Some("id-1")),
        ("20-prepare-send-messages-request-last-only", None, Some("id-1")),
        ("21-after-stop-with-partial-tool-input", None, Some("id-3")),
        ("22-after-error-chunk", None, Some("id-3")),
    ];
    let recorded = recorded();
    assert_eq!(recorded.len(), expected.len());
    for ((name, body), (expected_name, continued, answered)) in recorded.iter().zip(expected) {
        assert_eq!(name, expected_name);
        let chat = parse(body).unwrap();
        assert_eq!(chat.continued_message().map(|m| m.id.as_str()), continued, "{name}");
        assert_eq!(chat.new_user_message().map(|m| m.id.as_str()), answered, "{name}");
    }
}

#[test]
fn a_regeneration_continues_no_message() {
    let mut body = with_messages(json!([
        {"id": "a1", "role": "assistant", "parts": []},
        {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]},
    ]));
    body["messageId"] = json!("a1");
    assert_eq!(parse(&body).unwrap().continued_message().unwrap().id.as_str(), "a1");
    body["trigger"] = json!("regenerate-message");
    let chat = parse(&body).unwrap();
    assert!(chat.continued_message().is_none());
    assert_eq!(chat.trigger(), &Trigger::RegenerateMessage);
    // The client has removed another response after this one.
    body["messages"].as_array_mut().unwrap().pop();
    for message_id in [json!("a1"), json!("a2"), json!(null)] {
        body["messageId"] = message_id;
        let chat = parse(&body).unwrap();
        assert!(chat.continued_message().is_none() && chat.new_user_message().is_none());
        assert!(chat.unsanitized_continued_message().is_none());
    }
}

#[test]
fn a_body_with_only_the_required_fields_is_parsed() {
    let chat = parse(&json!({"id": "c", "messages": [], "messageId": null, "trigger": null}));
    let chat = chat.unwrap();
    assert_eq!(chat.trigger(), &Trigger::SubmitMessage);
    assert_eq!((chat.message_id(), chat.messages().len()), (None, 0));
    assert!(chat.continued_message().is_none() && chat.new_user_message().is_none());

    let chat = parse(&json!({"id": "c", "messages": [], "trigger": "later"})).unwrap();
    assert_eq!(chat.trigger(), &Trigger::Other("later".into()));

    // If `messages` is present, `message` is a custom field.
    let chat = parse(&json!({"id": "c", "messages": [], "message": 7})).unwrap();
    assert_eq!(chat.custom("message").unwrap().as_str(), "7");
    assert!(!chat.is_last_message_only());
}

#[test]
fn custom_fields_can_be_read_typed_or_as_json() {
    #[derive(serde::Deserialize)]
    struct Custom {
        model: String,
        #[serde(default)]
        temperature: Option<f64>,
    }
    let body = r#"{"model":"a","x":{"deep":[1.0]},"id":"c","messages":[],"none":null}"#;
    let chat = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();
    let custom: Custom = chat.custom_fields().unwrap();
    assert_eq!((custom.model.as_str(), custom.temperature), ("a", None));
    assert_eq!(chat.custom("x").unwrap().as_str(), r#"{"deep":[1.0]}"#);
    assert!(chat.custom("none").unwrap().is_null());
    assert!(chat.custom("absent").is_none() && chat.custom("id").is_none());
}

#[test]
fn another_field_can_hold_the_id_of_the_chat() {
    let limits = Limits::default().with_chat_id_field("threadId").with_max_id_bytes(3);
    let parse = |body: &str| ChatRequest::parse(body.as_bytes(), &limits);
    let chat = parse(r#"{"threadId": "c", "id": 7, "messages": []}"#).unwrap();
    assert_eq!(chat.id().as_str(), "c");
    assert_eq!(chat.custom("id").unwrap().as_str(), "7");
    assert_eq!(chat.custom("threadId"), None);
    for (body, expected) in [
        (r#"{"threadId": null, "messages": []}"#, "threadId: expected a string"),
        (r#"{"threadId": "c", "threadId": "c", "messages": []}"#, "threadId: given twice"),
        (
            r#"{"threadId": "long", "messages": []}"#,
            "threadId: longer than 3 bytes; `Limits::with_max_id_bytes` allows more",
        ),
        (
            r#"{"id": "c", "messages": []}"#,
            "threadId: missing; this field holds the id of the chat, which a \
             `prepareSendMessagesRequest` has to return as `body: { threadId: id, messages, trigger, \
             messageId }`; the server can read another field with `Limits::with_chat_id_field`",
        ),
    ] {
        assert_eq!(parse(body).unwrap_err().to_string(), expected, "{body}");
    }
    // Each field of the application counts as a node, and `id` is one here.
    let no_node = limits.clone().with_max_nodes(0);
    let count = |body: &str| ChatRequest::parse(body.as_bytes(), &no_node).is_ok();
    assert!(count(r#"{"threadId": "c", "messages": []}"#));
    assert!(!count(r#"{"threadId": "c", "id": "c", "messages": []}"#));
}

#[test]
fn an_invalid_body_is_rejected_with_the_path_of_the_error() {
    let bad_approval = json!([
        {"type": "text", "text": "of course"},
        {"type": "tool-t", "toolCallId": "c", "state": "approval-responded", "input": {},
         "approval": {"id": "a", "approved": "s3cr3t"}},
    ]);
    let user = json!({"id": "u", "role": "user", "parts": [{"type": "text", "text": "Hi"}]});
    let late = json!([user, user, user, {"id": "m", "role": "assistant", "parts": bad_approval}]);
    let answer = |approved: bool| {
        json!({"type": "tool-t", "toolCallId": approved.to_string(), "state": "approval-responded",
               "approval": {"id": "s3cr3t", "approved": approved}})
    };
    let message = |text: &str| {
        format!(r#"{{"id":"s3cr3t","messages":[{{"id":"m","role":"user","parts":[{text}]}}]}}"#)
    };
    let proto = "a key `__proto__` or `constructor.prototype`, which the client refuses";
    let texts = [
        ("", "the body is not JSON: EOF while parsing a value at line 1 column 0"),
        ("s3cr3t", "the body is not JSON: expected value at line 1 column 1"),
        (
            r#"{"id":"s3cr3t","messages":[]} x"#,
            "the body is not JSON: trailing characters at line 1 column 31",
        ),
        (r#""s3cr3t""#, "expected a chat request, which is an object"),
        (
            "{}",
            "id: missing; this field holds the id of the chat, which a \
             `prepareSendMessagesRequest` has to return as `body: { id, messages, trigger, \
             messageId }`; the server can read another field with `Limits::with_chat_id_field`",
        ),
        (r#"{"id":null,"messages":[]}"#, "id: expected a string"),
        (r#"{"id":"s3cr3t"}"#, "messages: missing"),
        (r#"{"id":"c","messages":"s3cr3t"}"#, "messages: expected an array"),
        // `serde_json` calls such a number a syntax error, or not, depending on its features.
        ("1e400", "expected a chat request, which is an object"),
        (r#"{"id":"c","messages":1e400}"#, "messages: expected an array"),
        (r#"{"id":"c","messages":["s3cr3t"]}"#, "messages[0]: expected an object"),
        (
            r#"{"id":"c","messages":[{"id":"m","role":"user","parts":["s3cr3t"]}]}"#,
            "messages[0].parts[0]: expected an object",
        ),
        (r#"{"id":"c","message":"s3cr3t"}"#, "message: expected an object"),
        (
            r#"{"id":"c","message":{"id":"m","role":"user","parts":[0]}}"#,
            "message.parts[0]: expected an object",
        ),
        (r#"{"id":"c","messages":[],"trigger":1}"#, "trigger: expected a string"),
        (r#"{"id":"c","messages":[],"messageId":{}}"#, "messageId: expected a string"),
        (r#"{"id":"c","id":"d","messages":[]}"#, "id: given twice"),
        (r#"{"id":"c","messages":[],"messages":[]}"#, "messages: given twice"),
        (r#"{"id":"c","messages":[],"s3cr3t":1,"s3cr3t":2}"#, "an object repeats a key"),
        (r#"{"id":"c","messages":[],"x":[{"s3cr3t":1,"s3cr3t":2}]}"#, "an object repeats a key"),
        (r#"{"id":"c","messages":[],"__proto__":{}}"#, proto),
        (r#"{"id":"c","messages":[],"constructor":{"prototype":1}}"#, proto),
    ];
    let built = [
        (
            message(r#"{"type":"data-x","data":{"__proto__":1}}"#),
            format!("messages[0].parts[0].data: {proto}"),
        ),
        (
            message(r#"{"type":"text","text":"a"},{"type":"text","text":["s3cr3t"]}"#),
            "messages[0].parts[1].text: expected a string".into(),
        ),
        (
            with_messages(late).to_string(),
            "messages[3].parts[1].approval.approved: expected a boolean".into(),
        ),
        (
            assistant(json!([answer(true), {"type": "step-start"}, answer(false)])).to_string(),
            "messages[0].parts[2].approval.approved: contradicts another answer to the same \
             approval"
                .into(),
        ),
    ];
    let texts = texts.map(|(body, expected)| (body.to_owned(), expected.to_owned()));
    for (body, expected) in texts.into_iter().chain(built) {
        let refused = ChatRequest::parse(body.as_bytes(), &Limits::default());
        let refused = refused.map(|_| body).unwrap_err();
        assert_eq!(refused.to_string(), expected);
        assert!(!refused.is_limit(), "{refused}");
        assert!(!format!("{refused:?}").contains("s3cr3t"), "{refused:?}");
    }
    let refused = ChatRequest::parse(b"{\"id\":\"\xff\"}", &Limits::default()).unwrap_err();
    assert_eq!(refused.to_string(), "the body is not UTF-8 from byte 7 on");
}

#[test]
fn a_repeated_approval_response_counts_once() {
    let part = |call: &str| {
        json!({"type": "tool-t", "toolCallId": call, "state": "approval-responded",
               "approval": {"id": "a", "approved": true}})
    };
    parse(&assistant(json!([part("c"), part("c"), part("d")]))).unwrap();
}

#[test]
fn a_limit_error_names_the_setting_that_raises_the_limit() {
    let part = json!({"type": "step-start"});
    let message = json!({"id": "m", "role": "assistant", "parts": [part, part]});
    let body = with_messages(json!([message, message])).to_string();
    let parse = |limits: Limits| ChatRequest::parse(body.as_bytes(), &limits);

    // Three fields, two messages of three fields, four parts of one field.
    let enough = Limits::default()
        .with_max_bytes(body.len())
        .with_max_depth(5)
        .with_max_messages(2)
        .with_max_parts(4)
        .with_max_nodes(2 + 4);
    parse(enough.clone()).unwrap();

    for (limits, error) in [
        (
            enough.clone().with_max_bytes(body.len() - 1),
            format!(
                "the body is longer than {} bytes; `Limits::with_max_bytes` allows more",
                body.len() - 1
            ),
        ),
        (
            enough.clone().with_max_depth(4),
            "the body nests deeper than 4 levels; `Limits::with_max_depth` allows more".into(),
        ),
        (
            enough.clone().with_max_messages(1),
            "messages: more than 1; `Limits::with_max_messages` allows more".into(),
        ),
        (
            enough.clone().with_max_parts(3),
            "messages: more than 3 parts; `Limits::with_max_parts` allows more".into(),
        ),
        (
            enough.clone().with_max_nodes(5),
            "more than 5 messages, parts and unknown fields together; `Limits::with_max_nodes` allows \
             more"
                .into(),
        ),
    ] {
        let error: String = error;
        assert_eq!(parse(limits).unwrap_err().to_string(), error);
    }
}

#[test]
fn depth_is_counted_outside_strings_and_without_recursion() {
    let nested = |n: usize| {
        format!(r#"{{"id":"[[[","messages":[],"x":{}1{}}}"#, "[".repeat(n), "]".repeat(n))
    };
    let parse = |body: String| ChatRequest::parse(body.as_bytes(), &Limits::default());
    parse(nested(63)).unwrap();
    for n in [64, 65, 1_000, 1_000_000] {
        assert!(matches!(parse(nested(n)), Err(ParseRequestError::TooDeep { limit: 64 })), "{n}");
    }
    assert!(matches!(parse("[".repeat(65)), Err(ParseRequestError::TooDeep { .. })));
    let deep = Limits::default().with_max_depth(usize::MAX);
    ChatRequest::parse(nested(100_000).as_bytes(), &deep).unwrap();
}

/// Bodies with `"VALUE"` in place of a value, at each place where a reader looks for one.
fn bodies_with_a_value() -> Vec<Value> {
    const KINDS: &str = "text reasoning source-url source-document file reasoning-file custom step-start data-a new";
    const STATES: &str = "input-streaming input-available approval-requested approval-responded output-available \
                          output-error output-denied new";
    const FIELDS: &str = "type text input output data rawInput title approval providerMetadata callProviderMetadata \
                          resultProviderMetadata toolMetadata dynamic extra";
    let part = json!({"text": "", "toolCallId": "c", "toolName": "a", "state": "done", "sourceId": "s", "kind": "k",
        "url": "https://example.com/", "mediaType": "text/plain", "title": "t", "errorText": "",
        "approval": {"id": "a", "approved": true}});
    let with = |object: &Value, field: &str, value: Value| {
        let mut object = object.clone();
        object[field] = value;
        object
    };
    let at_each = |object: &Value, fields: &str| -> Vec<Value> {
        fields.split(' ').map(|field| with(object, field, json!("VALUE"))).collect()
    };
    let kinds = KINDS.split(' ').map(|kind| with(&part, "type", json!(kind)));
    let tools = STATES.split(' ').flat_map(|state| {
        ["tool-a", "dynamic-tool"]
            .map(|kind| with(&with(&part, "type", json!(kind)), "state", json!(state)))
    });
    let in_approvals = tools.clone().flat_map(|tool| {
        let approvals = at_each(&tool["approval"], "id reason descriptor inputSchemaInput extra");
        approvals.into_iter().map(move |approval| with(&tool, "approval", approval))
    });
    let parts =
        kinds.chain(tools.clone()).flat_map(|part| at_each(&part, FIELDS)).chain(in_approvals);
    let message = |parts: Value| json!({"id": "m", "role": "assistant", "parts": parts});
    let in_messages = at_each(&message(json!([])), "id role parts metadata extra");
    let messages =
        parts.map(|part| message(json!([part]))).chain(in_messages).chain([json!("VALUE")]);
    let bodies = messages.flat_map(|message| {
        [with_messages(json!([message])), json!({"id": "c", "message": message})]
    });
    let in_bodies =
        at_each(&with_messages(json!([])), "id trigger messageId messages message extra");
    bodies.chain(in_bodies).chain([json!("VALUE")]).collect()
}

/// How deep a JSON text nests whose strings hold no brackets.
fn depth_of(text: &str) -> i32 {
    let steps = text.chars().scan(0, |depth, c| {
        *depth += i32::from(matches!(c, '{' | '[')) - i32::from(matches!(c, '}' | ']'));
        Some(*depth)
    });
    steps.max().unwrap_or(0)
}

#[test]
fn a_body_within_the_depth_reads_as_without_a_limit_and_a_deeper_one_is_refused() {
    for body in bodies_with_a_value().iter().map(Value::to_string) {
        for (open, close, levels) in (0..4).flat_map(|n| [("[", "]", n), (r#"{"a":"#, "}", n)]) {
            let value = format!("{}1{}", open.repeat(levels), close.repeat(levels));
            let text = body.replace(r#""VALUE""#, &value);
            let parse = |depth| {
                ChatRequest::parse(text.as_bytes(), &Limits::default().with_max_depth(depth))
            };
            let unlimited = format!("{:?}", parse(usize::MAX));
            let depth = depth_of(&text);
            for limit in 0..10 {
                let parsed = parse(limit as usize);
                if depth > limit {
                    assert!(
                        matches!(parsed, Err(ParseRequestError::TooDeep { .. })),
                        "{limit}: {text}"
                    );
                } else {
                    assert_eq!(format!("{parsed:?}"), unlimited, "{limit}: {text}");
                }
            }
        }
    }
}

#[test]
fn a_large_valid_chat_is_within_the_default_limits() {
    // Inputs and outputs of any size count by their bytes, not by the number of values in them.
    let rows: Vec<Value> = (0..1_000).map(|n| json!({"n": n, "name": "row", "ok": true})).collect();
    let tool = |n: usize| {
        json!({"type": "tool-query", "toolCallId": format!("call_{n}"), "state": "output-available",
               "input": {"sql": "select"}, "output": rows, "providerExecuted": false})
    };
    let messages: Vec<Value> = (0..20)
        .map(|n| json!({"id": format!("m{n}"), "role": "assistant", "parts": [{"type": "step-start"}, tool(n)]}))
        .collect();
    let chat = parse(&with_messages(json!(messages))).unwrap();
    assert_eq!(chat.messages().len(), 20);
    // 500 messages with four parts each.
    let parts = json!([{"type": "step-start"}, {"type": "reasoning", "text": "hm", "state": "done"},
                       {"type": "text", "text": "Hi", "state": "done"},
                       {"type": "tool-t", "toolCallId": "c", "state": "output-available",
                        "input": {}, "output": {}}]);
    let message = json!({"id": "m", "role": "assistant", "parts": parts, "metadata": {}});
    parse(&with_messages(json!(vec![message; 500]))).unwrap();
}

#[test]
fn system_messages_and_provider_metadata_do_not_reach_the_agent() {
    let pm = json!({"openai": {"previousResponseId": "CANARY"}});
    let parts = json!([
        {"type": "text", "text": "a", "providerMetadata": pm, "callProviderMetadata": pm},
        {"type": "reasoning", "text": "b", "providerMetadata": pm},
        {"type": "source-url", "sourceId": "s", "url": "u", "providerMetadata": pm},
        {"type": "source-document", "sourceId": "s", "mediaType": "m", "title": "t",
         "providerMetadata": pm},
        {"type": "file", "mediaType": "image/png", "url": "https://example.com/a.png",
         "providerMetadata": pm, "providerReference": {"openai": "CANARY"}},
        {"type": "step-start", "providerOptions": pm},
        {"type": "data-x", "data": 1, "providerMetadata": pm},
        {"type": "tool-t", "toolCallId": "1", "state": "output-available", "output": 1,
         "callProviderMetadata": pm, "resultProviderMetadata": pm, "providerMetadata": pm},
        {"type": "tool-t", "toolCallId": "2", "state": "output-error", "errorText": "e",
         "resultProviderMetadata": pm},
        {"type": "tool-t", "toolCallId": "3", "state": "approval-requested",
         "approval": {"id": "a"}, "resultProviderMetadata": pm},
        {"type": "later", "kept": 1, "providerMetadata": pm},
        {"type": "step-start", "kept": 1},
    ]);
    let history = json!([
        {"id": "s", "role": "system", "parts": [{"type": "text", "text": "CANARY"}]},
        {"id": "u", "role": "user", "parts": [{"type": "text", "text": "Hi"}]},
        {"id": "m", "role": "assistant", "parts": parts, "providerOptions": pm, "metadata": {"a": 1}},
        {"id": "s2", "role": "system", "parts": [{"type": "text", "text": "CANARY"}]},
    ]);
    let chat = parse(&with_messages(history.clone())).unwrap();
    let seen = serde_json::to_value(chat.messages()).unwrap();
    assert!(!seen.to_string().contains("CANARY"), "{seen}");
    assert_eq!(seen[0], history[1]);
    assert_eq!(seen[1]["metadata"], json!({"a": 1}));
    assert_eq!(seen[1]["parts"].as_array().unwrap().len(), 12);
    assert_eq!(seen[1]["parts"][10], json!({"type": "later", "kept": 1}));
    assert!(chat.messages().iter().all(|message| message.role != Role::System));
    assert_eq!(chat.continued_message().unwrap(), &chat.messages()[1]);
    // The unsanitized messages are available by name.
    assert_eq!(
        serde_json::to_value(chat.unsanitized_messages().collect::<Vec<_>>()).unwrap(),
        history
    );
}

#[test]
fn a_data_url_of_the_user_may_have_one_mebibyte() {
    let parsed = |scheme: &str, bytes: usize, limits: &Limits| {
        let url = format!("{scheme}{}", "A".repeat(bytes - scheme.len()));
        let part = json!({"type": "file", "mediaType": "image/png", "url": url});
        let body = with_messages(json!([{"id": "u", "role": "user", "parts": [part]}]));
        ChatRequest::parse(body.to_string().as_bytes(), limits).map(|_| ())
    };
    let limits = Limits::default();
    assert!(parsed("data:image/png;base64,", 1 << 20, &limits).is_ok());
    for scheme in ["data:image/png;base64,", "DATA:,", "data:"] {
        let error = parsed(scheme, (1 << 20) + 1, &limits).unwrap_err();
        assert!(matches!(error, ParseRequestError::DataUrlTooLong { limit: 1_048_576 }), "{error}");
        assert!(error.is_limit());
        assert!(error.to_string().contains("Limits::with_max_data_url_bytes"), "{error}");
    }
    assert!(parsed("data:,", 11, &limits.clone().with_max_data_url_bytes(10)).is_err());
    // A file that the server sent is part of every later request.
    let url = format!("data:,{}", "A".repeat(1 << 20));
    let part = json!({"type": "file", "mediaType": "image/png", "url": url});
    let body = with_messages(json!([{"id": "a", "role": "assistant", "parts": [part]}]));
    assert!(ChatRequest::parse(body.to_string().as_bytes(), &limits).is_ok());
    // A file at an `https` URL does not count.
    assert!(parsed("https://files.example/", (1 << 20) + 1, &limits).is_ok());
}

#[test]
fn files_are_accepted_only_from_allowed_url_schemes_and_hosts() {
    let urls = [
        "https://example.com/a.png",
        "HTTPS://example.com/a.png",
        "data:image/png;base64,AA==",
        "http://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "s3://bucket/key",
        " https://example.com",
        "java\nscript:alert(1)",
        "/uploads/a.png",
        "",
    ];
    let parts: Vec<Value> = urls
        .iter()
        .map(|url| json!({"type": "file", "mediaType": "image/png", "url": url}))
        .collect();
    let body = with_messages(json!([{"id": "u", "role": "user", "parts": parts}])).to_string();
    let accepted = |limits: Limits| -> Vec<String> {
        let chat = ChatRequest::parse(body.as_bytes(), &limits).unwrap();
        let parts = chat.messages()[0].parts.iter();
        parts
            .map(|part| match part {
                Part::File(file) => file.url.clone(),
                other => panic!("{other:?}"),
            })
            .collect()
    };
    assert_eq!(accepted(Limits::default()), urls[..3]);
    assert_eq!(accepted(Limits::default().with_file_schemes(["http", "data"])), urls[2..4]);
    assert_eq!(accepted(Limits::default().with_file_schemes::<&str>([])), [""; 0]);
}

#[test]
fn of_parts_with_one_call_id_the_one_in_the_latest_state_counts() {
    let part = |state: &str, name: &str| {
        let mut part = json!({"type": format!("tool-{name}"), "toolCallId": "c", "state": state});
        match state {
            "approval-requested" => part["approval"] = json!({"id": name}),
            "approval-responded" => part["approval"] = json!({"id": name, "approved": true}),
            "output-error" => part["errorText"] = json!("e"),
            _ => {}
        }
        part
    };
    let mut no = part("approval-responded", "no");
    no["approval"]["approved"] = json!(false);
    let mut preliminary = part("output-available", "preliminary");
    preliminary["preliminary"] = json!(true);
    for (parts, remaining) in [
        (json!([part("output-available", "a"), part("approval-responded", "b")]), "a"),
        (json!([part("approval-responded", "a"), part("output-available", "b")]), "b"),
        (
            json!([part("input-available", "a"), {"type": "step-start"}, part("output-error", "b")]),
            "b",
        ),
        (json!([part("output-denied", "a"), part("output-available", "b")]), "a"),
        (json!([part("approval-requested", "a"), part("approval-responded", "b")]), "b"),
        (json!([part("approval-responded", "a"), part("approval-responded", "b")]), "a"),
        (json!([part("input-streaming", "a"), part("input-available", "b")]), "b"),
        (json!([part("input-streaming", "a"), part("approval-requested", "b")]), "b"),
        (json!([preliminary, part("output-available", "b")]), "b"),
        (json!([part("approval-responded", "a"), no]), "no"),
    ] {
        let chat = parse(&assistant(parts.clone())).unwrap();
        let left: Vec<&str> =
            chat.messages()[0].tool_parts().map(|part| &*part.tool_name).collect();
        assert_eq!(left, [remaining], "{parts}");
        assert_eq!(chat.unsanitized_messages().next().unwrap().tool_parts().count(), 2);
    }
    // Providers reuse call ids in every turn: in another message the same id is another call.
    let message = |part: Value| json!({"id": "m", "role": "assistant", "parts": [part]});
    let history =
        json!([message(part("output-available", "a")), message(part("approval-responded", "b"))]);
    let chat = parse(&with_messages(history)).unwrap();
    assert!(matches!(
        chat.messages()[1].tool_parts().next().unwrap().state,
        ToolState::ApprovalResponded { .. }
    ));
}

/// A recorded body with some bytes changed, repeated, removed or moved.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let bodies: Vec<Vec<u8>> =
        recorded().into_iter().map(|(_, body)| body.to_string().into_bytes()).collect();
    let token = prop::sample::select(vec![
        "null",
        "true",
        "0",
        "1e999",
        "{}",
        "[]",
        "\"\"",
        "\"\\ud800\"",
        "\"__proto__\":1,",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\",
        "\"state\":",
        "\"approval\":",
        "\u{0}",
        "é",
    ]);
    let edit = (any::<prop::sample::Index>(), 0_usize..20, token);
    (prop::sample::select(bodies), prop::collection::vec(edit, 0..6)).prop_map(|(body, edits)| {
        edits.into_iter().fold(body, |mut body, (at, cut, token)| {
            let from = at.index(body.len() + 1);
            let to = (from + cut).min(body.len());
            body.splice(from..to, token.bytes());
            body
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_mutated_body_makes_the_parser_panic(body in mutated()) {
        let limits = Limits::default().with_max_nodes(300).with_max_depth(12);
        if let Ok(chat) = ChatRequest::parse(&body, &limits) {
            // Compared as text, because no JSON tree holds `1e999`.
            let sent = serde_json::to_string(&chat.unsanitized_messages().collect::<Vec<_>>()).unwrap();
            let again = format!(r#"{{"id":"c","messages":{sent}}}"#);
            let again = ChatRequest::parse(again.as_bytes(), &Limits::default()).unwrap();
            prop_assert_eq!(again.messages(), chat.messages());
        }
    }

    #[test]
    fn random_bytes_are_rejected(body in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assert!(ChatRequest::parse(&body, &Limits::default()).is_err());
    }
}

#[test]
fn answers_are_written_as_the_recorded_clients_write_them() {
    let mut answers = [0, 0];
    for (name, body) in recorded().into_iter().filter(|(_, body)| body.get("messages").is_some()) {
        let mut asked = body.clone();
        let parts = asked["messages"].as_array_mut().unwrap().iter_mut();
        for part in parts.flat_map(|message| message["parts"].as_array_mut().unwrap()) {
            let part = part.as_object_mut().unwrap();
            if part.get("state") == Some(&json!("approval-responded")) {
                part["state"] = json!("approval-requested");
                part["approval"]
                    .as_object_mut()
                    .unwrap()
                    .retain(|k, _| k != "approved" && k != "reason");
            } else if part.get("toolCallId").is_some()
                && ["output", "errorText"].iter().any(|field| part.contains_key(*field))
                && !["approval", "preliminary", "rawInput"]
                    .iter()
                    .any(|field| part.contains_key(*field))
            {
                part["state"] = json!("input-available");
                part.retain(|key, _| key != "output" && key != "errorText");
            }
        }
        let mut messages: Vec<UiMessage> =
            serde_json::from_str(&asked["messages"].to_string()).unwrap();
        for (at, message) in messages.iter_mut().enumerate() {
            let client = &body["messages"][at]["parts"];
            let wanted =
                client.as_array().unwrap().iter().filter(|part| !part["toolCallId"].is_null());
            for (part, wanted) in message.tool_parts_mut().zip(wanted) {
                if matches!(part.state, ToolState::ApprovalRequested { .. })
                    && let Some(approved) = wanted["approval"]["approved"].as_bool()
                {
                    part.respond(approved, wanted["approval"]["reason"].as_str()).unwrap();
                    assert!(part.respond(approved, None).is_err(), "{name}");
                    answers[0] += 1;
                } else if matches!(part.state, ToolState::InputAvailable { .. })
                    && wanted["state"] != "input-available"
                {
                    let output = match wanted["errorText"].as_str() {
                        Some(text) => Err(text.to_owned()),
                        None => Ok(Json::from_serialize(&wanted["output"]).unwrap()),
                    };
                    part.set_output(output).unwrap();
                    assert!(part.set_output(Err("again".to_owned())).is_err(), "{name}");
                    answers[1] += 1;
                }
            }
        }
        assert_eq!(serde_json::to_value(&messages).unwrap(), body["messages"], "{name}");
        parse(&with_messages(json!(messages))).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    assert!(answers[0] >= 5 && answers[1] >= 3, "{answers:?}");
}
