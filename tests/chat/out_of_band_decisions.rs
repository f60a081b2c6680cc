//! Approvals that are decided by the routes for that: from a second screen, by a bot, by somebody
//! else. The browser finds what came of it.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use test_support::test_server::{Client, Host, Line, Scripted};
use ui_message_stream::approval::store::{
    BoxFuture, InMemoryLedger, LedgerStore, LedgerStoreError, PendingFilter, Snapshot,
};
use ui_message_stream::approval::{ApprovalRecord, RecordId};

fn decisions(ids: &[(&str, bool)]) -> Value {
    let decisions = ids.iter().map(|(id, yes)| json!({"approvalId": id, "approved": yes}));
    json!({"decisions": decisions.collect::<Vec<_>>()})
}

/// The conversation as the server has it, once nothing runs in it any more.
async fn history(host: &Host, person: &str, chat: &str) -> Vec<Value> {
    let path = format!("/api/chat/{chat}");
    for _ in 0..1000 {
        let messages = host.get(person, &path).await.json()["messages"].take();
        let messages: Vec<Value> = serde_json::from_value(messages).unwrap();
        let last = messages.last().and_then(|message| message["parts"].as_array()?.last().cloned());
        if last.is_some_and(|part| part["type"] == "text") {
            return messages;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{:#}", host.get(person, &path).await.json());
}

fn counts(answer: &Value) -> Vec<bool> {
    let decisions = answer["decisions"].as_array().unwrap().iter();
    decisions.map(|decision| decision["counts"].as_bool().unwrap()).collect()
}

#[tokio::test]
async fn what_waits_is_listed_for_the_person_alone_and_while_it_waits() {
    let host = Host::new();
    let (mut first, mut second) = (Client::new("alice", "first"), Client::new("alice", "second"));
    let mut bobs = Client::new("bob", "bobs");
    first.say(&host, "delete notes.txt").await;
    host.wait(Duration::from_millis(1));
    second.say(&host, "mixed").await;
    bobs.say(&host, "delete draft.md").await;

    let pending = host.pending("alice").await;
    let mut of: Vec<(&str, &str)> = pending
        .iter()
        .map(|one| (one["chatId"].as_str().unwrap(), one["toolName"].as_str().unwrap()))
        .collect();
    // The two of one moment come in any order.
    of[1..].sort_unstable();
    let expected = [("first", "delete_file"), ("second", "delete_file"), ("second", "transfer")];
    assert_eq!(of, expected);
    assert_eq!(pending[0]["input"], json!({"path": "notes.txt"}));
    assert_eq!(pending[0]["description"], r#"delete_file {"path":"notes.txt"}"#);
    assert_eq!(pending[0]["approvalId"], first.approval_ids()[0]);
    let waits =
        |one: &Value| one["expiresAt"].as_u64().unwrap() - one["requestedAt"].as_u64().unwrap();
    assert_eq!(waits(&pending[0]), 60 * 60 * 1000);
    assert_eq!(host.pending("bob").await.len(), 1);
    assert!(host.pending("carol").await.is_empty());

    host.wait(Duration::from_secs(60 * 60));
    assert!(host.pending("alice").await.is_empty());
}

#[tokio::test]
async fn a_yes_given_elsewhere_runs_and_the_browser_finds_it_with_its_next_post() {
    let host = Host::new();
    let mut browser = Client::new("alice", "chat");
    browser.say(&host, "delete notes.txt").await;
    let id = &browser.approval_ids()[0];

    let decided = host.decide("alice", &decisions(&[(id, true)])).await.json();
    assert_eq!(
        decided,
        json!({"decisions": [{"approvalId": id, "approved": true, "counts": true}]})
    );
    let kept = history(&host, "alice", "chat").await;
    assert_eq!(host.tools.effects().len(), 1);
    assert!(host.pending("alice").await.is_empty());

    // The page still shows the question, and the person says yes there too.
    let prompts = host.model.prompts().len();
    let answer = browser.answer(&host, true).await;
    assert_eq!(host.tools.effects().len(), 1);
    assert_eq!(host.model.prompts().len(), prompts, "the model was called again");
    assert_eq!(answer.of_type("tool-output-available").len(), 1, "{}", answer.text);
    assert_eq!(browser.last(), kept.last().unwrap());

    browser.say(&host, "and the weather?").await;
    assert_eq!(host.tools.effects().len(), 1);
}

#[tokio::test]
async fn a_page_that_is_opened_again_shows_what_was_decided_and_by_whom() {
    let host = Host::new();
    let mut browser = Client::new("alice", "chat");
    browser.say(&host, "mixed").await;
    let ids = browser.approval_ids();
    let both = json!({"decisions": [
        {"approvalId": ids[0], "approved": true},
        {"approvalId": ids[1], "approved": false, "reason": "too much"},
    ]});
    assert_eq!(counts(&host.decide("alice", &both).await.json()), [true, true]);
    let kept = history(&host, "alice", "chat").await;
    let parts = kept.last().unwrap()["parts"].as_array().unwrap();
    let shown: Vec<&Value> = parts
        .iter()
        .filter(|part| part["type"] == "data-approval")
        .map(|part| &part["data"])
        .collect();
    let [deletion, transfer] = shown[..] else { panic!("{parts:#?}") };
    assert_eq!(
        (&deletion["state"], &deletion["approvedBy"]),
        (&json!("approved"), &json!("alice"))
    );
    assert_eq!((&transfer["state"], &transfer["reason"]), (&json!("denied"), &json!("too much")));
    let states: Vec<&str> = parts.iter().filter_map(|part| part["state"].as_str()).collect();
    assert!(states.contains(&"output-denied"), "{states:?}");
    assert_eq!(host.tools.effects().len(), 1);
    assert_eq!(host.tools.effects()[0].tool, "delete_file");
}

#[tokio::test]
async fn a_no_given_elsewhere_is_final() {
    let host = Host::new();
    let mut browser = Client::new("alice", "chat");
    browser.say(&host, "delete notes.txt").await;
    let id = browser.approval_ids()[0].clone();
    assert_eq!(counts(&host.decide("alice", &decisions(&[(&id, false)])).await.json()), [true]);
    history(&host, "alice", "chat").await;

    assert_eq!(counts(&host.decide("alice", &decisions(&[(&id, true)])).await.json()), [false]);
    browser.answer(&host, true).await;
    browser.say(&host, "and the weather?").await;
    assert!(host.tools.effects().is_empty());
}

#[tokio::test]
async fn an_approval_and_a_denial_in_one_request_deny_the_call() {
    for answers in [[true, false], [false, true]] {
        let host = Host::new();
        let mut browser = Client::new("alice", "chat");
        browser.say(&host, "delete notes.txt").await;
        let id = browser.approval_ids()[0].clone();
        let both = decisions(&answers.map(|yes| (id.as_str(), yes)));
        let accepted = answers.map(|yes| !yes);
        assert_eq!(counts(&host.decide("alice", &both).await.json()), accepted);
        history(&host, "alice", "chat").await;
        assert!(host.pending("alice").await.is_empty());
        assert!(host.tools.effects().is_empty());
    }
}

#[tokio::test]
async fn one_is_decided_elsewhere_and_the_other_in_the_browser() {
    for first_elsewhere in [true, false] {
        let host = Host::new();
        let mut browser = Client::new("alice", "chat");
        browser.say(&host, "mixed").await;
        let ids = browser.approval_ids();
        let prompts = host.model.prompts().len();
        if first_elsewhere {
            host.decide("alice", &decisions(&[(&ids[0], true)])).await;
            // The model waits for the other one.
            assert_eq!(host.pending("alice").await.len(), 1);
        }
        // The page shows both as open.
        let mut body = browser.answered(true);
        if !first_elsewhere {
            let parts = body["messages"][1]["parts"].as_array_mut().unwrap();
            let transfer = parts.iter_mut().find(|part| part["type"] == "tool-transfer").unwrap();
            *transfer = browser.questions()[1].clone();
        }
        browser.messages = body["messages"].as_array().unwrap().clone();
        browser.send(&host).await;
        if !first_elsewhere {
            assert_eq!(host.model.prompts().len(), prompts);
            host.decide("alice", &decisions(&[(&ids[1], true)])).await;
        }
        history(&host, "alice", "chat").await;
        assert_eq!(host.model.prompts().len(), prompts + 1);
        assert_eq!(host.tools.effects().len(), 2);
    }
}

#[tokio::test]
async fn all_of_a_chat_are_approved_or_denied_at_once() {
    for (approved, effects) in [(true, 2), (false, 0)] {
        let host = Host::new();
        let mut browser = Client::new("alice", "chat");
        let mut other = Client::new("alice", "other");
        browser.say(&host, "mixed").await;
        other.say(&host, "delete draft.md").await;
        let all = json!({"chatId": "chat", "approved": approved, "reason": "all of it"});
        assert_eq!(counts(&host.decide("alice", &all).await.json()), [true, true]);
        history(&host, "alice", "chat").await;
        assert_eq!(host.tools.effects().len(), effects);
        // The other chat waits on.
        assert_eq!(host.pending("alice").await.len(), 1);
    }
}

#[tokio::test]
async fn what_is_somebody_elses_looks_like_what_does_not_exist() {
    let host = Host::new();
    let mut browser = Client::new("alice", "chat");
    browser.say(&host, "delete notes.txt").await;
    let alices = browser.approval_ids()[0].clone();
    let cut = &alices[..alices.len() - 4];
    let mut texts = Vec::new();
    for id in [alices.as_str(), "unknown", cut, ""] {
        for approved in [true, false] {
            let answer = host.decide("bob", &decisions(&[(id, approved)])).await;
            let counted = answer.json();
            assert_eq!(counts(&counted), [false]);
            assert_eq!(counted["decisions"][0]["approvalId"], id);
            texts.push((
                answer.headers.get("content-type").cloned(),
                answer.text.replacen(id, "", usize::from(!id.is_empty())).replace("false", "true"),
            ));
        }
    }
    texts.dedup();
    assert_eq!(texts.len(), 1, "{texts:?}");
    let foreign = host.decide("bob", &json!({"chatId": "chat", "approved": true})).await;
    let unknown = host.decide("bob", &json!({"chatId": "nowhere", "approved": true})).await;
    assert_eq!(foreign.nameless(), unknown.nameless());
    assert!(foreign.json()["decisions"].as_array().unwrap().is_empty());
    let (foreign, unknown) =
        (host.get("bob", "/api/chat/chat").await, host.get("bob", "/api/chat/nowhere").await);
    assert_eq!(foreign.status, StatusCode::NOT_FOUND);
    assert_eq!(foreign.nameless(), unknown.nameless());

    assert!(host.tools.effects().is_empty());
    browser.answer(&host, true).await;
    assert_eq!(host.tools.effects().len(), 1);
}

#[tokio::test]
async fn an_approver_decides_for_others_where_the_host_says_so() {
    let host = Host::with(Vec::new(), |approvals| {
        approvals.authorize_decision(|principal, record| {
            principal.id() == Some("boss") && &*record.tool_name == "transfer"
        })
    });
    let mut browser = Client::new("alice", "chat");
    browser.say(&host, "mixed").await;
    let ids = browser.approval_ids();
    let both = decisions(&[(&ids[0], true), (&ids[1], true)]);
    assert_eq!(counts(&host.decide("eve", &both).await.json()), [false, false]);
    assert!(host.tools.effects().is_empty());
    assert_eq!(counts(&host.decide("boss", &both).await.json()), [false, true]);
    // The chat itself is not the approver's.
    let foreign = host.chat("boss", browser.answered(true).to_string()).await;
    assert_eq!(foreign.status, StatusCode::NOT_FOUND);

    browser.answer(&host, true).await;
    let tools: Vec<String> = host.tools.effects().into_iter().map(|effect| effect.tool).collect();
    assert_eq!(tools, ["transfer", "delete_file"]);
    let approved_by: Vec<Value> = browser.last()["parts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|part| part["type"] == "data-approval")
        .map(|part| part["data"]["approvedBy"].clone())
        .collect();
    assert_eq!(approved_by, ["alice", "boss"]);
}

#[tokio::test]
async fn a_question_that_nobody_is_shown_is_taken_back() {
    let call = |path: &str| Scripted {
        tool: "delete_file".to_owned(),
        input: json!({"path": path}).to_string(),
        id: Some("call_0".to_owned()),
    };
    let calls = vec![call("notes.txt"), call("budget.xlsx")];
    let host = Host::scripted(vec![Line { word: "both".to_owned(), calls }]);
    let mut browser = Client::new("alice", "chat");
    browser.say(&host, "both").await;
    // Two calls of one id in a step: the client has one part for them.
    let shown = browser.questions();
    assert_eq!(shown.len(), 1);
    let pending = host.pending("alice").await;
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0]["input"], shown[0]["input"]);
    browser.answer(&host, true).await;
    let ran: Vec<Value> = host.tools.effects().into_iter().map(|effect| effect.input).collect();
    assert_eq!(ran, [shown[0]["input"].clone()]);
    // Nothing is waited for that nobody can answer.
    assert_eq!(browser.last()["parts"].as_array().unwrap().last().unwrap()["type"], "text");
}

#[tokio::test]
async fn a_decision_does_not_wait_for_the_tool() {
    let host = Host::new();
    let mut browser = Client::new("alice", "chat");
    browser.say(&host, "delete notes.txt").await;
    let id = browser.approval_ids()[0].clone();
    host.tools.hold(true);
    assert_eq!(counts(&host.decide("alice", &decisions(&[(&id, true)])).await.json()), [true]);
    assert_eq!(counts(&host.decide("alice", &decisions(&[(&id, true)])).await.json()), [true]);
    assert!(host.pending("alice").await.is_empty());
    host.tools.hold(false);
    history(&host, "alice", "chat").await;
    assert_eq!(host.tools.effects().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_given_in_both_places_at_once_counts_once() {
    for round in 0..100 {
        let host = Host::new();
        let mut browser = Client::new("alice", "chat");
        browser.say(&host, "delete notes.txt").await;
        let id = browser.approval_ids()[0].clone();
        let prompts = host.model.prompts().len();
        let approved = round % 2 == 0;
        let elsewhere = {
            let (host, body) = (host.clone(), decisions(&[(&id, approved)]));
            tokio::spawn(async move { host.decide("alice", &body).await.json() })
        };
        browser.answer(&host, approved).await;
        assert_eq!(counts(&elsewhere.await.unwrap()), [true]);
        let kept = history(&host, "alice", "chat").await;
        assert_eq!(host.tools.effects().len(), usize::from(approved));
        assert_eq!(host.model.prompts().len(), prompts + 1, "round {round}");
        assert_eq!(browser.last(), kept.last().unwrap(), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_yes_here_and_a_no_there_at_once_end_in_one_of_them() {
    for _ in 0..100 {
        let host = Host::new();
        let mut browser = Client::new("alice", "chat");
        browser.say(&host, "delete notes.txt").await;
        let id = browser.approval_ids()[0].clone();
        let elsewhere = {
            let (host, body) = (host.clone(), decisions(&[(&id, false)]));
            tokio::spawn(async move { host.decide("alice", &body).await.json() })
        };
        browser.answer(&host, true).await;
        let denied = counts(&elsewhere.await.unwrap()) == [true];
        assert_eq!(host.tools.effects().len(), usize::from(!denied));
        browser.say(&host, "and the weather?").await;
        let expected = if denied { "output-denied" } else { "output-available" };
        for attempt in 0.. {
            let kept = history(&host, "alice", "chat").await;
            let mut calls = kept[1]["parts"].as_array().unwrap().clone();
            calls.retain(|part| part["type"] == "tool-delete_file");
            assert_eq!(calls.len(), 1, "{:#}", kept[1]);
            if calls[0]["state"] == expected {
                break;
            }
            assert!(attempt < 1000, "{} is not {expected}", calls[0]);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Counts the records that are asked for at once.
#[derive(Debug, Default)]
struct Counting {
    ledger: InMemoryLedger,
    most: Arc<AtomicUsize>,
}

impl LedgerStore for Counting {
    fn insert<'a>(&'a self, record: &'a ApprovalRecord) -> Answer<'a, bool> {
        self.ledger.insert(record)
    }

    fn load<'a>(&'a self, ids: &'a [RecordId]) -> Answer<'a, Snapshot> {
        self.most.fetch_max(ids.len(), Relaxed);
        self.ledger.load(ids)
    }

    fn pending<'a>(&'a self, of: PendingFilter<'a>) -> Answer<'a, Snapshot> {
        self.ledger.pending(of)
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

#[tokio::test]
async fn a_decision_sent_a_thousand_times_is_looked_up_once() {
    let most = Arc::new(AtomicUsize::new(0));
    let ledger = Counting { ledger: InMemoryLedger::new(), most: most.clone() };
    let host = Host::with(Vec::new(), |approvals| approvals.with_ledger(Arc::new(ledger)));
    let mut browser = Client::new("alice", "chat");
    browser.say(&host, "delete notes.txt").await;
    let id = browser.approval_ids()[0].clone();
    let answer = host.decide("alice", &decisions(&[(id.as_str(), true); 1000])).await.json();
    assert_eq!(counts(&answer), [true; 1000]);
    assert_eq!(most.load(Relaxed), 1);
    assert_eq!(host.tools.effects().len(), 1);
}

#[tokio::test]
async fn of_a_yes_and_a_no_in_one_body_the_no_counts() {
    for (first, second) in [(true, false), (false, true)] {
        let host = Host::new();
        let mut browser = Client::new("alice", "chat");
        browser.say(&host, "delete notes.txt").await;
        let id = browser.approval_ids()[0].clone();
        let both = decisions(&[(&id, first), (&id, second)]);
        assert_eq!(counts(&host.decide("alice", &both).await.json()), [!first, !second]);
        history(&host, "alice", "chat").await;
        assert!(host.tools.effects().is_empty());
    }
}

#[tokio::test]
async fn nothing_between_keeps_what_is_for_one_person() {
    let host = Host::new();
    Client::new("alice", "chat").say(&host, "delete notes.txt").await;
    for path in ["/api/approvals", "/api/chat/chat"] {
        assert_eq!(host.get("alice", path).await.headers["cache-control"], "no-store", "{path}");
    }
}

#[tokio::test]
async fn more_decisions_than_a_chat_can_ask_for_are_refused() {
    let host = Host::new();
    let answer = host.decide("alice", &decisions(&[("x", true); 2001])).await;
    assert_eq!(answer.status, 413);
    assert!(answer.text.contains("more than 2000 answers"), "{}", answer.text);
}

#[tokio::test]
async fn a_body_that_decides_nothing_is_told_so() {
    let host = Host::new();
    for body in [
        "",
        "[]",
        "{}",
        r#"{"decisions": [], "chatId": "c", "approved": true}"#,
        r#"{"chatId": "c"}"#,
        r#"{"approved": true}"#,
        r#"{"decisions": [{"approvalId": "x"}]}"#,
        r#"{"decisions": [{"approvalId": "x", "approved": "yes"}]}"#,
        r#"{"decisions": [], "more": 1}"#,
    ] {
        let answer = host.send("alice", Method::POST, "/api/approvals", Body::from(body)).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}: {}", answer.text);
    }
    assert_eq!(host.decide("alice", &json!({"decisions": []})).await.status, StatusCode::OK);
}
