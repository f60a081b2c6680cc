//! Approval requests expire when their time has passed, and their chats show it without a request.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::driver::Driver;
use super::inner::Inner;
use super::sweeps::running;
use crate::store::LogKey;
use ui_message_stream::id::log_causes;

/// Expires approval requests until the server is dropped or shuts down.
pub(super) async fn expire_often(chats: &Weak<Inner>) {
    while let Some(chats) = running(chats) {
        let next_in = expire(&chats).await;
        let approvals = chats.approvals.clone();
        drop(chats);
        match next_in {
            Ok(next_in) => {
                let _ = timeout(next_in.unwrap_or(LOOK_INTERVAL), approvals.requested()).await;
            }
            Err(()) => sleep(RETRY_INTERVAL).await,
        }
    }
}

/// Expires the requests whose time has passed, and lets a turn show it in each of their chats. Returns the time
/// until the next look, or an error if the ledger fails.
async fn expire(chats: &Arc<Inner>) -> Result<Option<Duration>, ()> {
    let expired = chats.approvals.expire_due().await.map_err(|error| {
        tracing::warn!(error = log_causes(&error), "approval requests are not expired in time");
    })?;
    let mut keys: Vec<LogKey> = Vec::new();
    for record in expired.records {
        let key = LogKey { owner: record.requester, chat: record.chat_id };
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    for key in keys {
        Driver::settle_calls(chats, key);
    }
    Ok(expired.next_in.map(|next_in| next_in.min(LOOK_INTERVAL)))
}

/// The time after which a server looks for requests of other servers, which may be lost.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// The time after which a server tries again if the ledger fails.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);
