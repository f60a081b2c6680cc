//! [`ResponseStream`]: converts a response that rig streams to model events.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use rig_core::completion::{CompletionResponse, FinishReason as Finish};
use rig_core::error::ProviderError;
use rig_core::message::{AssistantContent, Opaque, turn_failure};
use rig_core::streaming::{CompletionStream, Item, Relayed, StreamEvents};
use serde_json::Value;

use super::finish_reasons::FinishReasons;
use super::stream_parts::{CallRequest, ModelCall, PartReader};
use super::unread::Unread;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::ToolCallId;
use ui_message_stream::json::Json;
use ui_message_stream::model::{ModelEvent, Usage};
use ui_message_stream::{BoxError, UserText};

/// The response of a model. Dropping it stops reading.
pub(super) struct ResponseStream {
    /// `None` after the end of the response.
    relayed: Option<StreamEvents>,
    parts: PartReader,
    reasons: Arc<FinishReasons>,
    /// The calls, held until the response is complete, which may change their metadata.
    calls: Vec<ModelCall>,
    /// The approval requests of the provider, held until the response is complete.
    approval_requests: Vec<Opaque>,
    /// The last data that rig does not read and that has a message, as an error event has.
    unread_message: Option<Value>,
    events: VecDeque<ModelEvent>,
    error: Option<BoxError>,
}

impl ResponseStream {
    /// Creates the stream. The response may contain results of the awaited calls, which are given
    /// by the provider's id.
    pub(super) fn new(
        answer: Result<CompletionStream, ProviderError>,
        awaited_calls: HashMap<String, ToolCallId>,
        reasons: Arc<FinishReasons>,
    ) -> Self {
        let (stream, error) = match answer {
            Ok(stream) => (Some(stream), None),
            Err(error) => (None, Some(error.into())),
        };
        ResponseStream {
            relayed: stream.map(CompletionStream::into_relay),
            parts: PartReader::with_awaited_calls(awaited_calls),
            reasons,
            calls: Vec::new(),
            approval_requests: Vec::new(),
            unread_message: None,
            events: VecDeque::new(),
            error,
        }
    }

    fn handle(&mut self, relayed: Relayed) -> Result<(), BoxError> {
        match relayed {
            Relayed::Origin(origin) => self.parts.set_origin(origin),
            Relayed::Item(Item::Unknown(payload)) => {
                let has_message = payload.value().get("message").is_some_and(Value::is_string);
                self.unread_message = has_message.then(|| payload.value().clone());
            }
            Relayed::Item(item) => {
                let mut agent_events: Vec<AgentEvent> = Vec::new();
                match self.parts.handle_item(item, &mut agent_events) {
                    Some(CallRequest::ToolCall(call)) => self.calls.push(call),
                    Some(CallRequest::RepeatedCall(call)) => {
                        let tool_call = self.parts.tool_call(&call);
                        let input = call.input();
                        let input = Json::parse(&input).unwrap_or_else(|_| Json::string(&input));
                        let why = UserText::Refused;
                        agent_events.push(AgentEvent::tool_input_invalid(tool_call, input, why));
                    }
                    Some(CallRequest::ProviderApproval(opaque)) => {
                        self.approval_requests.push(opaque)
                    }
                    None => {}
                }
                self.events.extend(agent_events.into_iter().map(ModelEvent::Event));
            }
            Relayed::Done(response) => self.finish(&response)?,
        }
        Ok(())
    }

    fn finish(&mut self, response: &CompletionResponse) -> Result<(), BoxError> {
        self.relayed = None;
        let finish = response.finish_reason();
        // A response that reached its length is complete for the agent, also one of reasoning alone.
        let failing = finish.as_ref().filter(|finish| **finish != Finish::Length);
        let unread = Unread::new(response);
        let why = turn_failure(&response.choice, Some(&response.stop()), failing);
        if let Some(why) = why.or_else(|| unread.error().map(|_| REPORTED.into())) {
            return Err(with_data(&why, unread.error()));
        }
        let mut agent_events: Vec<AgentEvent> = Vec::new();
        self.parts.finish(&mut agent_events);
        if let Some(text) =
            unread.message_text().filter(|text| response.choice.is_empty() && !text.is_empty())
        {
            agent_events.push(AgentEvent::text(text.to_owned()));
        }
        for content in &response.choice {
            if let AssistantContent::Text(text) = content {
                agent_events.extend(self.parts.late_sources(text));
            }
        }
        self.events.extend(agent_events.into_iter().map(ModelEvent::Event));
        let has_calls = !self.calls.is_empty();
        let has_approval_requests = !self.approval_requests.is_empty();
        for call in self.calls.drain(..) {
            let tool_call = self.parts.tool_call(&call);
            let input = call.input();
            self.events.push_back(ModelEvent::ToolCall(Box::new(tool_call), input));
        }
        for opaque in self.approval_requests.drain(..) {
            let request = self.parts.provider_approval_call(&opaque);
            let to_event =
                |(call, input)| ModelEvent::ProviderApprovalRequest(Box::new(call), input);
            self.events.extend(request.map(to_event));
        }
        let usage = response.usage;
        if usage.input_tokens.is_some() || usage.output_tokens.is_some() {
            self.events.push_back(ModelEvent::Usage(Usage {
                input_tokens: usage.input_tokens.unwrap_or(0),
                output_tokens: usage.output_tokens.unwrap_or(0),
            }));
        }
        let reason = match finish_reason(finish.as_ref(), has_calls) {
            // rig does not know about the approval request.
            FinishReason::Stop if has_approval_requests => FinishReason::ToolCalls,
            _ if unread.may_lack_input() => FinishReason::Other,
            reason => reason,
        };
        self.events.push_back(ModelEvent::Finished(self.reasons.cut_or(reason)));
        Ok(())
    }
}

/// Whether the response ended where the model ended it, and not possibly within a call, and rig has
/// read all of its calls.
pub(crate) fn is_complete(response: &CompletionResponse) -> bool {
    let finish = response.finish_reason();
    let unread = Unread::new(response);
    matches!(finish, None | Some(Finish::Stop | Finish::ToolCalls))
        && !unread.may_lack_input()
        && unread.error().is_none()
}

/// Returns why the model stopped. If the provider gives no reason, it depends on whether the
/// response has tool calls.
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

impl Stream for ResponseStream {
    type Item = Result<ModelEvent, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(event) = this.events.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if let Some(error) = this.error.take() {
                this.relayed = None;
                return Poll::Ready(Some(Err(error)));
            }
            let Some(relayed) = &mut this.relayed else {
                return Poll::Ready(None);
            };
            let handled = match ready!(relayed.as_mut().poll_next(cx)) {
                Some(Ok(relayed)) => this.handle(relayed),
                Some(Err(report)) => Err(report.into()),
                None => Err(with_data(TRUNCATED, this.unread_message.as_ref())),
            };
            this.error = handled.err();
        }
    }
}

/// Returns the error with what the provider says about it.
fn with_data(why: &str, data: Option<&Value>) -> BoxError {
    match data {
        Some(data) => format!("{why}: {data}").into(),
        None => why.into(),
    }
}

const REPORTED: &str = "the provider reports an error in its stream";

const TRUNCATED: &str = "the provider's stream ended before the answer did";
