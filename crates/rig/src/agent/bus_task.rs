//! [`BusTask`]: executes the tool and model calls of an agent's runs in a separate task.
//!
//! Without it, rig serves the calls of all runs in whichever run is polled, and a panic of a tool
//! unwinds through the response to a different user.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use ::rig_agent::bus::BusDriver;
use tokio::task::JoinHandle;

/// A task that starts with the first run and ends when the last clone of the agent is dropped.
#[derive(Clone)]
pub(super) struct BusTask(Arc<Inner>);

struct Inner {
    /// Stored outside the task, so that the driver continues on another runtime if the task's
    /// runtime ends.
    driver: Arc<Mutex<BusDriver>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl BusTask {
    pub(super) fn new(driver: BusDriver) -> Self {
        let driver = Arc::new(Mutex::new(driver));
        BusTask(Arc::new(Inner { driver, task: Mutex::new(None) }))
    }

    /// Starts the task unless it is running.
    pub(super) fn start(&self) {
        let mut task = self.0.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            let driver = Arc::clone(&self.0.driver);
            *task = Some(tokio::spawn(poll_fn(move |cx| poll(&driver, cx))));
        }
    }
}

/// Polls the driver. If a call panics, the call fails and all other calls continue.
fn poll(driver: &Mutex<BusDriver>, cx: &mut Context<'_>) -> Poll<()> {
    let mut driver = driver.lock().unwrap_or_else(PoisonError::into_inner);
    let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut *driver).poll(cx)));
    polled.unwrap_or_else(|_| {
        tracing::error!("a tool or a model of rig panicked");
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}
