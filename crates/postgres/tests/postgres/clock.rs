//! A clock of Postgres that is set back.

use std::time::Duration;
use test_support::contention::InsertOne;

use test_support::contention;
use test_support::store_requests::{appended, begin, chat_of, page, run_key, saved};
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{Principal, RecordId};
use ui_message_stream::chat::log::RunState;
use ui_message_stream::chat::store::{ChatStore, ListChats, SaveChat};
use ui_message_stream_postgres::PostgresStore;

use crate::database::{Database, at};

#[tokio::test]
async fn a_clock_that_is_set_back_by_less_than_a_minute_stands_still() {
    let Some(database) = Database::new() else { return };
    let store = database.open_at(100).await;
    assert_eq!(now(&store).await, at(100));
    database.set_time(50).await;
    assert_eq!(now(&store).await, at(100));
    // Another server has not seen that time, because nothing was written.
    let other = database.open_at(100).await;
    store.insert(&contention::record(RecordId::from_bytes([1; 16]))).await.unwrap();
    database.set_time(50).await;
    assert_eq!(now(&other).await, at(100));
    database.set_time(101).await;
    assert_eq!(now(&other).await, at(101));
}

#[tokio::test]
async fn a_clock_that_is_set_back_by_more_than_a_minute_is_followed() {
    let Some(database) = Database::new() else { return };
    let store = database.open_at(1000).await;
    store.insert(&contention::record(RecordId::from_bytes([1; 16]))).await.unwrap();
    assert_eq!(now(&store).await, at(1000));
    let key = run_key(&Principal::new("ada"), "run");
    let _ = begin(&store, &key, 1).await;
    database.set_time(900).await;
    assert_eq!(now(&store).await, at(900));
    // Otherwise no server could take the run for a long time.
    assert_eq!(page(&store, &key).await.unwrap().state, RunState::LeasePassed);
    store.sweep().await.unwrap();
    appended(&store, &key, 0, &[], false).await;
    assert_eq!(page(&store, &key).await.unwrap().state, RunState::Leased);
    // The next write of the ledger is the new time.
    store.insert(&contention::record(RecordId::from_bytes([2; 16]))).await.unwrap();
    assert_eq!(now(&database.open().await).await, at(900));
}

#[tokio::test]
async fn the_chat_that_was_saved_last_is_listed_first_if_the_clock_was_set_back() {
    let Some(database) = Database::new() else { return };
    let store = database.open_at(100).await;
    let ada = Principal::new("ada");
    saved(&store, SaveChat::new(&chat_of(&ada, "a", 1))).await;
    database.set_time(50).await;
    let keep_for = Some(Duration::from_secs(60));
    saved(&store, SaveChat::new(&chat_of(&ada, "b", 1)).with_keep_for(keep_for)).await;
    let listed = store.list(&ada, ListChats { limit: 2, after: None }).await.unwrap();
    let ids: Vec<_> = listed.chats.iter().map(|chat| chat.id.as_str()).collect();
    assert_eq!(ids, ["b", "a"]);
}

async fn now(store: &PostgresStore) -> u64 {
    LedgerStore::load(store, &[]).await.unwrap().now.0
}
