//! [`RequestChange`]: what a request of the user changes in a conversation.

use std::panic::Location;

use serde::{Deserialize, Serialize};

use super::delivery::{REGENERATED, digest_of_edit, regeneration_after};
use super::history_import::{HistoryImport, imported};
use super::{Chat, PostedHistory, RequestConflict, RequestEffect};
use ui_message_stream::id::MessageId;
use ui_message_stream::message::{Role, UiMessage};
use ui_message_stream::request::{ChatRequest, Trigger};

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

/// The effect of a request that changes nothing, and the place in the source that has found it.
#[derive(Debug)]
pub(crate) struct NoChange {
    pub(crate) effect: RequestEffect,
    pub(crate) site: &'static Location<'static>,
}

impl NoChange {
    #[track_caller]
    fn new(effect: RequestEffect) -> Self {
        NoChange { effect, site: Location::caller() }
    }
}

/// Returns what a request changes in this conversation.
///
/// # Errors
/// [`NoChange`], if the request changes nothing.
pub(crate) fn change_of(
    chat: &Chat,
    request: &ChatRequest,
    posted_history: PostedHistory,
) -> Result<RequestChange, NoChange> {
    if *request.trigger() == Trigger::RegenerateMessage {
        return regeneration(chat, request);
    }
    if let Some(message) = request.new_user_message() {
        return new_message(chat, request, message, posted_history);
    }
    let Some(continued) = request.continued_message() else {
        return first_message(chat);
    };
    let id = &continued.id;
    if chat.place_of(id, Role::Assistant).is_some() {
        return Err(NoChange::new(RequestEffect::Continues(id.clone())));
    }
    match chat.past_messages.removed(id) {
        Some(after) => Err(response_after(chat, after)),
        None => Ok(RequestChange::removed(id)),
    }
}

/// Applies a change that [`change_of`] has returned for this conversation.
pub(crate) fn apply_change(chat: &mut Chat, change: RequestChange) {
    let RequestChange { keep, removed, change, regenerated, message } = change;
    if let Some((id, change)) = change {
        chat.past_messages.add_change(&id, change);
    }
    if let Some(keep) = keep {
        chat.truncate(keep);
    }
    if let Some(removed) = removed {
        let last = chat.messages.last().map(|message| message.id.clone());
        chat.past_messages.add_removed(removed, last);
    }
    if let Some(message) = message {
        if chat.regenerated.as_ref() == Some(&message.id) {
            chat.regenerated = None;
        }
        chat.end_all_outer_calls();
        chat.messages.push(message);
    }
    if regenerated.is_some() {
        chat.regenerated = regenerated;
    }
}

/// A request without messages: the agent speaks first, in a chat that holds no message yet.
fn first_message(chat: &Chat) -> Result<RequestChange, NoChange> {
    if chat.place_of_last_question().is_some() {
        return Err(NoChange::new(RequestEffect::Refused(RequestConflict::NothingNew)));
    }
    let first = new_live_message(chat).map(|live| RequestEffect::AwaitsResponse(live.clone()));
    let stored = || Some(RequestEffect::Answered(chat.messages.first()?.id.clone()));
    match first.or_else(stored) {
        Some(effect) => Err(NoChange::new(effect)),
        None => Ok(RequestChange::default()),
    }
}

fn new_message(
    chat: &Chat,
    request: &ChatRequest,
    message: &UiMessage,
    posted_history: PostedHistory,
) -> Result<RequestChange, NoChange> {
    let id = &message.id;
    let message = imported(message, HistoryImport::Texts);
    let Some(place) = chat.place_of(id, Role::User) else {
        if chat.past_messages.removed(id).is_some() {
            return Err(NoChange::new(RequestEffect::NotAnswered));
        }
        let is_cut = posted_history == PostedHistory::Truncate;
        let keep = is_cut.then(|| posted_prefix(chat, request)).flatten();
        return Ok(RequestChange { keep, message: Some(message), ..RequestChange::default() });
    };
    if chat.messages[place].parts == message.parts {
        return Err(response_after(chat, Some(id)));
    }
    if request.message_id() != Some(id) {
        return Err(NoChange::new(RequestEffect::Refused(RequestConflict::UnnamedEdit)));
    }
    let edit = digest_of_edit(&message.parts);
    if chat.past_messages.is_known_change(id, &edit) {
        // The message has another text since, so its response does not answer this one.
        return Err(NoChange::new(RequestEffect::NotAnswered));
    }
    let change = Some((id.clone(), edit));
    Ok(RequestChange { change, message: Some(message), ..RequestChange::keep(place) })
}

/// Returns the number of posted messages before the new one, if they are the first messages of
/// this conversation, but not all of them.
fn posted_prefix(chat: &Chat, request: &ChatRequest) -> Option<usize> {
    posted_prefix_of(chat, request, chat.messages.len())
}

/// Returns the number of posted messages before the new one, if they are the first of these
/// messages of this conversation, but not all of them.
fn posted_prefix_of(chat: &Chat, request: &ChatRequest, messages: usize) -> Option<usize> {
    let (_, posted) = request.messages().split_last()?;
    let is_prefix = !request.is_last_message_only()
        && posted.len() < messages
        && posted.iter().zip(chat.messages.iter()).all(|(posted, own)| posted.id == own.id);
    is_prefix.then_some(posted.len())
}

/// Returns the number of messages before the new message of this request that the posted history
/// lacks at its end. They are kept with [`PostedHistory::Keep`].
pub(crate) fn kept_messages(chat: &Chat, request: &ChatRequest) -> usize {
    let new = request.new_user_message();
    let place = new.and_then(|message| chat.place_of(&message.id, Role::User));
    let prefix = place.and_then(|place| Some(place - posted_prefix_of(chat, request, place)?));
    prefix.unwrap_or_default()
}

/// Returns the removal of the response to be written again, and of all messages after it.
fn regeneration(chat: &Chat, request: &ChatRequest) -> Result<RequestChange, NoChange> {
    let last = request.messages().last();
    let (question, response) = match last {
        Some(last) if last.role == Role::User => (Some(imported(last, HistoryImport::Texts)), None),
        Some(last) => (None, Some(&last.id)),
        None => (None, None),
    };
    let place = question.as_ref().and_then(|posted| chat.place_of(&posted.id, Role::User));
    if let (Some(posted), Some(place)) = (&question, place)
        && chat.messages[place].parts != posted.parts
    {
        return Err(NoChange::new(RequestEffect::Refused(RequestConflict::UnnamedEdit)));
    }
    let named = request.message_id().or(response);
    if let Some(place) = named.and_then(|id| chat.place_of(id, Role::Assistant)) {
        return Ok(RequestChange::keep(place));
    }
    if let Some(id) = named.filter(|id| new_live_message(chat) == Some(*id)) {
        return Ok(RequestChange::removed(id));
    }
    if let Some(named) = named.and_then(|id| chat.place_of(id, Role::User)) {
        return regeneration_of_response_to(chat, named, place == Some(named));
    }
    if let Some(after) = named.and_then(|id| chat.past_messages.removed(id)) {
        return Err(response_after(chat, after));
    }
    if let Some(place) = place {
        return regeneration_of_response_to(chat, place, true);
    }
    // The page posts neither messages nor an id.
    if named.is_none()
        && question.is_none()
        && let Some(last) = chat.place_of_last_question()
    {
        return regeneration_of_response_to(chat, last, false);
    }
    match question {
        Some(posted) if chat.past_messages.removed(&posted.id).is_some() => {
            Err(NoChange::new(RequestEffect::NotAnswered))
        }
        // The request that sent the message did not arrive.
        Some(posted) => Ok(RequestChange { message: Some(posted), ..RequestChange::default() }),
        None => Err(NoChange::new(RequestEffect::Refused(RequestConflict::NothingToRegenerate))),
    }
}

/// Returns the removal of the response to the user message at this place, and of all messages after
/// it. If other user messages follow, this happens once for each text of the message: the same request
/// may have regenerated the response before they were sent. `has_text` is whether the request posts the
/// text.
fn regeneration_of_response_to(
    chat: &Chat,
    place: usize,
    has_text: bool,
) -> Result<RequestChange, NoChange> {
    let UiMessage { id: question, parts, .. } = &chat.messages[place];
    if chat.regenerated.as_ref() == Some(question)
        && let Some(response) = live_response_to(chat, question)
    {
        return Err(NoChange::new(RequestEffect::AwaitsResponse(response.clone())));
    }
    let change = regeneration_after(parts);
    let known = if has_text { &*change } else { REGENERATED };
    let is_known = chat.past_messages.has_change(question, known);
    if is_known && Some(place) != chat.place_of_last_question() {
        return Err(response_after(chat, Some(question)));
    }
    Ok(RequestChange {
        change: Some((question.clone(), change)),
        regenerated: Some(question.clone()),
        ..RequestChange::keep(place + 1)
    })
}

/// Returns the effect of a request that was delivered before. `question` is the message before
/// its response.
#[track_caller]
fn response_after(chat: &Chat, question: Option<&MessageId>) -> NoChange {
    let Some(question) = question else { return NoChange::new(RequestEffect::NotAnswered) };
    if let Some(response) = live_response_to(chat, question) {
        return NoChange::new(RequestEffect::AwaitsResponse(response.clone()));
    }
    let next = chat.messages.position(question).and_then(|place| chat.messages.get(place + 1));
    NoChange::new(match next.filter(|next| next.role == Role::Assistant) {
        Some(response) => RequestEffect::Answered(response.id.clone()),
        None => RequestEffect::NotAnswered,
    })
}

/// Returns the id of the message of the live run, if the run writes it in response to this
/// message. Its first steps may be stored.
fn live_response_to<'c>(chat: &'c Chat, question: &MessageId) -> Option<&'c MessageId> {
    let last = chat.messages.last()?;
    let before = chat.messages.len().checked_sub(2).and_then(|at| chat.messages.get(at));
    new_live_message(chat).filter(|live| {
        if last.id == **live {
            before.is_some_and(|before| before.id == *question)
        } else {
            last.id == *question
        }
    })
}

/// Returns the id of the message of the live run, if the run does not continue the message with
/// the results of answers.
fn new_live_message(chat: &Chat) -> Option<&MessageId> {
    chat.runs.live.as_ref().filter(|live| live.is_new).map(|live| &live.id)
}
