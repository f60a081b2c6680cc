//! The work of a server that no request asks for. Once a minute it removes from its store what is kept no
//! longer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, future, stream};
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::deliveries::deliver_often;
use super::driver::Driver;
use super::effects::Effects;
use super::expiries::expire_often;
use super::inner::{Inner, MAX_AT_ONCE, running};
use super::log::decision::Goal;
use super::notices::notify_often;
use crate::store::LeftToServer;
use ui_message_stream::id::log_causes;

/// Sweeps now and each minute, and delivers to the sink and the notifier, until the server is dropped or shuts down. Does
/// nothing outside of a runtime: the next call starts it.
pub(super) fn start(chats: &Arc<Inner>) {
    let Ok(runtime) = Handle::try_current() else { return };
    if !chats.is_sweeping.swap(true, Ordering::Relaxed) {
        let started = Started(Arc::clone(&chats.is_sweeping));
        // Before the first event.
        let new_events = chats.approvals.new_events();
        let chats = Arc::downgrade(chats);
        runtime.spawn(async move {
            // A sink or a notifier that hangs does not delay what is removed.
            let sweep = sweep_often(&chats);
            let deliver = deliver_often(&chats);
            let notify = notify_often(&chats, new_events);
            future::join4(sweep, deliver, expire_often(&chats), notify).await;
            drop(started);
        });
    }
}

/// Dropped when the task ends, also with its runtime.
struct Started(Arc<AtomicBool>);

impl Drop for Started {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

async fn sweep_often(chats: &Weak<Inner>) {
    while let Some(chats) = running(chats) {
        sweep(&chats).await;
        drop(chats);
        sleep(SWEEP_INTERVAL).await;
    }
}

/// Removes what is kept no longer, ends the runs that were lost long ago, and stores snapshots that lost servers
/// have not stored.
async fn sweep(chats: &Arc<Inner>) {
    let left = chats.logs.sweep().await.unwrap_or_else(|error| {
        tracing::warn!(error = log_causes(&error), "what is kept no longer was not removed");
        LeftToServer::default()
    });
    // What fails has logged it. The next sweep tries again.
    let mut tasks: Vec<BoxFuture<'static, ()>> = Vec::new();
    for (key, run) in left.lost_runs {
        let (chats, client) = (Arc::clone(chats), chats.clients.any_client());
        tasks.push(Driver::mend(chats, key, client, Goal::Expire(run)).map(drop).boxed());
    }
    for key in left.old_snapshots {
        let effects = Effects::new(chats, key.owner.clone(), key);
        tasks.push(async move { effects.store_snapshot(1).await }.boxed());
    }
    let mut tasks = stream::iter(tasks).buffer_unordered(MAX_AT_ONCE);
    while !chats.shutdown.has_begun() && tasks.next().await.is_some() {}
}

const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
