//! [`Hints`]: tells the turns of this process that a conversation has changed.
//!
//! A hint may be missed. Each turn also looks at the stores from time to time.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;

use futures_util::task::AtomicWaker;

use super::registry::{Registry, Shared};
use crate::store::LogKey;

/// The conversations in which turns of this process are active.
#[derive(Debug, Clone, Default)]
pub(super) struct Hints(Registry<LogKey, Turns>);

/// The turns of a conversation.
#[derive(Debug, Default)]
struct Turns(Mutex<Vec<Weak<Hint>>>);

/// The hints about one conversation, for one turn.
#[derive(Debug)]
pub(super) struct ChatHints {
    turns: Arc<Shared<LogKey, Turns>>,
    hint: Arc<Hint>,
}

/// Whether a turn has to look at the conversation.
#[derive(Debug, Default)]
struct Hint {
    has_changed: AtomicBool,
    waker: AtomicWaker,
}

impl Hints {
    pub(super) fn subscribe(&self, key: &LogKey) -> ChatHints {
        let turns = self.0.get(key);
        let hint = Arc::<Hint>::default();
        let mut hints = turns.lock();
        hints.retain(|other| other.strong_count() > 0);
        hints.push(Arc::downgrade(&hint));
        drop(hints);
        ChatHints { turns, hint }
    }
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Hint>>> {
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
        let hints = self.turns.lock();
        let others = hints.iter().filter_map(Weak::upgrade);
        for other in others.filter(|other| !Arc::ptr_eq(other, &self.hint)) {
            other.has_changed.store(true, Ordering::Release);
            other.waker.wake();
        }
    }
}
