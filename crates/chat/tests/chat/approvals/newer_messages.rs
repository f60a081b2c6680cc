//! Approvals that are given on a second screen or on a stale page after their requester has sent a
//! newer message.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use chat_test_support::test_server::Host;
use serde_json::json;
use test_support::eventually;
use test_support::ledger_double::{Fault, LedgerDouble, Operation};
use test_support::requests::part;
use ui_message_stream::UserText;
use ui_message_stream::approval::OnNewMessage;

#[tokio::test(start_paused = true)]
async fn a_call_that_others_decide_on_waits_for_them_while_its_requester_sends_messages() {
    let host = Host::with(Vec::new(), |approvals| {
        approvals.authorize_decision(|principal, _| principal.id() == Some("boss"))
    });
    host.tools.let_others_decide("delete_file");
    let mut browser = host.alice_says("delete notes.txt").await;
    let id = browser.approval_ids()[0].clone();
    let mut stale_page = browser.clone();
    browser.say(&host, "thanks").await;
    assert_eq!(host.pending("alice").await.len(), 1);

    // The requester's own approval does not count. The page gets a response that it does not send
    // again by itself.
    let prompts = host.model.prompts().len();
    let approved = stale_page.answered(true);
    let answer = host.chat("alice", approved.to_string()).await;
    let last_step = answer.chunks().into_iter().rfind(|chunk| chunk["type"] == "data-run-end");
    assert!(last_step.is_some(), "{}", answer.text);
    assert!(!host.decides("alice", &id, true).await);
    assert_eq!(host.model.prompts().len(), prompts, "the model was called");
    assert!(host.tools.effects().is_empty());
    assert_eq!(host.pending("alice").await.len(), 1);

    assert!(host.decides("boss", &id, true).await);
    eventually(async || {
        let message = &host.messages("alice").await[1];
        let has_run = part(message, "tool-delete_file")["state"] == "output-available";
        if has_run {
            assert_eq!(part(message, "data-approval")["data"]["approvedBy"], "boss");
        }
        has_run
    })
    .await;
    assert_eq!(host.tools.effects().len(), 1);
    stale_page.answer(&host, true).await;
    assert_eq!(stale_page.states(), ["output-available"]);
    assert_eq!(host.tools.effects().len(), 1);
}

/// "No, stop" reaches the chat, but the ledger cannot close the request.
#[tokio::test(start_paused = true)]
async fn a_newer_message_stops_an_approval_although_the_ledger_failed_when_it_arrived() {
    let fails = Arc::new(AtomicBool::new(false));
    let is_failing = Arc::clone(&fails);
    let ledger = LedgerDouble::new(move |operation| match operation {
        Operation::Replace(_) => is_failing.load(Relaxed).then_some(Fault::NotDone("timeout")),
        _ => None,
    });
    let host = Host::with(Vec::new(), |approvals| approvals.with_ledger(Arc::new(ledger)));
    let mut browser = host.alice_says("delete notes.txt").await;
    let id = browser.approval_ids()[0].clone();
    let prompts = host.model.prompts().len();
    fails.store(true, Relaxed);
    let answer = browser.say(&host, "No, stop").await;
    fails.store(false, Relaxed);
    assert_eq!(answer.of_type("error").len(), 1, "{}", answer.text);
    assert_eq!(host.model.prompts().len(), prompts, "the model was called");
    let stored = host.get("alice", "/api/chat/chat").await.json();
    assert!(!stored.to_string().contains("was not executed"), "{stored:#}");

    // The run has begun and ended in one append.
    let log = host.log("alice", "chat").await;
    assert_eq!(log.snapshot.map(|it| it.position), Some(log.head.length));

    assert!(!host.decides("alice", &id, true).await);
    assert!(host.tools.effects().is_empty());
    assert!(host.pending("alice").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_newer_message_denies_a_request_with_or_without_an_approval_if_the_policy_says_so() {
    for approved in [false, true] {
        let host = Host::with(Vec::new(), |approvals| approvals.on_new_message(OnNewMessage::Deny));
        let mut browser = host.alice_says("delete notes.txt").await;
        let id = browser.approval_ids()[0].clone();
        let late = browser.answered(true);
        if approved {
            browser.respond(true);
        }
        browser.say(&host, "hello").await;
        let stored = host.messages("alice").await;
        let call = part(&stored[1], "tool-delete_file");
        assert_eq!(call["state"], "output-denied", "{call:#}");
        let denial =
            json!({"id": id, "approved": false, "reason": UserText::DeniedByMessage.text()});
        assert_eq!(call["approval"], denial);
        let data = &part(&stored[1], "data-approval")["data"];
        assert_eq!((&data["state"], &data["approvedBy"]), (&json!("denied"), &json!("alice")));
        let prompts = host.model.prompts();
        assert!(prompts.last().unwrap().contains(UserText::DeniedByMessage.text()), "{prompts:#?}");

        // The first outcome stands.
        assert!(!host.decides("alice", &id, true).await);
        host.chat("alice", late.to_string()).await;
        assert_eq!(host.messages("alice").await[1], stored[1]);
        assert!(host.tools.effects().is_empty() && host.pending("alice").await.is_empty());
    }
}
