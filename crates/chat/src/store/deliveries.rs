//! [`Deliveries`]: what a sink has to get of the logs in memory.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::append_log::Undelivered;
use super::log_head::{Epoch, LogKey};
use super::log_store::KEPT_UNDELIVERED;
use ui_message_stream::approval::UnixMillis;

/// The logs that were changed for a sink, or deleted since.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    by_key: HashMap<LogKey, Delivery>,
    /// Those that the sink has not got, by the time when somebody may deliver them.
    due: BTreeSet<(UnixMillis, LogKey)>,
    /// The logs that were deleted, in this order, and some of which the sink has the deletion.
    deleted: VecDeque<LogKey>,
}

#[derive(Debug)]
struct Delivery {
    epoch: Epoch,
    /// The number of entries, or [`Undelivered::DELETED`].
    position: u64,
    /// `None` if the sink has got it.
    due: Option<UnixMillis>,
}

impl Deliveries {
    pub(super) fn has_changed(
        &mut self,
        key: &LogKey,
        epoch: Epoch,
        position: u64,
        now: UnixMillis,
    ) {
        self.set(key, Delivery { epoch, position, due: Some(now) });
    }

    pub(super) fn has_deleted(&mut self, key: &LogKey, now: UnixMillis) {
        let Some(Delivery { epoch, .. }) = self.by_key.get(key) else { return };
        let epoch = *epoch;
        let due = Some(now);
        self.set(key, Delivery { epoch, position: Undelivered::DELETED, due });
        self.deleted.push_back(key.clone());
        if self.deleted.len() > MAX_DELETED {
            let by_key = &self.by_key;
            self.deleted.retain(|key| by_key.get(key).is_some_and(Delivery::is_deletion));
        }
        if self.deleted.len() > MAX_DELETED
            && let Some(oldest) = self.deleted.pop_front()
        {
            self.forget(&oldest);
        }
    }

    /// Forgets the deletions that were not taken for a long time.
    pub(super) fn forget_old(&mut self, now: UnixMillis) {
        let old = self.due.iter().take_while(|(due, _)| due.after(KEPT_UNDELIVERED) <= now);
        let old = old.filter(|(_, key)| self.by_key.get(key).is_some_and(Delivery::is_deletion));
        for (_, key) in old.cloned().collect::<Vec<_>>() {
            self.forget(&key);
        }
    }

    /// Returns what is due now, and next at this time.
    pub(super) fn take(
        &mut self,
        limit: usize,
        now: UnixMillis,
        next: UnixMillis,
    ) -> Vec<Undelivered> {
        let due = self.due.iter().take_while(|(due, _)| *due <= now).take(limit);
        let due: Vec<_> = due.cloned().collect();
        let taken = due.into_iter().filter_map(|(due, key)| {
            let delivery = self.by_key.get_mut(&key)?;
            delivery.due = Some(next);
            let taken = delivery.of(&key);
            self.due.remove(&(due, key.clone()));
            self.due.insert((next, key));
            Some(taken)
        });
        taken.collect()
    }

    /// Notes a delivery. Returns what comes next.
    pub(super) fn acknowledge(&mut self, delivered: &Undelivered) -> Option<Undelivered> {
        let Undelivered { key, epoch, position } = delivered;
        let is_deletion = *position == Undelivered::DELETED;
        match self.by_key.get(key).map(|delivery| delivery.of(key)) {
            Some(delivery) if !delivery.is_acknowledged_by(delivered) => return Some(delivery),
            Some(_) if is_deletion => self.forget(key),
            Some(_) => self.set(key, Delivery { epoch: *epoch, position: *position, due: None }),
            None if is_deletion => {}
            None => return Some(Undelivered::deletion(key.clone(), *epoch)),
        }
        None
    }

    fn set(&mut self, key: &LogKey, delivery: Delivery) {
        self.forget(key);
        self.due.extend(delivery.due.map(|due| (due, key.clone())));
        self.by_key.insert(key.clone(), delivery);
    }

    fn forget(&mut self, key: &LogKey) {
        if let Some(Delivery { due: Some(due), .. }) = self.by_key.remove(key) {
            self.due.remove(&(due, key.clone()));
        }
    }
}

impl Delivery {
    fn is_deletion(&self) -> bool {
        self.position == Undelivered::DELETED
    }

    fn of(&self, key: &LogKey) -> Undelivered {
        Undelivered { key: key.clone(), epoch: self.epoch, position: self.position }
    }
}

/// How many deletions a sink that fails may have missed. One more forgets the oldest.
const MAX_DELETED: usize = 10_000;
