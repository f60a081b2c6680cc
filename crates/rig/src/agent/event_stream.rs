//! [`RigTurn`]: what rig streams in a run, as what an agent says.

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
use serde_json::Value;

use super::bus_task::Drive;
use super::call_tracker::{Board, News};
use super::outcome;
use crate::model::{Ended, MadeCall, Parts, finish_reason};
use ui_message_stream::approval::ToolOutcome;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::id::ToolCallId;
use ui_message_stream::json::Json;
use ui_message_stream::run::{Usage, UsageMetadata};
use ui_message_stream::stream::BoxError;

/// One turn under way.
pub(super) struct RigTurn {
    /// `None` once it has ended.
    items: Option<StreamingResult>,
    board: Arc<Board>,
    parts: Parts,
    step: StepState,
    /// The calls that the model made in the step.
    calls: Vec<MadeCall>,
    /// The calls that have their end.
    settled: HashSet<ToolCallId>,
    /// Which model gave the answer before this step, if that is known.
    origin_before: Option<Origin>,
    /// How many questions of the provider nobody was asked yet.
    not_asked: usize,
    reason: FinishReason,
    most_output_bytes: usize,
    usage: Usage,
    tells_usage: bool,
    /// Begins to serve the run when the run begins.
    drive: Option<Drive>,
    said: VecDeque<AgentEvent>,
    failed: Option<BoxError>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepState {
    NotBegun,
    Speaks,
    /// The model has said everything; its tools run.
    Spoken,
}

impl RigTurn {
    pub(super) fn of(items: StreamingResult, board: Arc<Board>, drive: Option<Drive>) -> Self {
        RigTurn { items: Some(items), board, drive, ..Self::failed_with(None) }
    }

    /// An output may have so many bytes.
    pub(super) fn holding(self, most_output_bytes: usize) -> Self {
        RigTurn { most_output_bytes, ..self }
    }

    /// The first answer may say what came of these calls, by what the provider calls them.
    pub(super) fn awaiting(self, awaited: HashMap<String, ToolCallId>) -> Self {
        RigTurn { parts: Parts::awaiting(awaited), ..self }
    }

    /// Says in the end what the message cost, of which this much was told before.
    pub(super) fn telling_usage(self, before: Usage) -> Self {
        RigTurn { usage: before, tells_usage: true, ..self }
    }

    pub(super) fn failed(why: &'static str) -> Self {
        Self::failed_with(Some(why.into()))
    }

    fn failed_with(failed: Option<BoxError>) -> Self {
        RigTurn {
            items: None,
            board: Arc::default(),
            parts: Parts::default(),
            step: StepState::NotBegun,
            calls: Vec::new(),
            settled: HashSet::new(),
            origin_before: None,
            not_asked: 0,
            most_output_bytes: 0,
            reason: FinishReason::Other,
            usage: Usage::default(),
            tells_usage: false,
            drive: None,
            said: VecDeque::new(),
            failed,
        }
    }

    fn item(&mut self, item: MultiTurnStreamItem) {
        match item {
            MultiTurnStreamItem::StreamAssistantItem(item) => self.model_says(item),
            MultiTurnStreamItem::ToolResult { tool_result } => self.result(&tool_result),
            MultiTurnStreamItem::CompletionCall(call) => {
                self.step = StepState::Spoken;
                let has_calls = self.calls.iter().any(|made| !self.settled.contains(&made.id));
                self.reason = finish_reason(call.finish_reason.as_ref(), has_calls);
                self.count(&call.usage);
            }
            MultiTurnStreamItem::FinalResponse(response) => self.answered(response.output()),
            // The calls stand in what the model says, and what became of them on the board.
            _ => {}
        }
    }

    /// The answer is given. What a hook put in its place was not streamed, nor was what the model
    /// wrote as the input of rig's own tool for an answer in a structure.
    fn answered(&mut self, answer: String) {
        if self.settle_output_tool(&answer) {
            // A step of its own, as after any call: a client may go on by itself where the calls of
            // the last step have their results.
            self.end_step();
            self.say(AgentEvent::StepStart);
            self.say(AgentEvent::text(answer));
            self.reason = FinishReason::Stop;
        } else if answer.trim() != self.parts.text().trim() && !answer.trim().is_empty() {
            self.end_texts();
            self.say(AgentEvent::text(answer));
        }
        self.finish(self.reason);
    }

    /// rig does not dispatch the call whose input is the answer; `false` if there is none.
    fn settle_output_tool(&mut self, answer: &str) -> bool {
        let Ok(Value::Object(answer)) = serde_json::from_str(answer) else { return false };
        let is_answer = |made: &&MadeCall| {
            made.call.function.arguments == answer
                && !self.settled.contains(&made.id)
                && !self.board.is_called(&made.id)
        };
        let Some(made) = self.calls.iter().find(is_answer) else { return false };
        let (id, call) = (made.id.clone(), self.parts.announced(made));
        let Ok(input) = Json::of(&answer) else { return false };
        self.end_texts();
        self.say(AgentEvent::tool_input(call, input));
        self.settle(&id);
        self.became(id, ToolOutcome::Output(Json::string(ANSWERED)));
        true
    }

    fn model_says(&mut self, item: Item<StreamEvent>) {
        if !matches!(item, Item::Event(_)) {
            return;
        }
        if self.step != StepState::Speaks {
            self.end_step();
            self.step = StepState::Speaks;
            self.parts.begin();
            self.calls.clear();
            self.board.begin_step();
            self.say(AgentEvent::StepStart);
        }
        match self.parts.take(item, &mut self.said) {
            Some(Ended::Call(made)) => {
                self.board.made(&made);
                self.calls.push(made);
            }
            // The hook asks, once the answer is whole.
            Some(Ended::Asks(_)) => self.not_asked += 1,
            None => {}
        }
    }

    fn news(&mut self, news: News) {
        match news {
            News::Answered(origin, texts) => {
                self.parts.are_of(*origin);
                self.end_texts();
                for text in &texts {
                    self.said.extend(self.parts.late_sources(text));
                }
            }
            News::AnsweredBefore(origin) => self.origin_before = Some(*origin),
            News::Called { id, tool, input } => {
                let call = self.announced(id, tool);
                self.say(AgentEvent::tool_input(call, input));
            }
            News::NotShown { id, tool, input, why } => {
                self.settle(&id);
                let call = self.announced(id, tool);
                self.say(AgentEvent::tool_input_invalid(call, Json::string(&input), why));
            }
            News::ProviderAsks(call, Ok(input)) => {
                self.not_asked = self.not_asked.saturating_sub(1);
                self.say(AgentEvent::tool_input(*call, input));
            }
            News::ProviderAsks(call, Err((input, why))) => {
                self.not_asked = self.not_asked.saturating_sub(1);
                self.say(AgentEvent::tool_input_invalid(*call, Json::string(&input), why));
            }
            News::Asked(id, asked) => self.say(asked.event(id)),
            News::Became(id, outcome) => {
                if self.settle(&id) {
                    self.became(id, outcome);
                }
            }
        }
    }

    /// rig shows a result. What the board told of is known; of a call whose arguments are none it
    /// does not tell.
    fn result(&mut self, result: &ToolResult) {
        let Some(id) = self.board.has_result(&result.call) else { return };
        if self.board.is_waiting(&id) || !self.settle(&id) {
            return;
        }
        self.end_texts();
        let Some(call) = self.made(&id) else { return };
        let function = &call.call.function;
        let announced = self.parts.announced(call);
        if let Some(arguments) = &function.invalid_arguments {
            let (input, why) = (Json::string(arguments), outcome::text_of(&result.content));
            self.say(AgentEvent::tool_input_invalid(announced, input, why));
            return;
        }
        if let Ok(input) = Json::of(&function.arguments)
            && !self.board.is_called(&id)
        {
            self.say(AgentEvent::tool_input(announced, input));
        }
        let outcome = match result.is_error {
            true => ToolOutcome::Failed(outcome::text_of(&result.content)),
            false => outcome::output(&result.content, self.most_output_bytes),
        };
        self.became(id, outcome);
    }

    fn became(&mut self, id: ToolCallId, outcome: ToolOutcome) {
        self.say(match outcome {
            ToolOutcome::Output(output) => AgentEvent::tool_output(id, output),
            ToolOutcome::Failed(why) => AgentEvent::tool_failed(id, why),
        });
    }

    /// Notes that a call has its end; `false` if it had it before.
    fn settle(&mut self, id: &ToolCallId) -> bool {
        self.settled.insert(id.clone())
    }

    fn made(&self, id: &ToolCallId) -> Option<&MadeCall> {
        self.calls.iter().find(|made| made.id == *id)
    }

    fn announced(&mut self, id: ToolCallId, tool: String) -> ToolCall {
        self.end_texts();
        match self.made(&id) {
            Some(made) => self.parts.announced(made),
            None => ToolCall::new(id, tool),
        }
    }

    fn end_texts(&mut self) {
        // rig does not say it of an answer that a hook mended.
        if let Some(origin) = self.origin_before.clone().filter(|_| !self.parts.is_of_known_model())
        {
            self.parts.are_of(origin);
        }
        self.parts.finish(&mut self.said);
    }

    fn end_step(&mut self) {
        self.end_texts();
        if self.step != StepState::NotBegun {
            self.say(AgentEvent::StepFinish);
        }
    }

    fn finish(&mut self, reason: FinishReason) {
        self.items = None;
        self.end_step();
        if self.not_asked > 0 {
            self.failed = Some(NOT_ASKED.into());
            return;
        }
        let reason = match reason {
            // To rig, nobody is asked.
            FinishReason::Stop if self.board.waits() => FinishReason::ToolCalls,
            reason => reason,
        };
        let usage = self.tells_usage.then_some(UsageMetadata { usage: self.usage });
        // Two numbers always serialize.
        let metadata = usage.and_then(|usage| Json::of(&usage).ok());
        self.say(AgentEvent::Finish { reason, metadata });
    }

    fn fail(&mut self, error: PromptError) {
        self.items = None;
        match error {
            // Whoever stopped it: what was asked waits for its answer.
            PromptError::Cancelled { reason, .. } if self.board.waits() => {
                tracing::info!(reason, "the run ends where a person is asked");
                self.finish(FinishReason::ToolCalls);
            }
            PromptError::MaxTurns { .. } => self.finish(FinishReason::ToolCalls),
            PromptError::Cancelled { reason, .. } => {
                tracing::info!(reason, "a hook or a handler stopped the run");
                self.end_texts();
                self.say(AgentEvent::Abort { reason: None });
            }
            error => self.failed = Some(error.into()),
        }
    }

    fn count(&mut self, tokens: &Tokens) {
        self.usage = self.usage.saturating_add(Usage {
            input_tokens: tokens.input_tokens.unwrap_or(0),
            output_tokens: tokens.output_tokens.unwrap_or(0),
        });
    }

    fn say(&mut self, event: AgentEvent) {
        self.said.push_back(event);
    }
}

impl Stream for RigTurn {
    type Item = Result<AgentEvent, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(event) = this.said.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if let Some(error) = this.failed.take() {
                return Poll::Ready(Some(Err(error)));
            }
            let Some(items) = &mut this.items else {
                return Poll::Ready(None);
            };
            if let Some(drive) = this.drive.take() {
                drive.begin();
            }
            let polled = items.as_mut().poll_next(cx);
            // What the hook told happened before what rig says now.
            let board = Arc::clone(&this.board);
            while let Some(news) = board.next() {
                this.news(news);
            }
            match polled {
                Poll::Ready(Some(Ok(item))) => this.item(item),
                Poll::Ready(Some(Err(error))) => this.fail(error),
                Poll::Ready(None) => {
                    this.items = None;
                    this.failed = Some(CUT.into());
                }
                Poll::Pending if this.said.is_empty() => return Poll::Pending,
                Poll::Pending => {}
            }
        }
    }
}

/// What the call returns that was the answer.
const ANSWERED: &str = "This is the answer.";

/// A hook mended or replaced the answer that the question stands in.
const NOT_ASKED: &str = "the provider asks before it runs a tool, and the run asked nobody";

const CUT: &str = "the agent's stream ended before the answer did";
