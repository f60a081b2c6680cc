//! [`ToolLoop`]: the state machine of an agent's tool loop. It makes decisions and never awaits.
//!
//! ```text
//!          ┌──────────── poll ────────────┐
//!          ▼                              │
//! Action::Emit(event)                handle(Input)
//! Action::Start(effect) ──▶ driver ───────┘ for each input; several effects run at once
//! Action::Wait
//! Action::End(end)
//! ```
//!
//! The loop calls the model. When its response has ended well, the loop requests a decision about each call,
//! runs the tools of the step concurrently, and requests all approvals of the step at once. No call of a response that
//! was cut off is executed. The loop ends when a call waits for the user or for the client, when the model makes no
//! more calls, or at the maximum number of steps. The messages for the model are not part of the
//! loop: the driver builds them from the messages of the chat.

mod call_ids;
mod inner_calls;
mod io;

use std::collections::{HashMap, HashSet, VecDeque};

pub use self::io::{Action, CallDecision, Effect, InnerCall, Input, RunEnd, ToolEvent};

use self::call_ids::CallIdMap;
use ui_message_stream::UserText;
use ui_message_stream::approval::PendingToolCall;
use ui_message_stream::chunk::{Chunk, FinishReason};
use ui_message_stream::event::{AgentEvent, Executor, ToolCall};
use ui_message_stream::id::ToolCallId;
use ui_message_stream::json::Json;
use ui_message_stream::model::{ModelEvent, Usage, UsageMetadata};

/// The tool loop of an agent, from the first model call of a turn to its end.
///
/// ```
/// use ui_message_stream::AgentEvent;
/// use ui_message_stream::chunk::FinishReason;
/// use ui_message_stream_agent::tool_loop::{Effect, Input, ToolLoop, RunEnd, Action};
/// use ui_message_stream::model::ModelEvent;
///
/// let mut run = ToolLoop::new(8);
/// assert!(matches!(run.poll(), Action::Emit(AgentEvent::StepStart)));
/// assert!(matches!(run.poll(), Action::Start(Effect::CallModel { step: 1 })));
/// assert!(matches!(run.poll(), Action::Wait));
/// run.handle(Input::Model(ModelEvent::Event(AgentEvent::text("Hello"))));
/// run.handle(Input::Model(ModelEvent::Finished(FinishReason::Stop)));
/// assert!(matches!(run.poll(), Action::Emit(AgentEvent::TextDelta { .. })));
/// assert!(matches!(run.poll(), Action::Emit(AgentEvent::StepFinish)));
/// assert!(matches!(run.poll(), Action::Emit(AgentEvent::Finish { .. })));
/// assert!(matches!(run.poll(), Action::End(RunEnd::Finished)));
/// ```
pub struct ToolLoop {
    step: u32,
    max_steps: u32,
    /// The number of calls of this step that were left out because the step has too many.
    left_out: usize,
    /// The state of the model call of this step.
    model: ModelState,
    calls: Vec<Call>,
    /// The calls inside calls of this step, until they are announced.
    inner_calls: Vec<InnerCall>,
    has_open_step: bool,
    /// Whether the answer holds anything that the user reads.
    has_content: bool,
    call_ids: CallIdMap,
    /// The calls of all steps whose results come from this loop or from the client, not from the
    /// provider.
    local_calls: HashSet<ToolCallId>,
    /// Whether a call of this step had an invalid input. The model must then be called again to
    /// read the error.
    had_invalid_input: bool,
    /// The calls of which the message holds nothing yet. They are announced when the response has ended, or
    /// before anything that the model writes after them.
    unannounced: Vec<ToolCall>,
    /// The streamed inputs of this step's calls that the client executes.
    streamed: HashMap<ToolCallId, String>,
    actions: VecDeque<Action>,
    usage: Usage,
    /// The usage that the message recorded before this run. `None` if usage is not written to the
    /// metadata.
    usage_before: Option<Usage>,
    has_output_check: bool,
    /// Whether the model was called again because its output was not as asked for.
    has_asked_again: bool,
    end: Option<RunEnd>,
}

debug_without_content!(ToolLoop { step, max_steps, usage; calls, actions });

/// The state of the model call of a step.
#[derive(Debug, Clone, PartialEq)]
enum ModelState {
    NotCalled,
    Streaming,
    Finished(FinishReason),
    /// The model failed or aborted. This event is emitted last, because the client stops reading
    /// there.
    Interrupted(AgentEvent),
    /// The structured output is being checked.
    CheckingOutput(FinishReason),
}

impl ModelState {
    /// The state after the end of a model call.
    fn ended(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Interrupted => ModelState::Interrupted(AgentEvent::finish(reason)),
            reason => ModelState::Finished(reason),
        }
    }
}

/// A call of this step.
#[derive(Debug)]
struct Call {
    /// The call as it is announced to the client.
    tool_call: ToolCall,
    pending: PendingToolCall,
    state: CallState,
    /// Whether it has gone on in this run without an answer of the user: none could be asked for.
    went_on: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallState {
    /// The response of the model that makes the call has not ended.
    Received,
    /// The call was not announced yet.
    ValidatingInput,
    DecidingApproval,
    /// The user may not make it. This is written after all calls of the step are announced.
    Refused,
    /// The approval is requested together with those of the other calls of the step.
    NeedsApproval,
    RequestingApproval,
    /// Its tool may ask. It runs if no other call of the step waits.
    RunsLast,
    Running,
    /// Its tool waits for the results of the calls inside it.
    Suspended,
    Waiting,
    Finished,
}

impl ToolLoop {
    /// Creates a loop that makes at most `max_steps` model calls.
    pub fn new(max_steps: u32) -> Self {
        ToolLoop {
            step: 0,
            max_steps,
            model: ModelState::NotCalled,
            calls: Vec::new(),
            inner_calls: Vec::new(),
            has_open_step: false,
            left_out: 0,
            has_content: false,
            call_ids: CallIdMap::new(64),
            local_calls: HashSet::new(),
            had_invalid_input: false,
            unannounced: Vec::new(),
            streamed: HashMap::new(),
            actions: VecDeque::new(),
            usage: Usage::default(),
            usage_before: None,
            has_output_check: false,
            has_asked_again: false,
            end: None,
        }
    }

    /// Sets the maximum number of tool calls of a step, those that the provider executes included.
    /// The default is 64.
    ///
    /// A call beyond it is not executed, its approval is not requested, and what the provider sends
    /// for it is left out. Its only event is [`AgentEvent::ToolInputInvalid`], whose error says so to
    /// the model and the user. After 1000 such calls, the rest of the model's response is not read, and
    /// none of its calls is executed: how it would have ended is not known.
    #[must_use]
    pub fn with_max_step_calls(mut self, calls: usize) -> Self {
        self.call_ids.set_max_step_calls(calls);
        self
    }

    /// Writes the token usage into the metadata of the message, as `{"usage": {"inputTokens": …,
    /// "outputTokens": …}}`.
    ///
    /// The usage is the sum of `before`, which is the usage that the message recorded before it
    /// waited for the user, and of the model calls of this run.
    #[must_use]
    pub fn with_usage_metadata(mut self, before: Usage) -> Self {
        self.usage_before = Some(before);
        self
    }

    /// Checks the structured output before the run finishes, with [`Effect::CheckOutput`]. After the first failure
    /// the model is called once more, if a step is left.
    ///
    /// Output that was cut short (finish reason `length`, `content-filter` or `error`) is not
    /// checked.
    #[must_use]
    pub fn with_output_check(mut self) -> Self {
        self.has_output_check = true;
        self
    }

    /// Sets the ids of the calls that the message already contains, for a run that continues a
    /// message.
    ///
    /// A call of the model with one of these ids is a new call and receives another id: some models
    /// restart the numbering of their calls.
    #[must_use]
    pub fn with_known_call_ids(mut self, ids: impl IntoIterator<Item = ToolCallId>) -> Self {
        self.call_ids.reserve(ids);
        self
    }

    /// Marks the answer as begun: it is not empty if the model adds nothing.
    #[must_use]
    pub fn with_begun_answer(mut self) -> Self {
        self.has_content = true;
        self
    }

    /// Counts model calls that an earlier run of the same agent has made against the maximum.
    #[must_use]
    pub fn with_prior_steps(mut self, steps: u32) -> Self {
        self.step = steps;
        self
    }

    /// Returns how many model calls were made, with those [before](Self::with_prior_steps).
    pub fn steps(&self) -> u32 {
        self.step
    }

    /// Returns the call with this id, if its tool runs.
    pub fn running_call(&self, id: &ToolCallId) -> Option<&PendingToolCall> {
        let is_it =
            |call: &&Call| call.state == CallState::Running && call.pending.tool_call_id == *id;
        self.calls.iter().find(is_it).map(|call| &call.pending)
    }

    /// Returns the token usage of all model calls so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Returns whether the loop still reads events of the model call that was started last. If it does
    /// not, the driver drops the call.
    pub fn is_reading_model(&self) -> bool {
        self.model == ModelState::Streaming && self.end.is_none()
    }

    /// Returns the next action. After [`Action::End`] it returns the same action again.
    pub fn poll(&mut self) -> Action {
        loop {
            if let Some(action) = self.actions.pop_front() {
                return action;
            }
            if let Some(end) = &self.end {
                return Action::End(end.clone());
            }
            match &self.model {
                ModelState::NotCalled => self.call_model(),
                ModelState::Finished(_) if self.can_start(CallState::Refused) => {
                    self.write_refusals()
                }
                ModelState::Finished(_) if self.can_start(CallState::RunsLast) => self.run_last(),
                ModelState::Finished(_) if self.can_start(CallState::NeedsApproval) => {
                    self.request_approvals()
                }
                ModelState::Finished(reason) if !self.is_busy() => self.end_step(*reason),
                ModelState::Interrupted(event) => {
                    let event = event.clone();
                    self.emit(event);
                    self.end = Some(RunEnd::Failed);
                }
                _ => return Action::Wait,
            }
        }
    }

    /// Handles an input of an effect. An input for a finished call, or after the end, is ignored.
    pub fn handle(&mut self, input: Input) {
        if self.end.is_some() {
            return;
        }
        match input {
            Input::Model(_) | Input::ModelFailed(_)
                if !matches!(self.model, ModelState::Streaming) => {}
            Input::Model(event) => self.handle_model_event(event),
            Input::ModelFailed(message) => {
                self.end_model(ModelState::Interrupted(AgentEvent::error(message)))
            }
            Input::InputValidated { tool_call_id, result } => {
                self.handle_validation(&tool_call_id, result)
            }
            Input::ApprovalDecided { tool_call_id, decision } => {
                self.handle_decision(&tool_call_id, decision)
            }
            Input::ApprovalRequested { tool_call_id, approval_id, details } => {
                let Some(call) = self.call(&tool_call_id, CallState::RequestingApproval) else {
                    return;
                };
                call.state = CallState::Waiting;
                call.pending.approval_id = Some(approval_id.clone());
                let event = AgentEvent::ApprovalRequested { tool_call_id, approval_id, details };
                self.emit(event);
            }
            Input::Tool { tool_call_id, event } => self.handle_tool_event(tool_call_id, event),
            Input::OutputChecked(checked) => {
                let ModelState::CheckingOutput(reason) = self.model else { return };
                match checked {
                    Ok(()) => self.finish(reason, RunEnd::Finished),
                    Err(_) if !self.has_asked_again && self.step < self.max_steps => {
                        self.has_asked_again = true;
                        self.model = ModelState::NotCalled;
                    }
                    Err(message) => {
                        self.model = ModelState::Interrupted(AgentEvent::error(message))
                    }
                }
            }
        }
    }

    fn handle_model_event(&mut self, event: ModelEvent) {
        match event {
            ModelEvent::Event(event) => self.handle_agent_event(event),
            ModelEvent::Usage(usage) => {
                self.usage = self.usage.saturating_add(usage);
            }
            ModelEvent::Finished(reason) => self.end_model(ModelState::ended(reason)),
            ModelEvent::ToolCall(call, input) => {
                if let Some((call, input)) = self.parse_input(*call, &input) {
                    self.add_call(call, input);
                }
            }
            ModelEvent::ProviderApprovalRequest(call, input) => {
                if let Some((call, input)) = self.parse_input(call.provider_executed(), &input) {
                    self.hold_call(call, input);
                }
            }
            // A kind that this version does not know.
            _ => {}
        }
    }

    /// The response of the model has ended. Its calls begin if it has ended well: otherwise it may have been cut off
    /// in one of them.
    fn end_model(&mut self, end: ModelState) {
        let is_whole =
            matches!(end, ModelState::Finished(FinishReason::Stop | FinishReason::ToolCalls));
        self.model = end;
        self.unannounced.clear();
        for call in self.calls.iter_mut().filter(|call| call.state == CallState::Received) {
            let tool_call = call.tool_call.clone();
            let pending = call.pending.clone();
            let (state, action) = match tool_call.executed_by {
                _ if !is_whole => {
                    let why = UserText::NotStarted;
                    let event = AgentEvent::tool_input_invalid(tool_call, pending.input, why);
                    (CallState::Finished, Action::Emit(event))
                }
                Executor::Provider => {
                    let event = AgentEvent::tool_input(tool_call, pending.input);
                    (CallState::NeedsApproval, Action::Emit(event))
                }
                _ => (CallState::ValidatingInput, Action::Start(Effect::ValidateInput(pending))),
            };
            call.state = state;
            self.actions.push_back(action);
        }
    }

    fn handle_agent_event(&mut self, mut event: AgentEvent) {
        match &mut event {
            AgentEvent::StepStart | AgentEvent::StepFinish => return,
            AgentEvent::Finish { reason, metadata } => {
                self.end_model(ModelState::ended(*reason));
                let Some(metadata) = metadata.take() else { return };
                event = AgentEvent::Metadata(metadata);
            }
            AgentEvent::Error { .. } | AgentEvent::Abort { .. } => {
                return self.end_model(ModelState::Interrupted(event));
            }
            // What was written of a call stays.
            AgentEvent::Chunk(chunk)
                if matches!(**chunk, Chunk::ResetStep {}) && !self.calls.is_empty() =>
            {
                return;
            }
            AgentEvent::ToolInputStart { call } => {
                let has_room = self.call_ids.begin(call);
                if !has_room {
                    return;
                }
                if call.executed_by == Executor::Client {
                    self.streamed.entry(call.id.clone()).or_default();
                }
            }
            AgentEvent::ToolInputDelta { tool_call_id, delta } => {
                let Some(id) = self.call_ids.resolve_input(tool_call_id) else { return };
                if let Some(text) = self.streamed.get_mut(&id) {
                    text.push_str(delta);
                }
                *tool_call_id = id;
            }
            AgentEvent::ToolInput { call, input }
            | AgentEvent::ToolInputInvalid { call, input, .. } => {
                if !self.call_ids.complete(call) {
                    let call = ToolCall::clone(call);
                    let input = input.clone();
                    return self.leave_out(call, input);
                }
                let is_local = call.executed_by != Executor::Provider;
                match event {
                    AgentEvent::ToolInput { call, input } => return self.add_call(*call, input),
                    _ => self.had_invalid_input |= is_local,
                }
            }
            AgentEvent::ToolOutput { tool_call_id, .. }
            | AgentEvent::ToolFailed { tool_call_id, .. }
            | AgentEvent::ToolRefused { tool_call_id, .. }
            | AgentEvent::ToolDenied { tool_call_id }
            | AgentEvent::DenialOverruled { tool_call_id }
            | AgentEvent::InputChanged { tool_call_id, .. }
            | AgentEvent::ApprovalRequested { tool_call_id, .. } => {
                let Some(id) = self.call_ids.resolve_result(tool_call_id) else { return };
                *tool_call_id = id;
                if self.local_calls.contains(tool_call_id) {
                    return;
                }
            }
            _ => {}
        }
        self.emit(event);
    }

    /// Emits the error of a call that the step has no room for. The model is called again to read it,
    /// unless the provider has executed the call.
    fn leave_out(&mut self, call: ToolCall, input: Json) {
        let is_provider_executed = call.executed_by == Executor::Provider;
        self.had_invalid_input |= !is_provider_executed;
        let mut problem = if is_provider_executed {
            "The output of this tool call was left out".to_owned()
        } else {
            "This tool call was not executed".to_owned()
        };
        let max = self.call_ids.max_step_calls();
        problem += &format!(": a step may hold at most {max} tool calls.");
        self.left_out += 1;
        let is_last = self.left_out == MAX_LEFT_OUT;
        if is_last {
            problem += " The rest of the response was not read.";
        }
        self.emit(AgentEvent::tool_input_invalid(call, input, problem));
        if is_last {
            self.end_model(ModelState::Finished(FinishReason::Length));
        }
    }

    /// Parses the input of a call and gives the call a unique id. Emits an invalid input, so that
    /// the model reads the error, and returns `None`.
    fn parse_input(&mut self, mut call: ToolCall, input: &str) -> Option<(ToolCall, Json)> {
        let has_room = self.call_ids.complete(&mut call);
        // Some models write an empty text or `null` if a tool takes no input.
        let input = if matches!(input.trim(), "" | "null") { "{}" } else { input };
        match Json::parse(input) {
            parsed if !has_room => {
                self.leave_out(call, parsed.unwrap_or_else(|_| Json::string(input)));
                None
            }
            Ok(input) => Some((call, input)),
            Err(error) => {
                let problem = format!("the input is not usable: {error}");
                self.emit(AgentEvent::tool_input_invalid(call, Json::string(input), problem));
                self.had_invalid_input = true;
                None
            }
        }
    }

    /// Adds a complete call. The provider has executed its own.
    fn add_call(&mut self, call: ToolCall, input: Json) {
        match call.executed_by {
            Executor::Provider => {
                self.emit(AgentEvent::tool_input(without_outer_call(call), input));
            }
            _ => self.hold_call(call, input),
        }
    }

    /// Keeps a call that this loop decides about until the response has ended.
    fn hold_call(&mut self, call: ToolCall, input: Json) {
        let call = without_outer_call(call);
        let name: Box<str> = (&*call.tool_name).into();
        let mut pending = PendingToolCall::client_executed(call.id.clone(), name, input);
        if call.executed_by == Executor::Provider {
            pending = pending.provider_executed();
        } else {
            self.local_calls.insert(pending.tool_call_id.clone());
        }
        if !self.call_ids.has_begun(&call.id) {
            self.unannounced.push(call.clone());
        }
        self.calls.push(Call::new(call, pending, CallState::Received));
    }

    /// Announces the calls that the model has made before this event, so that their parts precede what it writes
    /// now: a provider may refuse a history in another order.
    fn announce_before(&mut self, event: &AgentEvent) {
        if matches!(
            event,
            AgentEvent::TextEnd { .. } | AgentEvent::ReasoningEnd { .. } | AgentEvent::Metadata(_)
        ) {
            return;
        }
        for call in std::mem::take(&mut self.unannounced) {
            if call.executed_by == Executor::Client {
                self.streamed.entry(call.id.clone()).or_default();
            }
            self.actions.push_back(Action::Emit(AgentEvent::tool_input_start(call)));
        }
    }

    fn handle_validation(&mut self, id: &ToolCallId, result: Result<(), String>) {
        let Some(call) = self.call(id, CallState::ValidatingInput) else { return };
        let tool_call = call.tool_call.clone();
        let input = call.pending.input.clone();
        match result {
            Ok(()) => {
                call.state = CallState::DecidingApproval;
                let effect = Effect::DecideApproval(call.pending.clone());
                // A client executes the call when it reads this, so it has to be decided before.
                if tool_call.executed_by != Executor::Client {
                    self.emit(AgentEvent::tool_input(tool_call, input));
                }
                self.actions.push_back(Action::Start(effect));
            }
            Err(message) => {
                call.state = CallState::Finished;
                self.emit(AgentEvent::tool_input_invalid(tool_call, input, message));
            }
        }
    }

    /// Ends a call that is not permitted.
    fn refuse(&mut self, id: &ToolCallId) {
        let Some(call) = self.call(id, CallState::DecidingApproval) else { return };
        if call.tool_call.executed_by != Executor::Client {
            call.state = CallState::Refused;
            return;
        }
        let (call, input) = (call.tool_call.clone(), call.pending.input.clone());
        let event = AgentEvent::tool_input_invalid(call, input, UserText::NotPermitted);
        self.finish_call(id, event);
    }

    /// Writes which calls the user may not make, after the calls of the client: beside one of these it is a failure
    /// and not a denial.
    fn write_refusals(&mut self) {
        for call in self.calls.iter_mut().filter(|call| call.state == CallState::Refused) {
            call.state = CallState::Finished;
            let id = call.pending.tool_call_id.clone();
            let event = AgentEvent::tool_refused(id, UserText::NotPermitted);
            self.actions.push_back(Action::Emit(event));
        }
    }

    /// Announces a call that the client executes once it is approved: with its input as a streamed one.
    /// Returns `false` if the model has streamed another input.
    fn announce_to_approve(&mut self, call: ToolCall, input: &Json) -> bool {
        let id = call.id.clone();
        let input = input.as_str();
        let rest = match self.streamed.get(&id) {
            None => {
                self.emit(AgentEvent::tool_input_start(call));
                input
            }
            Some(text) => match input.strip_prefix(text.trim_start()) {
                Some(rest) => rest,
                None => return is_same(text, input),
            },
        };
        if !rest.is_empty() {
            self.emit(AgentEvent::tool_input_delta(id, rest.to_owned()));
        }
        true
    }

    fn handle_decision(&mut self, id: &ToolCallId, decision: CallDecision) {
        let Some(call) = self.call(id, CallState::DecidingApproval) else { return };
        call.state = match decision {
            CallDecision::NotPermitted => return self.refuse(id),
            CallDecision::ClientExecuted => CallState::Waiting,
            CallDecision::RequireApproval => CallState::NeedsApproval,
            CallDecision::RunLast => CallState::RunsLast,
            CallDecision::Run => CallState::Running,
        };
        let tool_call = call.tool_call.clone();
        let pending = call.pending.clone();
        if tool_call.executed_by == Executor::Client {
            if decision != CallDecision::RequireApproval {
                self.emit(AgentEvent::tool_input(tool_call, pending.input.clone()));
            } else if !self.announce_to_approve(tool_call.clone(), &pending.input) {
                let problem = "the input is not the one that was streamed".to_owned();
                let event = AgentEvent::tool_input_invalid(tool_call, pending.input, problem);
                return self.finish_call(id, event);
            }
        }
        if decision == CallDecision::Run {
            self.actions.push_back(Action::Start(Effect::RunTool(pending)));
        }
    }

    /// Returns whether calls are in this state, and all calls of the step are decided.
    fn can_start(&self, state: CallState) -> bool {
        self.has_call(state)
            && !self.has_call(CallState::ValidatingInput)
            && !self.has_call(CallState::DecidingApproval)
    }

    fn request_approvals(&mut self) {
        let mut pending = Vec::new();
        for call in self.calls.iter_mut().filter(|call| call.state == CallState::NeedsApproval) {
            call.state = CallState::RequestingApproval;
            pending.push(call.pending.clone());
        }
        self.actions.push_back(Action::Start(Effect::RequestApprovals(pending)));
    }

    fn handle_tool_event(&mut self, id: ToolCallId, event: ToolEvent) {
        let is_open = |call: &Call| {
            let is_call = call.pending.tool_call_id == id;
            is_call && matches!(call.state, CallState::RequestingApproval | CallState::Running)
        };
        if !self.calls.iter().any(is_open) {
            return;
        }
        match event {
            ToolEvent::Preliminary(output) => self.emit(AgentEvent::preliminary_output(id, output)),
            ToolEvent::Data(data) => self.emit(AgentEvent::Data(data)),
            ToolEvent::Source(source) => self.emit(AgentEvent::Source(source)),
            ToolEvent::File(file) => self.emit(AgentEvent::File(file)),
            ToolEvent::Output(output) => {
                self.finish_call(&id, AgentEvent::tool_output(id.clone(), output));
            }
            ToolEvent::Failed(message) => {
                self.finish_call(&id, AgentEvent::tool_failed(id.clone(), message))
            }
            ToolEvent::Suspended { calls, .. } => {
                if let Some(call) = self.call(&id, CallState::Running) {
                    call.state = CallState::Suspended;
                    self.inner_calls.extend(calls);
                }
            }
        }
    }

    fn finish_call(&mut self, id: &ToolCallId, event: AgentEvent) {
        let is_call = |call: &&mut Call| call.pending.tool_call_id == *id;
        self.calls.iter_mut().filter(is_call).for_each(|call| call.state = CallState::Finished);
        self.emit(event);
    }

    fn emit(&mut self, event: AgentEvent) {
        self.announce_before(&event);
        self.has_content |= is_content(&event);
        self.actions.push_back(Action::Emit(event));
    }

    fn call_model(&mut self) {
        if self.step >= self.max_steps {
            self.finish(FinishReason::ToolCalls, RunEnd::StepLimit);
            return;
        }
        self.step += 1;
        self.model = ModelState::Streaming;
        self.calls.clear();
        self.call_ids.next_step();
        self.left_out = 0;
        self.had_invalid_input = false;
        self.streamed.clear();
        self.start_step();
        self.actions.push_back(Action::Start(Effect::CallModel { step: self.step }));
    }

    fn start_step(&mut self) {
        self.emit(AgentEvent::StepStart);
        self.has_open_step = true;
    }

    /// Ends a step: the model has finished, and no tool is running.
    fn end_step(&mut self, reason: FinishReason) {
        if std::mem::take(&mut self.has_open_step) {
            self.emit(AgentEvent::StepFinish);
        }
        if !self.inner_calls.is_empty() {
            return self.start_inner_step();
        }
        if !self.has_content {
            if let Some(usage) = self.usage_metadata() {
                self.emit(AgentEvent::Metadata(usage));
            }
            self.emit(AgentEvent::error(UserText::AnswerEmpty));
            self.end = Some(RunEnd::Empty);
            return;
        }
        if self.resume_calls() {
            return;
        }
        let is_waiting = |call: &&Call| call.state == CallState::Waiting;
        let waiting: Vec<PendingToolCall> =
            self.calls.iter().filter(is_waiting).map(|call| call.pending.clone()).collect();
        if waiting.iter().any(|call| call.approval_id.is_some()) {
            self.finish(FinishReason::ToolCalls, RunEnd::AwaitingApproval { waiting });
        } else if !waiting.is_empty() {
            self.finish(FinishReason::ToolCalls, RunEnd::AwaitingClient { waiting });
        } else if self.has_results() {
            self.model = ModelState::NotCalled;
        } else if self.has_output_check && !is_cut(reason) {
            // The step made no calls, even if the finish reason is `tool-calls`.
            let reason = match reason {
                FinishReason::ToolCalls => FinishReason::Stop,
                reason => reason,
            };
            self.model = ModelState::CheckingOutput(reason);
            self.actions.push_back(Action::Start(Effect::CheckOutput));
        } else {
            self.finish(reason, RunEnd::Finished);
        }
    }

    fn finish(&mut self, reason: FinishReason, end: RunEnd) {
        let metadata = self.usage_metadata();
        self.actions.push_back(Action::Emit(AgentEvent::Finish { reason, metadata }));
        self.end = Some(end);
    }

    /// Returns the usage of the message, if it is requested.
    fn usage_metadata(&self) -> Option<Json> {
        let usage = UsageMetadata { usage: self.usage_before?.saturating_add(self.usage) };
        // Two numbers always serialize.
        Json::from_serialize(&usage).ok()
    }

    /// Returns whether there are results that the model has not read.
    fn has_results(&self) -> bool {
        !self.calls.is_empty() || self.had_invalid_input
    }

    /// Returns whether a call of this step is still being validated, decided, requested or run.
    fn is_busy(&self) -> bool {
        let is_busy = |call: &Call| {
            !matches!(call.state, CallState::Waiting | CallState::Suspended | CallState::Finished)
        };
        self.calls.iter().any(is_busy)
    }

    /// Returns whether a call of this step is in this state.
    fn has_call(&self, state: CallState) -> bool {
        self.calls.iter().any(|call| call.state == state)
    }

    /// Finds the call with this id if it is in this state.
    fn call(&mut self, id: &ToolCallId, state: CallState) -> Option<&mut Call> {
        self.calls.iter_mut().find(|call| call.pending.tool_call_id == *id && call.state == state)
    }
}

/// Removes what only this loop may say of a call: that it is made inside another one. The model would not read its
/// result.
fn without_outer_call(mut call: ToolCall) -> ToolCall {
    call.provider_metadata =
        call.provider_metadata.filter(|metadata| metadata.outer_call().is_none());
    call
}

/// Whether the user reads something of this event. An answer without such an event is empty, and an
/// agent reports [`UserText::AnswerEmpty`].
pub fn is_content(event: &AgentEvent) -> bool {
    match event {
        AgentEvent::TextDelta { delta, .. } | AgentEvent::ReasoningDelta { delta, .. } => {
            !delta.trim().is_empty()
        }
        AgentEvent::StepStart
        | AgentEvent::StepFinish
        | AgentEvent::TextStart { .. }
        | AgentEvent::ReasoningStart { .. }
        | AgentEvent::ReasoningEnd { .. }
        | AgentEvent::TextEnd { .. }
        | AgentEvent::Metadata(_) => false,
        AgentEvent::Chunk(chunk) => !matches!(
            **chunk,
            Chunk::TextStart { .. }
                | Chunk::TextEnd { .. }
                | Chunk::ReasoningStart { .. }
                | Chunk::ReasoningEnd { .. }
                | Chunk::MessageMetadata { .. }
                | Chunk::ResetStep {}
        ),
        _ => true,
    }
}

/// Returns whether two texts are the same JSON value.
fn is_same(one: &str, other: &str) -> bool {
    let value = |text| serde_json::from_str::<serde_json::Value>(text).ok();
    value(one).is_some_and(|one| value(other) == Some(one))
}

/// Returns whether the response of the model was cut short by a limit, a filter or an error.
fn is_cut(reason: FinishReason) -> bool {
    matches!(reason, FinishReason::Length | FinishReason::ContentFilter | FinishReason::Error)
}

/// How many calls of a step are left out, each with its error, before the response of the model is cut
/// off. None of its calls is executed then.
const MAX_LEFT_OUT: usize = 1_000;
