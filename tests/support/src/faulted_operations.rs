//! Operations of each kind on a store whose connections have faults. Failed ones are repeated, as the
//! server does, and each has to take effect once.

use crate::contention::InsertOne;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use ui_message_stream::Json;
use ui_message_stream::approval::store::{LedgerStore, LedgerStoreError, PendingFilter, update};
use ui_message_stream::approval::{
    ApprovalRecord, Claim, ClaimResult, LeaseResult, Principal, RecordId, RecordedDecision,
    ToolOutcome, Transition, UnixMillis,
};
use ui_message_stream::chat::log::{
    AppendEntries, AppendResult, BeginResult, BeginRun, Fence, LogEntry, ReadLog, RunKey, RunState,
    TakeCondition, TakeResult, TakeRun,
};
use ui_message_stream::chat::store::{ChatStore, RunStore, SaveChat, SaveResult, VersionedChat};

use crate::contention;
use crate::external_processes::fault_proxy::{Fault, FaultProxy};
use crate::external_processes::say;
use crate::rng::Dice;
use crate::store_requests::{chat_of, frame, holder, run_key};

/// A store of everything.
pub trait Store: ChatStore + RunStore + LedgerStore {}

impl<S: ChatStore + RunStore + LedgerStore> Store for S {}

/// Executes the operations of so many users at once through a proxy, while each of its faults happens
/// again and again at random moments. A reader at each of the two stores follows each run.
pub async fn operate_during_faults(proxy: &FaultProxy, stores: [&impl Store; 2], users: usize) {
    for (round, fault) in Fault::ALL.into_iter().enumerate() {
        let first = round * users;
        let failures = AtomicUsize::new(0);
        let operations = join_all((first..first + users).map(async |user| {
            let pause = Duration::from_millis(50);
            let operations =
                Operations { store: stores[0], before: &|| {}, pause, failures: &failures };
            let key = run_key(&owner(user), "run");
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
pub const OPERATIONS: usize = 10;

struct Operations<'a, S> {
    store: &'a S,
    before: &'a (dyn Fn() + Sync),
    pause: Duration,
    failures: &'a AtomicUsize,
}

impl<S: Store> Operations<'_, S> {
    async fn execute(&self, user: usize) {
        self.execute_run(&run_key(&owner(user), "run")).await;
        self.save_chat(&owner(user)).await;
        self.decide(user).await;
    }

    /// Begin, append, take, end.
    async fn execute_run(&self, key: &RunKey) {
        let begin = |number| {
            let lease = Duration::from_secs(600);
            BeginRun { key, holder: holder(number), lease, max_user_runs: 1 }
        };
        let begun = self.repeat(async || self.store.begin(begin(1)).await).await;
        assert_eq!(begun, BeginResult::Begun(Fence(1)));
        let entries = log();
        let append = async |fence, from: usize, to, end| {
            let (entries, position) = (&entries[from..to], from as u64);
            let append = AppendEntries { key, fence: Fence(fence), position, entries, end };
            let appended = self.repeat(async || self.store.append(append).await).await;
            assert!(matches!(appended, AppendResult::Appended(_)), "{appended:?}");
        };
        append(1, 0, 1, false).await;
        append(1, 1, 3, false).await;
        let (fence, condition) = (Fence(1), TakeCondition::Any);
        let take =
            TakeRun { key, fence, holder: holder(2), condition, lease: Duration::from_secs(600) };
        let taken = self.repeat(async || self.store.take(take).await).await;
        assert_eq!(taken, TakeResult::Taken(Fence(2)));
        append(2, 3, 4, true).await;

        let whole = ReadLog { key, after: 0, max_bytes: usize::MAX, is_reader: false };
        let page = self.succeed(async || self.store.read(whole).await).await.unwrap();
        assert_eq!((&*page.entries, page.length), (&entries[..], 4));
        assert_eq!((page.fence, page.state), (Fence(2), RunState::Ended));
        let again = self.succeed(async || self.store.begin(begin(3)).await).await;
        assert_eq!(again, BeginResult::Exists);
    }

    /// A new chat, and a save that replaces it.
    async fn save_chat(&self, owner: &Principal) {
        let mut chat = chat_of(owner, "chat", 2);
        let revision = self.save(SaveChat::new(&chat)).await;
        let inserted = VersionedChat { chat: chat.clone(), revision };
        chat.messages.truncate(1);
        let replacement = SaveChat::replacing(&inserted, &chat);
        let revision = self.save(replacement).await;
        let load = async || ChatStore::load(self.store, owner, &chat.id).await;
        let stored = self.succeed(load).await.unwrap();
        assert_eq!((stored.revision, &stored.chat), (revision, &chat));
        let again = self.succeed(async || self.store.save(replacement).await).await;
        assert_eq!(again, SaveResult::Conflict);
    }

    /// A save that failed, or that conflicts perhaps with itself, has taken effect if the chat is
    /// stored.
    async fn save(&self, save: SaveChat<'_>) -> u64 {
        let attempt = async || match self.store.save(save).await {
            Ok(SaveResult::Saved(revision)) => Ok(revision),
            failed => {
                let chat = save.chat;
                let loaded = ChatStore::load(self.store, &chat.owner, &chat.id).await;
                let stored = loaded.ok().flatten().filter(|stored| stored.chat == *chat);
                // A failed save counts, also if the chat shows that it has taken effect.
                self.failures.fetch_add(usize::from(stored.is_some()), Ordering::Relaxed);
                stored.map(|stored| stored.revision).ok_or(failed)
            }
        };
        self.repeat(attempt).await
    }

    /// An approval request, its claim and its outcome.
    async fn decide(&self, user: usize) {
        let mut record = contention::record(RecordId::from_bytes((user as u128).to_be_bytes()));
        record.requester = owner(user);
        let insert = async || self.store.insert(&record).await;
        let is_new = self.repeat(insert).await;
        let filter = PendingFilter::Requester(&record.requester);
        let pending = self.succeed(async || self.store.pending(filter.into()).await).await.records;
        let pending: Vec<_> = pending.iter().map(|stored| &stored.record).collect();
        assert_eq!(pending, [&record], "{is_new}");
        assert!(self.succeed(insert).await);

        let claim = |number| {
            self.change(record.id, move |record, now| {
                let (decided_by, decided_at) = (record.requester.clone(), now);
                let decision = RecordedDecision { decided_by, decided_at, reason: None };
                record.claim(&decision, holder(number), Duration::from_secs(600))
            })
        };
        let granted = json!({"record": record.id, "fence": 1});
        let granted: Claim = serde_json::from_value(granted).unwrap();
        assert_eq!(claim(1).await, ClaimResult::Granted(granted.clone()));
        let outcome = ToolOutcome::Output(Json::from_serialize(&json!({"at": user})).unwrap());
        let complete = |record: &ApprovalRecord, now| record.complete(&granted, &outcome, now);
        assert_eq!(self.change(record.id, complete).await, LeaseResult::Stored);
        assert_eq!(claim(2).await, ClaimResult::Completed(outcome));
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

/// Reads a log as a client does, until it has ended.
async fn follow(store: &impl RunStore, key: &RunKey) -> Vec<LogEntry> {
    let mut entries = Vec::new();
    loop {
        let after = entries.len() as u64;
        let read = ReadLog { key, after, max_bytes: 1, is_reader: true };
        match store.read(read).await {
            Ok(Some(page)) => {
                entries.extend(page.entries);
                let length = entries.len() as u64;
                if length < page.length {
                    continue;
                }
                if page.state == RunState::Ended {
                    return entries;
                }
                let _ = timeout(Duration::from_secs(1), store.changed(key, length)).await;
            }
            // The run has not begun, or the store has failed.
            Ok(None) | Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

/// The entries of each log.
fn log() -> [LogEntry; 4] {
    ["a", "b", "c", "d"].map(frame)
}

fn owner(user: usize) -> Principal {
    Principal::new(format!("user {user}"))
}

const LONGEST: Duration = Duration::from_secs(600);
