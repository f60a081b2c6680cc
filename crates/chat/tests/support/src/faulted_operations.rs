//! Operations of each kind on a store whose connections have faults. Failed ones are repeated, as the
//! server does, and each has to take effect once.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use test_support::contention::InsertOne;

use futures::future::join_all;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use ui_message_stream::Json;
use ui_message_stream::approval::store::{LedgerStore, LedgerStoreError, RecordList, update};
use ui_message_stream::approval::{
    ApprovalRecord, Claim, DeferredOutcome, LeaseHolderId, LeaseResult, Principal, RecordId,
    RecordedDecision, Stepped, ToolOutcome, Transition, UnixMillis,
};
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, LiveRunChange, LoadLog, LogKey, LogStore, PutSnapshot, ReadLogEntries,
    StoredEntry, Unchanged,
};

use crate::store_requests::{EPOCH, append_after, append_at, control, creation, frame, key, note};
use test_support::contention;
use test_support::external_processes::fault_proxy::{Fault, FaultProxy};
use test_support::external_processes::say;
use test_support::rng::Dice;

/// A store of everything.
pub trait Store: LogStore + LedgerStore + 'static {}

impl<S: LogStore + LedgerStore + 'static> Store for S {}

/// Executes the operations of so many users at once through a proxy, while each of its faults happens
/// again and again at random moments. A reader at each of the two stores follows each log.
pub async fn operate_during_faults(proxy: &FaultProxy, stores: [&impl Store; 2], users: usize) {
    for (round, fault) in Fault::ALL.into_iter().enumerate() {
        let first = round * users;
        let failures = AtomicUsize::new(0);
        let operations = join_all((first..first + users).map(async |user| {
            let pause = Duration::from_millis(50);
            let operations =
                Operations { store: stores[0], before: &|| {}, pause, failures: &failures };
            let key = key(&owner(user), "chat");
            let (logs, ()) = tokio::join!(
                join_all(stores.map(|store| follow(store, &key))),
                operations.execute(user)
            );
            for entries in logs {
                assert_eq!(entries, log());
            }
        }));
        let occurred = AtomicUsize::new(0);
        let faults = async {
            let mut random = Dice::new(round as u64, users as u64);
            loop {
                proxy.occur(fault, &mut random).await;
                let times = occurred.fetch_add(1, Ordering::Relaxed) as u64;
                // An operation on a half-open connection is repeated after two seconds or fails after five.
                // The other faults become rarer, so that a slow machine comes to an end, too.
                let pause = if fault == Fault::HalfOpen { 3_000 } else { 100 + 20 * times };
                sleep(Duration::from_millis(pause)).await;
            }
        };
        let begun = Instant::now();
        tokio::select! {
            () = faults => {}
            ended = timeout(LONGEST, operations) => drop(ended.expect("the operations end")),
        }
        proxy.heal();
        let (failures, took) = (failures.into_inner(), begun.elapsed());
        let occurred = occurred.into_inner();
        say(&format!("{users} users, {fault:?} {occurred} times: {failures} failures, {took:.1?}"));
        assert!(occurred > 0, "{fault:?}");
    }
}

/// Executes the operations of a user. Calls `before` before each of them. Returns how many have failed
/// and were repeated.
pub async fn operate(store: &impl Store, user: usize, before: &(impl Fn() + Sync)) -> usize {
    let failures = AtomicUsize::new(0);
    let operations = Operations { store, before, pause: Duration::ZERO, failures: &failures };
    operations.execute(user).await;
    failures.into_inner()
}

/// How many operations [`operate`] executes.
pub const OPERATIONS: usize = 12;

struct Operations<'a, S> {
    store: &'a S,
    before: &'a (dyn Fn() + Sync),
    pause: Duration,
    failures: &'a AtomicUsize,
}

impl<S: Store> Operations<'_, S> {
    async fn execute(&self, user: usize) {
        let key = key(&owner(user), "chat");
        self.write_log(&key).await;
        self.put_snapshots(&key).await;
        self.decide(user).await;
    }

    /// A run begins, writes, and is taken over twice: while it is live, and after it was handed over.
    async fn write_log(&self, key: &LogKey) {
        let entries = log();
        let runs = ["first", "second", "third"].map(Into::into);
        let begins = |run: usize, append| {
            let (lease, live_run) = (Some(LEASE), LiveRunChange::Begins(&runs[run]));
            AppendLog { lease, live_run, ..append }
        };
        self.append(1, begins(0, creation(key, &entries[..1]))).await;
        self.append(2, append_at(key, 1, &entries[1..2])).await;
        self.append(4, append_at(key, 2, &entries[2..4])).await;
        self.append(6, begins(1, append_after(key, 1, &entries[4..6]))).await;
        let handed_over = AppendLog { lease: Some(Duration::ZERO), ..append_at(key, 6, &[]) };
        self.append(6, handed_over).await;
        let take = AppendLog { only_lost: true, ..append_after(key, 3, &entries[6..8]) };
        self.append(8, begins(2, take)).await;
        let ends = AppendLog { live_run: LiveRunChange::Ends, ..append_at(key, 8, &entries[8..]) };
        self.append(10, ends).await;

        let page = self.succeed(async || self.store.read(whole(key)).await).await.unwrap();
        assert_eq!((&*page.entries, page.head.length), (&entries[..], 10));
        assert_eq!((page.head.control, page.head.live_run), (6, None));
        let again = creation(key, &entries[..1]);
        let again = self.succeed(async || self.store.append(again).await).await;
        assert_eq!(again, AppendResult::Conflict);
    }

    /// An append that failed, or that conflicts perhaps with itself, has taken effect if the log has this
    /// length.
    async fn append(&self, length: u64, append: AppendLog<'_>) {
        let attempt = async || match self.store.append(append).await {
            Ok(AppendResult::Appended { head, .. }) => {
                assert_eq!(head.length, length);
                Ok(())
            }
            failed => {
                let page = self.store.read(whole(append.key)).await.ok().flatten();
                let has_entries = page.is_some_and(|page| page.head.length == length);
                let is_appended = has_entries && !append.entries.is_empty();
                // A failed append counts, also if the log shows that it has taken effect.
                self.failures.fetch_add(usize::from(is_appended), Ordering::Relaxed);
                if is_appended { Ok(()) } else { Err(failed) }
            }
        };
        self.repeat(attempt).await;
    }

    /// A snapshot, and one that keeps its first message.
    async fn put_snapshots(&self, key: &LogKey) {
        let messages = ["one", "two", "three"].map(str::to_owned);
        let (epoch, head) = (EPOCH, "{}");
        let unchanged = Some(Unchanged { position: 4, messages: 1 });
        let snapshots = [(4, None, &messages[..2]), (10, unchanged, &messages[2..])];
        for (position, unchanged, changed) in snapshots {
            let put = PutSnapshot { key, epoch, position, head, unchanged, changed };
            self.put(put).await;
        }
        let all = LoadLog { key, has_frames: true, has_messages: true };
        let load = async || LogStore::load(self.store, all).await;
        let stored = self.succeed(load).await.unwrap();
        let snapshot = stored.snapshot.unwrap();
        assert_eq!((snapshot.position, &*snapshot.head), (10, head));
        assert_eq!(snapshot.messages, ["one", "three"]);
        assert_eq!(stored.entries, []);
    }

    /// A snapshot whose storage failed, or that is not newer than itself, is stored if it is there.
    async fn put(&self, put: PutSnapshot<'_>) {
        let attempt = async || match self.store.put_snapshot(put).await {
            Ok(true) => Ok(()),
            failed => {
                let key = put.key;
                let all = LoadLog { key, has_frames: false, has_messages: false };
                let stored = LogStore::load(self.store, all).await.ok().flatten();
                let stored = stored.and_then(|log| log.snapshot);
                let is_stored = stored.is_some_and(|stored| stored.position == put.position);
                // A failed operation counts, also if the log shows that it has taken effect.
                self.failures.fetch_add(usize::from(is_stored), Ordering::Relaxed);
                if is_stored { Ok(()) } else { Err(failed) }
            }
        };
        self.repeat(attempt).await;
    }

    /// An approval request, its claim and its outcome.
    async fn decide(&self, user: usize) {
        let mut record = contention::record(RecordId::from_bytes((user as u128).to_be_bytes()));
        record.requester = owner(user);
        let insert = async || self.store.insert(&record).await;
        let is_new = self.repeat(insert).await;
        let filter = RecordList::of_requester(&record.requester);
        let pending = self
            .succeed(async || LedgerStore::read_list(self.store, (&filter).into()).await)
            .await
            .records;
        let pending: Vec<_> = pending.iter().map(|stored| &stored.record).collect();
        assert_eq!(pending, [&record], "{is_new}");
        assert!(self.succeed(insert).await);

        let claim = |number| {
            self.change(record.id, move |record, now| {
                let (decided_by, decided_at) = (record.requester.clone(), now);
                let decision = RecordedDecision::new(decided_by, decided_at);
                let holder = LeaseHolderId::from_bytes([number; 16]);
                let Transition { output, next } =
                    record.claim(&decision, holder, Duration::from_secs(600));
                let outcome = next.as_ref().unwrap_or(record).outcome();
                Transition { output: (output, outcome), next }
            })
        };
        let granted = json!({"record": record.id, "fence": 1});
        let granted: Claim = serde_json::from_value(granted).unwrap();
        assert_eq!(claim(1).await.0, Stepped::Granted(granted.clone()));
        let outcome = ToolOutcome::Output(Json::from_serialize(&json!({"at": user})).unwrap());
        let complete = |record: &ApprovalRecord, now| record.complete(&granted, &outcome, now);
        assert_eq!(self.change(record.id, complete).await, LeaseResult::Stored);
        assert_eq!(claim(2).await, (Stepped::Counts, Some(DeferredOutcome::Executed { outcome })));
    }

    /// Changes a record. The operation begins when the record was read.
    async fn change<T: Send>(
        &self,
        id: RecordId,
        rule: impl Fn(&ApprovalRecord, UnixMillis) -> Transition<T> + Send + Sync,
    ) -> T {
        let has_begun = AtomicBool::new(false);
        let change = async || {
            let changed = update(self.store, id, |record, now| {
                let changed = rule(record, now);
                if changed.next.is_some() && !has_begun.swap(true, Ordering::Relaxed) {
                    (self.before)();
                }
                changed
            });
            Ok::<_, LedgerStoreError>(changed.await?.unwrap().1)
        };
        sleep(self.pause).await;
        self.succeed(change).await
    }

    async fn repeat<T, E: Debug>(&self, operation: impl AsyncFn() -> Result<T, E>) -> T {
        sleep(self.pause).await;
        (self.before)();
        self.succeed(operation).await
    }

    async fn succeed<T, E: Debug>(&self, operation: impl AsyncFn() -> Result<T, E>) -> T {
        for _ in 0..200 {
            match operation().await {
                Ok(result) => return result,
                Err(_) => self.failures.fetch_add(1, Ordering::Relaxed),
            };
            sleep(Duration::from_millis(50)).await;
        }
        operation().await.unwrap()
    }
}

/// Reads a log as a client does, until its run has ended.
async fn follow(store: &impl LogStore, key: &LogKey) -> Vec<StoredEntry> {
    let mut entries = Vec::new();
    loop {
        let position = entries.len() as u64;
        let read = ReadLogEntries { position, max_bytes: 1, is_reader: true, ..whole(key) };
        match store.read(read).await {
            Ok(Some(page)) => {
                entries.extend(page.entries);
                let length = entries.len() as u64;
                if length < page.head.length {
                    continue;
                }
                if page.head.live_run.is_none() {
                    return entries;
                }
                let _ = timeout(Duration::from_secs(1), store.changed(key, length)).await;
            }
            // The run has not begun, or the store has failed.
            Ok(None) | Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

fn whole(key: &LogKey) -> ReadLogEntries<'_> {
    ReadLogEntries { key, epoch: EPOCH, position: 0, max_bytes: usize::MAX, is_reader: false }
}

/// The entries of each log.
fn log() -> [StoredEntry; 10] {
    let [end, begin] = ["end", "begin"].map(control);
    let (one, two, three) = (frame("a"), frame("b"), note("c"));
    let last = frame("d");
    [begin.clone(), one, two, three, end.clone(), begin.clone(), end.clone(), begin, last, end]
}

fn owner(user: usize) -> Principal {
    Principal::new(format!("user {user}"))
}

/// The lease of each run.
const LEASE: Duration = Duration::from_secs(600);

const LONGEST: Duration = Duration::from_secs(600);
