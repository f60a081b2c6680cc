//! Several servers that change the same logs in Postgres at once.

use std::sync::atomic::{AtomicU64, Ordering};

use chat_test_support::store_requests::{
    EPOCH, adas, append_after, append_at, appended, control, creation, frame, load,
};
use futures::future::join_all;
use test_support::eventually;
use ui_message_stream::id::RunId;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, LiveRunChange, LoadedLog, LogHead, LogKey, LogStore, PutSnapshot,
    ReadLogEntries, Unchanged,
};
use ui_message_stream_postgres::PostgresStore;

use crate::database::{Database, LOGS, WAITING};
use crate::log_store::MINUTE;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_16_stores_that_append_at_once_exactly_one_wins() {
    let Some(database) = Database::new() else { return };
    let stores = join_all((0..16).map(|_| database.open())).await;
    let key = adas("chat");
    for round in 0..20 {
        let before = load(&stores[0], &key).await.map(|log| log.head);
        let texts: Vec<String> = (0..16).map(|store| format!("{round} {store}")).collect();
        let appends = stores.iter().zip(&texts).map(async |(store, text)| {
            let entries = [control(text)];
            let append = match &before {
                None => creation(&key, &entries),
                Some(head) if round % 2 == 0 => append_after(&key, head.control, &entries),
                Some(head) => append_at(&key, head.length, &entries),
            };
            store.append(append).await.unwrap()
        });
        let results = join_all(appends).await;
        let winners: Vec<_> =
            results.iter().zip(&texts).filter(|(it, _)| **it != AppendResult::Conflict).collect();
        let [(AppendResult::Appended { first, head }, text)] = winners[..] else {
            panic!("{winners:?}")
        };
        assert_eq!((*first, head.length, head.control), (round, round + 1, round + 1));
        let log = load(&stores[1], &key).await.unwrap();
        assert_eq!(log.entries.last(), Some(&(round, control(text))));
        assert_eq!(log.entries.len() as u64, round + 1);
    }
}

#[tokio::test]
async fn a_deletion_that_has_waited_for_an_append_deletes_its_entries() {
    let Some((database, store)) = Database::with_store().await else { return };
    let key = adas("chat");
    appended(&store, creation(&key, &[])).await;
    // Another server appends a frame, and has not ended this step.
    let other = database.lock_partition(&key.owner).await;
    let begun = "INSERT INTO items (row_id, sequence, position, kind, body) \
        SELECT id, 0, 0, 0, 'a' FROM rows WHERE name = 'hchat'";
    other.batch_execute(begun).await.unwrap();
    let end = async {
        eventually(async || database.number(WAITING).await >= 1).await;
        other.batch_execute("COMMIT").await.unwrap();
    };
    assert!(tokio::join!(store.delete(&key, EPOCH, 0), end).0.unwrap());
    assert_eq!((database.count("logs").await, database.count("items").await), (0, 0));
}

/// Each snapshot and each entry tells its position. The clock jumps, so that entries are removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_while_others_append_and_remove_is_always_of_one_moment() {
    let Some(database) = Database::new() else { return };
    let stores = join_all((0..6).map(|_| database.open())).await;
    database.set_time(0).await;
    let key = adas("chat");
    appended(&stores[0], creation(&key, &[])).await;
    let removed_too_early = REMOVED_TOO_EARLY.replace("LOGS", LOGS);
    let (second, snapshots, removed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let work = stores.iter().enumerate().map(async |(number, store)| {
        for round in 0..1_000 {
            let is_seen = |count: &AtomicU64| count.load(Ordering::Relaxed) > 20;
            if round >= 80 && is_seen(&snapshots) && is_seen(&removed) {
                return;
            }
            let log = load(store, &key).await.unwrap();
            check_entries(&log);
            match (number, round % 4) {
                (0..3, round) => append_some(store, &key, &log.head, round).await,
                (3, 0) => {
                    let second = second.fetch_add(400, Ordering::Relaxed);
                    database.set_time(second).await;
                }
                (3, _) => drop(LogStore::sweep(store).await.unwrap()),
                _ if put_some(store, &key, &log).await => {
                    snapshots.fetch_add(1, Ordering::Relaxed);
                }
                _ => {}
            }
            assert_eq!(database.number(&removed_too_early).await, 0);
            // Those before the middle are soon removed, on a slow machine too.
            let back = if round % 2 == 0 { 30 } else { log.head.length / 2 };
            let position = log.head.length.saturating_sub(back);
            if read_some(store, &key, position).await.is_none() {
                removed.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    join_all(work).await;
    let counts = (snapshots.into_inner(), removed.into_inner());
    assert!(counts.0 > 20 && counts.1 > 20, "{counts:?}");
    let first = format!("SELECT coalesce((head->>'p')::BIGINT, 0) FROM {LOGS}");
    let first = database.number(&first).await;
    assert!(first > 0);
    let kept = "FROM items WHERE sequence = 0";
    // There may be none left.
    let begin = format!("SELECT coalesce(min(position), {first}) {kept}");
    assert_eq!(database.number(&begin).await, first);
    let gaps = format!("SELECT coalesce(max(position) + 1 - min(position) - count(*), 0) {kept}");
    assert_eq!(database.number(&gaps).await, 0);
}

/// Appends entries that tell their positions.
async fn append_some(store: &PostgresStore, key: &LogKey, head: &LogHead, round: u64) {
    let run = RunId::from("run");
    let text = |offset: u64| (head.length + offset).to_string();
    let entries = [control(&text(0)), frame(&text(1)), frame(&text(2))];
    let live_run = match round {
        0 => LiveRunChange::Begins(&run),
        1 => LiveRunChange::Ends,
        _ => LiveRunChange::None,
    };
    let lease = Some(MINUTE);
    let some = AppendLog { live_run, lease, ..append_at(key, head.length, &entries) };
    // A conflict is to be expected.
    let _ = store.append(some).await.unwrap();
}

fn check_entries(log: &LoadedLog) {
    let first = log.snapshot.as_ref().map_or(0, |snapshot| snapshot.position);
    let positions = log.entries.iter().map(|(position, _)| *position);
    assert!(positions.eq(first..log.head.length), "{log:?}");
    for (position, entry) in &log.entries {
        assert_eq!(entry.bytes, position.to_string());
    }
    if let Some(snapshot) = &log.snapshot {
        assert_eq!(snapshot.head, snapshot.position.to_string());
        assert_eq!(snapshot.messages, messages(snapshot.position));
    }
}

/// The messages of the log up to this position: one that has changed, and others that have not.
fn messages(position: u64) -> Vec<String> {
    // Now and then there are fewer messages than before.
    let count = position / 5 - position % 4;
    let kept = (0..count).map(|at| format!("message {at}"));
    kept.chain([format!("message at {position}")]).collect()
}

async fn put_some(store: &PostgresStore, key: &LogKey, log: &LoadedLog) -> bool {
    let position = log.head.length;
    if position < 30 {
        return false;
    }
    let new = messages(position);
    let unchanged = log.snapshot.as_ref().map(|old| {
        let same = old.messages.iter().zip(&new).take_while(|(old, new)| old == new);
        Unchanged { position: old.position, messages: same.count() }
    });
    // Every other one writes all messages.
    let unchanged = unchanged.filter(|_| position.is_multiple_of(2));
    let changed = &new[unchanged.map_or(0, |base| base.messages)..];
    let (epoch, head) = (EPOCH, &*position.to_string());
    store
        .put_snapshot(PutSnapshot { key, epoch, position, head, unchanged, changed })
        .await
        .unwrap()
}

/// Reads two entries from this position on. Returns `None` if they were removed.
async fn read_some(store: &PostgresStore, key: &LogKey, position: u64) -> Option<()> {
    let max_bytes = 2 * position.to_string().len();
    let read = ReadLogEntries { key, epoch: EPOCH, position, max_bytes, is_reader: true };
    let page = store.read(read).await.unwrap()?;
    for (position, entry) in (position..).zip(page.entries) {
        assert_eq!(entry.bytes, position.to_string());
    }
    Some(())
}

/// The runs without their first entries that readers may need.
const REMOVED_TOO_EARLY: &str = "SELECT (SELECT count(*) FROM LOGS \
        WHERE (head->'l'->>'p')::BIGINT < coalesce((head->>'p')::BIGINT, 0)) \
    + (SELECT count(*) FROM LOGS CROSS JOIN LATERAL json_array_elements(head->'r') AS ended \
        WHERE (ended->>0)::BIGINT < coalesce((head->>'p')::BIGINT, 0))";
