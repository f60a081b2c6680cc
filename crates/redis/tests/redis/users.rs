//! Deleting a user deletes everything of this user and nothing of others.

use test_support::contention;
use test_support::contention::InsertOne;
use test_support::deleted_users::{a_run_of_a_deleted_user_requests_no_approval, pending};
use test_support::store_requests::{append, appended, begin, chat_of, frame, page, run_key, saved};
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{ApprovalState, Principal, RecordId};
use ui_message_stream::chat::log::{AppendRefusal, AppendResult};
use ui_message_stream::chat::store::{ChatStore, SaveChat, SaveResult, VersionedChat};
use ui_message_stream_redis::RedisStore;

use crate::backend::Backend;

#[tokio::test]
async fn a_deleted_user_has_no_chats_runs_and_approvals_and_others_keep_theirs() {
    for backend in Backend::all() {
        let store = backend.connect().await;
        let ada = Principal::new("ada");
        let others = [
            Principal::new("bob"),
            Principal::anonymous(),
            Principal::new("ada").with_tenant("engines"),
            Principal::new("ad"),
            Principal::new("*"),
        ];
        for (number, other) in others.iter().enumerate() {
            fill(&store, other, u8::try_from(number + 2).unwrap()).await;
        }
        let of_others = backend.keys();
        fill(&store, &ada, 1).await;
        assert!(backend.keys().len() > of_others.len());

        let deleted = store.delete_user(&ada).await.unwrap();
        assert_eq!((deleted.chats, deleted.runs, deleted.approvals), (2, 1, 2));
        assert_eq!(backend.keys(), of_others, "{}", backend.name());
        assert!(ChatStore::load(&store, &ada, &"one".into()).await.unwrap().is_none());
        assert!(page(&store, &run_key(&ada, "run")).await.is_none());
        assert_eq!(pending(&store, &ada).await, 0);
        for other in &others {
            let chat = ChatStore::load(&store, other, &"one".into()).await.unwrap();
            assert!(chat.is_some(), "{other}");
            assert!(page(&store, &run_key(other, "run")).await.is_some(), "{other}");
            assert_eq!(pending(&store, other).await, 1, "{other}");
        }
        assert_eq!(store.delete_user(&ada).await.unwrap(), Default::default());
    }
}

#[tokio::test]
async fn a_user_with_more_than_is_deleted_in_one_step_is_deleted() {
    for backend in Backend::all() {
        let (store, ada) = (backend.connect().await, Principal::new("ada"));
        for number in 0..250_usize {
            saved(&store, SaveChat::new(&chat_of(&ada, &number.to_string(), 1))).await;
        }
        for number in 0..150 {
            let mut record = contention::record(RecordId::from_bytes([number; 16]));
            record.requester = ada.clone();
            assert!(store.insert(&record).await.unwrap());
        }
        let deleted = store.delete_user(&ada).await.unwrap();
        assert_eq!((deleted.chats, deleted.runs, deleted.approvals), (250, 0, 150));
        assert_eq!(backend.keys(), Vec::<String>::new(), "{}", backend.name());
    }
}

#[tokio::test]
async fn a_live_run_of_a_deleted_user_stores_nothing_more() {
    for backend in Backend::all() {
        let (store, ada) = (backend.connect().await, Principal::new("ada"));
        let chat = chat_of(&ada, "chat", 1);
        let revision = saved(&store, SaveChat::new(&chat)).await;
        let key = run_key(&ada, "run");
        let _ = begin(&store, &key, 1).await;
        store.delete_user(&ada).await.unwrap();
        let late = append(&store, &key, 0, &[frame("late")], false).await;
        assert_eq!(late, AppendResult::Refused(AppendRefusal::NotFound));
        let stored = VersionedChat { chat: chat.clone(), revision };
        let late = store.save(SaveChat::replacing(&stored, &chat)).await.unwrap();
        assert_eq!(late, SaveResult::Conflict);
        assert_eq!(backend.keys(), Vec::<String>::new(), "{}", backend.name());
    }
}

#[tokio::test]
async fn a_run_that_goes_on_while_its_user_is_deleted_requests_no_approval() {
    for backend in Backend::all() {
        let store = backend.connect().await;
        a_run_of_a_deleted_user_requests_no_approval(&store, async |user| {
            store.delete_user(user).await.unwrap();
        })
        .await;
    }
}

/// Gives a user two chats, a run, an open approval request, and a decided one.
async fn fill(store: &RedisStore, owner: &Principal, number: u8) {
    for id in ["one", "other"] {
        saved(store, SaveChat::new(&chat_of(owner, id, 2))).await;
    }
    let key = run_key(owner, "run");
    let _ = begin(store, &key, 1).await;
    appended(store, &key, 0, &[frame("a")], false).await;
    for id in [number, 100 + number] {
        let mut record = contention::record(RecordId::from_bytes([id; 16]));
        record.requester = owner.clone();
        assert!(store.insert(&record).await.unwrap());
        if id > 100 {
            record.state = ApprovalState::Expired;
            assert!(store.compare_and_swap(&record, 0).await.unwrap());
        }
    }
}
