//! [`Batches`]: requests that are ready at the same moment are sent to Postgres together.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::yield_now;
use tokio::time::Instant;
use tokio_postgres::Row;

use super::HEAD_COLUMNS;
use crate::error::PostgresError;
use crate::{OPERATION_TIMEOUT, PostgresStore, number, until_time};

/// A request that can be sent with others of its kind.
pub(crate) trait Batched: Sized + Send + Sync + 'static {
    type Reply: Send;

    /// Returns those of a store that wait.
    fn batches(store: &PostgresStore) -> &Batches<Self>;

    /// The number of bytes that are sent, or at most received.
    fn bytes(&self) -> usize;

    /// Executes some requests in one call. It does not wait for a log that another transaction has locked, so that one log
    /// holds up no other. Returns a result for each request: `None` if it has to be executed alone.
    fn execute(
        store: &PostgresStore,
        requests: &[Self],
    ) -> impl Future<Output = Result<Vec<Executed<Self::Reply>>, PostgresError>> + Send;
}

/// The result of one request: `None` if it has to be executed alone.
pub(super) type Executed<T> = Result<Option<T>, PostgresError>;

/// The requests of one kind that wait for a call.
pub(crate) struct Batches<R: Batched> {
    waiting: Mutex<VecDeque<Waiting<R>>>,
    /// The calls that may begin.
    calls: Arc<Semaphore>,
}

struct Waiting<R: Batched> {
    request: R,
    reply: oneshot::Sender<Executed<R::Reply>>,
}

impl<R: Batched> Default for Batches<R> {
    fn default() -> Self {
        Batches { waiting: Mutex::default(), calls: Arc::new(Semaphore::new(MAX_CALLS)) }
    }
}

impl<R: Batched> Batches<R> {
    /// Adds a request. Returns a permit to make calls if there are not enough that do.
    fn add(&self, waiting: Waiting<R>) -> Option<OwnedSemaphorePermit> {
        let mut all = self.lock();
        all.push_back(waiting);
        Arc::clone(&self.calls).try_acquire_owned().ok()
    }

    /// Takes the next requests. If there are none, it gives back the permit, so that the next request gets it.
    fn take(&self, call: OwnedSemaphorePermit) -> Option<(OwnedSemaphorePermit, Vec<Waiting<R>>)> {
        let mut all = self.lock();
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(next) = all.pop_front() {
            bytes = usize::saturating_add(bytes, next.request.bytes());
            let has_room = batch.len() < MAX_REQUESTS && bytes <= MAX_BYTES;
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
            // With the lock: a request that comes later finds the permit.
            drop(call);
            return None;
        }
        Some((call, batch))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiting<R>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PostgresStore {
    /// Executes a request, together with those that are ready at the same moment or that wait. Returns `None` if it has
    /// to be executed alone: nothing was changed for it.
    pub(super) async fn execute_in_batch<R: Batched>(&self, request: R) -> Executed<R::Reply> {
        let (sender, reply) = oneshot::channel();
        if let Some(call) = R::batches(self).add(Waiting { request, reply: sender }) {
            tokio::spawn(self.clone().make_calls::<R>(call));
        }
        let until = Instant::now() + OPERATION_TIMEOUT;
        let reply = until_time(until, async { Ok(reply.await) }).await?;
        // The runtime of the call has ended.
        reply.map_err(|error| PostgresError::Connection(Arc::new(error)))?
    }

    /// Executes the requests that wait, until there are none. It is a task of its own, because the caller that has begun
    /// it may be dropped.
    async fn make_calls<R: Batched>(self, mut call: OwnedSemaphorePermit) {
        loop {
            // The tasks that are ready now add their requests first.
            yield_now().await;
            let Some((kept, batch)) = R::batches(&self).take(call) else { return };
            call = kept;
            let (requests, replies): (Vec<_>, Vec<_>) =
                batch.into_iter().map(|waiting| (waiting.request, waiting.reply)).unzip();
            match R::execute(&self, &requests).await {
                Ok(results) => {
                    for (reply, result) in replies.into_iter().zip(results) {
                        let _ = reply.send(result);
                    }
                }
                Err(error) => {
                    let retries = is_of_one_request(&error) && replies.len() > 1;
                    for reply in replies {
                        let _ = reply.send(if retries { Ok(None) } else { Err(error.clone()) });
                    }
                }
            }
        }
    }
}

/// Whether what one request stores may be the cause. Otherwise the state of Postgres is, which many more calls would
/// make worse.
fn is_of_one_request(error: &PostgresError) -> bool {
    let PostgresError::Refused { sqlstate } = error else { return false };
    // The classes of data and of constraints.
    sqlstate.starts_with("22") || sqlstate.starts_with("23")
}

/// Returns what each request has found: the rows have the number of their request, from 1, after the head. A row that
/// cannot be read is an error of its request alone.
pub(super) fn in_order<T>(
    rows: &[Row],
    requests: usize,
    found: fn(&Row) -> Result<T, PostgresError>,
) -> Result<Vec<Executed<T>>, PostgresError> {
    let mut all: Vec<_> = (0..requests).map(|_| Ok(None)).collect();
    for row in rows {
        let place = usize::try_from(number(row, HEAD_COLUMNS)?).unwrap_or_default();
        if let Some(one) = place.checked_sub(1).and_then(|place| all.get_mut(place)) {
            *one = found(row).map(Some);
        }
    }
    Ok(all)
}

/// How many calls of one kind are made at the same time.
const MAX_CALLS: usize = 2;

/// How many requests a call has at most. Their hints fit into one notification, which has less than 8000 bytes.
pub(super) const MAX_REQUESTS: usize = 64;

/// How many bytes the requests of a call have at most, if it has several.
pub(super) const MAX_BYTES: usize = 1 << 20;
