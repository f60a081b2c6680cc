//! [`Deliveries`]: what a sink has to get of the logs in memory.

use std::collections::HashMap;

use super::append_log::Undelivered;
use super::log_head::{Epoch, LogKey};
use ui_message_stream::approval::UnixMillis;

/// The logs that were changed for a sink, or deleted since.
#[derive(Debug, Default)]
pub(super) struct Deliveries(HashMap<LogKey, Delivery>);

#[derive(Debug)]
struct Delivery {
    epoch: Epoch,
    /// The number of entries, or [`Undelivered::DELETED`].
    position: u64,
    /// When somebody may deliver it. `None` if the sink has got it.
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
        self.0.insert(key.clone(), Delivery { epoch, position, due: Some(now) });
    }

    pub(super) fn has_deleted(&mut self, key: &LogKey) {
        if let Some(delivery) = self.0.get_mut(key) {
            (delivery.position, delivery.due) = (Undelivered::DELETED, Some(UnixMillis(0)));
        }
    }

    /// Returns what is due now, and next at this time.
    pub(super) fn take(
        &mut self,
        limit: usize,
        now: UnixMillis,
        next: UnixMillis,
    ) -> Vec<Undelivered> {
        let due = self.0.iter_mut().filter_map(|(key, it)| Some((it.due?, key, it)));
        let mut due: Vec<_> = due.filter(|(due, ..)| *due <= now).collect();
        due.sort_by_key(|(due, ..)| *due);
        let taken = due.into_iter().take(limit).map(|(_, key, delivery)| {
            delivery.due = Some(next);
            delivery.of(key)
        });
        taken.collect()
    }

    /// Notes a delivery. Returns what comes next.
    pub(super) fn acknowledge(&mut self, delivered: &Undelivered) -> Option<Undelivered> {
        let Undelivered { key, epoch, position } = delivered;
        let is_deletion = *position == Undelivered::DELETED;
        match self.0.get_mut(key) {
            Some(it) if it.epoch != *epoch || it.position > *position => return Some(it.of(key)),
            Some(_) if is_deletion => drop(self.0.remove(key)),
            Some(it) => it.due = None,
            None if is_deletion => {}
            None => return Some(Undelivered::deletion(key.clone(), *epoch)),
        }
        None
    }
}

impl Delivery {
    fn of(&self, key: &LogKey) -> Undelivered {
        Undelivered { key: key.clone(), epoch: self.epoch, position: self.position }
    }
}
