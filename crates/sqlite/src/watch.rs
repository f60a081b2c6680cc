//! The thread that finds what other processes have appended, and that checks the file.

use std::fs;
use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use rusqlite::Connection;
use tokio::time::{Instant, sleep, timeout};

use crate::error::DbResult;
use crate::file::{self, Durability};
use crate::hints::Hints;
use crate::{Inner, nothing};

/// Starts the thread. It ends when the store is dropped.
pub(crate) fn start(inner: &Arc<Inner>, connection: Connection) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let store = Arc::downgrade(inner);
    let hints = Arc::clone(&inner.hints);
    let file = WatchedFile { connection, version: None };
    thread::Builder::new().name("sqlite-watch".to_owned()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                () = watch(&store, &hints, file) => {}
                () = check_often(&store) => {}
            }
        });
    })?;
    Ok(())
}

/// Looks at the logs that readers wait for, until the store is dropped.
async fn watch(store: &Weak<Inner>, hints: &Hints, mut file: WatchedFile) {
    let mut forgotten_at = Instant::now();
    while store.strong_count() > 0 {
        if hints.is_empty() {
            hints.wanted.notified().await;
        } else {
            // Either way the file is looked at.
            let _ = timeout(POLL_INTERVAL, hints.wanted.notified()).await;
        }
        // Not only after a timeout: on a busy server, other readers notify all the time.
        if forgotten_at.elapsed() >= POLL_INTERVAL {
            hints.forget_idle();
            forgotten_at = Instant::now();
        }
        if let Err(failure) = file.look(hints) {
            // Readers also look from time to time.
            tracing::debug!(error = %failure.0, "the file cannot be watched");
            file.version = None;
        }
    }
}

/// Checks the file, and moves the write-ahead log into it when nothing was written since the last check.
async fn check_often(store: &Weak<Inner>) {
    let mut before = None;
    while let Some(inner) = store.upgrade() {
        // The result was logged.
        let _ = inner.health.check();
        let log = fs::metadata(file::beside(&inner.path, "-wal")).ok();
        let written = log.map(|log| (log.len(), log.modified().ok()));
        if written == before && written.is_some_and(|(bytes, _)| bytes > 0) {
            // If others use the file, it is done later.
            inner.writer.try_start(Durability::Moved, nothing);
        }
        before = written;
        drop(inner);
        sleep(CHECK_INTERVAL).await;
    }
}

struct WatchedFile {
    connection: Connection,
    /// Changes with each commit of another connection.
    version: Option<i64>,
}

impl WatchedFile {
    /// Reads the logs that readers wait for, unless nothing was committed since the last look.
    fn look(&mut self, hints: &Hints) -> DbResult<()> {
        let transaction = self.connection.transaction()?;
        let version: i64 =
            transaction.pragma_query_value(None, "data_version", |row| row.get(0))?;
        let has_changed = self.version.replace(version) != Some(version);
        if !hints.look(&transaction, has_changed)? {
            self.version = None;
        }
        Ok(())
    }
}

/// How often the file is looked at while readers wait. Appends of this process wake them at once.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How often the place of the file is checked, and how long nothing is committed before the write-ahead
/// log is moved.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
