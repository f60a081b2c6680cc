//! A file that another process locks, and callers that go away.

use std::error::Error;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use test_support::contention::InsertOne;

use chat_test_support::store_requests::{
    EPOCH, adas, append_after, append_at, appended, begin, control, create, creation, frame, load,
    read_all,
};
use test_support::contention;
use ui_message_stream::approval::store::{LedgerStore, update};
use ui_message_stream::approval::{
    ApprovalRecord, LeaseHolderId, RecordId, RecordedDecision, Stepped, UnixMillis,
};
use ui_message_stream_chat::store::{AppendLog, LiveRunChange, LoadLog, LogStore, PutSnapshot};
use ui_message_stream_sqlite::{SqliteError, SqliteOptions};

use crate::folder::Folder;

#[tokio::test]
async fn without_a_busy_timeout_a_store_without_others_reads_and_writes() {
    let folder = Folder::new();
    let options = SqliteOptions::new().with_busy_timeout(Duration::ZERO);
    let store = folder.open_with(options).await;
    for number in 0..20 {
        let key = adas(&number.to_string());
        create(&store, &key).await;
        assert!(load(&store, &key).await.is_some());
    }
    let other = folder.connect();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(matches!(store.ping().await, Err(SqliteError::Busy)));
}

#[tokio::test]
async fn while_another_process_locks_the_file_writes_fail_and_nothing_is_claimed() {
    let folder = Folder::new();
    let options = SqliteOptions::new().with_busy_timeout(Duration::from_millis(20));
    let store = folder.open_with(options).await;
    let record = contention::record(RecordId::from_bytes([1; 16]));
    assert!(store.insert(&record).await.unwrap());
    let (old, new) = (adas("chat"), adas("new"));
    begin(&store, &old).await;
    appended(&store, append_at(&old, 1, &[frame("a")])).await;
    let before = load(&store, &old).await.unwrap();

    let other = folder.connect();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let claim = |record: &ApprovalRecord, now: UnixMillis| {
        let decided_by = record.requester.clone();
        let decision = RecordedDecision::new(decided_by, now);
        record.claim(&decision, LeaseHolderId::from_bytes([1; 16]), Duration::from_secs(60))
    };
    let new_record = contention::record(RecordId::from_bytes([2; 16]));
    let run = "other".into();
    let (frames, controls) = ([frame("b")], [control("end"), control("begin")]);
    let take = AppendLog {
        live_run: LiveRunChange::Begins(&run),
        lease: Some(Duration::from_secs(10)),
        ..append_after(&old, 1, &controls)
    };
    let (epoch, head, changed) = (EPOCH, "{}", &["message".to_owned()][..]);
    let put = PutSnapshot { key: &old, epoch, position: 1, head, unchanged: None, changed };
    let errors: [Box<dyn Error>; 8] = [
        store.append(creation(&new, &controls)).await.unwrap_err().into(),
        store.append(append_at(&old, 2, &frames)).await.unwrap_err().into(),
        store.append(take).await.unwrap_err().into(),
        store.put_snapshot(put).await.unwrap_err().into(),
        store.rename(&old, "Title").await.unwrap_err().into(),
        store.delete(&old, EPOCH, 1).await.unwrap_err().into(),
        store.insert(&new_record).await.unwrap_err().into(),
        update(&store, record.id, claim).await.unwrap_err().into(),
    ];
    for error in errors {
        let cause = error.source().unwrap().downcast_ref::<SqliteError>().unwrap();
        assert!(matches!(cause, SqliteError::Busy), "{cause}");
        let text = format!("{error} {error:?} {cause} {cause:?}");
        assert!(!text.contains("INSERT") && !text.contains("ada"), "{text}");
    }
    assert!(matches!(store.ping().await, Err(SqliteError::Busy)));
    // Reading goes on.
    assert_eq!(read_all(&store, &old).await, [control("begin"), frame("a")]);

    other.execute_batch("ROLLBACK").unwrap();
    store.ping().await.unwrap();
    assert!(load(&store, &new).await.is_none());
    let mut after = load(&store, &old).await.unwrap();
    after.head.unread = before.head.unread;
    assert_eq!(after, before);
    let stored = LedgerStore::load(&store, &[record.id, new_record.id]).await.unwrap().records;
    assert_eq!(stored.iter().map(|stored| &stored.record).collect::<Vec<_>>(), [&record]);
    let claimed = update(&store, record.id, claim).await.unwrap().unwrap().1;
    assert!(matches!(claimed, Stepped::Granted(_)), "{claimed:?}");
}

#[tokio::test]
async fn a_store_with_the_longest_busy_timeout_is_opened_and_written() {
    let folder = Folder::new();
    let options = SqliteOptions::new().with_busy_timeout(Duration::MAX);
    let store = folder.open_with(options).await;
    store.ping().await.unwrap();
}

#[tokio::test]
async fn operations_of_callers_that_went_away_take_place_as_a_whole_or_not_at_all() {
    let (folder, store) = Folder::with_store().await;
    // More than the queues hold.
    for number in 0..300 {
        let key = adas(&format!("chat {number}"));
        let entries = ["a", "b", "c", "d", "e"].map(control);
        let all = LoadLog { key: &key, has_frames: true, has_messages: true };
        drop_after_one_poll(store.append(creation(&key, &entries))).await;
        drop_after_one_poll(LogStore::load(&store, all)).await;
    }
    // The writer takes one after another: all of them are done or skipped now.
    store.ping().await.unwrap();
    let incomplete = "rows WHERE substr(name, 1, 1) = CAST('h' AS BLOB) \
        AND ((SELECT count(*) FROM items WHERE row_id = id) <> 5 \
            OR json_extract(CAST(body AS TEXT), '$.c') <> 5)";
    assert_eq!(folder.count(incomplete), 0);
    let last = adas("last");
    create(&store, &last).await;
    assert_eq!(load(&store, &last).await.unwrap().entries.len(), 1);
}

#[tokio::test]
async fn a_store_of_which_all_clones_were_dropped_closes_the_file() {
    let (folder, store) = Folder::with_store().await;
    let clone = store.clone();
    store.ping().await.unwrap();
    drop(store);
    clone.ping().await.unwrap();
    drop(clone);
    // Only the last connection to a file can take it out of WAL mode.
    let other = folder.connect();
    test_support::eventually(async || {
        let change = other.query_row("PRAGMA journal_mode = DELETE", [], |row| row.get(0));
        change.is_ok_and(|mode: String| mode == "delete")
    })
    .await;
}

async fn drop_after_one_poll(run: impl Future) {
    let mut run = pin!(run);
    poll_fn(|context| {
        let _ = run.as_mut().poll(context);
        Poll::Ready(())
    })
    .await;
}
