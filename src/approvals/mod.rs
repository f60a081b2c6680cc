//! [`Approvals`]: asking a person, and running what was approved, once.
//!
//! ```text
//! agent ──ask──▶ Asked ──▶ the person ──▶ the next request ──resolve──▶ Resolved ──▶ agent
//!                  └──▶ ledger ◀──────────────claim, complete──────────────┘
//! ```
//!
//! What counts is decided in the [approval](crate::approval) room; here the ledger is asked, the
//! tools are run, and the audit is told. A call that was claimed runs on a task of its own, so that
//! its outcome is stored whoever still waits for it.

mod asking;
mod audit;
mod resolve;
mod run;
mod toolbox;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::asking::{AskError, Asked};
pub use self::audit::{AuditEvent, AuditSink, Happened, TracingAudit};
pub use self::resolve::Resolved;
pub use self::toolbox::{ApprovedCall, NoTools, ToolFacts, Toolbox};

use crate::approval::{
    AiSdkSignature, ApprovalRecord, Decision, DeferredOutcome, KeyRing, PersonsDecision, Principal,
    RecordId, RefusalCause, ResumePlan, Revocation, SignatureForm, Transition, UnixMillis,
};
use crate::id::{ApprovalId, ChatId, MessageId};
use crate::ledger_store::{
    Asked as Whose, LedgerStore, LedgerStoreError, MemoryLedger, change, system_time,
};

/// Asks people, and runs what they approved, once.
///
/// Made with the tools alone it seals with a random key and keeps its ledger in memory: a restart
/// refuses what was asked before. Servers that share chats share a [key](Self::with_keys) and a
/// [ledger](Self::with_ledger).
///
/// Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub struct Approvals(Arc<Desk>);

#[derive(Clone)]
struct Desk {
    keys: KeyRing,
    ledger: Arc<dyn LedgerStore>,
    toolbox: Arc<dyn Toolbox>,
    audit: Arc<dyn AuditSink>,
    may_decide: Arc<MayDecide>,
    signature: Option<(AiSdkSignature, SignatureForm)>,
    time_to_answer: Duration,
    lease: Duration,
}

type MayDecide = dyn Fn(&Principal, &ApprovalRecord) -> bool + Send + Sync;

impl Approvals {
    /// Approvals of these tools.
    ///
    /// # Panics
    /// If the system gives no random numbers.
    pub fn new(toolbox: impl Toolbox) -> Self {
        let key = KeyRing::new(u32::from_be_bytes(random()), &random::<32>());
        Approvals(Arc::new(Desk {
            keys: key.expect("32 bytes are enough for a key"),
            ledger: Arc::new(MemoryLedger::new()),
            toolbox: Arc::new(toolbox),
            audit: Arc::new(TracingAudit),
            may_decide: Arc::new(|_, _| false),
            signature: None,
            time_to_answer: Duration::from_secs(60 * 60),
            lease: Duration::from_secs(30),
        }))
    }

    /// Seals with these keys.
    #[must_use]
    pub fn with_keys(self, keys: KeyRing) -> Self {
        self.with(|desk| desk.keys = keys)
    }

    /// Keeps the records there.
    #[must_use]
    pub fn with_ledger(self, ledger: Arc<dyn LedgerStore>) -> Self {
        self.with(|desk| desk.ledger = ledger)
    }

    /// Tells this sink what happens, instead of `tracing`.
    #[must_use]
    pub fn with_audit(self, audit: impl AuditSink) -> Self {
        self.with(|desk| desk.audit = Arc::new(audit))
    }

    /// How long an answer is waited for, where the tool does not say. One hour unless set.
    #[must_use]
    pub fn with_time_to_answer(self, time: Duration) -> Self {
        self.with(|desk| desk.time_to_answer = time)
    }

    /// How long a process that runs an approved call may be silent before it counts as gone, and
    /// the call's outcome as unknown. 30 seconds unless set; it is renewed three times in that span.
    /// Much less than a second leaves no time to renew it.
    #[must_use]
    pub fn with_lease(self, lease: Duration) -> Self {
        self.with(|desk| desk.lease = lease)
    }

    /// Signs each question as the AI SDK does, too, so that a backend built with it takes the answer
    /// in a chat that both serve. It proves nothing here: the approval's id does. Only clients from
    /// 6.0.202 on know the field, and from 6.0.221 on send it back: it leaves by
    /// [`Version::V6At`](crate::chunk::Version).
    #[must_use]
    pub fn with_ai_sdk_signature(self, signature: AiSdkSignature, form: SignatureForm) -> Self {
        self.with(|desk| desk.signature = Some((signature, form)))
    }

    /// Lets others than the person who was asked decide. Asked about records of other people only,
    /// of any tenant: look at it.
    #[must_use]
    pub fn authorize_decision(
        self,
        may_decide: impl Fn(&Principal, &ApprovalRecord) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.with(|desk| desk.may_decide = Arc::new(may_decide))
    }

    /// The approvals of one person in one chat.
    pub fn of_chat(&self, principal: &Principal, chat: &ChatId) -> ChatApprovals {
        ChatApprovals {
            desk: self.0.clone(),
            principal: principal.clone(),
            owner: principal.clone(),
            chat: chat.clone(),
        }
    }

    /// Sorts decisions by the message that they are for, each once, however often it was sent. What
    /// this person cannot decide is left out, and told to the audit.
    ///
    /// # Errors
    /// [`LedgerStoreError`].
    pub async fn sort(
        &self,
        principal: &Principal,
        decisions: Vec<PersonsDecision>,
    ) -> Result<Vec<DecisionsOnMessage>, LedgerStoreError> {
        let (keys, now) = (&self.0.keys, system_time());
        let mut heard = HashSet::new();
        let decisions: Vec<(Option<RecordId>, PersonsDecision)> = decisions
            .into_iter()
            .filter(|said| heard.insert((said.approval_id.clone(), said.approved)))
            .map(|said| (ApprovalRecord::id_of(&said.approval_id, keys, now), said))
            .collect();
        let ids: HashSet<RecordId> = decisions.iter().filter_map(|(id, _)| *id).collect();
        let ids: Vec<RecordId> = ids.into_iter().collect();
        let mut records = HashMap::new();
        if !ids.is_empty() {
            let loaded = self.0.ledger.load(&ids).await?.records.into_iter();
            records.extend(loaded.map(|kept| (kept.record.id, kept.record)));
        }
        let mut sorted: Vec<DecisionsOnMessage> = Vec::new();
        for (id, decision) in decisions {
            let record = id.and_then(|id| records.get(&id)).filter(|record| {
                let is_own = record.requester == *principal || self.0.may_decide(principal, record);
                is_own && record.has_id(&decision.approval_id, keys, now)
            });
            let Some(record) = record else {
                self.0.refuse(now, principal);
                continue;
            };
            let known = sorted.iter_mut().find(|known| {
                known.requester == record.requester
                    && known.chat_id == record.chat_id
                    && known.message_id == record.message_id
            });
            let one = (record.clone(), decision);
            match known {
                Some(known) => known.decisions.push(one),
                None => sorted.push(DecisionsOnMessage {
                    requester: record.requester.clone(),
                    chat_id: record.chat_id.clone(),
                    message_id: record.message_id.clone(),
                    decisions: vec![one],
                }),
            }
        }
        Ok(sorted)
    }

    /// What waits for an answer of this person, in all chats, the oldest first.
    ///
    /// # Errors
    /// [`LedgerStoreError`].
    pub async fn pending(
        &self,
        principal: &Principal,
    ) -> Result<Vec<PendingApproval>, LedgerStoreError> {
        self.0.pending(Whose::By(principal)).await
    }

    /// Takes a question back. `false` if it does not wait for an answer.
    ///
    /// # Errors
    /// [`LedgerStoreError`].
    pub async fn revoke(&self, record: RecordId) -> Result<bool, LedgerStoreError> {
        let rule = |record: &ApprovalRecord, now| record.revoke(Revocation::ByHost, now);
        let changed = self.0.change(None, record, rule).await?;
        Ok(changed.is_some_and(|changed| changed.answer))
    }

    fn with(self, set: impl FnOnce(&mut Desk)) -> Self {
        let mut desk = Arc::unwrap_or_clone(self.0);
        set(&mut desk);
        Approvals(Arc::new(desk))
    }
}

/// A question that waits for an answer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PendingApproval {
    /// What to answer under.
    pub approval_id: ApprovalId,
    /// What was asked.
    pub record: ApprovalRecord,
}

/// Decisions on calls of one message, which this person may decide on.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DecisionsOnMessage {
    /// Whose chat it is.
    pub requester: Principal,
    /// Which chat.
    pub chat_id: ChatId,
    /// The message that holds the calls.
    pub message_id: MessageId,
    /// What was asked, and what was decided.
    pub decisions: Vec<(ApprovalRecord, PersonsDecision)>,
}

impl DecisionsOnMessage {
    /// The decisions as if the chat itself had brought them.
    pub fn plan(&self) -> ResumePlan {
        let decisions = self.decisions.iter().map(|(record, decision)| (record, decision));
        ResumePlan::of_decisions(&self.message_id, decisions)
    }
}

/// The approvals of one person in one chat.
#[derive(Debug, Clone)]
pub struct ChatApprovals {
    desk: Arc<Desk>,
    principal: Principal,
    /// Whose chat it is.
    owner: Principal,
    chat: ChatId,
}

impl ChatApprovals {
    /// In the chat of somebody else, for whom this person decides.
    #[must_use]
    pub fn in_chat_of(mut self, owner: &Principal) -> Self {
        self.owner = owner.clone();
        self
    }

    /// What waits for an answer in this chat, the oldest first.
    ///
    /// # Errors
    /// [`LedgerStoreError`].
    pub async fn pending(&self) -> Result<Vec<PendingApproval>, LedgerStoreError> {
        let mut pending = self.desk.pending(self.in_chat()).await?;
        pending.retain(|pending| self.concerns(&pending.record));
        Ok(pending)
    }

    /// What became of questions whose answers were heard before, perhaps by a server that is gone: of
    /// those that are decided, the outcomes, as far as there is one yet.
    ///
    /// A history that has a question open still is closed with them: the tool may have run without
    /// anybody having written it down there.
    ///
    /// # Errors
    /// [`LedgerStoreError`].
    pub async fn outcomes_of(
        &self,
        ids: &[ApprovalId],
    ) -> Result<Vec<(ApprovalId, DeferredOutcome)>, LedgerStoreError> {
        let (keys, wall) = (&self.desk.keys, system_time());
        let mut outcomes = Vec::new();
        for id in ids {
            let Some(record) = ApprovalRecord::id_of(id, keys, wall) else { continue };
            let expire = |record: &ApprovalRecord, now| record.expire(now);
            let looked = self.desk.change(None, record, expire).await?;
            let own = looked.filter(|Changed { record, .. }| {
                self.concerns(record)
                    && record.chat_id == self.chat
                    && record.has_id(id, keys, wall)
            });
            let outcome = own.and_then(|Changed { record, at, .. }| record.outcome_at(at));
            outcomes.extend(outcome.map(|outcome| (id.clone(), outcome)));
        }
        Ok(outcomes)
    }

    /// Whether a question is of this chat's owner. Somebody else may have a chat of the same id.
    fn concerns(&self, record: &ApprovalRecord) -> bool {
        record.requester == self.owner
    }

    fn in_chat(&self) -> Whose<'_> {
        Whose::InChat { tenant: self.owner.tenant(), chat: &self.chat }
    }

    fn decision(&self, now: UnixMillis, reason: Option<String>) -> Decision {
        Decision { approved_by: self.principal.clone(), responded_at: now, reason }
    }
}

impl Desk {
    async fn pending(&self, whose: Whose<'_>) -> Result<Vec<PendingApproval>, LedgerStoreError> {
        let loaded = self.ledger.pending(whose).await?;
        let live = loaded.records.into_iter().filter(|kept| kept.record.expires_at > loaded.now);
        let sealed = live.filter_map(|kept| {
            let approval_id = kept.record.approval_id(&self.keys, loaded.now)?;
            Some(PendingApproval { approval_id, record: kept.record })
        });
        Ok(sealed.collect())
    }

    /// Tells the audit of a decision on what this person has no say in, or what does not exist.
    fn refuse(&self, at: UnixMillis, principal: &Principal) {
        self.audit.take(&AuditEvent {
            at,
            record: None,
            chat_id: None,
            principal: principal.clone(),
            tool_call_id: None,
            tool_name: None,
            input_digest: None,
            requested_at: None,
            happened: Happened::Refused { cause: RefusalCause::Foreign },
        });
    }

    fn may_decide(&self, principal: &Principal, record: &ApprovalRecord) -> bool {
        (self.may_decide)(principal, record)
    }

    /// Asks the ledger about a record, and tells the audit what the record became; `None`: by its
    /// requester's doing. Nothing comes between the change and the telling.
    async fn change<T: Send>(
        &self,
        principal: Option<&Principal>,
        id: RecordId,
        rule: impl Fn(&ApprovalRecord, UnixMillis) -> Transition<T> + Send,
    ) -> Result<Option<Changed<T>>, LedgerStoreError> {
        let changed = change(&*self.ledger, id, move |record, now| {
            let Transition { answer, next } = rule(record, now);
            Transition { answer: (answer, now, next.is_some()), next }
        });
        let Some((record, (answer, at, is_new))) = changed.await? else { return Ok(None) };
        if let Some(happened) = Happened::to_become(&record.state).filter(|_| is_new) {
            self.tell_at(at, &record, principal.unwrap_or(&record.requester), happened);
        }
        Ok(Some(Changed { record, answer, at, is_new }))
    }

    fn tell_at(
        &self,
        at: UnixMillis,
        record: &ApprovalRecord,
        principal: &Principal,
        happened: Happened,
    ) {
        self.audit.take(&AuditEvent {
            at,
            record: Some(record.id),
            chat_id: Some(record.chat_id.clone()),
            principal: principal.clone(),
            tool_call_id: Some(record.tool_call_id.clone()),
            tool_name: Some(record.tool_name.clone()),
            input_digest: Some(record.input_digest()),
            requested_at: Some(record.requested_at),
            happened,
        });
    }
}

/// A record that the ledger was asked about.
struct Changed<T> {
    record: ApprovalRecord,
    answer: T,
    at: UnixMillis,
    /// Whether it became what it is by this.
    is_new: bool,
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Approvals")
            .field("keys", &self.keys)
            .field("ledger", &self.ledger)
            .field("toolbox", &self.toolbox)
            .field("audit", &self.audit)
            .field("time_to_answer", &self.time_to_answer)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system gives random numbers");
    bytes
}
