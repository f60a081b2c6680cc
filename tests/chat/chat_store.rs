//! The in-memory store of conversations, and a store that rejects all saves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::stream;
use test_support::external_processes::say;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal, UnixMillis};
use ui_message_stream::chat::store::{
    ChatPage, ChatStore, ChatStoreError, InMemoryChatStore, ListChats, SaveChat, SaveResult,
    VersionedChat, chat_conformance,
};
use ui_message_stream::chat::{Chat, ChatError, ChatServer, Turn};
use ui_message_stream::id::ChatId;
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, BoxFuture, ChatRequest};

#[tokio::test]
async fn the_in_memory_store_of_chats_passes_the_conformance_suite() {
    let cases = chat_conformance::check(async || InMemoryChatStore::new()).await;
    say(&format!("conformance of the store of chats in memory: {cases} cases"));
    assert!(cases >= 30, "{cases} cases");
}

#[tokio::test]
async fn an_evicted_chat_does_not_replace_a_newer_chat_with_the_same_id() {
    let store = InMemoryChatStore::new().with_max_store_chats(1);
    let alice = Principal::new("alice");
    let (first, other) = (Chat::new("chat", alice.clone()), Chat::new("other", alice.clone()));
    save(&store, &first).await;
    let read = store.load(&alice, &first.id).await.unwrap().unwrap();
    save(&store, &other).await;
    save(&store, &first).await;
    let saved = store.save(SaveChat::replacing(&read, &first)).await.unwrap();
    assert_eq!(saved, SaveResult::Conflict);
}

#[tokio::test]
async fn an_expired_chat_no_longer_counts_for_the_limits() {
    let store = InMemoryChatStore::with_test_clock(UnixMillis(1_000));
    let alice = Principal::new("alice");
    let chat = Chat::new("chat", alice.clone());
    let saved = store.save(SaveChat::new(&chat).with_keep_for(Some(Duration::from_millis(500))));
    assert_ne!(saved.await.unwrap(), SaveResult::Conflict);
    store.set_test_time(UnixMillis(1_499));
    assert!(store.load(&alice, &chat.id).await.unwrap().is_some());
    store.set_test_time(UnixMillis(1_500));
    assert!(store.load(&alice, &chat.id).await.unwrap().is_none());
    assert!(format!("{store:?}").contains("chats: 0"), "{store:?}");
}

async fn save(store: &impl ChatStore, chat: &Chat) {
    assert_ne!(store.save(SaveChat::new(chat)).await.unwrap(), SaveResult::Conflict);
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

    fn save<'a>(&'a self, _: SaveChat<'a>) -> BoxFuture<'a, Result<SaveResult, ChatStoreError>> {
        let saved = self.0.fetch_add(1, Ordering::Relaxed);
        let result = if saved > 100_000 { SaveResult::Saved(1) } else { SaveResult::Conflict };
        Box::pin(async move { Ok(result) })
    }

    fn list<'a>(
        &'a self,
        _: &'a Principal,
        _: ListChats<'a>,
    ) -> BoxFuture<'a, Result<ChatPage, ChatStoreError>> {
        Box::pin(async { Ok(ChatPage::default()) })
    }

    fn delete<'a>(
        &'a self,
        _: &'a Principal,
        _: &'a ChatId,
        _: u64,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        Box::pin(async { Ok(false) })
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
