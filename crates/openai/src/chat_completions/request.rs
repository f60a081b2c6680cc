//! The request: model messages as this API takes them.

use serde_json::{Map, Value, json};

use super::provider_state::Kept;
use super::{ChatCompletions, STREAM_OPTIONS, mistral};
use crate::files::{Readable, Takes, placeholder};
use crate::function_tools::parameters;
use crate::strict_schema::format;
use ui_message_stream::agent::{ModelRequest, ToolDescription};
use ui_message_stream::model_message::{
    AssistantContent, FileContent, ModelMessage, NotExecuted, ToolCallContent, ToolContent,
    ToolResult, ToolResultContent, UserContent,
};

pub(super) fn body(request: &ModelRequest, model: &ChatCompletions, mark: &str) -> Value {
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
                    .push(json!({"role": "user", "content": said_by_person(content, model.takes)}));
            }
            ModelMessage::Assistant { content } => {
                push_assistant(&mut messages, content, model.sends_reasoning, mark);
            }
            ModelMessage::Tool { content } => messages.extend(content.iter().map(result)),
        }
    }
    if model.is_mistral {
        messages = mistral::fitted(messages);
    }
    let mut body = Map::new();
    body.insert("model".into(), (&*model.model).into());
    body.insert("messages".into(), messages.into());
    if !request.tools.is_empty() {
        body.insert("tools".into(), request.tools.iter().map(tool).collect());
    }
    if let Some(output) = &request.output {
        let format = json!({"type": "json_schema", "json_schema": format(output)});
        body.insert("response_format".into(), format);
    }
    body.insert("stream".into(), true.into());
    body.insert(STREAM_OPTIONS.into(), json!({"include_usage": true}));
    model.extra.put_into(&mut body);
    body.into()
}

fn tool(tool: &ToolDescription) -> Value {
    json!({"type": "function", "function": {
        "name": &*tool.name, "description": &*tool.description, "parameters": parameters(tool),
    }})
}

fn said_by_person(content: &[UserContent], takes: Takes) -> Value {
    if let [UserContent::Text(text)] = content {
        return text.text.as_str().into();
    }
    let pieces = content.iter().map(|content| match content {
        UserContent::Text(text) => json!({"type": "text", "text": text.text}),
        UserContent::File(file) => file_piece(file, takes),
    });
    pieces.collect()
}

fn file_piece(file: &FileContent, takes: Takes) -> Value {
    match Readable::of(file, takes) {
        Readable::Text(text) => json!({"type": "text", "text": text}),
        Readable::Image(url) => json!({"type": "image_url", "image_url": {"url": url}}),
        Readable::Pdf(data) => json!({"type": "file", "file": {
            "filename": file.filename.as_deref().unwrap_or("file"), "file_data": data,
        }}),
        Readable::PdfAt(_) => json!({"type": "text", "text": placeholder(file)}),
    }
}

/// What the model said and called, and behind it what became of the calls that a provider ran: here
/// they are calls as any other. What it said once it knew that is a message of its own.
fn push_assistant(
    messages: &mut Vec<Value>,
    content: &[AssistantContent],
    sends_reasoning: bool,
    mark: &str,
) {
    let mut said = Said::default();
    for content in content {
        if !said.results.is_empty() && !matches!(content, AssistantContent::ToolResult(_)) {
            said.settle(messages, sends_reasoning, false, mark);
        }
        match content {
            AssistantContent::Text(text) => push_paragraph(&mut said.text, &text.text),
            AssistantContent::Reasoning(thought) => {
                push_paragraph(&mut said.reasoning, &thought.text);
            }
            AssistantContent::File(file) => push_paragraph(&mut said.text, &placeholder(file)),
            AssistantContent::ToolCall(call) => said.calls.push(call),
            AssistantContent::ToolResult(result) => said.results.push(result),
        }
    }
    said.settle(messages, sends_reasoning, true, mark);
}

/// What the model said and called up to the results that it knew next.
#[derive(Default)]
struct Said<'m> {
    text: String,
    reasoning: String,
    calls: Vec<&'m ToolCallContent>,
    results: Vec<&'m ToolResultContent>,
}

impl Said<'_> {
    /// Adds it, and the results behind it. Calls without a result here have theirs behind what was
    /// said last.
    fn settle(
        &mut self,
        messages: &mut Vec<Value>,
        sends_reasoning: bool,
        is_last: bool,
        mark: &str,
    ) {
        let results = std::mem::take(&mut self.results);
        let is_settled = |call: &&ToolCallContent| {
            is_last || results.iter().any(|result| result.tool_call_id == call.tool_call_id)
        };
        let (settled, open) = std::mem::take(&mut self.calls).into_iter().partition(is_settled);
        self.calls = open;
        let (mut calls, mut details, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
        for call in settled {
            let kept = Kept::of(call.provider_metadata.as_ref(), mark);
            let mut item = json!({
                "id": &*call.tool_call_id,
                "type": "function",
                "function": {"name": &*call.tool_name, "arguments": call.input_object().as_str()},
            });
            if let Some(extra) = kept.extra_content {
                item["extra_content"] = extra.into();
            }
            calls.push(item);
            details.extend(kept.thoughts.reasoning_details.into_iter().map(Value::Object));
            blocks.extend(kept.thoughts.thinking_blocks.into_iter().map(Value::Object));
        }
        let (text, reasoning) =
            (std::mem::take(&mut self.text), std::mem::take(&mut self.reasoning));
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        if sends_reasoning {
            // On every message: one without is refused. Moonshot takes none for none, and a blank.
            let thoughts = if reasoning.trim().is_empty() { " " } else { &reasoning };
            message.insert("reasoning_content".into(), thoughts.into());
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
        // Whoever was to run it is not here.
        ToolContent::ProviderApproval(answer) if answer.approved => {
            tool_message(&answer.tool_call_id, &NotExecuted::Refused.into())
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
