//! [`AgentRun`]: one turn of an agent that is executing. It performs the effects of the
//! [`ToolLoop`] and passes the resulting inputs back to it.

use std::collections::{HashMap, VecDeque};
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready as poll_ready};

use futures_util::{FutureExt, Stream, StreamExt, stream};
use tracing::{Instrument, Span};

use super::inner_calls::{InnerCalls, Resumed, approval_of, last_round, result_in};
use super::model_inputs::ModelInputs;
use super::settings::Settings;
use super::structured_output::StructuredOutput;
use super::telemetry::{record_failure, record_usage, run_span, step_span};
use super::tool_error::cannot_ask;
use super::tool_run::ToolRun;
use super::tool_set::ToolSet;
use super::transcript::{Transcript, model_messages};
use crate::metrics::count_tokens;
use crate::tool_loop::{
    Action, CallDecision, Effect, InnerCall, Input, RunEnd, ToolEvent, ToolLoop,
};
use ui_message_stream::BoxError;
use ui_message_stream::UserText;
use ui_message_stream::approval::{
    CallToApprove, DeferredOutcome, DeferredToolResult, DeferredToolResults, OuterCall,
    PendingToolCall, ToolOutcome, log_refused,
};
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ApprovalRequestDetails};
use ui_message_stream::id::{ToolCallId, log_causes};
use ui_message_stream::json::Json;
use ui_message_stream::message::{ToolPart, UiMessage};
use ui_message_stream::model::Usage;
use ui_message_stream::model::{ModelMessage, ModelRequest};
use ui_message_stream_chat::{Chat, Turn};

/// The inputs that one effect produces.
type InputStream = Pin<Box<dyn Stream<Item = Input> + Send>>;

/// An effect that was started.
struct RunningEffect {
    is_model_call: bool,
    inputs: InputStream,
}

/// Who decides about the calls of a run that need an approval.
#[derive(Debug, Clone)]
pub(super) enum Approver {
    /// The user of the chat, by its ledger.
    User,
    /// The run is the tool of a call, whose chat asks.
    OuterCall(InnerCalls),
    /// The run is the tool of a call that the user has approved itself: the calls fail.
    None,
}

/// Where a run stands, and what it goes on with.
pub(super) struct Inside {
    pub(super) approver: Approver,
    /// The states of suspended calls that the ledger does not keep.
    pub(super) suspended: HashMap<ToolCallId, Json>,
    /// How many model calls it has made before.
    pub(super) steps: u32,
}

impl Inside {
    /// A run that answers the user.
    pub(super) fn of_user() -> Self {
        Inside { approver: Approver::User, suspended: HashMap::new(), steps: 0 }
    }
}

/// One turn that is executing.
pub(super) struct AgentRun {
    settings: Arc<Settings>,
    /// The tools of the agent and of the request.
    tools: ToolSet,
    tool_loop: ToolLoop,
    turn: Arc<Turn>,
    transcript: Transcript,
    effects: VecDeque<RunningEffect>,
    /// Who decides about the calls.
    approver: Approver,
    /// The states of the suspended calls of this run, and of those that the run goes on with.
    suspended: HashMap<ToolCallId, Json>,
    /// The calls inside them: the outer call of each, and the agents that ask.
    inner: HashMap<ToolCallId, (PendingToolCall, Vec<Box<str>>)>,
    /// What was wrong with the structured output, until the model is called again.
    output_problem: Option<String>,
    end: Option<RunEnd>,
    /// The span of the run.
    span: Span,
    /// The span of the current step, inside `span`.
    step_span: Span,
}

impl AgentRun {
    /// Creates the run that answers this turn.
    pub(super) fn new(settings: Arc<Settings>, tools: ToolSet, turn: Turn, inside: Inside) -> Self {
        let Inside { approver, suspended, steps } = inside;
        let mut tool_loop = ToolLoop::new(settings.max_steps)
            .with_max_step_calls(settings.max_step_calls)
            .with_known_call_ids(call_ids(&turn))
            .with_prior_steps(steps)
            .with_suspended_calls(suspended_calls(&turn));
        if settings.output.is_some() {
            tool_loop = tool_loop.with_output_check();
        }
        if settings.has_usage_metadata {
            tool_loop = tool_loop.with_usage_metadata(turn.prior_usage());
        }
        let mut transcript = Transcript::new(&turn);
        if !transcript.current_message().parts.is_empty() {
            tool_loop = tool_loop.with_begun_answer();
        }
        AgentRun {
            tools,
            tool_loop,
            span: run_span(&*settings.model, &turn.chat.id),
            step_span: Span::none(),
            transcript,
            turn: Arc::new(turn),
            effects: VecDeque::new(),
            approver,
            suspended,
            inner: HashMap::new(),
            output_problem: None,
            end: None,
            settings,
        }
    }

    /// Returns how the run has ended. `None` before its end.
    pub(super) fn end(&self) -> Option<&RunEnd> {
        self.end.as_ref()
    }

    /// Returns the chat with what the run has written, the states of its suspended calls, and how many
    /// model calls it has made.
    pub(super) fn into_chat(mut self) -> (Chat, HashMap<ToolCallId, Json>, u32) {
        let chat = self.transcript.chat().clone();
        (chat, std::mem::take(&mut self.suspended), self.tool_loop.steps())
    }

    /// Keeps what a suspended call needs to ask and to go on, and gives its calls their titles.
    fn keep_suspended(&mut self, id: &ToolCallId, event: &mut ToolEvent) {
        let ToolEvent::Suspended { state, calls } = event else { return };
        let Some(outer) = self.tool_loop.running_call(id).cloned() else { return };
        self.suspended.insert(id.clone(), state.clone());
        for InnerCall { call, agents, .. } in calls {
            call.title = self.tools.title(&call.tool_name);
            self.inner.insert(call.id.clone(), (outer.clone(), agents.clone()));
        }
    }

    /// Starts the tool of a call again, with the results of the calls that it has asked for last.
    fn resume(&mut self, call: PendingToolCall) -> InputStream {
        let outer = call.tool_call_id.on_wire();
        let message = self.transcript.current_message().clone();
        let asked = message.tool_parts().filter(|part| part.outer_call().as_ref() == Some(&outer));
        let asked = asked.count();
        let tools = self.tools.clone();
        let turn = Arc::clone(&self.turn);
        let kept = self.suspended.remove(&call.tool_call_id);
        let run = async move {
            let round = last_round(&message, &outer);
            let outcomes = &turn.chat.call_outcomes;
            let resumed = match kept {
                Some(state) => {
                    let results =
                        round.iter().filter_map(|part| result_in(&message, part, outcomes));
                    Some((state, results.collect()))
                }
                None => take_outer_call(&turn, &call, &message, &round).await,
            };
            let Some((state, results)) = resumed else {
                return ToolRun::failed(call.tool_call_id, UserText::OutcomeUnknown.text());
            };
            // The message may be the word of a client, and what is permitted may have changed.
            let may_run = tools.validate_input(&call.tool_name, &call.input).is_ok()
                && tools.decide(&call, Arc::clone(&turn.chat)).await == CallDecision::RunLast;
            if may_run {
                let resumed = Resumed::new(outer, state, results, asked);
                tools.run(call, &turn, Some(Arc::new(resumed)))
            } else {
                ToolRun::failed(call.tool_call_id, UserText::NotPermitted.text())
            }
        };
        Box::pin(run.in_current_span().flatten_stream())
    }

    /// Starts an effect. A call is decided before the next one is announced: the client's are announced when they are
    /// decided, and the calls of a step keep their order.
    fn start(&mut self, effect: Effect) {
        if let Effect::CallModel { step } = effect {
            self.step_span = step_span(&self.span, step);
        }
        let _entered = self.step_span.clone().entered();
        let is_model_call = matches!(effect, Effect::CallModel { .. });
        let is_decision = matches!(effect, Effect::DecideApproval(_));
        let effect = RunningEffect { is_model_call, inputs: self.perform(effect) };
        if is_decision { self.effects.push_front(effect) } else { self.effects.push_back(effect) }
    }

    /// Performs an effect and returns the inputs that it produces.
    fn perform(&mut self, effect: Effect) -> InputStream {
        let AgentRun {
            settings,
            tools,
            turn,
            transcript,
            approver,
            suspended,
            inner,
            output_problem,
            ..
        } = self;
        match effect {
            Effect::CallModel { step } => {
                let chat = transcript.chat();
                let problem = output_problem.take();
                if step == 1 || turn.chat.open_approvals().is_empty() {
                    return call_model(settings, tools, chat, &turn.deferred, step, problem);
                }
                // The calls of older messages may have results since the last step.
                let settings = Arc::clone(settings);
                let tools = tools.clone();
                let chat = chat.clone();
                let turn = Arc::clone(turn);
                let calling = async move {
                    match turn.newest_results().await {
                        Ok(deferred) => {
                            call_model(&settings, &tools, &chat, &deferred, step, problem)
                        }
                        Err(error) => {
                            let error = log_causes(&error);
                            tracing::error!(error, "the results of open calls cannot be read");
                            single_input(ready(Input::ModelFailed(UserText::AnswerFailed.into())))
                        }
                    }
                };
                Box::pin(calling.in_current_span().flatten_stream())
            }
            Effect::ValidateInput(call) => {
                let result = tools.validate_input(&call.tool_name, &call.input);
                single_input(ready(Input::InputValidated {
                    tool_call_id: call.tool_call_id,
                    result,
                }))
            }
            Effect::DecideApproval(call) => {
                let tools = tools.clone();
                let chat = if tools.approval_depends_on_call(&call.tool_name) {
                    Arc::new(transcript.chat_without_call(&call.tool_call_id))
                } else {
                    Arc::clone(&turn.chat)
                };
                single_input(async move {
                    let decision = tools.decide(&call, chat).await;
                    Input::ApprovalDecided { tool_call_id: call.tool_call_id, decision }
                })
            }
            Effect::RequestApprovals(calls) => {
                let tools = tools.clone();
                let turn = Arc::clone(turn);
                let asked_by = |call: &PendingToolCall| inner.get(&call.tool_call_id);
                let outer = match approver {
                    Approver::User => {
                        let with_outer = |call: PendingToolCall| {
                            let outer = asked_by(&call).and_then(|(outer, agents)| {
                                let state = suspended.get(&outer.tool_call_id)?.clone();
                                let PendingToolCall { tool_call_id: id, tool_name, input, .. } =
                                    outer;
                                Some(OuterCall::new(id, tool_name, input, agents.clone(), state))
                            });
                            (call, outer)
                        };
                        let calls = calls.into_iter().map(with_outer).collect();
                        let requested =
                            async move { request_approvals(&tools, &turn, calls).await };
                        let inputs = stream::once(requested.in_current_span());
                        return Box::pin(inputs.flat_map(stream::iter));
                    }
                    Approver::OuterCall(outer) => Some(&*outer),
                    Approver::None => None,
                };
                let asked = calls.into_iter().map(|call| {
                    let agents = asked_by(&call).map(|(_, agents)| &**agents).unwrap_or_default();
                    ask_outer(outer, agents, call)
                });
                Box::pin(stream::iter(asked.collect::<Vec<Input>>()))
            }
            Effect::RunTool(call) => Box::pin(tools.run(call, turn, None)),
            Effect::ResumeTool(call) => self.resume(call),
            Effect::CheckOutput => {
                let checked = match &settings.output {
                    Some(output) => output.check(transcript.current_message()).map(drop),
                    None => Ok(()),
                };
                let checked = checked.map_err(|why| {
                    *output_problem = Some(why);
                    UserText::AnswerOfWrongType.into()
                });
                single_input(ready(Input::OutputChecked(checked)))
            }
        }
    }

    /// Polls the effects for the next input. Returns `None` if no effect is running.
    fn poll_effects(&mut self, cx: &mut Context<'_>) -> Poll<Option<Input>> {
        let mut index = 0;
        while let Some(effect) = self.effects.get_mut(index) {
            match effect.inputs.as_mut().poll_next(cx) {
                Poll::Ready(Some(input)) => {
                    // Move the effect to the back: an effect with many inputs must not delay the
                    // others.
                    if index + 1 < self.effects.len() {
                        let effect = self.effects.remove(index);
                        self.effects.extend(effect);
                    }
                    return Poll::Ready(Some(input));
                }
                Poll::Ready(None) => drop(self.effects.remove(index)),
                Poll::Pending => index += 1,
            }
        }
        if self.effects.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    }
}

// The usage is recorded on drop, which covers every way a run can end: a consumer that received the
// last event may not poll again.
impl Drop for AgentRun {
    fn drop(&mut self) {
        let usage = self.tool_loop.usage();
        if usage == Usage::default() {
            return;
        }
        record_usage(&self.span, usage);
        let (model, Usage { input_tokens, output_tokens }) = (&self.settings.model, usage);
        count_tokens(model.provider(), model.name(), input_tokens, output_tokens);
    }
}

impl Stream for AgentRun {
    type Item = Result<AgentEvent, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            match this.tool_loop.poll() {
                Action::Emit(event) => {
                    if let AgentEvent::Error { .. }
                    | AgentEvent::Finish { reason: FinishReason::Interrupted, .. } = event
                    {
                        record_failure(&this.span, "run");
                    }
                    this.transcript.record(&event);
                    return Poll::Ready(Some(Ok(event)));
                }
                Action::Start(effect) => this.start(effect),
                Action::Wait => {
                    match poll_ready!(this.poll_effects(cx)) {
                        Some(mut input) => {
                            if let Input::Tool { tool_call_id, event } = &mut input {
                                this.keep_suspended(tool_call_id, event);
                            }
                            this.tool_loop.handle(input);
                            if !this.tool_loop.is_reading_model() {
                                this.effects.retain(|effect| !effect.is_model_call);
                            }
                        }
                        // Every effect produces a final input. If one did not, the stream ends
                        // here, and open parts are closed as for any stream that ends.
                        None => return Poll::Ready(None),
                    }
                }
                Action::End(end) => {
                    if end == RunEnd::Empty {
                        tracing::warn!("the model gave an empty answer");
                    }
                    this.end = Some(end);
                    return Poll::Ready(None);
                }
            }
        }
    }
}

/// Calls the model with the messages of a chat.
fn call_model(
    settings: &Settings,
    tools: &ToolSet,
    chat: &Chat,
    deferred: &DeferredToolResults,
    step: u32,
    output_problem: Option<String>,
) -> InputStream {
    let mut messages = model_messages(chat, deferred, step, tools);
    messages.extend(output_problem.map(ModelMessage::user));
    let mut request = ModelRequest::new(messages);
    request.instructions = settings.instructions.clone();
    request.tools = tools.definitions();
    request.output = settings.output.as_ref().map(StructuredOutput::schema);
    Box::pin(ModelInputs::new(&*settings.model, request, tools.clone(), &chat.id))
}

/// Returns the ids of the calls in the chat. The result of a call that the client executes refers
/// to the call by its id alone, so ids must stay unique.
fn call_ids(turn: &Turn) -> impl Iterator<Item = ToolCallId> {
    let parts = turn.chat.messages.iter().flat_map(UiMessage::tool_parts);
    parts.map(|part| part.tool_call_id.clone())
}

/// Requests the approval of calls from the user, and returns the input for the loop of each.
async fn request_approvals(
    tools: &ToolSet,
    turn: &Turn,
    mut calls: Vec<(PendingToolCall, Option<OuterCall>)>,
) -> Vec<Input> {
    // The agent inside may know other tools than this one.
    let mut inputs = Vec::new();
    let mut refused = Vec::new();
    for (at, (call, outer)) in calls.iter().enumerate() {
        if outer.is_some()
            && let Err(problem) = tools.check_asked(call, &turn.principal).await
        {
            refused.push(at);
            let tool_call_id = call.tool_call_id.clone();
            let event = ToolEvent::Failed(problem);
            inputs.push(Input::Tool { tool_call_id, event });
        }
    }
    for at in refused.into_iter().rev() {
        calls.remove(at);
    }
    let to_approve = calls.iter().map(|(call, outer)| {
        let PendingToolCall { tool_call_id, tool_name, input, provider_executed, .. } = call;
        let to_approve = CallToApprove::new(tool_call_id.clone(), tool_name.clone(), input.clone());
        let to_approve = match outer.clone() {
            Some(outer) => to_approve.inside(outer),
            None => to_approve,
        };
        if *provider_executed {
            return to_approve.provider_executed();
        }
        match tools.approval_description(tool_name, input) {
            Some(description) => to_approve.with_description(description),
            None => to_approve,
        }
    });
    let requested = turn.approvals.request_approvals(&turn.message_id, to_approve.collect()).await;
    log_refused(&requested);
    inputs.extend(calls.into_iter().zip(requested).map(|((call, _), issued)| {
        let tool_call_id = call.tool_call_id;
        match issued {
            Ok(issued) => Input::ApprovalRequested {
                tool_call_id,
                details: Some(issued.details()),
                approval_id: issued.approval_id,
            },
            Err(error) => {
                Input::Tool { tool_call_id, event: ToolEvent::Failed(error.error_text()) }
            }
        }
    }));
    inputs
}

/// Has the outer call ask for a call of this run.
fn ask_outer(outer: Option<&InnerCalls>, agents: &[Box<str>], call: PendingToolCall) -> Input {
    let PendingToolCall { tool_call_id, tool_name, input, provider_executed, .. } = call;
    let Some(outer) = outer.filter(|_| !provider_executed) else {
        let event = ToolEvent::Failed(cannot_ask().0);
        return Input::Tool { tool_call_id, event };
    };
    let wire_id = tool_call_id.on_wire();
    let asked = outer.add(&wire_id, &tool_name, agents, input);
    // A changed input is written there.
    let descriptor = Json::parse("{}").ok();
    let details = ApprovalRequestDetails { descriptor, ..ApprovalRequestDetails::default() };
    let approval_id = asked.as_str().into();
    let details = Some(Box::new(details));
    Input::ApprovalRequested { tool_call_id, approval_id, details }
}

/// Takes the state of a call, and the results of the calls that it has asked for last.
async fn take_outer_call(
    turn: &Turn,
    call: &PendingToolCall,
    message: &UiMessage,
    round: &[&ToolPart],
) -> Option<(Json, Vec<DeferredToolResult>)> {
    let outcomes = &turn.chat.call_outcomes;
    let asked = round.iter().filter_map(|part| approval_of(message, part, outcomes));
    let taken = turn.approvals.take_outer_call(call, &asked.collect::<Vec<_>>()).await;
    let taken = taken.unwrap_or_else(|error| {
        let error = log_causes(&error);
        tracing::error!(error, "the state of a waiting call cannot be read");
        None
    })?;
    let mut results = taken.results;
    // What was not asked has only its error, which no ledger knows.
    let refused = round.iter().filter(|part| approval_of(message, part, outcomes).is_none());
    results.extend(refused.filter_map(|part| result_in(message, part, outcomes)).filter(
        |result| {
            matches!(result.outcome, DeferredOutcome::Executed { outcome: ToolOutcome::Failed(_) })
        },
    ));
    Some((taken.state, results))
}

/// Returns the calls of the message whose tools have waited for calls inside them, which have results now.
fn suspended_calls(turn: &Turn) -> Vec<PendingToolCall> {
    let message = turn.chat.message(&turn.message_id);
    let calls = message.map(UiMessage::answered_outer_calls).unwrap_or_default().into_iter();
    calls.map(PendingToolCall::of_part).collect()
}

/// Returns a stream of one input, within the current span.
fn single_input(input: impl Future<Output = Input> + Send + 'static) -> InputStream {
    Box::pin(stream::once(input.in_current_span()))
}
