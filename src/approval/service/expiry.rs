//! Approval requests expire in their own time, also if no request of a user comes.

use std::time::Duration;

use super::Approvals;
use super::inner::RecordUpdate;
use crate::approval::store::{LedgerStoreError, PendingFilter, PendingQuery};
use crate::approval::{ApprovalRecord, ApprovalState};

/// What [`Approvals::expire_due`] has done.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ExpiredApprovals {
    /// The approval requests that have expired with this call. Those that another server was the first to
    /// expire are not among them.
    pub records: Vec<ApprovalRecord>,
    /// The time until the next request expires, zero if more have expired already. `None` if none is
    /// pending.
    pub next_in: Option<Duration>,
}

impl Approvals {
    /// Expires the approval requests of all users whose time has passed, at most 64 of them. The audit gets
    /// an event for each.
    ///
    /// A `ChatServer` does this in time, and shows it in its chats. Any other host calls it from one task,
    /// so that the audit does not wait for the next request of the user:
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tokio::time::{sleep, timeout};
    /// use ui_message_stream::approval::Approvals;
    ///
    /// async fn expire_in_time(approvals: Approvals) {
    ///     loop {
    ///         let Ok(expired) = approvals.expire_due().await else {
    ///             sleep(Duration::from_secs(5)).await;
    ///             continue;
    ///         };
    ///         // At the latest after a minute, for a server that was lost.
    ///         let next = expired.next_in.unwrap_or(Duration::MAX).min(Duration::from_secs(60));
    ///         let _ = timeout(next, approvals.requested()).await;
    ///     }
    /// }
    /// # let _ = expire_in_time;
    /// ```
    ///
    /// Several servers may call it at once: each request expires once.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the ledger fails. Some of the requests may have expired then.
    pub async fn expire_due(&self) -> Result<ExpiredApprovals, LedgerStoreError> {
        let mut due = PendingQuery { limit: MAX_AT_ONCE + 1, ..PendingFilter::All.into() };
        let page = loop {
            let page = self.0.ledger.pending(due).await?;
            // Records that cannot be read are left out of a page.
            match page.next {
                Some(next) if page.records.is_empty() => due.after = Some(next),
                _ => break page,
            }
        };
        let (mut records, mut next_in) = (Vec::new(), None);
        for (at, pending) in page.records.iter().enumerate() {
            let ApprovalRecord { id, expires_at, .. } = pending.record;
            if expires_at > page.now || at == MAX_AT_ONCE {
                next_in = Some(Duration::from_millis(expires_at.0.saturating_sub(page.now.0)));
                break;
            }
            let expire = |record: &ApprovalRecord, now| record.expire(now);
            let expired = self.0.update_record(None, id, expire).await?;
            records.extend(expired.and_then(|RecordUpdate { record, is_changed, .. }| {
                (is_changed && record.state == ApprovalState::Expired).then_some(record)
            }));
        }
        Ok(ExpiredApprovals { records, next_in })
    }

    /// Waits until this process has requested an approval, which may expire before all others.
    pub async fn requested(&self) {
        self.0.requested.notified().await;
    }
}

/// How many requests expire at once.
const MAX_AT_ONCE: usize = 64;
