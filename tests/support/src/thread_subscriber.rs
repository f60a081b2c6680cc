//! A subscriber for the spans and events of one test while other tests run in the same process.

use std::io::{self, Write};
use std::sync::{Arc, LazyLock, Mutex};

use tracing::subscriber::{DefaultGuard, NoSubscriber, Subscriber, set_default};
use tracing::{Dispatch, Level};

/// Sets the subscriber for this thread until the guard is dropped.
///
/// `tracing` stores for each span and event in the code whether a subscriber is interested in it.
/// If the process has only one subscriber, `tracing` asks only the subscriber of the thread that
/// reaches the code first, so a thread of another test could disable a span for this test. With a
/// second subscriber, it asks both.
pub fn subscribe(subscriber: impl Subscriber + Send + Sync) -> DefaultGuard {
    static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));
    LazyLock::force(&SECOND);
    set_default(subscriber)
}

/// Captures the log of this thread, from the level INFO on, until the guard is dropped.
pub fn captured() -> (CapturedLog, DefaultGuard) {
    captured_from(Level::INFO)
}

/// As [`captured`], from this level on.
pub fn captured_from(level: Level) -> (CapturedLog, DefaultGuard) {
    let log = CapturedLog::default();
    let lines = tracing_subscriber::fmt().with_writer(log.writer()).with_ansi(false);
    let guard = subscribe(lines.with_max_level(level).finish());
    (log, guard)
}

/// The log output of a subscriber.
#[derive(Debug, Clone, Default)]
pub struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl CapturedLog {
    /// Returns the output so far.
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Returns the writer of a subscriber that writes into this log.
    pub fn writer(&self) -> impl Fn() -> CapturedLog + Send + Sync + use<> {
        let log = self.clone();
        move || log.clone()
    }
}

impl Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
