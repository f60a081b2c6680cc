//! The clock of the file, which does not run backwards.

use test_support::contention;
use test_support::contention::InsertOne;
use ui_message_stream::approval::store::{LedgerStore, ListRecords, RecordList};
use ui_message_stream::approval::{RecordId, UnixMillis};
use ui_message_stream_sqlite::SqliteStore;

use crate::folder::{Folder, at};

#[tokio::test]
async fn a_clock_that_was_set_back_by_a_minute_stands_still() {
    let folder = Folder::new();
    folder
        .open_at(60)
        .await
        .insert(&contention::record(RecordId::from_bytes([1; 16])))
        .await
        .unwrap();
    let store = folder.open_at(0).await;
    assert_eq!(now(&store).await, at(60));
    store.set_test_time(at(59));
    assert_eq!(now(&store).await, at(60));
    store.set_test_time(at(61));
    assert_eq!(now(&store).await, at(61));
}

#[tokio::test]
async fn a_clock_that_was_set_back_by_more_than_a_minute_is_followed() {
    let folder = Folder::new();
    folder.open_at(61).await.ping().await.unwrap();
    let store = folder.open_at(0).await;
    assert_eq!(now(&store).await, at(0));
    store.ping().await.unwrap();
    assert_eq!(now(&folder.open_at(0).await).await, at(0));
}

#[tokio::test]
async fn a_list_from_now_on_begins_after_the_time_that_is_returned_with_it() {
    let (_folder, store) = Folder::with_store_at(50).await;
    let expiring = |number: u8, time| {
        let mut record = contention::record(RecordId::from_bytes([number; 16]));
        record.expires_at = at(time);
        record
    };
    for (number, time) in [(1, 60), (2, 100), (3, 101)] {
        store.insert(&expiring(number, time)).await.unwrap();
    }
    store.set_test_time(at(100));
    let list = RecordList::of_requester(&expiring(1, 60).requester);
    let page = ListRecords { later_than_now: true, ..(&list).into() };
    let listed = store.read_list(page).await.unwrap();
    let ids: Vec<_> = listed.records.iter().map(|stored| stored.record.id).collect();
    assert_eq!((listed.now, ids), (at(100), vec![RecordId::from_bytes([3; 16])]));
}

async fn now(store: &SqliteStore) -> UnixMillis {
    LedgerStore::load(store, &[]).await.unwrap().now
}
