//! [`Notifier`]: tells the outside world of the events of approval requests.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, stream};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::AuditEventKind;
use crate::approval::store::{
    LedgerStore, LedgerStoreError, ListRecords, ListedRecords, RecordList, update,
};
use crate::approval::{ApprovalRecord, ApprovalState, NoticeDelivery, Principal, RecordId};
use crate::boxed::{BoxError, BoxFuture};
use crate::id::{ChatId, log_causes, log_text};
use crate::json::Json;

/// An event of an approval request, for a [`Notifier`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ApprovalNotice {
    /// The number of the event among those of its request, from 0. It is 0 for
    /// [`AuditEventKind::Requested`].
    pub number: usize,
    /// What has happened: the request was made; it was answered (`Approved`, `Denied`, `Lapsed`) or closed
    /// (`Expired`, `Superseded`, `Revoked`); its call was executed (`Executed`, `OutcomeUnknown`).
    pub kind: AuditEventKind,
    /// The record as it is now. Later events may have happened already. It holds the input of the call, and
    /// not the approval id.
    pub record: ApprovalRecord,
}

impl ApprovalNotice {
    /// Returns an id that is the same each time this event is delivered, and that no other event has.
    pub fn id(&self) -> String {
        format!("{}-{}", self.record.id, self.number)
    }

    /// Returns what a message to another system usually holds, as JSON: who asks for which call, with its
    /// description and its input.
    pub fn to_json(&self) -> String {
        let ApprovalRecord { requester, chat_id, tool_name, description, input, .. } = &self.record;
        let json = serde_json::to_string(&NoticeBody {
            id: self.id(),
            event: &self.kind,
            requester,
            chat_id,
            tool_name,
            description,
            input,
            audience: &self.record.audience,
        });
        // Texts and JSON always serialize.
        json.unwrap_or_default()
    }

    /// Returns the event with this number, or `None` if the record has none yet.
    fn of(record: ApprovalRecord, number: usize) -> Option<Self> {
        let approved =
            |reason: &Option<String>| AuditEventKind::Approved { fence: 1, reason: reason.clone() };
        let kind = match (number, &record.state) {
            (0, _) => AuditEventKind::Requested { expires_at: record.expires_at },
            (
                1,
                ApprovalState::Claimed { decision, .. }
                | ApprovalState::Completed { decision, .. }
                | ApprovalState::OutcomeUnknown { decision },
            ) => approved(&decision.reason),
            (1, state) => AuditEventKind::from_state(state)?,
            (
                2,
                state @ (ApprovalState::Completed { .. } | ApprovalState::OutcomeUnknown { .. }),
            ) => AuditEventKind::from_state(state)?,
            _ => return None,
        };
        Some(ApprovalNotice { number, kind, record })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NoticeBody<'a> {
    id: String,
    event: &'a AuditEventKind,
    requester: &'a Principal,
    chat_id: &'a ChatId,
    tool_name: &'a str,
    description: &'a str,
    input: &'a Json,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    audience: &'a [Box<str>],
}

/// Receives the events of approval requests, for example to send a mail or to call a webhook.
///
/// Each event is delivered at least once, and the events of one request in their order: the next one comes after
/// [`notify`](Self::notify) has returned `Ok` for the one before. After an error, and after a crash, the event is
/// delivered again within a minute, by any server with the same ledger and a notifier. A repeated event has the
/// same [`id`](ApprovalNotice::id). The ledger keeps what is to be delivered for as long as it keeps the
/// record: at least 24 hours after the request has expired.
///
/// A notifier delays no stream and no decision. It has ten seconds for an event.
///
/// ```
/// use std::time::Duration;
///
/// use ui_message_stream::approval::{
///     ApprovalNotice, Approvals, AuditEventKind, EmptyToolbox, Notifier,
/// };
/// use ui_message_stream::{BoxError, BoxFuture};
///
/// #[derive(Debug)]
/// struct Mail;
///
/// impl Notifier for Mail {
///     fn notify<'a>(
///         &'a self,
///         notice: &'a ApprovalNotice,
///     ) -> BoxFuture<'a, Result<(), BoxError>> {
///         Box::pin(async move {
///             if let AuditEventKind::Requested { .. } = notice.kind {
///                 send(&format!("Please decide: {}", notice.record.description)).await?;
///             }
///             Ok(())
///         })
///     }
/// }
///
/// # async fn send(_: &str) -> Result<(), BoxError> { Ok(()) }
/// let approvals = Approvals::new(EmptyToolbox).with_notifier(Mail);
/// ```
#[doc(alias = "webhook")]
#[doc(alias = "mail")]
pub trait Notifier: Send + Sync + fmt::Debug + 'static {
    /// Delivers an event.
    ///
    /// # Errors
    /// The reason why the event was not delivered. It is logged, and the event is delivered again.
    fn notify<'a>(&'a self, notice: &'a ApprovalNotice) -> BoxFuture<'a, Result<(), BoxError>>;
}

/// The notifier of an [`Approvals`](super::Approvals), and the task that calls it.
#[derive(Debug)]
pub(super) struct Bell {
    notifier: Arc<dyn Notifier>,
    is_running: AtomicBool,
    /// Wakes the task: there is an event.
    rung: Arc<Notify>,
}

impl Bell {
    pub(super) fn new(notifier: Arc<dyn Notifier>) -> Arc<Self> {
        let is_running = AtomicBool::new(false);
        Arc::new(Bell { notifier, is_running, rung: Arc::default() })
    }

    /// Returns the bell of the same notifier for another ledger.
    pub(super) fn of_other_ledger(&self) -> Arc<Self> {
        Bell::new(Arc::clone(&self.notifier))
    }

    /// Starts the task that delivers events, unless it runs, and wakes it. Does nothing outside of a runtime:
    /// the next event starts it.
    pub(super) fn ring(self: &Arc<Self>, ledger: &Arc<dyn LedgerStore>) {
        let Ok(runtime) = Handle::try_current() else { return };
        self.rung.notify_one();
        if !self.is_running.swap(true, Ordering::Relaxed) {
            let started = Started(Arc::downgrade(self));
            runtime.spawn(deliver_often(Arc::clone(ledger), started, Arc::clone(&self.rung)));
        }
    }
}

/// Dropped when the task ends, also with its runtime.
struct Started(Weak<Bell>);

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(bell) = self.0.upgrade() {
            bell.is_running.store(false, Ordering::Relaxed);
        }
    }
}

/// Delivers events until the approvals are dropped.
async fn deliver_often(ledger: Arc<dyn LedgerStore>, started: Started, rung: Arc<Notify>) {
    while let Some(bell) = started.0.upgrade() {
        if let Err(error) = bell.deliver_due(&*ledger).await {
            tracing::warn!(error = log_causes(&error), "events of approvals cannot be delivered");
        }
        drop(bell);
        drop(timeout(LOOK_INTERVAL, rung.notified()).await);
    }
}

impl Bell {
    /// Delivers the events that are due.
    async fn deliver_due(&self, ledger: &dyn LedgerStore) -> Result<(), LedgerStoreError> {
        let list = RecordList::to_notify();
        let mut page = ListRecords { list: &list, after: None, limit: MAX_AT_ONCE };
        loop {
            let ListedRecords { now, records, next } = ledger.read_list(page).await?;
            let is_due = |record: &ApprovalRecord| {
                NoticeDelivery::due_at(record).is_some_and(|at| at <= now)
            };
            let due = records.into_iter().map(|stored| stored.record).filter(is_due);
            let mut deliveries = stream::iter(due)
                .map(|record| self.deliver(ledger, record.id))
                .buffer_unordered(MAX_AT_ONCE);
            while let Some(delivered) = deliveries.next().await {
                delivered?;
            }
            match next.filter(|next| next.at <= now) {
                Some(_) => page.after = next,
                None => return Ok(()),
            }
        }
    }

    /// Delivers the events of one record, in their order.
    async fn deliver(
        &self,
        ledger: &dyn LedgerStore,
        id: RecordId,
    ) -> Result<(), LedgerStoreError> {
        let lease = |record: &ApprovalRecord, now| NoticeDelivery::lease(record, LEASE, now);
        let mut next = update(ledger, id, lease).await?;
        while let Some((record, Some(number))) = next
            && let Some(notice) = ApprovalNotice::of(record, number)
        {
            if let Err(error) = self.notify(&notice).await {
                let tool = log_text(&notice.record.tool_name);
                tracing::warn!(
                    record = %id, %tool, number, error,
                    "an event of an approval was not delivered"
                );
                return Ok(());
            }
            let delivered = |record: &ApprovalRecord, now| {
                NoticeDelivery::delivered(record, number, LEASE, now)
            };
            next = update(ledger, id, delivered).await?;
        }
        Ok(())
    }

    async fn notify(&self, notice: &ApprovalNotice) -> Result<(), String> {
        let notify = AssertUnwindSafe(async { self.notifier.notify(notice).await });
        match timeout(MAX_TIME, notify.catch_unwind()).await {
            Ok(Ok(delivered)) => delivered.map_err(|error| log_causes(&*error)),
            Ok(Err(_)) => Err("the notifier has panicked".to_owned()),
            Err(_) => Err(format!("no answer within {} seconds", MAX_TIME.as_secs())),
        }
    }
}

/// How long a notifier has for an event.
const MAX_TIME: Duration = Duration::from_secs(10);

/// How long a server delivers an event, before another one may deliver it again.
const LEASE: Duration = Duration::from_secs(30);

/// The time after which a server looks again in any case: another one may have failed or be lost.
const LOOK_INTERVAL: Duration = LEASE;

/// How many records are delivered at once.
const MAX_AT_ONCE: usize = 16;
