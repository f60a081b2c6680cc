//! [`Call`]: a tool part unpacked into its fields, so that chunks can change it in any order.
//!
//! The client keeps a tool part as one object and writes fields into it. A field may outlive the
//! state that it belonged to: if a call is denied after its output arrived, the output is still
//! there. A [`ToolPart`] holds such fields in its `extra`. Here they are held by name.

use super::streamed_input::ToolInput;
use crate::chunk::InputEncoding;
use crate::id::{ApprovalId, ToolCallId};
use crate::json::{ExtraFields, Json};
use crate::message::{
    RequestedApproval, RespondedApproval, SettledApproval, ToolKind, ToolPart, ToolState,
};
use crate::metadata::{ProviderMetadata, ToolMetadata};

/// A tool part with its fields by name.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) id: ToolCallId,
    pub(super) name: Box<str>,
    pub(super) kind: ToolKind,
    pub(super) title: Option<Json>,
    pub(super) tool_metadata: Option<ToolMetadata>,
    pub(super) provider_executed: Option<bool>,
    pub(super) call_provider_metadata: Option<ProviderMetadata>,
    pub(super) result_provider_metadata: Option<ProviderMetadata>,
    /// The approval, unless the state is `ApprovalRequested`, which holds it then.
    pub(super) approval: Option<SettledApproval>,
    pub(super) input: Option<Content>,
    pub(super) raw_input: Option<Content>,
    pub(super) state: State,
    /// Fields of an earlier state that the current state does not have.
    pub(super) stale_fields: Vec<(&'static str, Json)>,
    pub(super) extra: ExtraFields,
}

/// The value of the `input` or `rawInput` field.
#[derive(Debug, Clone)]
pub(super) enum Content {
    Value(Json),
    Text(String),
    /// The streamed text up to this length in bytes (`rawInput`), or the value that can be read
    /// from it (`input`).
    Streamed(usize),
}

/// The state of the call, with the fields that only this state has.
#[derive(Debug, Clone)]
pub(super) enum State {
    InputStreaming {
        encoding: Option<InputEncoding>,
    },
    InputAvailable,
    ApprovalRequested(Box<RequestedApproval>),
    /// The answer is in the approval.
    ApprovalResponded,
    OutputAvailable {
        output: Option<Json>,
        preliminary: Option<bool>,
    },
    OutputError {
        text: String,
    },
    OutputDenied,
}

/// The fields of a chunk that do not depend on the state of the call. A field that is absent leaves
/// the call's field unchanged.
#[derive(Debug, Default)]
pub(super) struct ChunkFields {
    pub(super) title: Option<Json>,
    pub(super) tool_metadata: Option<ToolMetadata>,
    pub(super) provider_executed: Option<bool>,
    pub(super) provider_metadata: Option<ProviderMetadata>,
}

impl Call {
    pub(super) fn new(id: ToolCallId, name: Box<str>, kind: ToolKind) -> Self {
        Call {
            id,
            name,
            kind,
            title: None,
            tool_metadata: None,
            provider_executed: None,
            call_provider_metadata: None,
            result_provider_metadata: None,
            approval: None,
            input: None,
            raw_input: None,
            state: State::InputAvailable,
            stale_fields: Vec::new(),
            extra: ExtraFields::default(),
        }
    }

    /// Unpacks a part. A state that no chunk produces is dropped: the caller is about to set
    /// another state.
    pub(super) fn from_part(part: ToolPart) -> Self {
        let mut call = Call {
            title: part.title,
            tool_metadata: part.tool_metadata,
            provider_executed: part.provider_executed,
            call_provider_metadata: part.call_provider_metadata,
            extra: part.extra,
            ..Call::new(part.tool_call_id, part.tool_name, part.kind)
        };
        let mut part_input = None;
        match part.state {
            ToolState::InputStreaming { input, raw_input, input_encoding } => {
                part_input = input;
                call.raw_input = raw_input.map(Content::Text);
                call.state = State::InputStreaming { encoding: input_encoding };
            }
            ToolState::InputAvailable { input } => part_input = input,
            ToolState::ApprovalRequested { input, approval } => {
                part_input = input;
                call.state = State::ApprovalRequested(approval);
            }
            ToolState::ApprovalResponded { input, approval } => {
                part_input = input;
                call.approval = Some(SettledApproval {
                    id: approval.id,
                    approved: Some(approval.approved),
                    reason: approval.reason,
                    details: approval.details,
                });
                call.state = State::ApprovalResponded;
            }
            ToolState::OutputAvailable {
                input,
                output,
                preliminary,
                approval,
                result_provider_metadata,
            } => {
                part_input = input;
                call.approval = approval.map(|approval| *approval);
                call.result_provider_metadata = result_provider_metadata;
                call.state = State::OutputAvailable { output, preliminary };
            }
            ToolState::OutputError {
                input,
                raw_input,
                error_text,
                approval,
                result_provider_metadata,
            } => {
                part_input = input;
                call.raw_input = raw_input.map(Content::Value);
                call.approval = approval.map(|approval| *approval);
                call.result_provider_metadata = result_provider_metadata;
                call.state = State::OutputError { text: error_text };
            }
            ToolState::OutputDenied { input, approval } => {
                part_input = input;
                call.approval = approval.map(|approval| *approval);
                call.state = State::OutputDenied;
            }
            ToolState::Unknown { .. } => {}
        }
        call.input = part_input.map(Content::Value);
        call.read_stale_fields();
        call
    }

    /// Moves the fields of other states from `extra` to the fields of this type.
    fn read_stale_fields(&mut self) {
        if self.extra.is_empty() {
            return;
        }
        let mut moved = Vec::new();
        for name in ["output", "errorText", "inputEncoding", "preliminary"] {
            if let Some(value) = self.extra.get(name) {
                self.stale_fields.push((name, value));
                moved.push(name);
            }
        }
        for (name, field) in [("input", &mut self.input), ("rawInput", &mut self.raw_input)] {
            if let Some(value) = self.extra.get(name) {
                *field = Some(Content::Value(value));
                moved.push(name);
            }
        }
        // A field with a wrong type stays in `extra`.
        if let Some(approval) = SettledApproval::stale(&self.extra) {
            self.approval = Some(approval);
            moved.push("approval");
        }
        let metadata = self.extra.get("resultProviderMetadata");
        if let Some(metadata) = metadata.and_then(|json| ProviderMetadata::new(json).ok()) {
            self.result_provider_metadata = Some(metadata);
            moved.push("resultProviderMetadata");
        }
        self.remove_extra(&moved);
    }

    /// Sets the tool name to the name in a chunk.
    pub(super) fn rename(&mut self, name: &str) {
        if *self.name != *name {
            self.name = name.into();
        }
    }

    /// Writes all fields that a chunk with an input or an output writes.
    pub(super) fn write(
        &mut self,
        state: State,
        input: Option<Content>,
        raw_input: Option<Content>,
        fields: ChunkFields,
    ) {
        self.end_state();
        self.stale_fields.clear();
        if fields.provider_metadata.is_some() {
            if matches!(state, State::OutputAvailable { .. } | State::OutputError { .. }) {
                self.result_provider_metadata = fields.provider_metadata;
                self.remove_extra(&["resultProviderMetadata"]);
            } else {
                self.call_provider_metadata = fields.provider_metadata;
            }
        }
        self.state = state;
        self.input = input;
        self.raw_input = raw_input;
        self.title = fields.title.or(self.title.take());
        self.tool_metadata = fields.tool_metadata.or(self.tool_metadata.take());
        self.provider_executed = fields.provider_executed.or(self.provider_executed);
    }

    /// Writes an output or an error and keeps the input.
    pub(super) fn set_result(&mut self, state: State, fields: ChunkFields) {
        let input = self.input.take();
        // Only the error of a static tool keeps the raw text of the input.
        let keeps_raw_input =
            matches!(state, State::OutputError { .. }) && self.kind == ToolKind::Static;
        let raw_input = self.raw_input.take().filter(|_| keeps_raw_input);
        self.write(state, input, raw_input, fields);
    }

    /// Ends an input that is being streamed, without its text.
    pub(super) fn end_input(&mut self) {
        if let State::InputStreaming { .. } = self.state {
            (self.state, self.raw_input) = (State::InputAvailable, None);
        }
    }

    /// Sets the state to `ApprovalRequested`. All other fields stay.
    pub(super) fn request_approval(&mut self, approval: RequestedApproval) {
        self.end_state();
        self.approval = None;
        self.remove_extra(&["approval"]);
        self.state = State::ApprovalRequested(Box::new(approval));
    }

    /// Returns the id of the approval.
    pub(super) fn approval_id(&self) -> Option<&ApprovalId> {
        match &self.state {
            State::ApprovalRequested(approval) => Some(&approval.id),
            _ => self.approval.as_ref().map(|approval| &approval.id),
        }
    }

    /// Sets the state to `ApprovalResponded`. A call without an approval is not changed.
    pub(super) fn respond(&mut self, approved: bool, reason: Option<String>, fields: ChunkFields) {
        if self.approval_id().is_none() {
            return;
        }
        self.end_state();
        let Some(approval) = &mut self.approval else { return };
        approval.approved = Some(approved);
        approval.reason = reason.or(approval.reason.take());
        self.state = State::ApprovalResponded;
        self.provider_executed = fields.provider_executed.or(self.provider_executed);
        self.call_provider_metadata =
            fields.provider_metadata.or(self.call_provider_metadata.take());
    }

    /// Sets the state to `OutputDenied`. All other fields stay.
    pub(super) fn deny(&mut self) {
        self.end_state();
        self.state = State::OutputDenied;
    }

    /// Ends the current state and keeps its fields as stale fields.
    fn end_state(&mut self) {
        match std::mem::replace(&mut self.state, State::InputAvailable) {
            State::InputAvailable | State::ApprovalResponded | State::OutputDenied => {}
            State::InputStreaming { encoding } => {
                let encoding = encoding.map(|encoding| Json::string(encoding.as_str()));
                self.stale_fields.extend(encoding.map(|encoding| ("inputEncoding", encoding)));
            }
            State::ApprovalRequested(approval) => {
                let RequestedApproval { id, details } = *approval;
                self.approval = Some(SettledApproval { id, approved: None, reason: None, details });
            }
            State::OutputAvailable { output, preliminary } => {
                self.stale_fields.extend(output.map(|output| ("output", output)));
                let preliminary = preliminary.and_then(|flag| Json::from_serialize(&flag).ok());
                self.stale_fields.extend(preliminary.map(|flag| ("preliminary", flag)));
            }
            State::OutputError { text } => {
                self.stale_fields.push(("errorText", Json::string(&text)))
            }
        }
    }

    fn remove_extra(&mut self, names: &[&str]) {
        if let Some(remaining) = self.extra.without(names) {
            self.extra = remaining;
        }
    }

    /// Replaces lengths of the streamed text by the text itself, or by the value read from it.
    pub(super) fn render(&mut self, streamed: &ToolInput) {
        if let Some(Content::Streamed(until)) = self.input {
            self.input = streamed.read(until).map(Content::Value);
        }
        if let Some(Content::Streamed(until)) = self.raw_input {
            self.raw_input = Some(Content::Text(streamed.text(until).to_owned()));
        }
    }

    /// Returns whether the current state has a place for every field and every field has its final
    /// value. Packing such a part costs nothing.
    pub(super) fn is_plain(&self) -> bool {
        let is_value =
            |content: &Option<Content>| matches!(content, None | Some(Content::Value(_)));
        let fits_state = match &self.state {
            State::InputStreaming { .. } => false,
            State::OutputAvailable { .. } | State::OutputError { .. } => is_value(&self.raw_input),
            State::InputAvailable
            | State::ApprovalRequested(_)
            | State::ApprovalResponded
            | State::OutputDenied => {
                self.raw_input.is_none() && self.result_provider_metadata.is_none()
            }
        };
        let has_approval_field = !matches!(self.state, State::InputAvailable);
        fits_state
            && (has_approval_field || self.approval.is_none())
            && is_value(&self.input)
            && self.stale_fields.is_empty()
            && self.extra.is_empty()
    }

    /// Packs the fields into a part. Streamed text must have been rendered before.
    pub(super) fn into_part(self) -> ToolPart {
        let Call {
            mut approval, mut result_provider_metadata, raw_input, mut stale_fields, ..
        } = self;
        let input = self.input.and_then(Content::into_json);
        let mut stale_raw_input = None;
        let state = match self.state {
            State::InputStreaming { encoding } => ToolState::InputStreaming {
                input,
                raw_input: match raw_input {
                    Some(Content::Text(text)) => Some(text),
                    _ => None,
                },
                input_encoding: encoding,
            },
            State::InputAvailable => {
                stale_raw_input = raw_input;
                ToolState::InputAvailable { input }
            }
            State::ApprovalRequested(approval) => {
                stale_raw_input = raw_input;
                ToolState::ApprovalRequested { input, approval }
            }
            State::ApprovalResponded => {
                stale_raw_input = raw_input;
                match approval.take() {
                    Some(SettledApproval { id, approved: Some(approved), reason, details }) => {
                        let approval = RespondedApproval { id, approved, reason, details };
                        ToolState::ApprovalResponded { input, approval: Box::new(approval) }
                    }
                    // Unreachable: the state is set with the answer.
                    unanswered => {
                        approval = unanswered;
                        ToolState::InputAvailable { input }
                    }
                }
            }
            State::OutputAvailable { output, preliminary } => ToolState::OutputAvailable {
                input,
                output,
                preliminary,
                approval: approval.take().map(Box::new),
                result_provider_metadata: result_provider_metadata.take(),
            },
            State::OutputError { text } => ToolState::OutputError {
                input,
                raw_input: raw_input.and_then(Content::into_json),
                error_text: text,
                approval: approval.take().map(Box::new),
                result_provider_metadata: result_provider_metadata.take(),
            },
            State::OutputDenied => {
                stale_raw_input = raw_input;
                ToolState::OutputDenied { input, approval: approval.take().map(Box::new) }
            }
        };
        let stale_raw_input = stale_raw_input.and_then(Content::into_json);
        stale_fields.extend(stale_raw_input.map(|raw| ("rawInput", raw)));
        let approval = approval.and_then(|settled| serde_json::to_string(&settled).ok());
        let approval = approval.and_then(|text| Json::parse_received(&text).ok());
        stale_fields.extend(approval.map(|approval| ("approval", approval)));
        stale_fields.extend(
            result_provider_metadata
                .map(|metadata| ("resultProviderMetadata", metadata.as_json().clone())),
        );
        ToolPart {
            tool_call_id: self.id,
            tool_name: self.name,
            kind: self.kind,
            title: self.title,
            tool_metadata: self.tool_metadata,
            provider_executed: self.provider_executed,
            call_provider_metadata: self.call_provider_metadata,
            state,
            extra: self.extra.with(stale_fields.iter().map(|(name, value)| (*name, value))),
        }
    }
}

impl Content {
    fn into_json(self) -> Option<Json> {
        match self {
            Content::Value(json) => Some(json),
            Content::Text(text) => Some(Json::string(&text)),
            Content::Streamed(_) => None,
        }
    }
}
