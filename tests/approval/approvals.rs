//! `Approvals` with a ledger in memory: requesting approval, and executing approved calls once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use serde_json::json;
use test_support::ledger_double::{Fault, LedgerDouble, Operation, RemoteLedger};
use test_support::requests::ada;
use ui_message_stream::Json;
use ui_message_stream::approval::ApprovalLimits;
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::store::{InMemoryLedger, update};
use ui_message_stream::approval::{
    ApprovalDecision, AuditEvent, AuditEventKind, CallToApprove, Claim, DeferredOutcome,
    DeferredToolResults, IssuedApproval, KeyRing, LeaseHolderId, PendingToolCall, Principal,
    RecordId, RecordedDecision, RequestApprovalError, RevocationReason, Stepped, ToolOutcome,
    Transition, UnixMillis,
};

use super::one_tool::{
    AWAY, Bench, LEASE, Panics, RecordedAudit, Tool, body, body_with_new_message, call, notes,
    unanswered,
};

#[tokio::test]
async fn of_decisions_on_calls_with_one_id_each_counts() {
    let bench = Bench::new();
    let (mut decisions, mut expected) = (Vec::new(), Vec::new());
    for (path, approved) in [("a.txt", true), ("b.txt", false), ("c.txt", true), ("d.txt", false)] {
        let issued = bench.ask("call_1", json!({"path": path})).await;
        let approval_id = issued.approval_id;
        expected.push((approval_id.clone(), approved));
        decisions.push(ApprovalDecision::new(approval_id, approved));
    }
    let groups = bench.approvals.group_by_message(&ada(), decisions).await.unwrap();
    let [group] = &groups[..] else { panic!("{groups:?}") };
    let chat = bench.approvals.for_chat(&ada(), &group.chat_id);
    let mut resolved = chat.resolve(group.plan(), &[]).await.unwrap();
    let mut outcomes = Vec::new();
    while let Some(result) = resolved.next().await {
        let is_executed = matches!(result.outcome, DeferredOutcome::Executed { .. });
        assert!(is_executed || result.outcome == DeferredOutcome::Denied { reason: None });
        outcomes.push((result.approval_id.unwrap(), is_executed));
    }
    outcomes.sort_by_key(|(id, _)| expected.iter().position(|(other, _)| other == id));
    assert_eq!(outcomes, expected);
    let mut effects = bench.effects();
    effects.sort_unstable();
    assert_eq!(effects, [r#"{"path":"a.txt"}"#, r#"{"path":"c.txt"}"#]);
}

#[tokio::test]
async fn an_approval_is_accepted_until_its_last_millisecond() {
    let (bench, issued) = Bench::asked().await;
    bench.wait(Duration::from_millis(60 * 60 * 1000 - 1));
    bench.outcomes(&body(&[call("call_1", &issued, true)])).await;
    assert_eq!(bench.effects().len(), 1);
}

#[tokio::test]
async fn an_approval_outlives_the_rotation_of_its_key_until_the_old_key_expires() {
    let ring =
        |id: u32| KeyRing::new(id, &test_support::secret(u8::try_from(id).unwrap())).unwrap();
    for (not_after, runs) in [(UnixMillis(u64::MAX), 1), (UnixMillis(0), 0)] {
        let bench = Bench::new().with(|approvals| approvals.with_keys(ring(1)));
        let issued = bench.ask("call_1", notes()).await;
        // A server that was deployed since, beside the old one.
        let rotated = ring(2).with_retired_key(not_after, 1, &test_support::secret(1)).unwrap();
        let bench = bench.with(|approvals| approvals.with_keys(rotated));
        bench.outcomes(&body(&[call("call_1", &issued, true)])).await;
        assert_eq!(bench.effects().len(), runs, "{not_after:?}");
    }
}

#[tokio::test]
async fn a_second_approval_by_another_user_returns_the_outcome_of_the_first() {
    let bench = Bench::new().with(|approvals| approvals.authorize_decision(|_, _| true));
    let issued = bench.ask("call_1", notes()).await;
    let answer = body(&[call("call_1", &issued, true)]);
    let first = bench.outcomes_in_adas_chat(&Principal::new("bob"), &answer).await;
    assert_eq!(bench.outcomes(&answer).await, first);
    assert!(matches!(&first[..], [DeferredOutcome::Executed { .. }]), "{first:?}");
    assert_eq!(bench.effects().len(), 1);
    assert_eq!(
        bench.audit_names(&issued),
        ["requested", "approved", "executed", "rejected"],
        "the second approval was rejected"
    );
}

#[tokio::test]
async fn the_newest_results_say_which_open_calls_wait_run_or_have_ended() {
    let bench = Bench::new();
    let mut open = Vec::new();
    for at in 0..4 {
        bench.tool(|tool| tool.is_idempotent = at == 2);
        let id = format!("call_{at}");
        let issued = bench.ask(&id, notes()).await;
        let input = Json::from_serialize(&notes()).unwrap();
        let id = issued.approval_id.clone();
        let call =
            PendingToolCall::awaiting_approval(id, format!("call_{at}"), "delete_file", input);
        open.push((issued, call));
    }
    let [waits, runs, repeatable, ended] = &open[..] else { unreachable!() };
    let calls: Vec<PendingToolCall> = open.iter().map(|(_, call)| call.clone()).collect();
    for (issued, _) in [runs, repeatable] {
        bench.claim_and_vanish(issued).await;
    }
    let claim = bench.claim_and_vanish(&ended.0).await;
    let ada_chat = bench.approvals.for_chat(&ada(), &"chat".into());
    let newest = async |known| ada_chat.with_newest_results(known, &calls).await.unwrap();
    let outcomes = |results: &DeferredToolResults| -> Vec<_> {
        let results =
            calls.iter().map(|call| Some(results.get(&call.tool_call_id)?.outcome.clone()));
        results.collect()
    };
    let executing = |of: &(IssuedApproval, PendingToolCall)| {
        Some(DeferredOutcome::Executing { record: of.0.record })
    };

    let first = newest(DeferredToolResults::default()).await;
    assert_eq!(outcomes(&first), [None, executing(runs), executing(repeatable), executing(ended)]);
    assert_eq!(first.pending(), std::slice::from_ref(&waits.1));

    // The lease of the calls passes, but one has ended.
    let done = ToolOutcome::Output(Json::string("deleted"));
    bench.complete(&claim, &done).await;
    bench.wait(LEASE);
    let (unknown, executed) =
        (DeferredOutcome::OutcomeUnknown, DeferredOutcome::Executed { outcome: done });
    let then = newest(first).await;
    assert_eq!(outcomes(&then), [None, Some(unknown.clone()), Some(unknown), Some(executed)]);
    assert_eq!(then.pending(), std::slice::from_ref(&waits.1));

    bench.claim_and_vanish(&waits.0).await;
    let last = newest(then).await;
    assert_eq!(outcomes(&last)[0], executing(waits));
    assert_eq!((last.results().len(), last.pending()), (4, &[][..]));

    let chat_of_another = bench.approvals.for_chat(&Principal::new("eve"), &"chat".into());
    let none = DeferredToolResults::default();
    assert!(chat_of_another.with_newest_results(none, &calls).await.unwrap().is_empty());
}

#[tokio::test]
async fn the_outcome_of_a_request_is_unknown_once_the_ledger_has_removed_it() {
    let bench = Bench::new();
    let issued = bench.ask("call_1", notes()).await;
    bench.claim_and_vanish(&issued).await;
    let chat = bench.approvals.for_chat(&ada(), &"chat".into());
    let ids = [issued.approval_id.clone()];
    let known = async || {
        let known = chat.known_outcomes(&ids).await.unwrap().into_iter();
        known.map(|request| request.outcome).collect::<Vec<_>>()
    };
    assert_eq!(known().await, [DeferredOutcome::Executing { record: issued.record }]);
    // The ledger removes what has expired long ago when the next request is inserted.
    bench.wait(Duration::from_secs(400 * 24 * 60 * 60));
    bench.ask("call_2", notes()).await;
    assert!(bench.ledger.load(&[issued.record]).await.unwrap().records.is_empty());
    assert_eq!(known().await, [DeferredOutcome::OutcomeUnknown]);

    // Another server knows nothing of it, and neither does this one of an id that it has not sealed.
    let other = Bench::new().approvals.for_chat(&ada(), &"chat".into());
    assert!(other.known_outcomes(&ids).await.unwrap().is_empty());
}

/// Approves a call of an idempotent tool whose server is lost. Its lease passes before the approval
/// arrives again, or while the approval waits for the outcome.
async fn approve_after_a_loss(
    bench: &Bench,
    issued: &IssuedApproval,
    is_lost_while_waiting: bool,
) -> Vec<DeferredOutcome> {
    let answer = body(&[call("call_1", issued, true)]);
    if !is_lost_while_waiting {
        bench.wait(LEASE);
        return bench.outcomes(&answer).await;
    }
    let pass_lease = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        bench.wait(LEASE);
    };
    tokio::join!(bench.outcomes(&answer), pass_lease).0
}

/// A bench with an idempotent tool, a request, and the claim of a server that is lost.
async fn idempotent_and_lost() -> (Bench, IssuedApproval, Claim) {
    let bench = Bench::new();
    bench.tool(|tool| tool.is_idempotent = true);
    let issued = bench.ask("call_1", notes()).await;
    let lost = bench.claim_and_vanish(&issued).await;
    (bench, issued, lost)
}

#[tokio::test(start_paused = true)]
async fn an_idempotent_tool_runs_again_when_its_lease_has_expired() {
    for is_lost_while_waiting in [false, true] {
        let (bench, issued, lost) = idempotent_and_lost().await;
        let outcomes = approve_after_a_loss(&bench, &issued, is_lost_while_waiting).await;
        let is_executed = matches!(&outcomes[..], [DeferredOutcome::Executed { .. }]);
        assert!(is_executed, "lost while waiting: {is_lost_while_waiting}: {outcomes:?}");
        assert_eq!(bench.effects().len(), 1, "lost while waiting: {is_lost_while_waiting}");
        bench.complete(&lost, &ToolOutcome::Failed("too late".into())).await;
        assert_eq!(bench.outcomes(&body(&[call("call_1", &issued, true)])).await, outcomes);
        assert_eq!(bench.audit_names(&issued), ["requested", "approved", "executed"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_does_not_run_again_when_it_changed_is_away_or_is_not_permitted_any_more() {
    let changes: [fn(&mut Tool); 4] = [
        |tool| tool.is_away = true,
        |tool| tool.is_permitted = false,
        |tool| tool.description = "deletes all files",
        |tool| tool.is_idempotent = false,
    ];
    for (at, update) in changes.into_iter().enumerate() {
        for is_lost_while_waiting in [false, true] {
            let (bench, issued, _) = idempotent_and_lost().await;
            bench.tool(update);
            let outcomes = approve_after_a_loss(&bench, &issued, is_lost_while_waiting).await;
            assert_eq!(outcomes, [DeferredOutcome::OutcomeUnknown], "update {at}");
            assert!(bench.effects().is_empty(), "update {at}");
            let audited = bench.audit_names(&issued);
            assert_eq!(audited, ["requested", "outcome-unknown"], "update {at}");
        }
    }
}

#[tokio::test]
async fn an_approved_call_of_a_tool_that_is_away_fails_and_never_runs() {
    for is_idempotent in [true, false] {
        let bench = Bench::new();
        bench.tool(|tool| tool.is_idempotent = is_idempotent);
        let issued = bench.ask("call_1", notes()).await;
        let answer = body(&[call("call_1", &issued, true)]);
        for is_away in [true, true, false] {
            bench.tool(|tool| tool.is_away = is_away);
            let outcome = ToolOutcome::Failed(AWAY.to_owned());
            assert_eq!(bench.outcomes(&answer).await, [DeferredOutcome::Executed { outcome }]);
            bench.wait(LEASE);
        }
        assert!(bench.effects().is_empty());
        assert_eq!(bench.audit_names(&issued), ["requested", "approved", "executed"]);
    }
}

#[tokio::test]
async fn a_tool_that_is_away_changes_neither_a_denial_nor_an_expiry() {
    let bench = Bench::new();
    bench.tool(|tool| tool.is_away = true);
    let issued = bench.ask("call_1", notes()).await;
    let denied = bench.outcomes(&body(&[call("call_1", &issued, false)])).await;
    assert_eq!(denied, [DeferredOutcome::Denied { reason: None }]);
    let issued = bench.ask("call_2", notes()).await;
    bench.wait(Duration::from_secs(60 * 60));
    let expired = bench.outcomes(&body(&[call("call_2", &issued, true)])).await;
    assert_eq!(expired, [DeferredOutcome::Expired]);
}

#[tokio::test(start_paused = true)]
async fn a_denial_does_not_start_another_attempt() {
    let (bench, issued, _) = idempotent_and_lost().await;
    bench.wait(LEASE);
    let outcomes = bench.outcomes(&body(&[call("call_1", &issued, false)])).await;
    assert_eq!(outcomes, [DeferredOutcome::OutcomeUnknown]);
    let outcomes = bench.outcomes(&body(&[call("call_1", &issued, true)])).await;
    assert_eq!(outcomes, [DeferredOutcome::OutcomeUnknown]);
    assert!(bench.effects().is_empty());
}

#[tokio::test]
async fn an_approval_stays_pending_when_the_ledger_cannot_store_the_decision() {
    for approved in [true, false] {
        let (bench, issued) = Bench::asked().await;
        let ledger = LedgerDouble::over(bench.ledger.clone(), |operation| match operation {
            Operation::Insert(_) | Operation::Replace(_) => Some(Fault::NotDone("disk full")),
            Operation::Load(_) | Operation::List => None,
        });
        let bench = bench.with(|approvals| approvals.with_ledger(Arc::new(ledger)));
        let answer = body(&[call("call_1", &issued, approved)]);
        let (results, outcomes) = bench.settled(&ada(), &answer).await;
        let expected = match approved {
            true => DeferredOutcome::OutcomeUnknown,
            false => DeferredOutcome::Denied { reason: None },
        };
        assert_eq!(outcomes, [expected]);
        assert!(!results.results()[0].is_final);
        assert!(bench.effects().is_empty() && bench.is_pending(&issued).await);
    }
}

/// The user may approve on another page until the record is closed, so the host must not store that
/// the call was not executed.
#[tokio::test]
async fn a_request_with_a_newer_message_fails_if_the_ledger_cannot_close_what_it_supersedes() {
    for is_answered in [false, true] {
        let bench = Bench::new();
        let (closed, issued) =
            (bench.ask("call_1", notes()).await, bench.ask("call_2", notes()).await);
        let writable = bench.approvals.clone();
        let id = issued.record;
        let ledger = LedgerDouble::over(bench.ledger.clone(), move |operation| match operation {
            Operation::Replace(record) if record.id == id => Some(Fault::NotDone("timeout")),
            _ => None,
        });
        let bench = bench.with(|approvals| approvals.with_ledger(Arc::new(ledger)));
        let open = match is_answered {
            true => call("call_2", &issued, true),
            false => unanswered("call_2", &issued),
        };
        let request = body_with_new_message(&[call("call_1", &closed, false), open]);
        bench.try_resolve(&request).await.expect_err("the record is still pending");
        assert!(bench.is_pending(&issued).await);
        // If the superseded request cannot be closed, no response has been sent to the ledger.
        assert_eq!(bench.is_pending(&closed).await, !is_answered);
        // The user sends the message again.
        let bench = bench.with(|_| writable);
        bench.settled(&ada(), &request).await;
        let late = body(&[call("call_2", &issued, true)]);
        let expected = match is_answered {
            true => DeferredOutcome::Lapsed,
            false => DeferredOutcome::Superseded,
        };
        assert_eq!(bench.outcomes(&late).await, [expected]);
        assert!(bench.effects().is_empty());
    }
}

#[tokio::test]
async fn a_tool_that_panics_before_it_returns_a_future_has_failed() {
    let (bench, issued) = Bench::asked().await;
    bench.tool(|tool| tool.panics = Some(Panics::WhenRun));
    let answer = body(&[call("call_1", &issued, true)]);
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
async fn a_panic_in_the_permission_check_leaves_the_approval_pending() {
    let (bench, issued) = Bench::asked().await;
    bench.tool(|tool| tool.panics = Some(Panics::InPermissionCheck));
    let answer = body(&[call("call_1", &issued, true)]);
    let (results, outcomes) = bench.settled(&ada(), &answer).await;
    assert_eq!(outcomes, [DeferredOutcome::OutcomeUnknown]);
    assert!(!results.results()[0].is_final && bench.is_pending(&issued).await);
    bench.tool(|tool| tool.panics = None);
    bench.outcomes(&answer).await;
    assert_eq!(bench.effects().len(), 1);
}

#[tokio::test]
async fn a_lease_of_zero_duration_does_not_panic() {
    let bench = Bench::new().with(|approvals| approvals.with_lease(Duration::ZERO));
    let issued = bench.ask("call_1", notes()).await;
    let outcomes = bench.outcomes(&body(&[call("call_1", &issued, true)])).await;
    assert!(matches!(&outcomes[..], [DeferredOutcome::Executed { .. }]), "{outcomes:?}");
}

#[tokio::test]
async fn a_decision_made_concurrently_elsewhere_is_returned() {
    for (elsewhere, expected) in [
        (Elsewhere::Approves, DeferredOutcome::Executed { outcome: done() }),
        (Elsewhere::Denies, DeferredOutcome::Denied { reason: Some("no".into()) }),
        (Elsewhere::Revokes, DeferredOutcome::Revoked),
    ] {
        let (bench, issued) = Bench::asked().await;
        // As soon as the pending approvals were read.
        let (store, has_listed) = (bench.ledger.clone(), AtomicBool::new(false));
        let ledger = LedgerDouble::over(bench.ledger.clone(), move |operation| {
            if has_listed.swap(matches!(operation, Operation::List), Ordering::SeqCst) {
                decide_elsewhere(&store, issued.record, elsewhere);
            }
            None
        });
        let bench = bench.with(|approvals| approvals.with_ledger(Arc::new(ledger)));
        let (results, outcomes) =
            bench.settled(&ada(), &body(&[unanswered("call_1", &issued)])).await;
        assert_eq!(outcomes, [expected]);
        assert!(results.pending().is_empty() && results.results()[0].is_final);
    }
}

#[tokio::test]
async fn rejecting_one_of_two_calls_with_the_same_id_leaves_the_other_pending() {
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

#[derive(Debug, Clone, Copy)]
enum Elsewhere {
    Approves,
    Denies,
    Revokes,
}

/// Decides a request as another server does.
fn decide_elsewhere(ledger: &InMemoryLedger, id: RecordId, elsewhere: Elsewhere) {
    let decided = update(ledger, id, |record, now| {
        let mut decision = RecordedDecision::new(ada(), now);
        decision.reason = Some("no".to_owned());
        let next = match elsewhere {
            Elsewhere::Approves => {
                let claimed = record.claim(&decision, LeaseHolderId::from_bytes([9; 16]), LEASE);
                let Stepped::Granted(claim) = &claimed.output else { panic!() };
                claimed.next.unwrap().complete(claim, &done(), now).next
            }
            Elsewhere::Denies => record.deny(&decision).next,
            Elsewhere::Revokes => record.revoke(RevocationReason::ByHost, now).next,
        };
        Transition { output: (), next }
    });
    // The ledger is in memory, so nothing is waited for.
    decided.now_or_never().unwrap().unwrap();
}

fn done() -> ToolOutcome {
    ToolOutcome::Output(Json::null())
}

#[tokio::test]
async fn of_requests_at_the_same_time_as_many_as_the_limit_allows_are_kept() {
    for (limit, requests) in [(1, 2), (3, 8), (4, 4)] {
        let audit = RecordedAudit::default();
        let ledger = InMemoryLedger::with_test_clock(UnixMillis(1_000_000_000_000));
        let bench = Bench::new().with(|approvals| {
            let limits = ApprovalLimits::default().with_max_chat_approvals(limit);
            approvals
                .with_ledger(Arc::new(RemoteLedger(Arc::new(ledger))))
                .with_limits(limits)
                .with_audit(audit.clone())
        });
        let chat = bench.approvals.for_chat(&ada(), &"chat".into());
        let request = async |number: usize| {
            let call = format!("call_{number}").into();
            chat.request_approval(&"m2".into(), &call, "delete_file", &Json::null(), None).await
        };
        let issued = futures::future::join_all((0..requests).map(request)).await;
        assert_eq!(issued.iter().filter(|issued| issued.is_ok()).count(), limit);
        assert_eq!(chat.pending().await.unwrap().len(), limit);
        // A request that was refused was never stored.
        let events = audit.0.lock().unwrap();
        let is_requested =
            |event: &AuditEvent| matches!(event.kind, AuditEventKind::Requested { .. });
        assert!(events.iter().all(is_requested), "{events:?}");
        assert_eq!(events.len(), limit);
    }
}

#[tokio::test]
async fn several_approvals_are_requested_at_once_up_to_the_limit_and_each_has_its_own_error() {
    let bench = Bench::new().with(|approvals| {
        approvals.with_limits(ApprovalLimits::default().with_max_chat_approvals(100))
    });
    let chat = bench.approvals.for_chat(&ada(), &"chat".into());
    let call = |number: usize| {
        let tool = if number == 1 { "unknown" } else { "delete_file" };
        CallToApprove::new(format!("call_{number}"), tool, Json::null())
    };
    let issued = chat.request_approvals(&"m2".into(), (0..150).map(call).collect()).await;
    assert!(
        matches!(&issued[1], Err(RequestApprovalError::UnknownTool(tool)) if &**tool == "unknown")
    );
    let is_refused = |issued: &Result<_, _>| {
        matches!(
            issued,
            Err(RequestApprovalError::TooManyPending {
                limit: 100,
                setting: "with_max_chat_approvals"
            })
        )
    };
    assert!(issued[101..].iter().all(is_refused));
    let records: Vec<_> = issued.iter().flatten().map(|issued| issued.record).collect();
    assert_eq!(records.len(), 100);
    let pending = chat.pending().await.unwrap();
    let pending: Vec<_> = pending.iter().map(|pending| pending.record.id).collect();
    assert_eq!(pending, records, "the list has the order of the calls");
}

#[tokio::test]
async fn a_description_above_its_limit_is_refused_with_the_setting() {
    let bench = Bench::new();
    let chat = bench.approvals.for_chat(&ada(), &"chat".into());
    let ask = async |bytes: usize| {
        let (message, call, input) = ("m2".into(), "call_1".into(), Json::null());
        let description = "x".repeat(bytes);
        chat.request_approval(&message, &call, "delete_file", &input, Some(&description)).await
    };
    ask(16 << 10).await.unwrap();
    let error = ask((16 << 10) + 1).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the description of the call is longer than 16384 bytes; \
         `ApprovalLimits::with_max_description_bytes` allows more"
    );
    assert_eq!(chat.pending().await.unwrap().len(), 1);
}
