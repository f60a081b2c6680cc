//! [`World`]: the store, the ledger, the turns and the readers of one interleaving.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::counts::Counts;
use super::ledger::Ledger;
use super::readers::Reader;
use super::users::SeenCall;
use crate::Chat;
use crate::ChatLimits;
use crate::effects;
use crate::folds::Folds;
use crate::log::client::Client;
use crate::log::decision::{Append, Goal};
use crate::log::entry::{Entry, OtherEntry};
use crate::log::state::ChatState;
use crate::log::turn::LogTurn;
use crate::log::turn_io::{Effect, EffectId};
use crate::store::InMemoryLogStore;
use crate::store::{
    AppendResult, Epoch, LoadLog, LoadedLog, LogKey, LogPage, LogStore, ReadLogEntries, StoredEntry,
};
use crate::tail::{TailWriter, Tails};
use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::{ApprovalId, RunId};
use ui_message_stream::message::UiMessage;

/// A turn with its driver.
pub(super) struct Driver {
    pub(super) number: u32,
    pub(super) server: usize,
    pub(super) turn: LogTurn,
    pub(super) client: Client,
    /// The effects that were not performed.
    pub(super) effects: Vec<(EffectId, Effect)>,
    /// The approved calls that are executed: whether the effect has happened.
    pub(super) tools: Vec<(ApprovalId, bool)>,
    /// The answers whose calls another turn executes.
    pub(super) awaited: Vec<(ApprovalId, bool)>,
    pub(super) is_redeeming: bool,
    /// The answers that the ledger could not store, each with the run that was live then.
    pub(super) unstored: Vec<(Option<RunId>, ApprovalId)>,
    /// The events that the agent still emits.
    pub(super) agent: Option<Vec<AgentEvent>>,
    /// What the readers of the server are shown of the run of the turn.
    pub(super) tail: Option<TailWriter>,
    /// The run of this tail.
    pub(super) shown_run: Option<RunId>,
    /// Since when text is ahead of the log of which the log has got none.
    pub(super) ahead_since: u64,
    pub(super) responses: u32,
    pub(super) ticked: u64,
    /// For how many steps the driver is slow.
    pub(super) rests: usize,
    /// The approvals that a message of the user followed when the request arrived.
    pub(super) followed: Vec<ApprovalId>,
}

/// All entries that a log ever had, and their fold.
pub(super) struct Shadow {
    pub(super) entries: Vec<StoredEntry>,
    pub(super) state: ChatState,
    /// The run to which each entry belongs.
    pub(super) runs: Vec<Option<RunId>>,
}

/// One chat of a user. All chats of an interleaving share the store.
pub(super) struct World {
    pub(super) now: u64,
    pub(super) store: Arc<InMemoryLogStore>,
    pub(super) key: LogKey,
    /// The requests that clients have posted.
    pub(super) posted: Vec<Goal>,
    pub(super) shadows: BTreeMap<Epoch, Shadow>,
    pub(super) ledger: Ledger,
    /// The log for which each approval was requested, and the run.
    pub(super) asked_in: BTreeMap<ApprovalId, (Epoch, RunId)>,
    pub(super) effects: BTreeMap<ApprovalId, u32>,
    /// Operations that are executed after their caller has given up.
    pub(super) late: Vec<Effect>,
    pub(super) drivers: Vec<Driver>,
    /// The states that each server keeps.
    pub(super) folds: [Folds; 2],
    /// What the turns of each server have written.
    pub(super) tails: [Tails; 2],
    /// Approved calls that are executed by turns that have ended, with their servers.
    pub(super) tasks: Vec<(usize, ApprovalId)>,
    pub(super) readers: Vec<Reader>,
    pub(super) crashed_runs: BTreeSet<RunId>,
    /// The runs that were ended after the text was stored that readers of their server were shown.
    pub(super) flushed: BTreeSet<RunId>,
    /// How often each run has called the model, and how many results it had then.
    pub(super) calls: BTreeMap<RunId, (usize, usize)>,
    pub(super) answered_outputs: Vec<String>,
    pub(super) limits: ChatLimits,
    /// How long frames may wait for an append.
    pub(super) append_interval: Duration,
    pub(super) ledger_fails: bool,
    pub(super) next: u32,
    pub(super) trace: bool,
    pub(super) violations: Vec<String>,
    pub(super) counts: Counts,
}

impl World {
    pub(super) fn new(
        store: &Arc<InMemoryLogStore>,
        chat: usize,
        limits: ChatLimits,
        ledger_fails: bool,
        trace: bool,
    ) -> Self {
        World {
            now: 0,
            store: Arc::clone(store),
            key: key_of(chat),
            posted: Vec::new(),
            shadows: BTreeMap::new(),
            ledger: Ledger::default(),
            asked_in: BTreeMap::new(),
            effects: BTreeMap::new(),
            late: Vec::new(),
            folds: Default::default(),
            tails: Default::default(),
            drivers: Vec::new(),
            tasks: Vec::new(),
            readers: Vec::new(),
            crashed_runs: BTreeSet::new(),
            flushed: BTreeSet::new(),
            calls: BTreeMap::new(),
            answered_outputs: Vec::new(),
            limits,
            append_interval: Duration::ZERO,
            ledger_fails,
            next: 0,
            trace,
            violations: Vec::new(),
            counts: Counts::default(),
        }
    }

    pub(super) fn pass(&mut self, time: u64) {
        self.now += time;
        self.store.set_test_time(UnixMillis(self.now));
    }

    /// The time of the servers, whose ticks are common.
    pub(super) fn server_time(&self) -> Duration {
        Duration::from_millis(self.now)
    }

    pub(super) fn violated(&mut self, what: String) {
        if self.trace {
            println!("VIOLATED: {what}");
        }
        self.violations.push(what);
    }

    pub(super) fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub(super) fn load(&self, has_frames: bool) -> Option<LoadedLog> {
        let load = LoadLog { key: &self.key, has_frames, has_messages: true };
        self.store.load(load).now_or_never().unwrap().unwrap()
    }

    pub(super) fn read(&self, epoch: Epoch, position: u64, is_reader: bool) -> Option<LogPage> {
        let key = &self.key;
        let read = ReadLogEntries { key, epoch, position, max_bytes: usize::MAX, is_reader };
        self.store.read(read).now_or_never().unwrap().unwrap()
    }

    /// Returns the fold of all entries of the log that the chat has now.
    pub(super) fn shadow(&self) -> Option<&Shadow> {
        self.shadows.get(&self.load(false)?.head.epoch)
    }

    pub(super) fn chat(&self) -> Option<&Chat> {
        self.shadow().map(|shadow| shadow.state.chat())
    }

    /// Appends to the log. Returns the result of the store.
    pub(super) fn append(&mut self, append: &Append) -> AppendResult {
        let unread = Duration::from_millis(30);
        let was_live = self.load_is_live();
        let taken = self.taken_places();
        let appended =
            effects::append(&*self.store, &self.key, append, &self.limits, unread, false);
        let result = appended.now_or_never().unwrap().unwrap();
        if matches!(result, AppendResult::Appended { .. }) && !was_live && Self::begins_in(append) {
            self.check_places(taken);
        }
        if let AppendResult::Appended { first, head } = &result {
            let entries = append.entries.iter().map(Entry::stored).collect();
            self.has_appended(head.epoch, *first, entries);
        } else {
            self.counts.conflicts += 1;
        }
        result
    }

    fn has_appended(&mut self, epoch: Epoch, first: u64, entries: Vec<StoredEntry>) {
        let key = &self.key;
        let shadow = self.shadows.entry(epoch).or_insert_with(|| Shadow {
            entries: Vec::new(),
            state: ChatState::new(key.chat.clone(), key.owner.clone()),
            runs: Vec::new(),
        });
        let mut found = (shadow.entries.len() as u64 != first)
            .then(|| format!("an append at {first}, after {} entries", shadow.entries.len()));
        for entry in entries {
            let read = Entry::read(&entry).unwrap();
            if let Some(call) = read.preliminary_of() {
                self.counts.preliminary_outputs += 1;
                shadow.state.return_message();
                let live = shadow.state.live().map(|live| &live.message_id);
                let message = live.and_then(|live| shadow.state.chat().message(live));
                let mut calls = message.into_iter().flat_map(|message| message.tool_parts());
                // Clients would show the call as running again.
                let is_late = calls.any(|part| part.tool_call_id == *call && part.is_settled());
                found = found.or(is_late.then(|| format!("{call:?} goes on after its result")));
            }
            let applied = shadow.state.apply(&read);
            found = found.or(applied.err().map(|error| error.to_string()));
            let live = shadow.state.live().map(|live| live.run.clone());
            let ended = match read.other() {
                Some(OtherEntry::End { run, .. }) => Some(run.clone()),
                _ => live,
            };
            shadow.runs.push(ended);
            shadow.entries.push(entry);
        }
        shadow.state.return_message();
        found.into_iter().for_each(|what| self.violated(what));
    }

    /// Returns the calls that a user or a client may answer, also those of messages that were removed.
    pub(super) fn seen_calls(&self) -> Vec<SeenCall> {
        let chats = self.shadows.values().map(|shadow| shadow.state.chat());
        let messages = chats.flat_map(|chat| chat.messages.iter());
        let calls = messages.flat_map(|message| {
            message.tool_parts().filter_map(|part| SeenCall::of(message, part))
        });
        calls.collect()
    }

    /// Whether a call waits for an answer.
    pub(super) fn is_open(&self, seen: &SeenCall) -> bool {
        match &seen.approval {
            Some(id) => self.ledger.is_asked(id),
            None => !self.answered_outputs.contains(&seen.call),
        }
    }

    /// Executes an operation for whose reply nobody waits.
    pub(super) fn execute_late(&mut self, effect: Effect) {
        match effect {
            Effect::Append(append) => {
                let _ = self.append(&append);
            }
            Effect::Delete { epoch, control } => {
                let deleted = self.store.delete(&self.key, epoch, control);
                let is_deleted = deleted.now_or_never().unwrap().unwrap();
                self.counts.deleted += u64::from(is_deleted);
            }
            Effect::PutSnapshot { epoch, snapshot, unchanged } => {
                self.counts.snapshots += 1;
                let store = &*self.store;
                let key = &self.key;
                let put = effects::put_snapshot(store, key, epoch, &snapshot, unchanged);
                put.now_or_never().unwrap().unwrap();
            }
            Effect::RevokePending(epoch) => {
                let asked_in = &self.asked_in;
                self.ledger.revoke(|id, _| {
                    epoch.is_some() && asked_in.get(id).map(|(of, _)| *of) == epoch
                });
            }
            Effect::RevokeUnshown => {
                let Some(shadow) = self.shadow() else { return };
                let live = shadow.state.live().map(|live| live.message_id.clone());
                let messages = shadow.state.chat().messages.clone();
                self.ledger.revoke(|id, approval| {
                    let is_shown = messages.iter().any(|message| shows(message, id));
                    !is_shown && live.as_ref() != Some(&approval.message)
                });
            }
            _ => {}
        }
    }

    /// An approved call is executed by a turn that has ended.
    pub(super) fn run_task(&mut self, approval: &ApprovalId) {
        if !self.effects.contains_key(approval) {
            self.effect(approval);
        }
        let _ = self.ledger.execute(approval, self.now);
    }

    pub(super) fn load_is_live(&self) -> bool {
        self.load(false).is_some_and(|loaded| loaded.head.live_run.is_some())
    }

    pub(super) fn begins_in(append: &Append) -> bool {
        let mut entries = append.entries.iter();
        entries.any(|entry| matches!(entry.other(), Some(OtherEntry::Begin { .. })))
    }

    /// A turn has ended, or its server was lost. `continues` says whether its tools go on.
    pub(super) fn leave(&mut self, driver: Driver, continues: bool) {
        if continues {
            let tools = driver.tools.into_iter().map(|(id, _)| (driver.server, id));
            self.tasks.extend(tools);
        } else if let Some((run, _)) = driver.turn.own_run() {
            self.crashed_runs.insert(run.clone());
        }
    }

    /// The open requests that a message of the user follows. They must not be approved.
    pub(super) fn followed_requests(&self) -> Vec<ApprovalId> {
        let Some(chat) = self.chat() else { return Vec::new() };
        let asked = self.ledger.asked().filter(|(id, approval)| {
            let mut messages =
                chat.messages.iter().filter(|message| chat.is_followed_by_user(&message.id));
            approval.lapses && messages.any(|message| shows(message, id))
        });
        asked.map(|(id, _)| id.clone()).collect()
    }
}

/// The key of one of the chats of the user.
pub(super) fn key_of(chat: usize) -> LogKey {
    LogKey { owner: Principal::new("ada"), chat: format!("c{chat}").into() }
}

/// How many chats the user has at most.
pub(super) const MAX_CHATS: usize = 3;

/// Whether the message holds a call with this approval.
pub(super) fn shows(message: &UiMessage, approval: &ApprovalId) -> bool {
    message.tool_parts().any(|part| part.approval_id() == Some(approval))
}
