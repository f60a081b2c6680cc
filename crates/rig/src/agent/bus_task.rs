//! [`Drive`]: serves what the runs of an agent ask their tools and models for.
//!
//! Left to rig, whichever run is polled serves the calls of all, and a tool that panics unwinds
//! through the answer to somebody else.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use ::rig_agent::bus::BusDriver;
use tokio::task::JoinHandle;

/// A task of its own, from the first run on until nobody has the agent any more.
#[derive(Clone)]
pub(super) struct Drive(Arc<Inner>);

struct Inner {
    /// Kept here, so that another runtime goes on where one ended with the task.
    driver: Arc<Mutex<BusDriver>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Drive {
    pub(super) fn of(driver: BusDriver) -> Self {
        let driver = Arc::new(Mutex::new(driver));
        Drive(Arc::new(Inner { driver, task: Mutex::new(None) }))
    }

    /// Begins, unless it is under way.
    pub(super) fn begin(&self) {
        let mut task = self.0.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            let driver = Arc::clone(&self.0.driver);
            *task = Some(tokio::spawn(poll_fn(move |cx| poll(&driver, cx))));
        }
    }
}

/// A call that panics is gone, and whoever waits for it reads that it failed; the others go on.
fn poll(driver: &Mutex<BusDriver>, cx: &mut Context<'_>) -> Poll<()> {
    let mut driver = driver.lock().unwrap_or_else(PoisonError::into_inner);
    let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut *driver).poll(cx)));
    polled.unwrap_or_else(|_| {
        tracing::error!("a tool or a model of rig panicked");
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}
