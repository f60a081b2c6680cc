//! The message that the client must hold in the end, derived from the events one by one.
//!
//! It is the specification in its simplest form, and shares no code with the translator: it knows
//! only chunks that correspond to events, opens and closes nothing on the wire, and is not
//! optimised.
//!
//! Ids and error texts that the translator generates are [wildcards](super::wildcard) here.

mod call;
mod content;
mod tools;

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::Source;
use ui_message_stream::{AgentEvent, Chunk, UserText};

use self::call::{Announced, Call, State};
use super::case::{Case, Origin};
use super::continued::value;

/// The expected result of a case.
#[derive(Debug)]
pub(crate) struct Expected {
    /// The message's id; `None` if the client makes it.
    pub(crate) id: Option<String>,
    /// The parts, with wildcards.
    pub(crate) parts: Vec<Value>,
    /// The metadata; `null` if there is none.
    pub(crate) metadata: Value,
    /// For each event the correct answers: `Ok`, or the name of an error.
    pub(crate) answers: Vec<Answers>,
    /// Whether the continued message repeats an id. Then client versions need different chunks.
    pub(crate) has_twins: bool,
    /// The ids of the calls that were removed with their step.
    pub(crate) lost_calls: Vec<String>,
    /// The error that ended the run, if any: the client then sends nothing automatically.
    pub(crate) error: Option<String>,
}

/// The possible answers to an event.
pub(crate) type Answers = Vec<&'static str>;

/// Derives the expected result of a case.
pub(crate) fn expected(case: &Case) -> Expected {
    let mut reading = Reading::of(case);
    let answers = case.events.iter().map(|event| reading.event(event)).collect();
    if !reading.ended {
        reading.end(false);
    }
    Expected {
        id: reading.id,
        parts: reading.parts.iter().map(|part| part.rendered(&reading.calls)).collect(),
        metadata: reading.metadata,
        answers,
        has_twins: reading.has_twins,
        lost_calls: reading.lost_calls,
        error: reading.error,
    }
}

pub(crate) fn ok() -> Answers {
    vec!["Ok"]
}

/// The message so far.
#[derive(Default)]
pub(crate) struct Reading {
    id: Option<String>,
    /// Whether a `start` chunk could still name the message.
    nameless_so_far: bool,
    parts: Vec<Part>,
    metadata: Value,
    step: Step,
    steps: usize,
    /// How many steps the continued message has.
    held_steps: usize,
    /// The part that is being written, if it has no name.
    unnamed: Option<usize>,
    /// The named parts that are open, by kind and name.
    named: HashMap<(&'static str, String), usize>,
    approvals: bool,
    /// What the client knows of `ai@7`.
    known: Known,
    approval_ids: HashSet<String>,
    has_twins: bool,
    lost_calls: Vec<String>,
    calls: Vec<Call>,
    /// The call that each id currently names.
    by_id: HashMap<String, usize>,
    /// The part that describes each approval request to the user.
    descriptions: HashMap<usize, usize>,
    ended: bool,
    error: Option<String>,
}

/// What the client knows of `ai@7`.
#[derive(Default)]
struct Known {
    /// `custom`, `reasoning-file`, `tool-approval-response` and `isAutomatic`.
    base: bool,
    reset_step: bool,
    request_reason: bool,
    citations: bool,
    interrupted: bool,
}

impl Known {
    fn of(case: &Case) -> Self {
        Known {
            base: case.knows(0),
            reset_step: case.knows(70),
            request_reason: case.knows(82),
            citations: case.knows(138),
            interrupted: case.knows(149),
        }
    }
}

enum Part {
    Plain(Value),
    Call(usize),
}

impl Part {
    fn rendered(&self, calls: &[Call]) -> Value {
        match self {
            Part::Plain(part) => part.clone(),
            Part::Call(call) => calls[*call].rendered(),
        }
    }
}

#[derive(Default)]
enum Step {
    /// The next content starts a step.
    #[default]
    None,
    /// The agent has started it, and it is still empty.
    Announced,
    /// It has content.
    Open { announced: bool },
}

impl Reading {
    fn of(case: &Case) -> Self {
        let mut reading =
            Reading { approvals: case.approvals, known: Known::of(case), ..Reading::default() };
        match &case.origin {
            Origin::New(id) => reading.id = Some(id.clone()),
            Origin::Unnamed => reading.nameless_so_far = !case.starts_early,
            Origin::Continued(message) => reading.hold(message),
        }
        if let Some(metadata) = &case.metadata {
            // Metadata that cannot be merged is dropped without an error.
            reading.metadata(Some(metadata.clone()));
        }
        reading
    }

    /// Starts with the message that the client holds.
    fn hold(&mut self, message: &Value) {
        self.id = message["id"].as_str().map(str::to_owned);
        self.metadata = message.get("metadata").cloned().unwrap_or_default();
        for part in message["parts"].as_array().into_iter().flatten() {
            self.held_steps += usize::from(part["type"] == "step-start");
            let Some(call) = Call::held(part) else {
                self.parts.push(Part::Plain(part.clone()));
                continue;
            };
            if let Some(id) = part["approval"]["id"].as_str() {
                self.approval_ids.insert(id.to_owned());
            }
            let (id, number) = (call.id.clone(), self.calls.len());
            self.parts.push(Part::Call(number));
            self.calls.push(call);
            self.name_held(id, number);
        }
    }

    /// Of several calls with one id the settled one counts, else the last. A call in an unknown
    /// state cannot be changed.
    fn name_held(&mut self, id: String, number: usize) {
        let is_first = self.calls[..number].iter().all(|call| call.id != id);
        self.has_twins |= !is_first;
        let settled = |call: &Call| call.id == id && call.has_result();
        if self.calls[..number].iter().any(settled) {
            return;
        }
        if !self.calls[number].has_result() && !is_first {
            // The client version decides which of them a result reaches.
            for call in self.calls.iter_mut().filter(|call| call.id == id) {
                call.is_anyones = true;
            }
        }
        if self.calls[number].state != State::Foreign {
            self.by_id.insert(id, number);
        }
    }

    fn event(&mut self, event: &AgentEvent) -> Answers {
        if self.ended {
            return vec!["Ended"];
        }
        let results = self.results();
        let answer = match event {
            AgentEvent::Chunk(chunk) => self.chunk(chunk),
            event => self.other_event(event),
        };
        if self.results() > results && self.is_step_answered() {
            // The next text is the model's response to the results.
            let is_text = |part: &usize| matches!(&self.parts[*part], Part::Plain(part) if part["type"] == "text");
            self.unnamed = self.unnamed.filter(|part| !is_text(part));
        }
        answer
    }

    /// How many calls have a result.
    fn results(&self) -> usize {
        self.calls.iter().filter(|call| call.has_result()).count()
    }

    fn other_event(&mut self, event: &AgentEvent) -> Answers {
        let answer = match event {
            AgentEvent::StepStart => self.step_starts(),
            AgentEvent::StepFinish => self.step_ends(),
            AgentEvent::TextStart { id } => self.starts("text", id, None),
            AgentEvent::TextDelta { id, delta } => self.adds("text", id.as_deref(), delta, None),
            AgentEvent::TextEnd { id } => self.ends("text", Some(id), None, None),
            AgentEvent::ReasoningStart { id } => self.starts("reasoning", id, None),
            AgentEvent::ReasoningDelta { id, delta } => {
                self.adds("reasoning", id.as_deref(), delta, None)
            }
            AgentEvent::ReasoningEnd { id, provider_metadata } => {
                self.ends("reasoning", id.as_deref(), provider_metadata.as_ref(), None)
            }
            AgentEvent::ToolInputStart { call } => self.announced(Announced::of(call)),
            AgentEvent::ToolInputDelta { tool_call_id, delta } => {
                self.input_grows(tool_call_id, delta)
            }
            AgentEvent::ToolInput { call, input } => {
                self.announced(Announced::of(call).with_input(value(input)))
            }
            AgentEvent::ToolInputInvalid { call, input, error } => {
                self.announced(Announced::of(call).with_invalid(value(input), error))
            }
            AgentEvent::ApprovalRequested { tool_call_id, approval_id, details } => {
                let descriptor = details.as_ref().and_then(|details| details.descriptor.as_ref());
                let reason = details.as_ref().and_then(|details| details.reason.as_deref());
                let answers = self.requests_approval(tool_call_id, approval_id, reason, None);
                if let Some(descriptor) = descriptor.filter(|_| answers == ok()) {
                    self.describes_approval(tool_call_id, value(descriptor));
                }
                answers
            }
            AgentEvent::ToolDenied { tool_call_id } => self.denied(tool_call_id),
            AgentEvent::ToolOutput { tool_call_id, output, preliminary } => {
                self.output(tool_call_id, value(output), *preliminary)
            }
            AgentEvent::ToolFailed { tool_call_id, error } => self.failed(tool_call_id, error),
            AgentEvent::ToolRefused { tool_call_id, reason } => self.refused(tool_call_id, reason),
            AgentEvent::Source(source) => self.source(match &**source {
                Source::Url { source_id, url, title } => json!({
                    "type": "source-url", "sourceId": &**source_id, "url": &**url,
                    "title": title.as_deref(),
                }),
                Source::Document { source_id, media_type, title, filename } => json!({
                    "type": "source-document", "sourceId": &**source_id,
                    "mediaType": &**media_type, "title": &**title,
                    "filename": filename.as_deref(),
                }),
                other => unreachable!("{other:?} has no meaning yet"),
            }),
            AgentEvent::File(file) => self
                .file(json!({"type": "file", "url": &*file.url, "mediaType": &*file.media_type})),
            AgentEvent::Data(data) => {
                self.data(&data.name, data.id.as_deref(), value(&data.data), data.transient)
            }
            AgentEvent::Metadata(metadata) => self.metadata(Some(value(metadata))),
            AgentEvent::Error { error_text } => self.fails(error_text),
            AgentEvent::Abort { .. } => self.ends_run(true),
            AgentEvent::Finish { reason, metadata } => {
                self.finishes(Some(*reason), metadata.as_ref().map(value))
            }
            other => unreachable!("{other:?} has no meaning yet"),
        };
        // A message with content has its final id.
        self.nameless_so_far = false;
        answer
    }

    /// A chunk has the meaning of its corresponding event.
    fn chunk(&mut self, chunk: &Chunk<'_>) -> Answers {
        let answer = match chunk {
            Chunk::Start { message_id, message_metadata } => {
                if let (true, Some(id)) = (self.nameless_so_far, message_id) {
                    self.id = Some(id.clone().into_owned());
                }
                self.metadata(message_metadata.as_deref().map(value))
            }
            Chunk::StartStep {} => self.step_starts(),
            Chunk::FinishStep {} => self.step_ends(),
            Chunk::TextStart { id, provider_metadata } => {
                self.starts("text", id, provider_metadata.as_deref())
            }
            Chunk::TextDelta { id, delta, provider_metadata } => {
                self.adds("text", Some(id), delta, provider_metadata.as_deref())
            }
            Chunk::TextEnd { id, citations, provider_metadata } => {
                self.ends("text", Some(id), provider_metadata.as_deref(), citations.as_deref())
            }
            Chunk::ReasoningStart { id, provider_metadata } => {
                self.starts("reasoning", id, provider_metadata.as_deref())
            }
            Chunk::ReasoningDelta { id, delta, provider_metadata } => {
                self.adds("reasoning", Some(id), delta, provider_metadata.as_deref())
            }
            Chunk::ReasoningEnd { id, provider_metadata } => {
                self.ends("reasoning", Some(id), provider_metadata.as_deref(), None)
            }
            Chunk::ToolInputDelta { tool_call_id, input_text_delta } => {
                self.input_grows(tool_call_id, input_text_delta)
            }
            Chunk::ToolInputStart { .. }
            | Chunk::ToolInputAvailable { .. }
            | Chunk::ToolInputError { .. } => match Announced::of_chunk(chunk) {
                Some(announced) => self.announced(announced),
                None => unreachable!("{chunk:?} announces a call"),
            },
            Chunk::ToolApprovalRequest {
                approval_id, tool_call_id, reason, is_automatic, ..
            } => {
                self.requests_approval(tool_call_id, approval_id, reason.as_deref(), *is_automatic)
            }
            Chunk::ToolApprovalResponse { approval_id, approved, reason, .. } => {
                self.approval_answered(approval_id, *approved, reason.as_deref())
            }
            Chunk::Custom { .. } => self.custom(as_part(chunk)),
            Chunk::ReasoningFile { .. } => self.reasoning_file(as_part(chunk)),
            Chunk::ResetStep {} => self.step_is_reset(),
            Chunk::ToolOutputAvailable {
                tool_call_id: id,
                output,
                preliminary,
                provider_executed,
                ..
            } => {
                let output = output.as_deref().map(value).unwrap_or_default();
                self.result(id, *provider_executed, |reading| {
                    reading.output(id, output, *preliminary == Some(true))
                })
            }
            Chunk::ToolOutputError { tool_call_id: id, error_text, provider_executed, .. } => {
                self.result(id, *provider_executed, |reading| reading.failed(id, error_text))
            }
            Chunk::ToolOutputDenied { tool_call_id } => self.denied(tool_call_id),
            Chunk::SourceUrl { .. } | Chunk::SourceDocument { .. } => self.source(as_part(chunk)),
            Chunk::File { .. } => self.file(as_part(chunk)),
            Chunk::Data { name, id, data, transient } => {
                let data = data.as_deref().map(value).unwrap_or_default();
                self.data(name, id.as_deref(), data, *transient == Some(true))
            }
            Chunk::MessageMetadata { message_metadata } => {
                self.metadata(message_metadata.as_deref().map(value))
            }
            Chunk::Error { error_text } => self.fails(error_text),
            Chunk::Abort { .. } => self.ends_run(true),
            Chunk::Finish { finish_reason, message_metadata } => {
                self.finishes(*finish_reason, message_metadata.as_deref().map(value))
            }
            other => unreachable!("{other:?} has no meaning yet"),
        };
        self.nameless_so_far = false;
        answer
    }

    /// The run ends even if its metadata is rejected.
    fn finishes(&mut self, reason: Option<FinishReason>, metadata: Option<Value>) -> Answers {
        let is_cut = reason == Some(FinishReason::Interrupted);
        let answer = self.metadata(metadata);
        if is_cut && !self.known.interrupted {
            self.fails(UserText::AnswerCutOff.text());
            return answer;
        }
        self.ends_run(is_cut);
        answer
    }

    fn fails(&mut self, error_text: &str) -> Answers {
        self.error = Some(error_text.to_owned());
        self.ends_run(true)
    }

    fn ends_run(&mut self, cut_short: bool) -> Answers {
        self.end(cut_short);
        self.ended = true;
        ok()
    }

    fn end(&mut self, cut_short: bool) {
        self.step_ends();
        let named: HashSet<usize> = self.by_id.values().copied().collect();
        // An approval for the provider is sent when all other calls are decided as well.
        let goes_on = !cut_short && self.calls.iter().any(Call::is_waiting);
        for number in named {
            self.calls[number].settle_owed_result(cut_short, goes_on, self.approvals);
        }
    }
}

/// A source or a file has the same fields as its chunk.
fn as_part(chunk: &Chunk<'_>) -> Value {
    serde_json::to_value(chunk).unwrap_or_default()
}
