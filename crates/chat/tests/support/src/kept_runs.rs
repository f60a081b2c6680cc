//! What a store keeps for how long, by a clock that the test sets. `set_time` sets it to so many seconds after its start.

use std::time::Duration;

use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::{AppendLog, LeftToServer, LiveRunChange, LogStore};

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
