//! A host with an agent of its own redeems the user's decisions, and executes the approved calls
//! itself: with a ledger, without any record, and without a record but with a replay guard.

use std::collections::BTreeSet;
use std::fs;
use std::future::{poll_fn, ready};
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use async_stream::try_stream;
use futures::{FutureExt, StreamExt};
use serde_json::{Value, json};
use test_support::approvals::{
    adas_chat, answered, body, unanswered, with_message, with_new_message,
};
use test_support::ledger_double::{Answer, Fault, LedgerDouble, Operation};
use test_support::requests::{self, ada, request, user_message};
use tokio::sync::mpsc;
use tokio::task::{JoinError, yield_now};
use tokio::time::{sleep, timeout};
use ui_message_stream::UserText;
use ui_message_stream::approval::store::{
    ApprovalUse, InMemoryLedger, InMemoryReplayGuard, LedgerStore, LedgerStoreError, RedeemError,
    ReplayGuard,
};
use ui_message_stream::approval::{
    Approvals, ApprovedCall, ClaimedCall, DeferredCall, DeferredCalls, DeferredOutcome,
    DeferredToolResults, DefinitionDigest, InexactInputError, KeyRing, OnNewMessage, Principal,
    Progress, RecordId, RunningCalls, ToolInfo, ToolList, ToolOutcome, UnixMillis,
};
use ui_message_stream::event::ToolCall;
use ui_message_stream::id::ApprovalId;
use ui_message_stream::model::{ModelMessage, ToModelMessages, ToolContent, ToolResult};
use ui_message_stream::{AgentEvent, BoxFuture, Json, UiMessageStream};

/// How a host keeps track of approvals.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    Ledger,
    Stateless,
    Guarded,
}

const MODES: [Mode; 3] = [Mode::Ledger, Mode::Stateless, Mode::Guarded];

/// The hosts with each way to keep track.
fn hosts() -> [(Mode, Host); 3] {
    MODES.map(|mode| (mode, Host::new(mode)))
}

/// The hosts that keep a record of what was approved.
fn recording_hosts() -> [(Mode, Host); 2] {
    [Mode::Ledger, Mode::Guarded].map(|mode| (mode, Host::new(mode)))
}

/// A host whose only tool deletes a file, which takes 400 milliseconds.
#[derive(Debug, Clone)]
struct Host {
    approvals: Approvals,
    stores: Stores,
    effects: Arc<AtomicUsize>,
}

/// A ledger and a replay guard in memory.
#[derive(Debug, Clone, Default)]
struct Stores {
    ledger: Arc<InMemoryLedger>,
    guard: Arc<InMemoryReplayGuard>,
    faults: Arc<Faults>,
}

#[derive(Debug, Default)]
struct Faults {
    /// Whether all changes fail.
    fails: AtomicBool,
    /// Whether the response to an insertion is lost.
    loses_insertions: AtomicBool,
    /// Whether a decided record cannot be loaded alone, as for a transition.
    hides_decided: AtomicBool,
    /// The only record that can be changed, if one is set.
    accepts_only: Mutex<Option<RecordId>>,
}

const UNREACHABLE: &str = "unreachable";

impl Stores {
    fn is(&self, fault: fn(&Faults) -> &AtomicBool) -> bool {
        fault(&self.faults).load(Ordering::SeqCst)
    }

    fn fault(&self, operation: Operation<'_>) -> Option<Fault> {
        let fails = match operation {
            Operation::Insert(_) => {
                let is_lost = self.is(|faults| &faults.loses_insertions);
                return is_lost.then_some(Fault::Done("the connection was lost"));
            }
            Operation::Load(ids) => {
                let loaded = self.ledger.load(ids).now_or_never().unwrap().unwrap();
                self.is(|faults| &faults.hides_decided)
                    && matches!(&loaded.records[..], [only] if !only.record.is_pending())
            }
            Operation::List => false,
            Operation::Replace(record) => {
                let accepted = *self.faults.accepts_only.lock().unwrap();
                self.is(|faults| &faults.fails)
                    || accepted.is_some_and(|accepted| accepted != record.id)
            }
        };
        fails.then_some(Fault::NotDone(UNREACHABLE))
    }

    fn approvals(&self, mode: Mode, tools: ToolList) -> Approvals {
        let keys = KeyRing::new(1, &test_support::secret(7)).unwrap();
        let stateless = |keys| Approvals::stateless_replayable(tools.clone(), keys).unwrap();
        let approvals = match mode {
            Mode::Ledger => {
                let stores = self.clone();
                let ledger = LedgerDouble::over(self.ledger.clone(), move |it| stores.fault(it));
                Approvals::new(tools).with_keys(keys).with_ledger(Arc::new(ledger))
            }
            Mode::Stateless => stateless(keys),
            Mode::Guarded => stateless(keys).with_replay_guard(Arc::new(self.clone())),
        };
        approvals.with_lease(LEASE)
    }
}

impl ReplayGuard for Stores {
    fn set_if_absent<'a>(
        &'a self,
        approval: RecordId,
        first_use: ApprovalUse,
        keep_until: UnixMillis,
    ) -> Answer<'a, Option<ApprovalUse>> {
        if self.is(|faults| &faults.fails) {
            return Box::pin(ready(Err(LedgerStoreError::new(UNREACHABLE))));
        }
        self.guard.set_if_absent(approval, first_use, keep_until)
    }

    fn first_use(&self, approval: RecordId) -> Answer<'_, Option<ApprovalUse>> {
        self.guard.first_use(approval)
    }
}

impl Host {
    fn new(mode: Mode) -> Self {
        Self::with_tools(mode, tools("Deletes a file."))
    }

    fn with_tools(mode: Mode, tools: ToolList) -> Self {
        Self::over(Stores::default(), mode, tools)
    }

    /// A host with the only tool, which is idempotent.
    fn idempotent() -> Self {
        let definition = DefinitionDigest::new("delete_file", "Deletes a file.", &Json::null());
        let tools = ToolList::new().with("delete_file", ToolInfo::new(definition).idempotent());
        Self::with_tools(Mode::Ledger, tools)
    }

    fn over(stores: Stores, mode: Mode, tools: ToolList) -> Self {
        Host { approvals: stores.approvals(mode, tools), stores, effects: Arc::default() }
    }

    /// The same host after its tool has changed.
    fn redefined(&self, mode: Mode) -> Self {
        Self::over(self.stores.clone(), mode, tools("Deletes all files."))
    }

    /// Requests approval of a call, and returns the tool part that the client then holds.
    async fn ask(&self) -> Value {
        self.ask_about(INPUT).await
    }

    async fn ask_about(&self, input: &str) -> Value {
        self.ask_for("call-1", input).await
    }

    async fn ask_for(&self, id: &str, input: &str) -> Value {
        let (call, input) = (ToolCall::new(id, "delete_file"), Json::parse(input).unwrap());
        let asked = adas_chat(&self.approvals).request_approval_of(&call, &input).await;
        let AgentEvent::ApprovalRequested { approval_id, .. } = asked else { panic!() };
        requested(id, &approval_id)
    }

    /// Requests approval of a call of the provider, `provider-1`.
    async fn ask_for_provider(&self) -> (Value, RecordId) {
        let (chat, call) = (adas_chat(&self.approvals), "provider-1".into());
        let (message, input) = ("m2".into(), Json::parse(INPUT).unwrap());
        let asked = chat.request_provider_approval(&message, &call, "delete_file", &input, None);
        let issued = asked.await.unwrap();
        (requested(&call, &issued.approval_id), issued.record)
    }

    async fn redeem(&self, body: &Value) -> Result<DeferredCalls, RedeemError> {
        self.approvals.redeem(&ada(), &request(body)).await
    }

    /// Claims the only call of a request.
    async fn claim(&self, body: &Value) -> ClaimedCall {
        match self.redeem(body).await.unwrap().into_iter().next() {
            Some(DeferredCall::Approved(call)) => call,
            other => panic!("{other:?}"),
        }
    }

    /// Redeems a request, executes what was approved, and reads the response to its end.
    async fn post(&self, user: &Principal, body: &Value) -> (Vec<AgentEvent>, DeferredToolResults) {
        let mut running = self.start(user, body).await;
        let mut events = Vec::new();
        while let Some(event) = running.next_event().await {
            events.push(event);
        }
        (events, running.into_results())
    }

    async fn outcome(&self, body: &Value) -> DeferredOutcome {
        self.outcome_for(&ada(), body).await
    }

    /// The outcome of the only call. The user and the model read the same outcome.
    async fn outcome_for(&self, user: &Principal, body: &Value) -> DeferredOutcome {
        let (events, results) = self.post(user, body).await;
        let [result] = results.results() else { panic!("{results:?}") };
        let expected = AgentEvent::from_deferred(result);
        let shown = events.into_iter().rfind(|event| {
            !matches!(event, AgentEvent::Data(_) | AgentEvent::DenialOverruled { .. })
        });
        assert_eq!(shown, expected);
        result.outcome.clone()
    }

    /// What the model reads of the only call.
    async fn model_reads(&self, body: &Value) -> ToolResult {
        let (_, results) = self.post(&ada(), body).await;
        assert!(results.pending().is_empty(), "{results:?}");
        let chat = request(body);
        let prompt = ToModelMessages::new().with_deferred(&results).model_messages(chat.messages());
        let mut read = prompt.into_iter().filter_map(|message| match message {
            ModelMessage::Tool { content } => Some(content),
            _ => None,
        });
        let content = read.next().unwrap();
        let [ToolContent::Result(result)] = &content[..] else { panic!("{content:?}") };
        result.result.clone()
    }

    async fn start(&self, user: &Principal, body: &Value) -> RunningCalls {
        self.approvals.run(user, &request(body), self.tool()).await.unwrap()
    }

    fn tool(
        &self,
    ) -> impl Fn(ApprovedCall, Progress) -> BoxFuture<'static, Json> + Send + Sync + 'static {
        let effects = Arc::clone(&self.effects);
        move |call, progress| {
            let effects = Arc::clone(&effects);
            Box::pin(async move {
                progress.emit("deleting").unwrap();
                assert_eq!(call.input.decode::<Value>().unwrap()["path"], "notes.txt");
                effects.fetch_add(1, Ordering::SeqCst);
                sleep(Duration::from_millis(400)).await;
                Json::string("deleted")
            })
        }
    }

    fn set(&self, fault: fn(&Faults) -> &AtomicBool, is_set: bool) {
        fault(&self.stores.faults).store(is_set, Ordering::SeqCst);
    }

    fn effects(&self) -> usize {
        self.effects.load(Ordering::SeqCst)
    }
}

fn tools(description: &str) -> ToolList {
    ToolList::new().tool("delete_file", description, &Json::null()).client_executed("get_location")
}

/// The tool part of a call whose approval is requested.
fn requested(call: &str, approval: &ApprovalId) -> Value {
    // As a browser writes it.
    let input = json!({"copies": 1, "path": "notes.txt"});
    unanswered("delete_file", call, input, approval)
}

fn answer(part: &Value, approved: bool) -> Value {
    body([answered(part, approved)])
}

/// The outcome that a host knows of a call that has run.
fn known(mode: Mode) -> DeferredOutcome {
    match mode {
        Mode::Ledger => deleted(),
        _ => DeferredOutcome::OutcomeUnknown,
    }
}

fn deleted() -> DeferredOutcome {
    DeferredOutcome::Executed { outcome: ToolOutcome::Output(Json::string("deleted")) }
}

const LEASE: Duration = Duration::from_secs(3);

const INPUT: &str = r#"{ "path": "notes.txt", "copies": 1.0 }"#;

#[tokio::test(start_paused = true)]
async fn an_approved_call_runs_with_the_approved_input_and_its_events_are_streamed() {
    for (mode, host) in hosts() {
        let part = host.ask().await;
        let (events, results) = host.post(&ada(), &answer(&part, true)).await;
        let id = "call-1";
        let preliminary = AgentEvent::preliminary_output(id, Json::string("deleting"));
        assert_eq!(events[0], preliminary, "{mode:?}");
        assert!(events.contains(&AgentEvent::tool_output(id, Json::string("deleted"))), "{mode:?}");
        assert_eq!(results.results()[0].outcome, deleted(), "{mode:?}");
        assert_eq!(host.effects(), 1, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_repeated_after_the_connection_was_lost_does_not_run_the_call_again() {
    for (mode, host) in hosts() {
        let request = answer(&host.ask().await, true);
        // The reader leaves after the effect, before the outcome.
        drop(host.start(&ada(), &request).await);
        sleep(Duration::from_millis(100)).await;
        assert_eq!(host.effects(), 1, "{mode:?}");
        let (repeated, later) = (host.outcome(&request).await, host.outcome(&request).await);
        let expected = match mode {
            Mode::Ledger => (deleted(), 1),
            Mode::Stateless => (deleted(), 3),
            Mode::Guarded => (DeferredOutcome::OutcomeUnknown, 1),
        };
        assert_eq!((repeated, host.effects()), expected.clone(), "{mode:?}");
        assert_eq!(later, expected.0, "{mode:?}");
        // A message that the user sends instead of repeating the request.
        let (_, results) = host.post(&ada(), &with_new_message(request)).await;
        let outcome = &results.results()[0].outcome;
        match mode {
            Mode::Ledger => assert_eq!(*outcome, deleted()),
            _ => assert_eq!(*outcome, DeferredOutcome::OutcomeUnknown, "{mode:?}"),
        }
        assert_eq!(host.effects(), expected.1, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_sixteen_requests_at_once_one_runs_the_call_and_the_others_wait_for_it() {
    for (mode, host) in hosts() {
        let request = answer(&host.ask().await, true);
        let tabs = (0..16).map(|_| {
            let (host, request) = (host.clone(), request.clone());
            tokio::spawn(async move { host.outcome(&request).await })
        });
        let mut ran = 0;
        for tab in tabs.collect::<Vec<_>>() {
            let outcome = tab.await.unwrap();
            ran += usize::from(outcome == deleted());
            assert!(outcome == deleted() || outcome == DeferredOutcome::OutcomeUnknown);
        }
        let expected = match mode {
            Mode::Ledger => (16, 1),
            Mode::Stateless => (16, 16),
            Mode::Guarded => (1, 1),
        };
        assert_eq!((ran, host.effects()), expected, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_forged_changed_or_foreign_approval_runs_nothing() {
    for (mode, host) in hosts() {
        let part = host.ask().await;
        let change = |pointer: &str, value: Value| {
            let mut part = answered(&part, true);
            *part.pointer_mut(pointer).unwrap() = value;
            part
        };
        let approved = answered(&part, true);
        let forged = [
            change("/approval/id", json!("ap-1")),
            change("/approval/id", json!(format!("{}A", part["approval"]["id"].as_str().unwrap()))),
            change("/input/path", json!("budget.xlsx")),
            change("/input/copies", json!(2)),
            change("/toolCallId", json!("call-2")),
            change("/type", json!("tool-get_location")),
            change("/type", json!("tool-no_such_tool")),
        ];
        // Of a genuine approval id it is only known that it was sealed for something else: perhaps
        // for this call, before its tool has changed.
        let genuine = match mode {
            Mode::Stateless => DeferredOutcome::OutcomeUnknown,
            _ => DeferredOutcome::Rejected,
        };
        for part in &forged {
            let outcome = host.outcome(&body([part])).await;
            let expected = match part["approval"]["id"] == approved["approval"]["id"] {
                true => genuine.clone(),
                false => DeferredOutcome::Rejected,
            };
            assert_eq!(outcome, expected, "{mode:?} {part}");
        }
        let (eve, request) = (Principal::new("eve"), body([&approved]));
        let mut elsewhere = request.clone();
        elsewhere["id"] = json!("another chat");
        assert_eq!(host.outcome(&elsewhere).await, genuine, "{mode:?}");
        assert_eq!(host.outcome_for(&eve, &request).await, genuine, "{mode:?}");
        assert_eq!(host.effects(), 0, "{mode:?}");
        assert_eq!(host.outcome(&request).await, deleted(), "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_approval_of_a_tool_that_has_changed_runs_nothing() {
    for (mode, host) in hosts() {
        let part = host.ask().await;
        let redefined = host.redefined(mode);
        let outcome = redefined.outcome(&answer(&part, true)).await;
        let expected = match mode {
            Mode::Ledger => DeferredOutcome::Revoked,
            Mode::Stateless => DeferredOutcome::OutcomeUnknown,
            Mode::Guarded => DeferredOutcome::Rejected,
        };
        assert_eq!(outcome, expected, "{mode:?}");
        assert_eq!(redefined.effects(), 0, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ran_before_its_tool_changed_is_never_called_not_executed() {
    for (mode, host) in hosts() {
        let request = answer(&host.ask().await, true);
        assert_eq!(host.outcome(&request).await, deleted(), "{mode:?}");
        let redefined = host.redefined(mode);
        let expected = known(mode);
        assert_eq!(redefined.outcome(&request).await, expected, "{mode:?}");
        assert_eq!(redefined.effects(), 0, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ran_is_never_called_not_executed_while_the_store_fails() {
    for (mode, host) in recording_hosts() {
        let part = host.ask().await;
        let request = answer(&part, true);
        let running = host.start(&ada(), &request).await;
        sleep(Duration::from_millis(100)).await;
        drop(running);
        host.set(|faults| &faults.fails, true);
        for repeated in [&request, &answer(&part, false)] {
            let deferred = host.redeem(repeated).await;
            let is_false = deferred.is_ok_and(|deferred| {
                deferred.results().results().iter().any(|result| {
                    let outcome = &result.outcome;
                    matches!(outcome, DeferredOutcome::Rejected | DeferredOutcome::Denied { .. })
                })
            });
            assert!(!is_false, "{mode:?}");
        }
        host.set(|faults| &faults.fails, false);
        let expected = known(mode);
        assert_eq!(host.outcome(&request).await, expected, "{mode:?}");
        assert_eq!(host.effects(), 1, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_decided_request_keeps_its_outcome_if_the_ledger_does_not_reply_to_a_late_approval() {
    for (was_approved, expected) in [(false, DeferredOutcome::Rejected), (true, deleted())] {
        let host = Host::new(Mode::Ledger);
        let (decided, open) = (host.ask().await, host.ask_for("call-2", INPUT).await);
        host.post(&ada(), &body([&answered(&decided, was_approved), &open])).await;
        host.set(|faults| &faults.hides_decided, true);
        let late = body([answered(&decided, true), answered(&open, true)]);
        let deferred = host.redeem(&late).await.unwrap();
        assert_eq!(final_outcome(deferred.results(), "call-1"), &expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_executed_elsewhere_is_waited_for_if_the_ledger_does_not_reply() {
    let host = Host::new(Mode::Ledger);
    let (executed, open) = (host.ask().await, host.ask_for("call-2", INPUT).await);
    let first = body([&answered(&executed, true), &open]);
    let _executing = host.start(&ada(), &first).await;
    sleep(Duration::from_millis(100)).await;
    host.set(|faults| &faults.hides_decided, true);
    let both = body([answered(&executed, true), answered(&open, true)]);
    let mut waiting = host.start(&ada(), &both).await;
    host.set(|faults| &faults.hides_decided, false);
    while waiting.next_event().await.is_some() {}
    assert_eq!(final_outcome(&waiting.into_results(), "call-1"), &deleted());
    assert_eq!(host.effects(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_is_not_waited_for_any_more_leaves_an_unknown_outcome_without_a_reply_too()
{
    let ledger = Arc::new(InMemoryLedger::with_test_clock(UnixMillis(0)));
    let stores = Stores { ledger: ledger.clone(), ..Stores::default() };
    let host = Host::over(stores, Mode::Ledger, tools("Deletes a file."));
    let (sent, open) = (host.ask_for_provider().await.0, host.ask().await);
    let first = body([&answered(&sent, true), &open]);
    let deferred = host.redeem(&first).await.unwrap();
    let outcome = final_outcome(deferred.results(), "provider-1");
    assert!(matches!(outcome, DeferredOutcome::ForwardToProvider { .. }), "{outcome:?}");
    // Longer than the longest model call.
    ledger.set_test_time(UnixMillis(700_000));
    host.set(|faults| &faults.hides_decided, true);
    let both = body([answered(&sent, true), answered(&open, true)]);
    let deferred = host.redeem(&both).await.unwrap();
    let outcome = final_outcome(deferred.results(), "provider-1");
    assert_eq!(outcome, &DeferredOutcome::OutcomeUnknown);
}

/// The outcome of a call, which is final.
fn final_outcome<'r>(results: &'r DeferredToolResults, call: &str) -> &'r DeferredOutcome {
    let mut of_call = results.results().iter().filter(|result| *result.tool_call_id == *call);
    let result = of_call.next().unwrap();
    assert!(result.is_final, "{result:?}");
    &result.outcome
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_at_the_claim_is_an_error_and_the_request_can_be_repeated() {
    for (mode, host) in recording_hosts() {
        let request = answer(&host.ask().await, true);
        host.set(|faults| &faults.fails, true);
        assert!(host.redeem(&request).await.is_err(), "{mode:?}");
        host.set(|faults| &faults.fails, false);
        assert_eq!(host.outcome(&request).await, deleted(), "{mode:?}");
        assert_eq!(host.effects(), 1, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_approval_for_the_provider_is_returned_if_the_claim_of_another_call_fails() {
    let host = Host::new(Mode::Ledger);
    let (sent, record) = host.ask_for_provider().await;
    let request = body([answered(&sent, true), answered(&host.ask().await, true)]);
    *host.stores.faults.accepts_only.lock().unwrap() = Some(record);
    let deferred = host.redeem(&request).await.unwrap();
    let outcome = final_outcome(deferred.results(), "provider-1");
    assert!(matches!(outcome, DeferredOutcome::ForwardToProvider { .. }), "{outcome:?}");
}

fn shows_denial(event: &AgentEvent) -> bool {
    matches!(event, AgentEvent::Data(data) if data.data.as_str().contains("denied"))
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_request_is_superseded_and_never_reads_as_denied() {
    for (mode, host) in hosts() {
        let first = with_new_message(body([&host.ask().await]));
        let second = with_message(first.clone(), "m4");
        for request in [first, second] {
            let (events, results) = host.post(&ada(), &request).await;
            assert!(results.results().is_empty(), "{mode:?} {results:?}");
            assert!(!events.iter().any(shows_denial), "{mode:?} {events:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_newer_message_denies_an_unanswered_request_wherever_records_are_kept() {
    for (mode, mut host) in hosts() {
        host.approvals = host.approvals.on_new_message(OnNewMessage::Deny);
        let part = host.ask().await;
        let reason = Some(UserText::DeniedByMessage.to_string());
        let denied = DeferredOutcome::Denied { reason };
        let request = with_new_message(body([&part]));
        for request in [request.clone(), request] {
            let (events, results) = host.post(&ada(), &request).await;
            assert_eq!(results.results()[0].outcome, denied, "{mode:?}");
            // The message is not the one that the response continues, so the call itself cannot change.
            assert!(events.iter().any(shows_denial), "{mode:?} {events:?}");
        }
        if mode != Mode::Stateless {
            let late = host.outcome(&answer(&part, true)).await;
            assert_eq!((late, host.effects()), (DeferredOutcome::Rejected, 0), "{mode:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_approval_that_outlives_new_messages_runs_once_however_many_messages_follow() {
    for (mode, mut host) in hosts() {
        host.approvals = host.approvals.on_new_message(OnNewMessage::Run);
        let request = answer(&host.ask().await, true);
        assert_eq!(host.outcome(&request).await, deleted(), "{mode:?}");
        let later = with_new_message(request);
        for request in [later.clone(), with_message(later, "m4")] {
            let (_, results) = host.post(&ada(), &request).await;
            let expected = known(mode);
            assert_eq!(results.results()[0].outcome, expected, "{mode:?}");
            assert_eq!(host.effects(), 1, "{mode:?}");
        }
    }
}

#[tokio::test]
async fn an_expired_approval_runs_nothing() {
    for (mode, mut host) in hosts() {
        host.approvals = host.approvals.with_approval_ttl(Duration::from_millis(1));
        let part = host.ask().await;
        sleep(Duration::from_millis(20)).await;
        let outcome = host.outcome(&answer(&part, true)).await;
        let expected = match mode {
            // An earlier request may have run the call in time.
            Mode::Stateless => DeferredOutcome::OutcomeUnknown,
            _ => DeferredOutcome::Expired,
        };
        assert_eq!((outcome, host.effects()), (expected, 0), "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_approval_after_a_denial_runs_nothing_where_the_denial_is_stored() {
    for (mode, host) in hosts() {
        let part = host.ask().await;
        let mut denied = answer(&part, false);
        denied["messages"][1]["parts"][0]["approval"]["reason"] = json!("not that one");
        let expected = DeferredOutcome::Denied { reason: Some("not that one".into()) };
        assert_eq!(host.outcome(&denied).await, expected, "{mode:?}");
        assert_eq!(host.outcome(&denied).await, expected, "{mode:?}");
        let outcome = host.outcome(&answer(&part, true)).await;
        let expected = match mode {
            Mode::Stateless => (deleted(), 1),
            _ => (DeferredOutcome::Rejected, 0),
        };
        assert_eq!((outcome, host.effects()), expected, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_denial_after_an_approval_does_not_say_that_the_call_was_not_executed() {
    for (mode, host) in recording_hosts() {
        let part = host.ask().await;
        assert_eq!(host.outcome(&answer(&part, true)).await, deleted(), "{mode:?}");
        let outcome = host.outcome(&answer(&part, false)).await;
        let expected = known(mode);
        assert_eq!((outcome, host.effects()), (expected, 1), "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_claimed_call_that_is_dropped_has_an_unknown_outcome() {
    for (mode, host) in recording_hosts() {
        let request = answer(&host.ask().await, true);
        drop(host.claim(&request).await);
        sleep(Duration::from_millis(1)).await;
        // At once: nothing waits for the end of the lease.
        let outcome = timeout(Duration::from_millis(1), host.outcome(&request)).await.unwrap();
        assert_eq!(outcome, DeferredOutcome::OutcomeUnknown, "{mode:?}");
        assert_eq!(host.effects(), 0, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_lease_of_a_claimed_call_is_renewed_while_the_host_holds_it() {
    let host = Host::new(Mode::Ledger);
    let request = answer(&host.ask().await, true);
    let call = host.claim(&request).await;
    let other = tokio::spawn({
        let (host, request) = (host.clone(), request.clone());
        async move { host.outcome(&request).await }
    });
    sleep(LEASE * 10).await;
    assert!(!other.is_finished());
    assert_eq!(call.tool_name(), "delete_file");
    let settled = call.fail("the disk is full").await;
    let failed = ToolOutcome::Failed("the disk is full".to_owned());
    let failed = DeferredOutcome::Executed { outcome: failed };
    assert_eq!(*settled.outcome(), failed);
    assert!(
        settled
            .events()
            .any(|event| event == AgentEvent::tool_failed("call-1", "the disk is full"))
    );
    assert_eq!(other.await.unwrap(), failed);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_of_an_idempotent_tool_is_claimed_again_with_the_same_key() {
    let host = Host::idempotent();
    let request = answer(&host.ask().await, true);
    let mut keys = BTreeSet::new();
    for _ in 0..3 {
        let call = host.claim(&request).await;
        keys.insert(call.idempotency_key());
        drop(call);
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(keys.len(), 1);
    assert_eq!(host.outcome(&request).await, deleted());
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_panics_has_failed() {
    let host = Host::new(Mode::Ledger);
    let request = answer(&host.ask().await, true);
    let call = host.claim(&request).await;
    let running = call.run(|_, _| async { if true { panic!("no disk") } else { Json::null() } });
    let settled = running.settled().await;
    let failed = ToolOutcome::Failed("The tool failed.".to_owned());
    assert_eq!(*settled.outcome(), DeferredOutcome::Executed { outcome: failed });
}

#[tokio::test(start_paused = true)]
async fn a_call_without_an_answer_waits_and_an_approval_of_another_does_not_end_the_wait() {
    for (mode, host) in hosts() {
        let first = host.ask().await;
        let mut second = host.ask().await;
        second["toolCallId"] = json!("call-1-2");
        let request = body([&answered(&first, true), &second]);
        let (_, results) = host.post(&ada(), &request).await;
        let pending: Vec<&str> =
            results.pending().iter().map(|call| call.tool_call_id.as_str()).collect();
        assert_eq!(pending, ["call-1"], "{mode:?}");
        assert_eq!(host.effects(), 1, "{mode:?}");
    }
}

/// The connection was lost after the preliminary output, and the page posts what it holds.
#[tokio::test(start_paused = true)]
async fn a_page_that_holds_a_preliminary_output_gets_the_outcome_and_the_call_does_not_run_again() {
    for (mode, host) in hosts() {
        let mut part = answered(&host.ask().await, true);
        let request = body([&part]);
        let mut running = host.start(&ada(), &request).await;
        let preliminary = AgentEvent::preliminary_output("call-1", Json::string("deleting"));
        assert_eq!(running.next_event().await, Some(preliminary));
        drop(running);
        part["state"] = json!("output-available");
        part["preliminary"] = json!(true);
        part["output"] = json!("deleting");
        let request = body([&part]);
        // While the call is executed, and afterwards.
        for _ in 0..2 {
            let (_, results) = host.post(&ada(), &request).await;
            let outcomes: Vec<_> =
                results.results().iter().map(|result| result.outcome.clone()).collect();
            let expected = if mode == Mode::Ledger { vec![deleted()] } else { Vec::new() };
            assert_eq!(outcomes, expected, "{mode:?}");
        }
        if mode == Mode::Ledger {
            assert_eq!(host.outcome(&request).await, deleted());
            let read = host.model_reads(&with_new_message(request)).await;
            assert_eq!(read, ToolResult::from(&deleted()));
        }
        sleep(Duration::from_secs(1)).await;
        assert_eq!(host.effects(), 1, "{mode:?}");
    }
}

/// An old tab still shows the request, and posts it without a response.
#[tokio::test(start_paused = true)]
async fn a_request_that_another_page_closed_never_reads_as_waiting() {
    let outcomes =
        [DeferredOutcome::Superseded, deleted(), DeferredOutcome::Denied { reason: None }];
    for outcome in outcomes {
        let host = Host::new(Mode::Ledger);
        let part = host.ask().await;
        let old_tab = body([&part]);
        let (events, results) = host.post(&ada(), &old_tab).await;
        assert_eq!((events.len(), results.pending().len()), (0, 1));
        let other_page = match outcome {
            DeferredOutcome::Superseded => with_new_message(old_tab.clone()),
            DeferredOutcome::Denied { .. } => answer(&part, false),
            _ => answer(&part, true),
        };
        drop(host.start(&ada(), &other_page).await);
        // An approved call is still being executed: the old tab waits for its outcome.
        assert_eq!(host.outcome(&old_tab).await, outcome);
        assert_eq!(host.model_reads(&old_tab).await, ToolResult::from(&outcome));
        // The user writes on in the old tab.
        let written = host.model_reads(&with_new_message(old_tab)).await;
        assert_eq!(written, ToolResult::from(&outcome));
    }
}

/// The claim was given up, and the page that approved the call sends its request again.
#[tokio::test(start_paused = true)]
async fn an_old_tab_does_not_keep_an_idempotent_tool_from_running_again() {
    let host = Host::idempotent();
    let part = host.ask().await;
    let approval = answer(&part, true);
    drop(host.redeem(&approval).await.unwrap());
    sleep(Duration::from_millis(1)).await;
    let old_tab = with_new_message(body([&part]));
    let (_, results) = host.post(&ada(), &old_tab).await;
    assert_eq!(results.results()[0].outcome, DeferredOutcome::OutcomeUnknown);
    assert_eq!(host.effects(), 0);
    assert_eq!((host.outcome(&approval).await, host.effects()), (deleted(), 1));
}

#[tokio::test(start_paused = true)]
async fn a_request_repeated_late_does_not_wait_for_a_call_of_a_newer_message() {
    let host = Host::new(Mode::Ledger);
    let request = answer(&host.ask().await, true);
    assert_eq!(host.outcome(&request).await, deleted());
    let newer = body([&host.ask().await]);
    let (_, results) = host.post(&ada(), &request).await;
    assert_eq!(results.results()[0].outcome, deleted());
    assert!(results.pending().is_empty(), "{results:?}");
    let (_, results) = host.post(&ada(), &newer).await;
    assert_eq!(results.pending().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_approval_that_arrives_with_a_newer_message_lapses() {
    for (mode, host) in hosts() {
        let request = with_new_message(answer(&host.ask().await, true));
        let (_, results) = host.post(&ada(), &request).await;
        let expected = match mode {
            // An earlier request may have run the call.
            Mode::Stateless => DeferredOutcome::OutcomeUnknown,
            _ => DeferredOutcome::Lapsed,
        };
        assert_eq!(results.results()[0].outcome, expected, "{mode:?}");
        assert_eq!(host.effects(), 0, "{mode:?}");
    }
}

/// The client writes the response into another message, and throws if it refers to this call.
#[tokio::test(start_paused = true)]
async fn a_regeneration_after_an_approved_call_gives_its_result_to_the_model_only() {
    for (mode, host) in hosts() {
        let mut request = answer(&host.ask().await, true);
        request["trigger"] = json!("regenerate-message");
        request["messageId"] = Value::Null;
        let (events, results) = host.post(&ada(), &request).await;
        assert_eq!(results.results()[0].outcome, deleted(), "{mode:?}");
        let is_data = |event: &AgentEvent| matches!(event, AgentEvent::Data(_));
        assert!(events.iter().all(is_data), "{mode:?}: {events:?}");
        let events = events.into_iter().chain([AgentEvent::tool_output("call-1", Json::null())]);
        let response =
            UiMessageStream::reply(&requests::request(&request), futures::stream::iter(events));
        let frames: Vec<_> = response.map(Result::unwrap).collect().await;
        let text = String::from_utf8(frames.concat()).unwrap();
        assert!(!text.contains("tool-output") && !text.contains("\"m2\""), "{mode:?}: {text}");
    }
}

/// An HTTP server drops the future of a handler when the client disconnects.
#[tokio::test(start_paused = true)]
async fn an_approved_call_runs_once_wherever_the_request_that_runs_it_is_dropped() {
    for polls in 0..20 {
        for (mode, host) in recording_hosts() {
            let request = answer(&host.ask().await, true);
            {
                let (user, chat) = (ada(), requests::request(&request));
                let mut running = pin!(host.approvals.run(&user, &chat, host.tool()));
                for _ in 0..polls {
                    if poll_fn(|cx| Poll::Ready(running.as_mut().poll(cx))).await.is_ready() {
                        break;
                    }
                    yield_now().await;
                }
            }
            sleep(Duration::from_secs(1)).await;
            assert_eq!(host.effects(), usize::from(polls > 0), "{mode:?} {polls}");
            let outcome = host.outcome(&request).await;
            let is_known = mode == Mode::Ledger || polls == 0;
            let expected = if is_known { deleted() } else { DeferredOutcome::OutcomeUnknown };
            assert_eq!((outcome, host.effects()), (expected, 1), "{mode:?} {polls}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_results_hold_the_outcomes_that_were_read_as_results() {
    let host = Host::new(Mode::Ledger);
    let request = answer(&host.ask().await, true);
    let results = host.start(&ada(), &request).await.into_results();
    assert!(matches!(results.results()[0].outcome, DeferredOutcome::Executing { .. }));
    let mut running = host.start(&ada(), &request).await;
    let result = running.next().await.unwrap();
    assert_eq!(result.outcome, deleted());
    assert_eq!(running.into_results().results()[0], result);
    assert_eq!(DeferredToolResults::from_iter([result.clone()]).results(), [result]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_claimed_from_another_request_runs_without_a_reader() {
    let host = Host::idempotent();
    let request = answer(&host.ask().await, true);
    let first = host.redeem(&request).await.unwrap();
    let second = host.start(&ada(), &request).await;
    drop(first);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(host.effects(), 1);
    drop(second);
    assert_eq!((host.outcome(&request).await, host.effects()), (deleted(), 1));
}

#[tokio::test]
async fn an_output_that_the_client_sends_is_returned_as_unverified() {
    for (mode, host) in hosts() {
        let location = json!({"type": "tool-get_location", "toolCallId": "c1", "input": {},
                              "state": "output-available", "output": "Berlin"});
        let own = json!({"type": "tool-delete_file", "toolCallId": "c2", "input": {},
                         "state": "output-available", "output": "deleted"});
        let request = body([&location, &own]);
        let deferred = host.redeem(&request).await.unwrap();
        let [output] = deferred.unverified_outputs() else { panic!("{deferred:?}") };
        assert_eq!(output.tool_call_id.as_str(), "c1", "{mode:?}");
    }
}

#[tokio::test]
async fn a_stateless_host_rejects_the_approvals_of_a_host_with_a_ledger() {
    // The keys are the same, and the input has its canonical form, so that only the purpose of the
    // key differs.
    let (stateful, stateless) = (Host::new(Mode::Ledger), Host::new(Mode::Stateless));
    let request = answer(&stateful.ask_about(r#"{"copies":1,"path":"notes.txt"}"#).await, true);
    assert_eq!(stateless.outcome(&request).await, DeferredOutcome::Rejected);
    assert_eq!(stateless.effects(), 0);
    assert_eq!(stateful.outcome(&request).await, deleted());
}

#[tokio::test]
async fn a_tool_that_is_not_in_the_list_is_refused_with_the_line_to_add() {
    let host = Host::new(Mode::Ledger);
    let chat = adas_chat(&host.approvals);
    let (message, call, input) = ("m2".into(), "call-1".into(), Json::null());
    let asked = chat.request_approval(&message, &call, "transfer", &input, None);
    let error = asked.await.unwrap_err();
    assert!(
        error.to_string().contains(r#".tool("transfer", description, &input_schema)"#),
        "{error}"
    );
}

#[tokio::test]
async fn the_user_and_the_model_read_why_an_approval_could_not_be_requested() {
    let host = Host::new(Mode::Ledger);
    let chat = adas_chat(&host.approvals);
    let call = ToolCall::new("call-1", "delete_file");
    let inexact = Json::parse(r#"{"inode": 9007199254740993}"#).unwrap();
    let asked = chat.request_approval_of(&call, &inexact).await;
    let AgentEvent::ToolFailed { tool_call_id, error } = asked else { panic!("{asked:?}") };
    assert_eq!(tool_call_id.as_str(), "call-1");
    assert_eq!(*error, *InexactInputError::LargeInteger.to_string());
    assert!(chat.pending().await.unwrap().is_empty());
}

/// The user and the model read that nobody could be asked.
#[tokio::test(start_paused = true)]
async fn a_request_whose_response_from_the_ledger_is_lost_is_not_pending() {
    let host = Host::new(Mode::Ledger);
    let chat = adas_chat(&host.approvals);
    host.set(|faults| &faults.loses_insertions, true);
    let call = ToolCall::new("call-1", "delete_file");
    let asked = chat.request_approval_of(&call, &Json::null()).await;
    assert!(matches!(asked, AgentEvent::ToolFailed { .. }), "{asked:?}");
    assert!(host.approvals.pending(&ada()).await.unwrap().is_empty());
}

/// As the guide shows it: without awaiting the task, the response would end as a success.
#[tokio::test]
async fn a_panic_of_an_agent_that_sends_over_a_channel_ends_the_response_with_an_error() {
    let (sender, mut events) = mpsc::channel(16);
    let agent = tokio::spawn(async move {
        sender.send(AgentEvent::text("I look. ")).await.unwrap();
        panic!("no model");
    });
    let request = request(&json!({"id": "chat", "messages": [
        user_message("m1", "Look"),
    ]}));
    let events = try_stream! {
        while let Some(event) = events.recv().await {
            yield event;
        }
        agent.await?;
    };
    let events = events.map(|event: Result<AgentEvent, JoinError>| event);
    let frames: Vec<_> =
        UiMessageStream::reply(&request, events).map(Result::unwrap).collect().await;
    let frames = String::from_utf8(frames.concat()).unwrap();
    assert!(frames.contains(r#""delta":"I look. ""#), "{frames}");
    assert!(frames.contains(r#"{"type":"error","errorText":"An error occurred."}"#), "{frames}");
    assert!(!frames.contains("no model"), "{frames}");
}

#[test]
fn the_guide_shows_what_the_real_client_posts() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let guide = read("docs/your-agent-reference.md");
    let blocks = guide.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let shown: Vec<Value> = blocks.map(|block| serde_json::from_str(block).unwrap()).collect();
    let recorded = ["01-first-message", "07-approval-denied-with-reason", "12-client-tool-output"];
    let recorded = recorded.map(|name| {
        let request = read(&format!("fixtures/upstream/requests/{name}.json"));
        serde_json::from_str::<Value>(&request).unwrap()["body"].take()
    });
    assert_eq!(shown, recorded);
}
