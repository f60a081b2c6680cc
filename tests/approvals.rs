//! Asking a person and running what was approved, once: `Approvals` with a ledger in memory.

mod bench;

use std::time::Duration;

use bench::{Bench, body, call};
use serde_json::json;
use ui_message_stream::approval::{DeferredOutcome, Principal, ToolOutcome};

#[tokio::test]
async fn an_approved_call_runs_once_and_a_retry_gets_its_outcome() {
    let bench = Bench::new();
    let asked = bench.ask("call_1", json!({"path": "notes.txt"})).await;
    let answer = body(&[call("call_1", &asked, true)]);
    for attempt in 0..3 {
        let outcomes = bench.outcomes(&answer).await;
        let [DeferredOutcome::Ran { outcome: ToolOutcome::Output(output) }] = &outcomes[..] else {
            panic!("{outcomes:?}");
        };
        assert_eq!(output.as_str(), r#"{"path":"notes.txt"}"#, "attempt {attempt}");
    }
    assert_eq!(bench.effects(), [r#"{"path":"notes.txt"}"#]);
}

#[tokio::test]
async fn a_denied_call_never_runs_and_the_first_answer_stands() {
    let bench = Bench::new();
    let asked = bench.ask("call_1", json!({"path": "notes.txt"})).await;
    let no = bench.outcomes(&body(&[call("call_1", &asked, false)])).await;
    assert_eq!(no, [DeferredOutcome::Denied { reason: None }]);
    let yes = bench.outcomes(&body(&[call("call_1", &asked, true)])).await;
    assert_eq!(yes, [DeferredOutcome::Refused]);
    assert!(bench.effects().is_empty());
}

#[tokio::test]
async fn an_expired_approval_is_refused_and_says_so() {
    let bench = Bench::new();
    let asked = bench.ask("call_1", json!({"path": "notes.txt"})).await;
    bench.wait(Duration::from_secs(60 * 60));
    let late = bench.outcomes(&body(&[call("call_1", &asked, true)])).await;
    assert_eq!(late, [DeferredOutcome::Expired]);
    assert!(bench.effects().is_empty());
}

#[tokio::test]
async fn an_approval_counts_up_to_its_last_millisecond() {
    let bench = Bench::new();
    let asked = bench.ask("call_1", json!({"path": "notes.txt"})).await;
    bench.wait(Duration::from_millis(60 * 60 * 1000 - 1));
    bench.outcomes(&body(&[call("call_1", &asked, true)])).await;
    assert_eq!(bench.effects().len(), 1);
}

#[tokio::test]
async fn nobody_else_can_answer_unless_the_host_says_so() {
    let bench = Bench::new();
    let asked = bench.ask("call_1", json!({"path": "notes.txt"})).await;
    let answer = body(&[call("call_1", &asked, true)]);
    let eve = bench.outcomes_of(&Principal::new("eve"), &answer).await;
    assert_eq!(eve, [DeferredOutcome::Refused]);
    assert!(bench.effects().is_empty());
    assert_eq!(bench.outcomes(&answer).await.len(), 1);
    assert_eq!(bench.effects().len(), 1);
}

#[tokio::test]
async fn a_lease_of_no_time_does_not_lose_the_outcome() {
    let mut bench = Bench::new();
    bench.approvals = bench.approvals.with_lease(Duration::ZERO);
    let asked = bench.ask("call_1", json!({"path": "notes.txt"})).await;
    let outcomes = bench.outcomes(&body(&[call("call_1", &asked, true)])).await;
    assert!(matches!(outcomes[..], [DeferredOutcome::Ran { .. }]), "{outcomes:?}");
}
