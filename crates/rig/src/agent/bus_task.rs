//! [`BusTask`]: executes the tool and model calls of an agent's runs in a separate task.
//!
//! Without it, rig serves the calls of all runs in whichever run is polled, and a panic of a tool
//! unwinds through the response to a different user.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use ::rig_agent::bus::BusDriver;
use futures_util::FutureExt;
use tokio::task::{JoinHandle, yield_now};

/// A task that starts with the first run and ends when the last clone of the agent is dropped.
#[derive(Clone)]
pub(super) struct BusTask(Arc<Inner>);

struct Inner {
    /// Stored outside the task, so that the driver continues on another runtime if the task's
    /// runtime ends.
    driver: Arc<tokio::sync::Mutex<BusDriver>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl BusTask {
    pub(super) fn new(driver: BusDriver) -> Self {
        let driver = Arc::new(tokio::sync::Mutex::new(driver));
        BusTask(Arc::new(Inner { driver, task: Mutex::new(None) }))
    }

    /// Starts the task unless it is running.
    pub(super) fn start(&self) {
        let mut task = self.0.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            let driver = Arc::clone(&self.0.driver);
            *task = Some(tokio::spawn(drive(driver)));
        }
    }
}

/// Drives the bus to its end. If a call panics, the call fails and all other calls continue.
async fn drive(driver: Arc<tokio::sync::Mutex<BusDriver>>) {
    let mut driver = driver.lock().await;
    while AssertUnwindSafe(&mut *driver).catch_unwind().await.is_err() {
        tracing::error!("a tool or a model of rig panicked");
        yield_now().await;
    }
}
