//! Approvals of one tool that records its inputs, in one chat of one user.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
pub(crate) use test_support::approvals::body;
use test_support::approvals::{self, answered, with_new_message};
use test_support::requests::{ada, request};
use ui_message_stream::approval::store::{InMemoryLedger, LedgerStore, LedgerStoreError, update};
use ui_message_stream::approval::{
    Approvals, ApprovedCall, AuditEvent, AuditSink, ChangedInput, Claim, DeferredOutcome,
    DeferredToolResults, DefinitionDigest, EditableInput, IssuedApproval, LeaseHolderId,
    OnNewMessage, Principal, Progress, RecordId, RecordedDecision, ResumePlan, RunningCalls,
    Stepped, ToolInfo, ToolOutcome, Toolbox, UnixMillis,
};
use ui_message_stream::{BoxFuture, ChatRequest, Json};

/// A tool that records the inputs that it ran with.
#[derive(Debug, Clone, Default)]
pub(crate) struct Effects(pub(crate) Arc<Mutex<Vec<String>>>, pub(crate) Arc<Mutex<Tool>>);

/// The error of a call while the tool is away.
pub(crate) const AWAY: &str = "the tool is away";

/// The current properties of the tool.
#[derive(Debug, Clone)]
pub(crate) struct Tool {
    pub(crate) description: &'static str,
    pub(crate) is_idempotent: bool,
    pub(crate) is_permitted: bool,
    pub(crate) is_away: bool,
    pub(crate) panics: Option<Panics>,
    pub(crate) on_new_message: Option<OnNewMessage>,
    pub(crate) decided_by_others: bool,
    pub(crate) editable: EditableInput,
    /// The only input that may not run.
    pub(crate) forbidden: Option<Json>,
    /// Which changes of an input may run.
    pub(crate) permits_change: fn(&ChangedInput) -> bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Panics {
    InPermissionCheck,
    WhenRun,
}

impl Default for Tool {
    fn default() -> Self {
        Tool {
            description: "deletes a file",
            is_idempotent: false,
            is_permitted: true,
            is_away: false,
            panics: None,
            on_new_message: None,
            decided_by_others: false,
            editable: EditableInput::Nothing,
            forbidden: None,
            permits_change: |_| true,
        }
    }
}

impl Effects {
    fn tool(&self) -> Tool {
        self.1.lock().unwrap().clone()
    }
}

impl Toolbox for Effects {
    fn tool(&self, name: &str) -> Option<ToolInfo> {
        let tool = self.tool();
        let info = ToolInfo::new(DefinitionDigest::new(name, tool.description, &Json::null()));
        let mut info = if tool.is_idempotent { info.idempotent() } else { info };
        info.on_new_message = tool.on_new_message;
        info.decided_by_others = tool.decided_by_others;
        info.editable = tool.editable;
        (name == "delete_file").then_some(info)
    }

    fn refresh<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), String>> {
        let refreshed = if self.tool().is_away { Err(AWAY.to_owned()) } else { Ok(()) };
        Box::pin(std::future::ready(refreshed))
    }

    fn check_input(&self, _: &str, input: &ChangedInput) -> Result<(), String> {
        match input.changed.decode::<Value>().unwrap()["path"].is_string() {
            true => Ok(()),
            false => Err("path: expected a string".to_owned()),
        }
    }

    fn permits<'a>(&'a self, call: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        let tool = self.tool();
        assert_ne!(tool.panics, Some(Panics::InPermissionCheck));
        let is_permitted = tool.is_permitted
            && tool.forbidden.as_ref() != Some(&call.input)
            && call.changed_input.as_ref().is_none_or(tool.permits_change);
        Box::pin(std::future::ready(is_permitted))
    }

    fn run(&self, call: ApprovedCall, _: Progress) -> BoxFuture<'static, ToolOutcome> {
        assert_ne!(self.tool().panics, Some(Panics::WhenRun));
        self.0.lock().unwrap().push(call.input.to_string());
        Box::pin(std::future::ready(ToolOutcome::Output(call.input)))
    }
}

/// An audit sink that stores all events.
#[derive(Debug, Clone, Default)]
pub(crate) struct RecordedAudit(pub(crate) Arc<Mutex<Vec<AuditEvent>>>);

impl AuditSink for RecordedAudit {
    fn record(&self, event: &AuditEvent) {
        self.0.lock().unwrap().push(event.clone());
    }
}

#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) approvals: Approvals,
    pub(crate) ledger: Arc<InMemoryLedger>,
    effects: Effects,
    audit_events: RecordedAudit,
    now: Mutex<UnixMillis>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let now = UnixMillis(1_000_000_000_000);
        let (effects, audit_events) = (Effects::default(), RecordedAudit::default());
        let ledger = Arc::new(InMemoryLedger::with_test_clock(now));
        let approvals = Approvals::new(effects.clone())
            .with_ledger(ledger.clone())
            .with_audit(audit_events.clone())
            .with_lease(LEASE);
        Bench { approvals, ledger, effects, audit_events, now: Mutex::new(now) }
    }

    /// Changes the settings.
    pub(crate) fn with(mut self, set: impl FnOnce(Approvals) -> Approvals) -> Self {
        self.approvals = set(self.approvals);
        self
    }

    /// Changes the tool.
    pub(crate) fn tool(&self, change: impl FnOnce(&mut Tool)) {
        change(&mut self.effects.1.lock().unwrap());
    }

    pub(crate) async fn ask(&self, tool_call_id: &str, input: impl Serialize) -> IssuedApproval {
        approvals::ask(&self.approvals, tool_call_id, "delete_file", input).await
    }

    /// Creates a bench with an open request of the call `call_1`.
    pub(crate) async fn asked() -> (Self, IssuedApproval) {
        let bench = Self::new();
        let issued = bench.ask("call_1", notes()).await;
        (bench, issued)
    }

    /// Claims a call for a process that then disappears.
    pub(crate) async fn claim_and_vanish(&self, issued: &IssuedApproval) -> Claim {
        self.claim_changed_and_vanish(issued, None).await
    }

    /// Claims a call with this input, or with its own, for a process that then disappears.
    pub(crate) async fn claim_changed_and_vanish(
        &self,
        issued: &IssuedApproval,
        input: Option<Json>,
    ) -> Claim {
        let lease_holder = LeaseHolderId::from_bytes([9; 16]);
        let claimed = update(&*self.ledger, issued.record, |record, now| {
            let decision = RecordedDecision::new(ada(), now);
            let decision = decision.with_changed_input(input.clone(), &record.input);
            record.claim(&decision, lease_holder, LEASE)
        });
        match claimed.await.unwrap().unwrap().1 {
            Stepped::Granted(claim) => claim,
            other => panic!("{other:?}"),
        }
    }

    /// Completes the claim of a process that was considered gone.
    pub(crate) async fn complete(&self, claim: &Claim, outcome: &ToolOutcome) {
        let done =
            update(&*self.ledger, claim.record, |record, now| record.complete(claim, outcome, now));
        done.await.unwrap().unwrap();
    }

    pub(crate) async fn outcomes(&self, body: &Value) -> Vec<DeferredOutcome> {
        self.outcomes_for(&ada(), body).await
    }

    pub(crate) async fn outcomes_for(
        &self,
        principal: &Principal,
        body: &Value,
    ) -> Vec<DeferredOutcome> {
        self.settled(principal, body).await.1
    }

    /// The results, and the outcomes after all tools have run.
    pub(crate) async fn settled(
        &self,
        principal: &Principal,
        body: &Value,
    ) -> (DeferredToolResults, Vec<DeferredOutcome>) {
        self.resolve(principal, principal, body).await
    }

    /// The outcomes of an answer that this principal gives in ada's chat.
    pub(crate) async fn outcomes_in_adas_chat(
        &self,
        principal: &Principal,
        body: &Value,
    ) -> Vec<DeferredOutcome> {
        self.resolve(principal, &ada(), body).await.1
    }

    /// Resolves a request of ada with a ledger that may fail.
    pub(crate) async fn try_resolve(&self, body: &Value) -> Result<RunningCalls, LedgerStoreError> {
        self.begin(&ada(), &ada(), body).await
    }

    async fn begin(
        &self,
        principal: &Principal,
        owner: &Principal,
        body: &Value,
    ) -> Result<RunningCalls, LedgerStoreError> {
        let chat = request(body);
        let plan = plan_of(&chat);
        let approvals = self.approvals.for_chat(principal, chat.id()).on_behalf_of(owner);
        approvals.resolve(plan, &[]).await
    }

    async fn resolve(
        &self,
        principal: &Principal,
        owner: &Principal,
        body: &Value,
    ) -> (DeferredToolResults, Vec<DeferredOutcome>) {
        let mut resolved = self.begin(principal, owner, body).await.unwrap();
        let mut outcomes = Vec::new();
        while let Some(result) = resolved.next().await {
            outcomes.push(result.outcome);
        }
        (resolved.results().clone(), outcomes)
    }

    pub(crate) async fn is_pending(&self, issued: &IssuedApproval) -> bool {
        let loaded = self.ledger.load(&[issued.record]).await.unwrap();
        loaded.records[0].record.is_pending()
    }

    pub(crate) fn effects(&self) -> Vec<String> {
        self.effects.0.lock().unwrap().clone()
    }

    /// The audit events of this record.
    pub(crate) fn audit_events(&self, record: RecordId) -> Vec<AuditEvent> {
        let audit_events = self.audit_events.0.lock().unwrap();
        audit_events.iter().filter(|event| event.record == Some(record)).cloned().collect()
    }

    /// The kinds of the audit events of this approval, in order.
    pub(crate) fn audit_names(&self, issued: &IssuedApproval) -> Vec<String> {
        let names = self.audit_events(issued.record).into_iter().map(|event| {
            let event = serde_json::to_value(&event).unwrap();
            event["kind"].as_str().unwrap().to_owned()
        });
        names.collect()
    }

    /// The audit events that name no record.
    pub(crate) fn audit_events_without_record(&self) -> Vec<AuditEvent> {
        let events = self.audit_events.0.lock().unwrap();
        events.iter().filter(|event| event.record.is_none()).cloned().collect()
    }

    /// Lets time pass.
    pub(crate) fn wait(&self, time: Duration) {
        let mut now = self.now.lock().unwrap();
        *now = now.after(time);
        self.ledger.set_test_time(*now);
    }
}

/// The resume plan of a request, with the inputs that the approver has changed.
pub(crate) fn plan_of(chat: &ChatRequest) -> ResumePlan {
    ResumePlan::new(chat.messages(), chat.continued_message())
        .with_changed_inputs(chat.approval_inputs())
}

/// How long the lease of a claim lasts.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// A request in which the user sent a new message after these calls.
pub(crate) fn body_with_new_message(calls: &[Value]) -> Value {
    with_new_message(body(calls))
}

/// A call of `delete_file` with the user's decision.
pub(crate) fn call(tool_call_id: &str, issued: &IssuedApproval, approved: bool) -> Value {
    answered(&unanswered(tool_call_id, issued), approved)
}

/// A call of `delete_file` that waits for the user's decision.
pub(crate) fn unanswered(tool_call_id: &str, issued: &IssuedApproval) -> Value {
    approvals::unanswered("delete_file", tool_call_id, notes(), &issued.approval_id)
}

/// The input of most calls.
pub(crate) fn notes() -> Value {
    json!({"path": "notes.txt"})
}
