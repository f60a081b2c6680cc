//! Responses to an approval request that reach the server after it was closed or decided. The first
//! event counts. The page that answers late, a page that is opened again and the stored chat then
//! show the same. `tests/client/scenarios/late-responses.mjs` is the table of the cases that the
//! demo can produce, through the real client.

use std::sync::Arc;
use std::time::Duration;

use chat_test_support::test_server::{Client, Host};
use serde_json::{Value, json};
use test_support::eventually;
use ui_message_stream::approval::store::{InMemoryLedger, update};
use ui_message_stream::approval::{
    LeaseHolderId, Principal, RecordId, RecordedDecision, UnixMillis,
};

const START: UnixMillis = UnixMillis(1_000_000_000_000);
const LEASE: Duration = Duration::from_secs(30);

/// What happens before the late response.
#[derive(Debug, Clone, Copy)]
enum Event {
    Expires,
    HostRevokes,
    DefinitionChanges,
    IsForbidden,
    Fails,
    Executes,
    ProcessIsLost,
    AnotherApproves,
    AnotherDenies,
    /// The server that stores the denial is lost before it records the denial in the chat.
    ServerOfDenialIsLost,
}

/// What is shown afterwards.
struct Row {
    event: Event,
    /// The state of the data part, on every page.
    approval: &'static str,
    /// The state of the tool part, in the history.
    in_history: &'static str,
    /// The state of the tool part on the page that approved or denied late.
    after_late: [&'static str; 2],
    /// Whether the late approval and the late denial count.
    counts: [bool; 2],
    effects: usize,
}

/// Creates a row of these values, in the order of the fields.
const fn row(
    event: Event,
    approval: &'static str,
    in_history: &'static str,
    after_late: [&'static str; 2],
    counts: [bool; 2],
    effects: usize,
) -> Row {
    Row { event, approval, in_history, after_late, counts, effects }
}

const ERROR: &str = "output-error";
const DENIED: &str = "output-denied";
const OUTPUT: &str = "output-available";

/// A late denial of a call that did not run is shown as a denial on its own page: that is true, and
/// the client accepts no other end of a denied part.
const TABLE: [Row; 10] = [
    row(Event::Expires, "expired", ERROR, [ERROR, DENIED], [false, false], 0),
    row(Event::HostRevokes, "revoked", ERROR, [ERROR, DENIED], [false, false], 0),
    row(Event::DefinitionChanges, "revoked", ERROR, [ERROR, DENIED], [false, false], 0),
    row(Event::IsForbidden, "revoked", ERROR, [ERROR, DENIED], [false, false], 0),
    row(Event::Fails, "approved", ERROR, [ERROR, ERROR], [true, false], 1),
    row(Event::Executes, "approved", OUTPUT, [OUTPUT, OUTPUT], [true, false], 1),
    row(Event::ProcessIsLost, "approved", ERROR, [ERROR, ERROR], [true, false], 0),
    row(Event::AnotherApproves, "approved", OUTPUT, [OUTPUT, OUTPUT], [false, false], 1),
    row(Event::AnotherDenies, "denied", DENIED, [ERROR, DENIED], [false, true], 0),
    row(Event::ServerOfDenialIsLost, "denied", DENIED, [ERROR, DENIED], [false, true], 0),
];

/// A server, and a page on which one deletion waits for an approval.
struct Case {
    host: Host,
    page: Client,
    ledger: Arc<InMemoryLedger>,
    approval_id: String,
    record: RecordId,
}

impl Case {
    async fn new() -> Self {
        let ledger = Arc::new(InMemoryLedger::with_test_clock(START));
        let host = Host::with(Vec::new(), |approvals| {
            approvals
                .with_ledger(ledger.clone())
                .with_lease(LEASE)
                .authorize_decision(|principal, _| principal.id() == Some("boss"))
        });
        let page = host.alice_says("delete notes.txt").await;
        let pending = host.chats.approvals().pending(&Principal::new("alice")).await.unwrap();
        let (approval_id, record) = (pending[0].approval_id.to_string(), pending[0].record.id);
        Case { host, page, ledger, approval_id, record }
    }

    async fn happens(&self, event: Event) {
        let Case { host, ledger, record, .. } = self;
        match event {
            Event::Expires => ledger.set_test_time(START.after(Duration::from_secs(2 * 60 * 60))),
            Event::HostRevokes => assert!(host.chats.approvals().revoke(*record).await.unwrap()),
            Event::DefinitionChanges => {
                host.tools.redefine(Some("Deletes everything.".to_owned()), None);
                assert!(!self.decide("alice", true).await);
            }
            Event::IsForbidden => {
                host.tools.forbid("delete_file");
                assert!(!self.decide("alice", true).await);
            }
            Event::Fails => {
                host.tools.set_failure("delete_file", "disk full");
                assert!(self.decide("alice", true).await);
            }
            Event::Executes => {
                host.tools.hold(true);
                // Neither the decision nor its repetition waits for the tool.
                assert!(self.decide("alice", true).await && self.decide("alice", true).await);
                assert!(host.pending("alice").await.is_empty());
                return;
            }
            Event::ProcessIsLost => {
                let holder = LeaseHolderId::from_bytes([9; 16]);
                let claimed = update(&**ledger, *record, |record, now| {
                    record.claim(&by_alice(now), holder, LEASE)
                });
                claimed.await.unwrap().unwrap();
                ledger.set_test_time(START.after(2 * LEASE));
                return;
            }
            Event::AnotherApproves => assert!(self.decide("boss", true).await),
            Event::AnotherDenies => assert!(self.decide("boss", false).await),
            Event::ServerOfDenialIsLost => {
                let denied = update(&**ledger, *record, |record, now| record.deny(&by_alice(now)));
                denied.await.unwrap().unwrap();
                return;
            }
        }
        self.settled().await;
    }

    /// Posts a decision from a second screen. Returns whether it counts.
    async fn decide(&self, person: &str, approved: bool) -> bool {
        self.host.decides(person, &self.approval_id, approved).await
    }

    /// The tool part and the state of the data part on a page that is opened again, once the call
    /// has a result.
    async fn settled(&self) -> (Value, Value) {
        let mut seen = Default::default();
        eventually(async || {
            seen = shown(&self.host.messages("alice").await);
            seen.0["state"].as_str().unwrap().starts_with("output-")
        })
        .await;
        seen
    }
}

fn by_alice(now: UnixMillis) -> RecordedDecision {
    RecordedDecision::new(Principal::new("alice"), now)
}

/// The tool part of these messages, and the newest state of its data part.
fn shown(messages: &[Value]) -> (Value, Value) {
    let parts: Vec<&Value> =
        messages.iter().flat_map(|message| message["parts"].as_array().unwrap()).collect();
    let last = |kind: &str| *parts.iter().rfind(|part| part["type"] == kind).unwrap();
    (last("tool-delete_file").clone(), last("data-approval")["data"]["state"].clone())
}

#[tokio::test(start_paused = true)]
async fn a_late_response_changes_nothing_that_any_page_shows_about_the_call() {
    for row in &TABLE {
        for (late, approved) in [(0, true), (1, false)] {
            for is_out_of_band in [false, true] {
                let context = format!("{:?}, approved: {approved}, {is_out_of_band}", row.event);
                let mut case = Case::new().await;
                case.happens(row.event).await;
                let release = async {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    case.host.tools.hold(false);
                };
                if is_out_of_band {
                    let (counts, ()) = tokio::join!(case.decide("alice", approved), release);
                    assert_eq!(counts, row.counts[late], "{context}");
                } else {
                    let host = case.host.clone();
                    tokio::join!(case.page.answer(&host, approved), release);
                    let (part, approval) = shown(&case.page.messages);
                    assert_eq!(part["state"], row.after_late[late], "{context}: {part}");
                    assert_eq!(approval, row.approval, "{context}: on the page");
                }
                let reloaded = case.settled().await;
                let (part, approval) = &reloaded;
                assert_eq!(part["state"], row.in_history, "{context}: {part}");
                assert_eq!(*approval, row.approval, "{context}: after a reload");
                assert_eq!(case.host.tools.effects().len(), row.effects, "{context}");

                // A second late response, from a second screen.
                let counts = case.decide("alice", !approved).await;
                assert_eq!(counts, row.counts[1 - late], "{context}: second response");
                tokio::time::sleep(Duration::from_millis(5)).await;
                assert_eq!(case.settled().await, reloaded, "{context}: second response");
                assert_eq!(case.host.tools.effects().len(), row.effects, "{context}");
            }
        }
    }
}

/// The stored chat holds the request as open until the next turn.
#[tokio::test(start_paused = true)]
async fn a_reloaded_page_shows_that_a_request_has_expired_or_was_revoked() {
    for (event, approval) in [(Event::Expires, "expired"), (Event::HostRevokes, "revoked")] {
        let case = Case::new().await;
        assert_eq!(shown(&case.host.messages("alice").await).1, "pending");
        case.happens(event).await;
        let (part, shown) = shown(&case.host.messages("alice").await);
        assert_eq!((&part["state"], shown), (&json!("output-error"), json!(approval)), "{event:?}");
    }
}
