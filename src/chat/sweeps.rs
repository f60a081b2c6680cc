//! [`Sweeps`]: each minute a server removes from its store what is kept no longer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::driver::Driver;
use super::inner::Inner;
use super::log::decision::Goal;

/// Whether a task sweeps the store of a server. All clones share it.
#[derive(Clone, Default)]
pub(super) struct Sweeps(Arc<AtomicBool>);

impl Sweeps {
    /// Sweeps from now on, until the server is dropped or closed. Does nothing outside of a runtime: the next
    /// call starts it.
    pub(super) fn start(chats: &Arc<Inner>) {
        let Ok(runtime) = Handle::try_current() else { return };
        let Sweeps(is_started) = &chats.sweeps;
        if !is_started.swap(true, Ordering::Relaxed) {
            let (chats, started) = (Arc::downgrade(chats), Started(Arc::clone(is_started)));
            runtime.spawn(async move { sweep_often(&chats, started).await });
        }
    }
}

/// Dropped when the task ends, also with its runtime.
struct Started(Arc<AtomicBool>);

impl Drop for Started {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

async fn sweep_often(chats: &Weak<Inner>, _started: Started) {
    loop {
        sleep(SWEEP_INTERVAL).await;
        let Some(chats) = chats.upgrade() else { return };
        if chats.shutdown.is_closed() {
            return;
        }
        let lost = chats.logs.sweep().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "what is kept no longer was not removed");
            Vec::new()
        });
        let ends = stream::iter(lost).map(|(key, run)| {
            // A turn that fails has logged it. The next sweep tries again.
            let client = chats.clients.any_client();
            Driver::mend(Arc::clone(&chats), key, client, Goal::Expire(run))
        });
        ends.buffer_unordered(MAX_ENDING).for_each(async |_| {}).await;
    }
}

const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// How many lost runs are ended at once.
const MAX_ENDING: usize = 8;
