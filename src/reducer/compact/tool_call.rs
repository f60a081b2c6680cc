//! [`ToolCallChunks`]: the fewest chunks that bring a tool call to where it is.

use std::borrow::Cow;

use super::super::PartialJson;
use super::super::call::{Call, Content, State};
use crate::chunk::{Chunk, InputEncoding};
use crate::json::{Json, unescaped};
use crate::message::{ApprovalDetails, ToolKind};
use crate::metadata::ProviderMetadata;

/// The chunks of one call.
#[derive(Default)]
pub(super) struct ToolCallChunks {
    pub(super) here: Vec<Chunk<'static>>,
    /// What refers to the call and would reach another part of its step.
    pub(super) later: Vec<Chunk<'static>>,
    /// The chunks that refer to the call reach it.
    is_first: bool,
}

/// What the call was before somebody was asked about it, or said no.
enum Base {
    Begun(Option<InputEncoding>),
    Streaming(Option<InputEncoding>, String),
    Available,
    Output { output: Option<Json>, preliminary: Option<bool> },
    Failed(String),
}

impl ToolCallChunks {
    /// The chunks of a call that is the first part of its step with this id, or is not.
    pub(super) fn of(call: &Call, is_first: bool) -> Self {
        let mut chunks = ToolCallChunks { is_first, ..Self::default() };
        let was_asked_last = was_asked_last(call);
        let question = question(call);
        let asked_before = question.clone().filter(|_| !was_asked_last);
        match base(call) {
            Base::Output { output, preliminary } => {
                chunks.here.push(available(call));
                chunks.refer(asked_before);
                chunks.refer(Some(Chunk::ToolOutputAvailable {
                    tool_call_id: id(call),
                    output: output.map(Cow::Owned),
                    provider_executed: None,
                    provider_metadata: result_metadata(call),
                    tool_metadata: None,
                    dynamic: None,
                    preliminary,
                }));
            }
            Base::Failed(text) => chunks.fail(call, text, asked_before),
            begun => {
                // Only an error or an output leaves this behind, and only a part can be asked about.
                if let Some(metadata) = result_metadata(call) {
                    chunks.here.push(invalid(call, None, "", Some(metadata)));
                } else if asked_before.is_some() {
                    chunks.here.push(begin(call, None));
                }
                chunks.refer(asked_before);
                match begun {
                    Base::Begun(encoding) => chunks.here.push(begin(call, encoding)),
                    Base::Streaming(encoding, text) => {
                        chunks.here.push(begin(call, encoding));
                        chunks.here.push(delta(call, text));
                    }
                    _ => chunks.here.push(available(call)),
                }
            }
        }
        if was_asked_last {
            chunks.refer(question);
        }
        if matches!(call.state, State::OutputDenied) {
            chunks.refer(Some(Chunk::ToolOutputDenied { tool_call_id: id(call) }));
        }
        chunks
    }

    fn fail(&mut self, call: &Call, text: String, asked_before: Option<Chunk<'static>>) {
        let input = input(call);
        let raw = match &call.raw_input {
            Some(Content::Value(json)) => Some(json.clone()),
            _ => None,
        };
        let is_invalid = if is_dynamic(call) { raw.is_none() } else { input.is_none() };
        if is_invalid && self.is_first {
            if call.title.is_some()
                || call.call_provider_metadata.is_some()
                || asked_before.is_some()
            {
                self.here.push(begin(call, None));
            }
            self.refer(asked_before);
            self.here.push(invalid(call, input.or(raw), &text, result_metadata(call)));
            return;
        }
        match raw.as_ref().and_then(text_of) {
            Some(raw) => {
                let is_text = PartialJson::from(&*raw).read() != input;
                self.here.push(begin(call, is_text.then_some(InputEncoding::Text)));
                self.here.push(delta(call, raw));
            }
            None => self.here.push(available(call)),
        }
        self.refer(asked_before);
        self.refer(Some(Chunk::ToolOutputError {
            tool_call_id: id(call),
            error_text: Cow::Owned(text),
            provider_executed: None,
            provider_metadata: result_metadata(call),
            tool_metadata: None,
            dynamic: None,
        }));
    }

    /// Adds a chunk that refers to the call, where it reaches it.
    fn refer(&mut self, chunk: Option<Chunk<'static>>) {
        if self.is_first {
            self.here.extend(chunk);
        } else {
            self.later.extend(chunk);
        }
    }
}

fn base(call: &Call) -> Base {
    let left = |name| call.left.iter().find(|(left, _)| *left == name).map(|(_, value)| value);
    let encoding = match &call.state {
        State::InputStreaming { encoding } => *encoding,
        State::OutputAvailable { output, preliminary } => {
            return Base::Output { output: output.clone(), preliminary: *preliminary };
        }
        State::OutputError { text } => return Base::Failed(text.clone()),
        State::InputAvailable | State::ApprovalRequested(_) | State::OutputDenied => {
            left("inputEncoding").and_then(text_of).and_then(|word| InputEncoding::from_wire(&word))
        }
    };
    let preliminary = left("preliminary").and_then(|flag| flag.to().ok());
    let raw = match &call.raw_input {
        Some(Content::Text(text)) => Some(text.clone()),
        Some(Content::Value(json)) => text_of(json),
        _ => None,
    };
    if let Some(text) = left("errorText").and_then(text_of) {
        Base::Failed(text)
    } else if left("output").is_some() || preliminary.is_some() {
        Base::Output { output: left("output").cloned(), preliminary }
    } else if let Some(raw) = raw {
        Base::Streaming(encoding, raw)
    } else if encoding.is_some() || matches!(call.state, State::InputStreaming { .. }) {
        Base::Begun(encoding)
    } else if call.result_provider_metadata.is_some() && was_asked_last(call) {
        // An output without a value.
        Base::Output { output: None, preliminary: None }
    } else {
        Base::Available
    }
}

/// Whether the question, if there was one, came over what the call was otherwise.
fn was_asked_last(call: &Call) -> bool {
    matches!(call.state, State::ApprovalRequested(_) | State::OutputDenied)
}

fn begin(call: &Call, input_encoding: Option<InputEncoding>) -> Chunk<'static> {
    Chunk::ToolInputStart {
        tool_call_id: id(call),
        tool_name: Cow::Owned(call.name.to_string()),
        input_encoding,
        provider_executed: call.provider_executed,
        provider_metadata: call.call_provider_metadata.clone().map(Cow::Owned),
        tool_metadata: call.tool_metadata.clone().map(Cow::Owned),
        dynamic: is_dynamic(call).then_some(true),
        title: call.title.as_ref().and_then(text_of).map(Cow::Owned),
    }
}

fn delta(call: &Call, text: String) -> Chunk<'static> {
    Chunk::ToolInputDelta { tool_call_id: id(call), input_text_delta: Cow::Owned(text) }
}

fn available(call: &Call) -> Chunk<'static> {
    Chunk::ToolInputAvailable {
        tool_call_id: id(call),
        tool_name: Cow::Owned(call.name.to_string()),
        input: input(call).map(Cow::Owned),
        provider_executed: call.provider_executed,
        provider_metadata: call.call_provider_metadata.clone().map(Cow::Owned),
        tool_metadata: call.tool_metadata.clone().map(Cow::Owned),
        dynamic: is_dynamic(call).then_some(true),
        title: call.title.as_ref().and_then(text_of).map(Cow::Owned),
    }
}

fn invalid(
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

/// The question that was asked about the call, if one was.
fn question(call: &Call) -> Option<Chunk<'static>> {
    let (approval_id, details) = match (&call.state, &call.approval) {
        (State::ApprovalRequested(approval), _) => (&approval.id, &approval.details),
        (_, Some(approval)) => (&approval.id, &approval.details),
        _ => return None,
    };
    let ApprovalDetails { descriptor, input_schema_input, signature, .. } = details.clone();
    Some(Chunk::ToolApprovalRequest {
        approval_id: Cow::Owned(approval_id.to_string()),
        tool_call_id: id(call),
        approval_descriptor: descriptor.map(Cow::Owned),
        input_schema_input: input_schema_input.map(Cow::Owned),
        signature: signature.map(Cow::Owned),
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

/// The text of a JSON string.
fn text_of(json: &Json) -> Option<String> {
    json.as_str().starts_with('"').then(|| unescaped(json.as_str()).into_owned())
}
