//! [`Reply`]: an answer as rig streams it, to what the model says.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use rig_core::completion::{CompletionResponse, FinishReason as Finish};
use rig_core::error::ProviderError;
use rig_core::message::{AssistantContent, Opaque, turn_failure};
use rig_core::streaming::{CompletionStream, Relayed, StreamEvents};

use super::stream_parts::{Ended, MadeCall, Parts};
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::ToolCallId;
use ui_message_stream::run::{ModelEvent, Usage};
use ui_message_stream::stream::BoxError;

/// An answer. Dropped, it is not read any further.
pub(super) struct Reply {
    /// `None` once it has ended.
    relayed: Option<StreamEvents>,
    parts: Parts,
    /// The calls, until the answer is known to be whole: those of one that failed do not run.
    calls: Vec<MadeCall>,
    /// What the provider asks, until then.
    asked: Vec<Opaque>,
    said: VecDeque<ModelEvent>,
    failed: Option<BoxError>,
}

impl Reply {
    /// The answer to a request, which may say what came of these calls, by what the provider calls
    /// them.
    pub(super) fn of(
        answer: Result<CompletionStream, ProviderError>,
        awaited: HashMap<String, ToolCallId>,
    ) -> Self {
        let (stream, failed) = match answer {
            Ok(stream) => (Some(stream), None),
            Err(error) => (None, Some(error.into())),
        };
        Reply {
            relayed: stream.map(CompletionStream::into_relay),
            parts: Parts::awaiting(awaited),
            calls: Vec::new(),
            asked: Vec::new(),
            said: VecDeque::new(),
            failed,
        }
    }

    fn take(&mut self, relayed: Relayed) -> Result<(), BoxError> {
        match relayed {
            Relayed::Origin(origin) => self.parts.are_of(origin),
            Relayed::Item(item) => {
                let mut events: Vec<AgentEvent> = Vec::new();
                match self.parts.take(item, &mut events) {
                    Some(Ended::Call(call)) => self.calls.push(call),
                    Some(Ended::Asks(question)) => self.asked.push(question),
                    None => {}
                }
                self.said.extend(events.into_iter().map(ModelEvent::Said));
            }
            Relayed::Done(response) => self.done(&response)?,
        }
        Ok(())
    }

    fn done(&mut self, response: &CompletionResponse) -> Result<(), BoxError> {
        self.relayed = None;
        let finish = response.finish_reason();
        let failure = turn_failure(&response.choice, Some(&response.stop()), finish.as_ref());
        if let Some(why) = failure {
            return Err(why.into());
        }
        let mut events: Vec<AgentEvent> = Vec::new();
        self.parts.finish(&mut events);
        for said in &response.choice {
            if let AssistantContent::Text(text) = said {
                events.extend(self.parts.late_sources(text));
            }
        }
        self.said.extend(events.into_iter().map(ModelEvent::Said));
        let has_calls = !self.calls.is_empty();
        let asks = !self.asked.is_empty();
        for call in self.calls.drain(..) {
            let announced = self.parts.announced(&call);
            self.said.push_back(ModelEvent::Call(Box::new(announced), call.input()));
        }
        for question in self.asked.drain(..) {
            let asked = self.parts.question(&question);
            let asks = |(call, input)| ModelEvent::ProviderAsks(Box::new(call), input);
            self.said.extend(asked.map(asks));
        }
        let usage = response.usage;
        if usage.input_tokens.is_some() || usage.output_tokens.is_some() {
            self.said.push_back(ModelEvent::Used(Usage {
                input_tokens: usage.input_tokens.unwrap_or(0),
                output_tokens: usage.output_tokens.unwrap_or(0),
            }));
        }
        let reason = match finish_reason(finish.as_ref(), has_calls) {
            // To rig, nobody is asked.
            FinishReason::Stop if asks => FinishReason::ToolCalls,
            reason => reason,
        };
        self.said.push_back(ModelEvent::Finished(reason));
        Ok(())
    }
}

/// Why a model stopped; where it does not say, what it said shows it.
pub(crate) fn finish_reason(finish: Option<&Finish>, has_calls: bool) -> FinishReason {
    match finish {
        None if has_calls => FinishReason::ToolCalls,
        None | Some(Finish::Stop) => FinishReason::Stop,
        Some(Finish::Length) => FinishReason::Length,
        Some(Finish::ToolCalls) => FinishReason::ToolCalls,
        Some(Finish::ContentFilter) => FinishReason::ContentFilter,
        Some(_) => FinishReason::Other,
    }
}

impl Stream for Reply {
    type Item = Result<ModelEvent, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(event) = this.said.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if let Some(error) = this.failed.take() {
                this.relayed = None;
                return Poll::Ready(Some(Err(error)));
            }
            let Some(relayed) = &mut this.relayed else {
                return Poll::Ready(None);
            };
            let taken = match ready!(relayed.as_mut().poll_next(cx)) {
                Some(Ok(relayed)) => this.take(relayed),
                Some(Err(report)) => Err(report.into()),
                None => Err(CUT.into()),
            };
            this.failed = taken.err();
        }
    }
}

const CUT: &str = "the provider's stream ended before the answer did";
