//! [`LogTurn`]: one request, as a state machine without I/O. While the chat names a run of the turn as
//! live, the turn is the holder of this run.
//!
//! ```text
//! Load ─▶ decide ─┬─▶ an effect of the ledger ─▶ decide
//!          ▲      ├─▶ Append ─▶ the chat names a run of this turn ─▶ holder
//!          └──────┘   conflict                                        │
//!                     Respond, End ◀── the run has ended ◀────────────┘
//! holder: Redeeming ─▶ Idle ─▶ Stepping ─▶ ClaimingForProvider ─▶ Agent ─▶ Idle ─▶ Ending
//!         a run that begins with its first step ─▶ Stepping
//! ```

mod held_run;
mod holder;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use self::held_run::{HeldRun, Phase};
use super::decide::decide;
use super::decision::{
    Append, Decision, Goal, KnownCalls, Memory, Redemption, Response, TurnSettings, View,
};
use super::entry::{Entry, OtherEntry, RunEnd};
use super::pace::Pace;
use super::queue::Queue;
use super::state::{ChatState, FoldError};
use super::turn_io::{Action, Effect, EffectId, Input, Reply};
use crate::conversation::Chat;
use crate::conversation::{ReceivedResult, live_message};
use crate::log::client::Client;
use crate::store::{AppendResult, EntryKind, LoadedLog, LogHead, LogPage, Unchanged};
use ui_message_stream::UserText;
use ui_message_stream::approval::PendingToolCall;
#[cfg(test)]
use ui_message_stream::id::MessageId;
use ui_message_stream::id::RunId;

/// A request to a chat, as a state machine.
#[derive(Debug)]
pub(crate) struct LogTurn {
    pub(crate) goal: Goal,
    pub(crate) memory: Memory,
    client: Client,
    view: Option<View>,
    /// The effect whose reply the turn waits for. `None`: it waits for the agent or for results.
    busy: Option<(EffectId, Effect)>,
    /// The view may not be the newest.
    is_stale: bool,
    held: Option<HeldRun>,
    /// The lease has to be renewed by an append, also if there is nothing to append. A third of it may have passed
    /// since the last append, or all of it.
    has_to_renew: bool,
    has_responded: bool,
    /// The turn has appended what other turns have to know.
    has_changed: bool,
    is_over: bool,
    effects: u32,
    /// How many appends in a row have met a conflict.
    conflicts: u32,
    actions: VecDeque<Action>,
    /// The time of the server, when the turn was polled last.
    now: Duration,
}

impl LogTurn {
    /// Creates the turn of a request. `known` is a state of the chat that this server has read before.
    pub(crate) fn new(
        goal: Goal,
        settings: TurnSettings,
        client: Client,
        known: Option<View>,
    ) -> Self {
        let redemption = match goal {
            Goal::Answer { .. } => Redemption::Due,
            _ => Redemption::None,
        };
        let memory = Memory {
            settings,
            attempts: 0,
            has_begun: false,
            may_resume: !matches!(goal, Goal::Expire(_)),
            refused_runs: 0,
            known: None,
            redemption,
            outbox: Vec::new(),
            lost_reads: 0,
            waits: 0,
            epoch: None,
            found_live: None,
            revoked: None,
        };
        LogTurn {
            goal,
            memory,
            client,
            view: known,
            busy: None,
            is_stale: true,
            held: None,
            has_to_renew: false,
            has_responded: false,
            has_changed: false,
            is_over: false,
            effects: 0,
            conflicts: 0,
            actions: VecDeque::new(),
            now: Duration::ZERO,
        }
    }

    /// Returns the next action. `now` is the time of the server, from the beginning of its ticks on. After
    /// [`Action::End`] it returns the same action again.
    pub(crate) fn poll(&mut self, now: Duration) -> Action {
        self.now = now;
        if self.actions.is_empty() {
            self.show_text();
            self.go();
        }
        self.actions.pop_front().unwrap_or_else(|| {
            if self.is_over { Action::End } else { Action::Wait { until: self.due() } }
        })
    }

    /// Returns the newest state of the chat that the turn has read, if later turns can continue it.
    pub(crate) fn take_view(&mut self) -> Option<View> {
        let is_whole = |view: &View| !view.state.lacks_frames() && view.state.live().is_none();
        self.view.take().filter(is_whole)
    }

    /// Returns the run of this turn, while the turn is its holder.
    #[cfg(test)]
    pub(crate) fn own_run(&self) -> Option<(&RunId, &MessageId)> {
        self.held.as_ref().map(|held| (&held.run, &held.message_id))
    }

    /// Returns the epoch of the log that the turn has read.
    #[cfg(test)]
    pub(crate) fn epoch(&self) -> Option<crate::store::Epoch> {
        self.view.as_ref().map(|view| view.head.epoch)
    }

    /// Returns whether the turn has appended what other turns have to know, since this was asked last.
    pub(crate) fn take_has_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Whether the turn has handed its run over, or is over in another way.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether the turn waits for the reply to an append.
    pub(crate) fn is_appending(&self) -> bool {
        matches!(self.busy, Some((_, Effect::Append(_))))
    }

    /// Returns the number of entries that the turn knows.
    pub(crate) fn known_length(&self) -> u64 {
        self.view.as_ref().map_or(0, |view| view.state.length())
    }

    /// Returns whether the driver may poll the stream of the agent: not while too much of what the agent
    /// has emitted is not in the log.
    pub(crate) fn accepts_events(&self) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|held| held.phase == Phase::Agent && !held.queue.is_full())
    }

    /// Returns whether the driver may read what calls that are being executed show: not while too much of it is
    /// not in the log.
    pub(crate) fn accepts_progress(&self) -> bool {
        self.held.as_ref().is_none_or(|held| !held.queue.is_full())
    }

    /// Handles an input. The reply to an effect for which the turn does not wait is ignored.
    pub(crate) fn handle(&mut self, input: Input) {
        if self.is_over {
            return;
        }
        match input {
            Input::Reply(id, reply) => {
                if let Some((_, effect)) = self.busy.take_if(|(busy, _)| *busy == id) {
                    self.handle_reply(effect, reply);
                }
            }
            Input::Settled(result) => {
                if let Some(held) = &mut self.held {
                    // The result is appended before what waits, and is newer.
                    held.queue.remove_preliminary_of(&result.result.tool_call_id);
                }
                self.memory.outbox.push(*result);
            }
            Input::Redeemed(is_redeemed) => {
                self.memory.redemption =
                    if is_redeemed { Redemption::Done } else { Redemption::Failed };
                if !is_redeemed {
                    self.respond(Response::Failed);
                    self.end_early(RunEnd::Failed(UserText::AnswerFailed.to_string()));
                }
            }
            Input::Claimed { run, approvals, sent } => self.claimed(&run, &approvals, sent),
            Input::Agent(event) => self.handle_event(&event),
            Input::AgentEnded => self.end_call(None),
            Input::Accepted { is_incomplete, executing } => {
                self.memory.redemption = Redemption::Executing;
                if is_incomplete {
                    // The client sends its answers again.
                    self.respond(Response::Failed);
                }
                self.show_executing(&executing);
            }
            Input::AskedAgain(questions) => self.ask_again(&questions),
            Input::Progress(event) => self.show_progress(&event),
            Input::Changed => self.is_stale |= self.held.is_some(),
            Input::Tick => self.has_to_renew = true,
            Input::Hurry => self.held.iter_mut().for_each(|held| held.is_hurried = true),
            Input::HandOver => {
                if let Some(held) = &mut self.held {
                    held.is_handed_over = true;
                    self.actions.push_back(Action::StopAgent);
                }
            }
            Input::Failed => self.give_up(),
        }
    }

    fn handle_reply(&mut self, effect: Effect, reply: Reply) {
        match (effect, reply) {
            (_, Reply::Loaded(loaded)) => self.loaded(loaded),
            (_, Reply::Tail(page)) => self.read_tail(page),
            (Effect::Append(append), Reply::Appended(result)) => self.appended(append, result),
            (Effect::CloseCalls { open, .. }, reply) => self.known(open, reply, true),
            (Effect::FindDecided(open), reply) => self.known(open, reply, false),
            (_, Reply::Revoked) => {
                let view = self.view.as_ref();
                let view = view.filter(|view| self.memory.epoch == Some(view.head.epoch));
                self.memory.revoked = Some(view.map(|view| (view.head.epoch, view.head.control)));
            }
            (Effect::Delete { .. }, Reply::Deleted) => {
                self.has_changed = true;
                self.retry();
            }
            (_, Reply::Waited) => {
                self.memory.waits += 1;
                self.retry();
            }
            // It is loaded what has become of an append or a deletion.
            (_, Reply::Unknown) => self.retry(),
            _ => {}
        }
    }

    /// The newest state is loaded, and the turn decides again.
    fn retry(&mut self) {
        self.is_stale = true;
        // An append renews the lease, and had perhaps nothing else to write.
        self.has_to_renew |= self.held.is_some();
        if self.held.is_none() {
            self.memory.attempts += 1;
        }
    }

    fn known(&mut self, asked: Vec<PendingToolCall>, reply: Reply, are_closed: bool) {
        let (results, has_failed) = match reply {
            Reply::Calls(results) => (results, false),
            _ => (Vec::new(), true),
        };
        self.memory.known = Some(KnownCalls { asked, are_closed, results, has_failed });
    }

    fn loaded(&mut self, loaded: Option<Box<LoadedLog>>) {
        self.is_stale = false;
        let Some(loaded) = loaded else {
            self.view = None;
            return self.leave_or_hold(0);
        };
        let TurnSettings { owner, chat_id, .. } = &self.memory.settings;
        match ChatState::of_loaded(chat_id, owner, &loaded) {
            Ok((state, stored)) => {
                let last = state.last_end();
                self.memory.has_begun |= last.is_some_and(|last| self.memory.is_own(&last.run));
                self.view = Some(View { state, head: loaded.head, stored });
            }
            Err(error) => return self.refuse_log(error),
        }
        self.has_read();
        self.leave_or_hold(self.known_length());
    }

    fn read_tail(&mut self, page: Option<LogPage>) {
        let (Some(page), Some(view)) = (page, &mut self.view) else {
            // There is another log, or none, or the snapshot is newer than the tail.
            return self.view = None;
        };
        let mut entries = Vec::new();
        for entry in &page.entries {
            match Entry::read(entry) {
                Ok(entry) => entries.push(entry),
                Err(error) => return self.refuse_log(error.into()),
            }
        }
        view.head = page.head;
        // A page may end before the log does.
        let end = view.state.length() + entries.len() as u64;
        self.is_stale = end < view.head.length;
        self.apply(entries.into());
        self.has_read();
    }

    /// The turn has read the newest state.
    fn has_read(&mut self) {
        let Some(view) = &self.view else { return };
        self.memory.epoch.get_or_insert(view.head.epoch);
        if self.is_stale {
            // The next page follows at once.
            return;
        }
        let live = || view.state.live().map(|live| live.run.clone());
        self.memory.found_live.get_or_insert_with(live);
        self.memory.lost_reads =
            if view.head.is_lost { self.memory.lost_reads.saturating_add(1) } else { 0 };
        if self.memory.known.as_ref().is_some_and(|known| !known.are_closed) {
            self.memory.known = None;
        }
    }

    fn appended(&mut self, append: Append, result: AppendResult) {
        match result {
            AppendResult::Conflict => {
                self.conflicts += 1;
                if self.conflicts == MAX_CONFLICTS {
                    // A store that always says so.
                    return self.give_up();
                }
                self.retry();
            }
            AppendResult::TooManyRuns => {
                self.memory.refused_runs += 1;
                self.retry();
            }
            AppendResult::TooManyChats => {
                let limit = self.memory.settings.limits.max_user_chats();
                let limit = crate::ChatLimitError::TooManyChats { limit };
                self.respond(Response::Limit(limit));
                self.is_over = true;
            }
            AppendResult::Appended { first, head } => {
                self.conflicts = 0;
                self.has_changed |= append.listed.is_some();
                let mut entries = append.entries.iter().filter_map(Entry::other);
                self.memory.has_begun |=
                    entries.any(|entry| matches!(entry, OtherEntry::Begin { .. }));
                let Some(view) = &mut self.view else {
                    return match first {
                        0 => self.created(head, append.entries),
                        _ => self.retry(),
                    };
                };
                let is_next = first == view.state.length() && head.epoch == view.head.epoch;
                let ended = view.state.live().filter(|live| !self.memory.is_own(&live.run));
                let ended = ended.filter(|live| ends(&append.entries, &live.run));
                let ended = ended.map(|live| live.run.clone());
                view.head = head;
                if let Some(run) = ended {
                    self.actions.push_back(Action::EndedOther { run, was_lost: append.only_lost });
                    self.start(Effect::RevokeUnshown);
                }
                match is_next {
                    true => self.apply(append.entries),
                    // Frames of the holder came first.
                    false => self.is_stale = true,
                }
            }
        }
    }

    /// The log of the chat was created with these entries.
    fn created(&mut self, head: LogHead, entries: Arc<[Entry]>) {
        let TurnSettings { owner, chat_id, .. } = &self.memory.settings;
        let state = ChatState::new(chat_id.clone(), owner.clone());
        self.view = Some(View { state, head, stored: None });
        self.apply(entries);
        self.has_read();
    }

    /// Applies the next entries of the log. Those of the holder are no longer queued.
    fn apply(&mut self, entries: Arc<[Entry]>) {
        let first = self.view.as_ref().map_or(0, |view| view.state.length());
        for entry in &*entries {
            if let Some(OtherEntry::Begin { run, .. }) = entry.other() {
                self.memory.has_begun |= self.memory.is_own(run);
            }
            let Some(view) = &mut self.view else { return };
            let live = view.state.live();
            // A later run may have written the same frames.
            let held =
                self.held.as_mut().filter(|held| live.is_some_and(|live| live.run == held.run));
            let is_own = held.is_some_and(|held| {
                held.bytes += entry.stored_len();
                if let Some(OtherEntry::Result { received, .. }) = entry.other() {
                    // Another turn was first. What the call has shown would follow its result.
                    held.queue.remove_preliminary_of(&received.result.tool_call_id);
                }
                let is_own = held.queue.remove(entry);
                if is_own {
                    held.pace.stored();
                }
                is_own
            });
            let ended_step = live.is_some_and(|live| live.step.end().is_some());
            if is_own && ended_step && matches!(entry.other(), Some(OtherEntry::Step)) {
                self.put_snapshot();
            }
            let Some(view) = &mut self.view else { return };
            let applied =
                if is_own { view.state.apply_own(entry) } else { view.state.apply(entry) };
            if let Err(error) = applied {
                return self.refuse_log(error);
            }
            self.follow(entry);
        }
        let Some(view) = &mut self.view else { return };
        if self.held.as_ref().is_none_or(|held| held.phase != Phase::Agent) {
            view.state.return_message();
            let chat = view.state.chat();
            let accepts =
                |received: &ReceivedResult| live_message::accepts_result(chat, &received.result);
            self.memory.outbox.retain(accepts);
        }
        let epoch = view.head.epoch;
        let was_held = self.held.is_some();
        if was_held {
            self.actions.push_back(Action::Show { epoch, first, entries: entries.clone() });
        }
        // A step and an end are decided again if another entry came first.
        if let Some(held) = &mut self.held
            && matches!(held.phase, Phase::Stepping | Phase::Ending)
            && !held.queue.is_empty()
        {
            held.queue.remove_last();
            held.phase = Phase::Idle;
        }
        self.leave_or_hold(first);
        if !was_held && self.held.is_some() {
            self.actions.push_back(Action::Show { epoch, first, entries });
        }
    }

    /// The log has got this entry. The chat is stored when its run has ended, and between two steps: when the later
    /// one begins, because a run can also end after a step.
    fn follow(&mut self, entry: &Entry) {
        let Some(OtherEntry::End { run, .. }) = entry.other() else { return };
        // A run may end in the append that begins it.
        if self.held.is_some() || self.memory.is_own(run) {
            self.put_snapshot();
        }
    }

    /// Stores the chat, unless the state has chunks that the log does not hold.
    fn put_snapshot(&mut self) {
        if self.held.as_ref().is_none_or(|held| held.queue.is_empty())
            && let Some(view) = &mut self.view
            && let Some(snapshot) = view.state.snapshot()
        {
            let epoch = view.head.epoch;
            let unchanged = view.stored.as_ref().map(|(position, messages)| Unchanged {
                position: *position,
                messages: snapshot.messages.shared_prefix(messages),
            });
            view.stored = Some((snapshot.position, snapshot.messages.clone()));
            self.start(Effect::PutSnapshot { epoch, snapshot, unchanged });
        }
    }

    /// The turn is the holder while the chat names a run that it has begun. Readers on this server are shown the
    /// entries from `shown_from` on.
    fn leave_or_hold(&mut self, shown_from: u64) {
        let head = self.view.as_ref().map(|view| &view.head);
        let head = head.map(|head| (head.epoch, head.is_lost));
        let live = self.view.as_ref().and_then(|view| view.state.live());
        let own = live.filter(|live| self.memory.is_own(&live.run));
        let own = own.map(|live| (live.run.clone(), live.message_id.clone()));
        if let Some(held) =
            self.held.take_if(|held| Some(&held.run) != own.as_ref().map(|own| &own.0))
        {
            self.actions.extend([Action::StopAgent, Action::LeaveRun]);
            self.memory.attempts += 1;
            self.start(Effect::RevokeUnshown);
            if !held.queue.is_empty() {
                // The state holds chunks that the log does not.
                (self.view, self.is_stale) = (None, true);
            }
        }
        if let (None, Some((run, message_id)), Some((epoch, is_lost))) = (&self.held, own, head) {
            self.memory.has_begun = true;
            self.has_to_renew |= is_lost;
            self.actions.push_back(Action::HoldRun { epoch, position: shown_from });
            // Who answers calls of a lost run may resume it.
            let last = self.view.as_ref().and_then(|view| view.state.last_end());
            let resumes = last.is_some_and(|last| last.end == RunEnd::ResumedBy(run.clone()));
            let has_to_call = resumes || !matches!(self.goal, Goal::Answer { .. });
            // A run that answers no calls begins with its first step.
            let can_call = self.memory.redemption == Redemption::None
                && self.view.as_ref().is_some_and(|view| view.state.can_call());
            let phase = if can_call { Phase::Stepping } else { Phase::Redeeming };
            let pace = Pace::new(self.memory.settings.append_interval);
            self.held = Some(HeldRun { has_to_call, ..HeldRun::new(run, message_id, phase, pace) });
        }
    }

    fn start(&mut self, effect: Effect) -> EffectId {
        self.effects += 1;
        let id = EffectId(self.effects);
        self.actions.push_back(Action::Start(id, effect));
        id
    }

    fn wait_for(&mut self, effect: Effect) {
        let id = self.start(effect.clone());
        self.busy = Some((id, effect));
    }

    fn append(&mut self, append: Append) {
        if append.lease.is_some() {
            self.has_to_renew = false;
        }
        let listed = self.listed_after(&append.entries);
        self.wait_for(Effect::Append(Append { listed, ..append }));
    }

    /// Returns what lists show of the chat after these entries, if they may change it.
    fn listed_after(&self, entries: &[Entry]) -> Option<(String, bool)> {
        if entries.iter().all(|entry| entry.kind() != EntryKind::Control) {
            return None;
        }
        let TurnSettings { owner, chat_id, .. } = &self.memory.settings;
        let queue = self.held.as_ref().map(|held| &held.queue);
        let next = match &self.view {
            Some(view) => state_after(&view.state, queue, entries),
            None => state_after(&ChatState::new(chat_id.clone(), owner.clone()), queue, entries),
        };
        Some((next.chat().title(), next.chat().has_open_questions()))
    }

    fn respond(&mut self, response: Response) {
        if !std::mem::replace(&mut self.has_responded, true) {
            self.actions.push_back(Action::Respond(response));
        }
    }

    fn give_up(&mut self) {
        self.respond(Response::Failed);
        self.actions.push_back(Action::StopAgent);
        self.is_over = true;
    }

    /// This version cannot read the log. Nothing is written.
    fn refuse_log(&mut self, error: FoldError) {
        self.actions.push_back(Action::RefuseLog(error));
        self.give_up();
    }

    /// Does what can be done now.
    fn go(&mut self) {
        while self.busy.is_none() && !self.is_over {
            if self.is_stale {
                self.wait_for(match &self.view {
                    Some(view) => {
                        let epoch = view.head.epoch;
                        let position = view.state.length();
                        Effect::ReadTail { epoch, position }
                    }
                    None => Effect::Load { has_frames: false },
                });
            } else if self.held.is_some() {
                if !self.advance() {
                    return;
                }
            } else if !self.follow_decision() {
                return;
            }
        }
    }

    /// Does what is decided. Returns `false` if the turn waits for results.
    fn follow_decision(&mut self) -> bool {
        let chat = || {
            let chat = self.view.as_ref().map(|view| view.state.chat().clone());
            let TurnSettings { chat_id, owner, .. } = &self.memory.settings;
            Box::new(chat.unwrap_or_else(|| Chat::new(chat_id.clone(), owner.clone())))
        };
        match decide(self.view.as_ref(), &self.goal, &self.memory) {
            Decision::LoadWhole => self.wait_for(Effect::Load { has_frames: true }),
            Decision::CloseCalls { open, removed, plan } => {
                let chat = chat();
                self.wait_for(Effect::CloseCalls { open, removed, plan, chat });
            }
            Decision::FindDecided(open) => self.wait_for(Effect::FindDecided(open)),
            Decision::Append(append) => self.append(append),
            Decision::Redeem => self.redeem(),
            Decision::AwaitResults => return false,
            Decision::WaitForEntry => self.wait_for(Effect::ShortPause),
            Decision::WaitForHolder => self.wait_for(Effect::Pause),
            Decision::RevokePending => self.wait_for(Effect::RevokePending(self.memory.epoch)),
            Decision::Delete { epoch, control } => self.wait_for(Effect::Delete { epoch, control }),
            Decision::Done(response) => {
                self.respond(response);
                self.is_over = true;
            }
        }
        true
    }

    fn redeem(&mut self) {
        let (Goal::Answer { plan, .. }, Some(view)) = (&self.goal, &self.view) else { return };
        let plan = plan.clone();
        let chat = Box::new(view.state.chat().clone());
        self.memory.redemption = Redemption::Storing;
        self.start(Effect::Redeem { plan, chat });
    }
}

/// Returns the state of the chat after these entries. Those in the queue were pushed to it before.
fn state_after(state: &ChatState, queue: Option<&Queue>, entries: &[Entry]) -> ChatState {
    let mut next = state.clone();
    for entry in entries {
        // An entry that does not fit is found when the log has it.
        let _ = if queue.is_some_and(|queue| queue.contains(entry)) {
            next.apply_own(entry)
        } else {
            next.apply(entry)
        };
    }
    next.return_message();
    next
}

fn ends(entries: &[Entry], run: &RunId) -> bool {
    entries.iter().any(
        |entry| matches!(entry.other(), Some(OtherEntry::End { run: ended, .. }) if ended == run),
    )
}

/// So many conflicts in a row end a turn. Other turns cause a few.
const MAX_CONFLICTS: u32 = 1000;
