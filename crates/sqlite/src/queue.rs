//! [`Queue`]: jobs for threads that own connections, one job at a time each.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::error::{DbResult, SqliteError};

/// Bounded queues of jobs, one for each thread. The threads end when this is dropped and the queues
/// are empty.
#[derive(Debug)]
pub(crate) struct Queue<C> {
    workers: Vec<Worker<C>>,
    /// How long a job may wait for its turn.
    patience: Duration,
}

#[derive(Debug)]
struct Worker<C> {
    jobs: mpsc::Sender<Job<C>>,
    /// The number of jobs that wait or run.
    load: Arc<AtomicUsize>,
}

type Job<C> = Box<dyn FnOnce(&mut C) + Send>;

impl<C: Send + 'static> Queue<C> {
    /// Starts a thread for each of these, which owns it.
    pub(crate) fn start(name: &str, owned: Vec<C>, patience: Duration) -> io::Result<Self> {
        let workers = owned.into_iter().map(|owned| Worker::start(name, owned));
        let patience = patience.max(MIN_PATIENCE);
        Ok(Queue { workers: workers.collect::<io::Result<_>>()?, patience })
    }

    /// Runs a job on a thread and returns its result.
    ///
    /// If the future is dropped, the job runs as a whole, or not at all.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut C) -> DbResult<T> + Send + 'static,
    ) -> Result<T, SqliteError> {
        let (reply, result) = oneshot::channel();
        let asked_at = Instant::now();
        let patience = self.patience;
        let worker = self.idlest();
        let job = worker.counted(move |owned: &mut C| {
            if reply.is_closed() {
                return;
            }
            // The jobs before this one may have waited for the disk. No lock makes a reader wait.
            let result = if asked_at.elapsed() > patience {
                Err(SqliteError::Timeout(patience))
            } else {
                job(owned).map_err(|failure| failure.0)
            };
            let _ = reply.send(result);
        });
        worker.jobs.send(job).await.map_err(|_| SqliteError::Panicked)?;
        result.await.map_err(|_| SqliteError::Panicked)?
    }

    /// Returns the first of the threads that have the fewest jobs. Its connection has the newest
    /// pages in memory.
    fn idlest(&self) -> &Worker<C> {
        let load = |worker: &&Worker<C>| worker.load.load(Ordering::Relaxed);
        self.workers.iter().min_by_key(load).expect("a queue has a thread")
    }
}

impl<C: Send + 'static> Worker<C> {
    fn start(name: &str, mut owned: C) -> io::Result<Self> {
        let (jobs, mut waiting) = mpsc::channel::<Job<C>>(MAX_WAITING);
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Some(job) = waiting.blocking_recv() {
                // The caller gets an error, and a transaction was rolled back.
                let _ = catch_unwind(AssertUnwindSafe(|| job(&mut owned)));
            }
        })?;
        Ok(Worker { jobs, load: Arc::default() })
    }

    /// Counts a job until it has run or was dropped.
    fn counted(&self, job: impl FnOnce(&mut C) + Send + 'static) -> Job<C> {
        let counted = Counted::new(&self.load);
        Box::new(move |owned| {
            job(owned);
            drop(counted);
        })
    }
}

/// A job that counts.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(load: &Arc<AtomicUsize>) -> Self {
        load.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(load))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The time that a job may always wait for its turn. A thread that is busy for so long is no sign of a
/// locked file.
pub(crate) const MIN_PATIENCE: Duration = Duration::from_secs(1);

/// The maximum number of jobs that wait for a thread. Each holds what it writes.
const MAX_WAITING: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_job_that_has_waited_for_too_long_does_not_run() {
        for (waited, is_run) in [(0, true), (1, false)] {
            let (jobs, mut waiting) = mpsc::channel::<Job<u32>>(1);
            let workers = vec![Worker { jobs, load: Arc::default() }];
            let queue = Queue { workers, patience: MIN_PATIENCE };
            let mut runs = 0;
            let hang = async {
                let job = waiting.recv().await.unwrap();
                tokio::time::advance(MIN_PATIENCE + Duration::from_millis(waited)).await;
                job(&mut runs);
            };
            let add = |runs: &mut u32| {
                *runs += 1;
                Ok(())
            };
            match tokio::join!(queue.run(add), hang).0 {
                Ok(()) => assert!(is_run),
                Err(error) => {
                    assert!(matches!(error, SqliteError::Timeout(MIN_PATIENCE)) && !is_run)
                }
            }
            assert_eq!(runs, u32::from(is_run));
        }
    }
}
