//! A turn that finds a live run joins it, or ends it if its server is gone.

use super::decision::{Append, Decision, Memory, Response, View};
use super::entry::{Entry, OtherEntry, RunEnd};
use super::state::{ChatState, Live, Step};
use super::writer::{accepted, result_entry, write_lost_end};
use crate::conversation::live_message::waiting_outer_calls;
use crate::conversation::{Chat, ReceivedResult};
use ui_message_stream::UserText;
use ui_message_stream::approval::{DeferredOutcome, PendingToolCall};
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::MessageId;
use ui_message_stream::message::{Part, Role, ToolState, UiMessage};

/// Joins the live run if it writes this message. Otherwise the response is the stored message.
pub(crate) fn join_or_stored(view: &View, id: MessageId, memory: &Memory) -> Decision {
    match view.state.live().filter(|live| live.message_id == id) {
        Some(live) => join(view, live, memory),
        None => Decision::Done(Response::Stored(id)),
    }
}

/// Joins the live run, unless its lease has passed. Then this turn ends it.
pub(crate) fn join(view: &View, live: &Live, memory: &Memory) -> Decision {
    if view.head.is_lost {
        return end_lost(view, live, memory);
    }
    let is_empty = live.begun_parts > 0 && view.state.length() == live.begin + 1;
    if is_empty && memory.waits < MAX_WAITS_FOR_ENTRY {
        // No frame of the run has an `id:` yet, with which a client that reads the message could continue.
        return Decision::WaitForEntry;
    }
    if view.state.lacks_begun_message() {
        return Decision::LoadWhole;
    }
    Decision::Done(view.joined(live))
}

/// Ends a lost run, and resumes it where that repeats nothing and loses nothing.
pub(crate) fn end_lost(view: &View, live: &Live, memory: &Memory) -> Decision {
    // A process that stood still renews the lease as soon as it goes on.
    let reads = if live.is_handed_over { 1 } else { LOST_READS };
    if memory.lost_reads < reads {
        return Decision::WaitForHolder;
    }
    if view.state.lacks_frames() {
        return Decision::LoadWhole;
    }
    let chat = view.state.chat();
    let open = chat.undecided_calls();
    let Some(known) = memory.known_of(&open) else { return Decision::FindDecided(open) };
    if known.has_failed {
        // The next reader tries again.
        return Decision::Done(Response::Failed);
    }
    let is_executing =
        |known: &ReceivedResult| matches!(known.result.outcome, DeferredOutcome::Executing { .. });
    if known.results.iter().any(is_executing) && memory.waits < MAX_WAITS_FOR_RESULT {
        // Its server may be alive, or the ledger does not yet know that it is lost.
        return Decision::WaitForHolder;
    }
    let mut entries = accepted(chat, &known.results);
    entries.extend(unknown_calls(chat, live));
    let mut next = view.state.clone();
    if !entries.iter().all(|entry| next.apply(entry).is_ok()) {
        return Decision::Done(Response::Failed);
    }
    let how = match live.step {
        Step::Called => RunEnd::Interrupted,
        _ if !has_to_go_on(&next, live) => match next.may_lack_answers() {
            // The client may not send them again.
            true => RunEnd::Interrupted,
            false => RunEnd::Finished,
        },
        _ if !memory.may_resume || view.state.losses() >= MAX_LOSSES || memory.has_no_place() => {
            RunEnd::Interrupted
        }
        _ => RunEnd::ResumedBy(memory.run()),
    };
    let is_resumed = matches!(how, RunEnd::ResumedBy(_));
    let cut_off = matches!(how, RunEnd::Interrupted);
    if cut_off || !is_resumed && live.step.end().is_none() {
        // Readers of the lost server may have read text that the log does not hold, and this is other text.
        entries.push(OtherEntry::HandedOver.into());
        let cut_off = cut_off.then(|| AgentEvent::error(UserText::AnswerInterrupted));
        entries.extend(write_lost_end(cut_off.as_ref(), &mut next));
    }
    entries.push(live.end(how));
    entries.extend(is_resumed.then(|| memory.begin(&live.message_id)));
    let lease = is_resumed.then_some(memory.settings.lease);
    // It depends on the frames, so on the position.
    let append = Append::new(view.position(), entries);
    Decision::Append(Append { lease, only_lost: true, ..append })
}

/// Whether the model has to be called for the message of a lost run.
fn has_to_go_on(next: &ChatState, live: &Live) -> bool {
    let chat = next.chat();
    if chat.message_to_continue() == Some(&live.message_id) {
        return true;
    }
    if live.step.end().is_some() {
        return false;
    }
    match chat.message(&live.message_id) {
        None => chat.messages.last().is_some_and(|last| last.role == Role::User),
        Some(message) => !chat.has_open_calls(message) && ends_with_calls(message),
    }
}

/// Whether the last step of a message has calls, whose results the model has not read.
fn ends_with_calls(message: &UiMessage) -> bool {
    let steps = message.parts.iter().rev();
    let mut last = steps.take_while(|part| !matches!(part, Part::StepStart { .. }));
    last.any(|part| matches!(part, Part::Tool(_)))
}

/// The results of the calls of a lost run that its server may have executed.
fn unknown_calls(chat: &Chat, live: &Live) -> Vec<Entry> {
    let message_id = &live.message_id;
    let message = chat.message(message_id);
    let waiting = message
        .map(|message| waiting_outer_calls(message, live.step == Step::Called))
        .unwrap_or_default();
    let parts = message.into_iter().flat_map(UiMessage::tool_parts);
    let is_of_client = |id: &_| chat.client_executed.iter().any(|call| call.tool_call_id == *id);
    let started = parts.filter(|part| {
        let is_started = matches!(part.state, ToolState::InputAvailable { .. })
            || matches!(part.state, ToolState::OutputAvailable { .. }) && !part.is_settled();
        is_started
            && part.approval_id().is_none()
            && !is_of_client(&part.tool_call_id)
            && !waiting.contains(&part.tool_call_id)
    });
    let unknown = started.map(|part| {
        let call = PendingToolCall::of_part(part);
        let mut result = call.with_outcome(DeferredOutcome::OutcomeUnknown);
        result.message_id = Some(message_id.clone());
        result_entry(chat, &ReceivedResult::new(result, None))
    });
    unknown.collect()
}

/// How often a turn waits for the first entry of a run, a hundredth of a second each time.
const MAX_WAITS_FOR_ENTRY: u32 = 20;

/// How often a turn waits for the results of calls that a lost server may still execute, a twentieth of the
/// lease each time, at most half a second: 40 seconds with the default lease. A result that comes later is
/// appended by the turn that executes the call.
const MAX_WAITS_FOR_RESULT: u32 = 80;

/// How many reads in a row find the lease of a run passed before the run is ended.
const LOST_READS: u8 = 6;

/// How many lost runs in a row are resumed without a request.
const MAX_LOSSES: u32 = 2;
