//! What a request changes in a conversation, and the results of its open calls.

use std::collections::HashMap;

use super::call_state::{
    error_state, is_approved_provider_call, is_call, is_call_of, is_handing_over, state_of_result,
};
use super::history_import::{HistoryImport, imported};
use super::live_message::add_client_call;
use super::live_run::ReceivedResult;
use super::recorder::call_outcome;
use super::request_change::kept_messages;
use super::request_change::{apply_change, change_of};
use super::{Chat, PostedHistory, RequestEffect, is_outcome_of, is_outcome_unknown};
use ui_message_stream::UserText;
use ui_message_stream::approval::APPROVAL_DATA_NAME;
use ui_message_stream::approval::ToolOutcome;
use ui_message_stream::approval::{DeferredOutcome, DeferredToolResult, PendingToolCall};
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::{ApprovalId, MessageId, ToolCallId};
use ui_message_stream::json::Json;
use ui_message_stream::message::AnswerEnd;
use ui_message_stream::message::{Part, Role, ToolPart, ToolState, UiMessage};
use ui_message_stream::request::ChatRequest;

impl Chat {
    /// Applies the user's new message, edit or regeneration of a request to this conversation.
    ///
    /// - A new message is appended. With [`PostedHistory::Truncate`], the messages that the posted
    ///   history lacks at its end are removed before.
    /// - An edit replaces the message with its id and removes all messages after it. A message is an
    ///   edit if `messageId` names it and its parts are new for this message. A known message with
    ///   other parts that `messageId` does not name is [refused](super::RequestConflict::UnnamedEdit).
    /// - [`Trigger::RegenerateMessage`](ui_message_stream::request::Trigger) removes the response that the agent must write again, and
    ///   all messages after it, with each [`PostedHistory`]: the page has removed them as well.
    ///   `messageId` names it, or the user's message before it. Without `messageId` the last posted
    ///   message does, and without posted messages it is the response to the user's last stored one.
    /// - Approval responses and tool outputs continue the message that holds their calls, unless all these calls
    ///   have a result that was answered: by another step of this message, or by a message after it.
    /// - A request without messages begins a conversation in which the agent speaks first. If the conversation
    ///   holds messages of the user, it is [refused](super::RequestConflict::NothingNew).
    ///
    /// If tool calls are removed, the [history](Self::history) is no longer complete.
    ///
    /// A request that was delivered before changes nothing: its message is known, whether the
    /// conversation still holds it or not, or the response that it regenerates was replaced. A
    /// request that regenerates the response to a user message, and does not name this response,
    /// changes nothing while this response is being written, and regenerates it again afterwards. If
    /// other user messages follow, it regenerates the response only if the same request cannot have
    /// been delivered before: no response to this text was regenerated, or, if the request posts no
    /// text, no response to this message.
    pub fn apply_request(
        &mut self,
        request: &ChatRequest,
        posted_history: PostedHistory,
    ) -> RequestEffect {
        match change_of(self, request, posted_history) {
            Ok(change) => {
                apply_change(self, change);
                RequestEffect::NewResponse
            }
            Err(unchanged) => match unchanged.effect {
                RequestEffect::Continues(id) if has_answered(self, request) => {
                    RequestEffect::Answered(id)
                }
                effect => effect,
            },
        }
    }

    /// Returns whether this conversation ends with the user's new message of this request, as it was sent: an
    /// earlier delivery of the request has stored it and not answered it.
    ///
    /// For a host that keeps no runs: it answers such a message, as one that
    /// [`apply_request`](Self::apply_request) adds. The effect of the request is
    /// [`RequestEffect::NotAnswered`].
    pub fn awaits_answer_to(&self, request: &ChatRequest) -> bool {
        let last = self.messages.last();
        let sent = request.new_user_message();
        let is_sent = |last: &UiMessage, sent: &UiMessage| {
            last.id == sent.id && last.parts == imported(sent, HistoryImport::Texts).parts
        };
        self.runs.live.is_none() && last.zip(sent).is_some_and(|(last, sent)| is_sent(last, sent))
    }

    /// Inserts or replaces the message of a response, as `on_finish` returns it, for a host that stores the
    /// messages itself and keeps a ledger.
    ///
    /// The settled calls and the approval requests that this conversation holds stay as they are, because a
    /// response shows an answer that does not count as an error of the call.
    /// [`record_outcomes`](Self::record_outcomes) adds what the ledger knows.
    pub fn upsert_response(&mut self, mut message: UiMessage) {
        let stored = self.message(&message.id).into_iter().flat_map(|stored| &stored.parts);
        for (part, stored) in message.parts.iter_mut().zip(stored) {
            let is_kept = |(stored, sent): (&ToolPart, &ToolPart)| {
                stored.tool_call_id == sent.tool_call_id
                    && stored.provider_executed != Some(true)
                    && (stored.is_settled() || stored.approval_id().is_some())
            };
            if stored.as_tool().zip(part.as_tool()).is_some_and(is_kept) {
                part.clone_from(stored);
            }
        }
        self.upsert_message(message);
    }

    /// Returns the number of messages before the new message of this request that the posted history
    /// lacks at its end. They are kept with [`PostedHistory::Keep`].
    pub(crate) fn kept_messages(&self, request: &ChatRequest) -> usize {
        kept_messages(self, request)
    }
}

impl Chat {
    /// Returns whether a call of this conversation has its final result. Returns `None` if there is
    /// no such call.
    ///
    /// The call is identified by `approval` if that is given, and by `id` otherwise. If several
    /// calls match, the last one is meant: the ids of calls may recur.
    pub fn has_result(&self, approval: Option<&ApprovalId>, id: &ToolCallId) -> Option<bool> {
        self.call(approval, id).map(ToolPart::is_settled)
    }

    /// Returns whether the server has nothing left to do for a call: the call has its final result,
    /// or it is approved and its provider executes it. Returns `None` if there is no such call in
    /// this conversation. The call is identified as in [`has_result`](Self::has_result).
    pub fn is_resolved(&self, approval: Option<&ApprovalId>, id: &ToolCallId) -> Option<bool> {
        self.call(approval, id).map(|part| part.is_settled() || is_approved_provider_call(part))
    }

    /// Returns whether this conversation holds such a call and its provider executes it. The call
    /// is identified as in [`has_result`](Self::has_result).
    pub fn is_provider_executed(&self, approval: Option<&ApprovalId>, id: &ToolCallId) -> bool {
        self.call(approval, id).is_some_and(|part| part.provider_executed == Some(true))
    }

    /// Returns whether this approval was given for a provider-executed call and has not been sent
    /// to the provider yet.
    pub fn has_unsent_approval(&self, approval: Option<&ApprovalId>) -> bool {
        self.unsent_approvals.iter().any(|unsent| unsent.approval_id.as_ref() == approval)
    }

    /// Removes all unsent approvals of provider-executed calls and returns those that are still
    /// valid.
    ///
    /// The caller must send them to the provider now. If the server stops before it has sent an
    /// approval, the approval is lost. This is intended, because no approval may be sent twice.
    pub fn take_unsent_approvals(&mut self) -> Vec<DeferredToolResult> {
        let mut approvals = std::mem::take(&mut self.unsent_approvals);
        // The user may have removed the message, or the outcome was recorded as unknown.
        approvals.retain(|approval| self.is_awaiting_provider(approval));
        approvals
    }

    /// Whether the conversation holds the approved call of this approval, without a result.
    fn is_awaiting_provider(&self, approval: &DeferredToolResult) -> bool {
        let mut parts = self.unsettled_parts().map(|(_, part)| part);
        parts.any(|part| is_call_of(part, approval) && is_approved_provider_call(part))
    }

    /// Returns the calls whose approval was sent to the provider and that have no final result yet.
    /// Only the provider knows whether it has executed them.
    pub fn forwarded_approvals(&self) -> Vec<DeferredToolResult> {
        let sent = self.unsettled_parts().filter(|(_, part)| {
            is_approved_provider_call(part) && !self.has_unsent_approval(part.approval_id())
        });
        let results = sent.map(|(message, part)| {
            call_outcome(&message.id, part, DeferredOutcome::ForwardedToProvider)
                .with_approval_id(part.approval_id().cloned())
        });
        results.collect()
    }

    /// Returns whether a user message follows the message with this id.
    pub(crate) fn is_followed_by_user(&self, id: &MessageId) -> bool {
        self.messages.position(id).is_some_and(|at| self.place_of_last_question() > Some(at))
    }

    /// Returns the calls that have an approval request and no final result.
    pub fn open_approvals(&self) -> Vec<PendingToolCall> {
        let asked = self.unsettled_parts().filter(|(_, part)| part.approval_id().is_some());
        asked.map(|(_, part)| PendingToolCall::of_part(part)).collect()
    }

    /// Records the result of a call in the message that contains the call. Does nothing if the
    /// result is not final or if the conversation has no such open call.
    ///
    /// `descriptor` replaces the data of the call's `data-approval` part, which the client shows
    /// beside the call. If the approver has changed the input, the call has the changed one from now on, and
    /// that part holds both. An approval of a provider-executed call is added to
    /// [`unsent_approvals`](Self::unsent_approvals).
    pub fn record_result(&mut self, result: &DeferredToolResult, descriptor: Option<&Json>) {
        if !result.is_final {
            return;
        }
        if result.outcome == DeferredOutcome::Superseded && self.is_with_client(result) {
            // The client may have executed it.
            let unknown = result.clone().with_outcome(DeferredOutcome::OutcomeUnknown);
            return self.record_result(&unknown, descriptor);
        }
        if result.approval_id.is_none() {
            self.client_executed.retain(|call| call.tool_call_id != result.tool_call_id);
        }
        let is_executed = matches!(result.outcome, DeferredOutcome::Executed { .. });
        // A result may still arrive after the outcome was recorded as unknown.
        let is_open = |message: &MessageId, part: &ToolPart| {
            let is_unknown =
                || is_outcome_unknown(&self.call_outcomes, message, &part.tool_call_id);
            !part.is_settled() || is_executed && is_unknown()
        };
        let place = self
            .last_place(|message, part| is_open(message, part) && is_call_of(part, result))
            .and_then(|place| {
                let part = self.part(place)?;
                Some((place, state_of_result(part, result)?))
            });
        let Some((place, state)) = place else { return };
        let Some((message, part)) = self.set_state(place, state) else { return };
        self.call_outcomes.retain(|known| !is_outcome_of(known, &message, &part.tool_call_id));
        let is_handed = is_handing_over(&result.outcome);
        if is_handed {
            add_client_call(self, PendingToolCall::of_part(&part));
        }
        let is_kept = matches!(
            result.outcome,
            DeferredOutcome::OutcomeUnknown
                | DeferredOutcome::Expired
                | DeferredOutcome::Superseded
                | DeferredOutcome::Lapsed
                | DeferredOutcome::Revoked
        );
        if is_handed || is_kept {
            let approval_id = result.approval_id.clone();
            let known = call_outcome(&message, &part, result.outcome.clone());
            self.call_outcomes.push(known.with_approval_id(approval_id));
        }
        let is_unsent = is_approved_provider_call(&part);
        let tool_call_id = part.tool_call_id;
        if let Some(descriptor) = descriptor {
            self.update_descriptor(&tool_call_id, descriptor);
        }
        let is_noted = |unsent: &DeferredToolResult| unsent.approval_id == result.approval_id;
        if is_unsent && !self.unsent_approvals.iter().any(is_noted) {
            self.unsent_approvals.push(result.clone());
        }
    }

    /// Replaces the data of the call's last `data-approval` part, if it has one.
    fn update_descriptor(&mut self, call: &ToolCallId, descriptor: &Json) {
        let is_data = |part: &Part| match part {
            Part::Data(data) => {
                &*data.name == APPROVAL_DATA_NAME && data.id.as_deref() == Some(call.as_str())
            }
            _ => false,
        };
        let place = self
            .messages
            .with_calls()
            .find_map(|(at, message)| Some((at, message.parts.iter().position(is_data)?)));
        let Some((message, part)) = place else { return };
        self.messages.update(message, |message| {
            if let Some(Part::Data(data)) = message.parts.get_mut(part) {
                data.data = Some(descriptor.clone());
            }
        });
    }

    /// Returns the result in this event if a provider emits it for a call of an earlier message
    /// whose approval was sent to it. `now` is the message that is being written. Returns `None` for
    /// every other event.
    pub fn result_of_forwarded_call<'m>(
        &self,
        event: &AgentEvent,
        now: impl FnOnce() -> Option<&'m UiMessage>,
    ) -> Option<DeferredToolResult> {
        let (id, outcome) = match event {
            AgentEvent::ToolOutput { tool_call_id, output, preliminary: false } => {
                (tool_call_id, ToolOutcome::Output(output.clone()))
            }
            AgentEvent::ToolFailed { tool_call_id, error } => {
                (tool_call_id, ToolOutcome::Failed(error.to_string()))
            }
            _ => return None,
        };
        let newest_first = now().into_iter().flat_map(|message| message.parts.iter().rev());
        let mut calls = newest_first.filter_map(Part::as_tool);
        if calls.any(|part| part.tool_call_id == *id) {
            return None;
        }
        let mut sent = self.forwarded_approvals().into_iter();
        let call = sent.find(|call| call.tool_call_id == *id)?;
        Some(call.with_outcome(DeferredOutcome::Executed { outcome }))
    }

    /// Returns the last matching call.
    fn call(&self, approval: Option<&ApprovalId>, id: &ToolCallId) -> Option<&ToolPart> {
        self.last_call(|_, part| is_call(part, approval, id)).map(|(_, part)| part)
    }

    /// Returns the id of the call that asks for this approval, as the message holds it.
    pub(crate) fn call_of_approval(&self, approval: &ApprovalId) -> Option<&ToolCallId> {
        let (_, part) = self.last_call(|_, part| part.approval_id() == Some(approval))?;
        Some(&part.tool_call_id)
    }

    /// Returns the last tool part of the assistant messages that matches, and its message.
    fn last_call(
        &self,
        is_match: impl Fn(&MessageId, &ToolPart) -> bool,
    ) -> Option<(&UiMessage, &ToolPart)> {
        let messages = self.messages.with_calls().map(|(_, message)| message);
        let mut assistants = messages.filter(|message| message.role == Role::Assistant);
        assistants.find_map(|message| {
            let mut parts = message.parts.iter().rev().filter_map(Part::as_tool);
            Some((message, parts.find(|part| is_match(&message.id, part))?))
        })
    }

    /// Returns the tool parts of the assistant messages that have no final result, oldest first,
    /// each with its message.
    fn unsettled_parts(&self) -> impl Iterator<Item = (&UiMessage, &ToolPart)> {
        let messages = self.messages.with_unsettled_calls();
        let assistants = messages.filter(|message| message.role == Role::Assistant);
        let parts = assistants.flat_map(|message| message.tool_parts().map(move |p| (message, p)));
        parts.filter(|(_, part)| !part.is_settled())
    }

    /// Returns the place of the last tool part that matches.
    fn last_place(&self, is_match: impl Fn(&MessageId, &ToolPart) -> bool) -> Option<Place> {
        self.messages.with_calls().find_map(|(at, message)| {
            let is_match =
                |part: &Part| part.as_tool().is_some_and(|part| is_match(&message.id, part));
            Some(Place { message: at, part: message.parts.iter().rposition(is_match)? })
        })
    }

    fn part(&self, place: Place) -> Option<&ToolPart> {
        self.messages.get(place.message)?.parts.get(place.part)?.as_tool()
    }

    /// Sets the state of a tool part. Returns the part, and the id of its message.
    fn set_state(&mut self, place: Place, state: ToolState) -> Option<(MessageId, ToolPart)> {
        let changed = self.messages.update(place.message, |message| {
            let Some(Part::Tool(part)) = message.parts.get_mut(place.part) else { return None };
            part.state = state;
            Some((message.id.clone(), (**part).clone()))
        });
        changed.flatten()
    }
}

/// Whether the message that a request continues holds the result of each call that the request answers, and
/// another step or message has answered the results of its decisions.
fn has_answered(chat: &Chat, request: &ChatRequest) -> bool {
    let Some(posted) = request.continued_message() else { return false };
    let Some(at) = chat.place_of(&posted.id, Role::Assistant) else { return false };
    let stored = &chat.messages[at].parts;
    let place_of = |call: &ToolPart| {
        let is_it = |part: &ToolPart| part.tool_call_id == call.tool_call_id;
        stored.iter().rposition(|part| part.as_tool().is_some_and(is_it))
    };
    let is_settled = |place: usize| stored[place].as_tool().is_some_and(ToolPart::is_settled);
    let is_followed = |place: usize| {
        let is_step = |part: &Part| matches!(part, Part::StepStart { .. });
        at + 1 < chat.messages.len() || stored[place..].iter().any(is_step)
    };
    let is_decided = |call: &&ToolPart| matches!(call.state, ToolState::ApprovalResponded { .. });
    let mut decided = posted.tool_parts().filter(is_decided).peekable();
    let mut others = posted.tool_parts().filter(|call| call.is_settled());
    decided.peek().is_some()
        && decided.all(|call| place_of(call).is_some_and(|at| is_settled(at) && is_followed(at)))
        && others.all(|call| place_of(call).is_none_or(is_settled))
}

/// The results that arrive during a run.
impl Chat {
    /// Records a result in the message that holds its call.
    pub(crate) fn record_received(&mut self, result: &ReceivedResult) {
        let is_last = self
            .message_of_call(&result.result)
            .is_some_and(|message| Some(&message.id) == self.messages.last().map(|last| &last.id));
        let before = self.is_known(&result.result);
        self.record_result(&result.result, result.descriptor.as_ref());
        // A call that was closed without a decision is no reason to call the model.
        let counts = self.runs.live.is_some() || !result.result.outcome.is_closed_undecided();
        let is_new = is_last && !before && self.is_known(&result.result);
        self.runs.has_unread_results |= is_new && counts;
        if !counts && self.message_to_continue().is_none() {
            self.end_closed_outer_calls();
        }
    }

    /// Returns whether the conversation holds a final result of this call. An approval that a
    /// provider gets with the next model call is one, too.
    pub(crate) fn is_known(&self, result: &DeferredToolResult) -> bool {
        let found = self.find_call(result);
        found.is_some_and(|(_, part)| part.is_settled() || is_approved_provider_call(part))
            || is_handing_over(&result.outcome) && self.is_with_client(result)
    }

    /// Whether the call of this result was approved, and the client is to execute it.
    pub(crate) fn is_with_client(&self, result: &DeferredToolResult) -> bool {
        let Some((message, part)) = self.find_call(result) else { return false };
        self.call_outcomes.iter().any(|known| {
            is_handing_over(&known.outcome) && is_outcome_of(known, &message.id, &part.tool_call_id)
        })
    }

    /// Returns the calls that wait for a decision of a user.
    pub(crate) fn undecided_calls(&self) -> Vec<PendingToolCall> {
        let mut open = self.open_approvals();
        open.retain(|call| {
            self.is_resolved(call.approval_id.as_ref(), &call.tool_call_id) == Some(false)
        });
        open
    }

    /// Returns the id of the last message if the model has to be called to continue it: a result is
    /// unread, no call waits for an answer, and the user did not stop the run.
    pub(crate) fn message_to_continue(&self) -> Option<&MessageId> {
        let last = self.messages.last().filter(|last| last.role == Role::Assistant)?;
        let end = self.runs.ended.as_ref().map(|ended| ended.end);
        let is_due = self.runs.has_unread_results && end != Some(AnswerEnd::Stopped);
        (is_due && !self.has_open_calls(last)).then_some(&last.id)
    }

    /// Returns the id of the message to continue if no run does so: there was no place for one when the
    /// results came. After a run that has failed only a request continues it.
    pub(crate) fn due_message(&self) -> Option<&MessageId> {
        let is_free = self.runs.live.is_none() && self.runs.ended.is_none();
        self.message_to_continue().filter(|_| is_free)
    }

    /// Ends all calls that wait for calls inside them: a newer message of the user follows.
    pub(super) fn end_all_outer_calls(&mut self) {
        self.end_outer_calls_if(|_| true);
    }

    /// Ends the calls whose inner calls are all closed, without an answer that would resume them.
    fn end_closed_outer_calls(&mut self) {
        self.end_outer_calls_if(|waits| !waits);
    }

    /// Ends calls that have calls inside them, by whether one of these is open.
    fn end_outer_calls_if(&mut self, is_to_end: impl Fn(bool) -> bool) {
        loop {
            // Whether an inner call is open, by the call that waits for it.
            let mut outer: HashMap<ToolCallId, bool> = HashMap::new();
            let parts = self.messages.with_unsettled_calls().flat_map(UiMessage::tool_parts);
            for (id, part) in parts.filter_map(|part| Some((part.outer_call()?, part))) {
                *outer.entry(id).or_default() |= !part.is_settled();
            }
            outer.retain(|_, is_open| is_to_end(*is_open));
            if outer.is_empty() {
                return;
            }
            let is_ended =
                |part: &ToolPart| !part.is_settled() && outer.contains_key(&part.tool_call_id);
            let Some(place) = self.last_place(|_, part| is_ended(part)) else { return };
            let input = self.part(place).and_then(ToolPart::input).cloned();
            self.set_state(place, error_state(input, None, UserText::InnerCallsClosed.to_string()));
        }
    }

    /// Returns whether a call of this message waits for the user or the client.
    pub(crate) fn has_open_calls(&self, message: &UiMessage) -> bool {
        message.tool_parts().any(|part| match &part.state {
            ToolState::ApprovalRequested { .. } => true,
            _ if part.is_settled() => false,
            _ => self.client_executed.iter().any(|call| call.tool_call_id == part.tool_call_id),
        })
    }

    /// Removes these approvals from the unsent ones: a model call sends them.
    pub(crate) fn remove_unsent(&mut self, approvals: &[ApprovalId]) {
        self.unsent_approvals.retain(|unsent| {
            unsent.approval_id.as_ref().is_none_or(|approval| !approvals.contains(approval))
        });
    }

    /// Returns the message that holds the call of this result.
    fn message_of_call(&self, result: &DeferredToolResult) -> Option<&UiMessage> {
        self.find_call(result).map(|(message, _)| message)
    }

    /// Returns the call of this result, and the message that holds it.
    ///
    /// A call that was closed without a decision has no approval any more. It is found by its outcome,
    /// which names the approval: the ids of calls may recur.
    pub(super) fn find_call(&self, result: &DeferredToolResult) -> Option<(&UiMessage, &ToolPart)> {
        let id = &result.tool_call_id;
        let Some(approval) = &result.approval_id else {
            return self.last_call(|_, part| part.tool_call_id == *id);
        };
        self.last_call(|_, part| part.approval_id() == Some(approval)).or_else(|| {
            let mut closed = self.call_outcomes.iter();
            let closed = closed.find(|known| known.approval_id.as_ref() == Some(approval))?;
            self.last_call(|message, part| is_outcome_of(closed, message, &part.tool_call_id))
        })
    }
}

/// The place of a tool part in a conversation.
#[derive(Clone, Copy)]
struct Place {
    message: usize,
    part: usize,
}
