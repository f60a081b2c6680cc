//! What is removed of the logs of chats leaves no rows.

use std::time::Duration;

use chat_test_support::store_requests::{
    EPOCH, append_at, appended, begin, control, frame, key as key_of, load, put,
};
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::{AppendLog, LiveRunChange, LogKey, LogStore, StoredEntry};

use crate::folder::{Folder, at};

fn key(owner: &str, chat: &str) -> LogKey {
    key_of(&Principal::new(owner), chat)
}

fn frames(count: usize) -> Vec<StoredEntry> {
    vec![frame("frame"); count]
}

const TABLES: [&str; 6] =
    ["logs", "log_entries", "log_snapshots", "log_messages", "log_ended_runs", "removed_logs"];

#[tokio::test]
async fn a_removed_log_leaves_no_rows_however_long_it_is() {
    let (folder, store) = Folder::with_store_at(0).await;
    let (ada, bob) = (key("ada", "chat"), key("bob", "chat"));
    let removals = async |number: u64| match number {
        0 => assert!(LogStore::delete(&store, &ada, EPOCH, 2).await.unwrap()),
        1 => assert_eq!(LogStore::delete_user(&store, &ada.owner).await.unwrap(), 1),
        2 => assert_eq!(store.delete_user(&ada.owner).await.unwrap().chats, 1),
        _ => {
            store.set_test_time(at(10));
            // Its time has passed. A new log takes its place before the sweep.
            assert_eq!(LogStore::delete_user(&store, &ada.owner).await.unwrap(), 0);
            begin(&store, &ada).await;
            assert_eq!(load(&store, &ada).await.unwrap().entries.len(), 1);
            assert_eq!(LogStore::delete_user(&store, &ada.owner).await.unwrap(), 1);
            store.sweep().await.unwrap();
        }
    };
    for number in 0..4 {
        begin(&store, &ada).await;
        let entries = frames(1_700);
        appended(&store, append_at(&ada, 1, &entries)).await;
        let last = [control("end")];
        let end = AppendLog {
            live_run: LiveRunChange::Ends,
            keep_for: Some(Duration::from_secs(10)),
            ..append_at(&ada, 1_701, &last)
        };
        appended(&store, end).await;
        assert!(put(&store, &ada, 3, &["message"; 600]).await);
        begin(&store, &bob).await;
        removals(number).await;
        assert_eq!(load(&store, &ada).await, None);
        assert_eq!(load(&store, &bob).await.unwrap().head.length, 1);
        assert!(LogStore::delete(&store, &bob, EPOCH, 1).await.unwrap());
        for table in TABLES {
            assert_eq!(folder.count(table), 0, "{table}");
        }
    }
}
