//! [`Prompt`]: model messages as the items that this API takes.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::super::files::{Readable, Takes, in_words};
use super::super::functions::parameters;
use super::hosted;
use super::kept::Kept;
use crate::agent::ToolDescription;
use crate::id::ToolCallId;
use crate::metadata::ProviderMetadata;
use crate::model_message::{
    AssistantContent, FileContent, ModelMessage, ReasoningContent, ToolCallContent, ToolContent,
    ToolResult, UserContent,
};

/// What the model is to read.
pub(super) struct Prompt {
    pub(super) input: Vec<Value>,
    /// The response that it goes on from, if the provider stores them.
    pub(super) previous_response_id: Option<String>,
}

impl Prompt {
    pub(super) fn of(
        messages: &[ModelMessage],
        is_stored: bool,
        takes_thoughts: bool,
        takes: Takes,
    ) -> Self {
        let known = messages.iter().enumerate().rev().filter(|_| is_stored);
        let known = known.filter_map(|(at, message)| Some((at, response_id(message)?))).next();
        let (known, previous_response_id) = known.unzip();
        let mut items = Items { input: Vec::new(), takes, calls: HashMap::new() };
        for (at, message) in messages.iter().enumerate() {
            let is_news = known.is_none_or(|known| at > known);
            let next = messages.get(at + 1);
            let before = items.input.len();
            items.push(message, next);
            if !is_news {
                items.input.truncate(before);
            }
        }
        // Thoughts that the provider cannot read again it does not take.
        let is_lost = |item: &Value| {
            item["type"] == "reasoning" && (!takes_thoughts || item["encrypted_content"].is_null())
        };
        items.input.retain(|item| !is_lost(item));
        Prompt { input: items.input, previous_response_id }
    }
}

/// The questions of the provider that a person just said yes to, and the calls that they are about.
pub(super) fn approved(messages: &[ModelMessage]) -> HashMap<String, ToolCallId> {
    let [.., ModelMessage::Assistant { content: said }, ModelMessage::Tool { content }] = messages
    else {
        return HashMap::new();
    };
    let answers = content.iter().filter_map(|content| match content {
        ToolContent::ProviderApproval(answer) if answer.approved => {
            let call = calls(said).find(|call| call.tool_call_id == answer.tool_call_id)?;
            let question = Kept::of(call.provider_metadata.as_ref()).item_id?;
            Some((question, call.tool_call_id.clone()))
        }
        _ => None,
    });
    answers.collect()
}

pub(super) fn tool(tool: &ToolDescription) -> Value {
    json!({
        "type": "function", "name": &*tool.name, "description": &*tool.description,
        "parameters": parameters(tool), "strict": false,
    })
}

fn calls(said: &[AssistantContent]) -> impl Iterator<Item = &ToolCallContent> {
    said.iter().filter_map(|content| match content {
        AssistantContent::ToolCall(call) => Some(call),
        _ => None,
    })
}

/// The last response that a message is of.
fn response_id(message: &ModelMessage) -> Option<String> {
    let ModelMessage::Assistant { content } = message else { return None };
    content.iter().rev().find_map(|content| Kept::of(metadata(content)).response_id)
}

fn metadata(content: &AssistantContent) -> Option<&ProviderMetadata> {
    match content {
        AssistantContent::Text(text) => text.provider_metadata.as_ref(),
        AssistantContent::Reasoning(thought) => thought.provider_metadata.as_ref(),
        AssistantContent::ToolCall(call) => call.provider_metadata.as_ref(),
        AssistantContent::File(_) | AssistantContent::ToolResult(_) => None,
    }
}

struct Items<'m> {
    input: Vec<Value>,
    takes: Takes,
    /// The calls of the last assistant message.
    calls: HashMap<&'m ToolCallId, &'m ToolCallContent>,
}

impl<'m> Items<'m> {
    fn push(&mut self, message: &'m ModelMessage, next: Option<&ModelMessage>) {
        match message {
            ModelMessage::System { text } => {
                self.input.push(json!({"role": "system", "content": text}));
            }
            ModelMessage::User { content } => {
                let content: Vec<Value> =
                    content.iter().map(|said| said_by_person(said, self.takes)).collect();
                self.input.push(json!({"role": "user", "content": content}));
            }
            ModelMessage::Assistant { content } => self.assistant(content, next),
            ModelMessage::Tool { content } => {
                for content in content {
                    let item = self.became(content);
                    self.input.push(item);
                }
            }
        }
    }

    fn assistant(&mut self, content: &'m [AssistantContent], next: Option<&ModelMessage>) {
        self.calls = calls(content).map(|call| (&call.tool_call_id, call)).collect();
        let is_answered = |call: &ToolCallContent| match next {
            Some(ModelMessage::Tool { content }) => content.iter().any(|content| {
                matches!(content, ToolContent::ProviderApproval(answer)
                    if answer.tool_call_id == call.tool_call_id)
            }),
            _ => false,
        };
        for content in content {
            match content {
                AssistantContent::Text(text) => self.said(&text.text),
                AssistantContent::File(file) => self.said(&in_words(file)),
                AssistantContent::Reasoning(thought) => self.thought(thought),
                AssistantContent::ToolCall(call) if !call.provider_executed => {
                    self.input.push(own_call(call));
                }
                AssistantContent::ToolCall(call) if is_answered(call) => {
                    let kept = Kept::of(call.provider_metadata.as_ref());
                    self.input.push(match is_question(&kept) {
                        true => hosted::approval_request(call, &kept),
                        false => hosted::function_call(call),
                    });
                }
                // It stands with its result.
                AssistantContent::ToolCall(_) => {}
                AssistantContent::ToolResult(result) => {
                    let call = self.calls.get(&result.tool_call_id);
                    let items = call.map(|call| hosted::settled(call, &result.result));
                    self.input.extend(items.into_iter().flatten());
                }
            }
        }
    }

    fn said(&mut self, text: &str) {
        let content = json!([{"type": "output_text", "text": text}]);
        self.input.push(json!({"role": "assistant", "content": content}));
    }

    /// Several parts may be one item, of which the last holds what the provider can read again.
    fn thought(&mut self, thought: &ReasoningContent) {
        let kept = Kept::of(thought.provider_metadata.as_ref());
        let Some(id) = kept.item_id else { return };
        let summary = (!thought.text.is_empty())
            .then(|| json!({"type": "summary_text", "text": thought.text}));
        let is_same = |item: &Value| item["type"] == "reasoning" && item["id"] == *id;
        let encrypted = kept.reasoning_encrypted_content;
        if let Some(item) = self.input.last_mut().filter(|item| is_same(item)) {
            if let Some(summaries) = item["summary"].as_array_mut() {
                summaries.extend(summary);
            }
            if encrypted.is_some() {
                item["encrypted_content"] = encrypted.into();
            }
            return;
        }
        let summary: Vec<Value> = summary.into_iter().collect();
        self.input.push(json!({
            "type": "reasoning", "id": id, "summary": summary, "encrypted_content": encrypted,
        }));
    }

    fn became(&self, content: &ToolContent) -> Value {
        match content {
            ToolContent::Result(result) => {
                let call = self.calls.get(&result.tool_call_id);
                match call.filter(|call| is_tool_search(call)) {
                    Some(call) => found_tools(call, &result.result),
                    None => hosted::function_output(&result.tool_call_id, &result.result),
                }
            }
            ToolContent::ProviderApproval(answer) => {
                let call = self.calls.get(&answer.tool_call_id);
                let kept = call.map(|call| Kept::of(call.provider_metadata.as_ref()));
                let Some(kept) = kept.filter(is_question) else {
                    let denied = ToolResult::Denied { reason: answer.reason.clone() };
                    return hosted::function_output(&answer.tool_call_id, &denied);
                };
                let mut item = json!({
                    "type": "mcp_approval_response", "approval_request_id": kept.item_id,
                    "approve": answer.approved,
                });
                if let Some(reason) = &answer.reason {
                    item["reason"] = reason.as_str().into();
                }
                item
            }
        }
    }
}

/// Whether the call is a question that this provider asked.
fn is_question(kept: &Kept) -> bool {
    kept.item_type.as_deref() == Some("mcp_approval_request") && kept.item_id.is_some()
}

fn own_call(call: &ToolCallContent) -> Value {
    if !is_tool_search(call) {
        return hosted::function_call(call);
    }
    let arguments: Value = call.input_object().to().unwrap_or_default();
    json!({
        "type": "tool_search_call", "call_id": &*call.tool_call_id, "execution": "client",
        "status": "completed", "arguments": arguments,
    })
}

fn is_tool_search(call: &ToolCallContent) -> bool {
    let kept = Kept::of(call.provider_metadata.as_ref());
    kept.item_type.as_deref() == Some("tool_search_call")
}

/// What a search for tools found: the `tools` of its output, or the output itself.
fn found_tools(call: &ToolCallContent, result: &ToolResult) -> Value {
    let found = match result {
        ToolResult::Output(output) => output.to::<Value>().unwrap_or_default(),
        _ => Value::Null,
    };
    let tools = found.get("tools").unwrap_or(&found);
    let tools = if tools.is_array() { tools.clone() } else { json!([]) };
    json!({
        "type": "tool_search_output", "call_id": &*call.tool_call_id, "execution": "client",
        "status": "completed", "tools": tools,
    })
}

fn said_by_person(content: &UserContent, takes: Takes) -> Value {
    match content {
        UserContent::Text(text) => json!({"type": "input_text", "text": text.text}),
        UserContent::File(file) => file_piece(file, takes),
    }
}

fn file_piece(file: &FileContent, takes: Takes) -> Value {
    match Readable::of(file, takes) {
        Readable::Text(text) => json!({"type": "input_text", "text": text}),
        Readable::Image(url) => json!({"type": "input_image", "image_url": url}),
        Readable::PdfAt(url) => json!({"type": "input_file", "file_url": url}),
        Readable::Pdf(data) => json!({
            "type": "input_file", "filename": file.filename.as_deref().unwrap_or("file"),
            "file_data": data,
        }),
    }
}
