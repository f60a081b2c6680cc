//! [`MemoryLedger`]: a ledger for one process, gone with it.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::future::ready;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Asked, BoxFuture, KEPT_FOR, Kept, LedgerStore, LedgerStoreError, Loaded};
use crate::approval::{ApprovalRecord, Principal, RecordId, UnixMillis};
use crate::id::ChatId;

/// A ledger in the memory of this process. After a restart, what was asked before is refused.
#[derive(Debug, Default)]
pub struct MemoryLedger {
    records: Mutex<Records>,
    clock: Clock,
}

/// What time it is.
#[derive(Debug, Default)]
enum Clock {
    #[default]
    System,
    Given(Mutex<UnixMillis>),
}

/// When they were asked for, and which they are.
type Places = BTreeSet<(UnixMillis, RecordId)>;

#[derive(Debug, Default)]
struct Records {
    kept: HashMap<RecordId, Kept>,
    /// Those that wait for an answer, by chat and by person, the oldest first.
    in_chat: HashMap<(Option<Box<str>>, ChatId), Places>,
    by: HashMap<Principal, Places>,
    /// By when they may be forgotten.
    forget: Places,
    /// The latest time that was told: the clock does not run backwards.
    latest: UnixMillis,
}

impl MemoryLedger {
    /// An empty ledger.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty ledger whose clock stands at `now` until it is [moved](Self::set_time): for tests.
    pub fn at(now: UnixMillis) -> Self {
        MemoryLedger { records: Mutex::default(), clock: Clock::Given(Mutex::new(now)) }
    }

    /// Moves the clock of a ledger that was made [at](Self::at) a time. The system's clock stays.
    pub fn set_time(&self, now: UnixMillis) {
        if let Clock::Given(time) = &self.clock {
            *time.lock().unwrap_or_else(PoisonError::into_inner) = now;
        }
    }

    fn records(&self) -> (UnixMillis, MutexGuard<'_, Records>) {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let now = match &self.clock {
            Clock::System => system_time(),
            Clock::Given(time) => *time.lock().unwrap_or_else(PoisonError::into_inner),
        };
        records.latest = records.latest.max(now);
        (records.latest, records)
    }
}

impl LedgerStore for MemoryLedger {
    fn insert<'a>(
        &'a self,
        record: &'a ApprovalRecord,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        let (now, mut records) = self.records();
        records.forget_until(now);
        let is_new = !records.kept.contains_key(&record.id);
        if is_new {
            records.forget.insert((record.expires_at.after(KEPT_FOR), record.id));
            records.keep(Kept { record: record.clone(), revision: 0 });
        }
        Box::pin(ready(Ok(is_new)))
    }

    fn load<'a>(&'a self, ids: &'a [RecordId]) -> BoxFuture<'a, Result<Loaded, LedgerStoreError>> {
        let (now, records) = self.records();
        let found = ids.iter().filter_map(|id| records.kept.get(id).cloned()).collect();
        Box::pin(ready(Ok(Loaded { now, records: found })))
    }

    fn pending<'a>(&'a self, of: Asked<'a>) -> BoxFuture<'a, Result<Loaded, LedgerStoreError>> {
        let (now, records) = self.records();
        let pending = match of {
            Asked::InChat { tenant, chat } => {
                records.in_chat.get(&(tenant.map(Into::into), chat.clone()))
            }
            Asked::By(principal) => records.by.get(principal),
        };
        let ids = pending.into_iter().flatten();
        let found = ids.filter_map(|(_, id)| records.kept.get(id).cloned()).collect();
        Box::pin(ready(Ok(Loaded { now, records: found })))
    }

    fn replace<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        let (_, mut records) = self.records();
        let is_current = records.kept.get(&record.id).is_some_and(|kept| kept.revision == revision);
        if is_current {
            records.keep(Kept { record: record.clone(), revision: revision + 1 });
        }
        Box::pin(ready(Ok(is_current)))
    }
}

impl Records {
    fn keep(&mut self, kept: Kept) {
        let record = &kept.record;
        let place = (record.requested_at, record.id);
        if record.is_pending() {
            self.in_chat.entry(chat_of(record)).or_default().insert(place);
            self.by.entry(record.requester.clone()).or_default().insert(place);
        } else {
            self.forget_pending(record);
        }
        self.kept.insert(place.1, kept);
    }

    fn forget_pending(&mut self, record: &ApprovalRecord) {
        let place = (record.requested_at, record.id);
        if let Entry::Occupied(mut chat) = self.in_chat.entry(chat_of(record)) {
            chat.get_mut().remove(&place);
            if chat.get().is_empty() {
                chat.remove();
            }
        }
        if let Entry::Occupied(mut person) = self.by.entry(record.requester.clone()) {
            person.get_mut().remove(&place);
            if person.get().is_empty() {
                person.remove();
            }
        }
    }

    fn forget_until(&mut self, now: UnixMillis) {
        while let Some((until, id)) = self.forget.first().copied().filter(|(until, _)| *until < now)
        {
            self.forget.remove(&(until, id));
            if let Some(kept) = self.kept.remove(&id) {
                self.forget_pending(&kept.record);
            }
        }
    }
}

fn chat_of(record: &ApprovalRecord) -> (Option<Box<str>>, ChatId) {
    (record.requester.tenant().map(Into::into), record.chat_id.clone())
}

#[expect(clippy::disallowed_methods, reason = "the glue hands the core the time")]
pub(crate) fn system_time() -> UnixMillis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMillis(since.as_millis().try_into().unwrap_or(u64::MAX))
}
