//! The effects of a turn on the stores and on the ledger. A request may be lost, or its reply.

use std::time::Duration;

use futures_util::FutureExt;

use super::driver::Errand;
use super::ledger::LEASE;
use super::random::Random;
use super::world::{World, key};
use crate::approval::{DeferredToolResult, LeaseHolderId};
use crate::chat::log::{
    AppendEntries, AppendResult, BeginResult, BeginRun, Fence, LogEntry, RunState, TakeCondition,
    TakeResult, TakeRun,
};
use crate::chat::store::RunStore;
use crate::chat::turn::machine::{Effect, Input, Request};
use crate::id::RunId;

/// The effects of one turn.
pub(super) struct Effects<'a> {
    pub(super) world: &'a mut World,
    pub(super) random: &'a mut Random,
    /// The index of the turn.
    pub(super) at: usize,
}

/// What a failing store or ledger does with an operation.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Fault {
    None,
    /// The operation has no effect.
    Before,
    /// The operation has an effect, and its answer is lost.
    After,
}

impl Effects<'_> {
    /// Returns whether a request to the ledger is lost, or its reply.
    pub(super) fn fault(&mut self) -> Fault {
        let fault = match self.random.below(24) {
            0 if self.world.ledger_fails => Fault::Before,
            1 if self.world.ledger_fails => Fault::After,
            _ => return Fault::None,
        };
        self.world.counts.ledger_faults += 1;
        fault
    }

    /// Performs an effect. If it is lost, it is repeated, unless the driver gives up.
    pub(super) fn perform(&mut self, effect: Effect) {
        let fault = match &effect {
            Effect::FindDecided(_) | Effect::Claim { .. } | Effect::RevokePending(_) => {
                self.fault()
            }
            _ => self.loss(),
        };
        if let Effect::Save { chat, .. } = &effect
            && fault != Fault::None
        {
            // The turn does not end a log that it may have named.
            let named = chat.live_run().map(|live| &live.run);
            self.world.begun.retain(|begun| Some(begun) != named);
        }
        let reply = match fault {
            Fault::Before => None,
            _ => Some(self.perform_once(&effect)),
        };
        if fault != Fault::None {
            // The driver waits before it tries again.
            self.world.drivers[self.at].rests = self.random.below(20);
        }
        let reply = match reply.filter(|_| fault != Fault::After) {
            Some(reply) => reply,
            None if self.gives_up() => match effect {
                Effect::Claim { approvals, .. } => {
                    let ids = approvals.into_iter().filter_map(|approval| approval.approval_id);
                    self.world.not_claimed.extend(ids);
                    Input::NotClaimed
                }
                _ => Input::Failed,
            },
            None => match effect {
                Effect::Save { .. } => Input::SaveUnknown,
                // After a lost reply it is not known which revision is gone.
                Effect::Delete(_) => {
                    self.world.counts.given_up += 1;
                    Input::Failed
                }
                effect => return self.world.drivers[self.at].errands.push(Errand::Do(effect)),
            },
        };
        self.world.drivers[self.at].errands.push(Errand::Reply(reply));
    }

    /// Returns whether a request to a store is lost, or its reply.
    fn loss(&mut self) -> Fault {
        match (self.random.one_in(25), self.random.one_in(12)) {
            (true, _) => Fault::Before,
            (false, true) => Fault::After,
            (false, false) => Fault::None,
        }
    }

    /// Whether the driver gives up after a failure. It has more patience once the client has its
    /// response.
    fn gives_up(&mut self) -> bool {
        let chance = if self.world.drivers[self.at].responses == 0 { 2 } else { 20 };
        let gives_up = self.world.gives_up && self.random.one_in(chance);
        self.world.counts.given_up += u64::from(gives_up);
        gives_up
    }

    fn perform_once(&mut self, effect: &Effect) -> Input {
        let world = &mut self.world;
        match effect {
            Effect::Load => {
                let chat = world.chat.clone();
                Input::Loaded(chat.map(|(chat, revision)| (Box::new(chat), revision)))
            }
            Effect::Save { chat, revision, ended, .. } => {
                // A failure of the ledger is logged, and the requests stay open.
                if let Some(ended) = ended.as_ref().filter(|_| self.fault() == Fault::None)
                    && self.world.has_revision(*revision)
                {
                    self.world.revoke_unshown(chat, ended);
                }
                let is_saved = self.world.save(self.at, (**chat).clone(), *revision);
                self.world.counts.conflicts += u64::from(!is_saved);
                self.hint(is_saved);
                Input::Saved(is_saved)
            }
            Effect::RevokePending(revision) => {
                world.counts.revoked += 1;
                if world.has_revision(*revision) {
                    world.ledger.revoke(|_, _| true);
                }
                Input::Revoked
            }
            Effect::Delete(revision) => {
                let is_deleted = world.delete(*revision);
                self.hint(is_deleted);
                Input::Deleted(is_deleted)
            }
            Effect::Begin(run) => Input::Begun(self.begin(run)),
            Effect::Append { run, fence, position, entries, end } => {
                Input::Appended(self.append(run, *fence, *position, entries, *end))
            }
            Effect::Take { run, fence, condition, waits: _ } => {
                Input::Taken(self.take(run, *fence, *condition))
            }
            Effect::Read(run) => Input::Log(world.stored_log(run)),
            Effect::FindDecided(calls) => Input::CallsClosed(world.decided(calls)),
            Effect::Claim { run, approvals } => {
                let is_claimed = |approval: &&DeferredToolResult| {
                    let id = approval.approval_id.as_ref();
                    id.is_some_and(|id| world.ledger.claim(id, run, world.now))
                };
                Input::Claimed(approvals.iter().filter(is_claimed).cloned().collect())
            }
            // They are not performed here.
            Effect::Redeem { .. }
            | Effect::CloseOpenCalls { .. }
            | Effect::CallAgent(_)
            | Effect::RevokeUnshown(_) => Input::Failed,
        }
    }

    /// The other turns of this server learn that the conversation has changed.
    fn hint(&mut self, has_changed: bool) {
        let (world, at) = (&mut self.world, self.at);
        let server = world.drivers[at].server;
        for (other, driver) in world.drivers.iter_mut().enumerate() {
            let is_hint = |it: &Errand| matches!(it, Errand::Reply(Input::ChatChanged));
            if has_changed
                && other != at
                && driver.server == server
                && !driver.errands.iter().any(is_hint)
            {
                driver.errands.push(Errand::Reply(Input::ChatChanged));
            }
        }
    }

    fn begin(&mut self, run: &RunId) -> BeginResult {
        let (key, holder, lease) = (key(run), self.holder(), Duration::from_millis(LEASE));
        let max_user_runs = self.world.limits.max_user_runs();
        let begin = BeginRun { key: &key, holder, lease, max_user_runs };
        let begun = self.world.store.begin(begin).now_or_never().unwrap().unwrap();
        match begun {
            BeginResult::Begun(_) => self.world.begun.push(run.clone()),
            BeginResult::TooManyRuns => self.world.counts.too_many += 1,
            BeginResult::Exists => {}
        }
        begun
    }

    fn append(
        &mut self,
        run: &RunId,
        fence: Fence,
        position: u64,
        entries: &[LogEntry],
        end: bool,
    ) -> AppendResult {
        let key = key(run);
        let append = AppendEntries { key: &key, fence, position, entries, end };
        let appended = self.world.store.append(append).now_or_never().unwrap().unwrap();
        match appended {
            AppendResult::Appended(_) => self.world.check_append(run, end),
            AppendResult::Refused(_) => {
                self.world.counts.refused_appends += 1;
                let driver = &mut self.world.drivers[self.at];
                (driver.refused, driver.is_refused) = (Some(run.clone()), false);
            }
        }
        appended
    }

    fn take(&mut self, run: &RunId, fence: Fence, condition: TakeCondition) -> TakeResult {
        let (key, holder) = (key(run), self.holder());
        let lease = Duration::from_millis(LEASE);
        let take = TakeRun { key: &key, fence, holder, condition, lease };
        let is_held = self.world.state(run) == Some((RunState::Leased, fence));
        let taken = self.world.store.take(take).now_or_never().unwrap().unwrap();
        let is_taken = matches!(taken, TakeResult::Taken(_));
        if is_taken && is_held {
            self.world.check_take(self.at, run);
        }
        if is_taken {
            let length = self.world.log(run).len();
            self.world.taken_logs.entry(run.clone()).or_insert(length);
        }
        let is_stop = matches!(self.world.drivers[self.at].request, Request::Stop);
        self.world.has_stopped |= is_taken && is_stop;
        self.world.counts.taken += u64::from(is_taken);
        self.world.counts.mended += u64::from(is_taken && condition == TakeCondition::LeasePassed);
        taken
    }

    fn holder(&self) -> LeaseHolderId {
        let number = u128::from(self.world.drivers[self.at].number);
        LeaseHolderId::from_bytes(number.to_be_bytes())
    }
}
