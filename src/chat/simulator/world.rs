//! [`World`]: the stores, the ledger, the turns and the readers of one interleaving.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt;

use super::counts::Counts;
use super::driver::{Driver, Errand, Task};
use super::ledger::Ledger;
use super::readers::Readers;
use super::users::SeenCall;
use crate::approval::{LeaseHolderId, PendingToolCall, Principal};
use crate::chat::conversation::{Chat, LiveRun, ReceivedResult};
use crate::chat::log::{
    AppendEntries, AppendResult, Fence, LogEntry, LogPage, ReadLog, RunKey, RunState,
    TakeCondition, TakeResult, TakeRun,
};
use crate::chat::run_log::keep_log;
use crate::chat::store::{InMemoryRunStore, RunStore};
use crate::chat::turn::machine::{Effect, EndedMessage};
use crate::id::{ApprovalId, MessageId, RunId};
use crate::limits::ChatLimits;
use crate::message::{Role, ToolPart, UiMessage};

/// A run that the conversation named, with the version of the conversation that named it.
pub(super) struct NamedRun {
    pub(super) live: LiveRun,
    pub(super) chat: Chat,
    /// Its message, as it was saved when the run was no longer live.
    pub(super) kept: Option<UiMessage>,
    /// Whether the save that ended the run may have removed its message.
    pub(super) is_replaced: bool,
    /// Whether the store had removed the log before that.
    pub(super) is_lost: bool,
}

#[derive(Default)]
pub(super) struct World {
    pub(super) now: u64,
    pub(super) chat: Option<(Chat, u64)>,
    pub(super) revision: u64,
    pub(super) ledger: Ledger,
    pub(super) store: TestStore,
    pub(super) effects: BTreeMap<ApprovalId, u32>,
    /// The runs that were begun, but for those that a lost save may have named.
    pub(super) begun: Vec<RunId>,
    pub(super) named: Vec<NamedRun>,
    /// The open requests that an edit or a regeneration has removed.
    pub(super) removed: Vec<ApprovalId>,
    /// All logs, also those that the store has removed.
    pub(super) logs: BTreeMap<RunId, Vec<LogEntry>>,
    /// How many entries a log had when its run was taken first.
    pub(super) taken_logs: BTreeMap<RunId, usize>,
    pub(super) readers: Readers,
    pub(super) drivers: Vec<Driver>,
    /// The tasks, each with its server.
    pub(super) tasks: Vec<(usize, Task)>,
    /// The calls whose output a client has sent, with a request that did not fail.
    pub(super) answered_outputs: Vec<String>,
    pub(super) next: u32,
    pub(super) limits: ChatLimits,
    /// Whether the user has stopped a run.
    pub(super) has_stopped: bool,
    /// The run that the user has stopped, until another one is named.
    pub(super) stopped: Option<RunId>,
    pub(super) ledger_fails: bool,
    /// The approvals whose claim has failed: their turn does not know whether they are claimed.
    pub(super) not_claimed: Vec<ApprovalId>,
    /// Whether a driver may give up after a failure of a store.
    pub(super) gives_up: bool,
    pub(super) trace: bool,
    pub(super) violations: Vec<String>,
    pub(super) counts: Counts,
}

/// A store of runs whose clock the world sets.
pub(super) struct TestStore(InMemoryRunStore);

impl Default for TestStore {
    fn default() -> Self {
        TestStore(InMemoryRunStore::with_test_clock())
    }
}

impl std::ops::Deref for TestStore {
    type Target = InMemoryRunStore;

    fn deref(&self) -> &InMemoryRunStore {
        &self.0
    }
}

impl World {
    /// Returns the stored conversation.
    pub(super) fn stored(&self) -> Option<&Chat> {
        self.chat.as_ref().map(|(chat, _)| chat)
    }

    /// Whether the conversation has this revision. `None` is that there is none.
    pub(super) fn has_revision(&self, revision: Option<u64>) -> bool {
        revision == self.chat.as_ref().map(|(_, revision)| *revision)
    }

    pub(super) fn live(&self) -> Option<&LiveRun> {
        self.stored().and_then(Chat::live_run)
    }

    pub(super) fn pass(&mut self, time: u64) {
        self.now += time;
        self.store.set_test_time(Duration::from_millis(self.now));
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

    pub(super) fn ids_of(&self, role: Role) -> Vec<String> {
        let messages = self.stored().into_iter().flat_map(|chat| chat.messages.iter());
        let messages = messages.filter(|message| message.role == role);
        messages.map(|message| message.id.to_string()).collect()
    }

    /// Returns the calls that a user or a client may answer: those of the conversation and of all
    /// logs, on pages that are out of date.
    pub(super) fn seen_calls(&self) -> Vec<SeenCall> {
        let logs = self.named.iter().map(|named| self.kept_log(named));
        let chats: Vec<Chat> = self.stored().cloned().into_iter().chain(logs).collect();
        let mut seen: BTreeMap<(String, MessageId), SeenCall> = BTreeMap::new();
        for message in chats.iter().flat_map(|chat| chat.messages.iter()) {
            let calls = message.tool_parts().filter_map(|part| SeenCall::of(message, part));
            seen.extend(calls.map(|call| ((call.call.clone(), call.message.clone()), call)));
        }
        seen.into_values().collect()
    }

    /// Whether a call waits for an answer.
    pub(super) fn is_open(&self, seen: &SeenCall) -> bool {
        match &seen.approval {
            Some(id) => self.ledger.is_asked(id),
            None => !self.answered_outputs.contains(&seen.call),
        }
    }

    /// Whether the conversation lacks the answer to a call, or no model has read it.
    pub(super) fn is_lost(&self, seen: &SeenCall) -> bool {
        let Some(chat) = self.stored() else { return false };
        let is_open = match &seen.approval {
            Some(id) => {
                let open = chat.undecided_calls();
                !self.ledger.is_asked(id)
                    && open.iter().any(|call| call.approval_id.as_ref() == Some(id))
            }
            None => {
                let mut open = chat.client_executed.iter();
                self.answered_outputs.contains(&seen.call)
                    && open.any(|call| *call.tool_call_id == *seen.call)
            }
        };
        is_open || chat.message_to_continue() == Some(&seen.message)
    }

    /// Returns the conversation that named a run with what its log holds.
    pub(super) fn kept_log(&self, named: &NamedRun) -> Chat {
        keep_log(&named.chat, &named.live, self.log(&named.live.run))
    }

    /// Returns a log, also if the store has removed it.
    pub(super) fn log(&self, run: &RunId) -> &[LogEntry] {
        self.logs.get(run).map_or(&[], Vec::as_slice)
    }

    /// Returns a log as the store holds it.
    pub(super) fn stored_log(&self, run: &RunId) -> Option<Vec<LogEntry>> {
        Some(self.read(run, 0, false)?.entries)
    }

    /// Returns the state of a run, if the store holds it.
    pub(super) fn state(&self, run: &RunId) -> Option<(RunState, Fence)> {
        self.read(run, u64::MAX, false).map(|page| (page.state, page.fence))
    }

    pub(super) fn read(&self, run: &RunId, after: u64, is_reader: bool) -> Option<LogPage> {
        let key = key(run);
        let read = ReadLog { key: &key, after, max_bytes: usize::MAX, is_reader };
        self.store.read(read).now_or_never().unwrap().unwrap()
    }

    pub(super) fn with_live_log(&self, chat: &Chat) -> Chat {
        match chat.live_run().and_then(|live| Some((live, self.stored_log(&live.run)?))) {
            Some((live, entries)) => keep_log(chat, live, &entries),
            None => chat.clone(),
        }
    }

    /// Returns what the ledger says about open calls.
    pub(super) fn decided(&self, open: &[PendingToolCall]) -> Vec<ReceivedResult> {
        let decided = |call: &PendingToolCall| {
            let received = self.ledger.decided(call.approval_id.as_ref()?, self.now)?;
            Some(ReceivedResult::new(call.with_outcome(received.result.outcome), None))
        };
        open.iter().filter_map(decided).collect()
    }

    /// A turn has ended. The tools that execute its calls go on.
    pub(super) fn leave_calls(&mut self, driver: Driver) {
        self.leave(driver.server, driver.errands);
    }

    pub(super) fn leave(&mut self, server: usize, errands: Vec<Errand>) {
        let executed = errands.into_iter().filter_map(|errand| match errand {
            Errand::Execute { approval, .. } => Some((server, Task::Execute(approval))),
            _ => None,
        });
        self.tasks.extend(executed);
    }

    /// A server that is shut down hands its runs over.
    pub(super) fn hand_over(&mut self, server: usize) {
        let drivers = self.drivers.iter().filter(|driver| driver.server == server);
        let runs = drivers.filter_map(|driver| Some((driver.number, driver.turn.own_run()?)));
        let runs: Vec<_> =
            runs.map(|(number, live)| (number, live.run.clone(), live.fence)).collect();
        for (number, run, fence) in runs {
            let holder = LeaseHolderId::from_bytes(u128::from(number).to_be_bytes());
            let (key, condition, lease) = (&key(&run), TakeCondition::Any, Duration::ZERO);
            let take = TakeRun { key, fence, holder, condition, lease };
            let taken = self.store.take(take).now_or_never().unwrap().unwrap();
            if let TakeResult::Taken(_) = taken {
                let length = self.log(&run).len();
                self.taken_logs.entry(run).or_insert(length);
                self.counts.handed_over += 1;
            }
        }
    }

    pub(super) fn run_task(&mut self, task: Task) {
        match task {
            Task::Execute(approval) => {
                self.effect(&approval);
                let _ = self.ledger.execute(&approval, self.now);
            }
            Task::Do(Effect::RevokeUnshown(ended)) => self.revoke_requested_in_vain(&ended),
            Task::Do(Effect::Append { run, fence, position, entries, end }) => {
                let key = &key(&run);
                let append = AppendEntries { key, fence, position, entries: &entries, end };
                let appended = self.store.append(append).now_or_never().unwrap().unwrap();
                if let AppendResult::Appended(_) = appended {
                    self.check_append(&run, end);
                }
            }
            Task::Do(effect) => self.violated(format!("a turn does not wait for {effect:?}")),
        }
    }

    /// Revokes the requests of an ended message that this version of the conversation does not show.
    pub(super) fn revoke_unshown(&mut self, chat: &Chat, ended: &EndedMessage) {
        let message = chat.message(&ended.id);
        self.ledger.revoke(|id, approval| {
            let is_of_run = approval.message == ended.id || ended.requested.contains(id);
            is_of_run && !message.into_iter().any(|message| shows(message, id))
        });
    }

    /// Revokes the requests of a run that was taken which the conversation does not show.
    fn revoke_requested_in_vain(&mut self, ended: &EndedMessage) {
        let chat = self.stored().map(|chat| self.with_live_log(chat));
        self.ledger.revoke(|id, approval| {
            let is_requested = ended.requested.contains(id);
            match &chat {
                Some(chat) => is_requested && !chat.messages.iter().any(|it| shows(it, id)),
                None => is_requested || approval.message == ended.id,
            }
        });
    }
}

/// Whether a message holds the call of this approval.
pub(super) fn shows(message: &UiMessage, approval: &ApprovalId) -> bool {
    message.tool_parts().any(|part: &ToolPart| part.approval_id() == Some(approval))
}

pub(super) fn key(run: &RunId) -> RunKey {
    RunKey { owner: Principal::new("ada"), chat: "c".into(), run: run.clone() }
}

pub(super) fn short(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").chars().take(2000).collect()
}
