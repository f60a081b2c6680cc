//! [`Notifier`]: delivers the events of approval requests to other systems.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use serde::Serialize;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::approval::store::{
    LedgerStore, LedgerStoreError, ListRecords, ListedRecords, RecordList, update,
};
use crate::approval::{
    ApprovalEvent, ApprovalRecord, NoticeDelivery, Principal, RecordId, Transition, UnixMillis,
};
use crate::boxed::{BoxError, BoxFuture};
use crate::id::{ChatId, log_causes, log_text};
use crate::json::Json;

/// An event of an approval request, for a [`Notifier`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ApprovalNotice {
    /// The number of the event among those of its request, from 0.
    pub number: usize,
    /// What has happened.
    pub event: ApprovalEvent,
    /// When it has happened, by the clock of the ledger.
    pub at: UnixMillis,
    /// The record as it is now. Later events may have happened already. It holds the input of the call, and
    /// not the approval id.
    pub record: ApprovalRecord,
}

impl ApprovalNotice {
    /// Returns an id that is the same each time this event is delivered, and that no other event has.
    pub fn id(&self) -> String {
        format!("{}-{}", self.record.id, self.number)
    }

    /// Returns what a message to another system usually holds, as JSON: the event, and who asks for which
    /// call. It does not hold the output of the call. Later versions can add fields and events.
    pub fn to_json(&self) -> String {
        let record = &self.record;
        let decision = record.decision().filter(|_| self.number > 0);
        let json = serde_json::to_string(&NoticeBody {
            id: self.id(),
            event: self.event,
            at: self.at,
            requester: &record.requester,
            chat_id: &record.chat_id,
            tool_name: &record.tool_name,
            description: &record.description,
            input: &record.input,
            expires_at: record.expires_at,
            audience: &record.audience,
            decided_by: decision.map(|decision| &decision.decided_by),
            reason: decision.and_then(|decision| decision.reason.as_deref()),
        });
        // Texts and JSON always serialize.
        json.unwrap_or_default()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NoticeBody<'a> {
    id: String,
    event: ApprovalEvent,
    at: UnixMillis,
    requester: &'a Principal,
    chat_id: &'a ChatId,
    tool_name: &'a str,
    description: &'a str,
    input: &'a Json,
    #[serde(skip_serializing_if = "UnixMillis::is_never")]
    expires_at: UnixMillis,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    audience: &'a [Box<str>],
    #[serde(skip_serializing_if = "Option::is_none")]
    decided_by: Option<&'a Principal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

/// Receives the events of approval requests, for example to send a mail or to call a webhook. Set it with
/// [`Approvals::with_notifier`](super::Approvals::with_notifier).
///
/// Each event is delivered at least once, and the first deliveries of the events of one request are in their
/// order. After an error or a crash, any server with the same ledger delivers the event again: after 30
/// seconds, and after twice the time with each further failure, up to an hour. A repeated event has the same
/// [`id`](ApprovalNotice::id), and may come after later events of its request.
///
/// The ledger keeps what is to be delivered for as long as it keeps the record: at least 24 hours after the
/// request has expired. The events of a user who is deleted are not delivered any more.
///
/// [`Approved`](ApprovalEvent::Approved) is the last event of a call that the provider executes. If a server is
/// lost while it executes a call, [`OutcomeUnknown`](ApprovalEvent::OutcomeUnknown) follows when its chat is
/// read the next time.
///
/// A notifier delays no stream and no decision. It has ten seconds for an event, and up to 16 are delivered at
/// once.
///
/// ```
/// use ui_message_stream::approval::{
///     ApprovalEvent, ApprovalNotice, Approvals, EmptyToolbox, Notifier,
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
///             if notice.event == ApprovalEvent::Requested {
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

/// The notifier of an [`Approvals`](super::Approvals), and who waits for new events.
#[derive(Debug)]
pub(super) struct Notices {
    notifier: Box<dyn Notifier>,
    new: watch::Sender<()>,
    /// A task delivers events, or the log says that none does.
    has_task: AtomicBool,
    /// The ledger serves streams, too.
    operations: Semaphore,
}

impl Notices {
    pub(super) fn new(notifier: impl Notifier) -> Self {
        Notices {
            notifier: Box::new(notifier),
            new: watch::Sender::new(()),
            has_task: AtomicBool::new(false),
            operations: Semaphore::new(MAX_OPERATIONS),
        }
    }

    /// Wakes the task that delivers events. The log says once if there is none.
    pub(super) fn wake(&self) {
        self.new.send_replace(());
        if !self.has_task.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "this process delivers no events of approvals: a task has to call \
                 `Approvals::deliver_due`, here or in another process"
            );
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.has_task.store(true, Ordering::Relaxed);
        self.new.subscribe()
    }

    /// Delivers the first events that are due. Returns whether there may be more.
    pub(super) async fn deliver_due(
        &self,
        ledger: &dyn LedgerStore,
    ) -> Result<bool, LedgerStoreError> {
        self.has_task.store(true, Ordering::Relaxed);
        let list = RecordList::to_notify();
        let mut page = ListRecords { limit: MAX_AT_ONCE, ..(&list).into() };
        let ListedRecords { now, records, next } = loop {
            let listed = ledger.read_list(page).await?;
            // Records that cannot be read are left out of a page.
            match listed.next {
                Some(_) if listed.records.is_empty() => page.after = listed.next,
                _ => break listed,
            }
        };
        let is_due =
            |record: &ApprovalRecord| NoticeDelivery::due_at(record).is_some_and(|at| at <= now);
        let due = records.iter().map(|stored| &stored.record).filter(|record| is_due(record));
        let begun = join_all(due.map(|record| self.deliver(ledger, record.id))).await;
        // What was begun is not due any more. If the ledger cannot be written, nothing was.
        Ok(begun.contains(&true) && next.is_some_and(|next| next.at <= now))
    }

    /// Delivers the events of one record, in their order. What fails is logged. Returns whether the ledger could
    /// be written.
    async fn deliver(&self, ledger: &dyn LedgerStore, id: RecordId) -> bool {
        let delivered = self.deliver_all(ledger, id).await;
        if let Err(error) = &delivered {
            let error = log_causes(error);
            tracing::warn!(record = %id, error, "an event of an approval may be delivered again");
        }
        delivered.is_ok()
    }

    async fn deliver_all(
        &self,
        ledger: &dyn LedgerStore,
        id: RecordId,
    ) -> Result<(), LedgerStoreError> {
        let mut next = self.update(ledger, id, NoticeDelivery::lease).await?;
        while let Some((record, Some(number))) = next
            && let Some((event, at)) = ApprovalEvent::all_of(&record).into_iter().nth(number)
        {
            let notice = ApprovalNotice { number, event, at, record };
            if let Err(error) = self.notify(&notice).await {
                let tool = log_text(&notice.record.tool_name);
                tracing::warn!(
                    record = %id, %tool, number, error,
                    "an event of an approval was not delivered"
                );
                return Ok(());
            }
            let delivered =
                |record: &ApprovalRecord, now| NoticeDelivery::delivered(record, number, now);
            next = self.update(ledger, id, delivered).await?;
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

    async fn update<T: Send>(
        &self,
        ledger: &dyn LedgerStore,
        id: RecordId,
        rule: impl Fn(&ApprovalRecord, UnixMillis) -> Transition<T> + Send,
    ) -> Result<Option<(ApprovalRecord, T)>, LedgerStoreError> {
        // It is never closed.
        let _permit = self.operations.acquire().await;
        update(ledger, id, rule).await
    }
}

/// How long a notifier has for an event. A lease of an event is longer.
const MAX_TIME: Duration = Duration::from_secs(10);

/// How many records are delivered at once.
const MAX_AT_ONCE: usize = 16;

/// How many operations of the ledger run at once for that.
const MAX_OPERATIONS: usize = 2;
