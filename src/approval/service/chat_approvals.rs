//! [`ChatApprovals`]: the approvals of one principal in one chat. It requests approvals and lists
//! them.

use std::collections::HashMap;
use std::sync::Arc;

use super::inbox::PendingApproval;
use super::inner::{Inner, RecordUpdate, Stateless};
use super::issued_approval::{
    CallToApprove, IssuedApproval, RequestApprovalError, event_of_request, log_refused,
};
use super::new_requests::{AskingMessage, request_all};
use super::request_ledger::RequestLedger;
use super::resolved_request::ResolvedRequest;
use super::{AuditEvent, AuditEventKind};
use crate::approval::reopen::{KnownFacts, SentCall, stateless_message_id};
use crate::approval::resumed_call::take_state;
use crate::approval::store::{LedgerStoreError, RecordList, Snapshot, system_time, update};
use crate::approval::token::Token;
use crate::approval::{
    ApprovalRecord, DeferredOutcome, DeferredToolResults, OnNewMessage, PendingToolCall, Principal,
    RecordId, RecordedDecision, RejectionReason, ResumePlan, ResumedCall, RevocationReason,
    Transition, UnixMillis, UnverifiedApprovalResponse,
};
use crate::event::{AgentEvent, ToolCall};
use crate::id::{ApprovalId, ChatId, MessageId, ToolCallId};
use crate::json::Json;
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
    /// Closes those of these requests that no key of this server has sealed, if they are answered or a newer
    /// message closes them, and returns their outcomes. The log of the chat holds their ids, so they are
    /// genuine, but this server cannot check an answer to them, for example because the key was deleted with
    /// a restore. An id of a newer format is left to a newer server.
    ///
    /// The ledger learns it first: no other server may execute a call that this chat shows as not executed.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the ledger fails. Some of the requests may be closed then.
    pub async fn close_void(
        &self,
        ids: &[ApprovalId],
        answered: &[ApprovalId],
    ) -> Result<Vec<ResolvedRequest>, LedgerStoreError> {
        let inner = &self.inner;
        let now = system_time();
        let mut closed = Vec::new();
        for id in ids {
            if Token::open(&inner.keys, id, now).is_some() {
                continue;
            }
            let Some(token) = Token::unverified(id) else { continue };
            let is_own = |record: &ApprovalRecord| {
                self.is_requested_by_owner(record)
                    && record.chat_id == self.chat
                    && token == record.token()
            };
            let is_closed = |record: &ApprovalRecord| {
                is_own(record) && (answered.contains(id) || record.is_closed_by_new_message())
            };
            let revoke = |record: &ApprovalRecord, now| {
                if is_closed(record) {
                    record.revoke(RevocationReason::ByHost, now)
                } else {
                    Transition { output: false, next: None }
                }
            };
            let principal = Some(&self.principal);
            let revoked = inner.update_record(principal, token.record, revoke).await?;
            let resolved = match revoked.filter(|revoked| is_own(&revoked.record)) {
                Some(RecordUpdate { record, at, .. }) => {
                    let outcome = record.outcome_at(at).filter(|outcome| {
                        let is_under_way = matches!(
                            outcome,
                            DeferredOutcome::Executing { .. }
                                | DeferredOutcome::ForwardedToProvider
                        );
                        !is_under_way
                    });
                    outcome.map(|outcome| (outcome, record.descriptor(at).ok()))
                }
                None => Some((DeferredOutcome::Revoked, None)),
            };
            let resolved = resolved.map(|(outcome, descriptor)| ResolvedRequest {
                approval_id: id.clone(),
                outcome,
                descriptor,
            });
            closed.extend(resolved);
        }
        Ok(closed)
    }

    /// Records the rejection of responses to calls that the chat does not hold.
    pub fn audit_unknown_calls(&self, plan: &ResumePlan) {
        let at = system_time();
        for response in plan.unverified_responses() {
            let kind = AuditEventKind::Rejected { cause: RejectionReason::NotFound };
            let event = AuditEvent::new(at, &self.principal, kind);
            let UnverifiedApprovalResponse { tool_call_id, tool_name, .. } = response;
            self.inner.audit(&event.with_call(&self.chat, tool_call_id, tool_name));
        }
    }

    /// Selects the chat of this owner instead of the principal's own chat with the same id. The
    /// principal then decides on the approval requests of that chat.
    #[must_use]
    pub fn on_behalf_of(mut self, owner: &Principal) -> Self {
        self.owner = owner.clone();
        self
    }

    /// Selects the message that holds the calls.
    pub fn in_message(self, message_id: MessageId) -> Self {
        ChatApprovals { message_id, ..self }
    }

    /// Grants approvals for providers, for a caller that stores them and claims each with
    /// [`claim_for_provider`](Self::claim_for_provider) when it sends it.
    pub fn granting_to_providers(self) -> Self {
        ChatApprovals { grants_to_providers: true, ..self }
    }

    /// Disables approval requests, for a response whose client cannot answer them.
    ///
    /// The functions that request an approval then return [`RequestApprovalError::NotAnswerable`]
    /// and store nothing. Such a client shows that the call was not executed. If there were a
    /// pending request in the ledger, the user could approve it elsewhere, and the tool would run.
    /// `Turn::approvals` has this setting if the turn needs it.
    #[must_use]
    pub fn without_requests(mut self) -> Self {
        self.can_request = false;
        self
    }

    /// Returns the pending approval requests of this chat, in the order in which they expire.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the records cannot be read.
    pub async fn pending(&self) -> Result<Vec<PendingApproval>, LedgerStoreError> {
        self.inner.pending(self.pending_list()).await
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
    pub async fn resolved_requests(
        &self,
        ids: &[ApprovalId],
    ) -> Result<Vec<ResolvedRequest>, LedgerStoreError> {
        let keys = &self.inner.keys;
        let system_now = system_time();
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

    /// Returns the outcomes of those of these approval requests that have one. Writes nothing.
    ///
    /// If the ledger has removed a record after its
    /// [retention](crate::approval::store::RECORD_RETENTION), it is not known whether the call was executed.
    pub async fn known_outcomes(
        &self,
        ids: &[ApprovalId],
    ) -> Result<Vec<ResolvedRequest>, LedgerStoreError> {
        let keys = &self.inner.keys;
        let system_now = system_time();
        let named = |id| ApprovalRecord::record_id_from_token(id, keys, system_now);
        let records: Vec<RecordId> = ids.iter().filter_map(named).collect();
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let Snapshot { now, records } = self.inner.ledger.load(&records).await?;
        let known = ids.iter().filter_map(|id| {
            let mut records = records.iter().map(|versioned| &versioned.record);
            let Some(record) = records.find(|record| Some(record.id) == named(id)) else {
                return ResolvedRequest::without_record(id, keys, (now, system_now));
            };
            let expired = record.expire(now).next;
            self.resolved_request(id, expired.as_ref().unwrap_or(record), now, system_now)
        });
        Ok(known.collect())
    }

    /// Returns these results with what the ledger knows now of open calls of this chat: a call that was
    /// pending may have been approved since, and one that was running may have a result. A call whose
    /// server was lost has an unknown outcome, also if the next approval executes it again. Writes nothing.
    ///
    /// A model call that does not come at once after a redemption needs it.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the ledger fails.
    pub async fn with_newest_results(
        &self,
        mut results: DeferredToolResults,
        open: &[PendingToolCall],
    ) -> Result<DeferredToolResults, LedgerStoreError> {
        let keys = &self.inner.keys;
        let system_now = system_time();
        let asked = open.iter().filter_map(|call| {
            let id = call.approval_id.as_ref()?;
            Some((ApprovalRecord::record_id_from_token(id, keys, system_now)?, id, call))
        });
        let asked: Vec<_> = asked.collect();
        if asked.is_empty() {
            return Ok(results);
        }
        let ids: Vec<RecordId> = asked.iter().map(|(record, ..)| *record).collect();
        let Snapshot { now, records } = self.inner.ledger.load(&ids).await?;
        for (record, id, call) in asked {
            let mut records = records.iter().map(|versioned| &versioned.record);
            let found = records.find(|found| found.id == record);
            let Some(record) = found.filter(|found| self.is_own_request(found, id, system_now))
            else {
                continue;
            };
            let expired = record.expire(now).next;
            let record = expired.as_ref().unwrap_or(record);
            let outcome = if record.can_be_executed_again(now) {
                Some(DeferredOutcome::OutcomeUnknown)
            } else {
                record.outcome_at(now)
            };
            let descriptor = record.descriptor(now).ok();
            let newest =
                outcome.map(|outcome| call.with_outcome(outcome).described_by(descriptor.as_ref()));
            results.update(call, newest);
        }
        Ok(results)
    }

    /// Returns the outcome of the request with this id. `None` if it is pending, if its call can be
    /// executed again, or if it belongs to another chat.
    fn resolved_request(
        &self,
        id: &ApprovalId,
        record: &ApprovalRecord,
        now: UnixMillis,
        system_now: UnixMillis,
    ) -> Option<ResolvedRequest> {
        let is_own = self.is_own_request(record, id, system_now);
        if record.can_be_executed_again(now) {
            return None;
        }
        let granted = record.granted().filter(|_| self.grants_to_providers);
        let outcome = granted.or_else(|| record.outcome_at(now)).filter(|_| is_own)?;
        let descriptor = record.descriptor(now).ok();
        Some(ResolvedRequest { approval_id: id.clone(), outcome, descriptor })
    }

    /// Takes what a call goes on with, whose tool has asked for the calls with these approval requests.
    /// It can be taken once. Returns `None` if it was taken before, if one of the requests is not of this
    /// message or was not made inside this call with this tool and input, or if one has no result yet.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the ledger fails. The state may be taken.
    pub async fn take_outer_call(
        &self,
        call: &PendingToolCall,
        asked: &[ApprovalId],
    ) -> Result<Option<ResumedCall>, LedgerStoreError> {
        let keys = &self.inner.keys;
        let system_now = system_time();
        let named = |id: &ApprovalId| ApprovalRecord::record_id_from_token(id, keys, system_now);
        let ids: Vec<RecordId> = asked.iter().filter_map(named).collect();
        let mut retries = Retries::default();
        let Snapshot { now, records } = loop {
            match self.inner.ledger.load(&ids).await {
                Ok(snapshot) => break snapshot,
                Err(error) => retries.pause(MAX_FAILURES, error, "load approvals").await?,
            }
        };
        let records: Vec<ApprovalRecord> =
            records.into_iter().map(|versioned| versioned.record).collect();
        let is_own = |record: &ApprovalRecord| {
            record.message_id == self.message_id
                && asked.iter().any(|id| self.is_own_request(record, id, system_now))
        };
        let all_own = records.len() == ids.len() && records.iter().all(is_own);
        let Some(resumed) = ResumedCall::of(call, &records, now).filter(|_| all_own) else {
            return Ok(None);
        };
        for record in records {
            let taken = update(&*self.inner.ledger, record.id, |record, _| take_state(record));
            if taken.await?.is_some_and(|(_, is_taken)| is_taken) {
                return Ok(Some(resumed));
            }
        }
        Ok(None)
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
    /// returns. For several calls see [`request_approvals`](Self::request_approvals).
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
        let mut call = CallToApprove::new(tool_call_id.clone(), tool_name, input.clone());
        call.description = description.map(Into::into);
        self.request_one(message_id, call).await
    }

    async fn request_one(
        &self,
        message_id: &MessageId,
        call: CallToApprove,
    ) -> Result<IssuedApproval, RequestApprovalError> {
        let requested = self.request_approvals(message_id, vec![call]).await.into_iter().next();
        // Never `None`: there is a result for each call.
        requested.unwrap_or(Err(RequestApprovalError::NotAnswerable))
    }

    /// Requests the approval of the user for several tool calls of this message, and returns a result
    /// for each, in the order of the calls.
    ///
    /// The ledger stores the requests in one step, or in several of at most 64 requests. If the limits
    /// of pending requests are reached, the later calls are refused. Requests that expire at the same
    /// time are listed in the order of the calls.
    ///
    /// The errors of the results are those of [`request_approval`](Self::request_approval). If one is
    /// [`RequestApprovalError::Ledger`], no approval of these calls was requested.
    ///
    /// # Cancel safety
    /// If the future is dropped, the requests that may be stored are revoked.
    pub async fn request_approvals(
        &self,
        message_id: &MessageId,
        calls: Vec<CallToApprove>,
    ) -> Vec<Result<IssuedApproval, RequestApprovalError>> {
        let count = calls.len();
        if !self.can_request {
            return (0..count).map(|_| Err(RequestApprovalError::NotAnswerable)).collect();
        }
        let message = AskingMessage {
            inner: &self.inner,
            principal: &self.principal,
            owner: &self.owner,
            chat: &self.chat,
            id: message_id,
        };
        request_all(message, calls).await.unwrap_or_else(|error| {
            (0..count).map(|_| Err(RequestApprovalError::Ledger(error.clone()))).collect()
        })
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
    /// use ui_message_stream::json::JsonError;
    /// use ui_message_stream::{AgentEvent, Json};
    ///
    /// async fn ask(approvals: &ChatApprovals, path: &str) -> Result<[AgentEvent; 2], JsonError> {
    ///     let call = ToolCall::new("call_1", "delete_file");
    ///     let input = Json::try_from(serde_json::json!({ "path": path }))?;
    ///     let asked = approvals.request_approval_of(&call, &input).await;
    ///     Ok([AgentEvent::tool_input(call, input), asked])
    /// }
    /// ```
    ///
    /// The input should be an object: assistant-ui shows nothing of any other input, and its user approves what is not
    /// shown.
    #[must_use = "the user is asked only if the agent emits the event"]
    pub async fn request_approval_of(&self, call: &ToolCall, input: &Json) -> AgentEvent {
        let message = &self.message_id;
        let issued = self.request_approval(message, &call.id, &call.tool_name, input, None).await;
        log_refused(std::slice::from_ref(&issued));
        event_of_request(&call.id, issued)
    }

    /// Requests the approval of the user for several tool calls at once, as
    /// [`request_approval_of`](Self::request_approval_of) does for one. Returns the event of each
    /// call, in the order of the calls.
    ///
    /// An agent whose model makes several calls in one step uses this function, because the ledger
    /// then stores all requests in one step.
    #[must_use = "the user is asked only if the agent emits the events"]
    pub async fn request_approvals_of(&self, calls: &[(ToolCall, Json)]) -> Vec<AgentEvent> {
        let to_approve = calls.iter().map(|(call, input)| {
            CallToApprove::new(call.id.clone(), &*call.tool_name, input.clone())
        });
        let issued = self.request_approvals(&self.message_id, to_approve.collect()).await;
        log_refused(&issued);
        let events = calls.iter().zip(issued);
        events.map(|((call, _), issued)| event_of_request(&call.id, issued)).collect()
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
        let mut call = CallToApprove::new(tool_call_id.clone(), tool_name, input.clone());
        call.description = description.map(Into::into);
        self.request_one(message_id, call.provider_executed()).await
    }

    /// Returns whether the owner of this chat is the requester. Another principal may have a chat
    /// with the same id.
    pub(super) fn is_requested_by_owner(&self, record: &ApprovalRecord) -> bool {
        record.requester == self.owner
    }

    /// Returns these approvals with a ledger that holds the records of a request, for a host that
    /// keeps no records.
    pub(super) fn with_records_of(&self, plan: &ResumePlan, guard: &Stateless) -> Self {
        let inner = &self.inner;
        let now = system_time();
        let mut records = Vec::new();
        let mut approved = HashMap::new();
        for (approval, call) in plan.sent_calls() {
            let Some(mut facts) = self.known_facts(call, stateless_message_id()) else { continue };
            if guard.guard.is_none() && !facts.on_new_message.closes() {
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
        let tool = self.inner.tool(call.tool_name, call.provider_executed)?;
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

    pub(super) fn pending_list(&self) -> RecordList {
        RecordList::of_chat(&self.owner, &self.chat)
    }

    pub(super) fn decision(&self, now: UnixMillis, reason: Option<String>) -> RecordedDecision {
        let decided_by = self.principal.clone();
        RecordedDecision { decided_by, decided_at: now, reason, changed_input: None }
    }
}
