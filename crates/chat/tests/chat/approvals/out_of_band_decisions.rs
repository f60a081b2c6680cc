//! Approvals that are decided by the approval routes: from a second device, by a bot, or by another
//! user. The browser reads the outcome with its next request.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use async_stream::stream;
use axum::body::Body;
use axum::http::{Method, StatusCode};
use chat_test_support::answers::{decide, follow, questions, stored};
use chat_test_support::test_server::{Client, Host, Line, Scripted, Tools};
use futures::StreamExt;
use serde_json::{Value, json};
use test_support::any_tool::AnyTool;
use test_support::eventually;
use test_support::ledger_double::{Fault, LedgerDouble, Operation};
use test_support::requests::{ada, part_mut, say, send, user_message};
use test_support::responses::{chunks_of, text_of};
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{ApprovalDecision, Approvals};
use ui_message_stream::event::ToolCall;
use ui_message_stream::message::AnswerEnd;
use ui_message_stream::{AgentEvent, ChatRequest, Json};
use ui_message_stream_chat::ChatLimits;
use ui_message_stream_chat::{ChatError, ChatServer, Turn};

use super::bell_ringer;

fn decisions(ids: &[(&str, bool)]) -> Value {
    let decisions =
        ids.iter().map(|(id, approved)| json!({"approvalId": id, "approved": approved}));
    json!({"decisions": decisions.collect::<Vec<_>>()})
}

/// The stored conversation, once no run is active in it.
async fn history(host: &Host) -> Vec<Value> {
    let mut messages: Vec<Value> = Vec::new();
    eventually(async || {
        messages = host.messages("alice").await;
        let last = messages.last().and_then(|message| message["parts"].as_array()?.last());
        last.is_some_and(|part| part["type"] == "text")
    })
    .await;
    messages
}

fn counts(answer: &Value) -> Vec<bool> {
    let decisions = answer["decisions"].as_array().unwrap().iter();
    decisions.map(|decision| decision["accepted"].as_bool().unwrap()).collect()
}

/// Returns the states of the approvals in the messages of a chat.
async fn approval_states(host: &Host) -> Vec<Value> {
    let messages = host.messages("alice").await;
    let parts = messages.iter().flat_map(|message| {
        message["parts"].as_array().unwrap().iter().filter(|part| part["type"] == "data-approval")
    });
    parts.map(|part| part["data"]["state"].clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn other_pages_see_that_a_call_is_approved_while_it_is_executed() {
    for is_in_chat in [true, false] {
        let (host, mut alice) = Host::with_alice("delete notes.txt").await;
        assert_eq!(approval_states(&host).await, ["pending"]);
        host.tools.hold(true);
        let (id, answering) = (alice.approval_ids()[0].clone(), host.clone());
        let answered = tokio::spawn(async move {
            match is_in_chat {
                true => drop(alice.answer(&answering, true).await),
                false => drop(answering.decide("alice", &decisions(&[(&id, true)])).await),
            }
        });
        eventually(async || !host.tools.effects().is_empty()).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(approval_states(&host).await, ["approved"]);

        // A page that is opened now reads it in the stream, before the result.
        let reading = host.clone();
        let stream =
            tokio::spawn(async move { reading.get("alice", "/api/chat/chat/stream").await });
        tokio::time::sleep(Duration::from_millis(1)).await;
        host.tools.hold(false);
        answered.await.unwrap();
        let stream = stream.await.unwrap();
        let approved = stream.text.find(r#""state":"approved""#).expect(&stream.text);
        let output = stream.text.find("tool-output-available").expect(&stream.text);
        assert!(approved < output, "{}", stream.text);
        assert_eq!(approval_states(&host).await, ["approved"]);
    }
}

#[tokio::test(start_paused = true)]
async fn pending_approvals_are_listed_only_to_their_requester_and_only_while_pending() {
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
        .map(|approval| {
            (approval["chatId"].as_str().unwrap(), approval["toolName"].as_str().unwrap())
        })
        .collect();
    // Requests with the same time may be listed in any order.
    of[1..].sort_unstable();
    let expected = [("first", "delete_file"), ("second", "delete_file"), ("second", "transfer")];
    assert_eq!(of, expected);
    assert_eq!(pending[0]["input"], json!({"path": "notes.txt"}));
    assert_eq!(pending[0]["description"], r#"delete_file {"path":"notes.txt"}"#);
    assert_eq!(pending[0]["approvalId"], first.approval_ids()[0]);
    let time_to_live = |approval: &Value| {
        approval["expiresAt"].as_u64().unwrap() - approval["requestedAt"].as_u64().unwrap()
    };
    assert_eq!(time_to_live(&pending[0]), 60 * 60 * 1000);
    assert_eq!(host.pending("bob").await.len(), 1);
    assert!(host.pending("carol").await.is_empty());

    host.wait(Duration::from_secs(60 * 60));
    assert!(host.pending("alice").await.is_empty());
}

/// A tool of the host's own.
fn bell() -> AnyTool {
    AnyTool::with_output("it rang")
}

#[tokio::test(start_paused = true)]
async fn the_agent_of_a_host_continues_its_message_after_an_out_of_band_approval() {
    let chats = ChatServer::new(bell_ringer::ring, Approvals::new(bell()));
    chats.complete_response(&ada(), ring("chat")).await.unwrap();
    assert!(decide(&chats, &questions(&chats).await[0], true).await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let chat = stored(&chats).await;
    assert_eq!(chat.messages.len(), 2);
    assert_eq!(chat.messages[1].text(), "You heard it.");
}

#[tokio::test(start_paused = true)]
async fn an_out_of_band_approval_runs_the_tool_and_the_browsers_next_post_reads_the_output() {
    let (host, mut browser) = Host::with_alice("delete notes.txt").await;
    let id = &browser.approval_ids()[0];

    let decided = host.decide("alice", &decisions(&[(id, true)])).await.json();
    assert_eq!(
        decided,
        json!({"decisions": [{"approvalId": id, "approved": true, "accepted": true}]})
    );
    let stored = history(&host).await;
    assert_eq!(host.tools.effects().len(), 1);
    assert!(host.pending("alice").await.is_empty());

    // The client still shows the approval request, and the user approves it there too.
    let prompts = host.model.prompts().len();
    let answer = browser.answer(&host, true).await;
    assert_eq!(host.tools.effects().len(), 1);
    assert_eq!(host.model.prompts().len(), prompts, "the model was called again");
    assert_eq!(answer.of_type("tool-output-available").len(), 1, "{}", answer.text);
    assert_eq!(browser.last(), stored.last().unwrap());

    browser.say(&host, "and the weather?").await;
    assert_eq!(host.tools.effects().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reloaded_conversation_shows_each_decision_and_who_decided() {
    let (host, browser) = Host::with_alice("mixed").await;
    let ids = browser.approval_ids();
    let both = json!({"decisions": [
        {"approvalId": ids[0], "approved": true},
        {"approvalId": ids[1], "approved": false, "reason": "too much"},
    ]});
    assert_eq!(counts(&host.decide("alice", &both).await.json()), [true, true]);
    let stored = history(&host).await;
    let parts = stored.last().unwrap()["parts"].as_array().unwrap();
    let shown = parts.iter().filter(|part| part["type"] == "data-approval");
    let shown: Vec<&Value> = shown.map(|part| &part["data"]).collect();
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

#[tokio::test(start_paused = true)]
async fn an_approval_and_a_denial_in_one_request_deny_the_call() {
    for answers in [[true, false], [false, true]] {
        let (host, browser) = Host::with_alice("delete notes.txt").await;
        let id = browser.approval_ids()[0].clone();
        let both = decisions(&answers.map(|approved| (id.as_str(), approved)));
        let accepted = answers.map(|approved| !approved);
        assert_eq!(counts(&host.decide("alice", &both).await.json()), accepted);
        history(&host).await;
        assert!(host.pending("alice").await.is_empty());
        assert!(host.tools.effects().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_calls_one_can_be_decided_out_of_band_and_the_other_in_the_browser() {
    for first_out_of_band in [true, false] {
        let (host, mut browser) = Host::with_alice("mixed").await;
        let ids = browser.approval_ids();
        let prompts = host.model.prompts().len();
        if first_out_of_band {
            host.decide("alice", &decisions(&[(&ids[0], true)])).await;
            // The model is not called before the second call is decided.
            assert_eq!(host.pending("alice").await.len(), 1);
        }
        // The client shows both requests as open.
        let transfer = browser.pending_parts()[1].clone();
        browser.respond(true);
        if !first_out_of_band {
            *part_mut(&mut browser.messages[1], "tool-transfer") = transfer;
        }
        browser.send(&host).await;
        if !first_out_of_band {
            assert_eq!(host.model.prompts().len(), prompts);
            host.decide("alice", &decisions(&[(&ids[1], true)])).await;
        }
        history(&host).await;
        assert_eq!(host.model.prompts().len(), prompts + 1);
        assert_eq!(host.tools.effects().len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn all_pending_approvals_of_a_chat_can_be_denied_in_one_request() {
    let host = Host::new();
    let mut browser = Client::new("alice", "chat");
    let mut other = Client::new("alice", "other");
    browser.say(&host, "mixed").await;
    other.say(&host, "delete draft.md").await;
    let all = json!({"chatId": "chat", "approved": false, "reason": "all of it"});
    assert_eq!(counts(&host.decide("alice", &all).await.json()), [true, true]);
    history(&host).await;
    assert!(host.tools.effects().is_empty());
    // The request in the other chat stays pending.
    assert_eq!(host.pending("alice").await.len(), 1);
}

/// A new request may appear in the chat after the user has read the list.
#[tokio::test(start_paused = true)]
async fn the_pending_approvals_of_a_chat_cannot_be_approved_by_the_id_of_the_chat() {
    let (host, _) = Host::with_alice("mixed").await;
    let all = json!({"chatId": "chat", "approved": true});
    let answer = host.decide("alice", &all).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(
        answer.text,
        "an approval names ids: post `decisions`, each with its `approvalId`; a `chatId` can only \
         deny what waits there"
    );
    // The response is the same for a chat of another user and for none.
    for chat in ["chat", "nowhere"] {
        let same = host.decide("bob", &json!({"chatId": chat, "approved": true})).await;
        assert_eq!(same.text_with_numbered_ids(), answer.text_with_numbered_ids(), "{chat}");
    }
    assert_eq!(host.pending("alice").await.len(), 2);
    assert!(host.tools.effects().is_empty());
    assert_eq!(host.model.prompts().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_body_with_both_decisions_and_one_decision_for_all_is_rejected() {
    let (host, browser) = Host::with_alice("delete notes.txt").await;
    let id = browser.approval_ids()[0].clone();
    for other in [json!({"approved": false}), json!({"reason": "stop"}), json!({"chatId": "chat"})]
    {
        let mut body = decisions(&[(&id, true)]);
        body.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        let answer = host.decide("alice", &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
    }
    assert_eq!(host.pending("alice").await.len(), 1);
    assert!(host.tools.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn approvals_and_chats_of_other_users_are_answered_like_unknown_ones() {
    let (host, mut browser) = Host::with_alice("delete notes.txt").await;
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
    let foreign = host.decide("bob", &json!({"chatId": "chat", "approved": false})).await;
    let unknown = host.decide("bob", &json!({"chatId": "nowhere", "approved": false})).await;
    assert_eq!(foreign.text_with_numbered_ids(), unknown.text_with_numbered_ids());
    assert!(foreign.json()["decisions"].as_array().unwrap().is_empty());
    let (foreign, unknown) =
        (host.get("bob", "/api/chat/chat").await, host.get("bob", "/api/chat/nowhere").await);
    assert_eq!(foreign.status, StatusCode::NOT_FOUND);
    assert_eq!(foreign.text_with_numbered_ids(), unknown.text_with_numbered_ids());

    assert!(host.tools.effects().is_empty());
    browser.answer(&host, true).await;
    assert_eq!(host.tools.effects().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_approver_may_decide_for_other_users_where_the_host_authorizes_it() {
    let host = Host::with(Vec::new(), |approvals| {
        approvals.authorize_decision(|principal, record| {
            principal.id() == Some("boss") && &*record.tool_name == "transfer"
        })
    });
    let mut browser = host.alice_says("mixed").await;
    let ids = browser.approval_ids();
    let both = decisions(&[(&ids[0], true), (&ids[1], true)]);
    assert_eq!(counts(&host.decide("eve", &both).await.json()), [false, false]);
    assert!(host.tools.effects().is_empty());
    assert_eq!(counts(&host.decide("boss", &both).await.json()), [false, true]);
    // The approver has no access to the chat itself, and has no chat with its id.
    let foreign = host.chat("boss", browser.answered(true).to_string()).await;
    assert_eq!(foreign.status, StatusCode::CONFLICT);
    assert_eq!(host.get("boss", "/api/chat/chat").await.status, StatusCode::NOT_FOUND);

    browser.answer(&host, true).await;
    let tools: Vec<String> = host.tools.effects().into_iter().map(|effect| effect.tool).collect();
    assert_eq!(tools, ["transfer", "delete_file"]);
    let parts = browser.last()["parts"].as_array().unwrap().iter();
    let shown = parts.filter(|part| part["type"] == "data-approval");
    let approved_by: Vec<&Value> = shown.map(|part| &part["data"]["approvedBy"]).collect();
    assert_eq!(approved_by, ["alice", "boss"]);
}

#[tokio::test(start_paused = true)]
async fn an_approval_request_that_is_not_shown_to_the_client_is_revoked() {
    let call = |path: &str| Scripted {
        tool: "delete_file".to_owned(),
        input: json!({"path": path}).to_string(),
        id: Some("call_0".to_owned()),
    };
    let calls = vec![call("notes.txt"), call("budget.xlsx")];
    let host = Host::scripted(vec![Line { word: "both".to_owned(), calls }]);
    let mut browser = host.alice_says("both").await;
    // Two calls with one id in a step: the client has one part for them.
    let shown = browser.pending_parts();
    assert_eq!(shown.len(), 1);
    let pending = host.pending("alice").await;
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0]["input"], shown[0]["input"]);
    browser.answer(&host, true).await;
    let executed_inputs: Vec<Value> =
        host.tools.effects().into_iter().map(|effect| effect.input).collect();
    assert_eq!(executed_inputs, [shown[0]["input"].clone()]);
    // The turn does not wait for the request that was never shown.
    assert_eq!(browser.last()["parts"].as_array().unwrap().last().unwrap()["type"], "text");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_decision_sent_by_both_routes_at_once_counts_once() {
    for round in 0..100 {
        let (host, mut browser) = Host::with_alice("delete notes.txt").await;
        let id = browser.approval_ids()[0].clone();
        let prompts = host.model.prompts().len();
        let approved = round % 2 == 0;
        let out_of_band = {
            let (host, body) = (host.clone(), decisions(&[(&id, approved)]));
            tokio::spawn(async move { host.decide("alice", &body).await.json() })
        };
        browser.answer(&host, approved).await;
        assert_eq!(counts(&out_of_band.await.unwrap()), [true]);
        let stored = history(&host).await;
        assert_eq!(host.tools.effects().len(), usize::from(approved));
        assert_eq!(host.model.prompts().len(), prompts + 1, "round {round}");
        assert_eq!(browser.last(), stored.last().unwrap(), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_an_approval_and_a_denial_sent_at_once_by_two_routes_exactly_one_counts() {
    for _ in 0..100 {
        let (host, mut browser) = Host::with_alice("delete notes.txt").await;
        let id = browser.approval_ids()[0].clone();
        let out_of_band = {
            let (host, body) = (host.clone(), decisions(&[(&id, false)]));
            tokio::spawn(async move { host.decide("alice", &body).await.json() })
        };
        browser.answer(&host, true).await;
        let denied = counts(&out_of_band.await.unwrap()) == [true];
        assert_eq!(host.tools.effects().len(), usize::from(!denied));
        browser.say(&host, "and the weather?").await;
        let expected = if denied { "output-denied" } else { "output-available" };
        eventually(async || {
            let stored = history(&host).await;
            let mut calls = stored[1]["parts"].as_array().unwrap().clone();
            calls.retain(|part| part["type"] == "tool-delete_file");
            assert_eq!(calls.len(), 1, "{:#}", stored[1]);
            calls[0]["state"] == expected
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_is_repeated_a_thousand_times_loads_one_record() {
    let most_loaded = Arc::new(AtomicUsize::new(0));
    let most = Arc::clone(&most_loaded);
    let ledger = LedgerDouble::new(move |operation| {
        if let Operation::Load(ids) = operation {
            most.fetch_max(ids.len(), Relaxed);
        }
        None
    });
    let host = Host::with(Vec::new(), |approvals| approvals.with_ledger(Arc::new(ledger)));
    let browser = host.alice_says("delete notes.txt").await;
    let id = browser.approval_ids()[0].clone();
    let answer = host.decide("alice", &decisions(&[(id.as_str(), true); 1000])).await.json();
    assert_eq!(counts(&answer), [true; 1000]);
    assert_eq!(most_loaded.load(Relaxed), 1);
    assert_eq!(host.tools.effects().len(), 1);
}

/// The state of a ledger that cannot be read after this number of reads, or cannot be written.
struct FailsLater {
    reads_left: AtomicUsize,
    is_read_only: AtomicBool,
}

impl FailsLater {
    fn new() -> (Arc<Self>, Arc<impl LedgerStore>) {
        let (reads_left, is_read_only) = (AtomicUsize::new(1000), AtomicBool::new(false));
        let state = Arc::new(FailsLater { reads_left, is_read_only });
        let of_ledger = Arc::clone(&state);
        let ledger = LedgerDouble::new(move |operation| match operation {
            Operation::Load(_) => {
                let next = |left: usize| left.checked_sub(1);
                let left = of_ledger.reads_left.fetch_update(Relaxed, Relaxed, next);
                left.is_err().then_some(Fault::NotDone("timeout"))
            }
            Operation::Replace(_) => {
                of_ledger.is_read_only.load(Relaxed).then_some(Fault::NotDone("read-only"))
            }
            Operation::Insert(_) | Operation::List => None,
        });
        (state, Arc::new(ledger))
    }
}

/// A server whose agent rings the bell of a chat once, and never ends in a chat `busy-…`.
fn bell_ringer(approvals: Approvals) -> ChatServer {
    let agent = |turn: Turn| {
        stream! {
            if turn.chat.id.as_str().starts_with("busy") {
                std::future::pending::<()>().await;
            }
            for await event in bell_ringer::ring(turn) {
                yield event;
            }
        }
    };
    ChatServer::new(agent, approvals)
}

/// A decision on the only request that waits for ada.
async fn decision(chats: &ChatServer, approved: bool) -> ApprovalDecision {
    let pending = chats.approvals().pending(&ada()).await.unwrap();
    ApprovalDecision::new(pending[0].approval_id.clone(), approved)
}

fn ring(chat: &str) -> ChatRequest {
    send(chat, &json!([user_message("m1", "Ring")]))
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_needs_a_run_at_the_limit_of_runs_is_an_error_and_can_be_repeated() {
    let (chats, ada) = (bell_ringer(Approvals::new(bell())), ada());
    let chats = chats.with_limits(ChatLimits::default().with_max_user_runs(1));
    for approved in [true, false] {
        let (chat, busy) = (format!("chat-{approved}"), format!("busy-{approved}"));
        chats.complete_response(&ada, ring(&chat)).await.unwrap();
        let decision = decision(&chats, approved).await;
        let decisions = || vec![decision.clone()];
        let mut reader = chats.stream_response(&ada, ring(&busy)).await.unwrap();
        let reading = tokio::spawn(async move { while reader.next().await.is_some() {} });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let refused = chats.decide(&ada, decisions()).await;
        assert!(matches!(refused, Err(ChatError::TooManyRuns)), "{refused:?}");
        assert_eq!(chats.approvals().pending(&ada).await.unwrap().len(), 1);
        chats.stop(&ada, &(&*busy).into()).await.unwrap();
        reading.await.unwrap();
        assert!(chats.decide(&ada, decisions()).await.unwrap()[0].accepted);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_the_ledger_cannot_redeem_is_an_error() {
    let ((state, ledger), ada) = (FailsLater::new(), ada());
    let chats = bell_ringer(Approvals::new(bell()).with_ledger(ledger));
    chats.complete_response(&ada, ring("chat")).await.unwrap();
    let approved = decision(&chats, true).await;
    // The ledger can be read to find the chat, and not to redeem the decision.
    state.reads_left.store(1, Relaxed);
    let failed = chats.decide(&ada, vec![approved.clone()]).await;
    assert!(matches!(failed, Err(ChatError::Ledger(_))), "{failed:?}");
    state.reads_left.store(1000, Relaxed);
    assert!(chats.decide(&ada, vec![approved]).await.unwrap()[0].accepted);
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_the_ledger_cannot_store_is_an_error_and_does_not_count() {
    for approved in [true, false] {
        let ((state, ledger), ada) = (FailsLater::new(), ada());
        let chats = bell_ringer(Approvals::new(bell()).with_ledger(ledger));
        chats.complete_response(&ada, ring("chat")).await.unwrap();
        let decision = decision(&chats, approved).await;
        let decisions = || vec![decision.clone()];
        let message = async || {
            // The run has ended.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let chat = stored(&chats).await;
            (chat.answer_end(), serde_json::to_string(&chat.messages[1].parts).unwrap())
        };
        let (_, asked) = message().await;
        state.is_read_only.store(true, Relaxed);
        let failed = chats.decide(&ada, decisions()).await;
        assert!(matches!(failed, Err(ChatError::Ledger(_))), "{failed:?}");
        // The call is still open, and the model has read nothing of the decision.
        assert_eq!(message().await, (Some(AnswerEnd::Failed), asked));
        assert_eq!(chats.approvals().pending(&ada).await.unwrap().len(), 1);
        state.is_read_only.store(false, Relaxed);
        assert!(chats.decide(&ada, decisions()).await.unwrap()[0].accepted);
        let (_, decided) = message().await;
        assert_eq!(decided.matches("You heard it.").count(), 1, "{decided}");
        assert_eq!(decided.contains("it rang"), approved, "{decided}");
    }
}

#[tokio::test(start_paused = true)]
async fn responses_for_one_user_are_not_cacheable() {
    let host = Host::new();
    Client::new("alice", "chat").say(&host, "delete notes.txt").await;
    // A browser that goes back shows what it has cached, and it may cache 404 and 204.
    let paths = ["/api/approvals", "/api/chat/chat", "/api/chat/none", "/api/chat/chat/stream"];
    for path in paths {
        assert_eq!(host.get("alice", path).await.headers["cache-control"], "no-store", "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn more_decisions_than_the_limit_are_rejected() {
    let host = Host::new();
    let answer = host.decide("alice", &decisions(&[("x", true); 2001])).await;
    assert_eq!(answer.status, 413);
    assert!(answer.text.contains("more than 2000 answers"), "{}", answer.text);
}

#[tokio::test(start_paused = true)]
async fn an_approval_body_without_a_valid_decision_is_a_bad_request() {
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

#[tokio::test(start_paused = true)]
async fn a_decision_on_a_call_whose_id_is_not_unique_shows_its_result_at_that_call() {
    // The model numbers its calls from the start: the second one has another id on the wire.
    let agent = |turn: Turn| {
        stream! {
            if !turn.deferred.is_empty() {
                yield AgentEvent::text("Done.");
                return;
            }
            let call = ToolCall::new("call_0", "delete_file");
            let input = Json::parse(r#"{"path":"notes.txt"}"#).unwrap();
            yield AgentEvent::tool_input(call.clone(), input.clone());
            yield AgentEvent::tool_output("call_0", Json::string("nothing"));
            yield AgentEvent::tool_input(call.clone(), input.clone());
            yield turn.approvals.request_approval_of(&call, &input).await;
        }
    };
    let tools = Tools::default();
    let chats = ChatServer::new(agent, Approvals::new(tools.clone()));
    let asked = chats.complete_response(&ada(), say("chat", "m1", "Go")).await.unwrap();
    tools.hold(true);
    decide(&chats, &asked.approvals[0].approval_id, true).await;
    let response = follow(&chats).await;
    tools.hold(false);
    let read = text_of(response).await;
    let chunks = chunks_of(&read);
    let shown = |kind: &str, id: &str| {
        let of_kind = chunks.iter().filter(|chunk| chunk["type"] == kind);
        of_kind.map(|chunk| chunk[id].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let outputs = shown("tool-output-available", "toolCallId");
    assert_eq!(outputs.last().map(String::as_str), Some("call_0-1"), "{read}");
    assert!(!shown("data-approval", "id").contains(&"call_0".to_owned()), "{read}");
}
