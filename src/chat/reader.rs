//! [`Reader`]: whoever reads the response of a run, which goes on without them.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::run::Event;

/// Who reads a run, as long as they do.
pub(super) struct Reader {
    events: mpsc::Sender<Event>,
    /// Room for one more word, kept for the last.
    last: mpsc::OwnedPermit<Event>,
    /// Comes when they ask for the first event, and when they are gone.
    began: Option<oneshot::Receiver<()>>,
}

impl Reader {
    pub(super) fn new() -> (Option<Self>, Shown) {
        let (events, received) = mpsc::channel(EVENTS_AHEAD + 1);
        let last = events.clone().try_reserve_owned();
        let (begin, began) = oneshot::channel();
        let reader = last.ok().map(|last| Reader { events, last, began: Some(began) });
        (reader, Shown { events: received, begin: Some(begin) })
    }

    /// Waits until the `start` of the response is on its way: it is sent before anything runs, and the
    /// reader asks for an event when it is. A response that stands still is not waited for.
    pub(super) async fn begins(&mut self) {
        if let Some(began) = self.began.take() {
            let _ = timeout(MOST_OF_A_START, began).await;
        }
    }

    /// Nobody waits for a reader who stands still: the calls of this chat would wait too, and other
    /// pages that show it. The reader is told that this is not all.
    pub(super) async fn hears(self, event: Event) -> Option<Self> {
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

/// A run as its reader sees it.
pub(super) struct Shown {
    events: mpsc::Receiver<Event>,
    begin: Option<oneshot::Sender<()>>,
}

impl Stream for Shown {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.begin = None;
        self.events.poll_recv(cx)
    }
}

/// How far a run may be ahead of its reader, in events.
const EVENTS_AHEAD: usize = 64;

/// How long a run waits for a reader to take an event.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a run waits for its response to be read at all.
const MOST_OF_A_START: Duration = Duration::from_secs(1);
