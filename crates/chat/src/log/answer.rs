//! [`answer`]: what a request does that answers calls.

use std::panic::Location;

use super::decision::{Decision, Memory, Redemption, Response, View};
use super::entry::Entry;
use super::join::{join, join_or_stored};
use super::writer::accepted;
use crate::conversation::request_change::{NoChange, change_of};
use crate::conversation::{Chat, ReceivedResult, RequestEffect, approval_status};
use ui_message_stream::approval::{ApprovalStatus, ResumePlan};
use ui_message_stream::id::MessageId;
use ui_message_stream::message::{ToolState, UiMessage};
use ui_message_stream::request::ChatRequest;

/// Redeems the answers of a request, and begins the run that reads the results.
pub(crate) fn answer(
    view: &View,
    memory: &Memory,
    message_id: &MessageId,
    plan: &ResumePlan,
    posted: Option<&ChatRequest>,
) -> Decision {
    let state = &view.state;
    let chat = view.state.chat();
    let live = state.live();
    let is_last = chat.messages.last().is_some_and(|last| last.id == *message_id);
    let may_begin = live.is_none() && is_last && !memory.has_no_place();
    let begin = || memory.begin(message_id);
    let is_due = |chat: &Chat| chat.message_to_continue() == Some(message_id);
    let results = accepted(chat, &memory.outbox);
    match memory.redemption {
        Redemption::Due => {
            let Some(message) = chat.message(message_id) else {
                return answer_to_removed(view, memory, posted);
            };
            let answered = Answered::of(plan, message, chat, posted.is_some());
            let is_live = live.is_some_and(|live| live.message_id == *message_id);
            if answered.is_unknown && is_live && state.lacks_frames() {
                // The calls may be in the frames.
                return Decision::LoadWhole;
            }
            if !answered.is_any {
                return Decision::Done(if answered.is_unknown {
                    Response::UnknownCalls(Location::caller())
                } else {
                    Response::Stored(message_id.clone())
                });
            }
            if answered.is_open && live.is_none() && is_last && memory.has_no_place() {
                return Decision::Done(Response::TooManyRuns);
            }
            let outputs = posted.map_or(0, |posted| chat.bytes_of_new_outputs(posted.messages()));
            if outputs > 0
                && let Err(limit) = memory.settings.limits.check_chat(0, chat.bytes() + outputs)
            {
                return Decision::Done(Response::Limit(limit));
            }
            // The run shows the results as they come.
            if answered.is_open && may_begin && !memory.has_begun {
                memory.append(view.control(), vec![begin()])
            } else {
                Decision::Redeem
            }
        }
        _ if !results.is_empty() => append_results(view, memory, results, Some(message_id)),
        Redemption::Storing | Redemption::Executing => Decision::AwaitResults,
        Redemption::Failed => Decision::Done(Response::Failed),
        Redemption::None | Redemption::Done => match live {
            Some(live) if live.message_id == *message_id => join(view, live, memory),
            None if may_begin && is_due(chat) => memory.append(view.control(), vec![begin()]),
            // The client sends the same answers again.
            None if is_last && is_due(chat) => Decision::Done(Response::TooManyRuns),
            _ => Decision::Done(Response::Stored(message_id.clone())),
        },
    }
}

/// Appends the outcomes that the ledger has for open calls: they have expired, or the turn that was to append
/// them was lost. If a user has decided, the run begins that reads them, also if there was no place for it
/// when the results came. If a request `has_expired`, the readers of a live run are shown what was closed without a
/// decision. The turns of those who decide append the other outcomes.
pub(crate) fn settle(view: &View, memory: &Memory, has_expired: bool) -> Decision {
    let state = &view.state;
    let open = view.state.chat().undecided_calls();
    let is_live = state.live().is_some();
    if is_live && !has_expired {
        return Decision::Done(Response::Nothing);
    }
    let Some(known) = memory.known_of(&open) else { return Decision::FindDecided(open) };
    let is_due = |known: &&ReceivedResult| !is_live || known.result.outcome.is_closed_undecided();
    let results = accepted(state.chat(), known.results.iter().filter(is_due));
    if !results.is_empty() {
        return append_results(view, memory, results, None);
    }
    match state.chat().due_message().filter(|_| !memory.has_no_place()) {
        Some(due) => memory.append(view.control(), vec![memory.begin(due)]),
        // The next one who loads the chat tries again.
        None if known.has_failed => Decision::Done(Response::Failed),
        None => Decision::Done(Response::Nothing),
    }
}

/// Appends results. If they complete a message, this one if there is one, the run that reads them begins with
/// them: all of it is one append.
fn append_results(
    view: &View,
    memory: &Memory,
    mut entries: Vec<Entry>,
    of: Option<&MessageId>,
) -> Decision {
    let mut next = view.state.clone();
    let is_applied = entries.iter().all(|entry| next.apply(entry).is_ok());
    let may_begin = is_applied && next.live().is_none() && !memory.has_no_place();
    let due = next.chat().message_to_continue().filter(|id| of.is_none_or(|of| of == *id));
    entries.extend(due.filter(|_| may_begin).map(|id| memory.begin(id)));
    memory.append(view.control(), entries)
}

/// The message was removed, or the chat has never had it. A response that has replaced it is shown.
fn answer_to_removed(view: &View, memory: &Memory, posted: Option<&ChatRequest>) -> Decision {
    let chat = view.state.chat();
    let change = posted.map(|posted| change_of(chat, posted, memory.settings.posted_history));
    match change {
        Some(Err(NoChange { effect, site })) => match effect {
            RequestEffect::Answered(id) | RequestEffect::AwaitsResponse(id) => {
                join_or_stored(view, id, memory)
            }
            _ => Decision::Done(Response::AlreadyReceived(site)),
        },
        Some(Ok(_)) | None => Decision::Done(Response::UnknownCalls(Location::caller())),
    }
}

/// Which calls of a message a request answers.
struct Answered {
    is_any: bool,
    /// One of them has no result.
    is_open: bool,
    /// The request answers calls that the message does not hold.
    is_unknown: bool,
}

impl Answered {
    /// A client that has posted the message names the whole call, and not only the approval.
    fn of(plan: &ResumePlan, message: &UiMessage, chat: &Chat, is_posted: bool) -> Self {
        let mut is_any = false;
        let mut is_open = false;
        let mut is_unknown = false;
        let approvals = plan.unverified_responses().map(|answer| {
            let mut parts = message.tool_parts();
            let part = parts.find(|part| {
                if is_posted {
                    answer.is_of(part, message)
                } else {
                    part.approval_id() == Some(&answer.approval_id)
                }
            });
            let closed = chat.call_outcomes.iter();
            let mut closed = closed.filter(|known| known.message_id.as_ref() == Some(&message.id));
            let is_closed =
                closed.any(|known| known.approval_id.as_ref() == Some(&answer.approval_id));
            // Handed to the client, which may have executed it since.
            let mut parts = message.tool_parts();
            let is_handed_over = parts.any(|part| {
                part.tool_call_id == answer.tool_call_id
                    && part.approval_id().is_none()
                    && approval_status(message, part) == Some(ApprovalStatus::Approved)
            });
            part.map(|part| matches!(part.state, ToolState::ApprovalRequested { .. }))
                .or((is_closed || is_handed_over).then_some(false))
        });
        let outputs = plan.unverified_outputs().map(|output| {
            let mut parts = message.tool_parts();
            parts.find(|part| part.tool_call_id == output.tool_call_id)?;
            let mut of_client = chat.client_executed.iter();
            Some(of_client.any(|call| call.tool_call_id == output.tool_call_id))
        });
        for answered in approvals.chain(outputs) {
            is_any |= answered.is_some();
            is_open |= answered == Some(true);
            is_unknown |= answered.is_none();
        }
        Answered { is_any, is_open, is_unknown }
    }
}
