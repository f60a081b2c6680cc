//! [`decide`]: what a turn does next with the chat that it has read. A pure function.

use std::panic::Location;

use super::answer::{answer, settle};
use super::decision::{Decision, Goal, Memory, Redemption, Response, TurnSettings, View, plan_of};
use super::entry::{Entry, OtherEntry, RunEnd};
use super::join::{end_lost, join, join_or_stored};
use super::state::{LastEnd, Live};
use super::writer::accepted;
use crate::conversation::request_change::{NoChange, RequestChange, apply_change, change_of};
use crate::conversation::{Chat, RequestEffect};
use crate::store::Expected;
use ui_message_stream::UserText;
use ui_message_stream::approval::PendingToolCall;
use ui_message_stream::message::{Role, UiMessage};
use ui_message_stream::request::ChatRequest;

/// Decides what a turn does next. `view` is `None` if the chat has no log.
pub(crate) fn decide(view: Option<&View>, goal: &Goal, memory: &Memory) -> Decision {
    let Some(view) = view else { return without_log(goal, memory) };
    let live = view.state.live();
    match goal {
        Goal::Ask(request) => ask(view, memory, request),
        Goal::Answer { message_id, plan, posted } => {
            answer(view, memory, message_id, plan, posted.as_deref())
        }
        Goal::Stop => match live.filter(|live| is_stopped(view, live, memory)) {
            Some(live) => memory.append(view.control(), vec![live.end(RunEnd::Stopped)]),
            None => Decision::Done(Response::Nothing),
        },
        Goal::Delete if memory.epoch != Some(view.head.epoch) => without_log(goal, memory),
        Goal::Delete => {
            let epoch = view.head.epoch;
            let control = view.head.control;
            if memory.revoked == Some(Some((epoch, control))) {
                Decision::Delete { epoch, control }
            } else {
                Decision::RevokePending
            }
        }
        Goal::Follow => match live {
            // The reader has a lost run mended.
            Some(live) if view.head.is_lost => {
                if view.state.lacks_begun_message() {
                    Decision::LoadWhole
                } else {
                    Decision::Done(view.joined(live))
                }
            }
            Some(live) => join(view, live, memory),
            None => Decision::Done(Response::Nothing),
        },
        Goal::Mend(run) | Goal::Expire(run) => match live {
            Some(live) if live.run == *run && view.head.is_lost => end_lost(view, live, memory),
            _ => Decision::Done(Response::Nothing),
        },
        Goal::Settle { has_expired } => settle(view, memory, *has_expired),
    }
}

/// Whether a stop means this run: it was live when the stop came, or resumes the run that was. A run that has
/// begun since answers a newer request.
fn is_stopped(view: &View, live: &Live, memory: &Memory) -> bool {
    let found = memory.found_live.as_ref().and_then(Option::as_ref);
    let resumes = |last: &LastEnd| {
        Some(&last.run) == found && last.end == RunEnd::ResumedBy(live.run.clone())
    };
    found == Some(&live.run) || view.state.last_end().is_some_and(resumes)
}

fn without_log(goal: &Goal, memory: &Memory) -> Decision {
    match goal {
        Goal::Ask(request) if !memory.has_begun => {
            let TurnSettings { owner, history_import, epoch, .. } = &memory.settings;
            let chat = Chat::from_client_history(request, owner.clone(), *history_import);
            let change = match allowed_change(&chat, request, memory) {
                Ok((change, _)) => change,
                Err(decision) => return decision,
            };
            let messages: Vec<UiMessage> = chat.messages.iter().cloned().collect();
            let import = (!messages.is_empty()).then(|| OtherEntry::Import { messages }.into());
            let begin = memory.begin(&memory.settings.message_id);
            let request = OtherEntry::Request(change).into();
            let entries = [request, begin, OtherEntry::Step.into()];
            let entries = import.into_iter().chain(entries).collect();
            match memory.has_no_place() {
                true => Decision::Done(Response::TooManyRuns),
                // An earlier attempt may have created a log that was deleted since.
                false => memory.append(Expected::NoLog(epoch.after(memory.attempts)), entries),
            }
        }
        Goal::Answer { .. } => match memory.redemption {
            Redemption::Storing | Redemption::Executing => Decision::AwaitResults,
            _ => Decision::Done(Response::UnknownCalls(Location::caller())),
        },
        Goal::Delete if memory.revoked != Some(None) => Decision::RevokePending,
        _ => Decision::Done(Response::Nothing),
    }
}

/// Returns what a request changes in this chat, and the changed chat.
///
/// # Errors
/// What the turn does, if the request changes nothing, or the chat is full.
fn allowed_change(
    chat: &Chat,
    request: &ChatRequest,
    memory: &Memory,
) -> Result<(RequestChange, Chat), Decision> {
    let TurnSettings { posted_history, limits, .. } = &memory.settings;
    let change =
        change_of(chat, request, *posted_history).map_err(|NoChange { effect, site }| {
            Decision::Done(match effect {
                RequestEffect::Answered(id) | RequestEffect::AwaitsResponse(id) => {
                    Response::Stored(id)
                }
                RequestEffect::Refused(conflict) => Response::Refused(conflict, site),
                _ => Response::AlreadyReceived(site),
            })
        })?;
    let outputs = chat.bytes_of_new_outputs(request.messages());
    let mut next = chat.clone();
    apply_change(&mut next, change.clone());
    if request.new_user_message().is_some() || outputs > 0 {
        let messages = request.new_user_message().map_or(0, |_| next.messages.len());
        limits
            .check_chat(messages, next.bytes() + outputs)
            .map_err(|limit| Decision::Done(Response::Limit(limit)))?;
    }
    Ok((change, next))
}

/// A new message, an edit or a regeneration: ends the live run, closes the open calls, changes the
/// messages, and begins a run, with its first step if the model can be called at once. All of it is one append.
fn ask(view: &View, memory: &Memory, request: &ChatRequest) -> Decision {
    let chat = view.state.chat();
    let live = view.state.live();
    if let Some(last) = view.state.last_end().filter(|last| memory.is_own(&last.run)) {
        // The run of this turn is over.
        return Decision::Done(Response::Join {
            epoch: view.head.epoch,
            run: last.run.clone(),
            message_id: last.message_id.clone(),
            begin: last.begin,
            begun: None,
            length: 0,
        });
    }
    if memory.has_begun {
        // A regeneration that names no message would remove the answer of this turn.
        let last = chat.messages.last().filter(|last| last.role == Role::Assistant);
        let stored = last.map(|last| Response::Stored(last.id.clone()));
        return Decision::Done(stored.unwrap_or(Response::AlreadyReceived(Location::caller())));
    }
    let (change, next) = match allowed_change(chat, request, memory) {
        Ok(allowed) => allowed,
        Err(Decision::Done(Response::Stored(id))) => return join_or_stored(view, id, memory),
        Err(decision) => return decision,
    };
    if memory.has_no_place() && live.is_none() {
        return Decision::Done(Response::TooManyRuns);
    }
    let open = open_calls(chat);
    let kept = open_calls(&next);
    let removed = open.iter().filter(|call| !kept.contains(call));
    let removed: Vec<PendingToolCall> = removed.cloned().collect();
    let Some(known) = memory.known_of(&open).filter(|known| known.are_closed) else {
        let plan = Box::new(plan_of(request));
        return Decision::CloseCalls { open, removed, plan };
    };
    if known.has_failed && !removed.is_empty() {
        // Nothing would show later that an approval of such a call comes too late.
        return Decision::Done(Response::Failed);
    }
    let run = memory.run();
    let mut entries: Vec<Entry> = Vec::new();
    entries.extend(live.map(|live| live.end(RunEnd::Replaced)));
    entries.push(OtherEntry::Request(change).into());
    entries.push(memory.begin(&memory.settings.message_id));
    // After the run has begun, because its readers are shown them.
    let closed = accepted(&next, &known.results);
    let can_step = closed.is_empty() && !view.state.lacks_frames();
    entries.extend(closed);
    if known.has_failed {
        // The calls that could not be closed lapse, because a message follows them.
        entries.push(
            OtherEntry::End { run, end: RunEnd::Failed(UserText::AnswerFailed.to_string()) }.into(),
        );
    } else if can_step {
        entries.push(OtherEntry::Step.into());
    }
    memory.append(view.control(), entries)
}

/// The calls that wait for a decision of a user, or for the client that executes them.
fn open_calls(chat: &Chat) -> Vec<PendingToolCall> {
    let mut open = chat.undecided_calls();
    open.extend(chat.client_executed.iter().cloned());
    open
}
