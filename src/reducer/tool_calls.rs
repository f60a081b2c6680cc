//! [`ToolCalls`]: the tool parts of the message, found by id and changed by chunks.
//!
//! Chunks that create or update look for a part in the current step and of their own kind, static
//! or dynamic. Chunks that refer to a call take the first part of the current step that has its id,
//! else the last one of the whole message. A part that changes is taken apart, until it is plain
//! again or somebody looks.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::ReduceError;
use super::call::{Call, Content, Said, State};
use super::held;
use super::tool_input::ToolInput;
use crate::chunk::Chunk;
use crate::id::{ApprovalId, ToolCallId};
use crate::json::Json;
use crate::message::{Approval, ApprovalDetails, Part, ToolKind, ToolState};
use crate::metadata::{ProviderMetadata, ToolMetadata};
use crate::record::Extra;

/// Where the tool parts are, and those that are taken apart.
#[derive(Debug, Clone, Default)]
pub(super) struct ToolCalls {
    /// The number of the current step.
    step: usize,
    known: HashMap<ToolCallId, Known>,
    /// Parts that changed since somebody looked, and are not plain. Another part holds their place
    /// meanwhile.
    apart: HashMap<usize, Box<Call>>,
}

/// What is known of the calls of one id.
#[derive(Debug, Clone)]
struct Known {
    places: Places,
    /// The input that was begun last.
    input: Option<Box<ToolInput>>,
}

/// Where the parts of one call are.
#[derive(Debug, Clone, Copy)]
struct Places {
    /// The last step that has one, and the first ones of that step by kind.
    step: usize,
    fixed: Option<usize>,
    dynamic: Option<usize>,
    last: usize,
}

impl ToolCalls {
    /// Finds the parts of a message that is continued.
    pub(super) fn of(parts: &[Part]) -> Self {
        let mut calls = ToolCalls::default();
        // Only what the last step left open goes on.
        let is_start = |part: &Part| matches!(part, Part::StepStart { .. });
        let last_step = parts.iter().rposition(is_start).unwrap_or_default();
        for (at, part) in parts.iter().enumerate() {
            match part {
                Part::StepStart { .. } => calls.start_step(),
                Part::Tool(part) => {
                    let is_dynamic = part.kind != ToolKind::Static;
                    let known = calls.note(&part.tool_call_id, is_dynamic, at);
                    if let ToolState::InputStreaming { raw_input, input_encoding, .. } = &part.state
                        && at >= last_step
                    {
                        let said = Said {
                            title: part.title.clone(),
                            tool_metadata: part.tool_metadata.clone(),
                            ..Said::default()
                        };
                        known.input = Some(Box::new(ToolInput::new(
                            raw_input.as_deref().unwrap_or_default(),
                            *input_encoding,
                            &part.tool_name,
                            is_dynamic,
                            &said,
                        )));
                    }
                }
                _ => {}
            }
        }
        calls
    }

    pub(super) fn start_step(&mut self) {
        self.step += 1;
    }

    /// Takes a chunk of a tool call; any other does nothing.
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
                let said = said(title, tool_metadata, *provider_executed, provider_metadata);
                let is_dynamic = *dynamic == Some(true);
                let input = ToolInput::new("", *input_encoding, tool_name, is_dynamic, &said);
                let (at, call) = self.create_or_update(tool_call_id, tool_name, is_dynamic, parts);
                call.write(State::InputStreaming { encoding: *input_encoding }, None, None, said);
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
                let said = said(title, tool_metadata, *provider_executed, provider_metadata);
                let is_dynamic = *dynamic == Some(true);
                let input = held::json_if_any(input);
                let (at, call) = self.create_or_update(tool_call_id, tool_name, is_dynamic, parts);
                call.write(State::InputAvailable, input.clone().map(Content::Value), None, said);
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
                // The client passes over it.
                title: _,
            } => {
                let said = said(None, tool_metadata, *provider_executed, provider_metadata);
                let is_dynamic = match self.first_of_step(tool_call_id) {
                    Some((_, is_dynamic)) => is_dynamic,
                    None => *dynamic == Some(true),
                };
                let given = held::json_if_any(input);
                let input = given.clone().map(Content::Value);
                let (input, raw_input) = if is_dynamic { (input, None) } else { (None, input) };
                let (at, call) = self.create_or_update(tool_call_id, tool_name, is_dynamic, parts);
                let state = State::OutputError { text: error_text.as_ref().to_owned() };
                call.write(state, input, raw_input, said);
                self.end_input(tool_call_id, at, given.as_ref());
                at
            }
            Chunk::ToolApprovalRequest {
                approval_id,
                tool_call_id,
                approval_descriptor,
                input_schema_input,
                signature,
            } => {
                let (at, call) = self.find(chunk, tool_call_id, parts)?;
                call.ask(Approval {
                    id: ApprovalId::from(approval_id.as_ref()),
                    details: ApprovalDetails {
                        descriptor: held::json_if_any(approval_descriptor)
                            .filter(|descriptor| !descriptor.is_null()),
                        input_schema_input: held::json_if_any(input_schema_input),
                        signature: signature.as_deref().map(str::to_owned),
                        extra: Extra::default(),
                    },
                });
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
                let output = held::json_if_any(output);
                let said = said(None, tool_metadata, *provider_executed, provider_metadata);
                call.settle(State::OutputAvailable { output, preliminary: *preliminary }, said);
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
                let said = said(None, tool_metadata, *provider_executed, provider_metadata);
                call.settle(State::OutputError { text: error_text.as_ref().to_owned() }, said);
                at
            }
            Chunk::ToolOutputDenied { tool_call_id } => {
                let (at, call) = self.find(chunk, tool_call_id, parts)?;
                call.deny();
                at
            }
            _ => return Ok(()),
        };
        // A part that is taken apart is several times as large.
        if let Entry::Occupied(call) = self.apart.entry(at)
            && call.get().is_plain()
            && let Some(part) = parts.get_mut(at)
        {
            *part = Part::Tool(Box::new(call.remove().into_part()));
        }
        Ok(())
    }

    /// Puts together again what was taken apart.
    pub(super) fn put_together(&mut self, parts: &mut [Part]) {
        for (at, mut call) in std::mem::take(&mut self.apart) {
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

    /// Begins an input of a call that has a part, in place of an earlier one.
    fn begin_input(&mut self, tool_call_id: &str, input: ToolInput) {
        let known = self.known.get_mut(tool_call_id);
        let replaced = known.and_then(|known| known.input.replace(Box::new(input)));
        // Parts of earlier steps hold on to what they have of the old one.
        if let Some(replaced) = replaced {
            for at in replaced.parts() {
                if let Some(call) = self.apart.get_mut(at) {
                    call.render(&replaced);
                }
            }
        }
    }

    /// Notes that the part that stands there has the whole input.
    fn end_input(&mut self, tool_call_id: &str, at: usize, whole: Option<&Json>) {
        if let Some(input) = self.input_of_mut(tool_call_id) {
            input.pack(at, whole);
        }
    }

    fn push_input(
        &mut self,
        tool_call_id: &str,
        piece: &str,
        parts: &mut Vec<Part>,
    ) -> Result<usize, ReduceError> {
        let Some(input) = self.input_of(tool_call_id) else {
            return Err(ReduceError::InputNotBegun { tool_call_id: tool_call_id.into() });
        };
        let encoding = input.encoding;
        let is_dynamic = input.is_dynamic;
        let tool_name = input.tool_name.clone();
        let said = Said {
            title: input.title.clone(),
            tool_metadata: input.tool_metadata.clone(),
            ..Said::default()
        };
        let count = parts.len();
        let at = self.place_in_step(tool_call_id, &tool_name, is_dynamic, parts);
        let until = self.input_of_mut(tool_call_id).map_or(0, |input| input.push(piece, at));
        let call = self.take_apart(at, parts);
        call.rename(&tool_name);
        let streamed = || Some(Content::Streamed(until));
        // The client forgets the text where a delta is what begins a dynamic part.
        let raw_input = streamed().filter(|_| !is_dynamic || at < count);
        call.write(State::InputStreaming { encoding }, streamed(), raw_input, said);
        Ok(at)
    }

    /// The part that a chunk creates or updates, with the name that the chunk has for the tool.
    fn create_or_update(
        &mut self,
        tool_call_id: &str,
        tool_name: &str,
        is_dynamic: bool,
        parts: &mut Vec<Part>,
    ) -> (usize, &mut Call) {
        let at = self.place_in_step(tool_call_id, tool_name, is_dynamic, parts);
        let call = self.take_apart(at, parts);
        call.rename(tool_name);
        (at, call)
    }

    /// Where the current step has the call as a part of this kind; a new place if it has none.
    fn place_in_step(
        &mut self,
        tool_call_id: &str,
        tool_name: &str,
        is_dynamic: bool,
        parts: &mut Vec<Part>,
    ) -> usize {
        let places = self.places_in_step(tool_call_id);
        let place = places.and_then(|p| if is_dynamic { p.dynamic } else { p.fixed });
        if let Some(at) = place {
            return at;
        }
        let at = parts.len();
        let id = ToolCallId::from(tool_call_id);
        self.note(&id, is_dynamic, at);
        let kind = if is_dynamic { ToolKind::Dynamic } else { ToolKind::Static };
        parts.push(placeholder());
        self.apart.insert(at, Box::new(Call::new(id, tool_name.into(), kind)));
        at
    }

    fn places_in_step(&self, tool_call_id: &str) -> Option<&Places> {
        let places = &self.known.get(tool_call_id)?.places;
        (places.step == self.step).then_some(places)
    }

    fn note(&mut self, id: &ToolCallId, is_dynamic: bool, at: usize) -> &mut Known {
        let none = Places { step: self.step, fixed: None, dynamic: None, last: at };
        let unknown = || Known { places: none, input: None };
        let known = self.known.entry(id.clone()).or_insert_with(unknown);
        let places = &mut known.places;
        if places.step != self.step {
            *places = none;
        }
        let first = if is_dynamic { &mut places.dynamic } else { &mut places.fixed };
        first.get_or_insert(at);
        places.last = at;
        known
    }

    /// The first part of the current step that has this id, and whether it is dynamic.
    fn first_of_step(&self, tool_call_id: &str) -> Option<(usize, bool)> {
        let places = self.places_in_step(tool_call_id)?;
        let fixed = places.fixed.map(|at| (at, false));
        let dynamic = places.dynamic.map(|at| (at, true));
        fixed.into_iter().chain(dynamic).min()
    }

    /// The call that a chunk refers to.
    fn find(
        &mut self,
        chunk: &Chunk<'_>,
        tool_call_id: &str,
        parts: &mut [Part],
    ) -> Result<(usize, &mut Call), ReduceError> {
        let of_step = self.first_of_step(tool_call_id).map(|(at, _)| at);
        let last = || self.known.get(tool_call_id).map(|known| known.places.last);
        match of_step.or_else(last) {
            Some(at) => Ok((at, self.take_apart(at, parts))),
            None => Err(ReduceError::UnknownToolCall {
                kind: chunk.kind_pieces().0,
                tool_call_id: tool_call_id.into(),
            }),
        }
    }

    fn take_apart(&mut self, at: usize, parts: &mut [Part]) -> &mut Call {
        self.apart.entry(at).or_insert_with(|| {
            Box::new(match parts.get_mut(at).map(|part| std::mem::replace(part, placeholder())) {
                Some(Part::Tool(part)) => Call::of(*part),
                // Only tool parts are noted.
                _ => Call::new(ToolCallId::from(""), "".into(), ToolKind::Static),
            })
        })
    }
}

/// What a chunk says in its fields.
fn said(
    title: Option<&str>,
    tool_metadata: &Option<Cow<'_, ToolMetadata>>,
    provider_executed: Option<bool>,
    provider_metadata: &Option<Cow<'_, ProviderMetadata>>,
) -> Said {
    Said {
        title: title.map(Json::string),
        tool_metadata: held::tool_metadata(tool_metadata),
        provider_executed,
        provider_metadata: held::provider_metadata(provider_metadata),
    }
}

/// What stands in the message where a part is taken apart.
fn placeholder() -> Part {
    Part::StepStart { extra: Extra::default() }
}
