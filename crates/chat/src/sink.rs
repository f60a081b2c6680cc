//! [`Sink`]: the sink of the host, what is being delivered to it, and what it has taken.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Semaphore;

use super::conversation::Messages;
use super::message_sink::MessageSink;
use super::store::{Epoch, LogKey, Undelivered};
use ui_message_stream::message::UiMessage;

/// The sink of the host, and what is being delivered.
pub(super) struct Sink {
    pub(super) sink: Arc<dyn MessageSink>,
    /// The chats of which something is being delivered, and what comes after that.
    chats: Mutex<HashMap<LogKey, Option<Undelivered>>>,
    taken: Mutex<HashMap<LogKey, Taken>>,
    pub(super) at_once: Semaphore,
}

/// The messages that the sink has taken last from this server. They are only compared, and may be dropped.
pub(super) struct Taken(Epoch, Vec<Weak<UiMessage>>);

/// A chat of which something is being delivered. Dropped when that is over, also after a panic.
pub(super) struct Delivering {
    pub(super) sink: Arc<Sink>,
    pub(super) key: LogKey,
    is_over: bool,
}

impl Sink {
    pub(super) fn new(sink: Arc<dyn MessageSink>) -> Self {
        Sink {
            sink,
            chats: Mutex::default(),
            taken: Mutex::default(),
            at_once: Semaphore::new(AT_ONCE),
        }
    }

    /// Returns the same sink, to which nothing was delivered.
    pub(super) fn anew(&self) -> Self {
        Self::new(Arc::clone(&self.sink))
    }

    /// Begins to deliver a change. Returns `None` if it follows a delivery of its chat that is under way.
    pub(super) fn begin(self: &Arc<Self>, next: Undelivered) -> Option<Delivering> {
        let key = next.key.clone();
        let is_new = self.chats().insert(key.clone(), Some(next)).is_none();
        is_new.then(|| Delivering { sink: Arc::clone(self), key, is_over: false })
    }

    /// Returns what this server has delivered of a chat. It is not known any more then.
    pub(super) fn take_taken(&self, key: &LogKey) -> Option<Taken> {
        self.taken().remove(key)
    }

    pub(super) fn set_taken(&self, key: LogKey, messages: Taken) {
        let mut taken = self.taken();
        if taken.len() >= MAX_TAKEN {
            // Their next deliveries begin with the first message.
            taken.clear();
        }
        taken.insert(key, messages);
    }

    fn chats(&self) -> MutexGuard<'_, HashMap<LogKey, Option<Undelivered>>> {
        self.chats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<LogKey, Taken>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Delivering {
    /// Returns what is to be delivered next.
    pub(super) fn next(&mut self) -> Option<Undelivered> {
        let mut chats = self.sink.chats();
        let next = chats.get_mut(&self.key).and_then(Option::take);
        if next.is_none() {
            chats.remove(&self.key);
            self.is_over = true;
        }
        next
    }

    /// Adds what has to follow a delivery, unless something else does: that is not older.
    pub(super) fn add(&self, newer: Option<Undelivered>) {
        if let Some(next) = self.sink.chats().get_mut(&self.key)
            && next.is_none()
        {
            *next = newer;
        }
    }
}

impl Drop for Delivering {
    fn drop(&mut self) {
        if !self.is_over {
            self.sink.chats().remove(&self.key);
        }
    }
}

impl Taken {
    pub(super) fn of(epoch: Epoch, messages: &Messages) -> Self {
        let shared = (0..messages.len()).filter_map(|at| messages.shared(at));
        Taken(epoch, shared.map(Arc::downgrade).collect())
    }

    /// Returns how many of the first messages are the same.
    pub(super) fn prefix_of(&self, epoch: Epoch, messages: &Messages) -> usize {
        let same = self.1.iter().enumerate().take_while(|(at, taken)| {
            messages.shared(*at).is_some_and(|it| std::ptr::eq(Arc::as_ptr(it), taken.as_ptr()))
        });
        if self.0 == epoch { same.count() } else { 0 }
    }
}

/// How many chats are delivered at once.
pub(super) const AT_ONCE: usize = 16;

/// Of how many chats the messages are known that the sink has taken.
const MAX_TAKEN: usize = 1024;
