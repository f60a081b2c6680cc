//! [`Call`]: a tool part taken apart, so that chunks can change it in whatever order they come.
//!
//! The client keeps a tool part as one object and writes fields into it. A field may outlive the
//! state that it belonged to: the output of a call that is denied afterwards is still there. A
//! [`ToolPart`] has such fields in its `extra`; here they are held by name.

use super::held;
use super::tool_input::ToolInput;
use crate::chunk::InputEncoding;
use crate::id::ToolCallId;
use crate::json::Json;
use crate::message::{Approval, PastApproval, ToolKind, ToolPart, ToolState};
use crate::metadata::{ProviderMetadata, ToolMetadata};
use crate::record::{Extra, Object};

/// A tool part, its fields by name.
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
    /// The question, unless it is asked right now.
    pub(super) approval: Option<PastApproval>,
    pub(super) input: Option<Content>,
    pub(super) raw_input: Option<Content>,
    pub(super) state: State,
    /// Fields of an earlier state, which the present one does not have.
    pub(super) left: Vec<(&'static str, Json)>,
    pub(super) extra: Extra,
}

/// What a field for the input holds.
#[derive(Debug, Clone)]
pub(super) enum Content {
    Value(Json),
    Text(String),
    /// As much of the streamed text, or what can be read of it.
    Streamed(usize),
}

/// How far the call has come, with the fields that no other state keeps.
#[derive(Debug, Clone)]
pub(super) enum State {
    InputStreaming { encoding: Option<InputEncoding> },
    InputAvailable,
    ApprovalRequested(Box<Approval>),
    OutputAvailable { output: Option<Json>, preliminary: Option<bool> },
    OutputError { text: String },
    OutputDenied,
}

/// What a chunk says of a call, beside its state. What it leaves out stays as it is.
#[derive(Debug, Default)]
pub(super) struct Said {
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
            left: Vec::new(),
            extra: Extra::default(),
        }
    }

    /// Takes a part apart. A state that no chunk leads to is forgotten: whoever opens a part is
    /// about to give it another one.
    pub(super) fn of(part: ToolPart) -> Self {
        let mut call = Call {
            title: part.title,
            tool_metadata: part.tool_metadata,
            provider_executed: part.provider_executed,
            call_provider_metadata: part.call_provider_metadata,
            extra: part.extra,
            ..Call::new(part.tool_call_id, part.tool_name, part.kind)
        };
        let mut given = None;
        match part.state {
            ToolState::InputStreaming { input, raw_input, input_encoding } => {
                given = input;
                call.raw_input = raw_input.map(Content::Text);
                call.state = State::InputStreaming { encoding: input_encoding };
            }
            ToolState::InputAvailable { input } => given = input,
            ToolState::ApprovalRequested { input, approval } => {
                given = input;
                call.state = State::ApprovalRequested(approval);
            }
            ToolState::ApprovalResponded { input, approval } => {
                given = input;
                call.approval = Some(PastApproval {
                    id: approval.id,
                    approved: Some(approval.approved),
                    reason: approval.reason,
                    details: approval.details,
                });
            }
            ToolState::OutputAvailable {
                input,
                output,
                preliminary,
                approval,
                result_provider_metadata,
            } => {
                given = input;
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
                given = input;
                call.raw_input = raw_input.map(Content::Value);
                call.approval = approval.map(|approval| *approval);
                call.result_provider_metadata = result_provider_metadata;
                call.state = State::OutputError { text: error_text };
            }
            ToolState::OutputDenied { input, approval } => {
                given = input;
                call.approval = approval.map(|approval| *approval);
                call.state = State::OutputDenied;
            }
            ToolState::Unknown { .. } => {}
        }
        call.input = given.map(Content::Value);
        call.take_what_is_left();
        call
    }

    /// Takes out of `extra` what is a field of another state.
    fn take_what_is_left(&mut self) {
        if self.extra.is_empty() {
            return;
        }
        let mut taken = Vec::new();
        for name in ["output", "errorText", "inputEncoding", "preliminary"] {
            if let Some(value) = self.extra.get(name) {
                self.left.push((name, value));
                taken.push(name);
            }
        }
        for (name, field) in [("input", &mut self.input), ("rawInput", &mut self.raw_input)] {
            if let Some(value) = self.extra.get(name) {
                *field = Some(Content::Value(value));
                taken.push(name);
            }
        }
        // What is of a wrong type is left to itself.
        if let Some(approval) = self.extra.get("approval").and_then(|json| read_approval(&json)) {
            self.approval = Some(approval);
            taken.push("approval");
        }
        let metadata = self.extra.get("resultProviderMetadata");
        if let Some(metadata) = metadata.and_then(|json| ProviderMetadata::new(json).ok()) {
            self.result_provider_metadata = Some(metadata);
            taken.push("resultProviderMetadata");
        }
        self.drop_extra(&taken);
    }

    /// Gives the tool the name that a chunk has for it.
    pub(super) fn rename(&mut self, name: &str) {
        if *self.name != *name {
            self.name = name.into();
        }
    }

    /// Writes the fields that an input or an output writes, all of them.
    pub(super) fn write(
        &mut self,
        state: State,
        input: Option<Content>,
        raw_input: Option<Content>,
        said: Said,
    ) {
        self.leave_state();
        self.left.clear();
        if said.provider_metadata.is_some() {
            if matches!(state, State::OutputAvailable { .. } | State::OutputError { .. }) {
                self.result_provider_metadata = said.provider_metadata;
                self.drop_extra(&["resultProviderMetadata"]);
            } else {
                self.call_provider_metadata = said.provider_metadata;
            }
        }
        self.state = state;
        self.input = input;
        self.raw_input = raw_input;
        self.title = said.title.or(self.title.take());
        self.tool_metadata = said.tool_metadata.or(self.tool_metadata.take());
        self.provider_executed = said.provider_executed.or(self.provider_executed);
    }

    /// Writes an output, which leaves the input as it is.
    pub(super) fn settle(&mut self, state: State, said: Said) {
        let input = self.input.take();
        // Only the error of a static tool leaves the input's text there.
        let keeps_raw = matches!(state, State::OutputError { .. }) && self.kind == ToolKind::Static;
        let raw_input = self.raw_input.take().filter(|_| keeps_raw);
        self.write(state, input, raw_input, said);
    }

    /// Asks a person; everything else is as before.
    pub(super) fn ask(&mut self, approval: Approval) {
        self.leave_state();
        self.approval = None;
        self.drop_extra(&["approval"]);
        self.state = State::ApprovalRequested(Box::new(approval));
    }

    /// Denies the call; everything else is as before.
    pub(super) fn deny(&mut self) {
        self.leave_state();
        self.state = State::OutputDenied;
    }

    /// Keeps the fields of the state that is over.
    fn leave_state(&mut self) {
        match std::mem::replace(&mut self.state, State::InputAvailable) {
            State::InputAvailable | State::OutputDenied => {}
            State::InputStreaming { encoding } => {
                let encoding = encoding.map(|encoding| Json::string(encoding.as_str()));
                self.left.extend(encoding.map(|encoding| ("inputEncoding", encoding)));
            }
            State::ApprovalRequested(approval) => {
                let Approval { id, details } = *approval;
                self.approval = Some(PastApproval { id, approved: None, reason: None, details });
            }
            State::OutputAvailable { output, preliminary } => {
                self.left.extend(output.map(|output| ("output", output)));
                let preliminary = preliminary.and_then(|flag| held::parse(&flag.to_string()));
                self.left.extend(preliminary.map(|flag| ("preliminary", flag)));
            }
            State::OutputError { text } => self.left.push(("errorText", Json::string(&text))),
        }
    }

    fn drop_extra(&mut self, names: &[&str]) {
        if let Some(less) = self.extra.without(names) {
            self.extra = less;
        }
    }

    /// Puts in place of the streamed text what it amounts to.
    pub(super) fn render(&mut self, streamed: &ToolInput) {
        if let Some(Content::Streamed(until)) = self.input {
            self.input = streamed.read(until).map(Content::Value);
        }
        if let Some(Content::Streamed(until)) = self.raw_input {
            self.raw_input = Some(Content::Text(streamed.text(until).to_owned()));
        }
    }

    /// Whether every field has its place in the state and is what it will be, so that it costs
    /// nothing to put the part together.
    pub(super) fn is_plain(&self) -> bool {
        let is_value =
            |content: &Option<Content>| matches!(content, None | Some(Content::Value(_)));
        let has_places = match &self.state {
            State::InputStreaming { .. } => false,
            State::OutputAvailable { .. } | State::OutputError { .. } => is_value(&self.raw_input),
            State::InputAvailable | State::ApprovalRequested(_) | State::OutputDenied => {
                self.raw_input.is_none() && self.result_provider_metadata.is_none()
            }
        };
        let has_approval_place = !matches!(self.state, State::InputAvailable);
        has_places
            && (has_approval_place || self.approval.is_none())
            && is_value(&self.input)
            && self.left.is_empty()
            && self.extra.is_empty()
    }

    /// Puts the part together. What is streamed was rendered before.
    pub(super) fn into_part(self) -> ToolPart {
        let Call { mut approval, mut result_provider_metadata, raw_input, mut left, .. } = self;
        let input = self.input.and_then(Content::into_json);
        let mut raw_left = None;
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
                raw_left = raw_input;
                ToolState::InputAvailable { input }
            }
            State::ApprovalRequested(approval) => {
                raw_left = raw_input;
                ToolState::ApprovalRequested { input, approval }
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
                raw_left = raw_input;
                ToolState::OutputDenied { input, approval: approval.take().map(Box::new) }
            }
        };
        let raw_left = raw_left.and_then(Content::into_json);
        left.extend(raw_left.map(|raw| ("rawInput", raw)));
        let approval = approval.and_then(|past| serde_json::to_string(&past).ok());
        let approval = approval.and_then(|text| held::parse(&text));
        left.extend(approval.map(|approval| ("approval", approval)));
        left.extend(
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
            extra: held::extra_with(self.extra, left.iter().map(|(name, value)| (*name, value))),
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

/// Reads a question that stands where its state has none.
fn read_approval(json: &Json) -> Option<PastApproval> {
    PastApproval::from_object(Object::parse(json.as_str()).ok()?).ok()
}
