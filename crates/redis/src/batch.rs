//! [`Batch`]: steps that can wait, which are most steps: those of several runs are sent in one call.

use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::task::yield_now;

use crate::RedisStore;
use crate::error::RedisStoreError;
use crate::rows::{Answer, Calls, MAX_STEPS};
use crate::scripts::Arguments;

/// Steps that wait for the next call.
#[derive(Default)]
pub(crate) struct Batch(Mutex<Vec<Waiting>>);

struct Waiting {
    arguments: Arguments,
    reply: oneshot::Sender<Result<Answer, RedisStoreError>>,
}

impl Batch {
    fn take(&self) -> Vec<Waiting> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that makes the next call. If it is dropped before, with its runtime, the steps fail.
struct NextCall(Option<RedisStore>);

impl Drop for NextCall {
    fn drop(&mut self) {
        if let Some(store) = &self.0 {
            store.inner.batch.take();
        }
    }
}

impl RedisStore {
    /// Runs a step in a call with the others that are ready.
    pub(crate) async fn run_with_others(
        &self,
        arguments: Arguments,
    ) -> Result<Answer, RedisStoreError> {
        let (reply, received) = oneshot::channel();
        let is_first = {
            let mut waiting = self.inner.batch.lock();
            waiting.push(Waiting { arguments, reply });
            waiting.len() == 1
        };
        if is_first {
            // A task of its own: this run may be dropped, and the others not.
            let mut next = NextCall(Some(self.clone()));
            tokio::spawn(async move {
                // The runs that are woken at the same tick are in the queue before it.
                yield_now().await;
                if let Some(store) = next.0.take() {
                    store.run_waiting().await;
                }
            });
        }
        let dropped = || RedisStoreError::Redis("the runtime of the call has ended".into());
        received.await.unwrap_or_else(|_| Err(dropped()))
    }

    async fn run_waiting(&self) {
        let mut waiting = self.inner.batch.take().into_iter();
        let mut calls = Vec::new();
        while waiting.len() > 0 {
            let call = waiting.by_ref().take(MAX_STEPS);
            let (arguments, replies): (Vec<_>, Vec<_>) =
                call.map(|waiting| (waiting.arguments, waiting.reply)).unzip();
            calls.push(async move {
                let mut answers = self.call(Calls::Batch, arguments).await.map(Vec::into_iter);
                for reply in replies {
                    let missing = || Err(RedisStoreError::Unreadable("reply"));
                    // The run may have been dropped.
                    let _ = reply.send(match &mut answers {
                        Ok(answers) => answers.next().unwrap_or_else(missing),
                        Err(error) => Err(error.of_another()),
                    });
                }
            });
        }
        join_all(calls).await;
    }
}
