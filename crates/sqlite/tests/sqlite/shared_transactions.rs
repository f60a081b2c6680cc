//! Operations that wait at the same time share a transaction. An error of one of them is no error of the
//! others.

use std::time::Duration;

use chat_test_support::store_requests::{
    adas, append_at, appended, begin, control, frame, read_all,
};
use ui_message_stream_chat::store::{AppendResult, LogKey, LogStore};
use ui_message_stream_sqlite::SqliteStore;

use crate::folder::Folder;

async fn append(store: SqliteStore, key: LogKey, position: u64) -> Option<AppendResult> {
    store.append(append_at(&key, position, &[frame("a")])).await.ok()
}

#[tokio::test]
async fn an_error_of_one_operation_is_no_error_of_those_that_wait_with_it() {
    let (folder, store) = Folder::with_store().await;
    let keys: Vec<LogKey> = (0..16).map(|n| adas(&format!("chat {n}"))).collect();
    for key in &keys {
        begin(&store, key).await;
    }
    let other = folder.connect();
    let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON items \
        WHEN NEW.row_id = (SELECT id FROM rows WHERE name = CAST('hchat 4' AS BLOB)) \
        BEGIN SELECT RAISE(ABORT, ''); END";
    other.execute_batch(refuse).unwrap();

    // All of them wait for the lock of another process, so the next transaction holds most of them.
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let appends: Vec<_> = keys
        .iter()
        .enumerate()
        // Every third append is at another position than the end of its log.
        .map(|(n, key)| (u64::from(n % 3 != 0), key.clone()))
        .map(|(position, key)| tokio::spawn(append(store.clone(), key, position)))
        .collect();
    let dropped = tokio::spawn(append(store.clone(), keys[1].clone(), 2));
    tokio::time::sleep(Duration::from_millis(50)).await;
    dropped.abort();
    other.execute_batch("COMMIT").unwrap();

    for (n, appended) in appends.into_iter().enumerate() {
        let appended = appended.await.unwrap();
        match n {
            4 => assert_eq!(appended, None),
            n if n % 3 == 0 => assert_eq!(appended, Some(AppendResult::Conflict)),
            _ => {
                let is_appended = matches!(appended, Some(AppendResult::Appended { .. }));
                assert!(is_appended, "{n}: {appended:?}");
            }
        }
    }
    drop(store);
    let store = folder.open().await;
    for (n, key) in keys.iter().enumerate().filter(|(n, _)| *n != 4) {
        let entries = [control("begin"), frame("a")];
        assert_eq!(read_all(&store, key).await, entries[..1 + usize::from(n % 3 != 0)], "{n}");
    }
    appended(&store, append_at(&keys[1], 2, &[frame("b")])).await;
}
