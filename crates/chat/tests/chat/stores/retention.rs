//! What is kept for how long, by a clock that the tests set: over the rows in memory.

use std::collections::BTreeSet;
use std::time::Duration;

use chat_test_support::store_requests::{
    EPOCH, adas, append_at, appended, begin, control, creation, end, frame, load, put, read_all,
    read_from,
};
use ui_message_stream::approval::UnixMillis;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, InMemoryLogStore, LeftToServer, LiveRunChange, LogKey, LogStore,
    MAX_SWEPT, ReadLogEntries, UserLimits,
};

#[tokio::test]
async fn chats_do_not_count_after_their_time() {
    let store = InMemoryLogStore::with_test_clock(UnixMillis(1_000));
    // More than a sweep reads together.
    let chats: Vec<_> = (0..=2 * MAX_SWEPT).map(|number| adas(&number.to_string())).collect();
    for key in &chats {
        let keep_for = Some(Duration::from_millis(500));
        appended(&store, AppendLog { keep_for, ..creation(key, &[control("a")]) }).await;
    }
    for (time, is_there) in [(1_499, true), (1_500, false)] {
        store.set_test_time(UnixMillis(time));
        assert_eq!(load(&store, &chats[0]).await.is_some(), is_there);
    }
    store.sweep().await.unwrap();
    assert!(format!("{store:?}").contains("users: 0"), "{store:?}");
}

#[tokio::test]
async fn a_control_entry_without_a_time_keeps_its_chat() {
    let (store, key) = (store(), adas("chat"));
    let keep_for = Some(Duration::from_secs(60));
    appended(&store, AppendLog { keep_for, ..creation(&key, &[control("a")]) }).await;
    appended(&store, append_at(&key, 1, &[control("b")])).await;
    set_time(&store, 365 * DAY);
    store.sweep().await.unwrap();
    assert_eq!(read_all(&store, &key).await, [control("a"), control("b")]);
}

#[tokio::test]
async fn the_entries_of_a_run_are_kept_for_readers_for_10_minutes_after_its_end() {
    let (store, key) = (store(), adas("chat"));
    begin(&store, &key).await;
    // More than are removed in one step.
    appended(&store, append_at(&key, 1, &vec![frame("a"); 1_299])).await;
    // The first run ends here.
    let (run, entries) = ("next".into(), [control("begin")]);
    let live_run = LiveRunChange::Begins(&run);
    appended(&store, AppendLog { live_run, ..append_at(&key, 1_300, &entries) }).await;
    assert!(put(&store, &key, 1_301, &["message"]).await);
    let first = async |time| {
        store.set_test_time(UnixMillis(time));
        store.sweep().await.unwrap();
        let mut first = 0;
        while read_from(&store, &key, first).await.is_none() {
            first += 1;
        }
        first
    };
    assert_eq!(first(599_999).await, 0);
    // The second run is live.
    assert_eq!(first(600_000).await, 1_300);
    end(&store, &key, 1_301).await;
    assert!(put(&store, &key, 1_302, &["message"]).await);
    assert_eq!(first(1_199_999).await, 1_300);
    assert_eq!(first(1_200_000).await, 1_302);
    let log = load(&store, &key).await.unwrap();
    assert_eq!((log.head.length, log.entries), (1_302, vec![]));
    // The next snapshot has new entries before it.
    appended(&store, append_at(&key, 1_302, &[frame("b")])).await;
    assert_eq!(read_from(&store, &key, 1_302).await.unwrap().entries, [frame("b")]);
    assert!(put(&store, &key, 1_303, &["message"]).await);
    assert_eq!(first(1_200_000).await, 1_303);
}

#[tokio::test]
async fn the_entries_of_a_lost_run_are_kept_and_a_sweep_names_it_after_seven_days() {
    let (store, lost, renewed) = (store(), adas("lost"), adas("renewed"));
    for key in [&lost, &renewed] {
        begin(&store, key).await;
        assert!(put(&store, key, 1, &["message"]).await);
    }
    // Each lease has ten seconds.
    set_time(&store, 9);
    renew(&store, &renewed).await;
    let named = [(lost.clone(), "run".into())];
    for (second, named) in [(DAY, &[][..]), (7 * DAY + 9, &[]), (7 * DAY + 10, &named)] {
        set_time(&store, second);
        assert_eq!(store.sweep().await.unwrap().lost_runs, named, "{second}");
        assert_eq!(read_all(&store, &lost).await, [control("begin")]);
    }
    assert!(load(&store, &lost).await.unwrap().head.is_lost);
}

#[tokio::test]
async fn lost_runs_that_cannot_be_ended_do_not_hide_the_others() {
    let store = store();
    for chat in 0..MAX_SWEPT + 20 {
        begin(&store, &adas(&chat.to_string())).await;
    }
    set_time(&store, 8 * DAY);
    let mut named = BTreeSet::new();
    // Each sweep names 100 of 120, so one that is never among them is as good as impossible.
    for _ in 0..40 {
        let lost = store.sweep().await.unwrap().lost_runs;
        assert_eq!(lost.len(), MAX_SWEPT);
        named.extend(lost.into_iter().map(|(key, _)| key));
    }
    assert_eq!(named.len(), MAX_SWEPT + 20);
}

/// A client that has read a part of the first run reads on in the one that resumes it.
#[tokio::test]
async fn a_run_keeps_the_entries_of_the_one_that_it_resumes() {
    let store = store();
    let key = adas("resumed");
    begin(&store, &key).await;
    for (position, run) in [(1, "second"), (3, "third")] {
        let (entries, run) = ([control("end"), control("begin")], run.into());
        let lease = Some(Duration::from_secs(3600));
        let live_run = LiveRunChange::Resumes(&run);
        let resumes = AppendLog { lease, live_run, ..append_at(&key, position, &entries) };
        assert_eq!(appended(&store, resumes).await.live_run.as_ref(), Some(&run));
    }
    assert!(put(&store, &key, 5, &["message"]).await);
    // An hour later.
    let is_read = async |second| {
        set_time(&store, second);
        assert_eq!(store.sweep().await.unwrap(), LeftToServer::default());
        read_from(&store, &key, 0).await.is_some()
    };
    assert!(is_read(3600).await);
    end(&store, &key, 5).await;
    assert!(put(&store, &key, 6, &["message"]).await);
    assert!(is_read(4199).await);
    assert!(!is_read(4200).await);
}

/// No server has a sink any more.
#[tokio::test]
async fn a_deletion_that_was_not_returned_for_30_days_is_forgotten() {
    let store = store();
    let [deleted, kept] = ["deleted", "kept"].map(adas);
    for key in [&deleted, &kept] {
        let entries = [control("request")];
        appended(&store, AppendLog { is_for_sink: true, ..creation(key, &entries) }).await;
    }
    assert!(store.delete(&deleted, EPOCH, 1).await.unwrap());
    let undelivered = async |second| {
        set_time(&store, second);
        store.sweep().await.unwrap();
        set_time(&store, second + 60);
        let found = store.undelivered(9, Duration::ZERO).await.unwrap();
        let mut found: Vec<_> = found.into_iter().map(|it| it.key).collect();
        found.sort();
        found
    };
    let both = [deleted, kept.clone()];
    assert_eq!(undelivered(30 * DAY - 1).await, both);
    assert_eq!(undelivered(60 * DAY - 1).await, both);
    assert_eq!(undelivered(90 * DAY + 60).await, [kept]);
}

/// Its server was lost between the end of the run and the snapshot.
#[tokio::test]
async fn a_log_whose_snapshot_is_old_is_named_until_it_has_a_new_one() {
    let store = store();
    let (without, with_old) = (adas("without a snapshot"), adas("with an old one"));
    let live = adas("with a live run");
    for key in [&with_old, &live] {
        begin(&store, key).await;
        end(&store, key, 1).await;
    }
    // A run may begin and end in one append.
    let entries = [control("begin"), control("end")];
    let append = AppendLog { live_run: LiveRunChange::Ends, ..creation(&without, &entries) };
    appended(&store, append).await;
    assert!(put(&store, &with_old, 1, &["message"]).await);
    let (entries, run) = ([control("begin")], "next".into());
    let (lease, live_run) = (Some(Duration::from_secs(3600)), LiveRunChange::Begins(&run));
    appended(&store, AppendLog { lease, live_run, ..append_at(&live, 2, &entries) }).await;
    let named = async |second| {
        set_time(&store, second);
        let mut named = store.sweep().await.unwrap().old_snapshots;
        named.sort();
        named
    };
    assert_eq!(named(599).await, []);
    assert_eq!(named(600).await, [with_old.clone(), without.clone()]);
    assert!(read_from(&store, &with_old, 0).await.is_some());
    assert!(put(&store, &with_old, 2, &["message"]).await);
    // A store may name it again only after a while.
    assert_eq!(named(1300).await, std::slice::from_ref(&without));
    assert!(read_from(&store, &with_old, 0).await.is_none());
    assert!(put(&store, &without, 2, &["message"]).await);
    assert_eq!(named(2000).await, []);
    assert!(read_from(&store, &without, 0).await.is_none());
}

/// A run that no reader has read for 30 seconds has to end if its user has two runs and begins a third.
#[tokio::test]
async fn a_run_that_is_not_read_has_to_end_if_there_are_too_many() {
    let store = store();
    let [read, unread, third] = ["read", "unread", "third"].map(adas);
    for key in [&read, &unread] {
        assert!(begins_of_two(&store, key).await);
    }
    for second in [9, 18, 27, 29] {
        set_time(&store, second);
        for key in [&read, &unread] {
            renew(&store, key).await;
        }
    }
    let read_entries =
        ReadLogEntries { key: &read, epoch: EPOCH, position: 0, max_bytes: 1, is_reader: true };
    assert!(store.read(read_entries).await.unwrap().is_some());
    store.set_test_time(UnixMillis(29_999));
    assert!(!begins_of_two(&store, &third).await);
    set_time(&store, 30);
    assert!(begins_of_two(&store, &third).await);
    for (key, has_to_end, seconds) in [(&read, false, 1), (&unread, true, 30), (&third, false, 0)] {
        assert_eq!(renew(&store, key).await, (has_to_end, Duration::from_secs(seconds)));
    }
}

/// Begins a run with a lease of ten seconds. Returns whether the user, who may have two, has a place.
async fn begins_of_two(store: &InMemoryLogStore, key: &LogKey) -> bool {
    let (entries, run) = ([control("begin")], "run".into());
    let begin = AppendLog {
        lease: Some(Duration::from_secs(10)),
        live_run: LiveRunChange::Begins(&run),
        limits: UserLimits { chats: 9, runs: 2, unread: Duration::from_secs(30) },
        ..creation(key, &entries)
    };
    match store.append(begin).await.unwrap() {
        AppendResult::Appended { .. } => true,
        AppendResult::TooManyRuns => false,
        result => panic!("{result:?}"),
    }
}

/// Renews the lease of a run that has written nothing. Returns whether it has to end, and for how long it was
/// not read.
async fn renew(store: &InMemoryLogStore, key: &LogKey) -> (bool, Duration) {
    let lease = Some(Duration::from_secs(10));
    let head = appended(store, AppendLog { lease, ..append_at(key, 1, &[]) }).await;
    (head.has_to_end, head.unread)
}

fn store() -> InMemoryLogStore {
    InMemoryLogStore::with_test_clock(UnixMillis(0))
}

fn set_time(store: &InMemoryLogStore, second: u64) {
    store.set_test_time(UnixMillis(second * 1000));
}

/// In seconds.
const DAY: u64 = 24 * 60 * 60;
