//! The in-memory store of conversations, and a store that rejects all saves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::stream;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream::chat::store::{ChatStore, ChatStoreError, InMemoryChatStore, VersionedChat};
use ui_message_stream::chat::{Chat, ChatError, ChatServer, Turn};
use ui_message_stream::id::ChatId;
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, BoxFuture, ChatRequest};

#[tokio::test]
async fn an_evicted_chat_does_not_replace_a_newer_chat_with_the_same_id() {
    let store = InMemoryChatStore::with_capacity(1);
    let alice = Principal::new("alice");
    let first = Chat::new("chat", alice.clone());
    assert!(store.save(&first, None).await.unwrap());
    let read = store.load(&alice, &first.id).await.unwrap().unwrap();

    let other = Chat::new("other", alice.clone());
    assert!(store.save(&other, None).await.unwrap());
    assert!(store.save(&first, None).await.unwrap());
    assert!(!store.save(&first, Some(read.revision)).await.unwrap());
}

#[tokio::test]
async fn chats_of_two_users_with_one_id_are_kept_apart() {
    let store = InMemoryChatStore::new();
    let acme = Principal::new("alice").with_tenant("acme");
    let owners = [Principal::new("alice"), Principal::new("bob"), acme, Principal::anonymous()];
    for owner in &owners {
        assert!(store.save(&Chat::new("chat", owner.clone()), None).await.unwrap());
    }
    for owner in owners {
        let stored = store.load(&owner, &"chat".into()).await.unwrap().unwrap();
        assert_eq!(stored.chat.owner, owner);
    }
}

/// A store that rejects the first 100 000 saves as concurrent changes.
#[derive(Debug, Default)]
struct AlwaysConflicts(AtomicUsize);

impl ChatStore for AlwaysConflicts {
    fn load<'a>(
        &'a self,
        _: &'a Principal,
        _: &'a ChatId,
    ) -> BoxFuture<'a, Result<Option<VersionedChat>, ChatStoreError>> {
        Box::pin(async { Ok(None) })
    }

    fn save<'a>(
        &'a self,
        _: &'a Chat,
        _: Option<u64>,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        let saved = self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move { Ok(saved > 100_000) })
    }
}

#[tokio::test]
async fn saving_to_a_store_that_always_reports_a_conflict_ends_with_an_error() {
    let agent = |_: Turn| stream::iter([AgentEvent::text("Hello")]);
    let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox));
    let chats = chats.with_store(Arc::new(AlwaysConflicts::default()));
    let request = ChatRequest::parse(br#"{"id": "chat", "messages": []}"#, &Limits::default());
    let response = chats.stream_response(&Principal::anonymous(), request.unwrap()).await;
    assert!(matches!(response, Err(ChatError::Store(_))), "{response:?}");
}
