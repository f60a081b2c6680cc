//! An approval is requested while the ledger fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use chat_test_support::calling_model::{Calls, chunks, outcomes, requests_approval};
use http_body_util::{Either, Full};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use test_support::ledger_double::{Fault, LedgerDouble, Operation};
use test_support::requests::ada;
use tokio::time::{sleep, timeout};
use tokio_util::bytes::Bytes;
use ui_message_stream::ChatRequest;
use ui_message_stream::approval::Approvals;
use ui_message_stream::json::Json;
use ui_message_stream::testing::Conversation;
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_chat::ChatServer;

#[derive(Deserialize, JsonSchema)]
struct Transfer {
    cents: u64,
}

/// A chat whose model calls a tool that needs approval.
struct Server {
    chats: ChatServer,
    /// How many of the next insertions fail. They are applied nevertheless, without a reply.
    failures: Arc<AtomicUsize>,
    executed: Arc<AtomicUsize>,
}

/// Returns a chat with a ledger that fails so often.
fn server(failures: usize) -> Server {
    let executed = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&executed);
    let tool = Tool::new("transfer", move |it: Transfer| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move { Ok::<_, ToolError>(it.cents) }
    });
    let model = Calls::of(&[("transfer", json!({"cents": 500}))]);
    let agent = Agent::new(model).tool(tool.needs_approval());
    let failures = Arc::new(AtomicUsize::new(failures));
    let left = Arc::clone(&failures);
    let ledger = LedgerDouble::new(move |operation| match operation {
        Operation::Insert(_) => {
            let fail = |left: usize| left.checked_sub(1);
            let failed = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fail);
            failed.is_ok().then_some(Fault::Done("unreachable"))
        }
        // The record that was inserted without a reply cannot be revoked at once.
        Operation::Replace(_) => {
            (left.load(Ordering::SeqCst) > 0).then_some(Fault::NotDone("unreachable"))
        }
        Operation::Load(_) | Operation::List => None,
    });
    let approvals = Approvals::new(agent.clone()).with_ledger(Arc::new(ledger));
    Server { chats: ChatServer::new(agent, approvals), failures, executed }
}

impl Server {
    /// Returns how many requests can be approved in a list of pending requests.
    async fn pending(&self) -> usize {
        self.chats.approvals().pending(&ada()).await.unwrap().len()
    }
}

/// A page whose refused requests end in an error, with the text of the refusal.
fn page(chats: &ChatServer) -> Conversation<'static> {
    let chats = chats.clone();
    Conversation::new(async move |chat: ChatRequest| {
        match chats.stream_response(&ada(), chat).await {
            Ok(stream) => Either::Left(stream),
            Err(error) => {
                let chunk = json!({"type": "error", "errorText": error.to_string()});
                Either::Right(Full::<Bytes>::from(format!("data: {chunk}\n\ndata: [DONE]\n\n")))
            }
        }
    })
}

#[tokio::test(start_paused = true)]
async fn an_approval_is_requested_once_the_ledger_answers_again_and_one_request_is_pending() {
    let server = server(3);
    let mut page = page(&server.chats);
    page.send("Go").await;
    assert!(requests_approval(&chunks(&page)), "{:?}", chunks(&page));
    assert_eq!(server.pending().await, 1);
    page.approve("transfer").await;
    assert_eq!(outcomes(&chunks(&page)), [json!(500)]);
    assert_eq!(server.executed.load(Ordering::SeqCst), 1);
    assert_eq!(server.pending().await, 0);
}

#[tokio::test(start_paused = true)]
async fn an_approval_that_the_ledger_cannot_store_is_refused_and_can_be_sent_again() {
    let server = server(0);
    let mut page = page(&server.chats);
    page.send("Go").await;
    server.failures.store(1, Ordering::SeqCst);
    page.approve("transfer").await;
    assert_eq!(page.error(), Some("the approval ledger failed"));
    assert_eq!(server.executed.load(Ordering::SeqCst), 0);
    server.failures.store(0, Ordering::SeqCst);
    page.submit().await;
    assert_eq!(page.error(), None);
    assert_eq!(outcomes(&chunks(&page)), [json!(500)]);
    assert_eq!(server.executed.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_fails_if_the_ledger_does_not_answer_for_half_a_minute() {
    let server = server(usize::MAX);
    let mut page = page(&server.chats);
    page.send("Go").await;
    let text = "This tool call was not executed: nobody could be asked to approve it.";
    assert_eq!(outcomes(&chunks(&page)), [text]);
    assert_eq!(page.last_text(), "Done.", "the turn continues");
    // The ledger has stored the request, and answers again.
    assert_eq!(server.pending().await, 1);
    server.failures.store(0, Ordering::SeqCst);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(server.pending().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_while_the_ledger_fails_is_revoked() {
    let server = server(usize::MAX);
    let approvals = server.chats.approvals().for_chat(&ada(), &"chat".into());
    let (message, call, input) = ("message".into(), "call".into(), Json::null());
    let request = approvals.request_approval(&message, &call, "transfer", &input, None);
    assert!(timeout(Duration::from_secs(5), request).await.is_err());
    assert_eq!(server.pending().await, 1);
    server.failures.store(0, Ordering::SeqCst);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(server.pending().await, 0);
}
