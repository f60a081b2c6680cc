//! Deleting a user deletes everything of this user and nothing of others.

use std::time::Duration;

use test_support::contention;
use test_support::deleted_users::{a_run_of_a_deleted_user_requests_no_approval, request};
use test_support::store_requests::{append, appended, begin, chat_of, frame, page, run_key, saved};
use ui_message_stream::approval::store::{LedgerStore, PendingFilter};
use ui_message_stream::approval::{Principal, RecordId};
use ui_message_stream::chat::log::{AppendRefusal, AppendResult};
use ui_message_stream::chat::store::{ChatStore, SaveChat, SaveResult, VersionedChat};
use ui_message_stream_sqlite::SqliteStore;

use crate::folder::Folder;

#[tokio::test]
async fn a_deleted_user_has_no_chats_runs_and_approvals_and_others_keep_theirs() {
    let folder = Folder::new();
    let store = folder.open().await;
    let ada = Principal::new("ada");
    let others = [
        Principal::new("bob"),
        Principal::anonymous(),
        Principal::new("ada").with_tenant("engines"),
        Principal::new("ad"),
        Principal::new("%"),
    ];
    fill(&store, &ada, 1).await;
    for (number, other) in others.iter().enumerate() {
        fill(&store, other, u8::try_from(number + 2).unwrap()).await;
    }

    let deleted = store.delete_user(&ada).await.unwrap();
    assert_eq!((deleted.chats, deleted.runs, deleted.approvals), (2, 1, 1));
    assert!(ChatStore::load(&store, &ada, &"one".into()).await.unwrap().is_none());
    assert!(page(&store, &run_key(&ada, "run")).await.is_none());
    assert_eq!(pending(&store, &ada).await, 0);
    for other in &others {
        assert!(ChatStore::load(&store, other, &"one".into()).await.unwrap().is_some(), "{other}");
        assert!(page(&store, &run_key(other, "run")).await.is_some(), "{other}");
        assert_eq!(pending(&store, other).await, 1, "{other}");
    }
    let others = i64::try_from(others.len()).unwrap();
    assert_eq!(folder.count("chat_messages"), others * 4);
    assert_eq!(folder.count("run_entries"), others);
    assert_eq!(store.delete_user(&ada).await.unwrap(), Default::default());
}

#[tokio::test]
async fn a_live_run_of_a_deleted_user_stores_nothing_more() {
    let folder = Folder::new();
    let store = folder.open().await;
    let ada = Principal::new("ada");
    let chat = chat_of(&ada, "chat", 1);
    let revision = saved(&store, SaveChat::new(&chat)).await;
    let key = run_key(&ada, "run");
    let _ = begin(&store, &key, 1).await;
    // Now the thread that writes has the run in memory.
    appended(&store, &key, 0, &[], false).await;
    store.delete_user(&ada).await.unwrap();
    let late = append(&store, &key, 0, &[frame("late")], false).await;
    assert_eq!(late, AppendResult::Refused(AppendRefusal::NotFound));
    let stored = VersionedChat { chat: chat.clone(), revision };
    let late = store.save(SaveChat::replacing(&stored, &chat)).await.unwrap();
    assert_eq!(late, SaveResult::Conflict);
    for table in ["chats", "chat_messages", "runs", "run_entries"] {
        assert_eq!(folder.count(table), 0, "{table}");
    }
}

#[tokio::test]
async fn what_was_appended_in_the_transaction_that_deletes_the_user_is_not_stored() {
    let folder = Folder::new();
    let store = folder.open().await;
    let ada = Principal::new("ada");
    let key = run_key(&ada, "run");
    let _ = begin(&store, &key, 1).await;

    // The first operation waits for the lock of another process, and the next transaction holds the others.
    let other = folder.connect();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let unlock = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        other.execute_batch("COMMIT").unwrap();
    };
    let (small, large) = ([frame("a")], [frame(&"b".repeat(20_000))]);
    let (pinged, .., deleted, ()) = tokio::join!(
        store.ping(),
        appended(&store, &key, 0, &small, false),
        appended(&store, &key, 1, &large, false),
        store.delete_user(&ada),
        unlock,
    );
    pinged.unwrap();
    assert_eq!(deleted.unwrap().runs, 1);
    for table in ["runs", "run_entries", "run_journal"] {
        assert_eq!(folder.count(table), 0, "{table}");
    }
}

#[tokio::test]
async fn a_run_that_goes_on_while_its_user_is_deleted_requests_no_approval() {
    let folder = Folder::new();
    let store = folder.open().await;
    a_run_of_a_deleted_user_requests_no_approval(&store, async |user| {
        store.delete_user(user).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_deletion_lets_others_write_revokes_first_and_is_completed_when_it_is_repeated() {
    let folder = Folder::new();
    let store = folder.open().await;
    let ada = Principal::new("ada");
    for number in 0..CHATS {
        saved(&store, SaveChat::new(&chat_of(&ada, &number.to_string(), 2))).await;
    }
    for number in 0..12 {
        let key = run_key(&ada, &number.to_string());
        let _ = begin(&store, &key, 100).await;
        appended(&store, &key, 0, &[frame("a")], false).await;
    }
    for number in 0..250 {
        assert!(store.insert(&request(&ada, "0", number)).await.unwrap());
    }

    let mut deletion = Box::pin(store.delete_user(&ada));
    loop {
        tokio::select! {
            biased;
            _ = &mut deletion => panic!("the deletion is one step"),
            pinged = store.ping() => pinged.unwrap(),
        }
        if folder.count("chats") < CHATS {
            break;
        }
    }
    assert!(folder.count("chats") > 0);
    assert_eq!(folder.count("approvals"), 0, "nothing can be approved");
    assert_eq!(folder.count("runs"), 0);
    drop(deletion);

    let rest = store.delete_user(&ada).await.unwrap();
    assert!(rest.chats > 0 && rest.approvals == 0, "{rest:?}");
    for table in ["chats", "chat_messages", "runs", "run_entries", "approvals"] {
        assert_eq!(folder.count(table), 0, "{table}");
    }
}

async fn fill(store: &SqliteStore, owner: &Principal, number: u8) {
    for id in ["one", "other"] {
        saved(store, SaveChat::new(&chat_of(owner, id, 2))).await;
    }
    let key = run_key(owner, "run");
    let _ = begin(store, &key, 1).await;
    appended(store, &key, 0, &[frame("a")], false).await;
    let mut record = contention::record(RecordId::from_bytes([number; 16]));
    record.requester = owner.clone();
    assert!(store.insert(&record).await.unwrap());
}

async fn pending(store: &SqliteStore, owner: &Principal) -> usize {
    store.pending(PendingFilter::Requester(owner).into()).await.unwrap().records.len()
}

/// More than is deleted in some steps.
const CHATS: i64 = 200;
