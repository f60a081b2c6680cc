//! [`Changes`]: wakes those that wait for the next change of a run.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The changes of a run.
#[derive(Debug, Default)]
pub(super) struct Changes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    count: u64,
    /// Those that wait, with their numbers.
    waiting: Vec<(u64, Waker)>,
    /// The number of the next one that waits.
    next: u64,
}

/// Waits for the first change after this value was created.
pub(super) struct Change {
    changes: Arc<Changes>,
    seen: u64,
    /// Its number, while it waits.
    number: Option<u64>,
}

impl Changes {
    pub(super) fn add(&self) {
        let mut state = self.lock();
        state.count += 1;
        state.waiting.drain(..).for_each(|(_, waker)| waker.wake());
    }

    pub(super) fn next(self: &Arc<Self>) -> Change {
        Change { changes: Arc::clone(self), seen: self.lock().count, number: None }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Future for Change {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Change { changes, seen, number } = self.get_mut();
        let mut state = changes.lock();
        if state.count != *seen {
            *number = None;
            return Poll::Ready(());
        }
        match number.and_then(|number| state.waiting.iter_mut().find(|it| it.0 == number)) {
            Some((_, waker)) => waker.clone_from(cx.waker()),
            None => {
                state.next += 1;
                *number = Some(state.next);
                let waiting = (state.next, cx.waker().clone());
                state.waiting.push(waiting);
            }
        }
        Poll::Pending
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.changes.lock().waiting.retain(|it| it.0 != number);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_change_wakes_those_that_wait_and_no_other_one_is_kept() {
        let changes = Arc::<Changes>::default();
        let (mut first, mut dropped) = (changes.next(), changes.next());
        assert!((&mut first).now_or_never().is_none() && (&mut dropped).now_or_never().is_none());
        assert!((&mut first).now_or_never().is_none());
        assert_eq!(changes.lock().waiting.len(), 2);
        drop(dropped);
        assert_eq!(changes.lock().waiting.len(), 1);
        changes.add();
        assert!(changes.lock().waiting.is_empty());
        assert!(first.now_or_never().is_some());
        assert!(changes.next().now_or_never().is_none());
    }
}
