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

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::approval::OpenCall;
use crate::chunk::FinishReason;
use crate::event::{AgentEvent, Executor, Text, ToolCall};
use crate::id::{ApprovalId, ToolCallId};
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
    /// Whether a call of this step had an input that is none: the model is to read of it.
    had_invalid_input: bool,
    next: VecDeque<Step>,
    usage: Usage,
    end: Option<RunEnd>,
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
#[non_exhaustive]
pub enum Step {
    /// The agent says this.
    Say(AgentEvent),
    /// This is to be begun, not awaited: what it brings comes back through [`Run::handle`].
    Begin(Errand),
    /// Nothing, until an errand has news.
    Wait,
    /// The run is over.
    End(RunEnd),
}

/// Something to begin.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Errand {
    /// Call the model with the messages as they are now: [`Input::Model`], until
    /// [`ModelEvent::Finished`], or [`Input::ModelFailed`].
    CallModel {
        /// Which call of this run it is, from 1.
        step: u32,
    },
    /// Look at a call: does its tool take the input, may it run: [`Input::Prepared`].
    Prepare(OpenCall),
    /// Ask the person: [`Input::Asked`], or [`Input::Tool`] with the reason why nobody is asked.
    Ask(OpenCall),
    /// Run the tool: [`Input::Tool`], until an output or a failure.
    RunTool(OpenCall),
}

/// What an errand brings.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Input {
    /// The model said something.
    Model(ModelEvent),
    /// The model is gone. The words are for the person.
    ModelFailed(Text),
    /// A call was looked at.
    Prepared {
        /// Which call.
        tool_call_id: ToolCallId,
        /// What is to become of it.
        verdict: Verdict,
    },
    /// The person was asked.
    Asked {
        /// About which call.
        tool_call_id: ToolCallId,
        /// What names the question.
        approval_id: ApprovalId,
        /// What the person is shown of it.
        descriptor: Option<Json>,
    },
    /// A tool has news.
    Tool {
        /// Of which call.
        tool_call_id: ToolCallId,
        /// What it is.
        event: ToolEvent,
    },
}

/// What a model says.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ModelEvent {
    /// Text, reasoning, sources, files, a tool input as it streams in, a call that the provider
    /// runs: what needs no decision.
    Said(AgentEvent),
    /// A call, with the whole text of its input as the model wrote it.
    Call(Box<ToolCall>, String),
    /// A call that the provider runs if a person says yes, with the whole text of its input. The
    /// provider is told the answer with the next request; nothing is run here.
    ProviderAsks(Box<ToolCall>, String),
    /// What the call cost, as far as it is known.
    Used(Usage),
    /// The model has said everything.
    Finished(FinishReason),
}

/// What is to become of a call.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Verdict {
    /// It runs.
    Run,
    /// A person is asked first.
    AskPerson,
    /// The client runs it.
    LeaveToClient,
    /// Its tool does not take it; the model reads why.
    Invalid(String),
}

/// What a tool says while it runs.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ToolEvent {
    /// An output that a later one replaces.
    Preliminary(Json),
    /// What it returned.
    Output(Json),
    /// Why it failed, in words for the person and the model.
    Failed(String),
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

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum RunEnd {
    /// The model asks for nothing more.
    Finished,
    /// These calls wait for the person or the client. The run goes on with the next request, from
    /// the messages: there is nothing else to keep.
    Paused {
        /// What waits.
        waiting: Vec<OpenCall>,
    },
    /// The model would go on, and may not.
    StepLimit,
    /// The model failed.
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum ModelState {
    NotCalled,
    Speaks,
    Finished(FinishReason),
}

/// A call of this step.
#[derive(Debug)]
struct Call {
    call: OpenCall,
    state: CallState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallState {
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
            had_invalid_input: false,
            next: VecDeque::new(),
            usage: Usage::default(),
            end: None,
        }
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
            match self.model {
                ModelState::NotCalled => self.call_model(),
                ModelState::Finished(reason) if !self.is_busy() => self.end_step(reason),
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
            Input::Model(event) if self.model == ModelState::Speaks => self.model_says(event),
            Input::Model(_) => {}
            Input::ModelFailed(why) => {
                self.next.push_back(Step::Say(AgentEvent::error(why)));
                self.end = Some(RunEnd::Failed);
            }
            Input::Prepared { tool_call_id, verdict } => {
                let Some(call) = self.call(&tool_call_id, CallState::LookedAt) else { return };
                let open = call.call.clone();
                let (state, next) = match verdict {
                    Verdict::Run => (CallState::Runs, Step::Begin(Errand::RunTool(open))),
                    Verdict::AskPerson => (CallState::Asking, Step::Begin(Errand::Ask(open))),
                    Verdict::LeaveToClient => {
                        call.state = CallState::Waits;
                        return;
                    }
                    Verdict::Invalid(why) => {
                        (CallState::Settled, Step::Say(AgentEvent::tool_failed(tool_call_id, why)))
                    }
                };
                call.state = state;
                self.next.push_back(next);
            }
            Input::Asked { tool_call_id, approval_id, descriptor } => {
                let Some(call) = self.call(&tool_call_id, CallState::Asking) else { return };
                call.state = CallState::Waits;
                call.call.approval_id = Some(approval_id.clone());
                let asked = AgentEvent::ApprovalRequested { tool_call_id, approval_id, descriptor };
                self.next.push_back(Step::Say(asked));
            }
            Input::Tool { tool_call_id, event } => self.tool_says(tool_call_id, event),
        }
    }

    fn model_says(&mut self, event: ModelEvent) {
        match event {
            ModelEvent::Said(event) => self.next.push_back(Step::Say(event)),
            ModelEvent::Used(usage) => {
                self.usage.input_tokens += usage.input_tokens;
                self.usage.output_tokens += usage.output_tokens;
            }
            ModelEvent::Finished(reason) => self.model = ModelState::Finished(reason),
            ModelEvent::Call(call, input) => self.model_calls(*call, &input, false),
            ModelEvent::ProviderAsks(call, input) => {
                self.model_calls(call.provider_executed(), &input, true);
            }
        }
    }

    fn model_calls(&mut self, call: ToolCall, input: &str, provider_asks: bool) {
        // Some models write nothing where a tool takes nothing.
        let input = if input.trim().is_empty() { "{}" } else { input };
        let input = match Json::parse(input) {
            Ok(input) => input,
            Err(error) => {
                let wrong = format!("the input is not usable: {error}");
                let said = AgentEvent::tool_input_invalid(call, Json::string(input), wrong);
                self.next.push_back(Step::Say(said));
                self.had_invalid_input = true;
                return;
            }
        };
        let name: Box<str> = (&*call.tool_name).into();
        let mut open = OpenCall::left_to_client(call.id.clone(), name, input.clone());
        open.provider_executed = call.executed_by == Executor::Provider;
        self.next.push_back(Step::Say(AgentEvent::tool_input(call, input)));
        let (state, errand) = match open.provider_executed {
            true if provider_asks => (CallState::Asking, Errand::Ask(open.clone())),
            true => return,
            false => (CallState::LookedAt, Errand::Prepare(open.clone())),
        };
        self.next.push_back(Step::Begin(errand));
        self.calls.push(Call { call: open, state });
    }

    fn tool_says(&mut self, tool_call_id: ToolCallId, event: ToolEvent) {
        let is_open = |call: &&mut Call| {
            call.call.tool_call_id == tool_call_id
                && matches!(call.state, CallState::Asking | CallState::Runs)
        };
        let Some(call) = self.calls.iter_mut().find(is_open) else { return };
        let said = match event {
            ToolEvent::Preliminary(output) => AgentEvent::preliminary_output(tool_call_id, output),
            ToolEvent::Output(output) => {
                call.state = CallState::Settled;
                AgentEvent::tool_output(tool_call_id, output)
            }
            ToolEvent::Failed(why) => {
                call.state = CallState::Settled;
                AgentEvent::tool_failed(tool_call_id, why)
            }
        };
        self.next.push_back(Step::Say(said));
    }

    fn call_model(&mut self) {
        if self.step == self.most_steps {
            self.next.push_back(Step::Say(AgentEvent::finish(FinishReason::ToolCalls)));
            self.end = Some(RunEnd::StepLimit);
            return;
        }
        self.step += 1;
        self.model = ModelState::Speaks;
        self.calls.clear();
        self.had_invalid_input = false;
        self.next.push_back(Step::Say(AgentEvent::StepStart));
        self.next.push_back(Step::Begin(Errand::CallModel { step: self.step }));
    }

    /// The model has said everything, and no tool runs any more.
    fn end_step(&mut self, reason: FinishReason) {
        self.next.push_back(Step::Say(AgentEvent::StepFinish));
        let waits = |call: &&Call| call.state == CallState::Waits;
        let waiting: Vec<OpenCall> =
            self.calls.iter().filter(waits).map(|call| call.call.clone()).collect();
        if !waiting.is_empty() {
            self.next.push_back(Step::Say(AgentEvent::finish(FinishReason::ToolCalls)));
            self.end = Some(RunEnd::Paused { waiting });
        } else if self.has_results() {
            self.model = ModelState::NotCalled;
        } else {
            self.next.push_back(Step::Say(AgentEvent::finish(reason)));
            self.end = Some(RunEnd::Finished);
        }
    }

    /// Whether there are results that the model has not read.
    fn has_results(&self) -> bool {
        !self.calls.is_empty() || self.had_invalid_input
    }

    fn is_busy(&self) -> bool {
        let is_under_way = |call: &Call| {
            matches!(call.state, CallState::LookedAt | CallState::Asking | CallState::Runs)
        };
        self.calls.iter().any(is_under_way)
    }

    fn call(&mut self, id: &ToolCallId, state: CallState) -> Option<&mut Call> {
        self.calls.iter_mut().find(|call| call.call.tool_call_id == *id && call.state == state)
    }
}
