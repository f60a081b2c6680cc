//! Converts model messages to a request of this API.

use serde_json::{Map, Value, json};

use super::provider_state::ProviderState;
use super::{ChatCompletions, STREAM_OPTIONS, mistral};
use crate::call_ids::adapt_call_id;
use crate::files::{ReadableFile, SupportedFiles, placeholder};
use crate::strict_schema::output_format;
use ui_message_stream::model::{
    AssistantContent, CallIdRule, FileContent, ModelMessage, ModelRequest, NotExecutedReason,
    ToolCallContent, ToolContent, ToolDefinition, ToolResult, ToolResultContent, UserContent,
};

pub(super) fn body(
    request: &ModelRequest,
    model: &ChatCompletions,
    has_stream_options: bool,
) -> Value {
    let fingerprint = &model.fingerprint();
    let mut messages = Vec::new();
    if let Some(instructions) = request.instructions.as_deref() {
        messages.push(json!({"role": "system", "content": instructions}));
    }
    for message in &request.messages {
        match message {
            ModelMessage::System { text } => {
                messages.push(json!({"role": "system", "content": text}));
            }
            ModelMessage::User { content } => {
                messages
                    .push(json!({"role": "user", "content": user_content(content, model.supported_files)}));
            }
            ModelMessage::Assistant { content } => {
                push_assistant(&mut messages, content, model.sends_reasoning_content, fingerprint);
            }
            ModelMessage::Tool { content } => messages.extend(content.iter().map(result)),
        }
    }
    let rule = if model.is_mistral { &mistral::CALL_IDS } else { &CALL_IDS };
    if model.is_mistral {
        messages = mistral::adapt_messages(messages);
    }
    messages.iter_mut().for_each(|message| adapt_call_ids(message, rule));
    let mut body = Map::new();
    body.insert("model".into(), (&*model.model).into());
    body.insert("messages".into(), messages.into());
    if !request.tools.is_empty() {
        body.insert("tools".into(), request.tools.iter().filter_map(tool).collect());
    }
    if let Some(output) = &request.output {
        let format = json!({"type": "json_schema", "json_schema": output_format(output)});
        body.insert("response_format".into(), format);
    }
    body.insert("stream".into(), true.into());
    body.insert(STREAM_OPTIONS.into(), json!({"include_usage": true}));
    model.extra.apply_to(&mut body);
    if !has_stream_options {
        body.remove(STREAM_OPTIONS);
    }
    body.into()
}

fn adapt_call_ids(message: &mut Value, rule: &CallIdRule) {
    adapt_call_id(message, "tool_call_id", rule);
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    calls.into_iter().flatten().for_each(|call| adapt_call_id(call, "id", rule));
}

/// Returns `None` if no provider accepts the tool, which no agent has.
fn tool(tool: &ToolDefinition) -> Option<Value> {
    let parameters: Value = tool.parameters()?.decode().ok()?;
    Some(json!({"type": "function", "function": {
        "name": &*tool.name, "description": &*tool.description, "parameters": parameters,
    }}))
}

fn user_content(content: &[UserContent], supported_files: SupportedFiles) -> Value {
    if let [UserContent::Text(text)] = content {
        return text.text.as_str().into();
    }
    let pieces = content.iter().map(|content| match content {
        UserContent::Text(text) => json!({"type": "text", "text": text.text}),
        UserContent::File(file) => file_piece(file, supported_files),
    });
    pieces.collect()
}

fn file_piece(file: &FileContent, supported_files: SupportedFiles) -> Value {
    match ReadableFile::new(file, supported_files) {
        ReadableFile::Text(text) => json!({"type": "text", "text": text}),
        ReadableFile::Image(url) => json!({"type": "image_url", "image_url": {"url": url}}),
        ReadableFile::Pdf(data) => json!({"type": "file", "file": {
            "filename": file.filename.as_deref().unwrap_or("file"), "file_data": data,
        }}),
        ReadableFile::PdfUrl(_) => json!({"type": "text", "text": placeholder(file)}),
    }
}

/// Adds an assistant message, then the results of the calls in it that a provider executed: these
/// are ordinary calls in this API. Content that follows such results becomes a separate message.
fn push_assistant(
    messages: &mut Vec<Value>,
    content: &[AssistantContent],
    sends_reasoning_content: bool,
    fingerprint: &str,
) {
    let mut contents = AssistantContents::default();
    for content in content {
        if !contents.results.is_empty() && !matches!(content, AssistantContent::ToolResult(_)) {
            contents.flush(messages, sends_reasoning_content, false, fingerprint);
        }
        match content {
            AssistantContent::Text(text) => push_paragraph(&mut contents.text, &text.text),
            AssistantContent::Reasoning(thought) => {
                push_paragraph(&mut contents.reasoning, &thought.text);
            }
            AssistantContent::File(file) => push_paragraph(&mut contents.text, &placeholder(file)),
            AssistantContent::ToolCall(call) => contents.calls.push(call),
            AssistantContent::ToolResult(result) => contents.results.push(result),
        }
    }
    contents.flush(messages, sends_reasoning_content, true, fingerprint);
}

/// The content and calls of an assistant message up to the next results.
#[derive(Default)]
struct AssistantContents<'m> {
    text: String,
    reasoning: String,
    calls: Vec<&'m ToolCallContent>,
    results: Vec<&'m ToolResultContent>,
}

impl AssistantContents<'_> {
    /// Adds the message and its results. A call without a result here stays, unless this is the
    /// last message: its result follows the content that the model produced last.
    fn flush(
        &mut self,
        messages: &mut Vec<Value>,
        sends_reasoning_content: bool,
        is_last: bool,
        fingerprint: &str,
    ) {
        let results = std::mem::take(&mut self.results);
        let has_result = |call: &&ToolCallContent| {
            is_last || results.iter().any(|result| result.tool_call_id == call.tool_call_id)
        };
        let (finished, open) = std::mem::take(&mut self.calls).into_iter().partition(has_result);
        self.calls = open;
        let mut calls = Vec::new();
        let mut details = Vec::new();
        let mut blocks = Vec::new();
        for call in finished {
            let state = ProviderState::from_metadata(call.provider_metadata.as_ref(), fingerprint);
            let mut item = json!({
                "id": &*call.tool_call_id,
                "type": "function",
                "function": {"name": &*call.tool_name, "arguments": call.input_object().as_str()},
            });
            if let Some(extra) = state.extra_content {
                item["extra_content"] = extra.into();
            }
            calls.push(item);
            details.extend(state.thoughts.reasoning_details.into_iter().map(Value::Object));
            blocks.extend(state.thoughts.thinking_blocks.into_iter().map(Value::Object));
        }
        let text = std::mem::take(&mut self.text);
        let reasoning = std::mem::take(&mut self.reasoning);
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        if sends_reasoning_content {
            // Every message needs the field: servers reject messages without it. Moonshot treats an
            // empty string as missing, so a space is sent.
            let reasoning = if reasoning.trim().is_empty() { " " } else { &reasoning };
            message.insert("reasoning_content".into(), reasoning.into());
        }
        if !details.is_empty() {
            message.insert("reasoning_details".into(), details.into());
        }
        if !blocks.is_empty() {
            message.insert("thinking_blocks".into(), blocks.into());
        }
        let content = if text.is_empty() && !calls.is_empty() { Value::Null } else { text.into() };
        message.insert("content".into(), content);
        if !calls.is_empty() {
            message.insert("tool_calls".into(), calls.into());
        }
        messages.push(message.into());
        messages.extend(
            results.iter().map(|result| tool_message(&result.tool_call_id, &result.result)),
        );
    }
}

fn push_paragraph(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str(more);
}

fn result(content: &ToolContent) -> Value {
    match content {
        ToolContent::Result(result) => tool_message(&result.tool_call_id, &result.result),
        // The provider that would execute the call is not the one behind this adapter.
        ToolContent::ProviderApproval(answer) if answer.approved => {
            tool_message(&answer.tool_call_id, &NotExecutedReason::Rejected.into())
        }
        ToolContent::ProviderApproval(answer) => {
            let denied = ToolResult::Denied { reason: answer.reason.clone() };
            tool_message(&answer.tool_call_id, &denied)
        }
    }
}

fn tool_message(tool_call_id: &str, result: &ToolResult) -> Value {
    json!({"role": "tool", "tool_call_id": tool_call_id, "content": result.text()})
}

/// OpenAI accepts call ids of at most 40 characters. Servers of some models read their own characters in them.
const CALL_IDS: CallIdRule = CallIdRule::new(1..=40, |_| true);
