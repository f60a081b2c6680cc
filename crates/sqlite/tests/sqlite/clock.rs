//! The clock of the file, which does not run backwards.

use test_support::contention;
use test_support::contention::InsertOne;
use ui_message_stream::approval::store::LedgerStore;
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

async fn now(store: &SqliteStore) -> UnixMillis {
    LedgerStore::load(store, &[]).await.unwrap().now
}
