//! [`RequestChange`]: what a request of the user changes in a conversation.

use serde::{Deserialize, Serialize};

use super::delivery::{REGENERATED, digest_of_edit, regeneration_after};
use super::history_import::{HistoryImport, imported};
use super::{Chat, PostedHistory, RequestConflict, RequestEffect};
use crate::id::MessageId;
use crate::message::{Role, UiMessage};
use crate::request::{ChatRequest, Trigger};

/// What a new message, an edit or a regeneration changes in a conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RequestChange {
    /// The number of messages that stay, if the others are removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keep: Option<usize>,
    /// A message that the conversation does not hold, and that counts as removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    removed: Option<MessageId>,
    /// The new version of a user message, or the regeneration of its response, by which a request that is
    /// delivered again is recognized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    change: Option<(MessageId, Box<str>)>,
    /// The user message whose response was requested again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    regenerated: Option<MessageId>,
    /// The message that is added at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<UiMessage>,
}

impl RequestChange {
    fn keep(messages: usize) -> Self {
        RequestChange { keep: Some(messages), ..Self::default() }
    }

    fn removed(id: &MessageId) -> Self {
        RequestChange { removed: Some(id.clone()), ..Self::default() }
    }
}

impl Chat {
    /// Applies the user's new message, edit or regeneration of a request to this conversation.
    ///
    /// - A new message is appended. With [`PostedHistory::Truncate`], the messages that the posted
    ///   history lacks at its end are removed before.
    /// - An edit replaces the message with its id and removes all messages after it. A message is an
    ///   edit if `messageId` names it and its parts are new for this message. A known message with
    ///   other parts that `messageId` does not name is [refused](RequestConflict::UnnamedEdit).
    /// - [`Trigger::RegenerateMessage`] removes the response that the agent must write again, and
    ///   all messages after it, with each [`PostedHistory`]: the page has removed them as well.
    ///   `messageId` names it, or the user's message before it. Without `messageId` the last posted
    ///   message does, and without posted messages it is the response to the user's last stored one.
    /// - Approval responses and tool outputs continue the message that holds their calls.
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
        match self.change_of(request, posted_history) {
            Ok(change) => {
                self.apply_change(change);
                RequestEffect::NewResponse
            }
            Err(effect) => effect,
        }
    }

    /// Returns what a request changes in this conversation.
    ///
    /// # Errors
    /// The effect of a request that changes nothing.
    pub(crate) fn change_of(
        &self,
        request: &ChatRequest,
        posted_history: PostedHistory,
    ) -> Result<RequestChange, RequestEffect> {
        if *request.trigger() == Trigger::RegenerateMessage {
            return self.regeneration(request);
        }
        if let Some(message) = request.new_user_message() {
            return self.new_message(request, message, posted_history);
        }
        let Some(continued) = request.continued_message() else {
            return Ok(RequestChange::default());
        };
        let id = &continued.id;
        if self.place_of(id, Role::Assistant).is_some() {
            return Err(RequestEffect::Continues(id.clone()));
        }
        match self.past_messages.removed(id) {
            Some(after) => Err(self.response_after(after)),
            None => Ok(RequestChange::removed(id)),
        }
    }

    /// Applies a change that [`change_of`](Self::change_of) has returned for this conversation.
    pub(crate) fn apply_change(&mut self, change: RequestChange) {
        let RequestChange { keep, removed, change, regenerated, message } = change;
        if let Some((id, change)) = change {
            self.past_messages.add_change(&id, change);
        }
        if let Some(keep) = keep {
            self.truncate(keep);
        }
        if let Some(removed) = removed {
            let last = self.messages.last().map(|message| message.id.clone());
            self.past_messages.add_removed(removed, last);
        }
        if let Some(message) = message {
            if self.regenerated.as_ref() == Some(&message.id) {
                self.regenerated = None;
            }
            self.messages.push(message);
        }
        if regenerated.is_some() {
            self.regenerated = regenerated;
        }
    }

    fn new_message(
        &self,
        request: &ChatRequest,
        message: &UiMessage,
        posted_history: PostedHistory,
    ) -> Result<RequestChange, RequestEffect> {
        let (id, message) = (&message.id, imported(message, HistoryImport::Texts));
        let Some(place) = self.place_of(id, Role::User) else {
            if self.past_messages.removed(id).is_some() {
                return Err(RequestEffect::NotAnswered);
            }
            let is_cut = posted_history == PostedHistory::Truncate;
            let keep = is_cut.then(|| self.posted_prefix(request)).flatten();
            return Ok(RequestChange { keep, message: Some(message), ..RequestChange::default() });
        };
        if self.messages[place].parts == message.parts {
            return Err(self.response_after(Some(id)));
        }
        if request.message_id() != Some(id) {
            return Err(RequestEffect::Refused(RequestConflict::UnnamedEdit));
        }
        let edit = digest_of_edit(&message.parts);
        if self.past_messages.is_known_change(id, &edit) {
            // The message has another text since, so its response does not answer this one.
            return Err(RequestEffect::NotAnswered);
        }
        let change = Some((id.clone(), edit));
        Ok(RequestChange { change, message: Some(message), ..RequestChange::keep(place) })
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

    /// Returns the removal of the response to be written again, and of all messages after it.
    fn regeneration(&self, request: &ChatRequest) -> Result<RequestChange, RequestEffect> {
        let last = request.messages().last();
        let (question, response) = match last {
            Some(last) if last.role == Role::User => {
                (Some(imported(last, HistoryImport::Texts)), None)
            }
            Some(last) => (None, Some(&last.id)),
            None => (None, None),
        };
        let place = question.as_ref().and_then(|posted| self.place_of(&posted.id, Role::User));
        if let (Some(posted), Some(place)) = (&question, place)
            && self.messages[place].parts != posted.parts
        {
            return Err(RequestEffect::Refused(RequestConflict::UnnamedEdit));
        }
        let named = request.message_id().or(response);
        if let Some(place) = named.and_then(|id| self.place_of(id, Role::Assistant)) {
            return Ok(RequestChange::keep(place));
        }
        if let Some(id) = named.filter(|id| self.new_live_message() == Some(*id)) {
            return Ok(RequestChange::removed(id));
        }
        if let Some(named) = named.and_then(|id| self.place_of(id, Role::User)) {
            return self.regeneration_of_response_to(named, place == Some(named));
        }
        if let Some(after) = named.and_then(|id| self.past_messages.removed(id)) {
            return Err(self.response_after(after));
        }
        if let Some(place) = place {
            return self.regeneration_of_response_to(place, true);
        }
        // The page posts neither messages nor an id.
        if named.is_none()
            && question.is_none()
            && let Some(last) = self.place_of_last_question()
        {
            return self.regeneration_of_response_to(last, false);
        }
        match question {
            Some(posted) if self.past_messages.removed(&posted.id).is_some() => {
                Err(RequestEffect::NotAnswered)
            }
            // The request that sent the message did not arrive.
            Some(posted) => Ok(RequestChange { message: Some(posted), ..RequestChange::default() }),
            None => Err(RequestEffect::Refused(RequestConflict::NothingToRegenerate)),
        }
    }

    /// Returns the removal of the response to the user message at this place, and of all messages after
    /// it. If other user messages follow, this happens once for each text of the message: the same request
    /// may have regenerated the response before they were sent. `has_text` is whether the request posts the
    /// text.
    fn regeneration_of_response_to(
        &self,
        place: usize,
        has_text: bool,
    ) -> Result<RequestChange, RequestEffect> {
        let UiMessage { id: question, parts, .. } = &self.messages[place];
        if self.regenerated.as_ref() == Some(question)
            && let Some(response) = self.live_response_to(question)
        {
            return Err(RequestEffect::AwaitsResponse(response.clone()));
        }
        let change = regeneration_after(parts);
        let known = if has_text { &*change } else { REGENERATED };
        let is_known = self.past_messages.has_change(question, known);
        if is_known && Some(place) != self.place_of_last_question() {
            return Err(self.response_after(Some(question)));
        }
        Ok(RequestChange {
            change: Some((question.clone(), change)),
            regenerated: Some(question.clone()),
            ..RequestChange::keep(place + 1)
        })
    }

    pub(super) fn place_of_last_question(&self) -> Option<usize> {
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
}
