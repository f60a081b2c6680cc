//! Delivers the events of approvals to the notifier of the host.

use std::sync::Weak;
use std::time::Duration;

use futures_util::future;
use tokio::time::timeout;

use super::inner::{Inner, running};
use ui_message_stream::approval::NewEvents;
use ui_message_stream::id::log_causes;

/// Delivers events until the server is dropped or shuts down, which waits for those that were begun.
pub(super) async fn notify_often(chats: &Weak<Inner>, mut new_events: NewEvents) {
    let Some(server) = running(chats) else { return };
    let closed = server.shutdown.closed();
    drop(server);
    let deliver = async {
        while let Some(server) = running(chats) {
            let Some(counted) = server.shutdown.count_delivery() else { return };
            let delivered = server.approvals.deliver_due().await;
            drop((counted, server));
            match delivered {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    let error = log_causes(&error);
                    tracing::warn!(error, "the events of approvals cannot be read");
                }
            }
            let _ = timeout(LOOK_INTERVAL, new_events.next()).await;
        }
    };
    future::select(Box::pin(deliver), Box::pin(closed)).await;
}

/// The time after which a server looks again in any case: another one may have failed or be lost.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);
