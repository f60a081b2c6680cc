//! [`Run`]: the loop of an agent, which decides and never waits.
//!
//! ```text
//!          ┌──────────── poll ───────────┐
//!          ▼                             │
//! Step::Say(event)                 handle(Input)
//! Step::Begin(errand) ──▶ the driver ────┘ as often as the errand has news, several at once
//! Step::Wait
//! Step::End(how)
//! ```
//!
//! It calls the model, has each call looked at, runs the tools of a step together, and ends where a
//! call waits for a person or for the client, where the model asks for nothing more, or at the limit
//! of steps. What the model reads is not its affair: that is made from the messages.

mod call_names;
mod step;

use std::collections::{HashSet, VecDeque};

use serde::{Deserialize, Serialize};

pub use self::step::{Errand, Input, ModelEvent, Step, ToolEvent, Verdict};

use self::call_names::CallNames;
use crate::approval::OpenCall;
use crate::chunk::FinishReason;
use crate::event::{AgentEvent, Executor, ToolCall};
use crate::id::ToolCallId;
use crate::json::Json;

/// The loop of an agent, from the first model call of a turn to its end.
///
/// ```
/// use ui_message_stream::AgentEvent;
/// use ui_message_stream::chunk::FinishReason;
/// use ui_message_stream::run::{Errand, Input, ModelEvent, Run, RunEnd, Step};
///
/// let mut run = Run::new(8);
/// assert!(matches!(run.poll(), Step::Say(AgentEvent::StepStart)));
/// assert!(matches!(run.poll(), Step::Begin(Errand::CallModel { step: 1 })));
/// assert!(matches!(run.poll(), Step::Wait));
/// run.handle(Input::Model(ModelEvent::Said(AgentEvent::text("Hello"))));
/// run.handle(Input::Model(ModelEvent::Finished(FinishReason::Stop)));
/// assert!(matches!(run.poll(), Step::Say(AgentEvent::TextDelta { .. })));
/// assert!(matches!(run.poll(), Step::Say(AgentEvent::StepFinish)));
/// assert!(matches!(run.poll(), Step::Say(AgentEvent::Finish { .. })));
/// assert!(matches!(run.poll(), Step::End(RunEnd::Finished)));
/// ```
#[derive(Debug)]
pub struct Run {
    step: u32,
    most_steps: u32,
    /// Whether the model of this step has said everything.
    model: ModelState,
    calls: Vec<Call>,
    names: CallNames,
    /// The calls, of all steps, that are decided about here.
    own: HashSet<ToolCallId>,
    /// Whether a call of this step had an input that is none: the model is to read of it.
    had_invalid_input: bool,
    next: VecDeque<Step>,
    usage: Usage,
    /// What the message cost before.
    tells_usage: Option<Usage>,
    checks_output: bool,
    end: Option<RunEnd>,
}

/// Tokens, of all model calls of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Read by the model.
    pub input_tokens: u64,
    /// Written by it.
    pub output_tokens: u64,
}

impl Usage {
    /// Returns the sum of both. A sum that is too large stays at the largest number.
    #[must_use]
    pub fn saturating_add(self, other: Usage) -> Usage {
        Usage {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
        }
    }
}

/// The metadata of a message in which an agent records its token usage:
/// `{"usage":{"inputTokens":…,"outputTokens":…}}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageMetadata {
    /// The tokens of all model calls that the message took.
    pub usage: Usage,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum RunEnd {
    /// The model asks for nothing more.
    Finished,
    /// These calls wait for the person, and some perhaps for the client. The run goes on with the next
    /// request, from the messages: there is nothing else to keep.
    AwaitingApproval {
        /// What waits.
        waiting: Vec<OpenCall>,
    },
    /// These calls wait for the client, and nobody is asked.
    AwaitingClient {
        /// What waits.
        waiting: Vec<OpenCall>,
    },
    /// The model would go on, and may not.
    StepLimit,
    /// The model failed.
    Failed,
}

#[derive(Debug, Clone, PartialEq)]
enum ModelState {
    NotCalled,
    Speaks,
    Finished(FinishReason),
    /// It broke off, which is said of it last: the client stops reading there.
    Broke(AgentEvent),
    /// Its answer is being looked at.
    Answered(FinishReason),
}

/// A call of this step.
#[derive(Debug)]
struct Call {
    /// As it is announced.
    announced: ToolCall,
    open: OpenCall,
    state: CallState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallState {
    /// Nothing was said of it yet.
    Checked,
    LookedAt,
    Asking,
    Runs,
    Waits,
    Settled,
}

impl Run {
    /// A run of at most so many model calls.
    pub fn new(most_steps: u32) -> Self {
        Run {
            step: 0,
            most_steps,
            model: ModelState::NotCalled,
            calls: Vec::new(),
            names: CallNames::default(),
            own: HashSet::new(),
            had_invalid_input: false,
            next: VecDeque::new(),
            usage: Usage::default(),
            tells_usage: None,
            checks_output: false,
            end: None,
        }
    }

    /// Says in the message's metadata what it cost, as
    /// `{"usage": {"inputTokens": …, "outputTokens": …}}`: what it cost before, when it waited for
    /// the person, and what this run's model calls cost.
    #[must_use]
    pub fn telling_usage(mut self, before: Usage) -> Self {
        self.tells_usage = Some(before);
        self
    }

    /// Has the answer held against what it is to look like, before the run is said to be finished:
    /// [`Errand::CheckOutput`]. One that was cut, by a limit or a filter, is none.
    #[must_use]
    pub fn checking_output(mut self) -> Self {
        self.checks_output = true;
        self
    }

    /// A run that goes on with a message that holds these calls. Their ids are taken: a model that
    /// numbers its calls anew means other ones.
    #[must_use]
    pub fn with_calls(mut self, ids: impl IntoIterator<Item = ToolCallId>) -> Self {
        self.names.take(ids);
        self
    }

    /// What the model calls cost so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Says what is to be done next. After [`Step::End`] it is that again.
    pub fn poll(&mut self) -> Step {
        loop {
            if let Some(next) = self.next.pop_front() {
                return next;
            }
            if let Some(end) = &self.end {
                return Step::End(end.clone());
            }
            match &self.model {
                ModelState::NotCalled => self.call_model(),
                ModelState::Finished(reason) if !self.is_busy() => self.end_step(*reason),
                ModelState::Broke(how) if !self.is_busy() => {
                    let how = how.clone();
                    self.say(how);
                    self.end = Some(RunEnd::Failed);
                }
                _ => return Step::Wait,
            }
        }
    }

    /// Takes in what an errand brings. What comes for a call that is done, or after the end, is
    /// passed over.
    pub fn handle(&mut self, input: Input) {
        if self.end.is_some() {
            return;
        }
        match input {
            Input::Model(_) | Input::ModelFailed(_) if self.model != ModelState::Speaks => {}
            Input::Model(event) => self.model_says(event),
            Input::ModelFailed(why) => self.model = ModelState::Broke(AgentEvent::error(why)),
            Input::Checked { tool_call_id, fits } => self.checked(&tool_call_id, fits),
            Input::Prepared { tool_call_id, verdict } => self.prepared(&tool_call_id, verdict),
            Input::Asked { tool_call_id, approval_id, details } => {
                let Some(call) = self.call(&tool_call_id, CallState::Asking) else { return };
                call.state = CallState::Waits;
                call.open.approval_id = Some(approval_id.clone());
                let asked = AgentEvent::ApprovalRequested { tool_call_id, approval_id, details };
                self.say(asked);
            }
            Input::Tool { tool_call_id, event } => self.tool_says(tool_call_id, event),
            Input::OutputChecked(checked) => {
                let ModelState::Answered(reason) = self.model else { return };
                match checked {
                    Ok(()) => self.finish(reason, RunEnd::Finished),
                    Err(why) => self.model = ModelState::Broke(AgentEvent::error(why)),
                }
            }
        }
    }

    fn model_says(&mut self, event: ModelEvent) {
        match event {
            ModelEvent::Said(event) => self.model_said(event),
            ModelEvent::Used(usage) => {
                self.usage = self.usage.saturating_add(usage);
            }
            ModelEvent::Finished(reason) => self.model = ModelState::Finished(reason),
            ModelEvent::Call(call, input) => {
                if let Some((call, input)) = self.readable(*call, &input) {
                    self.calls_with(call, input);
                }
            }
            ModelEvent::ProviderAsks(call, input) => {
                if let Some((call, input)) = self.readable(call.provider_executed(), &input) {
                    self.provider_asks(call, input);
                }
            }
        }
    }

    fn model_said(&mut self, mut event: AgentEvent) {
        match &mut event {
            AgentEvent::StepStart | AgentEvent::StepFinish => return,
            AgentEvent::Finish { reason, metadata } => {
                self.model = ModelState::Finished(*reason);
                let Some(metadata) = metadata.take() else { return };
                event = AgentEvent::Metadata(metadata);
            }
            AgentEvent::Error { .. } | AgentEvent::Abort { .. } => {
                self.model = ModelState::Broke(event);
                return;
            }
            AgentEvent::ToolInputStart { call } => call.id = self.names.begin(&call.id),
            AgentEvent::ToolInputDelta { tool_call_id, .. } => {
                *tool_call_id = self.names.of(tool_call_id);
            }
            AgentEvent::ToolInput { call, .. } | AgentEvent::ToolInputInvalid { call, .. } => {
                call.id = self.names.complete(&call.id);
                let is_own = call.executed_by != Executor::Provider;
                match event {
                    AgentEvent::ToolInput { call, input } => return self.calls_with(*call, input),
                    _ => self.had_invalid_input |= is_own,
                }
            }
            AgentEvent::ToolOutput { tool_call_id, .. }
            | AgentEvent::ToolFailed { tool_call_id, .. }
            | AgentEvent::ToolDenied { tool_call_id }
            | AgentEvent::ApprovalRequested { tool_call_id, .. } => {
                *tool_call_id = self.names.of(tool_call_id);
                if self.own.contains(tool_call_id) {
                    return;
                }
            }
            _ => {}
        }
        self.say(event);
    }

    /// A call with its input, under an id of its own. An input that is none is told to the model.
    fn readable(&mut self, mut call: ToolCall, input: &str) -> Option<(ToolCall, Json)> {
        call.id = self.names.complete(&call.id);
        // Some models write nothing where a tool takes nothing.
        let input = if input.trim().is_empty() { "{}" } else { input };
        match Json::parse(input) {
            Ok(input) => Some((call, input)),
            Err(error) => {
                let wrong = format!("the input is not usable: {error}");
                self.say(AgentEvent::tool_input_invalid(call, Json::string(input), wrong));
                self.had_invalid_input = true;
                None
            }
        }
    }

    fn provider_asks(&mut self, call: ToolCall, input: Json) {
        let name: Box<str> = (&*call.tool_name).into();
        let open = OpenCall::left_to_client(call.id.clone(), name, input.clone());
        let open = open.provider_executed();
        self.say(AgentEvent::tool_input(call.clone(), input));
        self.next.push_back(Step::Begin(Errand::Ask(open.clone())));
        self.calls.push(Call { announced: call, open, state: CallState::Asking });
    }

    fn calls_with(&mut self, call: ToolCall, input: Json) {
        if call.executed_by == Executor::Provider {
            return self.say(AgentEvent::tool_input(call, input));
        }
        let name: Box<str> = (&*call.tool_name).into();
        let open = OpenCall::left_to_client(call.id.clone(), name, input);
        self.own.insert(open.tool_call_id.clone());
        self.next.push_back(Step::Begin(Errand::Check(open.clone())));
        self.calls.push(Call { announced: call, open, state: CallState::Checked });
    }

    fn checked(&mut self, id: &ToolCallId, fits: Result<(), String>) {
        let broke = matches!(self.model, ModelState::Broke(_));
        let Some(call) = self.call(id, CallState::Checked) else { return };
        let (announced, input) = (call.announced.clone(), call.open.input.clone());
        match fits {
            Ok(()) => {
                call.state = CallState::LookedAt;
                let errand = Errand::Prepare(call.open.clone());
                self.say(AgentEvent::tool_input(announced, input));
                match broke {
                    true => self.settle(id, AgentEvent::tool_failed(id.clone(), NOT_BEGUN)),
                    false => self.next.push_back(Step::Begin(errand)),
                }
            }
            Err(why) => {
                call.state = CallState::Settled;
                self.say(AgentEvent::tool_input_invalid(announced, input, why));
            }
        }
    }

    fn prepared(&mut self, id: &ToolCallId, verdict: Verdict) {
        let broke = matches!(self.model, ModelState::Broke(_));
        let Some(call) = self.call(id, CallState::LookedAt) else { return };
        let open = call.open.clone();
        let (state, errand) = match verdict {
            Verdict::LeaveToClient => {
                call.state = CallState::Waits;
                return;
            }
            _ if broke => return self.settle(id, AgentEvent::tool_failed(id.clone(), NOT_BEGUN)),
            Verdict::Run => (CallState::Runs, Errand::RunTool(open)),
            Verdict::AskPerson => (CallState::Asking, Errand::Ask(open)),
        };
        call.state = state;
        self.next.push_back(Step::Begin(errand));
    }

    fn tool_says(&mut self, id: ToolCallId, event: ToolEvent) {
        let is_open = |call: &Call| {
            let is_it = call.open.tool_call_id == id;
            is_it && matches!(call.state, CallState::Asking | CallState::Runs)
        };
        if !self.calls.iter().any(is_open) {
            return;
        }
        match event {
            ToolEvent::Preliminary(output) => self.say(AgentEvent::preliminary_output(id, output)),
            ToolEvent::Data(data) => self.say(AgentEvent::Data(data)),
            ToolEvent::Source(source) => self.say(AgentEvent::Source(source)),
            ToolEvent::File(file) => self.say(AgentEvent::File(file)),
            ToolEvent::Output(output) => {
                self.settle(&id, AgentEvent::tool_output(id.clone(), output));
            }
            ToolEvent::Failed(why) => self.settle(&id, AgentEvent::tool_failed(id.clone(), why)),
        }
    }

    fn settle(&mut self, id: &ToolCallId, how: AgentEvent) {
        let is_it = |call: &&mut Call| call.open.tool_call_id == *id;
        self.calls.iter_mut().filter(is_it).for_each(|call| call.state = CallState::Settled);
        self.say(how);
    }

    fn say(&mut self, event: AgentEvent) {
        self.next.push_back(Step::Say(event));
    }

    fn call_model(&mut self) {
        if self.step == self.most_steps {
            self.finish(FinishReason::ToolCalls, RunEnd::StepLimit);
            return;
        }
        self.step += 1;
        self.model = ModelState::Speaks;
        self.calls.clear();
        self.names.next_step();
        self.had_invalid_input = false;
        self.next.push_back(Step::Say(AgentEvent::StepStart));
        self.next.push_back(Step::Begin(Errand::CallModel { step: self.step }));
    }

    /// The model has said everything, and no tool runs any more.
    fn end_step(&mut self, reason: FinishReason) {
        self.next.push_back(Step::Say(AgentEvent::StepFinish));
        let waits = |call: &&Call| call.state == CallState::Waits;
        let waiting: Vec<OpenCall> =
            self.calls.iter().filter(waits).map(|call| call.open.clone()).collect();
        if waiting.iter().any(|call| call.approval_id.is_some()) {
            self.finish(FinishReason::ToolCalls, RunEnd::AwaitingApproval { waiting });
        } else if !waiting.is_empty() {
            self.finish(FinishReason::ToolCalls, RunEnd::AwaitingClient { waiting });
        } else if self.has_results() {
            self.model = ModelState::NotCalled;
        } else if self.checks_output && !is_cut(reason) {
            // It called nothing, whatever it says.
            let reason = match reason {
                FinishReason::ToolCalls => FinishReason::Stop,
                reason => reason,
            };
            self.model = ModelState::Answered(reason);
            self.next.push_back(Step::Begin(Errand::CheckOutput));
        } else {
            self.finish(reason, RunEnd::Finished);
        }
    }

    fn finish(&mut self, reason: FinishReason, end: RunEnd) {
        let usage = self
            .tells_usage
            .map(|before| UsageMetadata { usage: before.saturating_add(self.usage) });
        // Two numbers always serialize.
        let metadata = usage.and_then(|usage| Json::of(&usage).ok());
        self.next.push_back(Step::Say(AgentEvent::Finish { reason, metadata }));
        self.end = Some(end);
    }

    /// Whether there are results that the model has not read.
    fn has_results(&self) -> bool {
        !self.calls.is_empty() || self.had_invalid_input
    }

    fn is_busy(&self) -> bool {
        let is_under_way =
            |call: &Call| !matches!(call.state, CallState::Waits | CallState::Settled);
        self.calls.iter().any(is_under_way)
    }

    fn call(&mut self, id: &ToolCallId, state: CallState) -> Option<&mut Call> {
        self.calls.iter_mut().find(|call| call.open.tool_call_id == *id && call.state == state)
    }
}

/// Whether somebody else ended what the model said.
fn is_cut(reason: FinishReason) -> bool {
    matches!(reason, FinishReason::Length | FinishReason::ContentFilter | FinishReason::Error)
}

/// Said of a call that was about to run when the model broke off.
const NOT_BEGUN: &str = "This tool call was not executed: the model broke off.";
