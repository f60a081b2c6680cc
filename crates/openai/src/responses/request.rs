//! [`Prompt`]: converts model messages to the items of this API.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::previous_response::PreviousResponse;
use super::provider_state::ProviderState;
use super::provider_tools;
use crate::call_ids::adapt_call_id;
use crate::files::{ReadableFile, SupportedFiles, placeholder};
use ui_message_stream::id::ToolCallId;
use ui_message_stream::model::{
    AssistantContent, CallIdRule, FileContent, ModelMessage, ReasoningContent, ToolCallContent,
    ToolContent, ToolDefinition, ToolResult, ToolResultContent, UserContent,
};

/// The conversation as items of this API.
pub(super) struct Prompt {
    pub(super) input: Vec<Value>,
    /// The id of the response that the request continues from, if the provider stores responses.
    pub(super) previous_response_id: Option<String>,
}

/// What a request may contain for this provider.
#[derive(Debug, Clone, Copy)]
pub(super) struct PromptOptions<'m> {
    /// Whether items that the provider produced are sent in their original form, with their ids.
    pub(super) has_provider_items: bool,
    /// Whether stored items may be referred to by id.
    pub(super) can_refer: bool,
    /// Whose reasoning is sent. `None` leaves reasoning out.
    pub(super) reasoning: Option<ReadableReasoning<'m>>,
    pub(super) files: SupportedFiles,
}

/// The reasoning that a model can read.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadableReasoning<'m> {
    pub(super) reader: &'m Fingerprints,
    /// Whether the model is configured to reason. If it is not, it may not read reasoning at all, so
    /// it only gets its own back, which it sent unasked.
    pub(super) is_configured: bool,
}

/// The opaque identifiers of a model and its endpoint.
#[derive(Debug, Clone)]
pub(super) struct Fingerprints {
    /// The operator of an endpoint can read the reasoning of all its models.
    pub(super) endpoint: String,
    pub(super) model: String,
}

impl ReadableReasoning<'_> {
    fn includes(&self, state: &ProviderState) -> bool {
        let Fingerprints { endpoint, model } = self.reader;
        let is_own = state.made_by_model.as_ref() == Some(model);
        let is_of_endpoint = state.made_by.as_ref().is_none_or(|made_by| made_by == endpoint);
        is_own || self.is_configured && is_of_endpoint
    }
}

impl Prompt {
    pub(super) fn new(messages: &[ModelMessage], options: PromptOptions<'_>) -> Self {
        let previous = if options.can_refer { PreviousResponse::find(messages) } else { None };
        let input = Vec::new();
        let begin = 0;
        let calls = HashMap::new();
        let mut items = InputBuilder { input, begin, previous: previous.as_ref(), options, calls };
        for (at, message) in messages.iter().enumerate() {
            items.push(at, message, messages.get(at + 1));
        }
        let mut input = items.input;
        // The provider knows the calls of a stored response by its own ids.
        let is_call = |item: &&Value| {
            item["type"] != "function_call_output" && item["type"] != "tool_search_output"
        };
        let calls: HashSet<Value> =
            input.iter().filter(is_call).map(|item| item["call_id"].clone()).collect();
        for item in input.iter_mut().filter(|item| calls.contains(&item["call_id"])) {
            adapt_call_id(item, "call_id", &CALL_IDS);
        }
        // The provider rejects reasoning that it cannot read again.
        input.retain(|item| !is_reasoning(item) || !item["encrypted_content"].is_null());
        let has_ids = options.has_provider_items && !options.can_refer;
        for thought in input.iter_mut().filter(|item| !has_ids && is_reasoning(item)) {
            // Reasoning that is sent with its stored id must be followed by the stored ids of all
            // items it led to, so the id is left out.
            thought.as_object_mut().map(|thought| thought.remove("id"));
        }
        Prompt { input, previous_response_id: previous.map(|previous| previous.response_id) }
    }
}

/// Returns the approval requests of the provider that the user has just approved, with the calls
/// they are about.
///
/// An approval is only in the request that sends it to the provider. A user message may follow
/// it.
pub(super) fn approved_calls(messages: &[ModelMessage]) -> HashMap<String, ToolCallId> {
    let answered = messages.windows(2).filter_map(|two| match two {
        [ModelMessage::Assistant { content: assistant }, ModelMessage::Tool { content }] => {
            Some((assistant, content))
        }
        _ => None,
    });
    let approved = answered.flat_map(|(assistant, content)| {
        content.iter().filter_map(move |content| match content {
            ToolContent::ProviderApproval(answer) if answer.approved => {
                let call =
                    calls(assistant).find(|call| call.tool_call_id == answer.tool_call_id)?;
                let question =
                    ProviderState::from_metadata(call.provider_metadata.as_ref()).item_id?;
                Some((question, call.tool_call_id.clone()))
            }
            _ => None,
        })
    });
    approved.collect()
}

/// Returns `None` if no provider accepts the tool, which no agent has.
pub(super) fn tool(tool: &ToolDefinition) -> Option<Value> {
    let parameters: Value = tool.parameters()?.decode().ok()?;
    Some(json!({
        "type": "function", "name": &*tool.name, "description": &*tool.description,
        "parameters": parameters, "strict": false,
    }))
}

fn calls(content: &[AssistantContent]) -> impl Iterator<Item = &ToolCallContent> {
    content.iter().filter_map(|content| match content {
        AssistantContent::ToolCall(call) => Some(call),
        _ => None,
    })
}

struct InputBuilder<'m> {
    input: Vec<Value>,
    /// The index of the first input item of the last assistant message.
    begin: usize,
    previous: Option<&'m PreviousResponse>,
    options: PromptOptions<'m>,
    /// The calls of the last assistant message, with their positions in it.
    calls: HashMap<&'m ToolCallId, (usize, &'m ToolCallContent)>,
}

impl<'m> InputBuilder<'m> {
    fn push(&mut self, at: usize, message: &'m ModelMessage, next: Option<&ModelMessage>) {
        match message {
            ModelMessage::Assistant { content } => self.push_assistant(at, content, next),
            _ if self.is_known(at, 0) => {}
            ModelMessage::System { text } => {
                self.input.push(json!({"role": "system", "content": text}));
            }
            ModelMessage::User { content } => {
                let content: Vec<Value> = content
                    .iter()
                    .map(|content| user_content(content, self.options.files))
                    .collect();
                self.input.push(json!({"role": "user", "content": content}));
            }
            ModelMessage::Tool { content } => {
                for content in content {
                    let item = self.tool_item(content);
                    self.input.push(item);
                }
            }
        }
    }

    fn is_known(&self, message: usize, piece: usize) -> bool {
        self.previous.is_some_and(|previous| previous.covers(message, piece))
    }

    fn push_assistant(
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
                AssistantContent::ToolResult(result) => self.push_result(message, result),
                _ if self.is_known(message, at) => {}
                AssistantContent::Text(text) => self.push_text(&text.text),
                AssistantContent::File(file) => self.push_text(&placeholder(file)),
                AssistantContent::Reasoning(thought) => self.push_reasoning(thought),
                AssistantContent::ToolCall(call) if !call.provider_executed => {
                    self.input.push(call_item(call));
                }
                AssistantContent::ToolCall(call) if is_answered(call) => {
                    let state = ProviderState::from_metadata(call.provider_metadata.as_ref());
                    self.input.push(if state.is_approval_request() {
                        provider_tools::approval_request(call, &state)
                    } else {
                        provider_tools::function_call(call)
                    });
                }
                // The call is added with its result.
                AssistantContent::ToolCall(_) => {}
            }
        }
    }

    /// Adds the result of a call that the provider executed or requested approval for.
    fn push_result(&mut self, message: usize, result: &ToolResultContent) {
        let Some(&(at, call)) = self.calls.get(&result.tool_call_id) else { return };
        if !self.is_known(message, at) {
            let items = if self.options.has_provider_items {
                let can_refer = self.options.can_refer;
                provider_tools::result_items(
                    call,
                    &result.result,
                    self.has_its_reasoning(),
                    can_refer,
                )
            } else {
                provider_tools::function_items(call, &result.result)
            };
            self.input.extend(items);
            return;
        }
        // The provider knows its own items, but not the response to its approval request.
        let state = ProviderState::from_metadata(call.provider_metadata.as_ref());
        if state.is_approval_request()
            && self.previous.is_some_and(|previous| previous.is_in_response(message, at))
        {
            self.input.push(provider_tools::denial(&state, &result.result));
        }
    }

    /// Whether the last reasoning of this message is sent together with what followed it.
    fn has_its_reasoning(&self) -> bool {
        let mut items = self.input.iter().skip(self.begin).rev();
        items
            .find(|item| is_reasoning(item))
            .is_none_or(|last| !last["encrypted_content"].is_null() && !self.options.can_refer)
    }

    fn push_text(&mut self, text: &str) {
        let content = json!([{"type": "output_text", "text": text}]);
        self.input.push(json!({"role": "assistant", "content": content}));
    }

    /// Adds reasoning. Several parts may belong to one item; the last of them holds the encrypted
    /// reasoning.
    fn push_reasoning(&mut self, thought: &ReasoningContent) {
        let state = ProviderState::from_metadata(thought.provider_metadata.as_ref());
        let Some(id) = state.item_id.clone() else { return };
        let summary = (!thought.text.is_empty())
            .then(|| json!({"type": "summary_text", "text": thought.text}));
        let is_same = |item: &Value| item["type"] == "reasoning" && item["id"] == *id;
        let is_readable = self.options.reasoning.is_some_and(|readable| readable.includes(&state));
        let encrypted = state.reasoning_encrypted_content.filter(|_| is_readable);
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

    fn tool_item(&self, content: &ToolContent) -> Value {
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
                let state = call
                    .map(|(_, call)| ProviderState::from_metadata(call.provider_metadata.as_ref()));
                let Some(state) = state.filter(ProviderState::is_approval_request) else {
                    let denied = ToolResult::Denied { reason: answer.reason.clone() };
                    return provider_tools::function_output(&answer.tool_call_id, &denied);
                };
                let mut item = json!({
                    "type": "mcp_approval_response", "approval_request_id": state.item_id,
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

fn is_reasoning(item: &Value) -> bool {
    item["type"] == "reasoning"
}

fn call_item(call: &ToolCallContent) -> Value {
    if !is_tool_search(call) {
        return provider_tools::function_call(call);
    }
    let arguments: Value = call.input_object().decode().unwrap_or_default();
    json!({
        "type": "tool_search_call", "call_id": &*call.tool_call_id, "execution": "client",
        "status": "completed", "arguments": arguments,
    })
}

fn is_tool_search(call: &ToolCallContent) -> bool {
    let state = ProviderState::from_metadata(call.provider_metadata.as_ref());
    state.item_type.as_deref() == Some("tool_search_call")
}

/// Returns what a tool search found: the `tools` of its output, or the output itself.
fn found_tools(call: &ToolCallContent, result: &ToolResult) -> Value {
    let found = match result {
        ToolResult::Output(output) => output.decode::<Value>().unwrap_or_default(),
        _ => Value::Null,
    };
    let tools = found.get("tools").unwrap_or(&found);
    let tools = if tools.is_array() { tools.clone() } else { json!([]) };
    json!({
        "type": "tool_search_output", "call_id": &*call.tool_call_id, "execution": "client",
        "status": "completed", "tools": tools,
    })
}

fn user_content(content: &UserContent, supported_files: SupportedFiles) -> Value {
    match content {
        UserContent::Text(text) => json!({"type": "input_text", "text": text.text}),
        UserContent::File(file) => file_piece(file, supported_files),
    }
}

fn file_piece(file: &FileContent, supported_files: SupportedFiles) -> Value {
    match ReadableFile::new(file, supported_files) {
        ReadableFile::Text(text) => json!({"type": "input_text", "text": text}),
        ReadableFile::Image(url) => json!({"type": "input_image", "image_url": url}),
        ReadableFile::PdfUrl(url) => json!({"type": "input_file", "file_url": url}),
        ReadableFile::Pdf(data) => json!({
            "type": "input_file", "filename": file.filename.as_deref().unwrap_or("file"),
            "file_data": data,
        }),
    }
}

/// The API accepts call ids of at most 64 letters, digits, `_` and `-`.
const CALL_IDS: CallIdRule =
    CallIdRule::new(1..=64, |it| it.is_ascii_alphanumeric() || matches!(it, '_' | '-'));
