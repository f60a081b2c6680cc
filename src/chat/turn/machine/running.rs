//! [`OwnRun`]: the run of a turn, while this turn is its holder.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::io::{Action, AgentCall, Effect, EndedMessage, Input, RunLimit};
use crate::approval::{DeferredOutcome, DeferredToolResult};
use crate::chat::conversation::{Chat, KeptSteps, LiveRun, ReceivedResult};
use crate::chat::log::{AppendResult, HolderStatus, LogEntry};
use crate::chat::run_log::{LogClient, LogWriter};
use crate::chunk::Chunk;
use crate::event::{AgentEvent, MASKED_ERROR};
use crate::id::{ApprovalId, ToolCallId};
use crate::message::UiMessage;

/// A run: its log, the part of it that is stored, and its phase.
#[derive(Debug)]
pub(super) struct OwnRun {
    pub(super) live: LiveRun,
    /// The newest version of the conversation that was loaded. `revision` is `None` if the store does
    /// not hold it.
    chat: Box<Chat>,
    revision: Option<u64>,
    writer: LogWriter,
    /// The number of entries that the store holds.
    length: u64,
    /// The number of bytes that the store holds.
    bytes: usize,
    in_flight: Option<InFlight>,
    phase: Phase,
    /// The results that this turn has redeemed.
    pub(super) results: Vec<ReceivedResult>,
    /// The results that the conversation does not hold, for the agent.
    pub(super) not_recorded: Vec<DeferredToolResult>,
    /// The results since the last model call that the log holds, for the agent.
    recorded: Vec<DeferredToolResult>,
    /// The model is called also if no result is unread: the user asked, or an answer was not
    /// accepted, which the client sends again if the response has no step after it.
    has_to_call: bool,
    /// The event with which the run ends early. The model is not called again.
    stopped_by: Option<AgentEvent>,
    /// The message has its end in the log.
    is_message_ended: bool,
    /// The save that the store has not answered.
    saving: Option<Saving>,
    is_loading: bool,
    has_to_renew: bool,
    /// A save of the end was started, and the conversation was not loaded since.
    was_saved: bool,
    /// The saved conversation has unread results in a message of another run.
    pub(super) leaves_unread: bool,
    /// A model call was cut off. Its agent may have requested approvals that no event shows.
    was_cut: bool,
    /// The approvals that the next model call sends, while they are claimed.
    claiming: Vec<DeferredToolResult>,
    /// The approvals that the agent has requested in this run.
    requested: Vec<ApprovalId>,
    replies: Replies,
    limits: RunLimits,
}

/// To which answers of a request the model has to reply, although they change nothing.
#[derive(Debug, Default)]
pub(super) struct Replies {
    /// The approval requests that the request answers. A request can also hold a call without an
    /// answer, or with a forged output: the call is still open, or was closed before.
    pub(super) answered: Vec<ApprovalId>,
    /// The message has parts that the page does not hold. The response brings them, and among them
    /// is the reply to an earlier delivery of the answers.
    pub(super) is_repeated: bool,
}

/// The limits of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunLimits {
    pub(super) max_bytes: usize,
    /// The maximum time without a reader.
    pub(super) max_unread: Duration,
    pub(super) client: LogClient,
}

/// How a run begins.
#[derive(Debug)]
pub(super) struct Beginning {
    /// The model is called in any case.
    pub(super) has_to_call: bool,
    pub(super) replies: Replies,
    /// What this turn has closed. If other messages hold the results, the response shows them.
    pub(super) closed: Vec<ReceivedResult>,
}

/// What a save stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saving {
    /// The message up to the end of a step. The run goes on.
    StepEnd(KeptSteps),
    /// The complete message, without the run.
    Message,
}

/// An append that the store has not answered.
#[derive(Debug)]
struct InFlight {
    length: u64,
    bytes: usize,
    end: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The answers are redeemed.
    Redeeming,
    /// The note that the model is called is appended first: it proves that the run is not taken.
    Stepping,
    Claiming,
    Agent,
    /// The conversation is loaded, to find results that arrived meanwhile.
    Loading,
    Loaded,
    Saving,
    /// The end of the log is appended.
    Ending,
    /// The run is over for this turn, which waits for the replies to a save and to a load: they must not
    /// be taken for the replies to later ones.
    Over(EndCause),
}

/// Why a run is over for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndCause {
    /// The run was taken by another turn.
    Taken,
    /// The log has ended.
    Ended,
}

type Actions = VecDeque<Action>;

impl OwnRun {
    /// Starts the run that the conversation names. `posted` is the message that the client continues,
    /// as it has posted it.
    pub(super) fn begin(
        live: LiveRun,
        chat: &Chat,
        posted: Option<&UiMessage>,
        limits: RunLimits,
        beginning: Beginning,
    ) -> Box<Self> {
        let Beginning { has_to_call, replies, closed } = beginning;
        let mut own = Box::new(OwnRun {
            writer: LogWriter::begin(chat, &live, posted, limits.client),
            live,
            chat: Box::new(chat.clone()),
            revision: None,
            length: 0,
            bytes: 0,
            in_flight: None,
            phase: Phase::Redeeming,
            results: Vec::new(),
            not_recorded: Vec::new(),
            recorded: Vec::new(),
            has_to_call,
            stopped_by: None,
            is_message_ended: false,
            saving: None,
            is_loading: false,
            has_to_renew: false,
            was_saved: false,
            leaves_unread: false,
            was_cut: false,
            claiming: Vec::new(),
            requested: Vec::new(),
            replies,
            limits,
        });
        // Other turns may have saved results since the run was named.
        chat.new_results().iter().for_each(|result| own.write_result(result));
        for closed in closed {
            if chat.is_known(&closed.result) {
                own.writer.show_result(&closed);
                own.recorded.push(closed.result);
            } else {
                own.not_recorded.push(closed.result);
            }
        }
        own
    }

    /// Calls the model, unless the run has failed. No answers are being redeemed.
    pub(super) fn start(&mut self) {
        if self.phase == Phase::Redeeming {
            self.step();
        }
    }

    /// Returns the results that arrived after the last entries of the log.
    pub(super) fn results_after_the_log(&self) -> impl Iterator<Item = ReceivedResult> {
        let record = self.writer.record();
        self.results.iter().filter(|result| !record.has_result_of(result)).cloned()
    }

    /// Returns the message of the run and the approvals that it has requested.
    pub(super) fn ended_message(&self) -> EndedMessage {
        EndedMessage { id: self.live.message_id.clone(), requested: self.requested.clone() }
    }

    pub(super) fn is_keeping_step(&self) -> bool {
        matches!(self.saving, Some(Saving::StepEnd(_)))
    }

    pub(super) fn accepts_events(&self) -> bool {
        let in_flight = self.in_flight.as_ref().map_or(0, |append| append.bytes);
        self.phase == Phase::Agent && in_flight + self.writer.queued_bytes() < MAX_UNSTORED_BYTES
    }

    /// Handles an event of the agent.
    pub(super) fn handle_event(&mut self, event: &AgentEvent, actions: &mut Actions) {
        if self.phase != Phase::Agent {
            return;
        }
        if let Some(was_cut) = ends_call(event) {
            actions.push_back(Action::StopAgent);
            self.was_cut |= was_cut;
            self.end_call(Some(event));
            return;
        }
        if let Some(id) = event.requested_approval() {
            self.requested.push(id);
        }
        self.writer.event(event);
        self.writer.note_step(event);
    }

    /// Handles another input. What the run can do then is done by [`advance`](Self::advance). Returns why
    /// the turn leaves the run, if it does.
    pub(super) fn handle(&mut self, input: Input, actions: &mut Actions) -> Option<EndCause> {
        match input {
            Input::AgentEnded if self.phase == Phase::Agent => self.end_call(None),
            Input::CallSettled(result) => self.receive(*result),
            Input::CallsExecuting(calls) => self.show_executing(&calls),
            Input::Redeemed if self.phase == Phase::Redeeming => self.phase = Phase::Loading,
            Input::NotRedeemed => self.stop(AgentEvent::error(MASKED_ERROR), actions),
            Input::Claimed(sent) if self.phase == Phase::Claiming => self.claimed(sent, actions),
            Input::NotClaimed if self.phase == Phase::Claiming => {
                self.stop(AgentEvent::error(MASKED_ERROR), actions);
                self.claimed(Vec::new(), actions);
            }
            Input::Appended(AppendResult::Refused(_)) => self.taken(actions),
            Input::Appended(AppendResult::Appended(status)) => self.appended(status, actions),
            Input::Loaded(loaded) => self.loaded(loaded, actions),
            Input::Saved(is_saved) => self.saved(is_saved),
            // If it was the save of a step, the next step is saved with this one.
            Input::SaveUnknown => self.saved(self.is_keeping_step()),
            // Results that arrive now are read after the end.
            Input::ChatChanged if matches!(self.phase, Phase::Saving | Phase::Ending) => {}
            Input::ChatChanged => self.load(actions),
            Input::Tick => {
                self.has_to_renew = true;
                if self.phase == Phase::Agent {
                    self.load(actions);
                }
            }
            // The lease of the run passes, and another turn stores what the log holds.
            Input::Failed => {
                self.taken(actions);
                return Some(EndCause::Taken);
            }
            _ => {}
        }
        match self.phase {
            Phase::Over(cause) if self.saving.is_none() && !self.is_loading => Some(cause),
            _ => None,
        }
    }

    /// Handles the reply to a save.
    fn saved(&mut self, is_saved: bool) {
        match self.saving.take() {
            Some(Saving::StepEnd(kept)) => {
                if is_saved {
                    self.writer.forget_step_end(kept);
                }
                // The conversation may have been loaded before this save.
                if self.phase == Phase::Loaded {
                    self.phase = Phase::Loading;
                }
            }
            Some(Saving::Message) if self.phase == Phase::Saving => match is_saved {
                true => self.end_log(),
                false => self.phase = Phase::Loading,
            },
            _ => {}
        }
    }

    /// Another turn has taken the run. The agent stops.
    fn taken(&mut self, actions: &mut Actions) {
        actions.push_back(Action::StopAgent);
        self.phase = Phase::Over(EndCause::Taken);
    }

    /// Does what can be done now.
    pub(super) fn advance(&mut self, actions: &mut Actions) {
        let dropped = self.writer.take_dropped().into_iter();
        dropped.for_each(|cause| actions.push_back(Action::Report(cause)));
        if let Phase::Over(_) = self.phase {
            return;
        }
        actions.extend(self.next_append());
        let is_stored = self.in_flight.is_none() && !self.writer.has_queue();
        if self.has_to_keep_step() {
            self.load(actions);
        }
        match self.phase {
            Phase::Stepping if is_stored => {
                self.claiming = self.writer.record().keep_in(&self.chat).take_unsent_approvals();
                self.phase = Phase::Claiming;
                if self.claiming.is_empty() {
                    return self.claimed(Vec::new(), actions);
                }
                let (run, approvals) = (self.live.run.clone(), self.claiming.clone());
                actions.push_back(Action::Start(Effect::Claim { run, approvals }));
            }
            Phase::Loading if is_stored && self.saving.is_none() => self.load(actions),
            Phase::Loaded if is_stored && self.saving.is_none() && !self.is_loading => {
                let mut kept = self.writer.record().keep_in(&self.chat);
                let is_due = kept.message_to_continue() == Some(&self.live.message_id);
                if self.stopped_by.is_none() && (is_due || self.has_to_call) {
                    self.step();
                    return self.advance(actions);
                }
                if !self.is_message_ended {
                    self.writer.end_without_call();
                    self.is_message_ended = true;
                    return self.advance(actions);
                }
                kept.end_live_run();
                self.save(kept, actions);
            }
            _ => {}
        }
    }

    /// Saves the conversation with the message of the run.
    fn save(&mut self, kept: Chat, actions: &mut Actions) {
        self.leaves_unread = kept.message_to_continue().is_some();
        let (chat, revision) = (Box::new(kept), self.revision);
        let before = &self.chat.messages;
        let unchanged = revision.map_or(0, |_| chat.messages.shared_prefix(before));
        let message = chat.message(&self.live.message_id);
        let is_shown = |id: &ApprovalId| {
            let mut parts = message.into_iter().flat_map(UiMessage::tool_parts);
            parts.any(|part| part.approval_id() == Some(id))
        };
        let is_unshown = self.was_cut || !self.requested.iter().all(is_shown);
        let ended = is_unshown.then(|| self.ended_message());
        let save = Effect::Save { chat, unchanged, revision, is_begun: false, ended };
        actions.push_back(Action::Start(save));
        self.was_saved = true;
        self.saving = Some(Saving::Message);
        self.phase = Phase::Saving;
    }

    /// Saves the conversation with the message up to the end of the last step, if it lacks that and
    /// the log holds it.
    fn keep_step(&mut self, actions: &mut Actions) {
        if !self.has_to_keep_step() {
            return;
        }
        let Some(end) = self.writer.step_end() else { return };
        let kept = end.kept;
        let is_kept = self.chat.live_run().is_some_and(|live| live.kept == Some(kept));
        // If the store does not hold the conversation, the user may have deleted it.
        if is_kept || self.revision.is_none() {
            return self.writer.forget_step_end(kept);
        }
        let mut chat = Box::new(end.record.keep_in(&self.chat));
        chat.set_live_run(LiveRun { kept: Some(kept), ..self.live.clone() });
        let (unchanged, revision) =
            (chat.messages.shared_prefix(&self.chat.messages), self.revision);
        let save = Effect::Save { chat, unchanged, revision, is_begun: false, ended: None };
        actions.push_back(Action::Start(save));
        self.saving = Some(Saving::StepEnd(kept));
    }

    /// Returns whether the log holds the end of a step that the conversation may lack.
    fn has_to_keep_step(&self) -> bool {
        let is_stored = self.writer.step_end().is_some_and(|end| end.kept.entries <= self.length);
        is_stored && self.phase == Phase::Agent && self.saving.is_none()
    }

    /// Writes that the model is called.
    fn step(&mut self) {
        self.writer.step();
        self.has_to_call = false;
        self.is_message_ended = false;
        self.phase = Phase::Stepping;
    }

    /// The unsent approvals are claimed, and the model can be called.
    fn claimed(&mut self, sent: Vec<DeferredToolResult>, actions: &mut Actions) {
        // An approval that another turn has claimed is not sent here, and does not wait any more. One
        // that has arrived meanwhile waits for the next call.
        self.writer.claimed(&std::mem::take(&mut self.claiming));
        match self.stopped_by.clone() {
            Some(event) => self.cut_call(&event, actions),
            None => self.call(sent, actions),
        }
    }

    fn call(&mut self, sent: Vec<DeferredToolResult>, actions: &mut Actions) {
        let mut chat = self.writer.record().keep_in(&self.chat);
        chat.set_unread_results(false);
        let message_id = self.live.message_id.clone();
        let not_recorded = self.not_recorded.iter().filter(|result| !chat.is_known(result));
        let not_recorded = not_recorded.cloned().collect();
        let recorded = std::mem::take(&mut self.recorded);
        let call = AgentCall { chat, message_id, sent, not_recorded, recorded };
        actions.push_back(Action::Start(Effect::CallAgent(Box::new(call))));
        self.phase = Phase::Agent;
    }

    fn end_call(&mut self, event: Option<&AgentEvent>) {
        self.writer.end_call(event);
        self.is_message_ended = true;
        self.phase = Phase::Loading;
    }

    /// Ends the run early, with this event. A claim that is under way is waited for.
    fn stop(&mut self, event: AgentEvent, actions: &mut Actions) {
        if self.stopped_by.is_some() {
            return;
        }
        if self.phase == Phase::Redeeming {
            // The log does not say of a call that is being executed how it has ended.
            self.writer.restart_translator();
        }
        match self.phase {
            Phase::Claiming | Phase::Saving | Phase::Ending | Phase::Over(_) => {}
            Phase::Loading | Phase::Loaded if self.is_message_ended => {}
            _ => self.cut_call(&event, actions),
        }
        self.stopped_by = Some(event);
    }

    fn cut_call(&mut self, event: &AgentEvent, actions: &mut Actions) {
        actions.push_back(Action::StopAgent);
        self.was_cut = true;
        self.end_call(Some(event));
    }

    /// Writes that calls are approved, for pages that did not send the approval.
    fn show_executing(&mut self, calls: &[(ToolCallId, AgentEvent)]) {
        if !self.is_message_ended {
            calls.iter().for_each(|(call, data)| self.writer.event_of_call(call, data));
        }
    }

    /// Writes a result that this turn has redeemed.
    pub(super) fn receive(&mut self, received: ReceivedResult) {
        if self.was_saved || self.phase == Phase::Ending {
            // The conversation that is being saved, or may have been, lacks it.
            self.results.push(received);
        } else if self.chat.lacks(&received) {
            self.write_result(&received);
            self.results.push(received);
        } else {
            self.writer.show_result(&received);
            self.has_to_call |= self.replies.has_to_follow(&received);
            self.not_recorded.push(received.result);
        }
    }

    /// Writes a result, unless the log holds it.
    fn write_result(&mut self, received: &ReceivedResult) {
        if !self.writer.record().has_result_of(received) {
            self.writer.result(received);
            self.recorded.push(received.result.clone());
        }
    }

    /// Appends what was written since the last append, which may be nothing if the lease has to be
    /// renewed.
    pub(super) fn next_append(&mut self) -> Option<Action> {
        let is_due = self.has_to_renew || self.writer.has_queue();
        if !is_due || self.in_flight.is_some() || matches!(self.phase, Phase::Over(_)) {
            return None;
        }
        self.has_to_renew = false;
        let (bytes, end) = (self.writer.queued_bytes(), self.phase == Phase::Ending);
        let entries: Arc<[LogEntry]> = self.writer.take_queue();
        let length = u64::try_from(entries.len()).unwrap_or(0);
        self.in_flight = Some(InFlight { length, bytes, end });
        let (run, fence, position) = (self.live.run.clone(), self.live.fence, self.length);
        let append = Effect::Append { run, fence, position, entries, end };
        Some(Action::Start(append))
    }

    /// Handles an accepted append.
    fn appended(&mut self, status: HolderStatus, actions: &mut Actions) {
        let Some(InFlight { length, bytes, end }) = self.in_flight.take() else { return };
        self.length += length;
        self.bytes += bytes;
        if let Some(limit) = self.reached_limit(status) {
            let ends_anyway = end || self.phase == Phase::Saving || self.stopped_by.is_some();
            if !ends_anyway {
                actions.push_back(Action::ReportLimit(self.live.run.clone(), limit));
            }
            let event = match limit {
                RunLimit::LogBytes => AgentEvent::error(TOO_LONG),
                RunLimit::UnreadTime | RunLimit::UserRuns => AgentEvent::Abort { reason: None },
            };
            self.stop(event, actions);
        }
        if end {
            self.phase = Phase::Over(EndCause::Ended);
        }
    }

    fn reached_limit(&self, status: HolderStatus) -> Option<RunLimit> {
        if status.has_to_end {
            Some(RunLimit::UserRuns)
        } else if status.unread >= self.limits.max_unread {
            Some(RunLimit::UnreadTime)
        } else if self.bytes > self.limits.max_bytes {
            Some(RunLimit::LogBytes)
        } else {
            None
        }
    }

    fn load(&mut self, actions: &mut Actions) {
        if !std::mem::replace(&mut self.is_loading, true) {
            actions.push_back(Action::Start(Effect::Load));
        }
    }

    fn loaded(&mut self, loaded: Option<(Box<Chat>, u64)>, actions: &mut Actions) {
        self.is_loading = false;
        if let Phase::Over(_) = self.phase {
            return;
        }
        let newest = match loaded {
            // The store has removed the conversation, and the run saves it again. If the user has
            // deleted it, the run was taken before: then an append that follows is refused.
            None if !self.was_saved => {
                self.has_to_renew = true;
                let mut chat = self.chat.clone();
                chat.clear_new_results();
                Some((chat, None))
            }
            loaded => loaded
                .filter(|(chat, _)| chat.live_run().is_some_and(|it| it.is_same_run(&self.live)))
                .map(|(chat, revision)| (chat, Some(revision))),
        };
        let Some((chat, revision)) = newest else {
            if self.was_saved {
                // Either the save arrived and its reply did not, or the run was taken. The next
                // append shows which it was.
                if self.phase != Phase::Ending {
                    self.end_log();
                }
                return;
            }
            return self.taken(actions);
        };
        let lacking = self.results.iter().filter(|result| chat.lacks(result)).cloned();
        let results: Vec<_> = chat.new_results().iter().cloned().chain(lacking).collect();
        results.iter().for_each(|result| self.write_result(result));
        (self.chat, self.revision) = (chat, revision);
        self.was_saved = false;
        if self.phase == Phase::Loading {
            self.phase = Phase::Loaded;
        }
        self.keep_step(actions);
    }

    fn end_log(&mut self) {
        self.writer.last_frames();
        self.phase = Phase::Ending;
    }
}

/// Returns whether the model call was cut off, if the agent emits nothing after this event.
fn ends_call(event: &AgentEvent) -> Option<bool> {
    match event {
        AgentEvent::Finish { .. } => Some(false),
        AgentEvent::Abort { .. } | AgentEvent::Error { .. } => Some(true),
        AgentEvent::Chunk(chunk) => match **chunk {
            Chunk::Finish { .. } => Some(false),
            Chunk::Abort { .. } | Chunk::Error { .. } => Some(true),
            _ => None,
        },
        _ => None,
    }
}

impl Replies {
    /// Whether the page that sent an answer needs a reply of the model: the answer was not accepted,
    /// or came too late.
    pub(super) fn has_to_follow(&self, received: &ReceivedResult) -> bool {
        let ReceivedResult { result, shown, .. } = received;
        let is_answered = result.approval_id.as_ref().is_none_or(|id| self.answered.contains(id));
        let is_too_late = matches!(
            result.outcome,
            DeferredOutcome::Rejected
                | DeferredOutcome::Forgotten
                | DeferredOutcome::Expired
                | DeferredOutcome::Superseded
                | DeferredOutcome::Revoked
        );
        let is_rejected = shown.as_ref().is_some_and(DeferredOutcome::is_rejected);
        !self.is_repeated && is_answered && (is_too_late || is_rejected || !result.is_final)
    }
}

/// The number of bytes of events that may wait for the store of runs.
const MAX_UNSTORED_BYTES: usize = 256 * 1024;

const TOO_LONG: &str = "The response is too long.";
