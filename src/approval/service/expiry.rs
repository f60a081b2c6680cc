//! Expires approval requests when their time has passed, without a request of a user.
//!
//! # Requests expire in their own time
//!
//! A server asks the ledger for the requests of all users that expire first, expires what is due, and sleeps until
//! the next one, at most a minute: each server has one timer for all users, and the ledger an index of the pending
//! requests by expiry. A request that expires within a minute wakes the timer of its server. Each request expires
//! once, because expiry is a swap of its record like any other: the server whose swap succeeds writes the audit
//! event, and begins the turn that stores the outcome in the chat. If the chat waits for nothing else and a user
//! has decided another call, this turn calls the model, as the last decision would. While an answer is written, its
//! readers get the outcome, and its run goes on as after any other result. If the server is lost before the outcome
//! is stored, the next load of the chat begins this turn.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;

use super::inner::{Inner, RecordUpdate};
use crate::approval::store::{LedgerStoreError, ListRecords, RecordList};
use crate::approval::{ApprovalRecord, ApprovalState, UnixMillis};

/// What [`Approvals::expire_due`](super::Approvals::expire_due) has done.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ExpiredApprovals {
    /// The approval requests that have expired with this call. Those that another server was the first to
    /// expire are not among them.
    pub records: Vec<ApprovalRecord>,
    /// The time until the next request expires, zero if more have expired already. `None` if no other
    /// request is pending.
    pub next_in: Option<Duration>,
}

/// Expires the requests whose time has passed.
pub(super) async fn expire_due(inner: &Inner) -> Result<ExpiredApprovals, LedgerStoreError> {
    let list = RecordList::pending();
    let mut due = ListRecords { limit: MAX_AT_ONCE + 1, ..(&list).into() };
    let page = loop {
        let page = inner.read_pending(due).await?;
        // Records that cannot be read are left out of a page.
        match page.next {
            Some(next) if page.records.is_empty() => due.after = Some(next),
            _ => break page,
        }
    };
    let time_until = |at: UnixMillis| Duration::from_millis(at.0.saturating_sub(page.now.0));
    let mut records = Vec::new();
    for pending in page.records.iter().take(MAX_AT_ONCE) {
        let ApprovalRecord { id, expires_at, .. } = pending.record;
        if expires_at > page.now {
            return Ok(ExpiredApprovals { records, next_in: Some(time_until(expires_at)) });
        }
        let expire = |record: &ApprovalRecord, now| record.expire(now);
        match inner.update_record(None, id, expire).await {
            Ok(expired) => {
                records.extend(expired.and_then(|RecordUpdate { record, is_changed, .. }| {
                    (is_changed && record.state == ApprovalState::Expired).then_some(record)
                }));
            }
            Err(error) if records.is_empty() => return Err(error),
            // The next call gets the error. The caller has to know what has expired.
            Err(_) => return Ok(ExpiredApprovals { records, next_in: Some(Duration::ZERO) }),
        }
    }
    let later = page.records.get(MAX_AT_ONCE).map(|later| later.record.expires_at);
    // Others may have decided some of this page.
    let next = later.or(page.next.map(|next| next.at));
    Ok(ExpiredApprovals { records, next_in: next.map(time_until) })
}

/// Wakes a task that works for [`Approvals`](super::Approvals): for
/// [`new_requests`](super::Approvals::new_requests) or [`new_events`](super::Approvals::new_events).
#[derive(Debug)]
pub struct NewEvents(pub(super) Option<watch::Receiver<()>>);

impl NewEvents {
    /// Waits until there is something new since the last call.
    ///
    /// # Cancel safety
    /// Nothing is lost if the future is dropped.
    pub async fn next(&mut self) {
        if let Some(changes) = &mut self.0
            && changes.changed().await.is_ok()
        {
            return;
        }
        // The approvals were dropped, or have no notifier.
        pending().await
    }
}

/// Requests that expire within this time are told to the task. It looks at least as often.
pub(super) const SOON: Duration = Duration::from_secs(60);

/// How many requests expire at once.
const MAX_AT_ONCE: usize = 64;
