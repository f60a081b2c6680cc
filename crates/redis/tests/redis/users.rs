//! Deleting a user deletes everything of this user and nothing of others.

use chat_test_support::deleted_users::{a_run_of_a_deleted_user_requests_no_approval, pending};
use chat_test_support::store_requests::{
    append_at, appended, begin, create, frame, key, load, put,
};
use test_support::contention;
use test_support::contention::InsertOne;
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{ApprovalState, NoticeDelivery, Principal, RecordId};
use ui_message_stream_redis::RedisStore;

use crate::backend::Backend;

#[tokio::test]
async fn a_deleted_user_has_no_chats_and_approvals_and_others_keep_theirs() {
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
        assert_eq!((deleted.chats, deleted.approvals), (2, 2));
        assert_eq!(backend.keys(), of_others, "{}", backend.name());
        assert!(load(&store, &key(&ada, "one")).await.is_none());
        assert_eq!(pending(&store, &ada).await, 0);
        for other in &others {
            let log = load(&store, &key(other, "one")).await.unwrap();
            assert!(log.head.live_run.is_some(), "{other}");
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
            begin(&store, &key(&ada, &number.to_string())).await;
        }
        for number in 0..150 {
            let mut record = contention::record(RecordId::of_requester(&ada, [number; 16]));
            record.requester = ada.clone();
            record.audience = vec!["team".into()];
            assert!(store.insert(&record).await.unwrap());
        }
        let deleted = store.delete_user(&ada).await.unwrap();
        assert_eq!((deleted.chats, deleted.approvals), (250, 150));
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

/// Gives a user two chats, one of them with a run, an open approval request, and a decided one.
async fn fill(store: &RedisStore, owner: &Principal, number: u8) {
    let (one, other) = (key(owner, "one"), key(owner, "other"));
    begin(store, &one).await;
    appended(store, append_at(&one, 1, &[frame("a")])).await;
    create(store, &other).await;
    for key in [&one, &other] {
        assert!(put(store, key, 1, &["one", "two"]).await);
    }
    for id in [number, 100 + number] {
        let mut record = contention::record(RecordId::of_requester(owner, [id; 16]));
        record.requester = owner.clone();
        record.audience = vec!["team".into()];
        record.delivery = Some(NoticeDelivery::default());
        assert!(store.insert(&record).await.unwrap());
        if id > 100 {
            record.state = ApprovalState::Expired;
            assert!(store.compare_and_swap(&record, 0).await.unwrap());
        }
    }
}
