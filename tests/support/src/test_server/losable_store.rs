//! A store of chats that can lose them.

use std::sync::{Arc, Mutex, PoisonError};

use ui_message_stream::BoxFuture;
use ui_message_stream::approval::Principal;
use ui_message_stream::chat::store::{
    ChatPage, ChatStore, ChatStoreError, InMemoryChatStore, ListChats, SaveChat, SaveResult,
    VersionedChat,
};
use ui_message_stream::id::ChatId;

/// A store in memory that can lose all its chats.
#[derive(Debug, Default)]
pub(super) struct LosableStore(Mutex<Arc<InMemoryChatStore>>);

impl LosableStore {
    /// Loses all chats.
    pub(super) fn lose_chats(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::default();
    }

    fn current(&self) -> Arc<InMemoryChatStore> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ChatStore for LosableStore {
    fn load<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
    ) -> BoxFuture<'a, Result<Option<VersionedChat>, ChatStoreError>> {
        let store = self.current();
        Box::pin(async move { store.load(owner, id).await })
    }

    fn save<'a>(&'a self, save: SaveChat<'a>) -> BoxFuture<'a, Result<SaveResult, ChatStoreError>> {
        let store = self.current();
        Box::pin(async move { store.save(save).await })
    }

    fn list<'a>(
        &'a self,
        owner: &'a Principal,
        list: ListChats<'a>,
    ) -> BoxFuture<'a, Result<ChatPage, ChatStoreError>> {
        let store = self.current();
        Box::pin(async move { store.list(owner, list).await })
    }

    fn delete<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        let store = self.current();
        Box::pin(async move { store.delete(owner, id, revision).await })
    }
}
