//! The audit events, and secrecy: no token, input or output occurs in an event, in a log line, or
//! in the `Debug` text of any value that holds an approval id.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use serde_json::{Value, json};
use test_support::ledger_double::RemoteLedger;
use test_support::requests::{ada, request};
use test_support::thread_subscriber::{CapturedLog, subscribe};
use ui_message_stream::approval::store::InMemoryLedger;
use ui_message_stream::approval::{
    ApprovalDecision, AuditEvent, AuditEventKind, AuditSink, IssuedApproval, PendingToolCall,
    Principal, RecordId, ResumePlan, TracingAudit, UnverifiedApprovalRequest,
};
use ui_message_stream::checker::Checker;
use ui_message_stream::reducer::Reducer;
use ui_message_stream::{AgentEvent, Chunk, Json, Translator};

use super::one_tool::{
    Bench, LEASE, Panics, RecordedAudit, body, body_with_new_message, call, unanswered,
};

/// Occurs in the input, and therefore in the output.
const CANARY: &str = "canary-5ec2e7";

fn secret() -> Value {
    json!({"path": CANARY})
}

fn answer(issued: &IssuedApproval, approved: bool) -> Value {
    let mut call = call("call_1", issued, approved);
    call["input"] = secret();
    call
}

#[tokio::test]
async fn each_state_change_gives_one_audit_event_of_its_record_without_a_token_or_an_input() {
    let bench = Bench::new();
    // What the bench does, and the expected audit events.
    let stories: [(&[&str], &[&str]); 11] = [
        (&["yes"], &["requested", "approved", "executed"]),
        (&["yes", "yes"], &["requested", "approved", "executed"]),
        (&["yes", "no"], &["requested", "approved", "executed", "rejected"]),
        (&["no", "no"], &["requested", "denied"]),
        (&["no", "yes"], &["requested", "denied", "rejected"]),
        (&["eve", "yes"], &["requested", "rejected", "approved", "executed"]),
        (&["late", "yes"], &["requested", "expired", "rejected"]),
        (&["write on", "yes"], &["requested", "superseded", "rejected"]),
        (&["yes, write on", "yes"], &["requested", "lapsed", "rejected"]),
        (&["take back", "yes"], &["requested", "revoked", "rejected"]),
        (&["late", "take back in vain"], &["requested", "expired"]),
    ];
    for (story, expected) in stories {
        let issued = bench.ask("call_1", secret()).await;
        for action in story {
            let (approval, denial) =
                (body(&[answer(&issued, true)]), body(&[answer(&issued, false)]));
            match *action {
                "yes" => drop(bench.outcomes(&approval).await),
                "no" => drop(bench.outcomes(&denial).await),
                "eve" => drop(bench.outcomes_for(&Principal::new("eve"), &approval).await),
                "late" => bench.wait(Duration::from_secs(60 * 60)),
                "yes, write on" => {
                    let approval = [answer(&issued, true)];
                    drop(bench.outcomes(&body_with_new_message(&approval)).await);
                }
                "write on" => drop(bench.outcomes(&body_with_new_message(&[])).await),
                "take back" => assert!(bench.approvals.revoke(issued.record).await.unwrap()),
                "take back in vain" => {
                    assert!(!bench.approvals.revoke(issued.record).await.unwrap(), "{story:?}");
                }
                _ => panic!("{action}"),
            }
        }
        assert_eq!(bench.audit_names(&issued), expected, "{story:?}");
        let events = bench.audit_events(issued.record);
        for event in &events {
            assert_eq!(event.input_digest, events[0].input_digest, "{story:?}: {event:?}");
            for text in [format!("{event:?}"), serde_json::to_string(event).unwrap()] {
                assert!(
                    !contains_token(&text, &issued) && !text.contains(CANARY),
                    "{story:?}: {text}"
                );
            }
        }
        assert_eq!(events[0].input_digest.as_ref().unwrap().len(), 64);
    }
}

#[tokio::test]
async fn a_decision_that_came_elsewhere_is_rejected_for_the_same_reason_as_in_a_chat_request() {
    let bench = Bench::new();
    let issued = bench.ask("call_1", secret()).await;
    let eve = Principal::new("eve");
    let other_ledger = Arc::new(InMemoryLedger::new());
    let lost = Bench::new().with(|_| bench.approvals.clone().with_ledger(other_ledger));
    for (bench, principal, reason) in
        [(&bench, &eve, "wrong-principal-or-chat"), (&lost, &ada(), "not-found")]
    {
        let sink = RecordedAudit::default();
        let approvals = bench.approvals.clone().with_audit(sink.clone());
        let bench = Bench::new().with(|_| approvals);
        bench.outcomes_for(principal, &body(&[answer(&issued, true)])).await;
        let approval_id = issued.approval_id.clone();
        let decision = ApprovalDecision::new(approval_id, true);
        let groups = bench.approvals.group_by_message(principal, vec![decision]).await.unwrap();
        assert_eq!(groups, []);
        let events = sink.0.lock().unwrap();
        let rejections: Vec<(Option<RecordId>, Value)> = events
            .iter()
            .map(|event| (event.record, serde_json::to_value(event).unwrap()["cause"].clone()))
            .collect();
        assert_eq!(rejections, vec![(Some(issued.record), json!(reason)); 2]);
    }
}

/// Panics when an approval request expires.
#[derive(Debug)]
struct PanicsOnExpiry;

impl AuditSink for PanicsOnExpiry {
    fn record(&self, event: &AuditEvent) {
        assert_ne!(event.kind, AuditEventKind::Expired);
    }
}

#[tokio::test]
async fn open_approvals_stay_pending_although_the_audit_sink_panics() {
    let bench = Bench::new().with(|approvals| approvals.with_audit(PanicsOnExpiry));
    let first = bench.ask("call_1", secret()).await;
    bench.wait(Duration::from_secs(30 * 60));
    let second = bench.ask("call_2", secret()).await;
    bench.wait(Duration::from_secs(45 * 60));
    let calls = [unanswered("call_1", &first), unanswered("call_2", &second)];
    let (results, _) = bench.settled(&ada(), &body(&calls)).await;
    let pending = results.pending().iter().map(|call| call.tool_call_id.as_str());
    assert_eq!(pending.collect::<Vec<_>>(), ["call_1", "call_2"]);
}

#[tokio::test]
async fn an_unknown_outcome_gives_one_audit_event_however_often_it_is_requested() {
    let bench = Bench::new();
    let issued = bench.ask("call_1", secret()).await;
    bench.claim_and_vanish(&issued).await;
    bench.wait(LEASE);
    for _ in 0..3 {
        bench.outcomes(&body(&[answer(&issued, true)])).await;
    }
    assert_eq!(bench.audit_names(&issued), ["requested", "outcome-unknown"]);
}

/// Whether a text holds a complete token or its unguessable part.
fn contains_token(text: &str, issued: &IssuedApproval) -> bool {
    // The head of the id is not secret: a version, a key id and two times.
    text.contains(&issued.approval_id[24..]) || text.contains(&issued.approval_id[24..60])
}

#[tokio::test]
async fn no_log_line_holds_a_token_an_input_or_a_line_forged_by_the_client() {
    let log = CapturedLog::default();
    let lines = tracing_subscriber::fmt()
        .with_writer(log.writer())
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false);
    let _guard = subscribe(lines.finish());
    let bench = Bench::new().with(|approvals| approvals.with_audit(TracingAudit));
    let issued = bench.ask("call_1", secret()).await;
    let mut forged = answer(&issued, true);
    forged["toolCallId"] = "call_1\nINFO forged line".into();
    bench.outcomes(&body(&[forged])).await;
    bench.tool(|tool| tool.panics = Some(Panics::WhenRun));
    bench.outcomes(&body(&[answer(&issued, true)])).await;
    let log = log.text();
    assert!(
        log.contains(r#"kind="rejected""#)
            && log.contains(r#"kind="approved""#)
            && log.contains("panicked"),
        "{log}"
    );
    let waited = r#"approval_wait{gen_ai.operation.name="approval_wait" gen_ai.conversation.id="chat" gen_ai.tool.name="delete_file" gen_ai.tool.call.id="call_1" waited_ms="#;
    assert_eq!(log.matches(waited).count(), 1, "one span for the final state: {log}");
    assert!(!contains_token(&log, &issued) && !log.contains(CANARY), "{log}");
    assert!(!log.lines().any(|line| line.starts_with("INFO forged")), "{log}");
}

#[tokio::test]
async fn no_debug_text_shows_an_approval_id() {
    let bench = Bench::new();
    let issued = bench.ask("call_1", secret()).await;
    let other = bench.ask("call_2", secret()).await;
    let chat = bench.approvals.for_chat(&ada(), &"chat".into());
    let id = || issued.approval_id.clone();
    let request = request(&body(&[answer(&issued, true), unanswered("call_2", &other)]));
    let plan = ResumePlan::new(request.messages(), request.continued_message());
    let open = PendingToolCall::awaiting_approval(id(), "call_1", "delete_file", Json::null());
    let deferred = plan.clone().settle(std::slice::from_ref(&open));
    let requests: Vec<UnverifiedApprovalRequest> = plan.pending().to_vec();
    let pending = chat.pending().await.unwrap();
    let chunk = Chunk::ToolApprovalRequest {
        approval_id: issued.approval_id.as_str().into(),
        tool_call_id: "call_1".into(),
        approval_descriptor: None,
        input_schema_input: None,
        reason: None,
        is_automatic: None,
        signature: None,
    };
    let event = AgentEvent::approval_requested("call_1", id());
    let message = request.continued_message().unwrap();
    let mut translator = Translator::continuing(message);
    let used_twice = translator.handle_event(&event, &mut |_| {}).unwrap_err();
    let checker = Checker::continuing(message);
    let reducer = Reducer::continuing(message.clone());
    let debug_texts = [
        ("an id", format!("{:?}", id())),
        ("an issued approval", format!("{issued:?}")),
        ("pending calls", format!("{pending:?} {requests:?} {open:?}")),
        ("a request", format!("{request:?}")),
        ("a message", format!("{:?}", request.messages())),
        ("a plan", format!("{plan:?} {:?}", plan.unverified_responses().collect::<Vec<_>>())),
        ("results", format!("{deferred:?}")),
        ("an event", format!("{event:?}")),
        ("a chunk", format!("{chunk:?} {chunk:#?}")),
        ("a translator", format!("{translator:?} {used_twice:?} {used_twice}")),
        ("a reader", format!("{checker:?} {reducer:?}")),
        ("approvals", format!("{:?} {chat:?} {:?}", bench.approvals, bench.ledger)),
        ("the results", format!("{:?}", chat.resolve(plan, &[]).await.unwrap())),
    ];
    for (what, text) in debug_texts {
        assert!(
            !contains_token(&text, &issued) && !contains_token(&text, &other),
            "{what}: {text}"
        );
    }
}

#[tokio::test]
async fn a_request_that_is_dropped_at_any_await_takes_effect_once_and_is_audited_once() {
    let stories: [(&str, &[&str]); 3] = [
        ("yes", &["requested", "approved", "executed"]),
        ("no", &["requested", "denied"]),
        ("write on", &["requested", "superseded"]),
    ];
    for (story, expected) in stories {
        let mut cuts = 0;
        loop {
            let bench = Bench::new();
            let issued = bench.ask("call_1", secret()).await;
            let ledger = Arc::new(RemoteLedger(bench.ledger.clone()));
            let bench = bench.with(|approvals| approvals.with_ledger(ledger));
            let sent = match story {
                "yes" => body(&[answer(&issued, true)]),
                "no" => body(&[answer(&issued, false)]),
                _ => body_with_new_message(&[unanswered("call_1", &issued)]),
            };
            let mut polls = 0;
            let is_cut = {
                let mut request = pin!(bench.outcomes(&sent));
                poll_fn(|cx| {
                    polls += 1;
                    match request.as_mut().poll(cx) {
                        Poll::Ready(_) => Poll::Ready(false),
                        Poll::Pending if polls > cuts => Poll::Ready(true),
                        Poll::Pending => Poll::Pending,
                    }
                })
                .await
            };
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            bench.outcomes(&sent).await;
            assert_eq!(bench.audit_names(&issued), expected, "{story}, cut at {cuts}");
            let effects = bench.effects().len();
            assert_eq!(effects, usize::from(story == "yes"), "{story}, cut at {cuts}");
            if !is_cut {
                break;
            }
            cuts += 1;
        }
        println!("{story}: dropped at {cuts} places");
        assert!(cuts >= 1);
    }
}
