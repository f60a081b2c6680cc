//! Operations that wait at the same time share a transaction. An error of one of them is no error of the
//! others.

use std::time::Duration;

use test_support::store_requests::{append, begin, frame, page, run_key};
use ui_message_stream::approval::Principal;
use ui_message_stream::chat::log::{AppendEntries, AppendRefusal, AppendResult, Fence, RunKey};
use ui_message_stream::chat::store::RunStore;
use ui_message_stream_sqlite::SqliteStore;

use crate::folder::Folder;

async fn append_at(store: SqliteStore, key: RunKey, position: u64) -> Option<AppendResult> {
    let entries = [frame("a")];
    let append =
        AppendEntries { key: &key, fence: Fence(1), position, entries: &entries, end: false };
    store.append(append).await.ok()
}

#[tokio::test]
async fn an_error_of_one_operation_is_no_error_of_those_that_wait_with_it() {
    let folder = Folder::new();
    let store = folder.open().await;
    let ada = Principal::new("ada");
    let keys: Vec<RunKey> = (0..16).map(|n| run_key(&ada, &format!("run_{n}"))).collect();
    for key in &keys {
        let _ = begin(&store, key, 16).await;
    }
    let other = folder.connect();
    other.execute_batch("UPDATE runs SET format = 9 WHERE key = 5").unwrap();

    // All of them wait for the lock of another process, so the next transaction holds most of them.
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let appends: Vec<_> = keys
        .iter()
        .enumerate()
        // The log of every third run has a gap.
        .map(|(n, key)| (u64::from(n % 3 == 0), key.clone()))
        .map(|(position, key)| tokio::spawn(append_at(store.clone(), key, position)))
        .collect();
    let dropped = tokio::spawn(append_at(store.clone(), keys[1].clone(), 7));
    tokio::time::sleep(Duration::from_millis(50)).await;
    dropped.abort();
    other.execute_batch("COMMIT").unwrap();

    for (n, appended) in appends.into_iter().enumerate() {
        let appended = appended.await.unwrap();
        match n {
            4 => assert_eq!(appended, None),
            n if n % 3 == 0 => {
                assert_eq!(appended, Some(AppendResult::Refused(AppendRefusal::Gap)));
            }
            _ => assert!(matches!(appended, Some(AppendResult::Appended(_))), "{n}: {appended:?}"),
        }
    }
    drop(store);
    let store = folder.open().await;
    for (n, key) in keys.iter().enumerate().filter(|(n, _)| *n != 4) {
        let page = page(&store, key).await;
        assert_eq!(page.unwrap().entries.len(), usize::from(n % 3 != 0), "{n}");
    }
    assert!(matches!(
        append(&store, &keys[1], 1, &[frame("b")], false).await,
        AppendResult::Appended(_)
    ));
}
