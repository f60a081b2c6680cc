//! Readers that wait are woken by changes of another store on the same file, as in another process.

use std::time::Duration;

use test_support::store_requests::{appended, begin, frame, holder, page, run_key};
use ui_message_stream::approval::Principal;
use ui_message_stream::chat::log::{Fence, RunKey, TakeCondition, TakeResult, TakeRun};
use ui_message_stream::chat::store::RunStore;
use ui_message_stream_sqlite::SqliteStore;

use crate::folder::Folder;

#[tokio::test]
async fn a_reader_is_woken_by_what_another_store_on_the_file_changes() {
    let folder = Folder::new();
    let (writer, reader) = (folder.open().await, folder.open().await);
    let key = run_key(&Principal::new("ada"), "run");
    let _ = begin(&writer, &key, 1).await;

    let wait = woken_at(&reader, &key, 0, |length, _| length == 1);
    let entries = [frame("a")];
    tokio::join!(wait, appended(&writer, &key, 0, &entries, false));

    let wait = woken_at(&reader, &key, 1, |_, fence| fence == 2);
    let take = async {
        let fence = page(&writer, &key).await.unwrap().fence;
        let condition = TakeCondition::Any;
        let take = TakeRun { key: &key, fence, holder: holder(2), condition };
        assert_eq!(writer.take(take).await.unwrap(), TakeResult::Taken(Fence(2)));
    };
    tokio::join!(wait, take);
}

#[tokio::test]
async fn a_reader_is_woken_when_a_log_ends_or_is_deleted() {
    let folder = Folder::new();
    let (writer, reader) = (folder.open().await, folder.open().await);
    let ada = Principal::new("ada");
    let (ended, deleted) = (run_key(&ada, "ended"), run_key(&ada, "deleted"));
    for key in [&ended, &deleted] {
        let _ = begin(&writer, key, 2).await;
    }
    let waits = async { tokio::join!(changed(&reader, &ended), changed(&reader, &deleted)) };
    let ends = async {
        appended(&writer, &ended, 0, &[], true).await;
        writer.delete_user(&ada).await.unwrap();
    };
    tokio::join!(waits, ends);
    // And later waits do not begin.
    changed(&reader, &ended).await;
}

#[tokio::test]
async fn many_readers_of_one_store_read_the_whole_log() {
    let folder = Folder::new();
    let store = folder.open().await;
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

/// Waits until the run is in this state, and fails if the hints stop before.
async fn woken_at(
    store: &SqliteStore,
    key: &RunKey,
    after: u64,
    is_there: impl Fn(u64, u64) -> bool,
) {
    loop {
        changed_after(store, key, after).await;
        let page = page(store, key).await.unwrap();
        if is_there(page.length, page.fence.0) {
            return;
        }
    }
}

async fn changed(store: &SqliteStore, key: &RunKey) {
    changed_after(store, key, 0).await;
}

async fn changed_after(store: &SqliteStore, key: &RunKey, after: u64) {
    within(store.changed(key, after)).await;
}

/// A hint that does not come fails the test.
async fn within<T>(run: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), run).await.expect("no hint has come")
}
