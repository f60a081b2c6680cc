//! A clock of Postgres that is set back.

use std::time::Duration;
use test_support::contention::InsertOne;

use chat_test_support::store_requests::{
    adas, append_at, appended, begin, control, create, creation, key, load,
};
use test_support::contention;
use ui_message_stream::approval::store::{LedgerStore, ListRecords, RecordList};
use ui_message_stream::approval::{Principal, RecordId, UnixMillis};
use ui_message_stream_chat::store::{AppendLog, ListChats, LogStore};
use ui_message_stream_postgres::PostgresStore;

use crate::database::{Database, at};

#[tokio::test]
async fn a_clock_that_is_set_back_by_less_than_a_minute_stands_still() {
    let Some((database, store)) = Database::with_store_at(100).await else { return };
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
async fn a_list_from_now_on_begins_after_the_time_that_is_returned_with_it() {
    let Some((database, store)) = Database::with_store_at(50).await else { return };
    let expiring = |number: u8, time| {
        let mut record = contention::record(RecordId::from_bytes([number; 16]));
        record.expires_at = UnixMillis(at(time));
        record
    };
    for (number, time) in [(1, 60), (2, 100), (3, 101)] {
        store.insert(&expiring(number, time)).await.unwrap();
    }
    let list = RecordList::of_requester(&expiring(1, 60).requester);
    // The time stands still when the clock is set back by less than a minute.
    for (time, now) in [(100, 100), (50, 100)] {
        database.set_time(time).await;
        let page = ListRecords { later_than_now: true, ..(&list).into() };
        let listed = store.read_list(page).await.unwrap();
        let ids: Vec<_> = listed.records.iter().map(|stored| stored.record.id).collect();
        assert_eq!((listed.now.0, ids), (at(now), vec![RecordId::from_bytes([3; 16])]));
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_by_more_than_a_minute_is_followed() {
    let Some((database, store)) = Database::with_store_at(1000).await else { return };
    store.insert(&contention::record(RecordId::from_bytes([1; 16]))).await.unwrap();
    assert_eq!(now(&store).await, at(1000));
    let key = adas("chat");
    begin(&store, &key).await;
    database.set_time(900).await;
    assert_eq!(now(&store).await, at(900));
    // Otherwise no server could take the run for a long time.
    assert!(load(&store, &key).await.unwrap().head.is_lost);
    store.sweep().await.unwrap();
    let lease = Some(Duration::from_secs(10));
    assert!(!appended(&store, AppendLog { lease, ..append_at(&key, 1, &[]) }).await.is_lost);
    // The next write of the ledger is the new time.
    store.insert(&contention::record(RecordId::from_bytes([2; 16]))).await.unwrap();
    assert_eq!(now(&database.open().await).await, at(900));
}

#[tokio::test]
async fn the_chat_that_was_written_last_is_listed_first_if_the_clock_was_set_back() {
    let Some((database, store)) = Database::with_store_at(100).await else { return };
    let ada = Principal::new("ada");
    create(&store, &key(&ada, "a")).await;
    database.set_time(50).await;
    let keep_for = Some(Duration::from_secs(60));
    let entries = [control("request")];
    appended(&store, AppendLog { keep_for, ..creation(&key(&ada, "b"), &entries) }).await;
    let list = ListChats { limit: 2, after: None, search: None };
    let listed = store.list(&ada, list).await.unwrap();
    let ids: Vec<_> = listed.chats.iter().map(|chat| chat.id.as_str()).collect();
    assert_eq!(ids, ["b", "a"]);
}

async fn now(store: &PostgresStore) -> u64 {
    LedgerStore::load(store, &[]).await.unwrap().now.0
}
