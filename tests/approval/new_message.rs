//! An approval that reaches the server with or after a newer message of the user, and approval
//! requests that the user left unanswered when the message was sent.

use serde_json::json;
use test_support::requests::ada;
use ui_message_stream::UserText;
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{
    ApprovalDecision, ApprovalEvent, ApprovalState, AuditEventKind, DeferredOutcome,
    IssuedApproval, OnNewMessage, Principal, RecordedDecision, RejectionReason,
};

use super::one_tool::{Bench, body, body_with_new_message, call, notes, unanswered};

async fn state(bench: &Bench, issued: &IssuedApproval) -> ApprovalState {
    bench.ledger.load(&[issued.record]).await.unwrap().records[0].record.state.clone()
}

/// Sets the policy of all tools and, if there is one, of the tool.
fn bench(of_all: OnNewMessage, of_tool: Option<OnNewMessage>) -> Bench {
    let bench = Bench::new().with(|approvals| approvals.on_new_message(of_all));
    bench.tool(|tool| tool.on_new_message = of_tool);
    bench
}

#[tokio::test]
async fn an_approval_that_arrives_with_a_newer_message_lapses_and_never_runs() {
    let (bench, issued) = Bench::asked().await;
    let approved = [call("call_1", &issued, true)];
    let with_new_message = body_with_new_message(&approved);
    assert_eq!(bench.outcomes(&with_new_message).await, [DeferredOutcome::Lapsed]);
    // The same request may arrive twice.
    assert_eq!(bench.outcomes(&with_new_message).await, []);
    // A page that does not show the new message sends its answer later.
    assert_eq!(bench.outcomes(&body(&approved)).await, [DeferredOutcome::Lapsed]);
    let denied = body(&[call("call_1", &issued, false)]);
    assert_eq!(bench.outcomes(&denied).await, [DeferredOutcome::Denied { reason: None }]);
    assert!(matches!(state(&bench, &issued).await, ApprovalState::Lapsed { .. }));
    assert!(bench.effects().is_empty());
}

#[tokio::test]
async fn an_approval_that_arrives_after_a_newer_message_does_not_run() {
    let (bench, issued) = Bench::asked().await;
    let (results, outcomes) =
        bench.settled(&ada(), &body_with_new_message(&[unanswered("call_1", &issued)])).await;
    assert!(outcomes.is_empty() && results.pending().is_empty(), "{results:?}");
    assert_eq!(results.superseded().len(), 1);
    assert!(matches!(state(&bench, &issued).await, ApprovalState::Superseded { .. }));
    let late = body(&[call("call_1", &issued, true)]);
    assert_eq!(bench.outcomes(&late).await, [DeferredOutcome::Superseded]);
    let late = body(&[call("call_1", &issued, false)]);
    assert_eq!(bench.outcomes(&late).await, [DeferredOutcome::Denied { reason: None }]);
    assert!(bench.effects().is_empty());
}

#[tokio::test]
async fn the_policy_of_a_tool_overrides_that_of_all_tools() {
    use OnNewMessage::{Lapse, Run};
    for (of_all, of_tool, runs) in [
        (Lapse, None, false),
        (Run, None, true),
        (Lapse, Some(Run), true),
        (Run, Some(Lapse), false),
    ] {
        let case = format!("{of_all:?}, {of_tool:?}");
        let bench = bench(of_all, of_tool);
        let issued = bench.ask("call_1", notes()).await;
        bench.outcomes(&body_with_new_message(&[call("call_1", &issued, true)])).await;
        assert_eq!(bench.effects().len(), usize::from(runs), "{case}");

        let issued = bench.ask("call_2", notes()).await;
        let (results, _) =
            bench.settled(&ada(), &body_with_new_message(&[unanswered("call_2", &issued)])).await;
        assert_eq!(bench.is_pending(&issued).await, runs, "{case}");
        let (pending, superseded) = (results.pending().len(), results.superseded().len());
        assert_eq!((pending, superseded), if runs { (1, 0) } else { (0, 1) }, "{case}");
        bench.outcomes(&body(&[call("call_2", &issued, true)])).await;
        assert_eq!(bench.effects().len(), 2 * usize::from(runs), "{case}");
    }
}

fn denied_by_message() -> DeferredOutcome {
    DeferredOutcome::Denied { reason: Some(UserText::DeniedByMessage.to_string()) }
}

#[tokio::test]
async fn a_newer_message_denies_a_request_if_the_policy_says_so_with_or_without_an_approval() {
    for (of_all, of_tool) in
        [(OnNewMessage::Deny, None), (OnNewMessage::Run, Some(OnNewMessage::Deny))]
    {
        for approved in [false, true] {
            let bench = bench(of_all, of_tool);
            let issued = bench.ask("call_1", notes()).await;
            let (sent, outcome, rejections) = match approved {
                false => (unanswered("call_1", &issued), denied_by_message(), 0),
                // A page that shows an approval does not accept a denial.
                true => (call("call_1", &issued, true), DeferredOutcome::Rejected, 1),
            };
            let (results, outcomes) = bench.settled(&ada(), &body_with_new_message(&[sent])).await;
            assert_eq!(outcomes, [outcome]);
            assert!(results.pending().is_empty() && results.superseded().is_empty());

            let loaded = bench.ledger.load(&[issued.record]).await.unwrap();
            let record = &loaded.records[0].record;
            let ApprovalState::Denied { decision } = &record.state else { panic!("{record:?}") };
            let reason = Some(UserText::DeniedByMessage.to_string());
            let expected = RecordedDecision::new(ada(), loaded.now);
            assert_eq!(*decision, RecordedDecision { reason, ..expected });
            let events = ApprovalEvent::all_of(record);
            assert_eq!(events[1..], [(ApprovalEvent::Denied, loaded.now)]);
            let audited = |kinds: usize| {
                let events = bench.audit_events(issued.record);
                let kinds_now: Vec<_> = events.into_iter().map(|event| event.kind).collect();
                let reason = Some(UserText::DeniedByMessage.to_string());
                assert_eq!(kinds_now[1], AuditEventKind::Denied { reason });
                let cause = RejectionReason::AlreadyDecided;
                assert_eq!(kinds_now[2..], vec![AuditEventKind::Rejected { cause }; kinds]);
            };
            audited(rejections);

            let late = body(&[call("call_1", &issued, true)]);
            assert_eq!(bench.outcomes(&late).await, [DeferredOutcome::Rejected]);
            audited(rejections + 1);
            assert!(bench.effects().is_empty());
        }
    }
}

#[test]
fn policies_are_stored_by_their_names_and_keep_is_read_as_run() {
    use OnNewMessage::{Deny, Lapse, Run};
    for (policy, name) in [(Lapse, "lapse"), (Deny, "deny"), (Run, "run")] {
        assert_eq!(serde_json::to_value(policy).unwrap(), name);
        assert_eq!(serde_json::from_value::<OnNewMessage>(json!(name)).unwrap(), policy);
    }
    assert_eq!(serde_json::from_value::<OnNewMessage>(json!("keep")).unwrap(), Run);
}

#[tokio::test]
async fn the_policy_at_the_time_of_the_request_applies() {
    let bench = bench(OnNewMessage::Lapse, None);
    let issued = bench.ask("call_1", notes()).await;
    bench.tool(|tool| tool.on_new_message = Some(OnNewMessage::Run));
    bench.outcomes(&body_with_new_message(&[call("call_1", &issued, true)])).await;
    assert!(bench.effects().is_empty());
}

#[tokio::test]
async fn a_message_of_the_requester_does_not_close_what_others_decide_on() {
    use OnNewMessage::{Deny, Lapse};
    for (policy, decided_by_others) in [(Lapse, true), (Lapse, false), (Deny, true), (Deny, false)]
    {
        let bench = bench(policy, None).with(|approvals| {
            approvals.authorize_decision(|principal, _| principal.id() == Some("boss"))
        });
        bench.tool(|tool| tool.decided_by_others = decided_by_others);
        let issued = bench.ask("call_1", notes()).await;
        let with_new_message = body_with_new_message(&[unanswered("call_1", &issued)]);
        let (results, _) = bench.settled(&ada(), &with_new_message).await;
        assert_eq!(results.pending().len(), usize::from(decided_by_others));
        assert_eq!(bench.is_pending(&issued).await, decided_by_others);
        let approved = body(&[call("call_1", &issued, true)]);
        bench.outcomes_in_adas_chat(&Principal::new("boss"), &approved).await;
        assert_eq!(bench.effects().len(), usize::from(decided_by_others));
    }
}

#[tokio::test]
async fn a_requester_cannot_approve_what_others_decide_on_but_can_deny_it() {
    let bench = Bench::new().with(|approvals| approvals.authorize_decision(|_, _| true));
    bench.tool(|tool| tool.decided_by_others = true);
    let issued = bench.ask("call_1", notes()).await;
    let descriptor = serde_json::to_value(&issued.descriptor).unwrap();
    assert_eq!(descriptor["decidedByOthers"], true);
    let approved = [call("call_1", &issued, true)];
    for request in [body(&approved), body_with_new_message(&approved)] {
        let (results, outcomes) = bench.settled(&ada(), &request).await;
        assert_eq!((outcomes.len(), results.pending().len()), (0, 1), "{results:?}");
    }
    let decision = ApprovalDecision::new(issued.approval_id.clone(), true);
    assert_eq!(bench.approvals.group_by_message(&ada(), vec![decision]).await.unwrap(), []);
    assert!(bench.is_pending(&issued).await && bench.effects().is_empty());
    let causes = bench.audit_events(issued.record).into_iter().map(|event| event.kind);
    let cause = RejectionReason::SelfApproval;
    assert_eq!(causes.skip(1).collect::<Vec<_>>(), vec![AuditEventKind::Rejected { cause }; 2]);

    // After another principal has approved, a late approval by the requester gets the output.
    bench.outcomes_in_adas_chat(&Principal::new("boss"), &body(&approved)).await;
    let outcomes = bench.outcomes(&body(&approved)).await;
    assert!(matches!(outcomes[..], [DeferredOutcome::Executed { .. }]), "{outcomes:?}");
    assert_eq!(bench.effects().len(), 1);

    let issued = bench.ask("call_2", notes()).await;
    bench.outcomes(&body(&[call("call_2", &issued, false)])).await;
    assert!(matches!(state(&bench, &issued).await, ApprovalState::Denied { .. }));
}
