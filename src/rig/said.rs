//! [`RigTurn`]: what rig streams in a run, as what an agent says.

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::rig_agent::agent::{MultiTurnStreamItem, StreamingResult};
use ::rig_agent::completion::PromptError;
use futures_core::Stream;
use rig_core::completion::Usage as Tokens;
use rig_core::message::{AssistantContent, ToolResult};
use rig_core::streaming::{Item, StreamEvent};
use serde_json::json;

use super::board::{Board, News};
use super::outcome;
use crate::approval::ToolOutcome;
use crate::chunk::FinishReason;
use crate::event::{AgentEvent, ToolCall};
use crate::id::{PartId, ToolCallId};
use crate::json::Json;
use crate::model::rig::{Ended, MadeCall, Parts, finish_reason};
use crate::run::Usage;
use crate::stream::BoxError;

/// One turn under way.
pub(super) struct RigTurn {
    /// `None` once it has ended.
    items: Option<StreamingResult>,
    board: Arc<Board>,
    parts: Parts,
    step: StepState,
    /// Texts that have ended, until it is known which model said them.
    texts: Vec<(PartId, AssistantContent)>,
    /// The calls that the model made.
    calls: HashMap<ToolCallId, MadeCall>,
    /// The calls that have their end.
    settled: HashSet<ToolCallId>,
    said_text: bool,
    reason: FinishReason,
    usage: Usage,
    tells_usage: bool,
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
    pub(super) fn of(items: StreamingResult, board: Arc<Board>, tells_usage: bool) -> Self {
        RigTurn { items: Some(items), board, tells_usage, ..Self::failed_with(None) }
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
            texts: Vec::new(),
            calls: HashMap::new(),
            settled: HashSet::new(),
            said_text: false,
            reason: FinishReason::Other,
            usage: Usage::default(),
            tells_usage: false,
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
                let has_calls = self.calls.keys().any(|id| !self.settled.contains(id));
                self.reason = finish_reason(call.finish_reason.as_ref(), has_calls);
                self.count(&call.usage);
            }
            MultiTurnStreamItem::FinalResponse(response) => {
                // An answer that a hook gave in the model's place was not streamed.
                let text = response.output();
                if !self.said_text && !text.trim().is_empty() {
                    self.say(AgentEvent::text(text));
                }
                self.finish(self.reason);
            }
            // The calls stand in what the model says, and what became of them on the board.
            _ => {}
        }
    }

    fn model_says(&mut self, item: Item<StreamEvent>) {
        if !matches!(item, Item::Event(_)) {
            return;
        }
        if self.step != StepState::Speaks {
            self.end_step();
            self.step = StepState::Speaks;
            self.parts = Parts::default();
            self.said_text = false;
            self.say(AgentEvent::StepStart);
        }
        self.said_text |= matches!(item, Item::Event(StreamEvent::Text { .. }));
        match self.parts.take(item, &mut self.said) {
            Some(Ended::Text(id, content)) => self.texts.push((id, content)),
            Some(Ended::Call(made)) => {
                self.board.name(&made.call.id, &made.id);
                self.calls.insert(made.id.clone(), made);
            }
            None => {}
        }
    }

    fn news(&mut self, news: News) {
        match news {
            News::Origin(origin) => {
                self.parts.are_of(*origin);
                self.end_texts();
            }
            News::Called { id, tool, input } => {
                let call = self.announced(id, tool);
                self.say(AgentEvent::tool_input(call, input));
            }
            News::NotShown { id, tool, input, why } => {
                self.settle(&id);
                let call = self.announced(id, tool);
                self.say(AgentEvent::tool_input_invalid(call, Json::string(&input), why));
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
        let Some(id) = self.board.named(&result.call).filter(|id| !self.board.is_waiting(id))
        else {
            return;
        };
        if !self.settle(&id) {
            return;
        }
        let Some(call) = self.calls.get(&id) else { return };
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
            false => outcome::output(&result.content),
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

    fn announced(&self, id: ToolCallId, tool: String) -> ToolCall {
        match self.calls.get(&id) {
            Some(made) => self.parts.announced(made),
            None => ToolCall::new(id, tool),
        }
    }

    fn end_texts(&mut self) {
        for (id, content) in std::mem::take(&mut self.texts) {
            let end = self.parts.text_end(&id, content);
            self.say(end);
        }
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
        let usage = self.tells_usage.then(|| json!({"usage": self.usage}));
        // Two numbers always serialize.
        let metadata = usage.and_then(|usage| Json::of(&usage).ok());
        self.say(AgentEvent::Finish { reason, metadata });
    }

    fn fail(&mut self, error: PromptError) {
        self.items = None;
        match error {
            PromptError::Cancelled { .. } if self.board.is_paused() => {
                self.finish(FinishReason::ToolCalls);
            }
            PromptError::MaxTurns { .. } => self.finish(FinishReason::ToolCalls),
            PromptError::Cancelled { reason, .. } => {
                tracing::info!(reason, "a hook stopped the run");
                self.end_texts();
                self.say(AgentEvent::Abort { reason: None });
            }
            error => self.failed = Some(error.into()),
        }
    }

    fn count(&mut self, tokens: &Tokens) {
        let (read, written) = (tokens.input_tokens, tokens.output_tokens);
        let sum = &mut self.usage;
        sum.input_tokens = sum.input_tokens.saturating_add(read.unwrap_or(0));
        sum.output_tokens = sum.output_tokens.saturating_add(written.unwrap_or(0));
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

const CUT: &str = "the agent's stream ended before the answer did";
