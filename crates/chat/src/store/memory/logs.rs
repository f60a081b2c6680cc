//! [`Logs`]: all logs in memory, what is counted of them, and what goes first.
//!
//! # A user's own chats are evicted first
//!
//! Chats in memory need a bound, and a bound that all users share lets one of them remove the chats of the others.
//! So a user who reaches a limit loses their oldest chat. A chat with an open question goes last: without it, the
//! question cannot be answered. For the number of chats it never goes: the new chat is refused. If the store is
//! full, chats of the user who has the most bytes go. The limits count bytes as well as chats, because one chat may
//! have as many bytes as ten thousand others. A chat that alone has more bytes than its user may have gets no more
//! entries: it would evict the chats of all others, one after another.
//!
//! A database does not need this bound, and must not lose what it has confirmed. There, the user's next chat is
//! refused. The limit is the same setting (`UserLimits::chats`), so that it has an effect with every store. The
//! store counts in the step that creates the log, and only then. What is evicted for the memory of the process is a
//! setting of the store in memory.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use tokio::sync::Notify;

use super::log::{Log, since};
use crate::store::deliveries::Deliveries;
use crate::store::{
    Epoch, KEPT_AFTER_END, KEPT_AFTER_LOSS, LeftToServer, LogKey, PutSnapshot, UserLimits,
};
use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream::id::ChatId;

/// The maximum numbers of bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) user: usize,
    pub(super) store: usize,
    pub(super) ended: usize,
}

#[derive(Default)]
pub(super) struct Logs {
    /// The time of the operation that has locked the logs.
    pub(super) now: UnixMillis,
    pub(super) users: HashMap<Principal, UserLogs>,
    totals: Totals,
    /// The runs that have ended and whose entries are kept for readers, in the order of their ends. The logs of
    /// some of them may be gone.
    ended: VecDeque<(UnixMillis, LogKey, Epoch)>,
    /// The logs with a new snapshot, whose entries before it the next sweep removes. Some may be gone.
    to_trim: HashSet<LogKey>,
    pub(super) deliveries: Deliveries,
    /// Wakes those who wait for a change of the list of an owner. Each has a clone.
    pub(super) changed_lists: HashMap<Principal, Arc<Notify>>,
}

#[derive(Default)]
pub(super) struct UserLogs {
    /// A node of the map has room for eleven chats, and most users have one.
    pub(super) logs: BTreeMap<ChatId, Box<Log>>,
    /// The same chats, by the time of their last update.
    pub(super) by_time: BTreeSet<(UnixMillis, ChatId)>,
    /// Those without a live run, in the order in which they are removed: those with questions last.
    idle: BTreeSet<(bool, UnixMillis, ChatId)>,
    bytes: usize,
}

/// What is counted of the logs of all users.
#[derive(Default)]
struct Totals {
    bytes: usize,
    /// The bytes of the entries of runs that have ended.
    ended_bytes: usize,
    /// The chats that are not kept forever.
    by_expiry: BTreeSet<(UnixMillis, LogKey)>,
    /// The chats with a live run.
    live: HashSet<LogKey>,
}

/// What is counted of a log, and where lists have it.
struct Summary {
    bytes: usize,
    ended_bytes: usize,
    updated_at: UnixMillis,
    expires_at: Option<UnixMillis>,
    idle: Option<(bool, UnixMillis)>,
}

impl Summary {
    fn of(log: &Log) -> Self {
        Summary {
            bytes: log.bytes,
            ended_bytes: log.ended.iter().map(|(_, bytes)| bytes).sum(),
            updated_at: log.updated_at,
            expires_at: log.expires_at,
            idle: log.live.is_none().then_some((log.has_questions, log.updated_at)),
        }
    }
}

impl Totals {
    /// Counts a log as it is now in place of what it was before.
    fn count(
        &mut self,
        user: &mut UserLogs,
        key: &LogKey,
        before: Option<Summary>,
        after: Option<Summary>,
    ) {
        let chat = || key.chat.clone();
        if let Some(before) = &before {
            user.bytes -= before.bytes;
            self.bytes -= before.bytes;
            self.ended_bytes -= before.ended_bytes;
        }
        if let Some(after) = &after {
            user.bytes += after.bytes;
            self.bytes += after.bytes;
            self.ended_bytes += after.ended_bytes;
        }
        let time = |log: &Option<Summary>| log.as_ref().map(|log| log.updated_at);
        if time(&before) != time(&after) {
            time(&before).map(|old| user.by_time.remove(&(old, chat())));
            user.by_time.extend(time(&after).map(|new| (new, chat())));
        }
        let idle = |log: &Option<Summary>| log.as_ref().and_then(|log| log.idle);
        if idle(&before) != idle(&after) {
            idle(&before).map(|(questions, old)| user.idle.remove(&(questions, old, chat())));
            user.idle.extend(idle(&after).map(|(questions, new)| (questions, new, chat())));
        }
        let is_live = |log: &Option<Summary>| log.as_ref().is_some_and(|log| log.idle.is_none());
        match (is_live(&before), is_live(&after)) {
            (false, true) => drop(self.live.insert(key.clone())),
            (true, false) => drop(self.live.remove(key)),
            _ => {}
        }
        let expiry = |log: &Option<Summary>| log.as_ref().and_then(|log| log.expires_at);
        if expiry(&before) != expiry(&after) {
            expiry(&before).map(|old| self.by_expiry.remove(&(old, key.clone())));
            self.by_expiry.extend(expiry(&after).map(|new| (new, key.clone())));
        }
    }
}

impl Logs {
    pub(super) fn get(&self, key: &LogKey) -> Option<&Log> {
        self.users.get(&key.owner)?.logs.get(&key.chat).map(|log| &**log)
    }

    pub(super) fn notify_list(&self, owner: &Principal) {
        if let Some(changed) = self.changed_lists.get(owner) {
            changed.notify_waiters();
        }
    }

    pub(super) fn insert(&mut self, key: &LogKey, log: Log) {
        let summary = Summary::of(&log);
        let user = self.users.entry(key.owner.clone()).or_default();
        user.logs.insert(key.chat.clone(), Box::new(log));
        self.totals.count(user, key, None, Some(summary));
    }

    /// Changes a log, and what is counted of it.
    pub(super) fn change<T>(
        &mut self,
        key: &LogKey,
        change: impl FnOnce(&mut Log) -> T,
    ) -> Option<T> {
        let user = self.users.get_mut(&key.owner)?;
        let log = user.logs.get_mut(&key.chat)?;
        let before = Summary::of(log);
        let result = change(log);
        let after = Summary::of(log);
        self.totals.count(user, key, Some(before), Some(after));
        Some(result)
    }

    pub(super) fn remove(&mut self, key: &LogKey) -> Option<Log> {
        let user = self.users.get_mut(&key.owner)?;
        let log = user.logs.remove(&key.chat)?;
        self.totals.count(user, key, Some(Summary::of(&log)), None);
        if user.logs.is_empty() {
            self.users.remove(&key.owner);
        }
        self.deliveries.has_deleted(key, self.now);
        log.changed.notify_waiters();
        self.notify_list(&key.owner);
        Some(*log)
    }

    /// Removes the chats whose time has passed.
    pub(super) fn remove_expired(&mut self, now: UnixMillis) {
        while let Some((at, _)) = self.totals.by_expiry.first()
            && *at <= now
            && let Some((_, key)) = self.totals.by_expiry.pop_first()
        {
            self.remove(&key);
        }
    }

    /// A run of this log has ended.
    pub(super) fn keep_ended(&mut self, key: &LogKey, epoch: Epoch, now: UnixMillis) {
        self.ended.push_back((now, key.clone(), epoch));
    }

    /// Removes the entries of the runs that ended first, until the others have no more bytes than this. Those that
    /// no snapshot covers stay, but are not kept for readers any more.
    pub(super) fn limit_ended(&mut self, max_bytes: usize) {
        while self.totals.ended_bytes > max_bytes
            && let Some((_, key, epoch)) = self.ended.pop_front()
        {
            self.forget_first_ended(&key, epoch);
        }
    }

    fn forget_first_ended(&mut self, key: &LogKey, epoch: Epoch) {
        self.change(key, |log| {
            if log.epoch == epoch {
                log.ended.pop_front();
                log.trim();
            }
        });
    }

    /// Removes the entries of the runs whose time has passed. Returns the logs of those which have to be kept,
    /// because the snapshot is not of the whole log.
    fn forget_ended(&mut self, now: UnixMillis) -> HashSet<LogKey> {
        let count = self.ended.partition_point(|(at, ..)| since(*at, now) >= KEPT_AFTER_END);
        let rest = self.ended.split_off(count);
        let mut kept = HashSet::new();
        for ended in std::mem::replace(&mut self.ended, rest).into_iter().rev() {
            let (_, key, epoch) = &ended;
            let log = self.get(key).filter(|log| log.epoch == *epoch);
            if log.is_some_and(Log::has_old_snapshot) {
                kept.insert(key.clone());
                self.ended.push_front(ended);
            } else {
                self.forget_first_ended(key, *epoch)
            }
        }
        kept
    }

    /// Stores a snapshot. Returns whether it was stored.
    pub(super) fn put_snapshot(&mut self, put: &PutSnapshot<'_>) -> bool {
        let is_stored = self.change(put.key, |log| log.epoch == put.epoch && log.put_snapshot(put));
        let is_stored = is_stored.unwrap_or(false);
        if is_stored {
            self.to_trim.insert(put.key.clone());
        }
        is_stored
    }

    /// Removes the entries that neither a snapshot nor a reader needs. Returns what the server has to do.
    pub(super) fn sweep(&mut self, now: UnixMillis) -> LeftToServer {
        let old_snapshots = self.forget_ended(now).into_iter().collect();
        self.changed_lists.retain(|_, changed| Arc::strong_count(changed) > 1);
        self.deliveries.forget_old(now);
        for key in std::mem::take(&mut self.to_trim) {
            self.change(&key, Log::trim);
        }
        let live = self.totals.live.iter();
        let lost_runs = live.filter_map(|key| {
            let live = self.get(key)?.live.as_ref()?;
            let is_lost = since(live.lease_end, now) >= KEPT_AFTER_LOSS;
            is_lost.then(|| (key.clone(), live.run.clone()))
        });
        LeftToServer { lost_runs: lost_runs.collect(), old_snapshots }
    }

    /// Returns whether the owner may begin a run. Another one may have to end for it.
    pub(super) fn has_place(
        &mut self,
        owner: &Principal,
        limits: UserLimits,
        now: UnixMillis,
    ) -> bool {
        let Some(user) = self.users.get_mut(owner) else { return limits.runs > 0 };
        let live = user.logs.values_mut().filter_map(|log| log.live.as_mut());
        let summary = live.filter(|live| now < live.lease_end && !live.has_to_end);
        let mut live: Vec<_> = summary.collect();
        if live.len() < limits.runs {
            return true;
        }
        let oldest = live.iter_mut().min_by_key(|live| live.read_at);
        let Some(oldest) = oldest.filter(|run| since(run.read_at, now) >= limits.unread) else {
            return false;
        };
        oldest.has_to_end = true;
        true
    }

    /// Returns the chat of a user that is removed first: the oldest one without a live run. Those with
    /// questions hold what somebody waits for: they go last, and only for bytes.
    pub(super) fn evictable(&self, owner: &Principal, kept: Option<&LogKey>) -> Option<ChatId> {
        let is_kept =
            |id: &ChatId| kept.is_some_and(|kept| kept.owner == *owner && kept.chat == *id);
        let idle = self.users.get(owner)?.idle.iter();
        let mut may_go = idle.filter(|(has_questions, ..)| !has_questions || kept.is_some());
        may_go.find(|(.., id)| !is_kept(id)).map(|(.., id)| id.clone())
    }

    /// Removes a chat of a user. Returns whether there was one that may go.
    pub(super) fn evict(&mut self, owner: &Principal, kept: Option<&LogKey>, limit: &str) -> bool {
        let Some(chat) = self.evictable(owner, kept) else { return false };
        let key = LogKey { owner: owner.clone(), chat };
        tracing::warn!(chat_id = key.chat.as_str(), limit, "a chat was removed from memory");
        self.remove(&key).is_some()
    }

    /// Removes chats, but not this one, until this number of bytes more fits the limits. Returns whether it does:
    /// chats with a live run stay.
    pub(super) fn make_room(&mut self, key: &LogKey, bytes: usize, limits: Limits) -> bool {
        let owner = &key.owner;
        let is_over =
            |logs: &Self| logs.users.get(owner).map_or(0, |user| user.bytes) + bytes > limits.user;
        while is_over(self) {
            if !self.evict(owner, Some(key), "with_max_user_bytes") {
                return false;
            }
        }
        if self.totals.bytes + bytes <= limits.store {
            return true;
        }
        // More than needed, so that this is rare: it looks at all users.
        let mut users: Vec<_> =
            self.users.iter().map(|(owner, user)| (user.bytes, owner.clone())).collect();
        users.sort_by_key(|(bytes, _)| Reverse(*bytes));
        for (_, owner) in users {
            while self.totals.bytes + bytes > limits.store / 16 * 15 {
                if !self.evict(&owner, Some(key), "with_max_store_bytes") {
                    break;
                }
            }
        }
        self.totals.bytes + bytes <= limits.store
    }
}
