//! The rules of providers for a prompt, implemented independently of the crate.
//!
//! For each rule, a provider has rejected a request that broke it. The prompt is first converted to
//! the provider's format, as a minimal adapter does it.

use std::collections::HashSet;

use serde_json::{Value, json};
use ui_message_stream::model::{
    AssistantContent, ModelMessage, ToolCallContent, ToolContent, ToolResult, UserContent,
};

/// Panics if the messages break a promise of `ui_message_stream` about prompts.
pub fn check_promises(messages: &[ModelMessage]) {
    let mut ids = HashSet::new();
    for (at, message) in messages.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| &messages[before]);
        let next = messages.get(at + 1);
        match message {
            ModelMessage::User { content } => {
                assert!(!content.is_empty(), "an empty user message");
                assert!(!matches!(before, Some(ModelMessage::User { .. })), "two users");
            }
            ModelMessage::Assistant { content } => {
                assert!(before.is_some(), "the first message is the assistant's");
                assert!(!matches!(before, Some(ModelMessage::Assistant { .. })), "two assistants");
                check_calls(content, next, &mut ids);
            }
            ModelMessage::Tool { content } => {
                assert!(!content.is_empty(), "an empty tool message");
                assert!(
                    matches!(before, Some(ModelMessage::Assistant { .. })),
                    "results without a call"
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

fn check_calls(
    content: &[AssistantContent],
    next: Option<&ModelMessage>,
    ids: &mut HashSet<String>,
) {
    assert!(!matches!(content.last(), None | Some(AssistantContent::Reasoning(_))));
    let mut expected = Vec::new();
    let mut content = content.iter().peekable();
    while let Some(part) = content.next() {
        match part {
            AssistantContent::ToolCall(call) => {
                assert!(ids.insert(call.tool_call_id.to_string()), "an id for two calls");
                let result_after = content.next_if(|next| {
                    matches!(next, AssistantContent::ToolResult(result)
                        if result.tool_call_id == call.tool_call_id)
                });
                assert!(result_after.is_none() || call.provider_executed);
                if result_after.is_none() {
                    expected.push((&call.tool_call_id, call.provider_executed));
                }
            }
            AssistantContent::ToolResult(_) => panic!("a result without its call"),
            _ => {}
        }
    }
    let actual: Vec<_> = match next {
        Some(ModelMessage::Tool { content }) => content
            .iter()
            .map(|content| match content {
                ToolContent::Result(result) => (&result.tool_call_id, false),
                ToolContent::ProviderApproval(answer) => (&answer.tool_call_id, true),
            })
            .collect(),
        _ => Vec::new(),
    };
    assert_eq!(expected, actual, "the calls and the ids of the results");
}

/// Panics if Chat Completions would reject the messages.
pub fn check_as_openai(messages: &[ModelMessage]) {
    let mut waiting: Vec<String> = Vec::new();
    for message in messages {
        match message {
            ModelMessage::Tool { content } => {
                for content in content {
                    let ToolContent::Result(result) = content else { continue };
                    let at = waiting.iter().position(|id| *id == *result.tool_call_id);
                    waiting.remove(at.expect("a tool message answers a call of the one before"));
                }
            }
            other => {
                assert!(waiting.is_empty(), "tool_call_ids did not have response messages");
                if let ModelMessage::Assistant { content } = other {
                    for call in content.iter().filter_map(host_call) {
                        let name = &call.tool_name;
                        assert!((1..=64).contains(&name.len()), "the length of a name");
                        let is_letter = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
                        assert!(name.chars().all(is_letter), "the pattern of a name: {name:?}");
                        assert!(!call.tool_call_id.is_empty(), "an empty id");
                        waiting.push(call.tool_call_id.to_string());
                    }
                }
            }
        }
    }
    assert!(waiting.is_empty(), "tool_call_ids did not have response messages");
}

/// Panics if Anthropic's Messages API would reject the messages.
pub fn check_as_anthropic(messages: &[ModelMessage]) {
    let messages = as_anthropic(messages);
    let mut waiting: Vec<Value> = Vec::new();
    let mut used = HashSet::new();
    for (at, (role, blocks)) in messages.iter().enumerate() {
        // The first message has the role `user`, and then the roles alternate.
        assert_eq!(*role, ["user", "assistant"][at % 2]);
        assert!(!blocks.is_empty(), "all messages must have non-empty content");
        for (place, block) in blocks.iter().enumerate() {
            match block["type"].as_str().unwrap() {
                "text" => assert!(
                    !block["text"].as_str().unwrap().trim().is_empty(),
                    "text content blocks must contain non-whitespace text"
                ),
                "tool_result" => {
                    let results_before =
                        blocks[..place].iter().all(|block| block["type"] == "tool_result");
                    assert!(results_before, "results must come first");
                    let id = &block["tool_use_id"];
                    let call = waiting.iter().position(|waiting| waiting == id);
                    waiting.remove(call.expect("tool_result without its tool_use before"));
                    let is_blank = block["content"].as_str().unwrap().trim().is_empty();
                    assert!(block["is_error"] == false || !is_blank, "a blank error");
                }
                "tool_use" => {
                    assert!(block["input"].is_object(), "input should be a valid dictionary");
                    assert!(used.insert(block["id"].to_string()), "tool_use ids must be unique");
                    waiting.push(block["id"].clone());
                }
                _ => {}
            }
        }
        let is_answered = *role == "assistant" || waiting.is_empty();
        assert!(is_answered, "tool_use without tool_result immediately after: {waiting:?}");
        let last = &blocks[blocks.len() - 1]["type"];
        assert!(*role == "user" || last != "thinking", "the final block cannot be thinking");
    }
    assert!(waiting.is_empty(), "tool_use without tool_result immediately after: {waiting:?}");
}

/// Converts messages to Anthropic's format. Provider-executed calls belong to another provider and
/// are left out. Messages with the same role that are then adjacent are joined; tool results are
/// joined with the user message after them in the same way.
fn as_anthropic(messages: &[ModelMessage]) -> Vec<(&'static str, Vec<Value>)> {
    let mut out: Vec<(&'static str, Vec<Value>)> = Vec::new();
    for message in messages {
        let (role, blocks): (_, Vec<Value>) = match message {
            ModelMessage::User { content } => ("user", content.iter().map(user_block).collect()),
            ModelMessage::Assistant { content } => ("assistant", assistant_blocks(content)),
            ModelMessage::Tool { content } => {
                ("user", content.iter().filter_map(result_block).collect())
            }
            other => panic!("{other:?}"),
        };
        match out.last_mut() {
            _ if blocks.is_empty() => {}
            Some((last, before)) if *last == role => before.extend(blocks),
            _ => out.push((role, blocks)),
        }
    }
    out
}

fn user_block(content: &UserContent) -> Value {
    match content {
        UserContent::Text(text) => json!({"type": "text", "text": text.text}),
        UserContent::File(_) => json!({"type": "image"}),
    }
}

fn assistant_blocks(content: &[AssistantContent]) -> Vec<Value> {
    let mut blocks: Vec<Value> = content.iter().filter_map(assistant_block).collect();
    let is_provider_executed = |content: &AssistantContent| matches!(content, AssistantContent::ToolCall(call) if call.provider_executed);
    // Reasoning that led to a call that is left out is left out too.
    while content.iter().any(is_provider_executed)
        && blocks.last().is_some_and(|block| block["type"] == "thinking")
    {
        blocks.pop();
    }
    blocks
}

fn assistant_block(content: &AssistantContent) -> Option<Value> {
    Some(match content {
        AssistantContent::Text(text) => json!({"type": "text", "text": text.text}),
        AssistantContent::Reasoning(reasoning) => {
            json!({"type": "thinking", "thinking": reasoning.text})
        }
        AssistantContent::File(_) => json!({"type": "image"}),
        AssistantContent::ToolCall(call) if !call.provider_executed => json!({
            "type": "tool_use", "id": call.tool_call_id, "name": call.tool_name,
            "input": call.input_object().decode::<Value>().expect("an input that any reader takes"),
        }),
        _ => return None,
    })
}

fn result_block(content: &ToolContent) -> Option<Value> {
    let ToolContent::Result(content) = content else { return None };
    let text = content.result.text();
    let is_output = matches!(content.result, ToolResult::Output(_));
    assert_eq!(content.result.is_error(), !is_output);
    Some(json!({
        "type": "tool_result", "tool_use_id": content.tool_call_id, "content": text,
        "is_error": !is_output,
    }))
}

/// Returns the tool call, if it is one that the host executes.
fn host_call(content: &AssistantContent) -> Option<&ToolCallContent> {
    match content {
        AssistantContent::ToolCall(call) if !call.provider_executed => Some(call),
        _ => None,
    }
}
