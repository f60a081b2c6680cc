//! The server's own record of what it asked for: only that runs, with the input it asked about,
//! and only once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use ui_message_stream::approval::{DeferredToolResults, OpenCall, ResumePlan};
use ui_message_stream::id::ChatId;

/// The calls of each chat that wait for the person or for the client.
#[derive(Debug, Default)]
pub(crate) struct OpenCalls(Mutex<HashMap<ChatId, Vec<OpenCall>>>);

impl OpenCalls {
    pub(crate) fn add(&self, chat: &ChatId, call: OpenCall) {
        let mut chats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        chats.entry(chat.clone()).or_default().push(call);
    }

    /// What the person decided on the chat's open calls. What has a result, or was written past, is
    /// taken out of the record in the same moment: no second request finds it there.
    pub(crate) fn redeem(&self, chat: &ChatId, plan: ResumePlan) -> DeferredToolResults {
        let mut chats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let open = chats.remove(chat).unwrap_or_default();
        let deferred = plan.settle(&open);
        if !deferred.pending().is_empty() {
            chats.insert(chat.clone(), deferred.pending().to_vec());
        }
        deferred
    }
}
