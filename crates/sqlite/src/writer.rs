//! [`Writer`]: the thread that writes. Operations that wait at the same time share one transaction.
//!
//! Appends of frames are many and small, and no user waits for one of them. So they have a queue of their
//! own, which gathers more of them while other frames arrive. All other operations begin at once.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::clock::Clock;
use crate::error::{DbResult, Failure, SqliteError};
use crate::file::{self, Durability};
use crate::health::FileHealth;
use crate::queue::MIN_PATIENCE;
use crate::state;

/// The queues of the thread that writes. The thread ends when this is dropped and they are empty.
#[derive(Debug)]
pub(crate) struct Writer {
    frames: mpsc::Sender<Box<dyn Job>>,
    others: mpsc::Sender<Box<dyn Job>>,
    /// How long a job may wait for its turn.
    patience: Duration,
}

/// The jobs that wait for the thread.
struct Waiting {
    /// Appends of frames.
    frames: mpsc::Receiver<Box<dyn Job>>,
    /// All other jobs.
    others: mpsc::Receiver<Box<dyn Job>>,
}

/// The connection that writes. There is one, because SQLite lets one connection at a time write
/// anyway, and because a commit makes all other connections read their pages again.
struct WritingConnection {
    connection: Connection,
    /// When a commit of the connection counts as done.
    durability: Option<Durability>,
    health: Arc<FileHealth>,
    /// Whether another process had locked the file for too long, for the last transaction.
    was_locked: bool,
    /// How long a job may wait for its turn.
    patience: Duration,
    /// How long a transaction waits for the lock of another process.
    busy_timeout: Duration,
}

/// An operation of a transaction.
trait Job: Send {
    fn durability(&self) -> Durability;
    /// Returns when the job has waited for too long.
    fn deadline(&self) -> Instant;
    /// Runs the operation. What it has written is kept unless this is an error.
    fn run(&mut self, transaction: &Transaction<'_>, now: i64) -> Result<(), SqliteError>;
    /// Sends the result to the caller, when the transaction has ended so.
    fn end(self: Box<Self>, committed: Result<(), SqliteError>);
}

/// What a job does in its transaction.
pub(crate) trait Operation<T>: Send + 'static {
    /// Returns whether the operation only appends frames.
    fn is_frames(&self) -> bool {
        false
    }

    /// Does it at this time.
    fn run(self, transaction: &Transaction<'_>, now: i64) -> DbResult<T>;
}

impl<F, T> Operation<T> for F
where
    F: FnOnce(&Transaction<'_>, i64) -> DbResult<T> + Send + 'static,
{
    fn run(self, transaction: &Transaction<'_>, now: i64) -> DbResult<T> {
        self(transaction, now)
    }
}

struct Write<F, T> {
    durability: Durability,
    deadline: Instant,
    operation: Option<F>,
    result: Option<Result<T, SqliteError>>,
    /// Sends the job back, so that its memory is not freed by the thread that writes: that made the
    /// allocations of the next jobs slow. `None` if no caller waits.
    reply: Option<oneshot::Sender<Box<Self>>>,
}

impl Writer {
    pub(crate) fn start(
        connection: Connection,
        clock: Arc<Clock>,
        health: Arc<FileHealth>,
        busy_timeout: Duration,
    ) -> io::Result<Self> {
        let patience = busy_timeout.max(MIN_PATIENCE);
        let (frames, waiting_frames) = mpsc::channel(MAX_WAITING);
        let (others, waiting_others) = mpsc::channel(MAX_WAITING);
        let mut waiting = Waiting { frames: waiting_frames, others: waiting_others };
        let mut connection = WritingConnection::new(connection, health, busy_timeout);
        // For the time of a pause.
        let runtime = Builder::new_current_thread().enable_time().build()?;
        thread::Builder::new().name("sqlite-writer".to_owned()).spawn(move || {
            let mut jobs = Vec::with_capacity(MAX_SHARED);
            // When the last transaction ended, if jobs shared it.
            let mut shared_at: Option<Instant> = None;
            loop {
                runtime.block_on(waiting.gather(&mut jobs, shared_at));
                if jobs.is_empty() {
                    break;
                }
                let is_shared = jobs.len() > 1;
                connection.run(&mut jobs, &clock);
                shared_at = is_shared.then(Instant::now);
            }
        })?;
        Ok(Writer { frames, others, patience })
    }

    /// Runs an operation in a transaction, and returns its result when it is committed.
    ///
    /// If the future is dropped, the operation takes place as a whole, or not at all.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        durability: Durability,
        operation: impl Operation<T>,
    ) -> Result<T, SqliteError> {
        let (reply, result) = oneshot::channel();
        let queue = if operation.is_frames() { &self.frames } else { &self.others };
        let job = self.job(durability, operation, Some(reply));
        queue.send(job).await.map_err(|_| SqliteError::Panicked)?;
        let done = result.await.map_err(|_| SqliteError::Panicked)?;
        done.result.unwrap_or(Err(SqliteError::Panicked))
    }

    /// Runs an operation some time, unless too many others wait.
    pub(crate) fn try_start(&self, durability: Durability, operation: impl Operation<()>) {
        let operation = |transaction: &Transaction<'_>, now| {
            let done = operation.run(transaction, now);
            if let Err(Failure(error)) = &done {
                tracing::debug!(%error, "an optional change was not stored");
            }
            done
        };
        let _ = self.others.try_send(self.job(durability, operation, None));
    }

    fn job<F: Operation<T>, T: Send + 'static>(
        &self,
        durability: Durability,
        operation: F,
        reply: Option<oneshot::Sender<Box<Write<F, T>>>>,
    ) -> Box<dyn Job> {
        let deadline = Instant::now() + self.patience;
        let operation = Some(operation);
        Box::new(Write { durability, deadline, operation, result: None, reply })
    }
}

impl Waiting {
    /// Waits for a job, and adds those that share its transaction. Adds none if no more will come.
    ///
    /// If only frames wait, and the last transaction was shared, more frames are gathered until the
    /// [`GATHERING_TIME`] after that transaction is over, or another job comes.
    async fn gather(&mut self, jobs: &mut Vec<Box<dyn Job>>, shared_at: Option<Instant>) {
        if jobs.is_empty() {
            tokio::select! {
                biased;
                Some(job) = self.others.recv() => jobs.push(job),
                Some(job) = self.frames.recv() => {
                    jobs.push(job);
                    if let Some(at) = shared_at
                        && jobs.len() + self.frames.len() < MAX_WAITING
                        && let Ok(Some(job)) = timeout_at(at + GATHERING_TIME, self.others.recv()).await
                    {
                        jobs.push(job);
                    }
                }
                else => return,
            }
        }
        while jobs.len() < MAX_SHARED {
            // The second half of the places is for frames first: they would wait for ever otherwise.
            let next = if jobs.len() < MAX_SHARED / 2 {
                self.others.try_recv().or_else(|_| self.frames.try_recv())
            } else {
                self.frames.try_recv().or_else(|_| self.others.try_recv())
            };
            let Ok(job) = next else { break };
            jobs.push(job);
        }
    }
}

impl<F, T> Job for Write<F, T>
where
    F: Operation<T>,
    T: Send + 'static,
{
    fn durability(&self) -> Durability {
        self.durability
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn run(&mut self, transaction: &Transaction<'_>, now: i64) -> Result<(), SqliteError> {
        if self.reply.as_ref().is_some_and(oneshot::Sender::is_closed) {
            self.operation = None;
        }
        let Some(operation) = self.operation.take() else { return Ok(()) };
        let result = operation.run(transaction, now).map_err(|failure| failure.0);
        self.result.insert(result).as_ref().map(drop).map_err(SqliteError::same)
    }

    fn end(mut self: Box<Self>, committed: Result<(), SqliteError>) {
        let Some(reply) = self.reply.take() else { return };
        let result = match (self.result.take(), committed) {
            (Some(Ok(value)), Ok(())) => Ok(value),
            (Some(Err(error)), _) | (_, Err(error)) => Err(error),
            // Its caller is gone, or it has panicked.
            (None, Ok(())) => return,
        };
        self.result = Some(result);
        let _ = reply.send(self);
    }
}

impl WritingConnection {
    fn new(connection: Connection, health: Arc<FileHealth>, busy_timeout: Duration) -> Self {
        WritingConnection {
            connection,
            durability: None,
            health,
            was_locked: false,
            patience: busy_timeout.max(MIN_PATIENCE),
            busy_timeout,
        }
    }

    /// Runs jobs, and removes those that have run.
    fn run(&mut self, jobs: &mut Vec<Box<dyn Job>>, clock: &Clock) {
        // The jobs before these may have waited for the lock of another process, or for the disk.
        let now = Instant::now();
        for late in jobs.extract_if(.., |job| now > job.deadline()) {
            late.end(Err(if self.was_locked {
                SqliteError::Busy
            } else {
                SqliteError::Timeout(self.patience)
            }));
        }
        if jobs.is_empty() {
            return;
        }
        let (ran, ended) = self.transact(jobs, clock);
        self.was_locked = matches!(ended, Err(Failure(SqliteError::Busy)));
        let is_moved =
            |job: &mut Box<dyn Job>| ended.is_ok() && job.durability() == Durability::Moved;
        let moved: Vec<_> = jobs.extract_if(..ran, is_moved).collect();
        for job in jobs.drain(..ran - moved.len()) {
            job.end(ended.as_ref().map(drop).map_err(|failure| failure.0.same()));
        }
        // The others do not wait for this.
        for job in moved {
            job.end(self.move_log().map_err(|failure| failure.0));
        }
    }

    /// Moves the write-ahead log into the file, unless another connection reads or writes: no job waits
    /// for its end.
    fn move_log(&self) -> DbResult<()> {
        self.connection.busy_timeout(Duration::ZERO)?;
        let is_busy = |row: &rusqlite::Row<'_>| row.get::<_, bool>(0);
        let moved = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], is_busy);
        self.connection.busy_timeout(self.busy_timeout)?;
        if moved? { Err(SqliteError::Busy.into()) } else { Ok(()) }
    }

    /// Runs jobs in one transaction. Returns how many of them have run, and how the transaction has
    /// ended.
    fn transact(&mut self, jobs: &mut [Box<dyn Job>], clock: &Clock) -> (usize, DbResult<()>) {
        let count = jobs.len();
        let is_written = jobs.iter().all(|job| job.durability() == Durability::Written);
        let durability = if is_written { Durability::Written } else { Durability::Synced };
        if self.durability != Some(durability) {
            if let Err(failure) = file::set_durability(&self.connection, durability) {
                return (count, Err(failure));
            }
            self.durability = Some(durability);
        }
        let begun = self.connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = match begun {
            Ok(transaction) => transaction,
            Err(error) => return (count, Err(error.into())),
        };
        let now = match state::now(&transaction, clock) {
            Ok(now) => now,
            Err(failure) => return (count, Err(failure)),
        };
        for (before, job) in jobs.iter_mut().enumerate() {
            if let Err(failure) = run_job(&transaction, &mut **job, now, count == 1) {
                // What the jobs before it have written is lost too.
                return (before + 1, Err(failure));
            }
        }
        let is_there = self.health.check_place().map_err(Failure::from);
        (count, is_there.and_then(|()| Ok(transaction.commit()?)))
    }
}

/// Runs a job of a transaction. An error is one of the whole transaction, and not of the job alone.
fn run_job(
    transaction: &Transaction<'_>,
    job: &mut dyn Job,
    now: i64,
    is_alone: bool,
) -> DbResult<()> {
    if !is_alone {
        transaction.prepare_cached("SAVEPOINT job")?.execute([])?;
    }
    let run = catch_unwind(AssertUnwindSafe(|| job.run(transaction, now)));
    let failure = run.unwrap_or(Err(SqliteError::Panicked)).err();
    if let Some(error) = failure {
        // Some failures of the disk have ended the transaction.
        if is_alone || transaction.is_autocommit() {
            return Err(error.into());
        }
        transaction.prepare_cached("ROLLBACK TO job")?.execute([])?;
    }
    if !is_alone {
        transaction.prepare_cached("RELEASE job")?.execute([])?;
    }
    Ok(())
}

/// How long after the end of a transaction that jobs have shared the next one begins, if only frames wait and
/// their queue is not full by then. With less, the transactions cost more than what their jobs write.
const GATHERING_TIME: Duration = Duration::from_millis(10);

/// The maximum number of jobs that wait in each queue. Each holds what it writes.
const MAX_WAITING: usize = 256;

/// The maximum number of jobs that share a transaction.
const MAX_SHARED: usize = MAX_WAITING + 1;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Frames, or another operation.
    struct Scripted(bool);

    impl Operation<()> for Scripted {
        fn is_frames(&self) -> bool {
            self.0
        }

        fn run(self, _: &Transaction<'_>, _: i64) -> DbResult<()> {
            Ok(())
        }
    }

    fn queues() -> (Writer, Waiting) {
        let (frames, waiting_frames) = mpsc::channel(MAX_WAITING);
        let (others, waiting_others) = mpsc::channel(MAX_WAITING);
        let writer = Writer { frames, others, patience: MIN_PATIENCE };
        (writer, Waiting { frames: waiting_frames, others: waiting_others })
    }

    /// Queues operations at these times, in milliseconds after a shared transaction. Returns how many
    /// share the next one, and when it begins.
    async fn next_transaction(queued: &[(u64, bool)]) -> (usize, u128) {
        let (writer, mut waiting) = queues();
        let writer = Arc::new(writer);
        let shared_at = Instant::now();
        for &(at, is_frames) in queued {
            let writer = Arc::clone(&writer);
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(at)).await;
                writer.run(Durability::Written, Scripted(is_frames)).await
            });
        }
        let mut jobs = Vec::new();
        waiting.gather(&mut jobs, Some(shared_at)).await;
        (jobs.len(), shared_at.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn only_appends_of_frames_wait_for_others_to_share_their_transaction() {
        for (queued, expected) in [
            // Frames are gathered for ten milliseconds after the last transaction.
            (&[(1, true), (4, true), (8, true), (20, true)][..], (3, 10)),
            // Any other operation begins at once, and takes the frames with it.
            (&[(1, false), (2, true)], (1, 1)),
            (&[(1, true), (4, true), (6, false), (8, true)], (3, 6)),
            // Frames that come later than that do not wait.
            (&[(30, true), (31, true)], (1, 30)),
        ] {
            assert_eq!(next_transaction(queued).await, expected, "{queued:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn frames_do_not_wait_after_a_transaction_that_was_not_shared() {
        let (writer, mut waiting) = queues();
        let writer = Arc::new(writer);
        for _ in 0..2 {
            let writer = Arc::clone(&writer);
            tokio::spawn(async move { writer.run(Durability::Written, Scripted(true)).await });
        }
        tokio::task::yield_now().await;
        let mut jobs = Vec::new();
        let began = Instant::now();
        waiting.gather(&mut jobs, None).await;
        assert_eq!((jobs.len(), began.elapsed()), (2, Duration::ZERO));
    }

    #[tokio::test]
    async fn half_of_a_transaction_is_for_frames_if_more_wait_than_it_holds() {
        for (frames, others, expected) in [
            (MAX_WAITING, MAX_WAITING, (129, 128)),
            (10, MAX_WAITING, (10, 247)),
            (MAX_WAITING, 10, (247, 10)),
        ] {
            let (writer, mut waiting) = queues();
            let job = |is_frames| writer.job(Durability::Written, Scripted(is_frames), None);
            for _ in 0..frames {
                writer.frames.try_send(job(true)).ok().unwrap();
            }
            for _ in 0..others {
                writer.others.try_send(job(false)).ok().unwrap();
            }
            waiting.gather(&mut Vec::new(), None).await;
            let taken = (frames - waiting.frames.len(), others - waiting.others.len());
            assert_eq!(taken, expected, "{frames} {others}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_for_a_disk_that_hangs_is_not_told_of_a_lock() {
        let (writer, _waiting) = queues();
        let health = Arc::new(FileHealth::new(Path::new("no file")));
        let memory = Connection::open_in_memory().unwrap();
        memory.execute_batch(include_str!("schema/tables.sql")).unwrap();
        let mut connection = WritingConnection::new(memory, health, Duration::ZERO);
        for (waited, was_locked, expected) in [
            (MIN_PATIENCE, false, "Ok(())"),
            (MIN_PATIENCE + Duration::from_millis(1), false, "Err(Timeout(1s))"),
            (MIN_PATIENCE + Duration::from_millis(1), true, "Err(Busy)"),
        ] {
            let (reply, result) = oneshot::channel();
            let mut jobs = vec![writer.job(Durability::Written, Scripted(false), Some(reply))];
            // The transaction before this one takes so long.
            tokio::time::advance(waited).await;
            connection.was_locked = was_locked;
            connection.run(&mut jobs, &Clock::system());
            let result = result.await.unwrap().result.unwrap();
            assert_eq!(format!("{result:?}"), expected, "{waited:?} {was_locked}");
        }
    }

    #[tokio::test]
    async fn a_checkpoint_waits_for_no_reader_and_fails_alone() {
        let name = format!("ui-message-stream-checkpoint-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let path = file::create(&folder.join("chats.db")).unwrap();
        // Without an end, if the checkpoint waits.
        let busy_timeout = Duration::from_secs(60 * 60);
        let opened = file::open(&path, busy_timeout).unwrap();
        file::use_wal(&opened, busy_timeout).unwrap();
        opened.execute_batch(include_str!("schema/tables.sql")).unwrap();
        opened.execute_batch("CREATE TABLE numbers (number INT)").unwrap();
        let health = Arc::new(FileHealth::new(&path));
        let mut connection = WritingConnection::new(opened, health, busy_timeout);
        let (writer, _waiting) = queues();
        let mut run = || {
            let (moved_reply, moved) = oneshot::channel();
            let (written_reply, written) = oneshot::channel();
            let insert = |transaction: &Transaction<'_>, _: i64| -> DbResult<()> {
                Ok(transaction.execute("INSERT INTO numbers VALUES (1)", []).map(drop)?)
            };
            let mut jobs = vec![
                writer.job(Durability::Moved, Scripted(false), Some(moved_reply)),
                writer.job(Durability::Written, insert, Some(written_reply)),
            ];
            connection.run(&mut jobs, &Clock::system());
            let timeout = "PRAGMA busy_timeout";
            let after = connection.connection.query_row(timeout, [], |row| row.get::<_, i64>(0));
            assert_eq!(after.unwrap(), 60 * 60 * 1000);
            (moved, written)
        };
        let log_bytes = || std::fs::metadata(file::beside(&path, "-wal")).unwrap().len();

        let reader = file::open(&path, Duration::ZERO).unwrap();
        reader.execute_batch("BEGIN; SELECT * FROM numbers").unwrap();
        let (moved, written) = run();
        assert!(matches!(moved.await.unwrap().result, Some(Err(SqliteError::Busy))));
        assert!(matches!(written.await.unwrap().result, Some(Ok(()))));
        assert!(log_bytes() > 0);
        reader.execute_batch("COMMIT").unwrap();
        let (moved, written) = run();
        assert!(matches!(moved.await.unwrap().result, Some(Ok(()))));
        assert!(matches!(written.await.unwrap().result, Some(Ok(()))));
        assert_eq!(log_bytes(), 0);
        let _ = std::fs::remove_dir_all(&folder);
    }
}
