//! [`Queue`]: jobs for threads that own connections, one job at a time each.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::error::{DbResult, SqliteError};

/// A bounded queue of jobs. The threads end when the queue is dropped and empty.
#[derive(Debug)]
pub(crate) struct Queue<C> {
    jobs: mpsc::Sender<Job<C>>,
    /// How long a job may wait for its turn.
    patience: Duration,
}

type Job<C> = Box<dyn FnOnce(&mut C) + Send>;

impl<C: Send + 'static> Queue<C> {
    /// Starts a thread for each of these, which owns it.
    pub(crate) fn start(name: &str, owned: Vec<C>, patience: Duration) -> io::Result<Self> {
        let (jobs, waiting) = mpsc::channel(MAX_WAITING);
        let waiting = Arc::new(Mutex::new(waiting));
        for mut owned in owned {
            let waiting: Arc<Mutex<mpsc::Receiver<Job<C>>>> = Arc::clone(&waiting);
            thread::Builder::new().name(name.to_owned()).spawn(move || {
                loop {
                    // The next thread waits for the lock instead of the job.
                    let next =
                        waiting.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
                    match next {
                        Some(job) => job(&mut owned),
                        None => return,
                    }
                }
            })?;
        }
        Ok(Queue { jobs, patience })
    }

    /// Runs a job on a thread and returns its result.
    ///
    /// If the future is dropped, the job runs as a whole, or not at all.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut C) -> DbResult<T> + Send + 'static,
    ) -> Result<T, SqliteError> {
        let (reply, result) = oneshot::channel();
        let (asked_at, patience) = (Instant::now(), self.patience);
        let job = move |owned: &mut C| {
            if reply.is_closed() {
                return;
            }
            // Each of the jobs before this one may have waited for the lock of another process.
            let result = match asked_at.elapsed() > patience {
                true => Err(SqliteError::Busy),
                false => job(owned).map_err(|failure| failure.0),
            };
            let _ = reply.send(result);
        };
        self.jobs.send(Box::new(job)).await.map_err(|_| SqliteError::ThreadEnded)?;
        result.await.map_err(|_| SqliteError::ThreadEnded)?
    }

    /// Runs a job some time, unless too many others wait.
    pub(crate) fn try_start(&self, job: impl FnOnce(&mut C) + Send + 'static) {
        let _ = self.jobs.try_send(Box::new(job));
    }
}

/// The maximum number of waiting jobs. Each holds what it writes.
const MAX_WAITING: usize = 64;
