//! [`Sink`]: the sink of the host, what is being delivered to it, and what it has taken.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use super::conversation::Messages;
use super::message_sink::MessageSink;
use super::shutdown::{Counted, Shutdown};
use super::store::{Epoch, LogKey};
use ui_message_stream::message::UiMessage;

/// The sink of the host, and what is being delivered. What is undelivered is in the store.
pub(super) struct Sink {
    pub(super) sink: Arc<dyn MessageSink>,
    hint: Notify,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Lets a shutdown wait until the last hint was followed.
    hinted: Option<Counted>,
    /// The chats that are being delivered, and whether again after a failure.
    under_way: HashMap<LogKey, bool>,
    /// The last deliveries of this server. They may be forgotten.
    last: HashMap<LogKey, Last>,
}

/// What is known of the last delivery of a chat.
enum Last {
    Failed,
    Taken(Taken),
}

/// The messages that the sink has taken. They are only compared.
struct Taken(Epoch, Vec<Weak<UiMessage>>);

/// A chat that is being delivered, until this value is dropped.
pub(super) struct Delivering {
    pub(super) sink: Arc<Sink>,
    pub(super) key: LogKey,
    /// The sink has these, if nothing was delivered since.
    taken: Option<Taken>,
    /// `None` after a deletion.
    last: Option<Last>,
}

impl Sink {
    pub(super) fn new(sink: Arc<dyn MessageSink>) -> Self {
        Sink { sink, hint: Notify::new(), state: Mutex::default() }
    }

    /// Returns the same sink, to which nothing was delivered.
    pub(super) fn anew(&self) -> Self {
        Self::new(Arc::clone(&self.sink))
    }

    /// Lets somebody look for what is undelivered.
    pub(super) fn give_hint(&self, shutdown: &Shutdown) {
        self.state().hinted = shutdown.count_delivery();
        self.hint.notify_one();
    }

    /// Waits for a hint.
    pub(super) async fn hint(&self) -> Option<Counted> {
        self.hint.notified().await;
        self.state().hinted.take()
    }

    /// Begins to deliver a chat. Returns `None` if it is being delivered. A chat whose last delivery has failed
    /// waits also for others like it: they do not delay all chats.
    pub(super) fn begin(self: &Arc<Self>, key: LogKey) -> Option<Delivering> {
        let mut state = self.state();
        let is_again = matches!(state.last.get(&key), Some(Last::Failed));
        let again = state.under_way.values().filter(|is_again| **is_again).count();
        if state.under_way.contains_key(&key) || (is_again && again >= AGAIN_AT_ONCE) {
            return None;
        }
        state.under_way.insert(key.clone(), is_again);
        let taken = match state.last.remove(&key) {
            Some(Last::Taken(taken)) => Some(taken),
            _ => None,
        };
        Some(Delivering { sink: Arc::clone(self), key, taken, last: Some(Last::Failed) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Delivering {
    /// Returns how many of the first messages the sink has. After that it is not known what the sink has, until
    /// this delivery [has ended](Self::end).
    pub(super) fn take_prefix(&mut self, epoch: Epoch, messages: &Messages) -> usize {
        self.taken.take().map_or(0, |taken| taken.prefix_of(epoch, messages))
    }

    /// Notes that the sink has the newest messages of the chat, or its deletion.
    pub(super) fn end(&mut self, epoch: Epoch, messages: Option<&Messages>) {
        self.last = messages.map(|messages| Last::Taken(Taken::of(epoch, messages)));
    }
}

impl Drop for Delivering {
    fn drop(&mut self) {
        let mut state = self.sink.state();
        state.under_way.remove(&self.key);
        if state.last.len() >= MAX_LAST {
            // Their next deliveries begin with the first message.
            state.last.clear();
        }
        if let Some(last) = self.last.take() {
            state.last.insert(self.key.clone(), last);
        }
    }
}

impl Taken {
    fn of(epoch: Epoch, messages: &Messages) -> Self {
        let shared = (0..messages.len()).filter_map(|at| messages.shared(at));
        Taken(epoch, shared.map(Arc::downgrade).collect())
    }

    /// Returns how many of the first messages are the same.
    fn prefix_of(&self, epoch: Epoch, messages: &Messages) -> usize {
        let same = self.1.iter().enumerate().take_while(|(at, taken)| {
            messages.shared(*at).is_some_and(|it| std::ptr::eq(Arc::as_ptr(it), taken.as_ptr()))
        });
        if self.0 == epoch { same.count() } else { 0 }
    }
}

/// How many chats whose last delivery has failed are delivered at once.
const AGAIN_AT_ONCE: usize = 4;

/// Of how many chats the last delivery is known.
const MAX_LAST: usize = 1024;
