//! What goes first, if the logs in memory have too many bytes, or a user has too many.
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

use super::partition::{Limits, Partition, bytes_of};
use super::{InMemoryLogStore, Partitions};
use crate::store::ChatStoreError;
use crate::store::rows::changes::delete_logs;
use crate::store::rows::log_rows::{CHATS, ENTRIES, owner_of, partition_of, row_of};
use crate::store::rows::rules::head::{Head, Loaded};
use crate::store::rows::step::{Step, Version, Write};
use ui_message_stream::approval::Principal;
use ui_message_stream::id::ChatId;

/// A step that would be applied, and makes a log larger.
struct Growth {
    /// The row of the log.
    row: String,
    /// How many bytes the log gets more.
    bytes: usize,
    /// How many it has then.
    log_bytes: usize,
    /// The step adds entries, and ends no run. A run can always renew its lease, and end.
    may_be_refused: bool,
}

impl Partitions {
    /// Returns whether there certainly is room for a step.
    pub(super) fn fits(&self, step: &Step, limits: Limits) -> bool {
        let pushed = step.writes.iter().map(|write| match write {
            Write::Push { items, .. } => bytes_of(items) + (1 << 10),
            _ => 0,
        });
        let pushed: usize = pushed.sum();
        let has_room = |partition: &Partition| partition.bytes + pushed <= limits.user;
        pushed == 0
            || pushed <= limits.user
                && self.bytes + pushed <= limits.store
                && self.by_name.get(&step.partition).is_none_or(has_room)
    }

    fn growth(&self, step: &Step) -> Option<Growth> {
        let empty = Partition::default();
        let partition = self.by_name.get(&step.partition).unwrap_or(&empty);
        let (added, removed) = partition.growth(&step.writes);
        let row = step.writes.iter().find_map(|write| match write {
            Write::Push { row, .. } => Some(row),
            _ => None,
        })?;
        if added <= removed || !partition.accepts(step) {
            return None;
        }
        let has_entries = step.writes.iter().any(|write| {
            matches!(write, Write::Push { sequence: ENTRIES, items, .. } if !items.is_empty())
        });
        let put = step.writes.iter().find_map(|write| match write {
            Write::Put(put, _, bytes) if put == row => Head::read(bytes).ok(),
            _ => None,
        });
        let before = partition.row(row).and_then(|(_, bytes)| Head::read(bytes).ok());
        let ended = before.map_or(0, |head| head.ended.len());
        let ends = put.is_some_and(|head| head.live.is_none() && head.ended.len() > ended);
        Some(Growth {
            row: row.clone(),
            bytes: added - removed,
            log_bytes: partition.log_bytes(row) + added - removed,
            may_be_refused: has_entries && !ends,
        })
    }

    /// Returns by how many bytes a user would have too many.
    fn excess(&self, partition: &str, added: usize, limit: usize) -> usize {
        let bytes = self.by_name.get(partition).map_or(0, |partition| partition.bytes);
        (bytes + added).saturating_sub(limit)
    }

    /// Returns the users of all partitions, those with the most bytes first.
    fn largest(&self) -> Vec<String> {
        let users = self.by_name.iter().filter(|(_, partition)| partition.bytes > 0);
        let mut users: Vec<_> = users.map(|(name, it)| (Reverse(it.bytes), name.clone())).collect();
        users.sort();
        users.into_iter().map(|(_, name)| name).collect()
    }
}

impl Partition {
    /// Returns chats with the versions of their rows that have so many bytes together, or fewer if there are not so many: the oldest first, those
    /// with questions last. Chats with a live run stay, and the one of the row `kept`.
    fn evictable(
        &self,
        kept: &str,
        bytes: usize,
        with_questions: bool,
        now: u64,
    ) -> Vec<(ChatId, Version)> {
        let mut evicted = Vec::new();
        let mut freed = 0;
        for questions in [false, true].into_iter().take(1 + usize::from(with_questions)) {
            for chat in self.members(CHATS) {
                if freed >= bytes {
                    return evicted;
                }
                let chat = ChatId::from(chat);
                let row = row_of(&chat);
                let Some((version, bytes)) = self.row(&row) else { continue };
                let head = Head::read(bytes).ok();
                let head = head.filter(|head| head.live.is_none() && row != kept);
                if head.is_some_and(|it| questions == (it.has_questions && !it.is_expired(now))) {
                    freed += self.log_bytes(&row);
                    evicted.push((chat, version));
                }
            }
        }
        evicted
    }
}

impl InMemoryLogStore {
    /// Evicts the oldest chat without questions of a user, who has too many. Returns whether there was one.
    pub(super) async fn evict_for_another(
        &self,
        owner: &Principal,
    ) -> Result<bool, ChatStoreError> {
        self.evict(&partition_of(owner), "", 1, false, "max_user_chats").await
    }

    /// Evicts chats until there is room for a step. Fails if there is none.
    pub(super) async fn make_room(&self, step: &Step) -> Result<(), ChatStoreError> {
        let Some(growth) = self.lock().growth(step) else { return Ok(()) };
        let Growth { row, bytes, log_bytes, may_be_refused } = &growth;
        let no_room = || Err(no_room(*log_bytes));
        // Others make no room for a chat that is too large alone.
        if *may_be_refused && *log_bytes > self.limits.user.min(self.limits.store) {
            return no_room();
        }
        loop {
            let excess = self.lock().excess(&step.partition, *bytes, self.limits.user);
            let mut has_evicted = excess > 0
                && self.evict(&step.partition, row, excess, true, "with_max_user_bytes").await?;
            // A chat of this user may just have made the room.
            if self.lock().bytes + bytes > self.limits.store {
                has_evicted |= self.evict_of_all(step, row, *bytes).await?;
            }
            let partitions = self.lock();
            let is_over = partitions.excess(&step.partition, *bytes, self.limits.user) > 0
                || partitions.bytes + bytes > self.limits.store;
            match (is_over, has_evicted) {
                (false, _) => return Ok(()),
                // Another request may have deleted them, or changed them.
                (true, true) => {}
                (true, false) if *may_be_refused => return no_room(),
                (true, false) => return Ok(()),
            }
        }
    }

    /// Evicts chats of the users with the most bytes. Returns whether there was one that may go.
    async fn evict_of_all(
        &self,
        step: &Step,
        row: &str,
        bytes: usize,
    ) -> Result<bool, ChatStoreError> {
        // More than needed, so that this is rare: it looks at all users.
        let goal = self.limits.store / 16 * 15;
        let mut has_evicted = false;
        let users = self.lock().largest();
        for user in users {
            let excess = (self.lock().bytes + bytes).saturating_sub(goal);
            if excess == 0 {
                break;
            }
            let kept = if user == step.partition { row } else { "" };
            has_evicted |= self.evict(&user, kept, excess, true, "with_max_store_bytes").await?;
        }
        Ok(has_evicted)
    }

    /// Deletes idle chats of a user as a request would. Returns whether there was one that may go.
    async fn evict(
        &self,
        user: &str,
        kept: &str,
        bytes: usize,
        with_questions: bool,
        limit: &str,
    ) -> Result<bool, ChatStoreError> {
        let now = self.time().0;
        let partition = |it: &Partition| it.evictable(kept, bytes, with_questions, now);
        let chats = self.lock().by_name.get(user).map(partition).unwrap_or_default();
        let (chats, versions): (Vec<_>, Vec<_>) = chats.into_iter().unzip();
        for chat in &chats {
            tracing::warn!(chat_id = chat.as_str(), limit, "a chat was removed from memory");
        }
        // One that was changed meanwhile is not idle.
        let is_same = |log: &Loaded, _| versions.contains(&log.version);
        delete_logs(self, &owner_of(user)?, &chats, is_same).await?;
        Ok(!chats.is_empty())
    }
}

fn no_room(bytes: usize) -> ChatStoreError {
    ChatStoreError::new(format!(
        "a chat of {bytes} bytes has no room beside the live runs, within \
         `InMemoryLogStore::with_max_user_bytes` and `with_max_store_bytes`"
    ))
}
