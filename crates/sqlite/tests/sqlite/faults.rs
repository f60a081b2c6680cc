//! A file that another process locks, and callers that go away.

use std::error::Error;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use test_support::contention::InsertOne;

use test_support::contention;
use test_support::store_requests::{appended, begin, chat_of, frame, holder, page, run_key, saved};
use ui_message_stream::approval::store::{LedgerStore, update};
use ui_message_stream::approval::{
    ApprovalRecord, ClaimResult, Principal, RecordId, RecordedDecision, UnixMillis,
};
use ui_message_stream::chat::log::{AppendEntries, BeginRun, Fence, TakeCondition, TakeRun};
use ui_message_stream::chat::store::{ChatStore, RunStore, SaveChat};
use ui_message_stream_sqlite::{SqliteError, SqliteOptions};

use crate::folder::Folder;

#[tokio::test]
async fn without_a_busy_timeout_a_store_without_others_reads_and_writes() {
    let folder = Folder::new();
    let options = SqliteOptions::new().with_busy_timeout(Duration::ZERO);
    let store = folder.open_with(options).await;
    let ada = Principal::new("ada");
    for number in 0..20 {
        let chat = chat_of(&ada, &number.to_string(), 1);
        saved(&store, SaveChat::new(&chat)).await;
        assert!(ChatStore::load(&store, &ada, &chat.id).await.unwrap().is_some());
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
    let ada = Principal::new("ada");
    let chat = chat_of(&ada, "chat", 1);
    let revision = saved(&store, SaveChat::new(&chat)).await;
    let record = contention::record(RecordId::from_bytes([1; 16]));
    assert!(store.insert(&record).await.unwrap());
    let key = run_key(&ada, "run");
    let _ = begin(&store, &key, 9).await;
    appended(&store, &key, 0, &[frame("a")], false).await;

    let other = folder.connect();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let claim = |record: &ApprovalRecord, now: UnixMillis| {
        let decided_by = record.requester.clone();
        let decision = RecordedDecision { decided_by, decided_at: now, reason: None };
        record.claim(&decision, holder(1), Duration::from_secs(60))
    };
    let new = chat_of(&ada, "new", 1);
    let new_key = run_key(&ada, "new");
    let new_record = contention::record(RecordId::from_bytes([2; 16]));
    let append = AppendEntries {
        key: &key,
        fence: Fence(1),
        position: 1,
        entries: &[frame("b")],
        end: true,
    };
    let take = TakeRun {
        key: &key,
        fence: Fence(1),
        holder: holder(2),
        condition: TakeCondition::Any,
        lease: Duration::from_secs(10),
    };
    let lease = Duration::from_secs(1);
    let begin_new = BeginRun { key: &new_key, holder: holder(1), lease, max_user_runs: 9 };
    let errors: [Box<dyn Error>; 7] = [
        store.save(SaveChat::new(&new)).await.unwrap_err().into(),
        store.delete(&ada, &chat.id, revision).await.unwrap_err().into(),
        store.insert(&new_record).await.unwrap_err().into(),
        update(&store, record.id, claim).await.unwrap_err().into(),
        store.begin(begin_new).await.unwrap_err().into(),
        store.append(append).await.unwrap_err().into(),
        store.take(take).await.unwrap_err().into(),
    ];
    for error in errors {
        let cause = error.source().unwrap().downcast_ref::<SqliteError>().unwrap();
        assert!(matches!(cause, SqliteError::Busy), "{cause}");
        let text = format!("{error} {error:?} {cause} {cause:?}");
        assert!(!text.contains("INSERT") && !text.contains("ada"), "{text}");
    }
    assert!(matches!(store.ping().await, Err(SqliteError::Busy)));
    // Reading goes on.
    assert!(ChatStore::load(&store, &ada, &chat.id).await.unwrap().is_some());
    assert_eq!(page(&store, &key).await.unwrap().length, 1);

    other.execute_batch("ROLLBACK").unwrap();
    store.ping().await.unwrap();
    assert!(ChatStore::load(&store, &ada, &new.id).await.unwrap().is_none());
    assert!(page(&store, &new_key).await.is_none());
    assert_eq!(page(&store, &key).await.unwrap().fence, Fence(1));
    let stored = LedgerStore::load(&store, &[record.id, new_record.id]).await.unwrap().records;
    assert_eq!(stored.iter().map(|stored| &stored.record).collect::<Vec<_>>(), [&record]);
    let claimed = update(&store, record.id, claim).await.unwrap().unwrap().1;
    assert!(matches!(claimed, ClaimResult::Granted(_)), "{claimed:?}");
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
    let folder = Folder::new();
    let store = folder.open().await;
    let ada = Principal::new("ada");
    // More than the queues hold.
    for number in 0..300 {
        let chat = chat_of(&ada, &format!("chat {number}"), 5);
        let key = run_key(&ada, &format!("run {number}"));
        let lease = Duration::from_secs(60);
        let begin = BeginRun { key: &key, holder: holder(1), lease, max_user_runs: 1000 };
        drop_after_one_poll(store.save(SaveChat::new(&chat))).await;
        drop_after_one_poll(store.begin(begin)).await;
        drop_after_one_poll(ChatStore::load(&store, &ada, &chat.id)).await;
    }
    // The writer takes one after another: all of them are done or skipped now.
    store.ping().await.unwrap();
    let incomplete = "chats WHERE (SELECT count(*) FROM chat_messages WHERE chat = key) <> 5";
    assert_eq!(folder.count(incomplete), 0);
    let chat = chat_of(&ada, "last", 5);
    saved(&store, SaveChat::new(&chat)).await;
    assert_eq!(ChatStore::load(&store, &ada, &chat.id).await.unwrap().unwrap().chat, chat);
}

#[tokio::test]
async fn a_store_of_which_all_clones_were_dropped_closes_the_file() {
    let folder = Folder::new();
    let store = folder.open().await;
    let clone = store.clone();
    store.ping().await.unwrap();
    drop(store);
    clone.ping().await.unwrap();
    drop(clone);
    // Only the last connection to a file can take it out of WAL mode.
    let other = folder.connect();
    let close = async {
        loop {
            let change = other.query_row("PRAGMA journal_mode = DELETE", [], |row| row.get(0));
            if change.is_ok_and(|mode: String| mode == "delete") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let closed = tokio::time::timeout(Duration::from_secs(60), close).await;
    closed.expect("the file is still open");
}

async fn drop_after_one_poll(run: impl Future) {
    let mut run = pin!(run);
    poll_fn(|context| {
        let _ = run.as_mut().poll(context);
        Poll::Ready(())
    })
    .await;
}
