//! [`Sink`]: the sink of the host, what waits to be delivered to it, and what it has taken.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use super::conversation::Messages;
use super::message_sink::MessageSink;
use super::shutdown::Counted;
use super::store::{Epoch, LogKey, Undelivered};
use ui_message_stream::message::UiMessage;

/// The sink of the host, and a queue of chats. The store has what does not fit into the queue.
pub(super) struct Sink {
    pub(super) host: Arc<dyn MessageSink>,
    state: Mutex<State>,
    has_added: Notify,
}

#[derive(Default)]
struct State {
    /// What is to be delivered of the chats in the queue, and of chats that are being delivered.
    next: HashMap<LogKey, Waiting>,
    queue: VecDeque<LogKey>,
    /// The chats that are being delivered, with what was known when that began.
    under_way: HashMap<LogKey, Undelivered>,
    /// The chats whose last delivery took too long.
    slow: HashSet<LogKey>,
    /// The messages of chats that the sink has taken last from this server.
    taken: HashMap<LogKey, Taken>,
    is_closed: bool,
}

struct Waiting {
    next: Undelivered,
    counted: Counted,
}

/// The messages that the sink has taken. They are only compared.
struct Taken(Epoch, Vec<Weak<UiMessage>>);

/// A chat that is being delivered, until this value is dropped.
pub(super) struct Delivering {
    pub(super) sink: Arc<Sink>,
    pub(super) next: Undelivered,
    _counted: Counted,
}

impl Sink {
    pub(super) fn new(host: Arc<dyn MessageSink>) -> Self {
        Sink { host, state: Mutex::default(), has_added: Notify::new() }
    }

    /// Returns the same sink, to which nothing was delivered.
    pub(super) fn anew(&self) -> Self {
        Self::new(Arc::clone(&self.host))
    }

    /// Adds a chat to the queue, unless the queue is full, or half full for a chat whose last delivery took too
    /// long. A chat that is being delivered follows then.
    pub(super) fn add(&self, next: Undelivered, counted: Counted) {
        let mut state = self.state();
        let key = next.key.clone();
        let max = if state.slow.contains(&key) { MAX_WAITING / 2 } else { MAX_WAITING };
        let under_way = state.under_way.get(&key);
        if state.is_closed || under_way.is_some_and(|under_way| *under_way >= next) {
            return;
        }
        let is_under_way = under_way.is_some();
        if let Some(waiting) = state.next.get_mut(&key) {
            waiting.next = next;
        } else if state.next.len() < max {
            state.next.insert(key.clone(), Waiting { next, counted });
            if !is_under_way {
                state.queue.push_back(key);
                self.has_added.notify_one();
            }
        }
    }

    /// Returns how many chats the queue has room for.
    pub(super) fn room(&self) -> usize {
        MAX_WAITING.saturating_sub(self.state().next.len())
    }

    /// Begins to deliver the first chat in the queue, when there is one. Chats whose last delivery took too long
    /// wait while some others like them are being delivered.
    pub(super) async fn next(self: &Arc<Self>) -> Delivering {
        loop {
            if let Some(delivering) = self.begin() {
                return delivering;
            }
            self.has_added.notified().await;
        }
    }

    fn begin(self: &Arc<Self>) -> Option<Delivering> {
        let mut state = self.state();
        let State { next, queue, under_way, slow, .. } = &mut *state;
        let slow_ones = under_way.keys().filter(|key| slow.contains(*key));
        let has_room = slow_ones.count() < SLOW_AT_ONCE;
        let at = queue.iter().position(|key| has_room || !slow.contains(key))?;
        let key = queue.remove(at)?;
        let Waiting { next, counted } = next.remove(&key)?;
        under_way.insert(key, next.clone());
        if !queue.is_empty() {
            self.has_added.notify_one();
        }
        Some(Delivering { sink: Arc::clone(self), next, _counted: counted })
    }

    /// Removes what waits, and adds nothing more.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.queue.clear();
        state.next.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Delivering {
    /// Returns how many of the first messages the sink has taken from this server. After that it is not known
    /// what the sink has, until this delivery was [taken](Self::was_taken).
    pub(super) fn take_prefix(&self, epoch: Epoch, messages: &Messages) -> usize {
        let taken = self.sink.state().taken.remove(&self.next.key);
        taken.map_or(0, |taken| taken.prefix_of(epoch, messages))
    }

    /// Notes that the sink has taken these messages, or a deletion.
    pub(super) fn was_taken(&self, epoch: Epoch, messages: Option<&Messages>) {
        let mut state = self.sink.state();
        state.slow.remove(&self.next.key);
        if state.taken.len() >= MAX_TAKEN {
            // Their next deliveries begin with the first message.
            state.taken.clear();
        }
        if let Some(messages) = messages {
            state.taken.insert(self.next.key.clone(), Taken::of(epoch, messages));
        }
    }

    /// Notes that the delivery took too long.
    pub(super) fn was_slow(&self) {
        let mut state = self.sink.state();
        if state.slow.len() >= MAX_SLOW {
            state.slow.clear();
        }
        state.slow.insert(self.next.key.clone());
    }
}

impl Drop for Delivering {
    fn drop(&mut self) {
        let mut state = self.sink.state();
        let key = &self.next.key;
        state.under_way.remove(key);
        if state.next.contains_key(key) {
            state.queue.push_back(key.clone());
        }
        self.sink.has_added.notify_one();
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
            messages
                .shared(*at)
                .is_some_and(|shared| std::ptr::eq(Arc::as_ptr(shared), taken.as_ptr()))
        });
        if self.0 == epoch { same.count() } else { 0 }
    }
}

/// How many chats wait in memory.
const MAX_WAITING: usize = 1024;

/// How many chats whose last delivery took too long are delivered at once.
const SLOW_AT_ONCE: usize = 4;

/// How many chats are known whose last delivery took too long.
const MAX_SLOW: usize = 1024;

/// Of how many chats the messages are known that the sink has taken.
const MAX_TAKEN: usize = 1024;
