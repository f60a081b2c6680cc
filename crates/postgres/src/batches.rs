//! [`Batches`]: steps that are ready at the same moment are sent to Postgres together.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::yield_now;
use tokio::time::Instant;
use ui_message_stream_chat::store::rows::{Read, Reply, Step, Write};

use crate::error::PostgresError;
use crate::{OPERATION_TIMEOUT, PostgresStore, until_time};

/// Steps that wait for a call.
pub(crate) struct Batches {
    waiting: Mutex<VecDeque<Waiting>>,
    /// The calls that may begin.
    calls: Arc<Semaphore>,
}

struct Waiting {
    step: Arc<Step>,
    bytes: usize,
    reply: oneshot::Sender<Result<Option<Reply>, PostgresError>>,
}

impl Default for Batches {
    fn default() -> Self {
        Batches { waiting: Mutex::default(), calls: Arc::new(Semaphore::new(MAX_CALLS)) }
    }
}

impl Batches {
    /// Returns those with which a step may be sent, and the number of bytes that are sent for it, or at most received.
    fn of<'s>(store: &'s PostgresStore, step: &Step) -> Option<(&'s Arc<Batches>, usize)> {
        let item_bytes = |write: &Write| match write {
            Write::Push { items, .. } => items.iter().map(|item| item.bytes.len()).sum(),
            _ => 0,
        };
        if !step.writes.is_empty() {
            // What is left of a deletion is deleted after the call.
            let has_deletion = step.writes.iter().any(|it| matches!(it, Write::Delete(_)));
            let bytes = step.writes.iter().map(item_bytes).sum();
            return (step.can_wait && !has_deletion).then_some((&store.inner.appends, bytes));
        }
        let max_bytes = |read: &Read| match read {
            Read::Items { max_bytes, .. } => *max_bytes,
            _ => 0,
        };
        let bytes = step.reads.iter().map(max_bytes).fold(0, usize::saturating_add);
        // A call with many long pages would keep the others waiting.
        (bytes <= MAX_BYTES / MAX_STEPS).then_some((&store.inner.reads, bytes))
    }

    /// Adds a step. Returns a permit to make calls if there are not enough that do.
    fn add(&self, waiting: Waiting) -> Option<OwnedSemaphorePermit> {
        let mut all = self.lock();
        all.push_back(waiting);
        Arc::clone(&self.calls).try_acquire_owned().ok()
    }

    /// Takes the next steps. If there are none, it gives back the permit, so that the next step gets it.
    fn take(&self, call: OwnedSemaphorePermit) -> Option<(OwnedSemaphorePermit, Vec<Waiting>)> {
        let mut all = self.lock();
        let mut batch: Vec<Waiting> = Vec::new();
        let mut bytes = 0;
        while let Some(next) = all.pop_front() {
            bytes = usize::saturating_add(bytes, next.bytes);
            let has_room = batch.len() < MAX_STEPS && bytes <= MAX_BYTES;
            if !(has_room || batch.is_empty()) {
                all.push_front(next);
                break;
            }
            // The caller of another one has waited for too long, or was dropped.
            if !next.reply.is_closed() {
                batch.push(next);
            }
        }
        if batch.is_empty() {
            // With the lock: a step that comes later finds the permit.
            drop(call);
            return None;
        }
        Some((call, batch))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PostgresStore {
    /// Runs a step together with those that are ready at the same moment or that wait. Returns `None` if it has to be run
    /// alone: nothing was changed for it.
    pub(crate) async fn run_in_batch(
        &self,
        step: &Arc<Step>,
    ) -> Result<Option<Reply>, PostgresError> {
        let Some((batches, bytes)) = Batches::of(self, step) else { return Ok(None) };
        let (sender, reply) = oneshot::channel();
        if let Some(call) = batches.add(Waiting { step: step.clone(), bytes, reply: sender }) {
            tokio::spawn(self.clone().make_calls(batches.clone(), call));
        }
        let until = Instant::now() + OPERATION_TIMEOUT;
        let reply = until_time(until, async { Ok(reply.await) }).await?;
        // The runtime of the call has ended.
        reply.map_err(|error| PostgresError::Connection(Arc::new(error)))?
    }

    /// Runs the steps that wait, until there are none. It is a task of its own, because the caller that has begun it may
    /// be dropped.
    async fn make_calls(self, batches: Arc<Batches>, mut call: OwnedSemaphorePermit) {
        loop {
            // The tasks that are ready now add their steps first.
            yield_now().await;
            let Some((kept, batch)) = batches.take(call) else { return };
            call = kept;
            let (steps, replies): (Vec<_>, Vec<_>) =
                batch.into_iter().map(|waiting| (waiting.step, waiting.reply)).unzip();
            let steps: Vec<&Step> = steps.iter().map(|step| &**step).collect();
            let waits_for_locks = false;
            match self.call(&steps, waits_for_locks).await {
                Ok(results) => {
                    for (reply, result) in replies.into_iter().zip(results) {
                        let _ = reply.send(Ok(result));
                    }
                }
                Err(error) => {
                    let retries = is_of_one_step(&error) && replies.len() > 1;
                    for reply in replies {
                        let _ = reply.send(if retries { Ok(None) } else { Err(error.clone()) });
                    }
                }
            }
        }
    }
}

/// Whether what one step stores may be the cause. Otherwise the state of Postgres is, which many more calls would make
/// worse.
fn is_of_one_step(error: &PostgresError) -> bool {
    let PostgresError::Refused { sqlstate } = error else { return false };
    // The classes of data and of constraints.
    sqlstate.starts_with("22") || sqlstate.starts_with("23")
}

/// How many calls of one kind are made at the same time.
const MAX_CALLS: usize = 2;

/// How many steps a call has at most.
pub(crate) const MAX_STEPS: usize = 64;

/// How many bytes the steps of a call have at most, if it has several.
const MAX_BYTES: usize = 1 << 20;
