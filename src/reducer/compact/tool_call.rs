//! [`ToolCallChunks`]: the fewest chunks that bring a tool call into its state.

use std::borrow::Cow;

use super::super::PartialJson;
use super::super::tool_part_fields::{Call, Content, State};
use crate::chunk::{Chunk, InputEncoding};
use crate::json::{Json, unescaped};
use crate::message::{ApprovalDetails, ToolKind};
use crate::metadata::ProviderMetadata;

/// The chunks of one call.
#[derive(Default)]
pub(super) struct ToolCallChunks {
    pub(super) same_step: Vec<Chunk<'static>>,
    /// Chunks that refer to the call by its id and, in its own step, would reach another part.
    pub(super) next_step: Vec<Chunk<'static>>,
    /// Whether chunks that refer to the call by its id reach it within its own step.
    is_first: bool,
}

/// The state of the call before an approval was requested or denied.
enum BaseState {
    Started(Option<InputEncoding>),
    Streaming(Option<InputEncoding>, String),
    Available,
    Output { output: Option<Json>, preliminary: Option<bool> },
    Failed(String),
}

impl ToolCallChunks {
    /// Returns the chunks of a call. `is_first` says whether the call is the first part of its step
    /// with this id.
    pub(super) fn new(call: &Call, is_first: bool) -> Self {
        let mut chunks = ToolCallChunks { is_first, ..Self::default() };
        let is_approval_last = is_approval_last(call);
        let approval: Vec<_> = approval_request(call).into_iter().chain(decision(call)).collect();
        let (approval, earlier_approval) =
            if is_approval_last { (approval, Vec::new()) } else { (Vec::new(), approval) };
        match base_state(call) {
            BaseState::Output { output, preliminary } => {
                chunks.same_step.push(input_available(call));
                chunks.add_references(earlier_approval);
                chunks.add_references([Chunk::ToolOutputAvailable {
                    tool_call_id: id(call),
                    output: output.map(Cow::Owned),
                    provider_executed: None,
                    provider_metadata: result_metadata(call),
                    tool_metadata: None,
                    dynamic: None,
                    preliminary,
                }]);
            }
            BaseState::Failed(text) => chunks.add_failure(call, text, earlier_approval),
            unfinished => {
                // Only an error or an output leaves result metadata behind, and an approval request
                // needs a part that exists.
                if let Some(metadata) = result_metadata(call) {
                    chunks.same_step.push(input_error(call, None, "", Some(metadata)));
                } else if !earlier_approval.is_empty() {
                    chunks.same_step.push(input_start(call, None));
                }
                chunks.add_references(earlier_approval);
                match unfinished {
                    BaseState::Started(encoding) => {
                        chunks.same_step.push(input_start(call, encoding))
                    }
                    BaseState::Streaming(encoding, text) => {
                        chunks.same_step.push(input_start(call, encoding));
                        chunks.same_step.push(input_delta(call, text));
                    }
                    _ => chunks.same_step.push(input_available(call)),
                }
            }
        }
        chunks.add_references(approval);
        if matches!(call.state, State::OutputDenied) {
            chunks.add_references([Chunk::ToolOutputDenied { tool_call_id: id(call) }]);
        }
        chunks
    }

    fn add_failure(&mut self, call: &Call, text: String, earlier_approval: Vec<Chunk<'static>>) {
        let input = input(call);
        let raw = match &call.raw_input {
            Some(Content::Value(json)) => Some(json.clone()),
            _ => None,
        };
        let is_invalid = if is_dynamic(call) { raw.is_none() } else { input.is_none() };
        if is_invalid && self.is_first {
            if call.title.is_some()
                || call.call_provider_metadata.is_some()
                || !earlier_approval.is_empty()
            {
                self.same_step.push(input_start(call, None));
            }
            self.add_references(earlier_approval);
            self.same_step.push(input_error(call, input.or(raw), &text, result_metadata(call)));
            return;
        }
        match raw.as_ref().and_then(string_value) {
            Some(raw) => {
                let is_text = PartialJson::from(&*raw).read() != input;
                self.same_step.push(input_start(call, is_text.then_some(InputEncoding::Text)));
                self.same_step.push(input_delta(call, raw));
            }
            None => self.same_step.push(input_available(call)),
        }
        self.add_references(earlier_approval);
        self.add_references([Chunk::ToolOutputError {
            tool_call_id: id(call),
            error_text: Cow::Owned(text),
            provider_executed: None,
            provider_metadata: result_metadata(call),
            tool_metadata: None,
            dynamic: None,
        }]);
    }

    /// Adds chunks that refer to the call by its id, in the step where they reach the call.
    fn add_references(&mut self, chunks: impl IntoIterator<Item = Chunk<'static>>) {
        if self.is_first {
            self.same_step.extend(chunks);
        } else {
            self.next_step.extend(chunks);
        }
    }
}

fn base_state(call: &Call) -> BaseState {
    let stale =
        |name| call.stale_fields.iter().find(|(stale, _)| *stale == name).map(|(_, value)| value);
    let encoding = match &call.state {
        State::InputStreaming { encoding } => *encoding,
        State::OutputAvailable { output, preliminary } => {
            return BaseState::Output { output: output.clone(), preliminary: *preliminary };
        }
        State::OutputError { text } => return BaseState::Failed(text.clone()),
        State::InputAvailable
        | State::ApprovalRequested(_)
        | State::ApprovalResponded
        | State::OutputDenied => stale("inputEncoding")
            .and_then(string_value)
            .and_then(|name| InputEncoding::from_wire(&name)),
    };
    let preliminary = stale("preliminary").and_then(|flag| flag.decode().ok());
    let raw = match &call.raw_input {
        Some(Content::Text(text)) => Some(text.clone()),
        Some(Content::Value(json)) => string_value(json),
        _ => None,
    };
    if let Some(text) = stale("errorText").and_then(string_value) {
        BaseState::Failed(text)
    } else if stale("output").is_some() || preliminary.is_some() {
        BaseState::Output { output: stale("output").cloned(), preliminary }
    } else if let Some(raw) = raw {
        BaseState::Streaming(encoding, raw)
    } else if encoding.is_some() || matches!(call.state, State::InputStreaming { .. }) {
        BaseState::Started(encoding)
    } else if call.result_provider_metadata.is_some() && is_approval_last(call) {
        // An output without a value.
        BaseState::Output { output: None, preliminary: None }
    } else {
        BaseState::Available
    }
}

/// Returns whether the approval request, if there was one, came after everything else that happened
/// to the call.
fn is_approval_last(call: &Call) -> bool {
    matches!(
        call.state,
        State::ApprovalRequested(_) | State::ApprovalResponded | State::OutputDenied
    )
}

fn input_start(call: &Call, input_encoding: Option<InputEncoding>) -> Chunk<'static> {
    Chunk::ToolInputStart {
        tool_call_id: id(call),
        tool_name: Cow::Owned(call.name.to_string()),
        input_encoding,
        provider_executed: call.provider_executed,
        provider_metadata: call.call_provider_metadata.clone().map(Cow::Owned),
        tool_metadata: call.tool_metadata.clone().map(Cow::Owned),
        dynamic: is_dynamic(call).then_some(true),
        title: call.title.as_ref().and_then(string_value).map(Cow::Owned),
    }
}

fn input_delta(call: &Call, text: String) -> Chunk<'static> {
    Chunk::ToolInputDelta { tool_call_id: id(call), input_text_delta: Cow::Owned(text) }
}

fn input_available(call: &Call) -> Chunk<'static> {
    Chunk::ToolInputAvailable {
        tool_call_id: id(call),
        tool_name: Cow::Owned(call.name.to_string()),
        input: input(call).map(Cow::Owned),
        provider_executed: call.provider_executed,
        provider_metadata: call.call_provider_metadata.clone().map(Cow::Owned),
        tool_metadata: call.tool_metadata.clone().map(Cow::Owned),
        dynamic: is_dynamic(call).then_some(true),
        title: call.title.as_ref().and_then(string_value).map(Cow::Owned),
    }
}

fn input_error(
    call: &Call,
    input: Option<Json>,
    text: &str,
    metadata: Option<Cow<'static, ProviderMetadata>>,
) -> Chunk<'static> {
    Chunk::ToolInputError {
        tool_call_id: id(call),
        tool_name: Cow::Owned(call.name.to_string()),
        input: input.map(Cow::Owned),
        error_text: Cow::Owned(text.to_owned()),
        provider_executed: call.provider_executed,
        provider_metadata: metadata,
        tool_metadata: call.tool_metadata.clone().map(Cow::Owned),
        dynamic: is_dynamic(call).then_some(true),
        title: None,
    }
}

/// Returns the approval request for the call, if there was one.
fn approval_request(call: &Call) -> Option<Chunk<'static>> {
    let (approval_id, details) = match (&call.state, &call.approval) {
        (State::ApprovalRequested(approval), _) => (&approval.id, &approval.details),
        (_, Some(approval)) => (&approval.id, &approval.details),
        _ => return None,
    };
    let ApprovalDetails {
        descriptor,
        input_schema_input,
        request_reason,
        is_automatic,
        signature,
        ..
    } = details.clone();
    Some(Chunk::ToolApprovalRequest {
        approval_id: Cow::Owned(approval_id.to_string()),
        tool_call_id: id(call),
        approval_descriptor: descriptor.map(Cow::Owned),
        input_schema_input: input_schema_input.map(Cow::Owned),
        reason: request_reason.map(Cow::Owned),
        is_automatic,
        signature: signature.map(Cow::Owned),
    })
}

/// Returns the answer to the approval request, if there was one.
fn decision(call: &Call) -> Option<Chunk<'static>> {
    let approval = call.approval.as_ref()?;
    Some(Chunk::ToolApprovalResponse {
        approval_id: Cow::Owned(approval.id.to_string()),
        approved: approval.approved?,
        reason: approval.reason.clone().map(Cow::Owned),
        provider_executed: None,
        provider_metadata: None,
    })
}

fn id(call: &Call) -> Cow<'static, str> {
    Cow::Owned(call.id.to_string())
}

fn input(call: &Call) -> Option<Json> {
    match &call.input {
        Some(Content::Value(json)) => Some(json.clone()),
        _ => None,
    }
}

fn result_metadata(call: &Call) -> Option<Cow<'static, ProviderMetadata>> {
    call.result_provider_metadata.clone().map(Cow::Owned)
}

fn is_dynamic(call: &Call) -> bool {
    call.kind != ToolKind::Static
}

/// Returns the text of a JSON string, or `None` for any other JSON.
fn string_value(json: &Json) -> Option<String> {
    json.as_str().starts_with('"').then(|| unescaped(json.as_str()).into_owned())
}
