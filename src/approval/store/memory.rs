//! [`InMemoryLedger`]: a ledger in the memory of one process.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::future::ready;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::{
    Inserted, LedgerStore, LedgerStoreError, PendingCursor, PendingFilter, PendingLimits,
    PendingQuery, PendingRecords, RECORD_RETENTION, Snapshot, VersionedRecord,
};
use crate::approval::{
    ApprovalRecord, ApprovalState, Principal, RecordId, ToolOutcome, UnixMillis,
};
use crate::boxed::BoxFuture;
use crate::id::ChatId;

/// A ledger in the memory of this process.
///
/// The records are lost when the process ends. After a restart, the answers to earlier approval
/// requests are rejected.
///
/// The ledger reads the system's clock once, when it is created. From then on a monotonic clock
/// measures the time, so a system clock that jumps neither expires a request or a lease early nor
/// keeps it from expiring. The time while the machine is suspended may not count.
///
/// Each record is kept for [`RECORD_RETENTION`] after it has expired. The records of one requester
/// may have 64 MiB: their inputs, descriptions and outcomes, and 1 KiB for each record. Beyond that,
/// new records are an error, and the calls that need approval are not executed. See
/// [`with_max_user_bytes`](Self::with_max_user_bytes).
#[doc(alias = "memory")]
pub struct InMemoryLedger {
    records: Mutex<Records>,
    clock: Clock,
    max_user_bytes: usize,
}

impl fmt::Debug for InMemoryLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, records) = self.lock();
        f.debug_struct("InMemoryLedger")
            .field("records", &records.by_id.len())
            .field("pending", &records.pending.len())
            .finish_non_exhaustive()
    }
}

/// The source of the time.
#[derive(Debug)]
enum Clock {
    /// The time of the system when the ledger was created, and the same moment on a monotonic
    /// clock.
    Monotonic {
        created_at: UnixMillis,
        created: Instant,
    },
    Test(Mutex<UnixMillis>),
}

/// Record ids, ordered by a time.
type RecordIndex = BTreeSet<(UnixMillis, RecordId)>;

#[derive(Debug, Default)]
struct Records {
    by_id: HashMap<RecordId, VersionedRecord>,
    /// The pending records of each requester in each chat, by their expiry.
    pending_by_chat: HashMap<(Principal, ChatId), RecordIndex>,
    /// The pending records of each requester, by their expiry.
    pending_by_requester: HashMap<Principal, RecordIndex>,
    /// All pending records, by their expiry.
    pending: RecordIndex,
    bytes_by_requester: HashMap<Principal, usize>,
    /// All records, by the end of their retention.
    by_retention_end: RecordIndex,
    /// The latest time that was returned: the clock must not run backwards.
    latest_time: UnixMillis,
}

impl InMemoryLedger {
    /// Creates an empty ledger.
    pub fn new() -> Self {
        let clock = Clock::Monotonic { created_at: system_time(), created: Instant::now() };
        Self::with_clock(clock)
    }

    /// Creates an empty ledger for tests. Its clock stands at `now` until
    /// [`set_test_time`](Self::set_test_time) sets it.
    pub fn with_test_clock(now: UnixMillis) -> Self {
        Self::with_clock(Clock::Test(Mutex::new(now)))
    }

    fn with_clock(clock: Clock) -> Self {
        let max_user_bytes = DEFAULT_MAX_USER_BYTES;
        InMemoryLedger { records: Mutex::default(), clock, max_user_bytes }
    }

    /// Sets the maximum number of bytes of the records of one requester to which a record may be
    /// added. The default is 64 MiB.
    #[must_use]
    pub fn with_max_user_bytes(mut self, bytes: usize) -> Self {
        self.max_user_bytes = bytes;
        self
    }

    /// Sets the clock of a ledger that was created by
    /// [`with_test_clock`](Self::with_test_clock).
    ///
    /// A ledger with the system's clock is not changed. The time that the ledger returns never runs
    /// backwards: a `now` before the latest returned time has no effect.
    pub fn set_test_time(&self, now: UnixMillis) {
        if let Clock::Test(time) = &self.clock {
            *time.lock().unwrap_or_else(PoisonError::into_inner) = now;
        }
    }

    /// Locks the records and returns them with the current time.
    fn lock(&self) -> (UnixMillis, MutexGuard<'_, Records>) {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let now = match &self.clock {
            Clock::Monotonic { created_at, created } => created_at.after(created.elapsed()),
            Clock::Test(time) => *time.lock().unwrap_or_else(PoisonError::into_inner),
        };
        records.latest_time = records.latest_time.max(now);
        (records.latest_time, records)
    }
}

impl Default for InMemoryLedger {
    fn default() -> Self {
        Self::new()
    }
}

impl LedgerStore for InMemoryLedger {
    /// If the records would have more bytes than a requester's records may have, none is inserted.
    fn insert_all<'a>(
        &'a self,
        inserted: &'a [ApprovalRecord],
        limits: PendingLimits,
    ) -> BoxFuture<'a, Result<Inserted, LedgerStoreError>> {
        let (now, mut records) = self.lock();
        records.remove_past_retention(now);
        let Some(first) = inserted.first() else {
            return Box::pin(ready(Ok(limits.admit(0, 0, 0, 0))));
        };
        let is_new = |record: &&ApprovalRecord| !records.by_id.contains_key(&record.id);
        let existing = inserted.len() - inserted.iter().filter(is_new).count();
        let after = PendingCursor::after_expired(now);
        let in_chat = records.pending_by_chat.get(&chat_key(first));
        let in_chat = listed_after(in_chat, Some(after)).take(limits.chat).count();
        let of_requester = records.pending_by_requester.get(&first.requester);
        let of_requester = listed_after(of_requester, Some(after)).take(limits.requester).count();
        let admitted = limits.admit(inserted.len(), existing, in_chat, of_requester);

        let new: Vec<ApprovalRecord> =
            inserted[..admitted.stored].iter().filter(is_new).cloned().collect();
        let used = records.bytes_by_requester.get(&first.requester).copied().unwrap_or(0);
        let (limit, bytes) = (self.max_user_bytes, new.iter().map(bytes_of).sum::<usize>());
        if bytes > 0 && used + bytes > limit {
            return Box::pin(ready(Err(LedgerStoreError::new(format!(
                "the approval records of one user have more than {limit} bytes; \
                 `InMemoryLedger::with_max_user_bytes` allows more"
            )))));
        }
        for record in new {
            let retention_end = record.expires_at.after(RECORD_RETENTION);
            records.by_retention_end.insert((retention_end, record.id));
            records.put(VersionedRecord { record, revision: 0 });
        }
        Box::pin(ready(Ok(admitted)))
    }

    fn load<'a>(
        &'a self,
        ids: &'a [RecordId],
    ) -> BoxFuture<'a, Result<Snapshot, LedgerStoreError>> {
        let (now, records) = self.lock();
        let found = ids.iter().filter_map(|id| records.by_id.get(id).cloned()).collect();
        Box::pin(ready(Ok(Snapshot { now, records: found })))
    }

    fn pending<'a>(
        &'a self,
        query: PendingQuery<'a>,
    ) -> BoxFuture<'a, Result<PendingRecords, LedgerStoreError>> {
        let (now, records) = self.lock();
        let pending = match query.filter {
            PendingFilter::Chat { requester, chat } => {
                records.pending_by_chat.get(&(requester.clone(), chat.clone()))
            }
            PendingFilter::Requester(principal) => records.pending_by_requester.get(principal),
            PendingFilter::All => Some(&records.pending),
        };
        let mut rest = listed_after(pending, query.after);
        let page: Vec<_> = rest.by_ref().take(query.limit).collect();
        let last = page.last().filter(|_| rest.next().is_some());
        let next = last.map(|&&(expires_at, id)| PendingCursor { expires_at, id });
        let found = page.iter().filter_map(|(_, id)| records.by_id.get(id).cloned());
        let records = found.collect();
        Box::pin(ready(Ok(PendingRecords { now, records, next })))
    }

    fn compare_and_swap<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        let (_, mut records) = self.lock();
        let stored = records.by_id.get(&record.id);
        let is_current = stored.is_some_and(|stored| stored.revision == revision);
        if is_current {
            records.put(VersionedRecord { record: record.clone(), revision: revision + 1 });
        }
        Box::pin(ready(Ok(is_current)))
    }
}

impl Records {
    /// Inserts or replaces a record and updates the indexes of pending records.
    fn put(&mut self, versioned: VersionedRecord) {
        let record = &versioned.record;
        let entry = (record.expires_at, record.id);
        if record.is_pending() {
            let requester = record.requester.clone();
            self.pending_by_chat.entry(chat_key(record)).or_default().insert(entry);
            self.pending_by_requester.entry(requester).or_default().insert(entry);
            self.pending.insert(entry);
        } else {
            self.remove_pending(record);
        }
        *self.bytes_by_requester.entry(record.requester.clone()).or_default() += bytes_of(record);
        if let Some(replaced) = self.by_id.insert(entry.1, versioned) {
            self.subtract_bytes(&replaced.record);
        }
    }

    fn subtract_bytes(&mut self, record: &ApprovalRecord) {
        if let Entry::Occupied(mut bytes) = self.bytes_by_requester.entry(record.requester.clone())
        {
            *bytes.get_mut() -= bytes_of(record);
            if *bytes.get() == 0 {
                bytes.remove();
            }
        }
    }

    /// Removes a record from the indexes of pending records.
    fn remove_pending(&mut self, record: &ApprovalRecord) {
        let entry = (record.expires_at, record.id);
        self.pending.remove(&entry);
        if let Entry::Occupied(mut index) = self.pending_by_chat.entry(chat_key(record)) {
            index.get_mut().remove(&entry);
            if index.get().is_empty() {
                index.remove();
            }
        }
        let requester = record.requester.clone();
        if let Entry::Occupied(mut index) = self.pending_by_requester.entry(requester) {
            index.get_mut().remove(&entry);
            if index.get().is_empty() {
                index.remove();
            }
        }
    }

    /// Removes the records whose retention ended before `now`.
    fn remove_past_retention(&mut self, now: UnixMillis) {
        while let Some((end, id)) =
            self.by_retention_end.first().copied().filter(|(end, _)| *end < now)
        {
            self.by_retention_end.remove(&(end, id));
            if let Some(versioned) = self.by_id.remove(&id) {
                self.remove_pending(&versioned.record);
                self.subtract_bytes(&versioned.record);
            }
        }
    }
}

/// Returns the places of an index after this one.
fn listed_after(
    index: Option<&RecordIndex>,
    after: Option<PendingCursor>,
) -> impl Iterator<Item = &(UnixMillis, RecordId)> {
    let after = after.map(|after| (after.expires_at, after.id));
    let after = after.map_or(Bound::Unbounded, Bound::Excluded);
    index.into_iter().flat_map(move |index| index.range((after, Bound::Unbounded)))
}

/// Returns the bytes that a record counts.
fn bytes_of(record: &ApprovalRecord) -> usize {
    let outcome = match &record.state {
        ApprovalState::Completed { outcome: ToolOutcome::Output(output), .. } => {
            output.as_str().len()
        }
        ApprovalState::Completed { outcome: ToolOutcome::Failed(error), .. } => error.len(),
        _ => 0,
    };
    let changed = record.changed_input().map_or(0, |input| input.as_str().len());
    record.input.as_str().len() + changed + record.description.len() + outcome + RECORD_BYTES
}

/// The bytes that a record counts besides its inputs, its description and its outcome.
const RECORD_BYTES: usize = 1024;

const DEFAULT_MAX_USER_BYTES: usize = 64 << 20;

fn chat_key(record: &ApprovalRecord) -> (Principal, ChatId) {
    (record.requester.clone(), record.chat_id.clone())
}

/// Returns the time of the system's clock.
#[expect(clippy::disallowed_methods, reason = "the glue hands the core the time")]
pub(crate) fn system_time() -> UnixMillis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMillis(since.as_millis().try_into().unwrap_or(u64::MAX))
}
