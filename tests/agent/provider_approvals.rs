//! Calls that the provider runs once a person approved them: the yes is handed over once, whichever
//! way it comes and whatever else is open, and what is not heard of afterwards is never said not to
//! have run.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use ui_message_stream::approval::{ApprovalDecision, DeferredToolResult};
use ui_message_stream::request::Limits;
use ui_message_stream::{ChatRequest, UiMessage};

use super::provider_double::{Host, NOW, Says, ada, is_shortened, part};

#[tokio::test(start_paused = true)]
async fn a_yes_given_elsewhere_is_handed_over_once() {
    let host = Host::that(&[Says::Asks, Says::Shortened]);
    host.say("m1").await;
    let page = host.answering(&[("link", true)]).await;
    assert!(host.decide("link", true).await);
    host.settles().await;
    assert_eq!(host.told(), ["nothing", "yes"]);
    assert_eq!(part(&host.kept().await, "link")["output"], "https://s.example");
    // The page's own yes comes late: it gets what came of it.
    assert!(is_shortened(&host.post(page).await));
    host.say("m2").await;
    assert_eq!(host.told(), ["nothing", "yes", "the result"]);
}

#[tokio::test(start_paused = true)]
async fn a_yes_that_comes_twice_at_once_is_handed_over_once_and_both_hear_of_it() {
    let host = Host::that(&[Says::Asks, Says::Shortened]);
    host.say("m1").await;
    let page = host.answering(&[("link", true)]).await;
    let (first, second) = futures::join!(host.post(page.clone()), host.post(page));
    assert_eq!(host.yeses(), 1);
    assert!(is_shortened(&first), "{first:?}");
    assert!(is_shortened(&second), "{second:?}");
}

#[tokio::test(start_paused = true)]
async fn a_yes_waits_for_what_was_asked_beside_it() {
    for (elsewhere_first, elsewhere_then) in
        [(true, true), (true, false), (false, true), (false, false)]
    {
        for order in [["link", "own"], ["own", "link"]] {
            let host = Host::that(&[Says::AsksAndCalls, Says::Shortened]);
            host.say("m1").await;
            for (call, elsewhere) in order.into_iter().zip([elsewhere_first, elsewhere_then]) {
                if elsewhere {
                    assert!(host.decide(call, true).await);
                } else {
                    // The page holds what it was told, and says again what it said before.
                    let page = host.answering(&[(call, true)]).await;
                    let chunks = host.post(page).await;
                    let of_link = chunks.iter().find(|chunk| chunk["toolCallId"] == "link");
                    assert!(of_link.is_none_or(|chunk| chunk["errorText"].is_null()), "{chunks:?}");
                }
                host.settles().await;
            }
            let how = (order, elsewhere_first, elsewhere_then);
            assert_eq!(host.told(), ["nothing", "yes"], "{how:?}");
            assert_eq!(host.deleted.load(Ordering::SeqCst), 1, "{how:?}");
            let kept = host.kept().await;
            assert_eq!(part(&kept, "link")["output"], "https://s.example", "{how:?}");
            assert_eq!(part(&kept, "own")["output"], 1, "{how:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn both_are_answered_in_one_post_and_in_two_at_once() {
    let host = Host::that(&[Says::AsksAndCalls, Says::Shortened]);
    host.say("m1").await;
    let chunks = host.post(host.answering(&[("link", true), ("own", true)]).await).await;
    assert!(is_shortened(&chunks), "{chunks:?}");
    assert_eq!(host.told(), ["nothing", "yes"]);

    let host = Host::that(&[Says::AsksAndCalls, Says::Shortened]);
    host.say("m1").await;
    let link = host.answering(&[("link", true)]).await;
    let own = host.answering(&[("own", true)]).await;
    futures::join!(host.post(link), host.post(own));
    host.settles().await;
    assert_eq!(host.told(), ["nothing", "yes"]);
    assert_eq!(host.deleted.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn who_writes_on_has_approved_what_was_approved() {
    let host = Host::that(&[Says::AsksAndCalls, Says::Shortened]);
    host.say("m1").await;
    assert!(host.decide("link", true).await);
    host.settles().await;
    assert_eq!(host.told(), ["nothing"], "the other one waits");
    host.say("m2").await;
    assert_eq!(host.told(), ["nothing", "yes"]);
    assert_eq!(host.deleted.load(Ordering::SeqCst), 0);
    // What came of it came with the answer to what was written since.
    assert_eq!(part(&host.kept().await, "link")["output"], "https://s.example");
    host.say("m3").await;
    assert_eq!(host.told().last().unwrap(), "the result");
}

#[tokio::test(start_paused = true)]
async fn what_still_runs_elsewhere_in_the_chat_takes_nothing_away() {
    let host = Host::that(&[Says::CallsSlow, Says::Asks, Says::Shortened]);
    // The person stops reading while a tool runs, and writes on.
    host.say_and_leave("m1").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.say("m2").await;
    let chunks = host.post(host.answering(&[("link", true)]).await).await;
    assert_eq!(host.yeses(), 1, "{:?}", host.told());
    assert!(is_shortened(&chunks), "{chunks:?}");
}

#[tokio::test(start_paused = true)]
async fn a_decision_made_while_a_tool_of_the_step_runs_goes_on_when_it_has_ended() {
    let host = Host::that(&[Says::AsksAndCallsSlow, Says::Shortened]);
    host.say_and_leave("m1").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(host.decide("link", true).await);
    host.settles().await;
    assert_eq!(host.told(), ["nothing", "yes"]);
    let heard = host.provider.heard.lock().unwrap().last().unwrap().to_string();
    assert!(heard.contains("found 1"), "it reads what the other tool found: {heard}");
    assert_eq!(part(&host.kept().await, "link")["output"], "https://s.example");
}

#[tokio::test(start_paused = true)]
async fn a_yes_is_told_to_one_model_call_of_a_turn() {
    // The provider says nothing of its question, and calls a tool instead.
    let host = Host::that(&[Says::Asks, Says::CallsSlow]);
    host.say("m1").await;
    host.post(host.answering(&[("link", true)]).await).await;
    assert_eq!(host.told(), ["nothing", "yes", "unknown"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_handed_over_and_not_heard_of_may_have_run() {
    let host = Host::that(&[Says::Asks, Says::Hangs]);
    host.say("m1").await;
    let page = host.answering(&[("link", true)]).await;
    let stop = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        host.chats.stop(&ada(), &"chat".into()).await.unwrap();
    };
    let (chunks, ()) = futures::join!(host.post(page.clone()), stop);
    assert_eq!(host.yeses(), 1);
    let told = chunks.iter().find(|chunk| chunk["toolCallId"] == "link").unwrap();
    let text = told["errorText"].as_str().unwrap();
    assert!(text.contains("not known"), "{text}");
    assert_eq!(part(&host.kept().await, "link")["errorText"], text);
    let again = host.post(page).await;
    assert!(again.iter().any(|chunk| chunk["errorText"] == text), "{again:?}");
    host.say("m2").await;
    assert_eq!(host.told().last().unwrap(), "unknown");
    assert_eq!(host.yeses(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_finds_no_result_and_nobody_at_work_is_told_that_nothing_is_known() {
    let host = Host::that(&[Says::Asks, Says::Hangs]);
    host.say("m1").await;
    let page = host.answering(&[("link", true)]).await;
    let (provider, chats) = (host.provider.clone(), host.chats.clone());
    // The server that handed it over is gone: its runtime ends.
    let gone = std::thread::spawn({
        let page = page.clone();
        move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let body = page.to_string();
                let request = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();
                drop(chats.stream_response(&ada(), request).await.unwrap());
                while provider.heard.lock().unwrap().len() < 2 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            });
        }
    });
    gone.join().unwrap();
    // For some minutes another server may be listening still.
    let later = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(host.told(), ["nothing", "yes"]);
        host.ledger.set_test_time(NOW.after(Duration::from_secs(601)));
    };
    let (again, ()) = futures::join!(host.post(page), later);
    let told = again.iter().find(|chunk| chunk["toolCallId"] == "link").unwrap();
    assert!(told["errorText"].as_str().unwrap().contains("not known"), "{again:?}");
    assert_eq!(host.told(), ["nothing", "yes", "unknown"], "and the model goes on");
    assert_eq!(part(&host.kept().await, "link")["state"], "output-error");
}

#[tokio::test(start_paused = true)]
async fn a_result_that_comes_after_all_takes_the_place_of_that_it_is_not_known() {
    let host = Host::that(&[Says::Asks]);
    host.say("m1").await;
    let mut chat = host.chats.chat(&ada(), &"chat".into()).await.unwrap();
    let place = chat.messages.len() - 1;
    let begun = chat.messages[place].clone();
    let mut came = serde_json::to_value(&begun).unwrap();
    let parts = came["parts"].as_array_mut().unwrap();
    let link = parts.iter_mut().find(|part| part["toolCallId"] == "link").unwrap();
    (link["state"], link["output"]) = (json!("output-available"), json!("https://s.example"));
    link["approval"]["approved"] = json!(true);
    let unknown = json!({
        "toolCallId": "link", "toolName": "mcp.shorten", "approvalId": link["approval"]["id"],
        "outcome": "outcome-unknown",
    });
    let came = UiMessage::parse(&came.to_string()).unwrap();
    let unknown: DeferredToolResult = serde_json::from_value(unknown).unwrap();
    chat.record_result(&unknown, None);
    // What was begun before says nothing of it.
    assert!(chat.upsert_message(begun.clone(), Some(&begun)));
    assert!(chat.messages[place] != begun, "it is no open question again");
    assert!(chat.upsert_message(came.clone(), Some(&begun)));
    assert_eq!(chat.messages[place], came);
    assert_eq!(chat.call_outcomes, []);
}

#[tokio::test]
async fn so_does_one_that_comes_with_another_message() {
    let host = Host::that(&[Says::Asks]);
    host.say("m1").await;
    let mut chat = host.chats.chat(&ada(), &"chat".into()).await.unwrap();
    let approval = part(&host.kept().await, "link")["approval"]["id"].clone();
    let became = |outcome: Value| -> DeferredToolResult {
        serde_json::from_value(json!({
            "messageId": null, "toolCallId": "link", "toolName": "mcp.shorten",
            "approvalId": approval, "outcome": outcome, "isFinal": true,
        }))
        .unwrap()
    };
    let ran = became(json!({"executed": {"outcome": {"output": "https://s.example"}}}));
    for outcome in [became(json!("outcome-unknown")), ran, became(json!("outcome-unknown"))] {
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
async fn a_run_that_was_stopped_before_it_spoke_takes_no_yes_with_it() {
    let host = Host::that(&[Says::AsksAndCallsSlow, Says::Shortened]);
    host.say_and_leave("m1").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(host.decide("link", true).await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.chats.stop(&ada(), &"chat".into()).await.unwrap();
    host.settles().await;
    assert_eq!(host.told(), ["nothing"]);
    assert_eq!(part(&host.kept().await, "link")["state"], "approval-responded");
    host.say("m2").await;
    assert_eq!(host.told(), ["nothing", "yes"]);
}

/// Between the yes and its telling more time went by than anybody listens.
#[tokio::test(start_paused = true)]
async fn what_came_of_a_call_of_an_earlier_message_the_next_step_reads() {
    let host = Host::that(&[Says::AsksAndCalls, Says::ShortenedAndCallsSlow]);
    host.say("m1").await;
    assert!(host.decide("link", true).await);
    host.settles().await;
    host.say("m2").await;
    assert_eq!(host.told(), ["nothing", "yes", "the result"]);
}

#[tokio::test(start_paused = true)]
async fn a_yes_elsewhere_after_a_no_calls_no_model() {
    let host = Host::that(&[Says::Asks]);
    host.say("m1").await;
    let pending = host.chats.approvals().pending(&ada()).await.unwrap();
    let approval_id = pending[0].approval_id.clone();
    assert!(host.decide("link", false).await);
    host.settles().await;
    assert_eq!(host.told(), ["nothing", "no"]);
    for _ in 0..2 {
        let (approved, reason) = (true, None);
        let yes = ApprovalDecision { approval_id: approval_id.clone(), approved, reason };
        assert!(!host.chats.decide(&ada(), vec![yes]).await.unwrap()[0].accepted);
        host.settles().await;
    }
    assert_eq!(host.told(), ["nothing", "no"]);
}

#[tokio::test(start_paused = true)]
async fn a_no_is_told_with_every_call_that_reads_the_question() {
    let host = Host::that(&[Says::Asks]);
    host.say("m1").await;
    assert!(host.decide("link", false).await);
    host.settles().await;
    host.say("m2").await;
    assert_eq!(host.told(), ["nothing", "no", "no"]);
}
