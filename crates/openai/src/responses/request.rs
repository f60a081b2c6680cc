//! [`Prompt`]: model messages as the items that this API takes.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::previous_response::Known;
use super::provider_state::Kept;
use super::provider_tools;
use crate::files::{Readable, Takes, placeholder};
use crate::function_tools::parameters;
use ui_message_stream::agent::ToolDescription;
use ui_message_stream::id::ToolCallId;
use ui_message_stream::model_message::{
    AssistantContent, FileContent, ModelMessage, ReasoningContent, ToolCallContent, ToolContent,
    ToolResult, ToolResultContent, UserContent,
};

/// What the model is to read.
pub(super) struct Prompt {
    pub(super) input: Vec<Value>,
    /// The response that it goes on from, if the provider stores them.
    pub(super) previous_response_id: Option<String>,
    /// Whether it holds what only the provider can read that made it, if it still can.
    pub(super) refers: bool,
}

/// What the provider takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken<'m> {
    /// Items that it made, as they were.
    pub(super) items: bool,
    /// Ids of what it stored.
    pub(super) may_refer: bool,
    /// Thoughts, which only a model that reasons reads again: those of this mark.
    pub(super) thoughts_of: Option<&'m str>,
    pub(super) files: Takes,
}

impl Prompt {
    pub(super) fn of(messages: &[ModelMessage], taken: Taken<'_>) -> Self {
        let known = if taken.may_refer { Known::of(messages) } else { None };
        let (input, begin, calls) = (Vec::new(), 0, HashMap::new());
        let mut items = Items { input, begin, known: known.as_ref(), taken, calls };
        for (at, message) in messages.iter().enumerate() {
            items.push(at, message, messages.get(at + 1));
        }
        let mut input = items.input;
        // Thoughts that the provider cannot read again it does not take.
        input.retain(|item| !is_thought(item) || !item["encrypted_content"].is_null());
        for thought in input.iter_mut().filter(|item| taken.may_refer && is_thought(item)) {
            // Of what it stored it wants all that it made upon them behind them, by its id.
            thought.as_object_mut().map(|thought| thought.remove("id"));
        }
        let is_made_there = |item: &Value| is_thought(item) || !item["id"].is_null();
        let refers = known.is_some() || input.iter().any(is_made_there);
        Prompt { input, previous_response_id: known.map(|known| known.response_id), refers }
    }
}

/// The questions of the provider that a person just said yes to, and the calls that they are about. A
/// yes stands only in the request that tells it; the person may have written on behind it.
pub(super) fn approved(messages: &[ModelMessage]) -> HashMap<String, ToolCallId> {
    let answered = messages.windows(2).filter_map(|two| match two {
        [ModelMessage::Assistant { content: said }, ModelMessage::Tool { content }] => {
            Some((said, content))
        }
        _ => None,
    });
    let yeses = answered.flat_map(|(said, content)| {
        content.iter().filter_map(move |content| match content {
            ToolContent::ProviderApproval(answer) if answer.approved => {
                let call = calls(said).find(|call| call.tool_call_id == answer.tool_call_id)?;
                let question = Kept::of(call.provider_metadata.as_ref()).item_id?;
                Some((question, call.tool_call_id.clone()))
            }
            _ => None,
        })
    });
    yeses.collect()
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

struct Items<'m> {
    input: Vec<Value>,
    /// Where the last assistant message begins in the input.
    begin: usize,
    known: Option<&'m Known>,
    taken: Taken<'m>,
    /// The calls of the last assistant message, and where they stand in it.
    calls: HashMap<&'m ToolCallId, (usize, &'m ToolCallContent)>,
}

impl<'m> Items<'m> {
    fn push(&mut self, at: usize, message: &'m ModelMessage, next: Option<&ModelMessage>) {
        match message {
            ModelMessage::Assistant { content } => self.assistant(at, content, next),
            _ if self.is_known(at, 0) => {}
            ModelMessage::System { text } => {
                self.input.push(json!({"role": "system", "content": text}));
            }
            ModelMessage::User { content } => {
                let content: Vec<Value> =
                    content.iter().map(|said| said_by_person(said, self.taken.files)).collect();
                self.input.push(json!({"role": "user", "content": content}));
            }
            ModelMessage::Tool { content } => {
                for content in content {
                    let item = self.became(content);
                    self.input.push(item);
                }
            }
        }
    }

    fn is_known(&self, message: usize, piece: usize) -> bool {
        self.known.is_some_and(|known| known.covers(message, piece))
    }

    fn assistant(
        &mut self,
        message: usize,
        content: &'m [AssistantContent],
        next: Option<&ModelMessage>,
    ) {
        let places = content.iter().enumerate();
        let calls = places.filter_map(|(at, content)| match content {
            AssistantContent::ToolCall(call) => Some((&call.tool_call_id, (at, call))),
            _ => None,
        });
        self.calls = calls.collect();
        self.begin = self.input.len();
        let is_answered = |call: &ToolCallContent| match next {
            Some(ModelMessage::Tool { content }) => content.iter().any(|content| {
                matches!(content, ToolContent::ProviderApproval(answer)
                    if answer.tool_call_id == call.tool_call_id)
            }),
            _ => false,
        };
        for (at, content) in content.iter().enumerate() {
            match content {
                AssistantContent::ToolResult(result) => self.result(message, result),
                _ if self.is_known(message, at) => {}
                AssistantContent::Text(text) => self.said(&text.text),
                AssistantContent::File(file) => self.said(&placeholder(file)),
                AssistantContent::Reasoning(thought) => self.thought(thought),
                AssistantContent::ToolCall(call) if !call.provider_executed => {
                    self.input.push(own_call(call));
                }
                AssistantContent::ToolCall(call) if is_answered(call) => {
                    let kept = Kept::of(call.provider_metadata.as_ref());
                    self.input.push(match kept.is_question() {
                        true => provider_tools::approval_request(call, &kept),
                        false => provider_tools::function_call(call),
                    });
                }
                // It stands with its result.
                AssistantContent::ToolCall(_) => {}
            }
        }
    }

    /// What became of a call that the provider ran, or asked about.
    fn result(&mut self, message: usize, result: &ToolResultContent) {
        let Some(&(at, call)) = self.calls.get(&result.tool_call_id) else { return };
        if !self.is_known(message, at) {
            let items = match self.taken.items {
                true => {
                    let may_refer = self.taken.may_refer;
                    provider_tools::settled(
                        call,
                        &result.result,
                        self.has_its_thoughts(),
                        may_refer,
                    )
                }
                false => provider_tools::function(call, &result.result),
            };
            self.input.extend(items);
            return;
        }
        // It knows what it said, and not what became of what it asked.
        let kept = Kept::of(call.provider_metadata.as_ref());
        if kept.is_question() && self.known.is_some_and(|known| known.is_said_last(message, at)) {
            self.input.push(provider_tools::no(&kept, &result.result));
        }
    }

    /// Whether the thoughts that come last in this message go with what was made upon them.
    fn has_its_thoughts(&self) -> bool {
        let mut said = self.input.iter().skip(self.begin).rev();
        said.find(|item| is_thought(item))
            .is_none_or(|last| !last["encrypted_content"].is_null() && !self.taken.may_refer)
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
        let is_taken = |mark: &str| kept.made_by.as_deref().is_none_or(|made_by| made_by == mark);
        let is_taken = self.taken.thoughts_of.is_some_and(is_taken);
        let encrypted = kept.reasoning_encrypted_content.filter(|_| is_taken);
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
                match call.filter(|(_, call)| is_tool_search(call)) {
                    Some((_, call)) => found_tools(call, &result.result),
                    None => provider_tools::function_output(&result.tool_call_id, &result.result),
                }
            }
            ToolContent::ProviderApproval(answer) => {
                let call = self.calls.get(&answer.tool_call_id);
                let kept = call.map(|(_, call)| Kept::of(call.provider_metadata.as_ref()));
                let Some(kept) = kept.filter(Kept::is_question) else {
                    let denied = ToolResult::Denied { reason: answer.reason.clone() };
                    return provider_tools::function_output(&answer.tool_call_id, &denied);
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

fn is_thought(item: &Value) -> bool {
    item["type"] == "reasoning"
}

fn own_call(call: &ToolCallContent) -> Value {
    if !is_tool_search(call) {
        return provider_tools::function_call(call);
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
