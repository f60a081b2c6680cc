//! Approval requests expire when their time has passed, and their chats and the readers of a live run show it
//! without a request.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::time::{sleep, timeout};

use super::driver::Driver;
use super::inner::{Inner, MAX_AT_ONCE, running};
use super::log::decision::Goal;
use crate::error::ChatError;
use crate::store::LogKey;
use ui_message_stream::id::log_causes;

/// Expires approval requests until the server is dropped or shuts down.
pub(super) async fn expire_often(chats: &Weak<Inner>) {
    let Some(mut new_requests) = running(chats).map(|chats| chats.approvals.new_requests()) else {
        return;
    };
    while let Some(chats) = running(chats) {
        let next_in = expire(&chats).await;
        drop(chats);
        match next_in {
            Some(next_in) => drop(timeout(next_in, new_requests.next()).await),
            None => sleep(RETRY_INTERVAL).await,
        }
    }
}

/// Expires the requests whose time has passed, and lets a turn show it in each of their chats. Returns the time
/// until the next look, or `None` if the ledger fails.
async fn expire(chats: &Arc<Inner>) -> Option<Duration> {
    let expired = match chats.approvals.expire_due().await {
        Ok(expired) => expired,
        Err(error) => {
            let error = log_causes(&error);
            tracing::warn!(error, "approval requests do not expire in time");
            return None;
        }
    };
    let keys = expired.records.into_iter();
    let keys: HashSet<LogKey> =
        keys.map(|record| LogKey { owner: record.requester, chat: record.chat_id }).collect();
    let settling = keys.into_iter().map(|key| async move {
        let client = chats.clients.any_client();
        for _ in 0..MAX_TURNS_BEFORE {
            // Another turn may mend the chat, and may have read the ledger before.
            let goal = Goal::Settle { has_expired: true };
            let mended = Driver::mend(Arc::clone(chats), key.clone(), client, goal).await;
            match mended {
                Ok(false) => {}
                Err(ChatError::Store(_) | ChatError::Ledger(_)) => sleep(STORE_PAUSE).await,
                Ok(true) | Err(_) => return,
            }
        }
        tracing::warn!(chat_id = key.chat.as_str(), "the next load of the chat stores an expiry");
    });
    let mut settling = stream::iter(settling).buffer_unordered(MAX_AT_ONCE);
    while !chats.shutdown.has_begun() && settling.next().await.is_some() {}
    Some(expired.next_in.map_or(LOOK_INTERVAL, |next_in| next_in.min(LOOK_INTERVAL)))
}

/// The time after which a server looks again in any case: a server that has requested an approval may be lost.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// How often an expiry waits for another turn that mends its chat, or for the store.
const MAX_TURNS_BEFORE: u32 = 20;

/// The time after which a chat is mended again if the store or the ledger has failed.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// The time after which a server tries again if the ledger fails.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);
