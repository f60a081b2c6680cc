//! What a store keeps for how long, by a clock that the test sets. `set_time` sets it to so many seconds after its start.

use std::time::Duration;

use test_support::contention::{self, InsertOne};
use ui_message_stream::approval::store::{LedgerStore, RECORD_RETENTION};
use ui_message_stream::approval::{Principal, RecordId, UnixMillis};
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, LeftToServer, LiveRunChange, LogKey, LogStore, ReadLogEntries,
    UserLimits,
};

use crate::store_requests::{
    EPOCH, append_at, appended, begin, control, creation, end, key, put, read_from,
};

/// A client that has read a part of the first run reads on in the one that resumes it.
pub async fn a_run_keeps_the_entries_of_the_one_that_it_resumes(
    store: &impl LogStore,
    set_time: impl AsyncFn(u64),
) {
    let key = key(&Principal::new("ada"), "resumed");
    begin(store, &key).await;
    for (position, run) in [(1, "second"), (3, "third")] {
        let (entries, run) = ([control("end"), control("begin")], run.into());
        let lease = Some(Duration::from_secs(3600));
        let live_run = LiveRunChange::Resumes(&run);
        let resumes = AppendLog { lease, live_run, ..append_at(&key, position, &entries) };
        assert_eq!(appended(store, resumes).await.live_run.as_ref(), Some(&run));
    }
    assert!(put(store, &key, 5, &["message"]).await);
    // An hour later.
    let is_read = async |second| {
        set_time(second).await;
        assert_eq!(store.sweep().await.unwrap(), LeftToServer::default());
        read_from(store, &key, 0).await.is_some()
    };
    assert!(is_read(3600).await);
    end(store, &key, 5).await;
    assert!(put(store, &key, 6, &["message"]).await);
    assert!(is_read(4199).await);
    assert!(!is_read(4200).await);
}

/// No server has a sink any more.
pub async fn a_deletion_that_was_not_returned_for_30_days_is_forgotten(
    store: &impl LogStore,
    set_time: impl AsyncFn(u64),
) {
    let ada = Principal::new("ada");
    let [deleted, kept] = ["deleted", "kept"].map(|chat| key(&ada, chat));
    for key in [&deleted, &kept] {
        let entries = [control("request")];
        appended(store, AppendLog { is_for_sink: true, ..creation(key, &entries) }).await;
    }
    assert!(store.delete(&deleted, EPOCH, 1).await.unwrap());
    let undelivered = async |second| {
        set_time(second).await;
        store.sweep().await.unwrap();
        set_time(second + 60).await;
        let found = store.undelivered(9, Duration::ZERO).await.unwrap();
        let mut found: Vec<_> = found.into_iter().map(|it| it.key).collect();
        found.sort();
        found
    };
    const DAY: u64 = 24 * 60 * 60;
    let both = [deleted, kept.clone()];
    assert_eq!(undelivered(30 * DAY - 1).await, both);
    assert_eq!(undelivered(60 * DAY - 1).await, both);
    assert_eq!(undelivered(90 * DAY + 60).await, [kept]);
}

/// Its server was lost between the end of the run and the snapshot.
pub async fn a_log_whose_snapshot_is_old_is_named_until_it_has_a_new_one(
    store: &impl LogStore,
    set_time: impl AsyncFn(u64),
) {
    let ada = Principal::new("ada");
    let (without, with_old) = (key(&ada, "without a snapshot"), key(&ada, "with an old one"));
    let live = key(&ada, "with a live run");
    for key in [&with_old, &live] {
        begin(store, key).await;
        end(store, key, 1).await;
    }
    // A run may begin and end in one append.
    let entries = [control("begin"), control("end")];
    let append = AppendLog { live_run: LiveRunChange::Ends, ..creation(&without, &entries) };
    appended(store, append).await;
    assert!(put(store, &with_old, 1, &["message"]).await);
    let (entries, run) = ([control("begin")], "next".into());
    let (lease, live_run) = (Some(Duration::from_secs(3600)), LiveRunChange::Begins(&run));
    appended(store, AppendLog { lease, live_run, ..append_at(&live, 2, &entries) }).await;
    let named = async |second| {
        set_time(second).await;
        let mut named = store.sweep().await.unwrap().old_snapshots;
        named.sort();
        named
    };
    assert_eq!(named(599).await, []);
    assert_eq!(named(600).await, [with_old.clone(), without.clone()]);
    assert!(read_from(store, &with_old, 0).await.is_some());
    assert!(put(store, &with_old, 2, &["message"]).await);
    // A store may name it again only after a while.
    assert_eq!(named(1300).await, std::slice::from_ref(&without));
    assert!(read_from(store, &with_old, 0).await.is_none());
    assert!(put(store, &without, 2, &["message"]).await);
    assert_eq!(named(2000).await, []);
    assert!(read_from(store, &without, 0).await.is_none());
}

/// A run that no reader has read for 30 seconds has to end if its user has two runs and begins a third.
pub async fn a_run_that_is_not_read_has_to_end_if_there_are_too_many(
    store: &impl LogStore,
    set_time: impl AsyncFn(u64),
) {
    let ada = Principal::new("ada");
    let [read, unread, third] = ["read", "unread", "third"].map(|chat| key(&ada, chat));
    for key in [&read, &unread] {
        assert!(begins_of_two(store, key).await);
    }
    for second in [9, 18, 27, 29] {
        set_time(second).await;
        for key in [&read, &unread] {
            renew(store, key).await;
        }
    }
    read_as_client(store, &read).await;
    assert!(!begins_of_two(store, &third).await);
    set_time(30).await;
    assert!(begins_of_two(store, &third).await);
    for (key, has_to_end, seconds) in [(&read, false, 1), (&unread, true, 30), (&third, false, 0)] {
        assert_eq!(renew(store, key).await, (has_to_end, Duration::from_secs(seconds)));
    }
}

/// A read by a clock that was an hour ahead does not count. `set_back` returns the store after the clock was
/// set back.
pub async fn a_read_before_the_clock_was_set_back_does_not_count<S: LogStore>(
    store: S,
    set_back: impl AsyncFnOnce(S) -> S,
) {
    let ada = Principal::new("ada");
    let (read, unread) = (key(&ada, "read"), key(&ada, "unread"));
    for key in [&read, &unread] {
        assert!(begins_of_two(&store, key).await);
    }
    let store = set_back(store).await;
    for key in [&read, &unread] {
        renew(&store, key).await;
    }
    read_as_client(&store, &read).await;
    // For the fourth one, the one that was read is the only other one.
    for (chat, begins) in [("third", true), ("fourth", false)] {
        assert_eq!(begins_of_two(&store, &key(&ada, chat)).await, begins, "{chat}");
    }
    for (key, has_to_end) in [(&read, false), (&unread, true)] {
        assert_eq!(renew(&store, key).await.0, has_to_end);
    }
}

/// A record is deleted a day after it has expired. `at` is the time after so many seconds, and `sweep_at` sweeps
/// at that time.
pub async fn a_record_is_deleted_a_day_after_it_has_expired_and_not_before(
    store: &impl LedgerStore,
    at: impl Fn(u64) -> UnixMillis,
    sweep_at: impl AsyncFn(u64),
) {
    let mut record = contention::record(RecordId::from_bytes([1; 16]));
    record.expires_at = at(100);
    let mut kept = contention::record(RecordId::from_bytes([2; 16]));
    kept.expires_at = UnixMillis(u64::MAX);
    for record in [&record, &kept] {
        assert!(store.insert(record).await.unwrap());
    }
    let end = 100 + RECORD_RETENTION.as_secs();
    let ids = [record.id, kept.id];
    sweep_at(end).await;
    assert_eq!(store.load(&ids).await.unwrap().records.len(), 2);
    sweep_at(end + 1).await;
    let left = store.load(&ids).await.unwrap().records;
    assert_eq!(left.iter().map(|left| &left.record).collect::<Vec<_>>(), [&kept]);
}

/// Begins a run with a lease of ten seconds. Returns whether the user, who may have two, has a place.
pub async fn begins_of_two(store: &impl LogStore, key: &LogKey) -> bool {
    let (entries, run) = ([control("begin")], "run".into());
    let begin = AppendLog {
        lease: Some(Duration::from_secs(10)),
        live_run: LiveRunChange::Begins(&run),
        limits: UserLimits { chats: 9, runs: 2, unread: Duration::from_secs(30) },
        ..creation(key, &entries)
    };
    begins(store, begin).await
}

/// Begins a run. Returns whether the user has a place.
pub async fn begins(store: &impl LogStore, begin: AppendLog<'_>) -> bool {
    match store.append(begin).await.unwrap() {
        AppendResult::Appended { .. } => true,
        AppendResult::TooManyRuns => false,
        result => panic!("{result:?}"),
    }
}

/// Renews the lease of a run that has written nothing. Returns whether it has to end, and for how long it was
/// not read.
pub async fn renew(store: &impl LogStore, key: &LogKey) -> (bool, Duration) {
    let lease = Some(Duration::from_secs(10));
    let head = appended(store, AppendLog { lease, ..append_at(key, 1, &[]) }).await;
    (head.has_to_end, head.unread)
}

/// Reads the first entry of a log for a client.
pub async fn read_as_client(store: &impl LogStore, key: &LogKey) {
    let read = ReadLogEntries { key, epoch: EPOCH, position: 0, max_bytes: 1, is_reader: true };
    assert!(store.read(read).await.unwrap().is_some());
}
