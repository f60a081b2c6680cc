//! [`Approvals`]: requests the approval of a user, and executes each approved tool call once.
//!
//! ```text
//! agent ──request_approval──▶ IssuedApproval ──▶ client ──▶ next request
//!                 │                                             │ redeem
//!                 ▼                                             ▼
//!              ledger ◀──── claim, renew, complete ───── DeferredCalls ──▶ run ──▶ RunningCalls
//!                                                          ClaimedCall ──▶ run ──▶ RunningCall
//! ```
//!
//! The calls that a request answers, from its answers to their outcomes:
//!
//! | type | state | made by | becomes |
//! |---|---|---|---|
//! | `Answers` | the answers of a request | [`Approvals::run`], [`Approvals::redeem`], [`ChatApprovals::resolve`] | `JudgedAnswer`s |
//! | `JudgedAnswer` | an answer with its record, and the `Step` that it takes or the result of its refusal | `Answers::judge` | part of `TakenSteps` |
//! | `TakenSteps` | the answers while the ledger takes their steps: denials, lapses and, last, claims | `Answers::redeem` | [`DeferredCalls`] |
//! | `Lease` | a claim that was granted here, which a task renews | `spawn_step`, [`InFlightCall`] | part of [`ClaimedCall`] |
//! | `AnsweredCalls` | the results, and what the ledger says about the approval requests | `TakenSteps` | part of [`DeferredCalls`], then of [`RunningCalls`] |
//! | [`DeferredCalls`] | all answered calls; none of them runs | `Answers::redeem` | [`RunningCalls`], or each [`DeferredCall`] |
//! | [`DeferredCall`] | one of them, by its state | [`DeferredCalls`] | what its variant holds |
//! | [`ClaimedCall`] | approved, and claimed here | [`DeferredCalls`], [`InFlightCall`] | [`RunningCall`], or [`SettledCall`] |
//! | [`InFlightCall`] | approved, and another request executes it | [`DeferredCalls`] | [`SettledCall`], or [`ClaimedCall`] after its lease |
//! | [`RunningCall`] | runs on a task of its own, or waits for another request | [`ClaimedCall::run`] | [`SettledCall`] |
//! | [`RunningCalls`] | all answered calls, the approved ones running | [`DeferredCalls::run`] | [`SettledCall`]s, in the order of their ends |
//! | [`SettledCall`] | has an outcome | all of them | events and a [`DeferredToolResult`](crate::approval::DeferredToolResult) |
//!
//! The rules for valid approval responses are in the module [`approval`](crate::approval). This
//! module sends requests to the ledger, renews the leases of claims and writes the audit events. An
//! approved call is a [`ClaimedCall`]. It is executed on its own task, so that its outcome is stored
//! even if the request that started it was dropped. [`ChatApprovals::resolve`] redeems the answers
//! of a chat that the server keeps, and executes the claimed calls with the toolbox.

mod answers;
mod audit;
mod call;
mod calls;
mod changed_inputs;
mod chat_approvals;
mod expiry;
mod inbox;
mod inner;
mod issued_approval;
mod lease;
mod ledger_requests;
mod limits;
mod message_decisions;
mod new_requests;
mod notifier;
mod other_keys;
mod progress;
mod redeem;
mod request_ledger;
mod resolved_request;
mod tool_list;
mod toolbox;

use std::sync::Arc;
use std::time::Duration;

pub use self::audit::{AuditEvent, AuditEventKind, AuditSink, TracingAudit};
pub use self::call::{ClaimedCall, DeferredCall, InFlightCall, RunningCall, SettledCall};
pub use self::calls::{CallUpdate, DeferredCalls, RunningCalls};
pub use self::chat_approvals::ChatApprovals;
pub use self::expiry::{ExpiredApprovals, NewEvents};
pub use self::inbox::{InboxQuery, PendingApproval, PendingApprovals};
pub use self::issued_approval::{CallToApprove, IssuedApproval, RequestApprovalError, log_refused};
pub use self::limits::ApprovalLimits;
pub use self::message_decisions::MessageDecisions;
pub use self::notifier::{ApprovalNotice, Notifier};
pub use self::progress::{Progress, TooManyParts};
pub use self::resolved_request::ResolvedRequest;
pub use self::tool_list::ToolList;
pub use self::toolbox::{ApprovedCall, EmptyToolbox, ToolInfo, Toolbox};

use tokio::sync::watch;

use self::expiry::expire_due;
use self::inner::{Inner, Stateless, random_bytes};
use self::message_decisions::group_by_message;
use self::notifier::Notices;
use self::request_ledger::RequestLedger;
use crate::approval::store::{
    InMemoryLedger, LedgerStore, LedgerStoreError, RecordList, ReplayGuard,
};
use crate::approval::{
    ApprovalDecision, ApprovalRecord, KeyRing, OnNewMessage, Principal, RecordId, RevocationReason,
};
use crate::id::{ChatId, MessageId};

/// Requests the approval of users for tool calls, and executes each approved call once.
///
/// [`new`](Self::new) creates a random key and a ledger in memory; the ledger stores the approval
/// records. Both are lost at a restart, so the answers to earlier approval requests are then
/// rejected. Servers that share chats must share a [key](Self::with_keys) and a
/// [ledger](Self::with_ledger).
///
/// A clone is cheap and shares its keys, ledger and tools with the original. Usually an `Approvals`
/// is passed to `ChatServer::new`. Without a `ChatServer` it is used as in this example:
///
/// ```
/// use ui_message_stream::Json;
/// use ui_message_stream::approval::{ApprovalDecision, Approvals, DeferredOutcome, Principal};
/// # use ui_message_stream::BoxFuture;
/// # use ui_message_stream::approval::{
/// #     ApprovedCall, DefinitionDigest, Progress, ToolInfo, ToolOutcome, Toolbox,
/// # };
/// #
/// # #[derive(Debug)]
/// # struct Bell;
/// #
/// # impl Toolbox for Bell {
/// #     fn tool(&self, name: &str) -> Option<ToolInfo> {
/// #         let definition = DefinitionDigest::new("ring", "Rings the bell.", &Json::null());
/// #         (name == "ring").then(|| ToolInfo::new(definition))
/// #     }
/// #
/// #     fn permits<'a>(&'a self, _: &'a ApprovedCall) -> BoxFuture<'a, bool> {
/// #         Box::pin(std::future::ready(true))
/// #     }
/// #
/// #     fn run(&self, _: ApprovedCall, _: Progress) -> BoxFuture<'static, ToolOutcome> {
/// #         Box::pin(async { ToolOutcome::Output(Json::string("it rang")) })
/// #     }
/// # }
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// // `Bell` implements `Toolbox` and has one tool, `ring`.
/// let approvals = Approvals::new(Bell);
/// let user = Principal::new("ada");
/// let chat = approvals.for_chat(&user, &"chat-1".into());
///
/// // The agent requests an approval and sends its id to the client.
/// let (message, call, input) = ("message-1".into(), "call-1".into(), Json::parse("{}")?);
/// let issued = chat.request_approval(&message, &call, "ring", &input, None).await?;
///
/// // The user approves. The tool call is claimed in the ledger and executed.
/// let decision =
///     ApprovalDecision::new(issued.approval_id, true);
/// for decisions in approvals.group_by_message(&user, vec![decision]).await? {
///     let mut resolved = chat.resolve(decisions.plan(), &[]).await?;
///     while let Some(result) = resolved.next().await {
///         assert!(matches!(result.outcome, DeferredOutcome::Executed { .. }));
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "human-in-the-loop")]
#[doc(alias = "confirmation")]
#[derive(Debug, Clone)]
pub struct Approvals(Arc<Inner>);

impl Approvals {
    /// Creates the approvals of these tools, with a random key, a ledger in memory and
    /// [`TracingAudit`].
    ///
    /// # Panics
    /// If the system provides no random numbers.
    pub fn new(toolbox: impl Toolbox) -> Self {
        let key = KeyRing::new(u32::from_be_bytes(random_bytes()), &random_bytes::<32>());
        Approvals(Arc::new(Inner {
            keys: key.expect("32 random bytes make a key"),
            other_keys: Arc::default(),
            ledger: Arc::new(InMemoryLedger::new()),
            toolbox: Arc::new(toolbox),
            audit: Arc::new(TracingAudit),
            can_decide: Arc::new(|_, _| false),
            audience_of: Arc::new(|_| Vec::new()),
            audiences_of: Arc::new(|_| Vec::new()),
            notices: None,
            approval_ttl: Duration::from_secs(60 * 60),
            on_new_message: OnNewMessage::default(),
            lease: Duration::from_secs(30),
            limits: ApprovalLimits::default(),
            stateless: None,
            requested: Arc::new(watch::Sender::new(())),
        }))
    }

    /// Creates stateless approvals: no ledger, no records. **An approval can be used again until it
    /// expires**: the same request sent twice executes the call twice, unless
    /// [`with_replay_guard`](Self::with_replay_guard) is set.
    ///
    /// It is for hosts that keep nothing between two requests, such as serverless functions. The
    /// approval id seals the user, the chat, the call, the tool and its definition, the input and
    /// the expiry with the server's key. The call comes back from the client, and is executed with
    /// the canonical form of its input if the id was sealed for exactly this call. A call that was
    /// forged, changed, sent by another user or to another chat, or is too late, is not executed.
    ///
    /// [`redeem`](Self::redeem) works as with a ledger, with these differences:
    /// - The outcome of a call is not stored. Without a guard a repetition executes the call again.
    ///   With a guard its outcome is unknown.
    /// - A denial is not stored either. Without a guard, the call can be approved afterwards.
    /// - Without a guard, the outcome of an approved call that is not executed any more, because
    ///   its time is over, a newer message arrived or its tool has changed, is unknown: an earlier
    ///   request may have executed the call.
    /// - **Without a guard, an answer that is no approval says nothing about earlier requests**: if
    ///   the call was executed before, and the client then sends a denial of it, or its request
    ///   without an answer, the user and the model read that the call was not executed.
    /// - Without a guard, [`OnNewMessage::Run`] is ignored, because each later message repeats the
    ///   approval and would execute the call again.
    /// - Only the owner of the chat can decide, and there are no lists of pending approvals.
    /// - After the decision, the client shows the tool's name and input as description, even if the
    ///   request had another one.
    ///
    /// Approvals expire after [`with_approval_ttl`](Self::with_approval_ttl), by the clocks of the
    /// servers.
    ///
    /// # Errors
    /// [`EditableToolError`] if an approver may change the input of a tool: nothing would keep the changed
    /// input, so that a repetition could run another one.
    pub fn stateless_replayable(
        toolbox: impl Toolbox,
        keys: KeyRing,
    ) -> Result<Self, EditableToolError> {
        if let Some(tool) = toolbox.editable_tool() {
            return Err(EditableToolError(tool));
        }
        Ok(Approvals::new(toolbox).configure(|inner| {
            inner.keys = keys.with_other_purpose();
            inner.ledger = Arc::new(RequestLedger::default());
            inner.stateless = Some(Stateless::default());
        }))
    }

    /// Whether these are [stateless](Self::stateless_replayable) approvals.
    pub fn is_stateless(&self) -> bool {
        self.0.stateless.is_some()
    }

    /// Sets the store that keeps [stateless](Self::stateless_replayable) approvals from being used
    /// again. It holds one entry for each approval, until a day after the expiry of the approval.
    ///
    /// It has no effect on approvals with a ledger.
    #[must_use]
    pub fn with_replay_guard(self, guard: Arc<dyn ReplayGuard>) -> Self {
        self.configure(|inner| {
            if let Some(stateless) = &mut inner.stateless {
                stateless.guard = Some(guard);
            }
        })
    }

    /// Sets the keys that seal and verify approval ids. The default is one random key.
    #[must_use]
    pub fn with_keys(self, keys: KeyRing) -> Self {
        self.configure(|inner| {
            inner.keys = match inner.stateless {
                Some(_) => keys.with_other_purpose(),
                None => keys,
            }
        })
    }

    /// Sets the ledger that stores the approval records. The default is an [`InMemoryLedger`].
    #[doc(alias = "database")]
    #[doc(alias = "persist")]
    #[must_use]
    pub fn with_ledger(self, ledger: Arc<dyn LedgerStore>) -> Self {
        self.configure(|inner| {
            inner.ledger = ledger;
            if inner.stateless.take().is_some() {
                inner.keys = inner.keys.clone().with_other_purpose();
            }
        })
    }

    /// Sets the sink that receives the audit events. The default is [`TracingAudit`].
    #[must_use]
    pub fn with_audit(self, audit: impl AuditSink) -> Self {
        self.configure(|inner| inner.audit = Arc::new(audit))
    }

    /// Sets the time after which an unanswered approval request expires. One hour by default.
    ///
    /// [`ToolInfo::with_approval_ttl`] overrides it for one tool.
    #[doc(alias = "timeout")]
    #[doc(alias = "expiry")]
    #[must_use]
    pub fn with_approval_ttl(self, time: Duration) -> Self {
        self.configure(|inner| inner.approval_ttl = time)
    }

    /// Sets what happens to an approval request when its requester sends a newer message. The
    /// default is [`OnNewMessage::Lapse`]: a newer message closes unanswered requests, and an
    /// approval that arrives in the same request as that message, or later, does not run the tool.
    /// With [`OnNewMessage::Deny`] the message denies them, and with [`OnNewMessage::Run`] they stay
    /// open.
    ///
    /// [`ToolInfo::on_new_message`] overrides it for one tool.
    #[must_use]
    pub fn on_new_message(self, policy: OnNewMessage) -> Self {
        self.configure(|inner| inner.on_new_message = policy)
    }

    /// Sets the duration of the lease of an approved tool call. The default is 30 seconds. The lease
    /// of a call that the provider executes is at least 10 minutes, because nothing renews it.
    ///
    /// The process that executes an approved call holds a lease on it, and renews the lease after
    /// each third of this duration. If the lease ends, the process counts as lost: an idempotent
    /// tool may be executed again, and the outcome of any other tool is unknown. A lease much
    /// shorter than one second leaves no time to renew it.
    #[must_use]
    pub fn with_lease(self, lease: Duration) -> Self {
        self.configure(|inner| inner.lease = lease)
    }

    /// Sets how many approval requests of a chat and of a user may be pending. An approval that
    /// would exceed a limit is not requested.
    #[must_use]
    pub fn with_limits(self, limits: ApprovalLimits) -> Self {
        self.configure(|inner| inner.limits = limits)
    }

    /// Allows principals other than the requester to approve and deny calls, if `may_decide`
    /// returns `true`. The requester is the owner of the chat.
    ///
    /// `may_decide` receives the principal that decides, and the approval record of another
    /// principal. The record can belong to any tenant, so `may_decide` must compare the tenants. By
    /// default only the requester can decide. To let others decide instead of the requester, see
    /// [`ToolInfo::decided_by_others`].
    ///
    /// This does not control whether the tool may run in the name of the requester. For that, see
    /// [`Toolbox::permits`], which `Tool::authorize` of an `Agent` implements.
    #[doc(alias = "auth")]
    #[doc(alias = "permission")]
    #[doc(alias = "reviewer")]
    #[doc(alias = "user")]
    #[must_use]
    pub fn authorize_decision(
        self,
        may_decide: impl Fn(&Principal, &ApprovalRecord) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.configure(|inner| inner.can_decide = Arc::new(may_decide))
    }

    /// Sets the audiences of each request, and those to which a principal belongs. A principal finds the
    /// requests of its audiences in its [`inbox`](Self::inbox), and can decide those for which
    /// [`authorize_decision`](Self::authorize_decision) returns `true`.
    ///
    /// An audience is a name of up to 128 bytes, for example that of a team. It belongs to one tenant: an
    /// audience of another tenant that has the same name is another one. A request has at most 16 audiences,
    /// and is not made with more. Of a principal, the first 16 count, in the order of their names, and the log
    /// says it if there are more. The audiences of a request are stored with it. By default there are none.
    ///
    /// ```
    /// use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
    ///
    /// # fn is_in_finance(_: &Principal) -> bool { true }
    /// let approvals = Approvals::new(EmptyToolbox)
    ///     .with_audiences(
    ///         |record| match &*record.tool_name {
    ///             "transfer" => vec!["finance".into()],
    ///             _ => Vec::new(),
    ///         },
    ///         |principal| match is_in_finance(principal) {
    ///             true => vec!["finance".into()],
    ///             false => Vec::new(),
    ///         },
    ///     )
    ///     .authorize_decision(|principal, record| {
    ///         principal.tenant() == record.requester.tenant() && is_in_finance(principal)
    ///     });
    /// ```
    #[doc(alias = "team")]
    #[doc(alias = "assign")]
    #[must_use]
    pub fn with_audiences(
        self,
        of_request: impl Fn(&ApprovalRecord) -> Vec<Box<str>> + Send + Sync + 'static,
        of_principal: impl Fn(&Principal) -> Vec<Box<str>> + Send + Sync + 'static,
    ) -> Self {
        self.configure(|inner| {
            inner.audience_of = Arc::new(of_request);
            inner.audiences_of = Arc::new(of_principal);
        })
    }

    /// Sets the notifier that gets the events of approval requests. By default there is none. Requests that were
    /// made by a host without a notifier have no events.
    ///
    /// A `ChatServer` delivers the events. Any other host has a task that calls
    /// [`deliver_due`](Self::deliver_due).
    ///
    /// It has no effect on [stateless](Self::stateless_replayable) approvals.
    #[must_use]
    pub fn with_notifier(self, notifier: impl Notifier) -> Self {
        self.configure(|inner| inner.notices = Some(Arc::new(Notices::new(notifier))))
    }

    /// Delivers the first events that are due to the [notifier](Self::with_notifier), at most 16 of them, also
    /// those that another server has left. Returns after the notifier has answered, or has not answered in
    /// time: whether more may be due.
    ///
    /// A `ChatServer` does this in time. Any other host calls it from one task:
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tokio::time::timeout;
    /// use ui_message_stream::approval::Approvals;
    ///
    /// async fn deliver(approvals: Approvals) {
    ///     let mut new_events = approvals.new_events();
    ///     loop {
    ///         match approvals.deliver_due().await {
    ///             Ok(true) => continue,
    ///             Ok(false) => {}
    ///             Err(error) => tracing::warn!(%error, "the events of approvals cannot be read"),
    ///         }
    ///         // Others may have failed meanwhile.
    ///         let _ = timeout(Duration::from_secs(30), new_events.next()).await;
    ///     }
    /// }
    /// # let _ = deliver;
    /// ```
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the events cannot be read. What fails for a single event is logged.
    ///
    /// # Cancel safety
    /// The events that were begun are delivered again if the future is dropped.
    pub async fn deliver_due(&self) -> Result<bool, LedgerStoreError> {
        match &self.0.notices {
            Some(notices) => notices.deliver_due(&*self.0.ledger).await,
            None => Ok(false),
        }
    }

    /// Returns what tells that this process has made an event for the notifier.
    pub fn new_events(&self) -> NewEvents {
        NewEvents(self.0.notices.as_ref().map(|notices| notices.subscribe()))
    }

    /// Returns a handle that requests and resolves approvals for one principal in one chat.
    pub fn for_chat(&self, principal: &Principal, chat: &ChatId) -> ChatApprovals {
        ChatApprovals {
            inner: self.0.clone(),
            principal: principal.clone(),
            owner: principal.clone(),
            chat: chat.clone(),
            message_id: MessageId::new(""),
            can_request: true,
            grants_to_providers: false,
        }
    }

    /// Groups decisions by the message that holds their calls.
    ///
    /// If `decisions` has several entries for one approval id, a denial counts before an approval.
    /// Otherwise the first entry counts. A decision that this principal may not make, or whose
    /// approval id is not valid, is left out and recorded in the audit as
    /// [`AuditEventKind::Rejected`].
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the records cannot be read.
    pub async fn group_by_message(
        &self,
        principal: &Principal,
        decisions: Vec<ApprovalDecision>,
    ) -> Result<Vec<MessageDecisions>, LedgerStoreError> {
        group_by_message(&self.0, principal, decisions).await
    }

    /// Returns the pending approval requests of this principal in all chats, in the order in
    /// which they expire.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the records cannot be read.
    pub async fn pending(
        &self,
        principal: &Principal,
    ) -> Result<Vec<PendingApproval>, LedgerStoreError> {
        self.0.pending(RecordList::of_requester(principal)).await
    }

    /// Returns a page of the pending approval requests that this principal has made, and of those that it may decide
    /// as one of an [audience](Self::with_audiences), in the order in which they expire.
    ///
    /// A request that stays pending is on exactly one of the pages, even if others are answered meanwhile. A page
    /// ends early, and has a [`next`](PendingApprovals::next), after 1 MiB, or after 200 requests that the
    /// principal may not decide.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the records cannot be read.
    #[doc(alias = "list")]
    pub async fn inbox(
        &self,
        principal: &Principal,
        query: InboxQuery<'_>,
    ) -> Result<PendingApprovals, LedgerStoreError> {
        self.0.inbox(principal, query).await
    }

    /// Revokes a pending approval request. Returns `false` if it is not pending.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the ledger fails. It is then not known whether the request was
    /// revoked.
    #[doc(alias = "cancel")]
    pub async fn revoke(&self, record: RecordId) -> Result<bool, LedgerStoreError> {
        let rule = |record: &ApprovalRecord, now| record.revoke(RevocationReason::ByHost, now);
        let updated = self.0.update_record(None, record, rule).await?;
        Ok(updated.is_some_and(|updated| updated.output))
    }

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
    ///     let mut new_requests = approvals.new_requests();
    ///     loop {
    ///         let Ok(expired) = approvals.expire_due().await else {
    ///             sleep(Duration::from_secs(30)).await;
    ///             continue;
    ///         };
    ///         // At least once a minute: another server may have requested an approval, and be lost.
    ///         let next = expired.next_in.unwrap_or(Duration::MAX).min(Duration::from_secs(60));
    ///         let _ = timeout(next, new_requests.next()).await;
    ///     }
    /// }
    /// # let _ = expire_in_time;
    /// ```
    ///
    /// Several servers may call it at once: each request expires once, and one of them gets its record. So
    /// on the ledger of a `ChatServer` only chat servers call it. Stateless approvals have nothing that
    /// expires here.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the ledger fails. Some of the requests may have expired then.
    pub async fn expire_due(&self) -> Result<ExpiredApprovals, LedgerStoreError> {
        expire_due(&self.0).await
    }

    /// Returns what tells that this process has requested an approval that expires within a minute.
    pub fn new_requests(&self) -> NewEvents {
        NewEvents(Some(self.0.requested.subscribe()))
    }

    fn configure(self, set: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = Arc::unwrap_or_clone(self.0);
        set(&mut inner);
        Approvals(Arc::new(inner))
    }
}

/// Stateless approvals of a tool whose input an approver may change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "stateless approvals keep no changed input: let no input of the tool `{0}` be editable, or use \
     approvals with a ledger (`Approvals::new`)"
)]
pub struct EditableToolError(Box<str>);
