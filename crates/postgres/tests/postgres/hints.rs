//! Readers that wait are woken by changes of another store, as on another server.

use chat_test_support::log_hints::{
    changed, check_appends_and_takeovers, check_ends_and_deletions, check_lists, check_many_readers,
};
use chat_test_support::store_requests::{adas, append_at, appended, begin, frame};
use test_support::eventually;
use ui_message_stream::approval::Principal;
use ui_message_stream_postgres::PostgresStore;

use crate::database::Database;

#[tokio::test]
async fn a_reader_is_woken_by_what_another_store_changes() {
    let Some(database) = Database::new() else { return };
    let (writer, reader) = (database.open().await, listening(&database).await);
    check_appends_and_takeovers(&writer, &reader).await;
    check_lists(&writer, &reader).await;
}

#[tokio::test]
async fn a_reader_is_woken_when_a_run_ends_or_its_log_is_deleted() {
    let Some(database) = Database::new() else { return };
    let (writer, reader) = (database.open().await, listening(&database).await);
    let ada = Principal::new("ada");
    let delete = async { assert!(writer.delete_user(&ada).await.unwrap().chats > 0) };
    check_ends_and_deletions(&writer, &reader, delete).await;
}

#[tokio::test]
async fn readers_wake_when_the_connection_that_listens_is_lost_and_are_woken_again_later() {
    let Some(database) = Database::new() else { return };
    let (writer, reader) = (database.open().await, listening(&database).await);
    let key = adas("chat");
    begin(&writer, &key).await;
    changed(&reader, &key, 1).await;
    let lose = format!("SELECT pg_terminate_backend(pid) {LISTENERS}");
    let lose = lose.replace("SCHEMA", &database.schema);
    tokio::join!(changed(&reader, &key, 1), database.execute(&lose));
    wait_for_listener(&database, 2).await;
    changed(&reader, &key, 1).await;
    let entries = [frame("a")];
    tokio::join!(changed(&reader, &key, 1), appended(&writer, append_at(&key, 1, &entries)));
}

#[tokio::test]
async fn many_readers_of_one_store_read_the_whole_log() {
    let Some((_database, store)) = Database::with_store().await else { return };
    check_many_readers(&store, &store).await;
}

/// Opens a store, and waits until it and the one before listen.
pub(crate) async fn listening(database: &Database) -> PostgresStore {
    let store = database.open().await;
    wait_for_listener(database, 2).await;
    store
}

async fn wait_for_listener(database: &Database, stores: i64) {
    let count = format!("SELECT count(*) {LISTENERS}").replace("SCHEMA", &database.schema);
    eventually(async || database.number(&count).await >= stores).await;
    // The store learns of it a moment later. Until then a reader waits for longer, and misses nothing.
    database.execute("SELECT pg_sleep(0.1)").await;
}

/// The connections of this test that listen.
const LISTENERS: &str =
    "FROM pg_stat_activity WHERE query = 'LISTEN \"SCHEMA\"' AND state = 'idle'";
