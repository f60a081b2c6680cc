//! The lease of a response: the time until which it counts as being written. A run extends it while
//! it is active, so that a request that is delivered again, also to another server, starts a run
//! only if the first one was lost: its server crashed, for example.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::run::Run;
use crate::approval::store::system_time;
use crate::approval::{Principal, UnixMillis};
use crate::chat::ChatError;
use crate::chat::inner::Inner;
use crate::chat::store::{ChatStoreError, VersionedChat};
use crate::id::{ChatId, MessageId};

/// Returns the end of a lease that begins now.
pub(in crate::chat) fn lease_from_now() -> UnixMillis {
    system_time().after(LEASE)
}

/// Returns whether a response with this lease counts as being written. A lease that ends further in
/// the future than a server could have set it was set by a clock that has been put back since. It
/// does not count.
pub(in crate::chat) fn is_leased(until: Option<UnixMillis>) -> bool {
    let now = system_time();
    until.is_some_and(|until| now < until && until <= now.after(LEASE * 2))
}

/// The lease of the response that a run writes.
pub(super) struct Lease {
    chats: Arc<Inner>,
    owner: Principal,
    chat_id: ChatId,
    message_id: MessageId,
}

impl Lease {
    pub(super) fn of(run: &Run) -> Self {
        Lease {
            chats: Arc::clone(&run.chats),
            owner: run.chat.owner.clone(),
            chat_id: run.chat.id.clone(),
            message_id: run.message_id.clone(),
        }
    }

    /// Extends the lease again and again. Stops the run if its response was discarded, for example
    /// by another server that took the run for lost, and before the lease ends, if it cannot be
    /// extended.
    pub(super) async fn keep(self) -> Infallible {
        let mut failures = 0;
        loop {
            sleep(RENEWAL).await;
            let extended = timeout(MOST_OF_A_RENEWAL, self.extend()).await;
            let extended = extended.unwrap_or_else(|late| Err(ChatStoreError::new(late).into()));
            match extended {
                Ok(()) => failures = 0,
                Err(error) => {
                    tracing::warn!(%error, "the lease of a response cannot be extended");
                    failures += 1;
                }
            }
            if failures == MAX_FAILURES {
                self.stop();
            }
        }
    }

    fn stop(&self) {
        self.chats.live.stop_answer(&self.owner, &self.chat_id, &self.message_id);
    }

    async fn extend(&self) -> Result<(), ChatError> {
        while let Some(stored) = self.chats.load(&self.owner, &self.chat_id).await? {
            let VersionedChat { mut chat, revision } = stored;
            if chat.discarded_responses().any(|id| *id == self.message_id) {
                self.stop();
                break;
            }
            if !chat.lease_response(&self.message_id, lease_from_now())
                || self.chats.store.save(&chat, Some(revision)).await?
            {
                break;
            }
        }
        Ok(())
    }
}

/// How long a response counts as being written after its lease was last extended.
const LEASE: Duration = Duration::from_secs(60);

/// The time between two extensions of a lease.
const RENEWAL: Duration = Duration::from_secs(20);

/// The maximum time of an extension. One that takes longer has failed.
const MOST_OF_A_RENEWAL: Duration = Duration::from_secs(5);

/// After this many failures the lease ends soon.
const MAX_FAILURES: usize = 2;
