//! [`ToolCalls`]: the tool parts of the message, found by id and changed by chunks.
//!
//! A chunk that creates or updates a part looks for it in the current step and among the parts of
//! its own kind, static or dynamic. A chunk that refers to a call uses the first part of the
//! current step that has its id, else the last such part of the whole message. A part that changes
//! is unpacked into a [`Call`]. It stays unpacked until all its fields have final values, or until
//! the message is read.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::ReduceError;
use super::streamed_input::ToolInput;
use super::tool_part_fields::{Call, ChunkFields, Content, State};
use crate::chunk::{Chunk, Version};
use crate::id::{ApprovalId, ToolCallId};
use crate::json::{ExtraFields, Json};
use crate::message::{ApprovalDetails, Part, RequestedApproval, ToolKind, ToolPart, ToolState};
use crate::metadata::{ProviderMetadata, ToolMetadata};

/// The indexes of the tool parts, and the parts that are unpacked.
#[derive(Debug, Clone)]
pub(super) struct ToolCalls {
    /// The client whose message this is.
    client: Version,
    /// The number of the current step.
    step: usize,
    known: HashMap<ToolCallId, KnownCall>,
    /// The parts that changed since the message was last read and that are not in their final form.
    /// A placeholder stands in the message in the meantime.
    unpacked: HashMap<usize, Box<Call>>,
    /// Whether a call that asks for an approval keeps nothing of the text of its input.
    pub(super) drops_input_texts: bool,
}

/// The state of all parts that share one tool call id.
#[derive(Debug, Clone)]
struct KnownCall {
    index: PartIndex,
    /// The input that began last.
    input: Option<Box<ToolInput>>,
}

/// The indexes of the parts of one call.
#[derive(Debug, Clone, Copy)]
struct PartIndex {
    /// The number of the last step that has a part of the call. The first parts of that step
    /// follow, by kind.
    step: usize,
    first_static: Option<usize>,
    first_dynamic: Option<usize>,
    last: usize,
}

impl ToolCalls {
    pub(super) fn new(client: Version) -> Self {
        ToolCalls {
            client,
            step: 0,
            known: HashMap::new(),
            unpacked: HashMap::new(),
            drops_input_texts: false,
        }
    }

    /// Finds the tool parts of a message that is continued.
    pub(super) fn from_parts(client: Version, parts: &[Part]) -> Self {
        let mut calls = Self::new(client);
        // Only an input that the last step left open can continue.
        let is_start = |part: &Part| matches!(part, Part::StepStart { .. });
        let last_step = parts.iter().rposition(is_start).unwrap_or_default();
        for (at, part) in parts.iter().enumerate() {
            match part {
                Part::StepStart { .. } => calls.start_step(),
                Part::Tool(part) => {
                    let is_dynamic = part.kind != ToolKind::Static;
                    let known = calls.record_part(&part.tool_call_id, is_dynamic, at);
                    if let ToolState::InputStreaming { raw_input, input_encoding, .. } = &part.state
                        && at >= last_step
                    {
                        known.input = Some(Box::new(ToolInput::new(
                            client,
                            raw_input.as_deref().unwrap_or_default(),
                            *input_encoding,
                            &part.tool_name,
                            is_dynamic,
                            part.title.clone(),
                            part.tool_metadata.clone(),
                        )));
                    }
                }
                _ => {}
            }
        }
        calls
    }

    /// Finds the tool parts again, for this client.
    pub(super) fn rebuild(&mut self, client: Version, parts: &[Part]) {
        let drops_input_texts = self.drops_input_texts;
        *self = ToolCalls { drops_input_texts, ..Self::from_parts(client, parts) };
    }

    pub(super) fn start_step(&mut self) {
        self.step += 1;
    }

    /// Applies a chunk of a tool call. Other chunks have no effect.
    pub(super) fn handle(
        &mut self,
        chunk: &Chunk<'_>,
        parts: &mut Vec<Part>,
    ) -> Result<(), ReduceError> {
        let at = match chunk {
            Chunk::ToolInputStart {
                tool_call_id,
                tool_name,
                input_encoding,
                provider_executed,
                provider_metadata,
                tool_metadata,
                dynamic,
                title,
            } => {
                let title = title.as_deref();
                let fields =
                    chunk_fields(title, tool_metadata, *provider_executed, provider_metadata);
                let is_dynamic = *dynamic == Some(true);
                let input = ToolInput::new(
                    self.client,
                    "",
                    *input_encoding,
                    tool_name,
                    is_dynamic,
                    fields.title.clone(),
                    fields.tool_metadata.clone(),
                );
                let (at, call) = self.create_or_update(tool_call_id, tool_name, is_dynamic, parts);
                call.write(State::InputStreaming { encoding: *input_encoding }, None, None, fields);
                self.begin_input(tool_call_id, input);
                at
            }
            Chunk::ToolInputDelta { tool_call_id, input_text_delta } => {
                self.push_input(tool_call_id, input_text_delta, parts)?
            }
            Chunk::ToolInputAvailable {
                tool_call_id,
                tool_name,
                input,
                provider_executed,
                provider_metadata,
                tool_metadata,
                dynamic,
                title,
            } => {
                let title = title.as_deref();
                let fields =
                    chunk_fields(title, tool_metadata, *provider_executed, provider_metadata);
                let is_dynamic = *dynamic == Some(true);
                let input = input.as_deref().cloned();
                let (at, call) = self.create_or_update(tool_call_id, tool_name, is_dynamic, parts);
                call.write(State::InputAvailable, input.clone().map(Content::Value), None, fields);
                self.end_input(tool_call_id, at, input.as_ref());
                at
            }
            Chunk::ToolInputError {
                tool_call_id,
                tool_name,
                input,
                error_text,
                provider_executed,
                provider_metadata,
                tool_metadata,
                dynamic,
                // The client ignores the title.
                title: _,
            } => {
                let fields =
                    chunk_fields(None, tool_metadata, *provider_executed, provider_metadata);
                let is_dynamic = match self.first_of_step(tool_call_id) {
                    Some((_, is_dynamic)) => is_dynamic,
                    None => *dynamic == Some(true),
                };
                let invalid_input = input.as_deref().cloned();
                let input = invalid_input.clone().map(Content::Value);
                let is_input = is_dynamic || self.client.keeps_invalid_input();
                let (input, raw_input) = if is_input { (input, None) } else { (None, input) };
                let (at, call) = self.create_or_update(tool_call_id, tool_name, is_dynamic, parts);
                let state = State::OutputError { text: error_text.as_ref().to_owned() };
                call.write(state, input, raw_input, fields);
                self.end_input(tool_call_id, at, invalid_input.as_ref());
                at
            }
            Chunk::ToolApprovalRequest {
                approval_id,
                tool_call_id,
                approval_descriptor,
                input_schema_input,
                reason,
                is_automatic,
                signature,
            } => {
                let drops_input_texts = self.drops_input_texts;
                let (at, call) = self.find(chunk, tool_call_id, parts)?;
                if drops_input_texts {
                    call.end_input();
                }
                call.request_approval(RequestedApproval {
                    id: ApprovalId::from(approval_id.as_ref()),
                    details: ApprovalDetails {
                        descriptor: approval_descriptor
                            .as_deref()
                            .cloned()
                            .filter(|descriptor| !descriptor.is_null()),
                        input_schema_input: input_schema_input.as_deref().cloned(),
                        request_reason: reason.as_deref().map(str::to_owned),
                        is_automatic: is_automatic.filter(|flag| *flag),
                        signature: signature.as_deref().map(str::to_owned),
                        extra: ExtraFields::default(),
                    },
                });
                at
            }
            Chunk::ToolApprovalResponse {
                approval_id,
                approved,
                reason,
                provider_executed,
                provider_metadata,
            } => {
                let at = self.find_asked(approval_id, parts)?;
                let fields = chunk_fields(None, &None, *provider_executed, provider_metadata);
                let reason = reason.as_deref().map(str::to_owned);
                self.unpack(at, parts).respond(*approved, reason, fields);
                at
            }
            Chunk::ToolOutputAvailable {
                tool_call_id,
                output,
                provider_executed,
                provider_metadata,
                tool_metadata,
                dynamic: _,
                preliminary,
            } => {
                let (at, call) = self.find(chunk, tool_call_id, parts)?;
                let output = output.as_deref().cloned();
                let fields =
                    chunk_fields(None, tool_metadata, *provider_executed, provider_metadata);
                call.set_result(
                    State::OutputAvailable { output, preliminary: *preliminary },
                    fields,
                );
                at
            }
            Chunk::ToolOutputError {
                tool_call_id,
                error_text,
                provider_executed,
                provider_metadata,
                tool_metadata,
                dynamic: _,
            } => {
                let (at, call) = self.find(chunk, tool_call_id, parts)?;
                let fields =
                    chunk_fields(None, tool_metadata, *provider_executed, provider_metadata);
                call.set_result(
                    State::OutputError { text: error_text.as_ref().to_owned() },
                    fields,
                );
                at
            }
            Chunk::ToolOutputDenied { tool_call_id } => {
                let (at, call) = self.find(chunk, tool_call_id, parts)?;
                call.deny();
                at
            }
            _ => return Ok(()),
        };
        // An unpacked part needs several times as much memory.
        if let Entry::Occupied(call) = self.unpacked.entry(at)
            && call.get().is_plain()
            && let Some(part) = parts.get_mut(at)
        {
            *part = Part::Tool(Box::new(call.remove().into_part()));
        }
        Ok(())
    }

    /// Replaces each unpacked part by a [`Part`] in the message.
    pub(super) fn repack(&mut self, parts: &mut [Part]) {
        for (at, mut call) in std::mem::take(&mut self.unpacked) {
            if let Some(input) = self.input_of(&call.id) {
                call.render(input);
            }
            if let Some(part) = parts.get_mut(at) {
                *part = Part::Tool(Box::new(call.into_part()));
            }
        }
    }

    fn input_of(&self, tool_call_id: &str) -> Option<&ToolInput> {
        self.known.get(tool_call_id)?.input.as_deref()
    }

    fn input_of_mut(&mut self, tool_call_id: &str) -> Option<&mut ToolInput> {
        self.known.get_mut(tool_call_id)?.input.as_deref_mut()
    }

    /// Begins an input for a call that has a part. It replaces an earlier input of the call.
    fn begin_input(&mut self, tool_call_id: &str, input: ToolInput) {
        let known = self.known.get_mut(tool_call_id);
        let replaced = known.and_then(|known| known.input.replace(Box::new(input)));
        // The parts of earlier steps keep the value that they have of the replaced input.
        if let Some(replaced) = replaced {
            for at in replaced.parts() {
                if let Some(call) = self.unpacked.get_mut(at) {
                    call.render(&replaced);
                }
            }
        }
    }

    /// Records that the part at index `at` has the complete input.
    fn end_input(&mut self, tool_call_id: &str, at: usize, complete_input: Option<&Json>) {
        if let Some(input) = self.input_of_mut(tool_call_id) {
            input.complete(at, complete_input);
        }
    }

    fn push_input(
        &mut self,
        tool_call_id: &str,
        delta: &str,
        parts: &mut Vec<Part>,
    ) -> Result<usize, ReduceError> {
        let Some(input) = self.input_of(tool_call_id) else {
            return Err(ReduceError::InputNotBegun { tool_call_id: tool_call_id.into() });
        };
        let encoding = input.encoding;
        let is_dynamic = input.is_dynamic;
        let tool_name = input.tool_name.clone();
        let fields = ChunkFields {
            title: input.title.clone(),
            tool_metadata: input.tool_metadata.clone(),
            ..ChunkFields::default()
        };
        let count = parts.len();
        let at = self.find_or_add_in_step(tool_call_id, &tool_name, is_dynamic, parts);
        let until = self.input_of_mut(tool_call_id).map_or(0, |input| input.push(delta, at));
        let call = self.unpack(at, parts);
        call.rename(&tool_name);
        let streamed = || Some(Content::Streamed(until));
        // The client does not keep the text if a delta creates a dynamic part.
        let raw_input = streamed().filter(|_| !is_dynamic || at < count);
        call.write(State::InputStreaming { encoding }, streamed(), raw_input, fields);
        Ok(at)
    }

    /// Returns the part that a chunk creates or updates, and sets its tool name to the name in the
    /// chunk.
    fn create_or_update(
        &mut self,
        tool_call_id: &str,
        tool_name: &str,
        is_dynamic: bool,
        parts: &mut Vec<Part>,
    ) -> (usize, &mut Call) {
        let at = self.find_or_add_in_step(tool_call_id, tool_name, is_dynamic, parts);
        let call = self.unpack(at, parts);
        call.rename(tool_name);
        (at, call)
    }

    /// Returns the index of the part of this call and kind in the current step. Appends a new part
    /// if there is none.
    fn find_or_add_in_step(
        &mut self,
        tool_call_id: &str,
        tool_name: &str,
        is_dynamic: bool,
        parts: &mut Vec<Part>,
    ) -> usize {
        let index = self.index_in_step(tool_call_id);
        let first = index
            .and_then(|index| if is_dynamic { index.first_dynamic } else { index.first_static });
        if let Some(at) = first {
            return at;
        }
        let at = parts.len();
        let id = ToolCallId::from(tool_call_id);
        self.record_part(&id, is_dynamic, at);
        let kind = if is_dynamic { ToolKind::Dynamic } else { ToolKind::Static };
        parts.push(placeholder());
        self.unpacked.insert(at, Box::new(Call::new(id, tool_name.into(), kind)));
        at
    }

    fn index_in_step(&self, tool_call_id: &str) -> Option<&PartIndex> {
        let index = &self.known.get(tool_call_id)?.index;
        (index.step == self.step).then_some(index)
    }

    fn record_part(&mut self, id: &ToolCallId, is_dynamic: bool, at: usize) -> &mut KnownCall {
        let empty =
            PartIndex { step: self.step, first_static: None, first_dynamic: None, last: at };
        let unknown = || KnownCall { index: empty, input: None };
        let known = self.known.entry(id.clone()).or_insert_with(unknown);
        let index = &mut known.index;
        if index.step != self.step {
            *index = empty;
        }
        let first = if is_dynamic { &mut index.first_dynamic } else { &mut index.first_static };
        first.get_or_insert(at);
        index.last = at;
        known
    }

    /// Returns the index of the first part of the current step that has this id, and whether the
    /// part is dynamic.
    fn first_of_step(&self, tool_call_id: &str) -> Option<(usize, bool)> {
        let index = self.index_in_step(tool_call_id)?;
        let first_static = index.first_static.map(|at| (at, false));
        let first_dynamic = index.first_dynamic.map(|at| (at, true));
        first_static.into_iter().chain(first_dynamic).min()
    }

    /// Returns the call that a chunk refers to, unpacked.
    ///
    /// # Errors
    /// [`ReduceError::UnknownToolCall`] if the message holds no part with this id.
    fn find(
        &mut self,
        chunk: &Chunk<'_>,
        tool_call_id: &str,
        parts: &mut [Part],
    ) -> Result<(usize, &mut Call), ReduceError> {
        let in_step = self.first_of_step(tool_call_id).map(|(at, _)| at);
        let last = || self.known.get(tool_call_id).map(|known| known.index.last);
        match in_step.or_else(last) {
            Some(at) => Ok((at, self.unpack(at, parts))),
            None => Err(ReduceError::UnknownToolCall {
                kind: chunk.kind_pieces().0,
                tool_call_id: tool_call_id.into(),
            }),
        }
    }

    /// Returns the index of the first part whose approval has this id.
    ///
    /// # Errors
    /// [`ReduceError::UnknownApproval`] if there is none.
    fn find_asked(&self, approval_id: &str, parts: &[Part]) -> Result<usize, ReduceError> {
        let is_it = |(at, part): (usize, &Part)| match self.unpacked.get(&at) {
            Some(call) => call.approval_id().is_some_and(|asked| asked.as_str() == approval_id),
            None => part
                .as_tool()
                .and_then(ToolPart::held_approval_id)
                .is_some_and(|asked| asked.as_str() == approval_id),
        };
        let unknown = || ReduceError::UnknownApproval { approval_id: approval_id.into() };
        parts.iter().enumerate().position(is_it).ok_or_else(unknown)
    }

    fn unpack(&mut self, at: usize, parts: &mut [Part]) -> &mut Call {
        self.unpacked.entry(at).or_insert_with(|| {
            Box::new(match parts.get_mut(at).map(|part| std::mem::replace(part, placeholder())) {
                Some(Part::Tool(part)) => Call::from_part(*part),
                // Unreachable: only the indexes of tool parts are recorded.
                _ => Call::new(ToolCallId::from(""), "".into(), ToolKind::Static),
            })
        })
    }
}

/// Collects the fields of a chunk.
fn chunk_fields(
    title: Option<&str>,
    tool_metadata: &Option<Cow<'_, ToolMetadata>>,
    provider_executed: Option<bool>,
    provider_metadata: &Option<Cow<'_, ProviderMetadata>>,
) -> ChunkFields {
    ChunkFields {
        title: title.map(Json::string),
        tool_metadata: tool_metadata.as_deref().cloned(),
        provider_executed,
        provider_metadata: provider_metadata.as_deref().cloned(),
    }
}

/// The part that stands in the message in place of an unpacked part.
fn placeholder() -> Part {
    Part::StepStart { extra: ExtraFields::default() }
}
