//! Readers that wait are woken by changes of another store, as on another server.

use std::time::Duration;

use test_support::store_requests::{appended, begin, frame, holder, page, run_key};
use tokio::time::Instant;
use ui_message_stream::approval::Principal;
use ui_message_stream::chat::log::{Fence, RunKey, TakeCondition, TakeResult, TakeRun};
use ui_message_stream::chat::store::RunStore;
use ui_message_stream_postgres::PostgresStore;

use crate::database::Database;

#[tokio::test]
async fn a_reader_is_woken_by_what_another_store_changes() {
    let Some(database) = Database::new() else { return };
    let (writer, reader) = (database.open().await, listening(&database).await);
    let key = run_key(&Principal::new("ada"), "run");
    let _ = begin(&writer, &key, 1).await;

    let wait = woken_at(&reader, &key, 0, |length, _| length == 1);
    let entries = [frame("a")];
    tokio::join!(wait, appended(&writer, &key, 0, &entries, false));

    // The reader may have read the entry before its notification came.
    changed(&reader, &key, 0).await;
    let wait = woken_at(&reader, &key, 1, |_, fence| fence == 2);
    let take = async {
        let (fence, condition) = (Fence(1), TakeCondition::Any);
        let take = TakeRun { key: &key, fence, holder: holder(2), condition };
        assert_eq!(writer.take(take).await.unwrap(), TakeResult::Taken(Fence(2)));
    };
    tokio::join!(wait, take);
}

#[tokio::test]
async fn a_reader_is_woken_when_a_log_ends_or_is_deleted() {
    let Some(database) = Database::new() else { return };
    let (writer, reader) = (database.open().await, listening(&database).await);
    let ada = Principal::new("ada");
    let (ended, deleted) = (run_key(&ada, "ended"), run_key(&ada, "deleted\0é"));
    for key in [&ended, &deleted] {
        let _ = begin(&writer, key, 2).await;
        // The first wait ends at once.
        changed(&reader, key, 0).await;
    }
    let waits = async { tokio::join!(changed(&reader, &ended, 0), changed(&reader, &deleted, 0)) };
    let ends = async {
        appended(&writer, &ended, 0, &[], true).await;
        writer.delete_user(&ada).await.unwrap();
    };
    tokio::join!(waits, ends);
    // And later waits do not begin.
    changed(&reader, &ended, 0).await;
}

#[tokio::test]
async fn readers_wake_when_the_connection_that_listens_is_lost_and_are_woken_again_later() {
    let Some(database) = Database::new() else { return };
    let (writer, reader) = (database.open().await, listening(&database).await);
    let key = run_key(&Principal::new("ada"), "run");
    let _ = begin(&writer, &key, 1).await;
    changed(&reader, &key, 0).await;
    let lose = format!("SELECT pg_terminate_backend(pid) {LISTENERS}");
    let lose = lose.replace("SCHEMA", &database.schema);
    tokio::join!(changed(&reader, &key, 0), database.execute(&lose));
    wait_for_listener(&database, 2).await;
    changed(&reader, &key, 0).await;
    let entries = [frame("a")];
    tokio::join!(changed(&reader, &key, 0), appended(&writer, &key, 0, &entries, false));
}

#[tokio::test]
async fn many_readers_of_one_store_read_the_whole_log() {
    let Some(database) = Database::new() else { return };
    let store = database.open().await;
    let key = run_key(&Principal::new("ada"), "run");
    let _ = begin(&store, &key, 1).await;
    let readers: Vec<_> = (0..20)
        .map(|_| {
            let (store, key) = (store.clone(), key.clone());
            tokio::spawn(async move {
                loop {
                    let page = page(&store, &key).await.unwrap();
                    if page.length == 100 {
                        return page.entries.len();
                    }
                    store.changed(&key, page.length).await;
                }
            })
        })
        .collect();
    for position in 0..100 {
        appended(&store, &key, position, &[frame("x")], position == 99).await;
    }
    for reader in readers {
        assert_eq!(within(reader).await.unwrap(), 100);
    }
}

/// Opens a store, and waits until it and the one before listen.
async fn listening(database: &Database) -> PostgresStore {
    let store = database.open().await;
    wait_for_listener(database, 2).await;
    store
}

async fn wait_for_listener(database: &Database, stores: i64) {
    let count = format!("SELECT count(*) {LISTENERS}").replace("SCHEMA", &database.schema);
    let deadline = Instant::now() + Duration::from_secs(60);
    while database.number(&count).await < stores {
        assert!(Instant::now() < deadline, "the stores do not listen");
    }
    // The store learns of it a moment later.
    database.execute("SELECT pg_sleep(0.1)").await;
}

/// Waits until the run is in this state, and fails if the hints stop before.
async fn woken_at(
    store: &PostgresStore,
    key: &RunKey,
    after: u64,
    is_there: impl Fn(u64, u64) -> bool,
) {
    loop {
        changed(store, key, after).await;
        let page = page(store, key).await.unwrap();
        if is_there(page.length, page.fence.0) {
            return;
        }
    }
}

async fn changed(store: &PostgresStore, key: &RunKey, after: u64) {
    within(store.changed(key, after)).await;
}

/// A hint that does not come fails the test.
async fn within<T>(run: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), run).await.expect("no hint has come")
}

/// The connections of this test that listen.
const LISTENERS: &str =
    "FROM pg_stat_activity WHERE query = 'LISTEN \"SCHEMA\"' AND state = 'idle'";
