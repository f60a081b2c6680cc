//! Applies the new message, edit or regeneration of a request to the stored conversation.

use std::collections::HashSet;

use super::delivery::{REGENERATED, digest_of_edit};
use super::history_import::imported;
use super::{Chat, HistoryCompleteness, HistoryImport, PostedHistory, RequestEffect};
use crate::id::{MessageId, ToolCallId};
use crate::message::{Role, UiMessage};
use crate::request::{ChatRequest, Trigger};

impl Chat {
    /// Applies the user's new message, edit or regeneration of a request to this conversation.
    ///
    /// - A new message is appended. With [`PostedHistory::Truncate`], the messages that the posted
    ///   history lacks at its end are removed before.
    /// - An edit replaces the message with its id and removes all messages after it. A message is an
    ///   edit if `messageId` names it, the request contains the posted history and not a single
    ///   `message`, and its parts are new for this message.
    /// - [`Trigger::RegenerateMessage`] removes the response that the agent must write again, and
    ///   all messages after it, with each [`PostedHistory`]: the page has removed them as well.
    ///   Without `messageId` it is the response to the posted history's last message.
    /// - Approval responses and tool outputs continue the message that holds their calls.
    ///
    /// If tool calls are removed, the [history](Self::history) is no longer complete.
    ///
    /// A request that was delivered before changes nothing: its message is known, whether the
    /// conversation still holds it or not, or the response that it regenerates was replaced. A
    /// request that regenerates the response to a user message, named by the id of this message or
    /// without `messageId`, changes nothing while this response is being written, and regenerates it
    /// again afterwards. If other user messages follow, it regenerates the response only if it was
    /// never regenerated since the last edit of its user message.
    pub fn apply_request(
        &mut self,
        request: &ChatRequest,
        posted_history: PostedHistory,
    ) -> RequestEffect {
        if *request.trigger() == Trigger::RegenerateMessage {
            return self.regenerate(request);
        }
        if let Some(message) = request.new_user_message() {
            return self.add_user_message(request, message, posted_history);
        }
        let Some(continued) = request.continued_message() else {
            return RequestEffect::NewResponse;
        };
        let id = &continued.id;
        if self.place_of(id, Role::Assistant).is_some() {
            return RequestEffect::Continues(id.clone());
        }
        if let Some(after) = self.past_messages.removed(id) {
            return self.response_after(after);
        }
        let last = self.messages.last().map(|message| message.id.clone());
        self.past_messages.add_removed(id.clone(), last);
        RequestEffect::NewResponse
    }

    fn add_user_message(
        &mut self,
        request: &ChatRequest,
        message: &UiMessage,
        posted_history: PostedHistory,
    ) -> RequestEffect {
        let (id, message) = (&message.id, imported(message, HistoryImport::Texts));
        if let Some(place) = self.place_of(id, Role::User) {
            let is_changed = self.messages[place].parts != message.parts;
            let is_edit = request.message_id() == Some(id) && !request.is_last_message_only();
            if !is_changed || !is_edit {
                return self.response_after(Some(id));
            }
            if !self.past_messages.add_change(id, digest_of_edit(&message.parts)) {
                // The message has another text since, so its response does not answer this one.
                return RequestEffect::NotAnswered;
            }
            self.past_messages.remove_change(id, REGENERATED);
            if self.regenerated.as_ref() == Some(id) {
                self.regenerated = None;
            }
            self.truncate(place);
        } else if self.past_messages.removed(id).is_some() {
            return RequestEffect::NotAnswered;
        } else if posted_history == PostedHistory::Truncate
            && let Some(length) = self.posted_prefix(request)
        {
            self.truncate(length);
        }
        self.messages.push(message);
        RequestEffect::NewResponse
    }

    /// Returns the number of posted messages before the new one, if they are the first messages of
    /// this conversation, but not all of them.
    fn posted_prefix(&self, request: &ChatRequest) -> Option<usize> {
        self.posted_prefix_of(request, self.messages.len())
    }

    /// Returns the number of posted messages before the new one, if they are the first of these
    /// messages of this conversation, but not all of them.
    fn posted_prefix_of(&self, request: &ChatRequest, messages: usize) -> Option<usize> {
        let (_, posted) = request.messages().split_last()?;
        let is_prefix = !request.is_last_message_only()
            && posted.len() < messages
            && posted.iter().zip(self.messages.iter()).all(|(posted, own)| posted.id == own.id);
        is_prefix.then_some(posted.len())
    }

    /// Returns the number of messages before the new message of this request that the posted history
    /// lacks at its end. They are kept with [`PostedHistory::Keep`].
    #[cfg(feature = "approvals")]
    pub(crate) fn kept_messages(&self, request: &ChatRequest) -> usize {
        let new = request.new_user_message();
        let place = new.and_then(|message| self.place_of(&message.id, Role::User));
        let prefix = place.and_then(|place| Some(place - self.posted_prefix_of(request, place)?));
        prefix.unwrap_or_default()
    }

    /// Removes the response to be written again, and all messages after it.
    fn regenerate(&mut self, request: &ChatRequest) -> RequestEffect {
        let named = request.message_id();
        if let Some(place) = named.and_then(|id| self.place_of(id, Role::Assistant)) {
            self.truncate(place);
            return RequestEffect::NewResponse;
        }
        if let Some(id) = named.filter(|id| self.new_live_message() == Some(*id)) {
            let last = self.messages.last().map(|message| message.id.clone());
            self.past_messages.add_removed(id.clone(), last);
            return RequestEffect::NewResponse;
        }
        if let Some(place) = named.and_then(|id| self.place_of(id, Role::User)) {
            return self.regenerate_response_to(place);
        }
        if let Some(after) = named.and_then(|id| self.past_messages.removed(id)) {
            return self.response_after(after);
        }
        let posted = request.messages().last().filter(|message| message.role == Role::User);
        let Some(posted) = posted else {
            return match self.place_of_last_question() {
                Some(place) => self.regenerate_response_to(place),
                None => {
                    self.truncate(0);
                    RequestEffect::NewResponse
                }
            };
        };
        match self.place_of(&posted.id, Role::User) {
            Some(place) => self.regenerate_response_to(place),
            None if self.past_messages.removed(&posted.id).is_some() => RequestEffect::NotAnswered,
            // The request that sent the message did not arrive.
            None => {
                self.messages.push(imported(posted, HistoryImport::Texts));
                RequestEffect::NewResponse
            }
        }
    }

    /// Removes the response to the user message at this place, and all messages after it. If other
    /// user messages follow, this happens once: the same request may have regenerated the response
    /// before they were sent.
    fn regenerate_response_to(&mut self, place: usize) -> RequestEffect {
        let question = self.messages[place].id.clone();
        if self.regenerated.as_ref() == Some(&question)
            && let Some(response) = self.live_response_to(&question)
        {
            return RequestEffect::AwaitsResponse(response.clone());
        }
        let is_new = self.past_messages.add_change(&question, REGENERATED.into());
        if !is_new && Some(place) != self.place_of_last_question() {
            return self.response_after(Some(&question));
        }
        self.truncate(place + 1);
        self.regenerated = Some(question);
        RequestEffect::NewResponse
    }

    fn place_of_last_question(&self) -> Option<usize> {
        self.messages.iter().rposition(|message| message.role == Role::User)
    }

    /// Returns the effect of a request that was delivered before. `question` is the message before
    /// its response.
    fn response_after(&self, question: Option<&MessageId>) -> RequestEffect {
        let Some(question) = question else { return RequestEffect::NotAnswered };
        if let Some(response) = self.live_response_to(question) {
            return RequestEffect::AwaitsResponse(response.clone());
        }
        let next = self.messages.position(question).and_then(|place| self.messages.get(place + 1));
        match next.filter(|next| next.role == Role::Assistant) {
            Some(response) => RequestEffect::Answered(response.id.clone()),
            None => RequestEffect::NotAnswered,
        }
    }

    /// Returns the id of the message of the live run, if the run writes it in response to this
    /// message. Its first steps may be stored.
    fn live_response_to(&self, question: &MessageId) -> Option<&MessageId> {
        let last = self.messages.last()?;
        let before = self.messages.len().checked_sub(2).and_then(|at| self.messages.get(at));
        self.new_live_message().filter(|live| match last.id == **live {
            true => before.is_some_and(|before| before.id == *question),
            false => last.id == *question,
        })
    }

    /// Returns the id of the message of the live run, if the run does not continue the message with
    /// the results of answers.
    fn new_live_message(&self) -> Option<&MessageId> {
        let live = self.runs.live.as_ref()?;
        let is_new = live.resumes.is_some() || live.kept.is_some_and(|kept| kept.begun_parts == 0);
        Some(&live.message_id).filter(|id| is_new || self.message(id).is_none())
    }

    /// Removes the messages from index `first_message` on.
    fn truncate(&mut self, first_message: usize) {
        if self.messages.iter().skip(first_message).any(has_calls) {
            self.mark_truncated();
        }
        let mut before = first_message.checked_sub(1).and_then(|place| self.messages.get(place));
        for removed in self.messages.iter().skip(first_message) {
            let before = before.replace(removed).filter(|_| removed.role == Role::Assistant);
            let after = before.map(|message| message.id.clone());
            self.past_messages.add_removed(removed.id.clone(), after);
        }
        self.messages.truncate(first_message);
        let messages = &self.messages;
        let parts = messages.with_calls().flat_map(|(_, message)| message.tool_parts());
        let calls: HashSet<&ToolCallId> = parts.map(|part| &part.tool_call_id).collect();
        self.client_executed.retain(|call| calls.contains(&call.tool_call_id));
        let is_kept = |id: &MessageId| messages.position(id).is_some();
        self.call_outcomes.retain(|known| known.message_id.as_ref().is_some_and(is_kept));
        self.unverified_calls.retain(is_kept);
    }

    fn mark_truncated(&mut self) {
        if self.history.is_complete() {
            self.history = HistoryCompleteness::Truncated;
        }
    }
}

fn has_calls(message: &UiMessage) -> bool {
    message.tool_parts().next().is_some()
}
