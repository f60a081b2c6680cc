//! The store of conversations in memory.

#![cfg(feature = "approvals")]

use ui_message_stream::approval::Principal;
use ui_message_stream::chat_store::{ChatStore, MemoryChats};
use ui_message_stream::history::Chat;

#[tokio::test]
async fn a_chat_that_was_forgotten_does_not_replace_the_one_that_has_its_id_now() {
    let store = MemoryChats::of_at_most(1);
    let alices = Chat::new("chat", Principal::new("alice"));
    assert!(store.save(&alices, None).await.unwrap());
    let read = store.load(None, &alices.id).await.unwrap().unwrap();

    let other = Chat::new("other", Principal::new("bob"));
    let bobs = Chat::new("chat", Principal::new("bob"));
    assert!(store.save(&other, None).await.unwrap());
    assert!(store.save(&bobs, None).await.unwrap());
    assert!(!store.save(&alices, Some(read.revision)).await.unwrap());
    assert_eq!(store.load(None, &bobs.id).await.unwrap().unwrap().chat, bobs);
}
