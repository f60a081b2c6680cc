//! [`ChatApprovals`]: the approvals of one principal in one chat. It requests approvals and lists
//! them; [`IssuedApproval`] is the request that the agent emits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::inner::{Inner, PendingApproval, RecordUpdate, Stateless, random_bytes};
use super::request_ledger::RequestLedger;
use super::{AuditEventKind, ToolInfo};
use crate::approval::reopen::{KnownFacts, SentCall, canonical_input, stateless_message_id};
use crate::approval::store::{
    LedgerStoreError, PendingFilter, PendingQuery, Snapshot, system_time,
};
use crate::approval::{
    ApprovalRecord, DeferredOutcome, DefinitionDigest, InexactInputError, NOT_ANSWERABLE,
    NewApprovalRequest, OnNewMessage, Principal, RecordId, RecordedDecision, ResumePlan,
    RevocationReason, UnixMillis,
};
use crate::event::{AgentEvent, ApprovalRequestDetails, ToolCall};
use crate::id::{ApprovalId, ChatId, MessageId, ToolCallId, log_text};
use crate::json::{Json, JsonError};
use crate::retry::{MAX_FAILURES, Retries};

/// The approvals of one principal in one chat. Created by
/// [`Approvals::for_chat`](super::Approvals::for_chat).
#[derive(Debug, Clone)]
pub struct ChatApprovals {
    pub(super) inner: Arc<Inner>,
    /// The principal that requests and decides.
    pub(super) principal: Principal,
    /// The owner of the chat.
    pub(super) owner: Principal,
    pub(super) chat: ChatId,
    /// The message that holds the calls of [`request_approval_of`](Self::request_approval_of). Empty
    /// for a host that keeps no messages.
    pub(super) message_id: MessageId,
    /// Whether approvals may be requested.
    pub(super) can_request: bool,
    /// Whether an approval for a provider is granted when it is redeemed, and claimed later, with
    /// [`claim_for_provider`](Self::claim_for_provider). Otherwise it is claimed at once.
    pub(super) grants_to_providers: bool,
}

impl ChatApprovals {
    /// Selects the chat of this owner instead of the principal's own chat with the same id. The
    /// principal then decides on the approval requests of that chat.
    #[must_use]
    pub fn on_behalf_of(mut self, owner: &Principal) -> Self {
        self.owner = owner.clone();
        self
    }

    /// Selects the message that holds the calls.
    pub(crate) fn in_message(self, message_id: MessageId) -> Self {
        ChatApprovals { message_id, ..self }
    }

    /// Grants approvals for providers, for a caller that stores them and claims each with
    /// [`claim_for_provider`](Self::claim_for_provider) when it sends it.
    pub(crate) fn granting_to_providers(self) -> Self {
        ChatApprovals { grants_to_providers: true, ..self }
    }

    /// Disables approval requests, for a response whose client cannot answer them.
    ///
    /// The functions that request an approval then return [`RequestApprovalError::NotAnswerable`]
    /// and store nothing. Such a client shows that the call was not executed. If there were a
    /// pending request in the ledger, the user could approve it elsewhere, and the tool would run.
    /// [`Turn::approvals`](crate::chat::Turn::approvals) has this setting if the turn needs it.
    #[must_use]
    pub fn without_requests(mut self) -> Self {
        self.can_request = false;
        self
    }

    /// Returns the pending approval requests of this chat, oldest first.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the records cannot be read.
    pub async fn pending(&self) -> Result<Vec<PendingApproval>, LedgerStoreError> {
        self.inner.pending(self.pending_filter()).await
    }

    /// Returns the outcomes of these approval requests. It does not matter which server received
    /// the decisions, or whether that server still runs.
    ///
    /// Ids that have no outcome yet or do not belong to this chat are left out. A pending request
    /// whose time has passed expires now, and its outcome is [`DeferredOutcome::Expired`].
    ///
    /// A host calls this for the approval requests that are still open in a history: the tool may
    /// have been executed without a record of it in the history.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the ledger fails.
    pub async fn outcomes(
        &self,
        ids: &[ApprovalId],
    ) -> Result<Vec<(ApprovalId, DeferredOutcome)>, LedgerStoreError> {
        let resolved = self.resolved_requests(ids).await?.into_iter();
        Ok(resolved.map(|resolved| (resolved.approval_id, resolved.outcome)).collect())
    }

    /// Returns the outcomes of these approval requests, as [`outcomes`](Self::outcomes) does, each
    /// with the data that the client shows.
    pub(crate) async fn resolved_requests(
        &self,
        ids: &[ApprovalId],
    ) -> Result<Vec<ResolvedRequest>, LedgerStoreError> {
        let (keys, system_now) = (&self.inner.keys, system_time());
        let mut resolved = Vec::new();
        for id in ids {
            let Some(record) = ApprovalRecord::record_id_from_token(id, keys, system_now) else {
                continue;
            };
            let expire = |record: &ApprovalRecord, now| record.expire(now);
            let updated = self.inner.update_record(None, record, expire).await?;
            resolved.extend(updated.and_then(|RecordUpdate { record, at, .. }| {
                self.resolved_request(id, &record, at, system_now)
            }));
        }
        Ok(resolved)
    }

    /// Returns the outcomes of those of these approval requests that can no longer be answered and
    /// whose calls did not run: expired, superseded, lapsed and revoked. Writes nothing.
    pub(crate) async fn closed_requests(
        &self,
        ids: &[ApprovalId],
    ) -> Result<Vec<ResolvedRequest>, LedgerStoreError> {
        let (keys, system_now) = (&self.inner.keys, system_time());
        let named = |id| ApprovalRecord::record_id_from_token(id, keys, system_now);
        let records: Vec<RecordId> = ids.iter().filter_map(named).collect();
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let Snapshot { now, records } = self.inner.ledger.load(&records).await?;
        let closed = ids.iter().filter_map(|id| {
            let record = records.iter().map(|versioned| &versioned.record);
            let record = record.clone().find(|record| Some(record.id) == named(id))?;
            let expired = record.expire(now).next;
            self.resolved_request(id, expired.as_ref().unwrap_or(record), now, system_now)
        });
        Ok(closed.filter(|closed| closed.outcome.is_closed_undecided()).collect())
    }

    /// Returns the outcome of the request with this id. `None` if it is pending, or if it belongs to
    /// another chat.
    fn resolved_request(
        &self,
        id: &ApprovalId,
        record: &ApprovalRecord,
        now: UnixMillis,
        system_now: UnixMillis,
    ) -> Option<ResolvedRequest> {
        let is_own = self.is_own_request(record, id, system_now);
        let granted = record.granted().filter(|_| self.grants_to_providers);
        let outcome = granted.or_else(|| record.outcome_at(now)).filter(|_| is_own)?;
        let descriptor = record.descriptor(now).ok();
        Some(ResolvedRequest { approval_id: id.clone(), outcome, descriptor })
    }

    /// Returns whether this id was sealed for this record, and the record belongs to this chat.
    pub(super) fn is_own_request(
        &self,
        record: &ApprovalRecord,
        id: &ApprovalId,
        system_now: UnixMillis,
    ) -> bool {
        self.is_requested_by_owner(record)
            && record.chat_id == self.chat
            && record.is_bound_to(id, &self.inner.keys, system_now)
    }

    /// Requests the approval of the user for a tool call of this message.
    ///
    /// The user reads `description`. If it is `None`, the user reads the name of the tool and the
    /// beginning of the input. The approval request is stored in the ledger before this function
    /// returns.
    ///
    /// # Errors
    /// - [`RequestApprovalError::InexactInput`] if a browser would show an input that differs from
    ///   `input`, or if `input` is longer than 256 KiB.
    /// - [`RequestApprovalError::Descriptor`] if the texts of the request cannot be written as
    ///   [`Json`].
    /// - [`RequestApprovalError::UnknownTool`] if the toolbox has no such tool.
    /// - [`RequestApprovalError::TooManyPending`] if too many approval requests of this chat or of
    ///   its owner are pending.
    /// - [`RequestApprovalError::DescriptionTooLong`] if `description` is too long.
    /// - [`RequestApprovalError::NotAnswerable`] if the client of the response cannot answer.
    /// - [`RequestApprovalError::Ledger`] if the ledger fails for half a minute.
    pub async fn request_approval(
        &self,
        message_id: &MessageId,
        tool_call_id: &ToolCallId,
        tool_name: &str,
        input: &Json,
        description: Option<&str>,
    ) -> Result<IssuedApproval, RequestApprovalError> {
        let tool = self.inner.toolbox.tool(tool_name);
        let tool = tool.ok_or_else(|| RequestApprovalError::UnknownTool(tool_name.into()))?;
        let call = (message_id, tool_call_id, tool_name);
        let mut request = self.new_request(call, input, description, tool.definition);
        request.idempotent = tool.idempotent;
        request.approval_ttl = tool.approval_ttl.unwrap_or(request.approval_ttl);
        request.on_new_message = tool.on_new_message.unwrap_or(request.on_new_message);
        request.decided_by_others = tool.decided_by_others;
        self.issue(request).await
    }

    /// Requests the approval of the user for a tool call, in the agent of a chat server
    /// (`turn.approvals`) or for a host that keeps no messages. Returns the event to emit after
    /// [`AgentEvent::ToolInput`].
    ///
    /// The user reads the name of the tool and the beginning of the input.
    ///
    /// If the approval cannot be requested, the event is [`AgentEvent::ToolFailed`] with
    /// [`RequestApprovalError::error_text`], which the user and the model read, and the error is
    /// logged. The call then does not run and has its result: no decision follows. An agent that
    /// waits for one checks that the event is [`AgentEvent::ApprovalRequested`].
    /// [`request_approval`](Self::request_approval) returns the error instead.
    ///
    /// ```
    /// use ui_message_stream::approval::ChatApprovals;
    /// use ui_message_stream::event::ToolCall;
    /// use ui_message_stream::{AgentEvent, Json};
    ///
    /// async fn ask(approvals: &ChatApprovals, path: &str) -> [AgentEvent; 2] {
    ///     let (call, input) = (ToolCall::new("call_1", "delete_file"), Json::string(path));
    ///     let asked = approvals.request_approval_of(&call, &input).await;
    ///     [AgentEvent::tool_input(call, input), asked]
    /// }
    /// ```
    #[must_use = "the user is asked only if the agent emits the event"]
    pub async fn request_approval_of(&self, call: &ToolCall, input: &Json) -> AgentEvent {
        let message = &self.message_id;
        match self.request_approval(message, &call.id, &call.tool_name, input, None).await {
            Ok(issued) => issued.event(call.id.clone()),
            Err(error) => {
                let tool = &*log_text(&call.tool_name);
                tracing::warn!(%error, tool, "the approval of a tool call could not be requested");
                AgentEvent::tool_failed(call.id.clone(), error.error_text())
            }
        }
    }

    /// Requests the approval of the user for a tool call that the provider executes.
    ///
    /// [`resolve`](Self::resolve) returns the approval response once, as
    /// [`DeferredOutcome::ForwardToProvider`](crate::approval::DeferredOutcome::ForwardToProvider),
    /// and the agent must send it to the provider. The tool belongs to the provider: this crate
    /// never executes it and never asks the toolbox about it.
    /// [`Approvals::authorize_decision`](super::Approvals::authorize_decision) applies as for any
    /// other call.
    ///
    /// # Errors
    /// As for [`request_approval`](Self::request_approval), but never for an unknown tool.
    pub async fn request_provider_approval(
        &self,
        message_id: &MessageId,
        tool_call_id: &ToolCallId,
        tool_name: &str,
        input: &Json,
        description: Option<&str>,
    ) -> Result<IssuedApproval, RequestApprovalError> {
        let definition = provider_definition(tool_name);
        let call = (message_id, tool_call_id, tool_name);
        let mut request = self.new_request(call, input, description, definition);
        request.provider_executed = true;
        self.issue(request).await
    }

    /// Returns whether the owner of this chat is the requester. Another principal may have a chat
    /// with the same id.
    pub(super) fn is_requested_by_owner(&self, record: &ApprovalRecord) -> bool {
        record.requester == self.owner
    }

    /// Returns these approvals with a ledger that holds the records of a request, for a host that
    /// keeps no records.
    pub(super) fn with_records_of(&self, plan: &ResumePlan, guard: &Stateless) -> Self {
        let (inner, now) = (&self.inner, system_time());
        let (mut records, mut approved) = (Vec::new(), HashMap::new());
        for (approval, call) in plan.sent_calls() {
            let Some(mut facts) = self.known_facts(call, stateless_message_id()) else { continue };
            if guard.guard.is_none() {
                // Every later message repeats the approval, which would execute the call again.
                facts.on_new_message = OnNewMessage::Lapse;
            }
            let Some(record) = call.reopen(&facts, &inner.keys, now) else { continue };
            if let Some(reason) = approval {
                let decision = self.decision(now, reason.map(str::to_owned));
                approved.insert(record.id, decision);
            }
            records.push(record);
        }
        let ledger = Arc::new(RequestLedger::new(records, approved, guard.guard.clone()));
        let inner = Arc::new(Inner { ledger, ..Inner::clone(inner) });
        ChatApprovals { inner, ..self.clone() }
    }

    /// Returns what this server knows about a call in a message, unless its tool is unknown.
    fn known_facts(&self, call: SentCall<'_>, message_id: MessageId) -> Option<KnownFacts> {
        let tool = match call.provider_executed {
            true => ToolInfo::new(provider_definition(call.tool_name)),
            false => self.inner.toolbox.tool(call.tool_name)?,
        };
        Some(KnownFacts {
            requester: self.owner.clone(),
            chat_id: self.chat.clone(),
            message_id,
            definition: tool.definition,
            idempotent: tool.idempotent,
            on_new_message: tool.on_new_message.unwrap_or(self.inner.on_new_message),
            decided_by_others: tool.decided_by_others,
        })
    }

    /// Returns whether the approval id of a call was sealed for exactly this call in the own chat of this
    /// principal. It may have been and this is `false`, if the client has changed the text of the input.
    pub(super) fn has_sealed(&self, call: SentCall<'_>, message_id: &MessageId) -> bool {
        let facts = self.known_facts(call, message_id.clone());
        self.owner == self.principal
            && facts
                .is_some_and(|facts| call.reopen(&facts, &self.inner.keys, system_time()).is_some())
    }

    pub(super) fn pending_filter(&self) -> PendingFilter<'_> {
        PendingFilter::Chat { requester: &self.owner, chat: &self.chat }
    }

    pub(super) fn decision(&self, now: UnixMillis, reason: Option<String>) -> RecordedDecision {
        RecordedDecision { decided_by: self.principal.clone(), decided_at: now, reason }
    }

    fn new_request(
        &self,
        (message_id, tool_call_id, tool_name): (&MessageId, &ToolCallId, &str),
        input: &Json,
        description: Option<&str>,
        definition: DefinitionDigest,
    ) -> NewApprovalRequest {
        NewApprovalRequest {
            requester: self.owner.clone(),
            chat_id: self.chat.clone(),
            message_id: message_id.clone(),
            tool_call_id: tool_call_id.shortened().unwrap_or_else(|| tool_call_id.clone()),
            tool_name: tool_name.into(),
            definition,
            input: input.clone(),
            provider_executed: false,
            idempotent: false,
            on_new_message: self.inner.on_new_message,
            decided_by_others: false,
            description: description.map(Into::into),
            approval_ttl: self.inner.approval_ttl,
        }
    }

    /// Checks whether one more approval may be requested. Returns the time of the ledger.
    async fn check_pending(&self) -> Result<UnixMillis, RequestApprovalError> {
        let mut now = UnixMillis::default();
        for (filter, limit, setting) in self.pending_limits() {
            let query = PendingQuery { filter, after: None, limit: 0 };
            let pending = self.inner.ledger.pending(query).await?;
            if pending.unexpired >= limit {
                return Err(RequestApprovalError::TooManyPending { limit, setting });
            }
            now = pending.now;
        }
        Ok(now)
    }

    /// Checks the limits after this record was inserted, because others may have been inserted at
    /// the same time.
    ///
    /// If there are too many, the newest ones are revoked. An older one waits for that, but not
    /// long: a newer one that was checked before this one was inserted stays.
    async fn check_inserted(&self, record: &ApprovalRecord) -> Result<(), RequestApprovalError> {
        for (filter, limit, setting) in self.pending_limits() {
            let too_many = RequestApprovalError::TooManyPending { limit, setting };
            let mut looks = 0;
            loop {
                let query = PendingQuery { filter, after: None, limit: 0 };
                if self.inner.ledger.pending(query).await?.unexpired <= limit {
                    break;
                }
                looks += 1;
                if looks > MAX_LOOKS {
                    return Err(too_many);
                }
                let (now, records) = self.inner.pending_records(filter).await?;
                let others = records.iter().filter(|other| {
                    other.expires_at > now
                        && (other.requested_at, other.id) < (record.requested_at, record.id)
                });
                if others.count() >= limit {
                    return Err(too_many);
                }
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Returns the limits of pending approval requests: which are counted, how many there may be,
    /// and the setting.
    fn pending_limits(&self) -> [(PendingFilter<'_>, usize, &'static str); 2] {
        let limits = &self.inner.limits;
        let user = PendingFilter::Requester(&self.owner);
        [
            (user, limits.max_user_approvals(), "with_max_user_approvals"),
            (self.pending_filter(), limits.max_chat_approvals(), "with_max_chat_approvals"),
        ]
    }

    /// Stores the record of an approval request in the ledger and creates its approval id.
    ///
    /// Each operation is repeated while the ledger fails, as the operations of a turn are.
    async fn issue(
        &self,
        mut request: NewApprovalRequest,
    ) -> Result<IssuedApproval, RequestApprovalError> {
        if !self.can_request {
            return Err(RequestApprovalError::NotAnswerable);
        }
        let inner = &self.inner;
        if inner.stateless.is_some() {
            // The record is made again from what the client sends back.
            request.input = canonical_input(&request.input)?;
            request.message_id = stateless_message_id();
        }
        let limit = inner.limits.max_description_bytes();
        if request.description.as_ref().is_some_and(|description| description.len() > limit) {
            return Err(RequestApprovalError::DescriptionTooLong { limit });
        }
        let mut retries = Retries::default();
        let now = loop {
            match self.check_pending().await {
                Ok(now) => break now,
                Err(error) => pause_after(error, &mut retries).await?,
            }
        };
        let record = request.into_record(&inner.keys, RecordId::from_bytes(random_bytes()), now)?;
        // Never `None`: the record was made with the active key of the same key ring.
        let approval_id =
            record.approval_id(&inner.keys, now).ok_or(RequestApprovalError::NoKey)?;
        let descriptor = record.descriptor(now)?;
        let mut unissued = Unissued { approvals: self, record: record.id, may_be_stored: false };
        loop {
            // Until the ledger has answered, it is not known whether it has inserted the record.
            let has_failed = std::mem::replace(&mut unissued.may_be_stored, true);
            match inner.ledger.insert(&record).await {
                Ok(false) if !has_failed => {
                    // It is the record of another request, which must not be revoked.
                    unissued.may_be_stored = false;
                    let error = LedgerStoreError::new("a record with this id already exists");
                    return Err(error.into());
                }
                // If it already exists, the reply to an attempt before was lost.
                Ok(_) => break,
                Err(error) => {
                    if let Err(error) = pause_after(error.into(), &mut retries).await {
                        unissued.revoke().await;
                        return Err(error);
                    }
                }
            }
        }
        let expires_at = record.expires_at;
        inner.audit_record(now, &record, &self.principal, AuditEventKind::Requested { expires_at });
        // Others may have been requested since the first check.
        while let Err(error) = self.check_inserted(&record).await {
            if let Err(error) = pause_after(error, &mut retries).await {
                unissued.revoke().await;
                return Err(error);
            }
        }
        unissued.may_be_stored = false;
        Ok(IssuedApproval { approval_id, record: record.id, descriptor })
    }

    /// Revokes a request. Returns `false` if there is no such record.
    async fn revoke(&self, record: RecordId) -> Result<bool, LedgerStoreError> {
        let rule = |record: &ApprovalRecord, now| record.revoke(RevocationReason::ByHost, now);
        Ok(self.inner.update_record(Some(&self.principal), record, rule).await?.is_some())
    }

    /// Revokes a request that no page shows, which may be stored or be stored late. The ledger may
    /// fail.
    async fn revoke_late(self, record: RecordId) {
        let mut looks = 0;
        for _ in 0..MAX_REVOCATIONS {
            match self.revoke(record).await {
                Ok(true) => return,
                Ok(false) if looks == MAX_LATE_LOOKS => return,
                // An insert may still be under way.
                Ok(false) => looks += 1,
                Err(error) => {
                    tracing::warn!(%record, %error, "an approval that no page shows may be pending");
                }
            }
            sleep(REVOCATION_INTERVAL).await;
        }
        tracing::error!(%record, "an approval that no page shows could not be revoked");
    }
}

/// The record of a request that is not issued yet. If the request fails, or its future is dropped,
/// the record may be stored nevertheless. No page shows it, so it must not be approved in a list of
/// pending requests.
struct Unissued<'a> {
    approvals: &'a ChatApprovals,
    record: RecordId,
    may_be_stored: bool,
}

impl Unissued<'_> {
    /// Revokes the record at once, because requests that were made before may wait for that. If the
    /// ledger does not know the record or fails, the record is revoked later.
    async fn revoke(mut self) {
        let revoked = self.approvals.revoke(self.record).await;
        self.may_be_stored = !revoked.unwrap_or(false);
    }
}

impl Drop for Unissued<'_> {
    fn drop(&mut self) {
        if let Some(runtime) = Handle::try_current().ok().filter(|_| self.may_be_stored) {
            runtime.spawn(self.approvals.clone().revoke_late(self.record));
        }
    }
}

/// Waits until an operation of the ledger may be repeated. Returns the error if it is not repeated.
async fn pause_after(
    error: RequestApprovalError,
    retries: &mut Retries,
) -> Result<(), RequestApprovalError> {
    match error {
        RequestApprovalError::Ledger(error) => {
            Ok(retries.pause(MAX_FAILURES, error, "request an approval").await?)
        }
        error => Err(error),
    }
}

/// The time between two attempts to revoke a request that no page shows.
const REVOCATION_INTERVAL: Duration = Duration::from_secs(5);

/// How many attempts there are to revoke such a request: an hour.
const MAX_REVOCATIONS: u32 = 720;

/// How often such a request is looked for again if it is not stored: 30 s.
const MAX_LATE_LOOKS: u32 = 6;

/// Returns the definition of a tool that belongs to the provider.
fn provider_definition(tool_name: &str) -> DefinitionDigest {
    DefinitionDigest::new(tool_name, "", &Json::null())
}

/// An approval request that has an outcome.
#[derive(Debug)]
pub(crate) struct ResolvedRequest {
    pub(crate) approval_id: ApprovalId,
    pub(crate) outcome: DeferredOutcome,
    /// The data that the client shows beside the tool call.
    pub(crate) descriptor: Option<Json>,
}

/// An approval request whose record is stored in the ledger: the data that the client shows to the
/// user.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct IssuedApproval {
    /// The approval id that the answer must carry.
    pub approval_id: ApprovalId,
    /// The id of the record in the ledger.
    pub record: RecordId,
    /// The data that the client shows beside the tool call.
    pub descriptor: Json,
}

debug_without_content!(IssuedApproval { approval_id, record });

/// The reason why no approval was requested.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestApprovalError {
    /// The client would show an input that differs from the one that the tool would receive, or the
    /// input is too long. The host must report the error to the model, as for any input that a tool
    /// does not accept.
    #[error("the input of a call that needs approval: {0}")]
    InexactInput(#[from] InexactInputError),
    /// A text of the request cannot be written as [`Json`].
    #[error("the question cannot be sent: {0}")]
    Descriptor(#[from] JsonError),
    /// The toolbox has no tool with this name.
    #[error(
        "`Approvals` has no tool `{0}`: add `.tool(\"{0}\", description, &input_schema)` to its \
         `ToolList`, or return the tool from `Toolbox::tool`"
    )]
    UnknownTool(Box<str>),
    /// The approval id cannot be created: the keys do not hold the key of the record.
    #[error("the approval id cannot be sealed")]
    NoKey,
    /// Too many approval requests of the chat or of its owner are pending.
    #[error("{limit} approval requests are pending; `ChatLimits::{setting}` allows more")]
    TooManyPending {
        /// The limit.
        limit: usize,
        /// The setting of [`ChatLimits`](crate::limits::ChatLimits) that allows more.
        setting: &'static str,
    },
    /// The description is longer than
    /// [`ChatLimits::with_max_description_bytes`](crate::limits::ChatLimits::with_max_description_bytes)
    /// allows.
    #[error(
        "the description of the call is longer than {limit} bytes; \
         `ChatLimits::with_max_description_bytes` allows more"
    )]
    DescriptionTooLong {
        /// The limit.
        limit: usize,
    },
    /// The client of the response cannot answer approval requests: its version does not know them
    /// ([`Version::V5`](crate::chunk::Version::V5)), or they are
    /// [disabled](ChatApprovals::without_requests).
    #[error("the client of this response cannot answer approval requests")]
    NotAnswerable,
    /// The ledger failed. An approval request that is not in the ledger cannot be approved.
    #[error(transparent)]
    Ledger(#[from] LedgerStoreError),
}

impl RequestApprovalError {
    /// Returns the error text of the call, which the model and the user read.
    pub fn error_text(&self) -> String {
        match self {
            RequestApprovalError::InexactInput(error) => error.to_string(),
            RequestApprovalError::TooManyPending { .. } => TOO_MANY_PENDING.to_owned(),
            RequestApprovalError::DescriptionTooLong { .. } => DESCRIPTION_TOO_LONG.to_owned(),
            RequestApprovalError::NotAnswerable => NOT_ANSWERABLE.to_owned(),
            _ => NOT_REQUESTED.to_owned(),
        }
    }
}

/// How often a new request is checked while newer ones, which exceed the limit, are revoked.
const MAX_LOOKS: usize = 16;

/// The error text of a call that needs approval, if the approval could not be requested.
const NOT_REQUESTED: &str = "This tool call was not executed: nobody could be asked to approve it.";

/// The error text of a call that needs approval, if its description is too long.
const DESCRIPTION_TOO_LONG: &str =
    "This tool call was not executed: what the user would have to read is too long.";

/// The error text of a call that needs approval, if too many approval requests are pending.
const TOO_MANY_PENDING: &str = "This tool call was not executed: too many questions wait.";

impl IssuedApproval {
    /// Returns the event that the agent must emit for this approval request.
    pub fn event(&self, tool_call_id: ToolCallId) -> AgentEvent {
        AgentEvent::ApprovalRequested {
            tool_call_id,
            approval_id: self.approval_id.clone(),
            details: Some(self.details()),
        }
    }

    /// Returns the details of the event, which hold the descriptor.
    pub fn details(&self) -> Box<ApprovalRequestDetails> {
        Box::new(ApprovalRequestDetails {
            descriptor: Some(self.descriptor.clone()),
            signature: None,
        })
    }
}
