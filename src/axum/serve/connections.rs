//! [`Connections`]: the open connections of a server, and which of them can be closed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use tokio::sync::oneshot;

/// The open connections of a server.
pub(super) struct Connections {
    max: usize,
    open: Mutex<Open>,
    /// Ensures that the warning about too many connections is logged once.
    full_warning: Once,
}

#[derive(Default)]
struct Open {
    next_id: u64,
    /// By id, so the oldest connection comes first.
    by_id: BTreeMap<u64, Entry>,
}

struct Entry {
    /// Closes the connection when it is dropped.
    _close: oneshot::Sender<()>,
    /// The current request. `None` between two requests.
    request: Option<Arc<RequestState>>,
}

impl Entry {
    fn has_complete_request(&self) -> bool {
        self.request.as_ref().is_some_and(|request| request.is_complete())
    }
}

/// The state of a request.
#[derive(Debug, Default)]
pub(super) struct RequestState {
    is_complete: AtomicBool,
    has_timed_out: AtomicBool,
}

/// An open connection, until it is dropped.
pub(super) struct Connection {
    id: u64,
    connections: Arc<Connections>,
}

impl Connections {
    pub(super) fn new(max: usize) -> Self {
        Connections { max, open: Mutex::default(), full_warning: Once::new() }
    }

    /// Adds a new connection. Returns it, and a future that completes when it has to be closed.
    ///
    /// Closes the oldest connection without a complete request if there are too many. That can be
    /// the new one.
    pub(super) fn add(self: &Arc<Self>) -> (Arc<Connection>, impl Future<Output = ()> + use<>) {
        let (close, closed) = oneshot::channel();
        let mut open = self.lock();
        let id = open.next_id;
        open.next_id += 1;
        open.by_id.insert(id, Entry { _close: close, request: None });
        if open.by_id.len() > self.max {
            let max = self.max;
            self.full_warning.call_once(|| {
                tracing::warn!(max, "too many connections: the oldest idle ones are closed");
            });
            open.close_oldest();
        }
        let connection = Connection { id, connections: Arc::clone(self) };
        (Arc::new(connection), async { drop(closed.await) })
    }

    /// Closes the oldest connection without a complete request, if there is one.
    pub(super) fn close_oldest(&self) {
        self.lock().close_oldest();
    }

    /// Closes the connections without a request.
    pub(super) fn close_idle(&self) {
        self.lock().by_id.retain(|_, entry| entry.request.is_some());
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn close_oldest(&mut self) {
        let oldest = self.by_id.iter().find(|(_, entry)| !entry.has_complete_request());
        if let Some(id) = oldest.map(|(id, _)| *id) {
            self.by_id.remove(&id);
        }
    }
}

impl Connection {
    /// Sets the current request, or `None` after its response has ended.
    pub(super) fn set_request(&self, request: Option<Arc<RequestState>>) {
        if let Some(entry) = self.connections.lock().by_id.get_mut(&self.id) {
            entry.request = request;
        }
    }
}

impl Drop for Connection {
    /// Removes the connection, which has ended.
    fn drop(&mut self) {
        self.connections.lock().by_id.remove(&self.id);
    }
}

impl RequestState {
    /// Records that the whole request has arrived, or that its response has begun.
    pub(super) fn complete(&self) {
        self.is_complete.store(true, Ordering::Relaxed);
    }

    fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Relaxed)
    }

    /// Records that the body did not arrive in time.
    pub(super) fn time_out(&self) {
        self.has_timed_out.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_timed_out(&self) -> bool {
        self.has_timed_out.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_is_dropped_makes_room() {
        let connections = Arc::new(Connections::new(1));
        let (first, _closed) = connections.add();
        drop(first);
        let (_second, _closed) = connections.add();
        assert_eq!(connections.lock().by_id.len(), 1);
    }
}
