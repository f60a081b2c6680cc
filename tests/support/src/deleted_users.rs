//! What the tests of each store check of a user who is deleted.

use ui_message_stream::approval::store::{LedgerStore, PendingFilter};
use ui_message_stream::approval::{ApprovalRecord, Principal, RecordId};
use ui_message_stream::chat::store::{ChatStore, RunStore, SaveChat};

use crate::contention;
use crate::store_requests::{begin, chat_of, run_key, saved};

/// A run that goes on while its user is deleted requests no approval. A user who comes back and begins
/// a chat is asked again, and so are others.
pub async fn a_run_of_a_deleted_user_requests_no_approval(
    store: &(impl ChatStore + RunStore + LedgerStore),
    delete: impl AsyncFn(&Principal),
) {
    let (ada, bob) = (Principal::new("ada"), Principal::new("bob"));
    for user in [&ada, &bob] {
        saved(store, SaveChat::new(&chat_of(user, "chat", 1))).await;
        let _ = begin(store, &run_key(user, "run"), 1).await;
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

    saved(store, SaveChat::new(&chat_of(&ada, "new", 1))).await;
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
pub fn request(requester: &Principal, chat: &str, number: u8) -> ApprovalRecord {
    let mut record = contention::record(RecordId::from_bytes([number; 16]));
    record.requester = requester.clone();
    record.chat_id = chat.into();
    record
}

async fn pending(store: &impl LedgerStore, requester: &Principal) -> usize {
    store.pending(PendingFilter::Requester(requester).into()).await.unwrap().records.len()
}
