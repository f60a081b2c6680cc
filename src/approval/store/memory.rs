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
    Inserted, LedgerStore, LedgerStoreError, ListRecords, ListedRecords, PendingLimits,
    RECORD_RETENTION, RecordCursor, RecordList, Snapshot, VersionedRecord,
};
use crate::approval::{
    ApprovalRecord, ApprovalState, Principal, RecordId, ToolOutcome, UnixMillis,
};
use crate::boxed::BoxFuture;

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
            .field("lists", &records.lists.len())
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
    lists: HashMap<RecordList, RecordIndex>,
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
        let after = Some(RecordCursor::after_time(now));
        let count =
            |list: &RecordList, limit| records.listed_after(list, after).take(limit).count();
        let of_requester = RecordList::of_requester(&first.requester);
        let in_chat = count(&of_requester.in_chat(&first.chat_id), limits.chat);
        let of_requester = count(&of_requester, limits.requester);
        let admitted = limits.admit(inserted.len(), existing, in_chat, of_requester);

        let new: Vec<ApprovalRecord> =
            inserted[..admitted.stored].iter().filter(is_new).cloned().collect();
        let used = records.bytes_by_requester.get(&first.requester).copied().unwrap_or(0);
        let limit = self.max_user_bytes;
        let bytes = new.iter().map(bytes_of).sum::<usize>();
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

    fn read_list<'a>(
        &'a self,
        page: ListRecords<'a>,
    ) -> BoxFuture<'a, Result<ListedRecords, LedgerStoreError>> {
        let (now, records) = self.lock();
        let mut rest = records.listed_after(page.list, page.begins_after(now));
        let listed: Vec<_> = rest.by_ref().take(page.limit).collect();
        let last = listed.last().filter(|_| rest.next().is_some());
        let next = last.map(|&&(at, id)| RecordCursor { at, id });
        let found = listed.iter().filter_map(|(_, id)| records.by_id.get(id).cloned());
        let records = found.collect();
        Box::pin(ready(Ok(ListedRecords { now, records, next })))
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
    /// Inserts or replaces a record, and its places in the lists.
    fn put(&mut self, versioned: VersionedRecord) {
        let record = &versioned.record;
        let id = record.id;
        let lists = RecordList::that_have(record);
        *self.bytes_by_requester.entry(record.requester.clone()).or_default() += bytes_of(record);
        if let Some(replaced) = self.by_id.insert(id, versioned) {
            self.forget(&replaced.record);
        }
        for (list, at) in lists {
            self.lists.entry(list).or_default().insert((at, id));
        }
    }

    /// Removes a record, which was stored, from the lists and from what is counted.
    fn forget(&mut self, record: &ApprovalRecord) {
        self.subtract_bytes(record);
        for (list, at) in RecordList::that_have(record) {
            if let Entry::Occupied(mut index) = self.lists.entry(list) {
                index.get_mut().remove(&(at, record.id));
                if index.get().is_empty() {
                    index.remove();
                }
            }
        }
    }

    /// Returns the places of a list after this one.
    fn listed_after(
        &self,
        list: &RecordList,
        after: Option<RecordCursor>,
    ) -> impl Iterator<Item = &(UnixMillis, RecordId)> {
        let after = after.map(|after| (after.at, after.id));
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let index = self.lists.get(list).into_iter();
        index.flat_map(move |index| index.range((after, Bound::Unbounded)))
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

    /// Removes the records whose retention ended before `now`.
    fn remove_past_retention(&mut self, now: UnixMillis) {
        while let Some((end, id)) =
            self.by_retention_end.first().copied().filter(|(end, _)| *end < now)
        {
            self.by_retention_end.remove(&(end, id));
            if let Some(versioned) = self.by_id.remove(&id) {
                self.forget(&versioned.record);
            }
        }
    }
}

/// Returns the bytes that a record counts.
fn bytes_of(record: &ApprovalRecord) -> usize {
    let outcome = match &record.state {
        ApprovalState::Completed {
            outcome: ToolOutcome::Output(json) | ToolOutcome::HandedToClient(json),
            ..
        } => json.as_str().len(),
        ApprovalState::Completed { outcome: ToolOutcome::Failed(error), .. } => error.len(),
        _ => 0,
    };
    let changed = record.changed_input().map_or(0, |input| input.as_str().len());
    let audience = record.audience.iter().map(|name| name.len() + AUDIENCE_BYTES).sum::<usize>();
    record.input.as_str().len()
        + changed
        + record.description.len()
        + outcome
        + audience
        + RECORD_BYTES
}

/// The bytes that a record counts besides its inputs, its description, its audience and its outcome.
const RECORD_BYTES: usize = 1024;

/// The bytes that the three lists of an audience count.
const AUDIENCE_BYTES: usize = 512;

const DEFAULT_MAX_USER_BYTES: usize = 64 << 20;

/// Returns the time of the system's clock.
#[expect(clippy::disallowed_methods, reason = "the glue hands the core the time")]
pub(crate) fn system_time() -> UnixMillis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMillis(since.as_millis().try_into().unwrap_or(u64::MAX))
}
