//! Asking a person and running what was approved, once: `Approvals` with a ledger in memory.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use ui_message_stream::Json;
use ui_message_stream::approval::store::{
    BoxFuture, InMemoryLedger, LedgerStore, LedgerStoreError, PendingFilter as Whose, Snapshot,
    update,
};
use ui_message_stream::approval::{
    ApprovalDecision, ApprovalRecord, ClaimResult, DeferredOutcome, IssuedApproval, LeaseHolderId,
    Principal, RecordId, RecordedDecision, RevocationReason, ToolOutcome, Transition,
};

use super::one_tool::{Bench, LEASE, Panics, Tool, ada, body, body_written_on, call, unanswered};

#[tokio::test]
async fn an_approved_call_runs_once_and_a_retry_gets_its_outcome() {
    let bench = Bench::new();
    let asked = bench.ask("call_1", notes()).await;
    let answer = body(&[call("call_1", &asked, true)]);
    for attempt in 0..3 {
        let outcomes = bench.outcomes(&answer).await;
        let [DeferredOutcome::Executed { outcome: ToolOutcome::Output(output) }] = &outcomes[..]
        else {
            panic!("{outcomes:?}");
        };
        assert_eq!(output.as_str(), r#"{"path":"notes.txt"}"#, "attempt {attempt}");
    }
    assert_eq!(bench.effects(), [r#"{"path":"notes.txt"}"#]);
}

#[tokio::test]
async fn a_denied_call_never_runs_and_the_first_answer_stands() {
    let bench = Bench::new();
    let asked = bench.ask("call_1", notes()).await;
    let no = bench.outcomes(&body(&[call("call_1", &asked, false)])).await;
    assert_eq!(no, [DeferredOutcome::Denied { reason: None }]);
    let yes = bench.outcomes(&body(&[call("call_1", &asked, true)])).await;
    assert_eq!(yes, [DeferredOutcome::Rejected]);
    assert!(bench.effects().is_empty());
}

#[tokio::test]
async fn an_approval_and_a_denial_of_one_request_are_a_denial() {
    for answers in [[true, false], [false, true]] {
        let bench = Bench::new();
        let asked = bench.ask("call_1", notes()).await;
        let decisions = answers.map(|approved| ApprovalDecision {
            approval_id: asked.approval_id.clone(),
            approved,
            reason: None,
        });
        let groups = bench.approvals.group_by_message(&ada(), decisions.into()).await.unwrap();
        let [group] = &groups[..] else { panic!("{groups:?}") };
        let kept: Vec<bool> = group.decisions.iter().map(|(_, kept)| kept.approved).collect();
        assert_eq!(kept, [false], "{answers:?}");
        let chat = bench.approvals.for_chat(&ada(), &group.chat_id);
        let denied = chat.resolve(group.plan(), &[]).await.unwrap().next().await.unwrap();
        assert_eq!(denied.outcome, DeferredOutcome::Denied { reason: None }, "{answers:?}");
        assert!(bench.effects().is_empty(), "{answers:?}");
    }
}

#[tokio::test]
async fn an_expired_approval_is_refused_and_says_so() {
    let bench = Bench::new();
    let asked = bench.ask("call_1", notes()).await;
    bench.wait(Duration::from_secs(60 * 60));
    let late = bench.outcomes(&body(&[call("call_1", &asked, true)])).await;
    assert_eq!(late, [DeferredOutcome::Expired]);
    assert!(bench.effects().is_empty());
}

#[tokio::test]
async fn an_approval_counts_up_to_its_last_millisecond() {
    let bench = Bench::new();
    let asked = bench.ask("call_1", notes()).await;
    bench.wait(Duration::from_millis(60 * 60 * 1000 - 1));
    bench.outcomes(&body(&[call("call_1", &asked, true)])).await;
    assert_eq!(bench.effects().len(), 1);
}

#[tokio::test]
async fn nobody_else_can_answer_unless_the_host_says_so() {
    let bench = Bench::new();
    let asked = bench.ask("call_1", notes()).await;
    let answer = body(&[call("call_1", &asked, true)]);
    let eve = bench.outcomes_for(&Principal::new("eve"), &answer).await;
    assert_eq!(eve, [DeferredOutcome::Rejected]);
    assert!(bench.effects().is_empty());
    assert_eq!(bench.outcomes(&answer).await.len(), 1);
    assert_eq!(bench.effects().len(), 1);
}

#[tokio::test]
async fn who_writes_in_a_chat_of_the_same_id_neither_sees_nor_closes_what_others_were_asked() {
    let bench = Bench::new();
    let asked = bench.ask("call_1", notes()).await;
    let eve = Principal::new("eve");
    for body in [body(&[]), body_written_on(&[])] {
        let (results, outcomes) = bench.settled(&eve, &body).await;
        assert!(results.is_empty() && outcomes.is_empty(), "{results:?}");
    }
    assert!(bench.approvals.for_chat(&eve, &"chat".into()).pending().await.unwrap().is_empty());
    assert!(bench.is_pending(&asked).await);
    bench.outcomes(&body(&[call("call_1", &asked, true)])).await;
    assert_eq!(bench.effects().len(), 1);
}

#[tokio::test]
async fn a_yes_after_the_yes_of_somebody_else_is_told_what_came_of_that() {
    let bench = Bench::new().with(|approvals| approvals.authorize_decision(|_, _| true));
    let asked = bench.ask("call_1", notes()).await;
    let answer = body(&[call("call_1", &asked, true)]);
    let first = bench.outcomes_for(&Principal::new("bob"), &answer).await;
    assert_eq!(bench.outcomes(&answer).await, first);
    assert!(matches!(&first[..], [DeferredOutcome::Executed { .. }]), "{first:?}");
    assert_eq!(bench.effects().len(), 1);
    assert_eq!(
        happened(&bench, &asked),
        ["requested", "approved", "ran", "refused"],
        "the second answer did not count"
    );
}

#[tokio::test]
async fn a_lost_attempt_of_an_idempotent_tool_is_made_again() {
    let bench = Bench::new();
    bench.tool(|tool| tool.is_idempotent = true);
    let asked = bench.ask("call_1", notes()).await;
    let lost = bench.claim_and_vanish(&asked).await;
    bench.wait(LEASE);
    let outcomes = bench.outcomes(&body(&[call("call_1", &asked, true)])).await;
    assert!(matches!(&outcomes[..], [DeferredOutcome::Executed { .. }]), "{outcomes:?}");
    assert_eq!(bench.effects().len(), 1);
    bench.complete(&lost, &ToolOutcome::Failed("too late".into())).await;
    assert_eq!(bench.outcomes(&body(&[call("call_1", &asked, true)])).await, outcomes);
    assert_eq!(happened(&bench, &asked), ["requested", "approved", "ran"]);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_lost_while_it_is_waited_for_is_made_again_and_told() {
    let bench = Bench::new();
    bench.tool(|tool| tool.is_idempotent = true);
    let asked = bench.ask("call_1", notes()).await;
    bench.claim_and_vanish(&asked).await;
    let answer = body(&[call("call_1", &asked, true)]);
    let later = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        bench.wait(LEASE);
    };
    let (outcomes, ()) = tokio::join!(bench.outcomes(&answer), later);
    assert!(matches!(&outcomes[..], [DeferredOutcome::Executed { .. }]), "{outcomes:?}");
    assert_eq!(happened(&bench, &asked), ["requested", "approved", "ran"]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_attempt_is_not_made_again_with_what_was_not_approved() {
    let changes: [fn(&mut Tool); 3] = [
        |tool| tool.is_permitted = false,
        |tool| tool.does = "deletes all files",
        |tool| tool.is_idempotent = false,
    ];
    for (at, update) in changes.into_iter().enumerate() {
        for is_lost_while_waiting in [false, true] {
            let bench = Bench::new();
            bench.tool(|tool| tool.is_idempotent = true);
            let asked = bench.ask("call_1", notes()).await;
            bench.claim_and_vanish(&asked).await;
            bench.tool(update);
            let later = async {
                if is_lost_while_waiting {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                bench.wait(LEASE);
            };
            let answer = body(&[call("call_1", &asked, true)]);
            let outcomes = match is_lost_while_waiting {
                true => tokio::join!(bench.outcomes(&answer), later).0,
                false => {
                    later.await;
                    bench.outcomes(&answer).await
                }
            };
            assert_eq!(outcomes, [DeferredOutcome::OutcomeUnknown], "update {at}");
            assert!(bench.effects().is_empty(), "update {at}");
            assert_eq!(happened(&bench, &asked), ["requested", "outcome-unknown"], "update {at}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_no_starts_no_further_attempt() {
    let bench = Bench::new();
    bench.tool(|tool| tool.is_idempotent = true);
    let asked = bench.ask("call_1", notes()).await;
    bench.claim_and_vanish(&asked).await;
    bench.wait(LEASE);
    let outcomes = bench.outcomes(&body(&[call("call_1", &asked, false)])).await;
    assert_eq!(outcomes, [DeferredOutcome::OutcomeUnknown]);
    let outcomes = bench.outcomes(&body(&[call("call_1", &asked, true)])).await;
    assert_eq!(outcomes, [DeferredOutcome::OutcomeUnknown]);
    assert!(bench.effects().is_empty());
}

#[tokio::test]
async fn what_the_ledger_could_not_store_stays_open() {
    for approved in [true, false] {
        let bench = Bench::new();
        let asked = bench.ask("call_1", notes()).await;
        let ledger = ReadOnly(bench.ledger.clone());
        let bench = bench.with(|approvals| approvals.with_ledger(Arc::new(ledger)));
        let answer = body(&[call("call_1", &asked, approved)]);
        let (results, outcomes) = bench.settled(&ada(), &answer).await;
        let expected = match approved {
            true => DeferredOutcome::Rejected,
            false => DeferredOutcome::Denied { reason: None },
        };
        assert_eq!(outcomes, [expected]);
        assert!(!results.results()[0].is_final);
        assert!(bench.effects().is_empty() && bench.is_pending(&asked).await);
    }
}

#[tokio::test]
async fn a_tool_that_panics_before_it_waits_has_failed() {
    let bench = Bench::new();
    let asked = bench.ask("call_1", notes()).await;
    bench.tool(|tool| tool.panics = Some(Panics::WhenRun));
    let answer = body(&[call("call_1", &asked, true)]);
    for _ in 0..2 {
        let outcomes = bench.outcomes(&answer).await;
        assert!(
            matches!(
                &outcomes[..],
                [DeferredOutcome::Executed { outcome: ToolOutcome::Failed(_) }]
            ),
            "{outcomes:?}"
        );
    }
}

#[tokio::test]
async fn a_panic_while_permission_is_asked_leaves_the_question_open() {
    let bench = Bench::new();
    let asked = bench.ask("call_1", notes()).await;
    bench.tool(|tool| tool.panics = Some(Panics::WhenAskedForPermission));
    let answer = body(&[call("call_1", &asked, true)]);
    let (results, outcomes) = bench.settled(&ada(), &answer).await;
    assert_eq!(outcomes, [DeferredOutcome::Rejected]);
    assert!(!results.results()[0].is_final && bench.is_pending(&asked).await);
    bench.tool(|tool| tool.panics = None);
    bench.outcomes(&answer).await;
    assert_eq!(bench.effects().len(), 1);
}

#[tokio::test]
async fn a_lease_of_no_time_is_no_panic() {
    let bench = Bench::new().with(|approvals| approvals.with_lease(Duration::ZERO));
    let asked = bench.ask("call_1", notes()).await;
    let outcomes = bench.outcomes(&body(&[call("call_1", &asked, true)])).await;
    assert!(matches!(&outcomes[..], [DeferredOutcome::Executed { .. }]), "{outcomes:?}");
}

#[tokio::test]
async fn what_nobody_answered_in_time_cannot_be_taken_back_as_well() {
    let bench = Bench::new();
    let asked = bench.ask("call_1", notes()).await;
    bench.wait(Duration::from_secs(60 * 60));
    assert!(!bench.approvals.revoke(asked.record).await.unwrap());
    let late = bench.outcomes(&body(&[call("call_1", &asked, true)])).await;
    assert_eq!(late, [DeferredOutcome::Expired]);
}

#[tokio::test]
async fn what_is_decided_elsewhere_meanwhile_is_told_as_it_is() {
    for (elsewhere, expected) in [
        (Elsewhere::Approves, DeferredOutcome::Executed { outcome: done() }),
        (Elsewhere::Denies, DeferredOutcome::Denied { reason: Some("no".into()) }),
        (Elsewhere::Revokes, DeferredOutcome::Revoked),
    ] {
        let bench = Bench::new();
        let asked = bench.ask("call_1", notes()).await;
        let ledger = Overtaken { ledger: bench.ledger.clone(), id: asked.record, elsewhere };
        let bench = bench.with(|approvals| approvals.with_ledger(Arc::new(ledger)));
        let (results, outcomes) =
            bench.settled(&ada(), &body(&[unanswered("call_1", &asked)])).await;
        assert_eq!(outcomes, [expected]);
        assert!(results.pending().is_empty() && results.results()[0].is_final);
    }
}

#[tokio::test]
async fn a_refusal_at_one_of_two_calls_of_one_id_leaves_the_other_open() {
    let bench = Bench::new();
    let _first = bench.ask("call_0", notes()).await;
    let second = bench.ask("call_0", notes()).await;
    let mut forged = call("call_0", &second, true);
    forged["approval"]["id"] = "a1.forged".into();
    let parts = [forged, unanswered("call_0-1", &second)];
    let (results, outcomes) = bench.settled(&ada(), &body(&parts)).await;
    assert_eq!(outcomes, [DeferredOutcome::Rejected]);
    let pending: Vec<_> = results.pending().iter().map(|call| &call.approval_id).collect();
    assert_eq!(pending, [&Some(second.approval_id)]);
}

/// A ledger whose disk is full.
#[derive(Debug)]
struct ReadOnly(Arc<InMemoryLedger>);

impl LedgerStore for ReadOnly {
    fn insert<'a>(&'a self, _: &'a ApprovalRecord) -> Answer<'a, bool> {
        Box::pin(ready(Err(LedgerStoreError::new("disk full"))))
    }

    fn load<'a>(&'a self, ids: &'a [RecordId]) -> Answer<'a, Snapshot> {
        self.0.load(ids)
    }

    fn pending<'a>(&'a self, of: Whose<'a>) -> Answer<'a, Snapshot> {
        self.0.pending(of)
    }

    fn compare_and_swap<'a>(&'a self, _: &'a ApprovalRecord, _: u64) -> Answer<'a, bool> {
        Box::pin(ready(Err(LedgerStoreError::new("disk full"))))
    }
}

/// A ledger in which somebody decides elsewhere as soon as the open questions were read.
#[derive(Debug)]
struct Overtaken {
    ledger: Arc<InMemoryLedger>,
    id: RecordId,
    elsewhere: Elsewhere,
}

#[derive(Debug, Clone, Copy)]
enum Elsewhere {
    Approves,
    Denies,
    Revokes,
}

impl LedgerStore for Overtaken {
    fn insert<'a>(&'a self, record: &'a ApprovalRecord) -> Answer<'a, bool> {
        self.ledger.insert(record)
    }

    fn load<'a>(&'a self, ids: &'a [RecordId]) -> Answer<'a, Snapshot> {
        self.ledger.load(ids)
    }

    fn pending<'a>(&'a self, of: Whose<'a>) -> Answer<'a, Snapshot> {
        Box::pin(async move {
            let read = self.ledger.pending(of).await;
            let decided = update(&*self.ledger, self.id, |record, now| {
                let reason = Some("no".to_owned());
                let decision = RecordedDecision { decided_by: ada(), decided_at: now, reason };
                let next = match self.elsewhere {
                    Elsewhere::Approves => {
                        let claimant = LeaseHolderId::from_bytes([9; 16]);
                        let claimed = record.claim(&decision, claimant, LEASE);
                        let ClaimResult::Granted(claim) = &claimed.output else { panic!() };
                        claimed.next.unwrap().complete(claim, &done(), now).next
                    }
                    Elsewhere::Denies => record.deny(&decision).next,
                    Elsewhere::Revokes => record.revoke(RevocationReason::ByHost, now).next,
                };
                Transition { output: (), next }
            });
            decided.await?;
            read
        })
    }

    fn compare_and_swap<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> Answer<'a, bool> {
        self.ledger.compare_and_swap(record, revision)
    }
}

type Answer<'a, T> = BoxFuture<'a, Result<T, LedgerStoreError>>;

fn done() -> ToolOutcome {
    ToolOutcome::Output(Json::null())
}

fn notes() -> Value {
    json!({"path": "notes.txt"})
}

/// What the audit heard of a question, by name.
fn happened(bench: &Bench, asked: &IssuedApproval) -> Vec<String> {
    let heard = bench.heard(asked.record).into_iter();
    let names = heard.map(|event| serde_json::to_value(&event).unwrap()["happened"].clone());
    names.map(|name| name.as_str().unwrap().to_owned()).collect()
}
