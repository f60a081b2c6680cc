//! What the tests of each store check of a user who is deleted.

use std::future::poll_fn;
use std::task::Poll;

use test_support::contention::InsertOne;
use ui_message_stream::approval::store::{LedgerStore, RecordList};
use ui_message_stream::approval::{ApprovalRecord, Principal, RecordId};
use ui_message_stream_chat::store::LogStore;

use crate::store_requests::{append_at, appended, begin, create, frame, key, load, put};
use test_support::contention;

/// A user who is deleted has nothing more, and other users keep theirs. `delete` returns the numbers of
/// chats and approvals, and `count` the number of rows of a table.
pub async fn a_deleted_user_has_nothing_and_others_keep_theirs(
    store: &(impl LogStore + LedgerStore),
    delete: impl AsyncFn(&Principal) -> [usize; 2],
    count: impl AsyncFn(&str) -> i64,
) {
    let ada = Principal::new("ada");
    let others = [
        Principal::new("bob"),
        Principal::anonymous(),
        Principal::new("ada").with_tenant("engines"),
        Principal::new("ad"),
        Principal::new("%"),
    ];
    fill(store, &ada, 1).await;
    for (number, other) in others.iter().enumerate() {
        fill(store, other, u8::try_from(number + 2).unwrap()).await;
    }

    assert_eq!(delete(&ada).await, [2, 1]);
    assert!(load(store, &key(&ada, "one")).await.is_none());
    assert_eq!(pending(store, &ada).await, 0);
    for other in &others {
        assert!(load(store, &key(other, "one")).await.is_some(), "{other}");
        assert_eq!(pending(store, other).await, 1, "{other}");
    }
    let others = i64::try_from(others.len()).unwrap();
    assert_eq!(count("log_messages").await, others * 4);
    assert_eq!(count("log_entries").await, others * 3);
    assert_eq!(delete(&ada).await, [0; 2]);
}

/// The deletion of a user with much is in steps: other writers get their turn, the approvals are deleted
/// first, and a deletion that was dropped is completed when it is repeated.
pub async fn a_deletion_is_in_steps_and_can_be_repeated(
    store: &(impl LogStore + LedgerStore),
    delete: impl AsyncFn(&Principal) -> [usize; 2],
    ping: impl AsyncFn(),
    count: impl AsyncFn(&str) -> i64,
) {
    let ada = Principal::new("ada");
    for number in 0..CHATS {
        let key = key(&ada, &number.to_string());
        if number % 20 == 0 {
            begin(store, &key).await
        } else {
            create(store, &key).await
        };
        assert!(put(store, &key, 1, &["one", "two"]).await);
    }
    for number in 0..250 {
        assert!(store.insert(&request(&ada, "0", number)).await.unwrap());
    }

    let mut deletion = Box::pin(delete(&ada));
    while count("log_messages").await == 2 * CHATS {
        // A step begins only when the deletion is polled, and others write before the next one.
        let polled = poll_fn(|context| Poll::Ready(deletion.as_mut().poll(context))).await;
        assert!(polled.is_pending(), "the deletion is one step");
        ping().await;
    }
    assert!(count("log_messages").await > 0);
    assert_eq!(count("approvals").await, 0, "nothing can be approved");
    drop(deletion);

    assert_eq!(delete(&ada).await[1], 0);
    for table in ["logs", "log_entries", "log_snapshots", "log_messages", "approvals"] {
        assert_eq!(count(table).await, 0, "{table}");
    }
}

/// Gives a user two chats, one of them with a run, and an open approval request.
async fn fill(store: &(impl LogStore + LedgerStore), owner: &Principal, number: u8) {
    let (one, other) = (key(owner, "one"), key(owner, "other"));
    begin(store, &one).await;
    appended(store, append_at(&one, 1, &[frame("a")])).await;
    create(store, &other).await;
    for key in [&one, &other] {
        assert!(put(store, key, 1, &["one", "two"]).await);
    }
    let mut record = contention::record(RecordId::of_requester(owner, [number; 16]));
    record.requester = owner.clone();
    assert!(store.insert(&record).await.unwrap());
}

/// A run that goes on while its user is deleted requests no approval. A user who comes back and begins
/// a chat is asked again, and so are others.
pub async fn a_run_of_a_deleted_user_requests_no_approval(
    store: &(impl LogStore + LedgerStore),
    delete: impl AsyncFn(&Principal),
) {
    let (ada, bob) = (Principal::new("ada"), Principal::new("bob"));
    for user in [&ada, &bob] {
        begin(store, &key(user, "chat")).await;
    }
    assert!(store.insert(&request(&ada, "chat", 1)).await.unwrap());
    delete(&ada).await;
    for _ in 0..2 {
        let refused = store.insert(&request(&ada, "chat", 2)).await.unwrap_err();
        let refused = std::error::Error::source(&refused).unwrap().to_string();
        assert_eq!(refused, "the user was deleted, and has no such chat since");
        // Also if the deletion is repeated.
        delete(&ada).await;
    }
    assert_eq!(pending(store, &ada).await, 0);
    assert!(store.insert(&request(&bob, "chat", 3)).await.unwrap());

    create(store, &key(&ada, "new")).await;
    assert!(store.insert(&request(&ada, "new", 4)).await.unwrap());
    assert!(store.insert(&request(&ada, "chat", 5)).await.is_err());
    assert_eq!(pending(store, &ada).await, 1);

    // The chats of this user are in another store: a run that begins later is not known here.
    let carol = Principal::new("carol");
    assert!(store.insert(&request(&carol, "chat", 6)).await.unwrap());
    delete(&carol).await;
    assert_eq!(pending(store, &carol).await, 0);
    assert!(store.insert(&request(&carol, "chat", 7)).await.unwrap());
}

/// Returns an approval request with this number.
fn request(requester: &Principal, chat: &str, number: u8) -> ApprovalRecord {
    let mut record = contention::record(RecordId::of_requester(requester, [number; 16]));
    record.requester = requester.clone();
    record.chat_id = chat.into();
    record
}

/// Returns the number of open approval requests of a user.
pub async fn pending(store: &impl LedgerStore, requester: &Principal) -> usize {
    store.read_list((&RecordList::of_requester(requester)).into()).await.unwrap().records.len()
}

/// More than is deleted in some steps.
const CHATS: i64 = 400;
