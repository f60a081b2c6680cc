//! The model messages that the AI SDK was recorded to make of UI messages, and those of this crate:
//! the same, except for the differences in the table of `ToModelMessages`.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use test_support::fixture_files::fixture_files;
use ui_message_stream::UiMessage;
use ui_message_stream::model::{
    AssistantContent, FileContent, FileSource, ModelMessage, ToModelMessages, ToolCallContent,
    ToolContent, ToolResult, ToolResultContent, UserContent,
};

use super::brief::brief;

/// The deliberate differences, with this crate's result. `static` stands for both kinds of tools.
const DIFFERENT: &[(&str, &[&str])] = &[
    // A call without a result gets one.
    (
        "type tool- with empty tool name is accepted",
        &["assistant: c calls unnamed {}", "tool: c unknown"],
    ),
    ("static input-available minimal", &["assistant: c1 calls weather {}", "tool: c1 unknown"]),
    (
        "static input-available maximal",
        &[r#"assistant: c1 calls weather {"city":"Paris"}, c1 unknown"#],
    ),
    (
        "static approval-requested minimal",
        &["assistant: c1 calls weather {}", "tool: c1 not executed: AwaitsApproval"],
    ),
    (
        "static approval-requested empty id",
        &["assistant: c1 calls weather {}", "tool: c1 not executed: AwaitsApproval"],
    ),
    (
        "static approval-requested maximal",
        &[
            "assistant: c1 calls weather {}",
            "tool: c1 to the provider: no: This tool call was not executed. It waits for the person to approve it, and only runs then.",
        ],
    ),
    ("static approval-responded approved", &["assistant: c1 calls weather {}", "tool: c1 unknown"]),
    (
        "static approval-responded denied",
        &["assistant: c1 calls weather {}", "tool: c1 denied: no"],
    ),
    (
        "approval answered, then a user message",
        &[r#"assistant: 1 calls t {"n":"1"}"#, "tool: 1 unknown", r#"user: "x""#],
    ),
    ("tool name with dashes", &["assistant: 1 calls a-b-c {}", "tool: 1 unknown"]),
    (
        "mixed states in one step",
        &[
            r#"assistant: 1 calls t {"n":"1"}, 2 calls t {"n":"2"}, 3 calls t {"n":"3"}, 4 calls t {"n":"4"}, 5 calls t {"n":"5"}, 7 calls t {"n":"7"}, 8 calls t {"n":"8"}"#,
            "tool: 1 unknown, 2 denied: no, 3 = null, 4 not executed: AwaitsApproval, 5 unknown, 7 unknown, so far 1, 8 = null",
        ],
    ),
    // An approval in a history is not forwarded.
    (
        "static approval-responded approved with reason",
        &[
            "assistant: c1 calls weather {}",
            "tool: c1 to the provider: no: This tool call was not executed, and it is not queued.",
        ],
    ),
    // A preliminary output is not a result.
    (
        "static output-available preliminary",
        &["assistant: c1 calls weather {}", r#"tool: c1 unknown, so far {"t":1}"#],
    ),
    // A repetition of a settled call.
    ("duplicate toolCallId across parts accepted", &["assistant: c1 calls b {}", "tool: c1 = 1"]),
    // Reasoning without any content after it.
    ("reasoning minimal", &[]),
    ("reasoning maximal", &[]),
    // A text after a call was written after its result was known.
    (
        "no step-start: one block",
        &[r#"assistant: "a", 1 calls t {"n":"1"}"#, r#"tool: 1 = "x""#, r#"assistant: "b""#],
    ),
];

/// Precedes an assistant message at the beginning, which all of these cases have except those of a
/// user.
const BEGINS_HERE: &str = "(The conversation begins here.)";
const NOTHING_TO_SHOW: &str = "(Nothing of this message can be shown.)";

#[test]
fn the_model_reads_what_the_sdk_would_send_except_for_listed_differences() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/upstream/model-messages.jsonl");
    let text = fs::read_to_string(path).unwrap();
    let (mut same, mut differing) = (0, Vec::new());
    for line in text.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let note = case["note"].as_str().unwrap();
        let ours = ToModelMessages::new().model_messages(&ui_messages(&case["messages"]));
        let name = note.replacen("dynamic ", "static ", 1);
        match DIFFERENT.iter().find(|(different, _)| *different == name) {
            None => {
                assert_eq!(in_sdk_format(&ours), normalised(&case["modelMessages"]), "{note}");
                same += 1;
            }
            Some((different, here)) => {
                assert_ne!(in_sdk_format(&ours), normalised(&case["modelMessages"]), "{note}");
                let first = format!("user: {BEGINS_HERE:?}");
                let lines = brief(&ours);
                assert_eq!(lines.strip_prefix(&[first][..]).unwrap_or(&lines), *here, "{note}");
                differing.push(*different);
            }
        }
    }
    for (note, _) in DIFFERENT {
        assert!(differing.contains(note), "no such case: {note}");
    }
    assert!(same >= 60, "{same}");
}

/// Calls that a real client sent and the SDK leaves without a result, and this crate's result for
/// them.
const LEFT_OPEN: &[(&str, &[&str])] = &[
    (
        "06-approval-approved.json",
        &[
            r#"user: "Delete /a""#,
            r#"assistant: c1 calls delete {"path":"/a"}"#,
            "tool: c1 unknown",
        ],
    ),
    (
        "07-approval-denied-with-reason.json",
        &[
            r#"user: "Delete /a""#,
            r#"assistant: c1 calls delete {"path":"/a"}"#,
            "tool: c1 denied: not now",
        ],
    ),
    (
        "09-approval-mixed.json",
        &[
            r#"user: "Go""#,
            r#"assistant: "Two deletions, one read.", c1 calls delete {"path":"/a"}, c2 calls delete {"path":"/b"}, c3 calls read {"path":"/c"}"#,
            r#"tool: c1 unknown, c2 denied, c3 = "data""#,
        ],
    ),
    (
        "10-approval-dynamic-tool.json",
        &[r#"user: "Go""#, r#"assistant: c1 calls mcp_delete {"path":"/a"}"#, "tool: c1 unknown"],
    ),
    (
        "11-approval-provider-executed.json",
        &[
            r#"user: "Go""#,
            r#"assistant: c1 calls mcp_search {"q":1}"#,
            "tool: c1 to the provider: no: This tool call was not executed, and it is not queued.",
        ],
    ),
    (
        "16-new-message-while-approval-pending.json",
        &[
            r#"user: "Delete /a""#,
            r#"assistant: c1 calls delete {"path":"/a"}"#,
            "tool: c1 not executed: Unanswered",
            r#"user: "Never mind""#,
        ],
    ),
    (
        "17-approval-on-earlier-message.json",
        &[
            r#"user: "Delete /a""#,
            r#"assistant: c1 calls delete {"path":"/a"}"#,
            "tool: c1 unknown",
            r#"user: "Never mind""#,
        ],
    ),
    (
        "22-after-error-chunk.json",
        &[
            r#"user: "Weather?""#,
            r#"assistant: "part", c1 calls weather {"city":"Paris"}"#,
            "tool: c1 unknown",
            r#"user: "Again?""#,
        ],
    ),
];

#[test]
fn for_recorded_requests_the_model_reads_what_the_sdk_would_send() {
    let (mut compared, mut left_open) = (0, 0);
    for path in fixture_files("upstream/requests", ".json") {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let case: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        if case["modelMessages"].is_null() {
            continue;
        }
        let ours = ToModelMessages::new().model_messages(&ui_messages(&case["body"]["messages"]));
        let theirs = normalised(&case["modelMessages"]);
        match LEFT_OPEN.iter().find(|(left_open, _)| *left_open == name) {
            None => assert_eq!(in_sdk_format(&ours), theirs, "{name}"),
            Some((_, here)) => {
                assert_ne!(in_sdk_format(&ours), theirs, "{name}");
                assert_eq!(brief(&ours), *here, "{name}");
                left_open += 1;
            }
        }
        compared += 1;
    }
    assert_eq!(left_open, LEFT_OPEN.len());
    assert!(compared >= 18, "{compared}");
}

fn ui_messages(messages: &Value) -> Vec<UiMessage> {
    let messages = messages.as_array().unwrap().iter();
    messages.map(|message| UiMessage::parse(&message.to_string()).unwrap()).collect()
}

/// The SDK's messages, without the parts that a provider rejects or that this crate represents
/// otherwise.
fn normalised(messages: &Value) -> Value {
    let mut out: Vec<Value> = Vec::new();
    for message in messages.as_array().unwrap() {
        let role = message["role"].as_str().unwrap();
        let Value::Array(content) = message["content"].clone() else {
            assert_eq!(role, "system");
            continue;
        };
        let mut content: Vec<Value> = content
            .into_iter()
            .filter(|part| {
                let kind = part["type"].as_str().unwrap();
                let is_blank = kind == "text" && part["text"].as_str().unwrap().trim().is_empty();
                // This crate sends the outcome of the call instead of the SDK's approval parts.
                let is_done = kind == "tool-approval-response"
                    && (part["providerExecuted"] != true || part["approved"] == true);
                !is_blank && kind != "tool-approval-request" && !is_done
            })
            .map(|mut part| {
                if part["type"] == "tool-call" && part.get("input").is_none() {
                    part["input"] = json!({});
                }
                part
            })
            .collect();
        match out.last_mut() {
            _ if content.is_empty() && role == "user" => {
                out.push(
                    json!({"role": role, "content": [{"type": "text", "text": NOTHING_TO_SHOW}]}),
                );
            }
            _ if content.is_empty() => {}
            Some(last) if last["role"] == role => {
                last["content"].as_array_mut().unwrap().append(&mut content);
            }
            last => {
                if last.is_none() && role == "assistant" {
                    let begins = json!([{"type": "text", "text": BEGINS_HERE}]);
                    out.push(json!({"role": "user", "content": begins}));
                }
                out.push(json!({"role": role, "content": content}));
            }
        }
    }
    Value::Array(out)
}

fn in_sdk_format(messages: &[ModelMessage]) -> Value {
    let message = |message: &ModelMessage| match message {
        ModelMessage::User { content } => {
            json!({"role": "user", "content": content.iter().map(user_content).collect::<Vec<_>>()})
        }
        ModelMessage::Assistant { content } => {
            let content: Vec<_> = content.iter().map(assistant_content).collect();
            json!({"role": "assistant", "content": content})
        }
        ModelMessage::Tool { content } => {
            json!({"role": "tool", "content": content.iter().map(tool_content).collect::<Vec<_>>()})
        }
        other => panic!("{other:?}"),
    };
    messages.iter().map(message).collect()
}

fn user_content(content: &UserContent) -> Value {
    match content {
        UserContent::Text(text) => {
            part(json!({"type": "text", "text": text.text}), &text.provider_metadata)
        }
        UserContent::File(file) => file_content(file),
    }
}

fn assistant_content(content: &AssistantContent) -> Value {
    match content {
        AssistantContent::Text(text) => {
            part(json!({"type": "text", "text": text.text}), &text.provider_metadata)
        }
        AssistantContent::Reasoning(reasoning) => {
            part(json!({"type": "reasoning", "text": reasoning.text}), &reasoning.provider_metadata)
        }
        AssistantContent::File(file) => file_content(file),
        AssistantContent::ToolCall(call) => call_content(call),
        AssistantContent::ToolResult(result) => result_content(result, "error-json"),
    }
}

fn file_content(file: &FileContent) -> Value {
    let data = match &file.source {
        FileSource::Url(url) => url.clone(),
        FileSource::Base64(base64) => format!("data:{};base64,{base64}", file.media_type),
    };
    let mut content = json!({"type": "file", "mediaType": file.media_type, "data": data});
    if let Some(filename) = &file.filename {
        content["filename"] = json!(filename);
    }
    part(content, &file.provider_metadata)
}

fn call_content(call: &ToolCallContent) -> Value {
    let mut content = json!({
        "type": "tool-call", "toolCallId": call.tool_call_id, "toolName": call.tool_name,
        "input": call.input.decode::<Value>().unwrap(),
    });
    if call.provider_executed {
        content["providerExecuted"] = json!(true);
    }
    part(content, &call.provider_metadata)
}

fn tool_content(content: &ToolContent) -> Value {
    match content {
        ToolContent::Result(result) => result_content(result, "error-text"),
        ToolContent::ProviderApproval(answer) => {
            let mut content = Map::new();
            content.insert("type".into(), json!("tool-approval-response"));
            content.insert("approvalId".into(), json!(answer.approval_id));
            content.insert("approved".into(), json!(answer.approved));
            content.insert("providerExecuted".into(), json!(true));
            if let Some(reason) = &answer.reason {
                content.insert("reason".into(), json!(reason));
            }
            Value::Object(content)
        }
    }
}

fn result_content(content: &ToolResultContent, error: &str) -> Value {
    let output = match &content.result {
        ToolResult::Output(output) => match output.decode::<Value>().unwrap() {
            Value::String(text) if text == OMITTED.0 => json!({"type": "text", "value": OMITTED.1}),
            Value::String(text) => json!({"type": "text", "value": text}),
            value => json!({"type": "json", "value": value}),
        },
        ToolResult::Error(text) => json!({"type": error, "value": text}),
        // In later turns the SDK sends only the reason of a denial.
        ToolResult::Denied { reason } => {
            let reason = reason.as_deref().unwrap_or("Tool call execution denied.");
            json!({"type": "error-text", "value": reason})
        }
        none => json!({"type": "none here", "value": format!("{none:?}")}),
    };
    let result = json!({
        "type": "tool-result", "toolCallId": content.tool_call_id, "toolName": content.tool_name,
        "output": output,
    });
    part(result, &content.provider_metadata)
}

fn part(
    mut content: Value,
    metadata: &Option<ui_message_stream::metadata::ProviderMetadata>,
) -> Value {
    if let Some(metadata) = metadata {
        content["providerOptions"] = metadata.as_json().decode().unwrap();
    }
    content
}

/// The output of a tool without a known result, in both.
const OMITTED: (&str, &str) = (
    "The output is left out: this tool is no longer available.",
    "Tool output omitted because the tool is no longer available.",
);
