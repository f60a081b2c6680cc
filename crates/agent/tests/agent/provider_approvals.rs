//! Provider-executed calls that need an approval: the approval is sent to the provider once, over
//! any route and with any other pending calls, and a call without a result after that is never
//! reported as not executed.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chat_test_support::answers::{decide, questions, stored};
use serde_json::{Value, json};
use test_support::eventually;
use test_support::ledger_double::{Fault, LedgerDouble, Operation};
use test_support::requests::{ada, call_mut, request};
use ui_message_stream::UiMessage;
use ui_message_stream::approval::store::{InMemoryLedger, LedgerStore};
use ui_message_stream::approval::{ApprovalState, DeferredToolResult};

use super::provider_double::{Host, NOW, Reply, is_shortened, part};

#[tokio::test(start_paused = true)]
async fn an_out_of_band_approval_is_sent_to_the_provider_once() {
    let host = Host::asked(&[Reply::ApprovalRequest, Reply::LinkOutput]).await;
    let decision_body = host.body_with_decisions(&[("link", true)]).await;
    host.decide_and_wait("link", true).await;
    assert_eq!(host.provider_inputs(), ["nothing", "approved"]);
    assert_eq!(part(&host.stored_messages().await, "link")["output"], "https://s.example");
    // The browser's approval arrives later: its response holds the output.
    assert!(is_shortened(&host.post(decision_body).await));
    host.say("m2").await;
    assert_eq!(host.provider_inputs(), ["nothing", "approved", "the result"]);
}

#[tokio::test(start_paused = true)]
async fn an_approval_posted_twice_at_once_is_sent_once_and_both_responses_hold_the_output() {
    let host = Host::asked(&[Reply::ApprovalRequest, Reply::LinkOutput]).await;
    let decision_body = host.body_with_decisions(&[("link", true)]).await;
    let (first, second) =
        futures::join!(host.post(decision_body.clone()), host.post(decision_body));
    assert_eq!(host.approvals_sent(), 1);
    assert!(is_shortened(&first), "{first:?}");
    assert!(is_shortened(&second), "{second:?}");
}

#[tokio::test(start_paused = true)]
async fn an_approval_is_sent_only_after_all_calls_of_its_step_are_decided() {
    for (first_out_of_band, second_out_of_band) in
        [(true, true), (true, false), (false, true), (false, false)]
    {
        for order in [["link", "own"], ["own", "link"]] {
            let host = Host::asked(&[Reply::ApprovalRequestAndDelete, Reply::LinkOutput]).await;
            for (call, out_of_band) in
                order.into_iter().zip([first_out_of_band, second_out_of_band])
            {
                if out_of_band {
                    assert!(host.decide(call, true).await);
                } else {
                    // The client's body holds the stored message, and repeats earlier decisions.
                    let decision_body = host.body_with_decisions(&[(call, true)]).await;
                    let chunks = host.post(decision_body).await;
                    let of_link = chunks.iter().find(|chunk| chunk["toolCallId"] == "link");
                    assert!(of_link.is_none_or(|chunk| chunk["errorText"].is_null()), "{chunks:?}");
                }
                host.wait_until_idle().await;
                // The user takes longer for the other decision than any lease lasts.
                host.ledger.set_test_time(NOW.after(Duration::from_secs(20 * 60)));
            }
            let case = (order, first_out_of_band, second_out_of_band);
            assert_eq!(host.provider_inputs(), ["nothing", "approved"], "{case:?}");
            assert_eq!(host.deleted.load(Ordering::SeqCst), 1, "{case:?}");
            let stored_messages = host.stored_messages().await;
            assert_eq!(part(&stored_messages, "link")["output"], "https://s.example", "{case:?}");
            assert_eq!(part(&stored_messages, "own")["output"], 1, "{case:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_approval_repeated_while_the_provider_works_gets_the_output() {
    let host = Host::asked(&[Reply::ApprovalRequest, Reply::LateLinkOutput]).await;
    let decision_body = host.body_with_decisions(&[("link", true)]).await;
    let repeat = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        host.ledger.set_test_time(NOW.after(Duration::from_secs(60)));
        assert_eq!(host.provider_inputs(), ["nothing", "approved"]);
        host.post(decision_body.clone()).await
    };
    let (first, second) = futures::join!(host.post(decision_body.clone()), repeat);
    for chunks in [first, second] {
        assert!(is_shortened(&chunks), "{chunks:?}");
        assert!(chunks.iter().all(|chunk| chunk["errorText"].is_null()), "{chunks:?}");
    }
    assert_eq!(host.provider_inputs(), ["nothing", "approved"]);
}

/// Returns a ledger that fails for the next requests that claim an approval. Each failure says
/// whether the ledger has stored the claim.
fn failing_to_claim(
    ledger: Arc<InMemoryLedger>,
    failures: &Arc<Mutex<VecDeque<bool>>>,
) -> Arc<impl LedgerStore> {
    let failures = Arc::clone(failures);
    Arc::new(LedgerDouble::over(ledger, move |operation| {
        let Operation::Replace(record) = operation else { return None };
        let is_claim = matches!(record.state, ApprovalState::Claimed { .. });
        let is_done = is_claim.then(|| failures.lock().unwrap().pop_front())??;
        Some(if is_done { Fault::Done("unreachable") } else { Fault::NotDone("unreachable") })
    }))
}

#[tokio::test(start_paused = true)]
async fn an_approval_is_sent_although_the_ledger_has_failed_to_claim_it() {
    for failures in [vec![false], vec![true], vec![false, false, true]] {
        let next = Arc::new(Mutex::new(failures.clone().into()));
        let failing = |ledger| failing_to_claim(ledger, &next);
        let host = Host::with_ledger(&[Reply::ApprovalRequest, Reply::LinkOutput], failing);
        host.say("m1").await;
        let chunks = host.post(host.body_with_decisions(&[("link", true)]).await).await;
        assert_eq!(host.provider_inputs(), ["nothing", "approved"], "{failures:?}");
        assert!(is_shortened(&chunks), "{chunks:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_approval_that_the_ledger_cannot_claim_for_long_is_never_sent() {
    let failures = Arc::new(Mutex::new(VecDeque::from([false; 1000])));
    let failing = |ledger| failing_to_claim(ledger, &failures);
    let host = Host::with_ledger(&[Reply::ApprovalRequest, Reply::LinkOutput], failing);
    host.say("m1").await;
    let chunks = host.post(host.body_with_decisions(&[("link", true)]).await).await;
    assert!(chunks.iter().any(|chunk| chunk["type"] == "error"), "{chunks:?}");
    assert_eq!(host.provider_inputs(), ["nothing"]);
    let stored = host.stored_messages().await;
    let text = part(&stored, "link")["errorText"].as_str().unwrap();
    assert!(text.contains("not known"), "{text}");
    failures.lock().unwrap().clear();
    host.say("m2").await;
    assert_eq!(host.provider_inputs(), ["nothing", "unknown"]);
}

#[tokio::test(start_paused = true)]
async fn two_calls_may_be_decided_in_one_post_or_in_two_concurrent_posts() {
    let host = Host::asked(&[Reply::ApprovalRequestAndDelete, Reply::LinkOutput]).await;
    let chunks = host.post(host.body_with_decisions(&[("link", true), ("own", true)]).await).await;
    assert!(is_shortened(&chunks), "{chunks:?}");
    assert_eq!(host.provider_inputs(), ["nothing", "approved"]);

    let host = Host::asked(&[Reply::ApprovalRequestAndDelete, Reply::LinkOutput]).await;
    let link = host.body_with_decisions(&[("link", true)]).await;
    let own = host.body_with_decisions(&[("own", true)]).await;
    futures::join!(host.post(link), host.post(own));
    host.wait_until_idle().await;
    assert_eq!(host.provider_inputs(), ["nothing", "approved"]);
    assert_eq!(host.deleted.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn an_approval_given_before_a_new_message_is_sent_with_that_message() {
    let host = Host::asked(&[Reply::ApprovalRequestAndDelete, Reply::LinkOutput]).await;
    host.decide_and_wait("link", true).await;
    assert_eq!(host.provider_inputs(), ["nothing"], "the other call is pending");
    host.say("m2").await;
    assert_eq!(host.provider_inputs(), ["nothing", "approved"]);
    assert_eq!(host.deleted.load(Ordering::SeqCst), 0);
    // The output arrived with the response to the new message.
    assert_eq!(part(&host.stored_messages().await, "link")["output"], "https://s.example");
    host.say("m3").await;
    assert_eq!(host.provider_inputs().last().unwrap(), "the result");
}

#[tokio::test(start_paused = true)]
async fn an_approval_under_a_key_that_the_server_does_not_have_is_not_sent() {
    let host = Host::asked(&[Reply::ApprovalRequestAndDelete, Reply::LinkOutput]).await;
    host.decide_and_wait("link", true).await;
    // As after a backup was restored: it may have been sent since.
    host.say_to(&host.with_another_secret, "m2").await;
    assert_eq!(host.provider_inputs(), ["nothing", "unknown"]);
}

#[tokio::test(start_paused = true)]
async fn another_run_in_the_chat_does_not_take_an_approval() {
    let host = Host::with_replies(&[Reply::SlowCall, Reply::ApprovalRequest, Reply::LinkOutput]);
    // The user stops reading while a tool runs, and sends a new message.
    host.send_without_reading("m1").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.say("m2").await;
    let chunks = host.post(host.body_with_decisions(&[("link", true)]).await).await;
    assert_eq!(host.approvals_sent(), 1, "{:?}", host.provider_inputs());
    assert!(is_shortened(&chunks), "{chunks:?}");
}

#[tokio::test(start_paused = true)]
async fn a_decision_made_during_a_tool_run_continues_the_turn_after_the_run() {
    let host = Host::with_replies(&[Reply::ApprovalRequestAndSlowCall, Reply::LinkOutput]);
    host.send_without_reading("m1").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.decide_and_wait("link", true).await;
    assert_eq!(host.provider_inputs(), ["nothing", "approved"]);
    let last_request = host.provider.requests.lock().unwrap().last().unwrap().to_string();
    assert!(
        last_request.contains("found 1"),
        "the provider reads the other tool's output: {last_request}"
    );
    assert_eq!(part(&host.stored_messages().await, "link")["output"], "https://s.example");
}

#[tokio::test(start_paused = true)]
async fn an_approval_is_sent_in_one_model_call_of_a_turn() {
    // The provider does not answer the approval, and calls a tool instead.
    let host = Host::asked(&[Reply::ApprovalRequest, Reply::SlowCall]).await;
    host.post(host.body_with_decisions(&[("link", true)]).await).await;
    assert_eq!(host.provider_inputs(), ["nothing", "approved", "unknown"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_result_after_its_approval_was_sent_has_an_unknown_outcome() {
    let host = Host::asked(&[Reply::ApprovalRequest, Reply::Hang]).await;
    let decision_body = host.body_with_decisions(&[("link", true)]).await;
    let stop = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        host.chats.stop(&ada(), &"chat".into()).await.unwrap();
    };
    let (chunks, ()) = futures::join!(host.post(decision_body.clone()), stop);
    assert_eq!(host.approvals_sent(), 1);
    let chunk = chunks.iter().find(|chunk| chunk["toolCallId"] == "link").unwrap();
    let text = chunk["errorText"].as_str().unwrap();
    assert!(text.contains("not known"), "{text}");
    assert_eq!(part(&host.stored_messages().await, "link")["errorText"], text);
    let again = host.post(decision_body).await;
    assert!(again.iter().any(|chunk| chunk["errorText"] == text), "{again:?}");
    host.say("m2").await;
    assert_eq!(host.provider_inputs().last().unwrap(), "unknown");
    assert_eq!(host.approvals_sent(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_the_sending_server_stopped_gets_an_unknown_outcome() {
    let host = Host::asked(&[Reply::ApprovalRequest, Reply::Hang]).await;
    let decision_body = host.body_with_decisions(&[("link", true)]).await;
    let (provider, chats) = (host.provider.clone(), host.chats.clone());
    // The server that sent the approval is gone: its runtime ends.
    let stopped_server = std::thread::spawn({
        let decision_body = decision_body.clone();
        move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                drop(chats.stream_response(&ada(), request(&decision_body)).await.unwrap());
                eventually(async || provider.requests.lock().unwrap().len() == 2).await;
            });
        }
    });
    stopped_server.join().unwrap();
    // Until the lease is over, another server may still be waiting for the result.
    let pass_lease = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(host.provider_inputs(), ["nothing", "approved"]);
        host.ledger.set_test_time(NOW.after(Duration::from_secs(601)));
    };
    let (again, ()) = futures::join!(host.post(decision_body), pass_lease);
    let chunk = again.iter().find(|chunk| chunk["toolCallId"] == "link").unwrap();
    assert!(chunk["errorText"].as_str().unwrap().contains("not known"), "{again:?}");
    assert_eq!(host.provider_inputs(), ["nothing", "approved"]);
    assert_eq!(part(&host.stored_messages().await, "link")["state"], "output-error");
}

#[tokio::test(start_paused = true)]
async fn a_late_output_replaces_an_unknown_outcome() {
    let host = Host::asked(&[Reply::ApprovalRequest]).await;
    let mut chat = stored(&host.chats).await;
    let place = chat.messages.len() - 1;
    let before_output = chat.messages[place].clone();
    let mut with_output = serde_json::to_value(&before_output).unwrap();
    let link = call_mut(&mut with_output, "link");
    (link["state"], link["output"]) = (json!("output-available"), json!("https://s.example"));
    link["approval"]["approved"] = json!(true);
    let unknown = json!({
        "toolCallId": "link", "toolName": "mcp.shorten", "approvalId": link["approval"]["id"],
        "outcome": "outcome-unknown",
    });
    let with_output = UiMessage::parse(&with_output.to_string()).unwrap();
    let unknown: DeferredToolResult = serde_json::from_value(unknown).unwrap();
    chat.record_result(&unknown, None);
    assert!(chat.messages[place] != before_output, "the call is not pending any more");
    chat.upsert_message(with_output.clone());
    assert_eq!(chat.messages[place], with_output);
    assert_eq!(chat.call_outcomes, []);
}

#[tokio::test]
async fn a_late_output_from_a_later_message_replaces_an_unknown_outcome() {
    let host = Host::asked(&[Reply::ApprovalRequest]).await;
    let mut chat = stored(&host.chats).await;
    let approval = part(&host.stored_messages().await, "link")["approval"]["id"].clone();
    let result_with = |outcome: Value| -> DeferredToolResult {
        serde_json::from_value(json!({
            "messageId": null, "toolCallId": "link", "toolName": "mcp.shorten",
            "approvalId": approval, "outcome": outcome, "isFinal": true,
        }))
        .unwrap()
    };
    let executed = result_with(json!({"executed": {"outcome": {"output": "https://s.example"}}}));
    for outcome in
        [result_with(json!("outcome-unknown")), executed, result_with(json!("outcome-unknown"))]
    {
        chat.record_result(&outcome, None);
    }
    let message = serde_json::to_value(chat.messages.last().unwrap()).unwrap();
    let link = part(std::slice::from_ref(&message), "link");
    assert_eq!(
        (&link["state"], &link["output"]),
        (&json!("output-available"), &json!("https://s.example"))
    );
    assert_eq!(link["approval"]["id"], approval);
}

#[tokio::test(start_paused = true)]
async fn a_run_stopped_before_its_model_call_leaves_the_approval_unsent() {
    let host = Host::with_replies(&[Reply::ApprovalRequestAndSlowCall, Reply::LinkOutput]);
    host.send_without_reading("m1").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(host.decide("link", true).await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.chats.stop(&ada(), &"chat".into()).await.unwrap();
    host.wait_until_idle().await;
    assert_eq!(host.provider_inputs(), ["nothing"]);
    assert_eq!(part(&host.stored_messages().await, "link")["state"], "approval-responded");
    host.say("m2").await;
    assert_eq!(host.provider_inputs(), ["nothing", "approved"]);
}

/// More time passed between the approval and its sending than the lease lasts.
#[tokio::test(start_paused = true)]
async fn the_next_step_reads_the_output_of_a_call_in_an_earlier_message() {
    let host = Host::asked(&[Reply::ApprovalRequestAndDelete, Reply::LinkOutputAndSlowCall]).await;
    host.decide_and_wait("link", true).await;
    host.say("m2").await;
    assert_eq!(host.provider_inputs(), ["nothing", "approved", "the result"]);
}

#[tokio::test(start_paused = true)]
async fn an_approval_after_a_denial_does_not_call_the_model() {
    let host = Host::asked(&[Reply::ApprovalRequest]).await;
    let asked = questions(&host.chats).await;
    host.decide_and_wait("link", false).await;
    assert_eq!(host.provider_inputs(), ["nothing", "denied"]);
    for _ in 0..2 {
        assert!(!decide(&host.chats, &asked[0], true).await);
        host.wait_until_idle().await;
    }
    assert_eq!(host.provider_inputs(), ["nothing", "denied"]);
}

#[tokio::test(start_paused = true)]
async fn every_model_call_that_reads_a_denied_request_reads_the_denial() {
    let host = Host::asked(&[Reply::ApprovalRequest]).await;
    host.decide_and_wait("link", false).await;
    host.say("m2").await;
    assert_eq!(host.provider_inputs(), ["nothing", "denied", "denied"]);
}
