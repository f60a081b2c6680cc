//! Who may make a tool call: it is checked before a call runs, before an approval is requested, and
//! again when an approval is redeemed.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chat_test_support::calling_model::{Calls, asked, chunks, outcomes, requests_approval};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use test_support::requests::{ada, say};
use ui_message_stream::BoxError;
use ui_message_stream::UserText;
use ui_message_stream::approval::{ApprovalDecision, Approvals, Principal};
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_chat::ChatServer;

#[derive(Deserialize, JsonSchema)]
struct Transfer {
    cents: u64,
}

/// How an authorization says no.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Refusal {
    ReturnsFalse,
    Panics,
    ReturnsFalseAsync,
    ReturnsError,
    PanicsAsync,
    PanicsBeforeItReturnsAFuture,
    NeverReturns,
}

const REFUSALS: [Refusal; 7] = [
    Refusal::ReturnsFalse,
    Refusal::Panics,
    Refusal::ReturnsFalseAsync,
    Refusal::ReturnsError,
    Refusal::PanicsAsync,
    Refusal::PanicsBeforeItReturnsAFuture,
    Refusal::NeverReturns,
];

/// A tool that counts its runs, and whose authorization refuses as long as `refuses` is `true`.
fn transfer(
    refusal: Refusal,
    refuses: &Arc<AtomicBool>,
    runs: &Arc<AtomicUsize>,
) -> Tool<Transfer> {
    let runs = Arc::clone(runs);
    let tool = Tool::new("transfer", move |transfer: Transfer| {
        runs.fetch_add(1, Ordering::SeqCst);
        async move { Ok::<_, ToolError>(transfer.cents) }
    });
    let tool = tool.with_timeout(Duration::from_secs(5));
    let refuses = Arc::clone(refuses);
    let refuses = move || refuses.load(Ordering::SeqCst);
    match refusal {
        Refusal::ReturnsFalse => tool.authorize(move |_, _| !refuses()),
        Refusal::Panics => tool.authorize(move |_, _| {
            assert!(!refuses(), "no decision");
            true
        }),
        Refusal::PanicsBeforeItReturnsAFuture => tool.authorize_async(move |_, _| {
            assert!(!refuses(), "no future");
            async { Ok(true) }
        }),
        other => tool.authorize_async(move |_, _| {
            let refuses = refuses();
            async move {
                match other {
                    _ if !refuses => Ok(true),
                    Refusal::ReturnsError => Err(BoxError::from("the directory is down")),
                    Refusal::PanicsAsync => panic!("no decision"),
                    Refusal::NeverReturns => pending().await,
                    _ => Ok(false),
                }
            }
        }),
    }
}

fn call() -> Calls {
    Calls::of(&[("transfer", json!({"cents": 500}))])
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_permitted_does_not_run_and_approval_is_not_requested() {
    for refusal in REFUSALS {
        for needs_approval in [false, true] {
            let (refuses, runs) = (Arc::new(AtomicBool::new(true)), Arc::default());
            let tool = transfer(refusal, &refuses, &runs);
            let tool = if needs_approval { tool.needs_approval() } else { tool };
            let model = call();
            let page = asked(Agent::new(model.clone()).tool(tool), "Go").await;
            assert!(!requests_approval(&chunks(&page)), "{refusal:?}");
            let (text, read) = (UserText::NotPermitted.text(), model.read());
            assert_eq!(outcomes(&chunks(&page)), [text], "{refusal:?}");
            assert!(read.contains(text), "{refusal:?}: {read}");
            assert_eq!(page.last_text(), "Done.", "the turn continues");
            assert_eq!(runs.load(Ordering::SeqCst), 0, "{refusal:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_no_longer_permitted_when_it_is_approved_does_not_run() {
    for refusal in REFUSALS {
        for is_withdrawn in [false, true] {
            let (refuses, runs) = (Arc::new(AtomicBool::new(false)), Arc::default());
            let tool = transfer(refusal, &refuses, &runs).needs_approval();
            let mut page = asked(Agent::new(call()).tool(tool), "Go").await;
            assert!(requests_approval(&chunks(&page)), "{refusal:?}");
            refuses.store(is_withdrawn, Ordering::SeqCst);
            page.approve("transfer").await;
            let outcome = if is_withdrawn { json!(UserText::Revoked.text()) } else { json!(500) };
            assert_eq!(outcomes(&chunks(&page)), [outcome], "{refusal:?}");
            assert_eq!(runs.load(Ordering::SeqCst), usize::from(!is_withdrawn), "{refusal:?}");
            // Permission that is granted again does not revive the approval.
            refuses.store(false, Ordering::SeqCst);
            page.submit().await;
            assert_eq!(runs.load(Ordering::SeqCst), usize::from(!is_withdrawn), "{refusal:?}");
        }
    }
}

#[tokio::test]
async fn a_call_is_permitted_only_if_all_authorizations_permit_it() {
    for (first, second, third) in
        [(true, true, true), (false, true, true), (true, false, true), (true, true, false)]
    {
        let tool = Tool::new("transfer", async |it: Transfer| Ok::<_, ToolError>(it.cents))
            .authorize(move |_, _| first)
            .authorize_async(move |_, _| async move { Ok(second) })
            .authorize(move |_, _| third);
        let page = asked(Agent::new(call()).tool(tool), "Go").await;
        let is_permitted = first && second && third;
        let outcome = if is_permitted { json!(500) } else { json!(UserText::NotPermitted.text()) };
        assert_eq!(outcomes(&chunks(&page)), [outcome]);
    }
}

#[tokio::test]
async fn an_authorization_receives_the_requester_and_the_input_also_if_another_user_approves() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let [first, second] = [Arc::clone(&asked), Arc::clone(&asked)];
    let tool = Tool::new("transfer", async |it: Transfer| Ok::<_, ToolError>(it.cents))
        .authorize(move |principal, it| {
            first.lock().unwrap().push((principal.clone(), it.cents));
            true
        })
        .authorize_async(move |principal, it| {
            second.lock().unwrap().push((principal, it.cents));
            async { Ok(true) }
        })
        .needs_approval();
    let agent = Agent::new(call()).tool(tool);
    let boss = Principal::new("boss");
    let approvals = Approvals::new(agent.clone())
        .authorize_decision(|principal, _| *principal == Principal::new("boss"));
    let chats = ChatServer::new(agent, approvals);
    let ada = ada();
    let response = chats.complete_response(&ada, say("chat", "m1", "Go")).await.unwrap();
    assert_eq!(*asked.lock().unwrap(), [(ada.clone(), 500), (ada.clone(), 500)]);
    let decision = ApprovalDecision::new(response.approvals[0].approval_id.clone(), true);
    assert!(chats.decide(&boss, vec![decision]).await.unwrap()[0].accepted);
    assert_eq!(*asked.lock().unwrap(), [(); 4].map(|()| (ada.clone(), 500)));
}

#[tokio::test]
async fn a_call_that_is_not_permitted_does_not_affect_the_other_calls_of_its_step() {
    let works = |name: &str| Tool::new(name, async |it: Transfer| Ok::<_, ToolError>(it.cents));
    let agent = Agent::new(Calls::of(&[
        ("read", json!({"cents": 1})),
        ("transfer", json!({"cents": 2})),
        ("pay", json!({"cents": 3})),
    ]));
    let agent = agent
        .tool(works("read"))
        .tool(works("transfer").authorize(|_, _| false).needs_approval())
        .tool(works("pay").needs_approval());
    let mut page = asked(agent, "Go").await;
    assert_eq!(outcomes(&chunks(&page)), [json!(1), json!(UserText::NotPermitted.text())]);
    assert!(requests_approval(&chunks(&page)));
    page.approve("pay").await;
    assert_eq!(outcomes(&chunks(&page)), [json!(3)]);
}

/// The predicate is not asked about a call that cannot run.
#[tokio::test]
async fn an_authorization_is_checked_before_the_approval_predicate() {
    let tool = Tool::new("transfer", async |it: Transfer| Ok::<_, ToolError>(it.cents))
        .authorize(|_, _| false)
        .needs_approval_when(|_, _| panic!("the predicate is called"));
    let page = asked(Agent::new(call()).tool(tool), "Go").await;
    assert_eq!(outcomes(&chunks(&page)), [json!(UserText::NotPermitted.text())]);
}
