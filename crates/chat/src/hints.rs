//! [`Hints`]: tells the turns of this process that a conversation has changed.
//!
//! A hint may be missed. Each turn also looks at the stores from time to time.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use futures_util::task::AtomicWaker;

use ui_message_stream::approval::Principal;
use ui_message_stream::id::ChatId;

type Key = (Principal, ChatId);

/// The conversations in which turns of this process are active.
#[derive(Debug, Clone, Default)]
pub(super) struct Hints(Arc<Mutex<HashMap<Key, Vec<Arc<Hint>>>>>);

/// The hints about one conversation, for one turn.
#[derive(Debug)]
pub(super) struct ChatHints {
    hints: Hints,
    key: Key,
    hint: Arc<Hint>,
}

/// Whether a turn has to look at the conversation.
#[derive(Debug, Default)]
struct Hint {
    has_changed: AtomicBool,
    waker: AtomicWaker,
}

impl Hints {
    pub(super) fn subscribe(&self, owner: &Principal, chat: &ChatId) -> ChatHints {
        let key = (owner.clone(), chat.clone());
        let hint = Arc::<Hint>::default();
        self.lock().entry(key.clone()).or_default().push(Arc::clone(&hint));
        ChatHints { hints: self.clone(), key, hint }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Vec<Arc<Hint>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChatHints {
    /// Waits until another turn has changed the conversation.
    pub(super) fn changed(&self) -> impl Future<Output = ()> + Send + use<> {
        let hint = Arc::clone(&self.hint);
        poll_fn(move |cx| {
            hint.waker.register(cx.waker());
            if hint.has_changed.swap(false, Ordering::AcqRel) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
    }

    /// Tells the other turns that this one has changed the conversation.
    pub(super) fn notify_others(&self) {
        let chats = self.hints.lock();
        let others = chats.get(&self.key).into_iter().flatten();
        for other in others.filter(|other| !Arc::ptr_eq(other, &self.hint)) {
            other.has_changed.store(true, Ordering::Release);
            other.waker.wake();
        }
    }
}

impl Drop for ChatHints {
    fn drop(&mut self) {
        let mut chats = self.hints.lock();
        if let Some(hints) = chats.get_mut(&self.key) {
            hints.retain(|other| !Arc::ptr_eq(other, &self.hint));
            if hints.is_empty() {
                chats.remove(&self.key);
            }
        }
    }
}
