//! [`Logs`]: all logs in memory, what is counted of them, and what goes first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::Notify;

use super::log::{Log, since};
use crate::store::deliveries::Deliveries;
use crate::store::{
    Epoch, KEPT_AFTER_END, KEPT_AFTER_LOSS, LogKey, LostRuns, MAX_LOST_RUNS, UserLimits,
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
    pub(super) users: HashMap<Principal, UserLogs>,
    totals: Totals,
    /// The runs that have ended and whose entries are kept for readers, in the order of their ends. The logs of
    /// some of them may be gone.
    ended: VecDeque<(UnixMillis, LogKey, Epoch)>,
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
}

/// What is counted of a log, and where lists have it.
struct Counted {
    bytes: usize,
    ended_bytes: usize,
    updated_at: UnixMillis,
    expires_at: Option<UnixMillis>,
    idle: Option<(bool, UnixMillis)>,
}

impl Counted {
    fn of(log: &Log) -> Self {
        Counted {
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
        before: Option<Counted>,
        after: Option<Counted>,
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
        let time = |it: &Option<Counted>| it.as_ref().map(|it| it.updated_at);
        if time(&before) != time(&after) {
            time(&before).map(|old| user.by_time.remove(&(old, chat())));
            user.by_time.extend(time(&after).map(|new| (new, chat())));
        }
        let idle = |it: &Option<Counted>| it.as_ref().and_then(|it| it.idle);
        if idle(&before) != idle(&after) {
            idle(&before).map(|(questions, old)| user.idle.remove(&(questions, old, chat())));
            user.idle.extend(idle(&after).map(|(questions, new)| (questions, new, chat())));
        }
        let expiry = |it: &Option<Counted>| it.as_ref().and_then(|it| it.expires_at);
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
        let counted = Counted::of(&log);
        let user = self.users.entry(key.owner.clone()).or_default();
        user.logs.insert(key.chat.clone(), Box::new(log));
        self.totals.count(user, key, None, Some(counted));
    }

    /// Changes a log, and what is counted of it.
    pub(super) fn change<T>(
        &mut self,
        key: &LogKey,
        change: impl FnOnce(&mut Log) -> T,
    ) -> Option<T> {
        let user = self.users.get_mut(&key.owner)?;
        let log = user.logs.get_mut(&key.chat)?;
        let before = Counted::of(log);
        let result = change(log);
        let after = Counted::of(log);
        self.totals.count(user, key, Some(before), Some(after));
        Some(result)
    }

    pub(super) fn remove(&mut self, key: &LogKey) -> Option<Log> {
        let user = self.users.get_mut(&key.owner)?;
        let log = user.logs.remove(&key.chat)?;
        self.totals.count(user, key, Some(Counted::of(&log)), None);
        if user.logs.is_empty() {
            self.users.remove(&key.owner);
        }
        self.deliveries.has_deleted(key);
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

    /// The live run of this log has ended.
    pub(super) fn keep_ended(&mut self, key: &LogKey, epoch: Epoch, now: UnixMillis) {
        self.ended.push_back((now, key.clone(), epoch));
    }

    /// Removes the entries of the runs that ended first, until the others have no more bytes than this. With
    /// the time, also those whose time has passed.
    pub(super) fn forget_ended(&mut self, now: Option<UnixMillis>, max_bytes: usize) {
        while let Some((at, ..)) = self.ended.front()
            && (now.is_some_and(|now| since(*at, now) >= KEPT_AFTER_END)
                || self.totals.ended_bytes > max_bytes)
            && let Some((_, key, epoch)) = self.ended.pop_front()
        {
            self.change(&key, |log| {
                if log.epoch == epoch {
                    log.ended.pop_front();
                    log.trim();
                }
            });
        }
    }

    /// Removes the entries of all logs that nobody needs. Returns live runs that were lost long ago.
    pub(super) fn sweep(&mut self, now: UnixMillis) -> LostRuns {
        self.changed_lists.retain(|_, changed| Arc::strong_count(changed) > 1);
        let users = self.users.iter();
        let keys = users.flat_map(|(owner, user)| {
            user.logs.keys().map(|chat| LogKey { owner: owner.clone(), chat: chat.clone() })
        });
        let mut lost = Vec::new();
        for key in keys.collect::<Vec<_>>() {
            let live = self.change(&key, |log| {
                log.trim();
                let live = log.live.as_ref();
                let lost = live.filter(|live| since(live.lease_end, now) >= KEPT_AFTER_LOSS);
                lost.map(|live| live.run.clone())
            });
            lost.extend(live.flatten().map(|run| (key, run)));
        }
        lost.truncate(MAX_LOST_RUNS);
        lost
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
        let counted = live.filter(|live| now < live.lease_end && !live.has_to_end);
        let mut live: Vec<_> = counted.collect();
        if live.len() < limits.runs {
            return true;
        }
        let oldest = live.iter_mut().min_by_key(|live| live.read_at);
        let Some(oldest) = oldest.filter(|it| since(it.read_at, now) >= limits.unread) else {
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

    /// Removes chats until the limits hold, but not this one.
    pub(super) fn limit_bytes(&mut self, key: &LogKey, limits: Limits) {
        let owner = &key.owner;
        let has_too_much =
            |logs: &Self| logs.users.get(owner).is_some_and(|user| user.bytes > limits.user);
        if has_too_much(self) {
            // Others make no room for a chat that is too large alone.
            let fits = self.get(key).is_none_or(|log| log.bytes <= limits.user);
            while fits && has_too_much(self) && self.evict(owner, Some(key), "with_max_user_bytes")
            {
            }
        }
        if self.totals.bytes <= limits.store {
            return;
        }
        // More than needed, so that this is rare: it looks at all users.
        let mut users: Vec<_> =
            self.users.iter().map(|(owner, user)| (user.bytes, owner.clone())).collect();
        users.sort_by_key(|(bytes, _)| Reverse(*bytes));
        for (_, owner) in users {
            while self.totals.bytes > limits.store / 16 * 15 {
                if !self.evict(&owner, Some(key), "with_max_store_bytes") {
                    break;
                }
            }
        }
    }
}
