//! [`Owned`]: the conversations of the owner of a case, and the requests that the cases make.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use crate::approval::Principal;
use crate::chat::conversation::Chat;
use crate::chat::store::chat_page::{ChatPage, ChatSummary, ListChats};
use crate::chat::store::chat_store::ChatStore;
use crate::chat::store::conformance_case::{CaseFailure, CaseResult, expect_equal, new_owner};
use crate::chat::store::error::ChatStoreError;
use crate::chat::store::save_chat::{ReloadedChat, SaveChat, SaveResult, VersionedChat};
use crate::json::ExtraFields;
use crate::message::{Part, Role, TextPart, UiMessage};

pub(super) type Case = crate::chat::store::conformance_case::Case<dyn ChatStore>;
pub(super) type Store = Arc<dyn ChatStore>;

impl From<ChatStoreError> for CaseFailure {
    fn from(error: ChatStoreError) -> Self {
        CaseFailure(format!("{error}: {:?}", error.source()))
    }
}

/// The conversations of one owner.
pub(super) struct Owned {
    pub(super) store: Store,
    pub(super) owner: Principal,
}

impl Owned {
    /// Creates an owner without conversations.
    pub(super) fn new(store: &Store) -> Self {
        Self::of(store, new_owner())
    }

    pub(super) fn of(store: &Store, owner: Principal) -> Self {
        Owned { store: Arc::clone(store), owner }
    }

    /// Returns a conversation with this number of messages.
    pub(super) fn chat(&self, id: &str, messages: usize) -> Chat {
        let mut chat = Chat::new(id, self.owner.clone());
        (0..messages).for_each(|at| chat.messages.push(message(at, "first")));
        chat
    }

    /// Inserts a conversation that does not exist.
    pub(super) async fn insert(&self, chat: &Chat) -> Result<VersionedChat, CaseFailure> {
        self.saved(SaveChat::new(chat)).await
    }

    /// Inserts an empty conversation with this id.
    pub(super) async fn insert_empty(&self, id: &str) -> Result<VersionedChat, CaseFailure> {
        self.insert(&self.chat(id, 0)).await
    }

    /// Replaces a conversation.
    pub(super) async fn replace(
        &self,
        loaded: &VersionedChat,
        chat: &Chat,
    ) -> Result<VersionedChat, CaseFailure> {
        self.saved(SaveChat::replacing(loaded, chat)).await
    }

    /// Saves a conversation, which must not conflict.
    pub(super) async fn saved(&self, save: SaveChat<'_>) -> Result<VersionedChat, CaseFailure> {
        match self.store.save(save).await? {
            SaveResult::Saved(revision) => Ok(VersionedChat { chat: save.chat.clone(), revision }),
            SaveResult::Conflict => Err(CaseFailure("the save is a conflict".to_owned())),
            SaveResult::TooManyChats => Err(CaseFailure("the save exceeds no limit".to_owned())),
        }
    }

    pub(super) async fn expect_conflict(&self, save: SaveChat<'_>) -> CaseResult {
        expect_equal("the save", self.store.save(save).await?, SaveResult::Conflict)
    }

    pub(super) async fn load(&self, id: &str) -> Result<Option<VersionedChat>, CaseFailure> {
        Ok(self.store.load(&self.owner, &id.into()).await?)
    }

    pub(super) async fn expect_none(&self, id: &str) -> CaseResult {
        let loaded = self.load(id).await?.map(|loaded| loaded.revision);
        expect_equal("the revision of the loaded chat", loaded, None)
    }

    /// Compares the stored conversation and its revision.
    pub(super) async fn expect_stored(&self, expected: &VersionedChat) -> CaseResult {
        let Some(loaded) = self.load(expected.chat.id.as_str()).await? else {
            return Err(CaseFailure("the chat is not found".to_owned()));
        };
        expect_equal("the revision", loaded.revision, expected.revision)?;
        expect_equal("the messages", &loaded.chat.messages, &expected.chat.messages)?;
        match loaded.chat == expected.chat {
            true => Ok(()),
            false => Err(CaseFailure("the head is not as it was saved".to_owned())),
        }
    }

    pub(super) async fn reload(
        &self,
        id: &str,
        revision: u64,
    ) -> Result<ReloadedChat, CaseFailure> {
        Ok(self.store.reload(&self.owner, &id.into(), revision).await?)
    }

    pub(super) async fn delete(&self, id: &str, revision: u64) -> Result<bool, CaseFailure> {
        Ok(self.store.delete(&self.owner, &id.into(), revision).await?)
    }

    pub(super) async fn page(&self, list: ListChats<'_>) -> Result<ChatPage, CaseFailure> {
        Ok(self.store.list(&self.owner, list).await?)
    }

    /// Returns all conversations, read in pages of this size.
    pub(super) async fn list(&self, limit: usize) -> Result<Vec<ChatSummary>, CaseFailure> {
        let (mut chats, mut after) = (Vec::new(), None);
        loop {
            let page = self.page(ListChats { limit, after: after.as_ref() }).await?;
            if page.chats.len() > limit {
                return Err(CaseFailure(format!("{} chats in a page", page.chats.len())));
            }
            chats.extend(page.chats);
            if chats.len() > 1000 {
                return Err(CaseFailure("the pages have no end".to_owned()));
            }
            after = page.next;
            if after.is_none() {
                return Ok(chats);
            }
        }
    }

    /// Compares the ids of all conversations, the last saved first.
    pub(super) async fn expect_ids(&self, expected: &[&str]) -> CaseResult {
        let chats = self.list(100).await?;
        expect_equal("the list", ids(&chats), expected.to_vec())
    }
}

pub(super) fn ids(chats: &[ChatSummary]) -> Vec<&str> {
    chats.iter().map(|chat| chat.id.as_str()).collect()
}

/// Returns a message whose id has this number.
pub(super) fn message(at: usize, text: &str) -> UiMessage {
    let role = if at.is_multiple_of(2) { Role::User } else { Role::Assistant };
    let text = Part::Text(Box::new(TextPart {
        text: format!("{text} {at}"),
        state: None,
        provider_metadata: None,
        extra: ExtraFields::default(),
    }));
    UiMessage::new(format!("m{at}"), role, vec![text])
}

/// Waits until the clock of the store shows another millisecond.
pub(super) async fn next_millisecond() {
    tokio::time::sleep(Duration::from_millis(3)).await;
}
