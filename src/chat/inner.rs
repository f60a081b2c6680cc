//! [`Inner`]: the state that all clones of a [`ChatServer`](super::ChatServer) share, and the update
//! of a stored conversation.

use std::sync::Arc;

use super::agent::ChatAgent;
use super::client::ClientSettings;
use super::store::{ChatStore, ChatStoreError, VersionedChat};
use super::turn::live::LiveRuns;
use super::{Chat, ChatError, HistoryImport, PostedHistory};
use crate::approval::{Approvals, Principal};
use crate::id::{ApprovalId, ChatId, MessageId};
use crate::limits::ChatLimits;

/// The agent, the services and the registered runs of a server of conversations.
pub(super) struct Inner {
    pub(super) agent: Arc<dyn ChatAgent>,
    pub(super) approvals: Approvals,
    pub(super) store: Arc<dyn ChatStore>,
    /// Whether `store` is the one that the server has created.
    pub(super) is_default_store: bool,
    pub(super) limits: ChatLimits,
    pub(super) live: LiveRuns,
    pub(super) posted_history: PostedHistory,
    pub(super) history_import: HistoryImport,
    pub(super) clients: ClientSettings,
}

impl Inner {
    /// Loads the conversation with this id of this owner.
    ///
    /// # Errors
    /// [`ChatStoreError`], also if the store returns the conversation of another owner. It must not
    /// be disclosed, and a save could never succeed.
    pub(super) async fn load(
        &self,
        owner: &Principal,
        id: &ChatId,
    ) -> Result<Option<VersionedChat>, ChatStoreError> {
        let stored = self.store.load(owner, id).await?;
        match &stored {
            Some(stored) if stored.chat.owner != *owner => {
                Err(ChatStoreError::new("the store returned the chat of another owner"))
            }
            _ => Ok(stored),
        }
    }

    /// Changes this copy of a conversation so that it shows approval requests as closed that were
    /// closed without a decision. The stored conversation shows them as closed only after the next
    /// turn.
    pub(super) async fn show_closed_requests(&self, chat: &mut Chat) {
        let open = chat.open_approvals();
        let ids: Vec<ApprovalId> =
            open.iter().filter_map(|open| open.approval_id.clone()).collect();
        if ids.is_empty() {
            return;
        }
        let approvals = self.approvals.for_chat(&chat.owner, &chat.id);
        let closed = approvals.closed_requests(&ids).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "a chat is shown without the state of its approval requests");
            Vec::new()
        });
        for request in closed {
            let id = Some(&request.approval_id);
            let call = open.iter().find(|open| open.approval_id.as_ref() == id);
            let result = call.map(|call| call.with_outcome(request.outcome));
            if let Some(result) = result {
                chat.record_result(&result, request.descriptor.as_ref());
            }
        }
    }

    /// Removes the pending response with this id from the conversation, if there is one. Does
    /// nothing if `loaded` holds a message with this id.
    pub(super) async fn cancel_response(
        &self,
        loaded: &Chat,
        id: &MessageId,
    ) -> Result<(), ChatError> {
        if loaded.message(id).is_some() {
            return Ok(());
        }
        self.change(loaded, |chat| chat.cancel_response(id)).await.map(drop)
    }

    /// Applies a change to the stored conversation, and again to its new version when another
    /// writer saves it first. If the store no longer holds the conversation, the change is applied
    /// to `loaded`. Returns the changed conversation and the last result of `change`.
    ///
    /// # Errors
    /// [`ChatError::Store`].
    pub(super) async fn change<T>(
        &self,
        loaded: &Chat,
        change: impl Fn(&mut Chat) -> T,
    ) -> Result<(Chat, T), ChatError> {
        for _ in 0..MAX_SAVE_ATTEMPTS {
            let (mut chat, revision) = match self.load(&loaded.owner, &loaded.id).await? {
                Some(VersionedChat { chat, revision }) => (chat, Some(revision)),
                None => (loaded.clone(), None),
            };
            let result = change(&mut chat);
            // A decision alone does not create a removed conversation again.
            if revision.is_none() && chat.messages.is_empty() {
                return Ok((chat, result));
            }
            if self.store.save(&chat, revision).await? {
                return Ok((chat, result));
            }
        }
        Err(too_many_conflicts())
    }
}

pub(super) fn too_many_conflicts() -> ChatError {
    ChatStoreError::new("the chat changes faster than it can be read").into()
}

/// The maximum number of attempts to save one change. An attempt fails only if another writer has
/// saved the conversation first, so that this many fail only if the store never accepts a save.
pub(super) const MAX_SAVE_ATTEMPTS: usize = 1000;
