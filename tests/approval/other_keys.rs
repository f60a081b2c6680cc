//! Servers that share a ledger and not their secret refuse each other's questions. Users read one text for all
//! refusals, and the log says what is wrong.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use test_support::approvals;
use test_support::requests::{ada, request};
use test_support::secret;
use test_support::thread_subscriber::{CapturedLog, captured};
use tracing::subscriber::DefaultGuard;
use ui_message_stream::Json;
use ui_message_stream::approval::store::InMemoryLedger;
use ui_message_stream::approval::{
    ApprovalDecision, Approvals, DeferredOutcome, IssuedApproval, KeyRing, ToolList, UnixMillis,
};

use super::one_tool::{body, call, notes};

const NOW: UnixMillis = UnixMillis(1_000_000_000_000);

/// A server on this ledger, with this secret under the number 1.
fn server(ledger: &Arc<InMemoryLedger>, number: u8) -> Approvals {
    with_keys(ledger, KeyRing::new(1, &secret(number)).unwrap())
}

fn with_keys(ledger: &Arc<InMemoryLedger>, keys: KeyRing) -> Approvals {
    let tools = ToolList::new().tool("delete_file", "Deletes a file.", &Json::no_schema());
    Approvals::new(tools).with_keys(keys).with_ledger(ledger.clone())
}

async fn ask(server: &Approvals) -> IssuedApproval {
    approvals::ask(server, "call_1", "delete_file", notes()).await
}

/// Answers in a history, as `useChat` does.
async fn answer(server: &Approvals, issued: &IssuedApproval, approved: bool) -> DeferredOutcome {
    let chat = request(&body(&[call("call_1", issued, approved)]));
    let plan = server.redeem(&ada(), &chat).await.unwrap();
    plan.results().results()[0].outcome.clone()
}

/// Answers from elsewhere, as `approval_routes` do. Returns whether the decision counts.
async fn decide(server: &Approvals, issued: &IssuedApproval) -> bool {
    let decision = ApprovalDecision::new(issued.approval_id.clone(), true);
    !server.group_by_message(&ada(), vec![decision]).await.unwrap().is_empty()
}

/// Collects the warnings of this thread.
struct Log {
    log: CapturedLog,
    _guard: DefaultGuard,
}

impl Log {
    fn new() -> Self {
        let (log, _guard) = captured();
        Log { log, _guard }
    }

    /// The number of warnings about open requests of another key, and of those about answers to one.
    fn warnings(&self) -> [usize; 2] {
        let text = self.log.text();
        let lines = text.lines().filter(|line| line.contains("another key"));
        let lines: Vec<&str> = lines.collect();
        let count = [OPEN, ANSWER].map(|begin| {
            let warning = format!("WARN ui_message_stream::approval::service::other_keys: {begin}");
            lines.iter().filter(|line| line.contains(&warning)).count()
        });
        assert_eq!(count[0] + count[1], lines.len(), "{text}");
        count
    }
}

const OPEN: &str = "open approval requests of the ledger were sealed by another key";
const ANSWER: &str = "an answer is refused: its approval request was sealed by another key";

#[tokio::test]
async fn a_server_with_another_secret_warns_once_and_for_each_answer_and_refuses_with_one_text() {
    let log = Log::new();
    let ledger = Arc::new(InMemoryLedger::with_test_clock(NOW));
    let (first, second) = (server(&ledger, 1), server(&ledger, 2));
    let issued = ask(&first).await;
    assert_eq!(log.warnings(), [0, 0]);
    for _ in 0..2 {
        second.expire_due().await.unwrap();
        assert_eq!(second.pending(&ada()).await.unwrap(), []);
    }
    assert_eq!(log.warnings(), [1, 0]);
    assert!(!decide(&second, &issued).await);
    assert_eq!(log.warnings(), [1, 1]);
    assert_eq!(answer(&second, &issued, true).await, DeferredOutcome::Rejected);
    assert_eq!(log.warnings(), [1, 2]);
    let denied = DeferredOutcome::Denied { reason: None };
    assert_eq!(answer(&second, &issued, false).await, denied);
    assert_eq!(log.warnings(), [1, 3]);
    // The ids of both keys, and neither a token nor a secret.
    let key = |number| KeyRing::new(1, &secret(number)).unwrap().active_key_id();
    let text = log.log.text();
    let named =
        text.lines().filter(|line| line.contains(&format!("sealed_by={} key={}", key(1), key(2))));
    assert_eq!(named.count(), 4, "{text}");
    assert!(!text.contains(issued.approval_id.as_str()), "{text}");
    // The first server is not concerned.
    assert!(decide(&first, &issued).await);
    assert_eq!(log.warnings(), [1, 3]);
}

#[tokio::test]
async fn the_answer_alone_tells_of_the_other_key() {
    let log = Log::new();
    let ledger = Arc::new(InMemoryLedger::with_test_clock(NOW));
    let issued = ask(&server(&ledger, 1)).await;
    assert_eq!(answer(&server(&ledger, 2), &issued, true).await, DeferredOutcome::Rejected);
    assert_eq!(log.warnings(), [1, 1]);
}

#[tokio::test]
async fn a_rotated_key_is_no_error_until_its_time_is_over() {
    let log = Log::new();
    let ledger = Arc::new(InMemoryLedger::with_test_clock(NOW));
    let issued = ask(&server(&ledger, 1)).await;
    let rotated = |not_after| {
        let keys = KeyRing::new(2, &secret(2)).unwrap();
        with_keys(&ledger, keys.with_retired_key(not_after, 1, &secret(1)).unwrap())
    };
    let server = rotated(UnixMillis(u64::MAX));
    server.expire_due().await.unwrap();
    assert_eq!(server.pending(&ada()).await.unwrap().len(), 1);
    assert!(decide(&server, &issued).await);
    assert_eq!(log.warnings(), [0, 0]);
    let late = rotated(UnixMillis(1));
    late.expire_due().await.unwrap();
    assert!(!decide(&late, &issued).await);
    assert_eq!(log.warnings(), [1, 1]);
}

#[tokio::test]
async fn a_replaced_secret_is_named_once_and_new_requests_are_not_concerned() {
    let log = Log::new();
    let ledger = Arc::new(InMemoryLedger::with_test_clock(NOW));
    ask(&server(&ledger, 1)).await;
    let replaced = server(&ledger, 2);
    for _ in 0..3 {
        replaced.expire_due().await.unwrap();
        let issued = ask(&replaced).await;
        assert!(matches!(answer(&replaced, &issued, true).await, DeferredOutcome::Approved { .. }));
    }
    assert_eq!(log.warnings(), [1, 0]);
    // Nothing of the old key is open any more.
    ledger.set_test_time(NOW.after(Duration::from_secs(2 * 60 * 60)));
    replaced.expire_due().await.unwrap();
    let next = server(&ledger, 2);
    next.expire_due().await.unwrap();
    assert_eq!(log.warnings(), [1, 0]);
}

/// A client can write any id, so it cannot fill the log with the keys of its choice.
#[tokio::test]
async fn an_invented_id_is_not_said_to_be_of_another_key() {
    let log = Log::new();
    let ledger = Arc::new(InMemoryLedger::with_test_clock(NOW));
    let issued = ask(&server(&Arc::new(InMemoryLedger::with_test_clock(NOW)), 1)).await;
    let server = server(&ledger, 2);
    ask(&server).await;
    assert_eq!(answer(&server, &issued, true).await, DeferredOutcome::Rejected);
    assert!(!decide(&server, &issued).await);
    let word = ApprovalDecision::new("a1.word".into(), true);
    assert_eq!(server.group_by_message(&ada(), vec![word]).await.unwrap(), []);
    let mut cut = body(&[call("call_1", &issued, true)]);
    cut["messages"][1]["parts"][0]["approval"]["id"] = json!("ap_1");
    drop(server.redeem(&ada(), &request(&cut)).await.unwrap());
    assert_eq!(log.warnings(), [0, 0]);
}
