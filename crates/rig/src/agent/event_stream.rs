//! [`RigEventStream`]: converts the stream of a rig run to agent events.

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::rig_agent::agent::{MultiTurnStreamItem, StreamingResult};
use ::rig_agent::completion::PromptError;
use futures_core::Stream;
use rig_core::completion::Usage as Tokens;
use rig_core::message::{Origin, ToolResult};
use rig_core::streaming::{Item, StreamEvent};

use super::bus_task::BusTask;
use super::call_tracker::{CallTracker, CallUpdate};
use super::outcome;
use crate::model::{CallRequest, ModelCall, PartReader, finish_reason};
use ui_message_stream::approval::ToolOutcome;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::id::ToolCallId;
use ui_message_stream::json::Json;
use ui_message_stream::model::{Usage, UsageMetadata};
use ui_message_stream::{BoxError, UserText};
use ui_message_stream_agent::tool_loop::is_content;

/// The events of one turn.
pub(super) struct RigEventStream {
    /// `None` after the end of the run.
    items: Option<StreamingResult>,
    tracker: Arc<CallTracker>,
    parts: PartReader,
    step: ResponseState,
    /// The calls that the model made in this step.
    calls: Vec<ModelCall>,
    /// The calls that have an outcome.
    finished: HashSet<ToolCallId>,
    /// The model that produced the response before this step, if it is known.
    previous_origin: Option<Origin>,
    /// The number of approval requests of the provider that were not yet forwarded to the user.
    unforwarded_requests: usize,
    reason: FinishReason,
    max_output_bytes: usize,
    /// The name of the tool that rig adds if the structured output is the input of a call.
    output_tool: String,
    usage: Usage,
    has_usage_metadata: bool,
    /// Whether the user reads something of the answer.
    has_content: bool,
    /// Starts when the run starts.
    bus_task: Option<BusTask>,
    events: VecDeque<AgentEvent>,
    error: Option<BoxError>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseState {
    NotStarted,
    Streaming,
    /// The response of the model is complete, and its tools are being executed.
    Complete,
}

impl RigEventStream {
    pub(super) fn new(
        items: StreamingResult,
        tracker: Arc<CallTracker>,
        bus_task: Option<BusTask>,
    ) -> Self {
        RigEventStream { items: Some(items), tracker, bus_task, ..Self::with_error(None) }
    }

    /// Sets the maximum size of an output in bytes.
    pub(super) fn with_max_output_bytes(self, max_output_bytes: usize) -> Self {
        RigEventStream { max_output_bytes, ..self }
    }

    /// The answer has begun before this turn, so it is not empty if the turn adds nothing.
    pub(super) fn with_begun_answer(self, has_content: bool) -> Self {
        RigEventStream { has_content, ..self }
    }

    /// Sets the name of the tool that rig adds if the structured output is the input of a call.
    pub(super) fn with_output_tool(self, output_tool: String) -> Self {
        RigEventStream { output_tool, ..self }
    }

    /// Sets the calls whose results the first response may contain, by the provider's id.
    pub(super) fn with_awaited_calls(self, awaited_calls: HashMap<String, ToolCallId>) -> Self {
        RigEventStream { parts: PartReader::with_awaited_calls(awaited_calls), ..self }
    }

    /// Adds the message's token usage to its metadata. `before` is the usage of the message's
    /// earlier turns.
    pub(super) fn with_usage_metadata(self, before: Usage) -> Self {
        RigEventStream { usage: before, has_usage_metadata: true, ..self }
    }

    pub(super) fn failed(why: &'static str) -> Self {
        Self::with_error(Some(why.into()))
    }

    fn with_error(error: Option<BoxError>) -> Self {
        RigEventStream {
            items: None,
            tracker: Arc::default(),
            parts: PartReader::default(),
            step: ResponseState::NotStarted,
            calls: Vec::new(),
            finished: HashSet::new(),
            previous_origin: None,
            unforwarded_requests: 0,
            max_output_bytes: 0,
            output_tool: String::new(),
            reason: FinishReason::Other,
            usage: Usage::default(),
            has_usage_metadata: false,
            has_content: false,
            bus_task: None,
            events: VecDeque::new(),
            error,
        }
    }

    fn item(&mut self, item: MultiTurnStreamItem) {
        match item {
            MultiTurnStreamItem::StreamAssistantItem(item) => self.model_item(item),
            MultiTurnStreamItem::ToolResult { tool_result } => self.result(&tool_result),
            MultiTurnStreamItem::CompletionCall(call) => {
                self.step = ResponseState::Complete;
                let has_calls = self.calls.iter().any(|call| !self.finished.contains(&call.id));
                self.reason = finish_reason(call.finish_reason.as_ref(), has_calls);
                self.count(&call.usage);
            }
            MultiTurnStreamItem::FinalResponse(response) => self.final_response(response.output()),
            // The calls are in the model's response, and their outcomes come from the tracker.
            _ => {}
        }
    }

    /// Handles the final response of the run.
    ///
    /// A text that a hook has put in place of the response was not streamed. Neither was structured
    /// output that the model wrote as the input of rig's output tool.
    fn final_response(&mut self, answer: String) {
        if self.finish_output_tool() {
            // The text is a separate step, as after any tool call: a client may send the next
            // request automatically if all calls of the last step have results.
            self.end_step();
            self.emit(AgentEvent::StepStart);
            self.emit(AgentEvent::text(answer));
            self.reason = FinishReason::Stop;
        } else if answer.trim() != self.parts.text().trim() && !answer.trim().is_empty() {
            // The texts are compared because rig does not report that a hook has replaced a
            // response: the hooks after it, and the final response, hold only the replacement.
            self.end_texts();
            self.emit(AgentEvent::text(answer));
        }
        self.finish(self.reason);
    }

    /// Emits the result of the output tool, whose input is the response: rig does not dispatch that
    /// call. Returns `false` if the last response has no such call.
    fn finish_output_tool(&mut self) -> bool {
        // rig takes the first of several such calls.
        let is_output = |call: &&ModelCall| call.call.function.name == *self.output_tool;
        let Some(call) = self.calls.iter().find(is_output) else { return false };
        let Ok(input) = Json::from_serialize(&call.call.function.arguments) else { return false };
        let id = call.id.clone();
        let call = self.parts.tool_call(call);
        self.end_texts();
        self.emit(AgentEvent::tool_input(call, input));
        self.mark_finished(&id);
        self.emit_outcome(id, ToolOutcome::Output(Json::string(OUTPUT_TOOL_RESULT)));
        true
    }

    fn model_item(&mut self, item: Item<StreamEvent>) {
        if !matches!(item, Item::Event(_)) {
            return;
        }
        if self.step != ResponseState::Streaming {
            self.end_step();
            self.step = ResponseState::Streaming;
            self.parts.begin();
            self.calls.clear();
            self.tracker.begin_step();
            self.emit(AgentEvent::StepStart);
        }
        match self.parts.handle_item(item, &mut self.events) {
            Some(CallRequest::ToolCall(call)) => {
                self.tracker.add_call(&call);
                self.calls.push(call);
            }
            Some(CallRequest::RepeatedCall(call)) => {
                self.tracker.add_call(&call);
                self.tracker.mark_repeated(&call.id);
                self.calls.push(call);
            }
            // The hook requests approval once the response is complete.
            Some(CallRequest::ProviderApproval(_)) => self.unforwarded_requests += 1,
            None => {}
        }
    }

    fn apply_update(&mut self, update: CallUpdate) {
        match update {
            CallUpdate::ResponseCompleted(origin, texts) => {
                self.parts.set_origin(*origin);
                self.end_texts();
                for text in &texts {
                    self.events.extend(self.parts.late_sources(text));
                }
            }
            CallUpdate::PreviousOrigin(origin) => self.previous_origin = Some(*origin),
            CallUpdate::Called { id, tool, input } => {
                let call = self.tool_call(id, tool);
                self.emit(AgentEvent::tool_input(call, input));
            }
            CallUpdate::InvalidInput { id, tool, input, why } => {
                self.mark_finished(&id);
                let call = self.tool_call(id, tool);
                self.emit(AgentEvent::tool_input_invalid(call, Json::string(&input), why));
            }
            CallUpdate::ProviderApprovalRequest(call, Ok(input)) => {
                self.unforwarded_requests = self.unforwarded_requests.saturating_sub(1);
                self.emit(AgentEvent::tool_input(*call, input));
            }
            CallUpdate::ProviderApprovalRequest(call, Err((input, why))) => {
                self.unforwarded_requests = self.unforwarded_requests.saturating_sub(1);
                self.emit(AgentEvent::tool_input_invalid(*call, Json::string(&input), why));
            }
            CallUpdate::ApprovalRequested(id, issued) => self.emit(issued.event(id)),
            CallUpdate::Refused(id) => {
                if self.mark_finished(&id) {
                    self.emit(AgentEvent::tool_refused(id, UserText::NotPermitted));
                }
            }
            CallUpdate::Finished(id, outcome) => {
                if self.mark_finished(&id) {
                    self.emit_outcome(id, outcome);
                }
            }
        }
    }

    /// Handles a result that rig shows. Emits it unless the tracker has already reported an
    /// outcome. The tracker does not report calls with invalid arguments.
    fn result(&mut self, result: &ToolResult) {
        let Some(id) = self.tracker.next_result_id(&result.call) else { return };
        if self.tracker.is_awaiting_approval(&id) || !self.mark_finished(&id) {
            return;
        }
        self.end_texts();
        let Some(call) = self.call(&id) else { return };
        let function = &call.call.function;
        let tool_call = self.parts.tool_call(call);
        if let Some(arguments) = &function.invalid_arguments {
            let input = Json::string(arguments);
            let why = outcome::error_text(&result.content);
            self.emit(AgentEvent::tool_input_invalid(tool_call, input, why));
            return;
        }
        if let Ok(input) = Json::from_serialize(&function.arguments)
            && !self.tracker.is_announced(&id)
        {
            self.emit(AgentEvent::tool_input(tool_call, input));
        }
        let outcome = if result.is_error {
            ToolOutcome::Failed(outcome::error_text(&result.content))
        } else {
            outcome::output(&result.content, self.max_output_bytes)
        };
        self.emit_outcome(id, outcome);
    }

    fn emit_outcome(&mut self, id: ToolCallId, outcome: ToolOutcome) {
        self.emit(match outcome {
            ToolOutcome::Output(output) => AgentEvent::tool_output(id, output),
            ToolOutcome::Failed(why) => AgentEvent::tool_failed(id, why),
            ToolOutcome::HandedToClient(input) => {
                AgentEvent::HandedToClient { tool_call_id: id, input }
            }
        });
    }

    /// Records that a call has an outcome. Returns `false` if it already had one.
    fn mark_finished(&mut self, id: &ToolCallId) -> bool {
        self.finished.insert(id.clone())
    }

    fn call(&self, id: &ToolCallId) -> Option<&ModelCall> {
        self.calls.iter().find(|call| call.id == *id)
    }

    fn tool_call(&mut self, id: ToolCallId, tool: String) -> ToolCall {
        self.end_texts();
        match self.call(&id) {
            Some(call) => self.parts.tool_call(call),
            None => ToolCall::new(id, tool),
        }
    }

    fn end_texts(&mut self) {
        // rig reports no model for a response that a hook has changed.
        if let Some(origin) = self.previous_origin.clone().filter(|_| !self.parts.has_origin()) {
            self.parts.set_origin(origin);
        }
        self.parts.finish(&mut self.events);
    }

    fn end_step(&mut self) {
        self.end_texts();
        if self.step != ResponseState::NotStarted {
            self.emit(AgentEvent::StepFinish);
        }
    }

    fn finish(&mut self, reason: FinishReason) {
        self.items = None;
        self.end_step();
        if self.unforwarded_requests > 0 {
            self.error = Some(REQUEST_NOT_FORWARDED.into());
            return;
        }
        if !self.has_content && !self.events.iter().any(is_content) {
            self.emit(AgentEvent::error(UserText::AnswerEmpty));
            return;
        }
        let reason = match reason {
            // rig does not know about the approval request.
            FinishReason::Stop if self.tracker.has_pending_approvals() => FinishReason::ToolCalls,
            reason => reason,
        };
        let usage = self.has_usage_metadata.then_some(UsageMetadata { usage: self.usage });
        // Two numbers always serialize.
        let metadata = usage.and_then(|usage| Json::from_serialize(&usage).ok());
        self.emit(AgentEvent::Finish { reason, metadata });
    }

    fn fail(&mut self, error: PromptError) {
        self.items = None;
        match error {
            // Independent of who stopped the run: the approval requests wait for responses.
            PromptError::Cancelled { reason, .. } if self.tracker.has_pending_approvals() => {
                tracing::info!(reason, "the run ends where a person is asked");
                self.finish(FinishReason::ToolCalls);
            }
            PromptError::MaxTurns { .. } => self.finish(FinishReason::ToolCalls),
            PromptError::Cancelled { reason, .. } => {
                tracing::info!(reason, "a hook or a handler stopped the run");
                self.end_texts();
                self.emit(AgentEvent::Abort { reason: None });
            }
            error => self.error = Some(error.into()),
        }
    }

    fn count(&mut self, tokens: &Tokens) {
        self.usage = self.usage.saturating_add(Usage {
            input_tokens: tokens.input_tokens.unwrap_or(0),
            output_tokens: tokens.output_tokens.unwrap_or(0),
        });
    }

    fn emit(&mut self, event: AgentEvent) {
        self.events.push_back(event);
    }
}

impl Stream for RigEventStream {
    type Item = Result<AgentEvent, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(event) = this.events.pop_front() {
                this.has_content |= is_content(&event);
                return Poll::Ready(Some(Ok(event)));
            }
            if let Some(error) = this.error.take() {
                return Poll::Ready(Some(Err(error)));
            }
            let Some(items) = &mut this.items else {
                return Poll::Ready(None);
            };
            if let Some(bus_task) = this.bus_task.take() {
                bus_task.start();
            }
            let polled = items.as_mut().poll_next(cx);
            // The hook's reports precede the item that rig returns now.
            let tracker = Arc::clone(&this.tracker);
            while let Some(update) = tracker.next() {
                this.apply_update(update);
            }
            match polled {
                Poll::Ready(Some(Ok(item))) => this.item(item),
                Poll::Ready(Some(Err(error))) => this.fail(error),
                Poll::Ready(None) => {
                    this.items = None;
                    this.error = Some(TRUNCATED.into());
                }
                Poll::Pending if this.events.is_empty() => return Poll::Pending,
                Poll::Pending => {}
            }
        }
    }
}

/// The output of the call whose input is the response.
const OUTPUT_TOOL_RESULT: &str = "This is the answer.";

/// The error if a hook has changed or replaced the response with the approval request.
const REQUEST_NOT_FORWARDED: &str =
    "the provider asks before it runs a tool, and the run asked nobody";

const TRUNCATED: &str = "the agent's stream ended before the answer did";
