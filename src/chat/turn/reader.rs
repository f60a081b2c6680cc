//! [`Reader`]: the sender of a run's events to its response. The run continues without it if the
//! client disconnects.

use std::time::Duration;

use futures_core::Stream;
use futures_util::stream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::chat::agent::Event;

/// Sends the events of a run to its response.
pub(in crate::chat) struct Reader {
    events: mpsc::Sender<Event>,
    /// The capacity for one more event, reserved for the last one.
    last: mpsc::OwnedPermit<Event>,
    /// Resolves when the response is polled for the first event, and when the response is dropped.
    began: Option<oneshot::Receiver<()>>,
}

impl Reader {
    /// Returns the reader, and the events of the run as the stream from which its response is made.
    pub(in crate::chat) fn new() -> (Option<Self>, impl Stream<Item = Event> + use<>) {
        let (events, mut received) = mpsc::channel(EVENTS_AHEAD + 1);
        let last = events.clone().try_reserve_owned();
        let (begin, began) = oneshot::channel();
        let reader = last.ok().map(|last| Reader { events, last, began: Some(began) });
        let mut begin = Some(begin);
        let shown = stream::poll_fn(move |cx| {
            drop(begin.take());
            received.poll_recv(cx)
        });
        (reader, shown)
    }

    /// Waits until the response has sent `start`, which is sent before the run does anything. The
    /// response is polled for its first event when that has happened. Waits at most
    /// [`MOST_OF_A_START`].
    pub(in crate::chat) async fn begins(&mut self) {
        if let Some(began) = self.began.take() {
            let _ = timeout(MOST_OF_A_START, began).await;
        }
    }

    /// Sends an event. Returns `None` if the response was dropped, or if it did not accept the
    /// event within [`PATIENCE`].
    ///
    /// A run does not wait longer for a slow reader, because the calls of this conversation would
    /// wait too, and so would the other pages that show it. A slow response gets an error as its
    /// last event, so that the client knows that the response is incomplete.
    pub(in crate::chat) async fn hears(self, event: Event) -> Option<Self> {
        match timeout(PATIENCE, self.events.send(event)).await {
            Ok(Ok(())) => Some(self),
            Ok(Err(_)) => None,
            Err(_) => {
                self.last.send(Err("the client does not read".into()));
                None
            }
        }
    }
}

/// The maximum number of events that the reader has not received yet.
const EVENTS_AHEAD: usize = 64;

/// The maximum time that a run waits for its response to accept an event.
const PATIENCE: Duration = Duration::from_secs(30);

/// The maximum time that a run waits for its response to be polled for the first event.
const MOST_OF_A_START: Duration = Duration::from_secs(1);
