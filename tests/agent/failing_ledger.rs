//! An approval is requested while the ledger fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use test_support::calling_model::{Calls, chunks, outcomes, requests_approval};
use ui_message_stream::agent::{Agent, Tool, ToolError};
use ui_message_stream::approval::store::{
    InMemoryLedger, LedgerStore, LedgerStoreError, PendingQuery, PendingRecords, Snapshot,
};
use ui_message_stream::approval::{ApprovalRecord, Approvals, Principal, RecordId};
use ui_message_stream::chat::ChatServer;
use ui_message_stream::testing::Conversation;
use ui_message_stream::{BoxFuture, ChatRequest};

/// A ledger whose next inserts fail. They are applied nevertheless, without a reply.
#[derive(Debug, Default)]
struct LosesReplies {
    ledger: InMemoryLedger,
    failures: AtomicUsize,
}

type Answer<'a, T> = BoxFuture<'a, Result<T, LedgerStoreError>>;

impl LedgerStore for LosesReplies {
    fn insert<'a>(&'a self, record: &'a ApprovalRecord) -> Answer<'a, bool> {
        Box::pin(async {
            let inserted = self.ledger.insert(record).await;
            let fail = |left: usize| left.checked_sub(1);
            match self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fail) {
                Ok(_) => Err(LedgerStoreError::new("unreachable")),
                Err(_) => inserted,
            }
        })
    }

    fn load<'a>(&'a self, ids: &'a [RecordId]) -> Answer<'a, Snapshot> {
        self.ledger.load(ids)
    }

    fn pending<'a>(&'a self, of: PendingQuery<'a>) -> Answer<'a, PendingRecords> {
        self.ledger.pending(of)
    }

    fn compare_and_swap<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> Answer<'a, bool> {
        // The record that was inserted without a reply cannot be revoked at once.
        match self.failures.load(Ordering::SeqCst) {
            0 => self.ledger.compare_and_swap(record, revision),
            _ => Box::pin(async { Err(LedgerStoreError::new("unreachable")) }),
        }
    }
}

#[derive(Deserialize, JsonSchema)]
struct Transfer {
    cents: u64,
}

/// Returns a chat whose model calls a tool that needs approval, with a ledger that fails so often.
fn chats(failures: usize) -> ChatServer {
    let tool = Tool::new("transfer", async |it: Transfer| Ok::<_, ToolError>(it.cents));
    let model = Calls::of(&[("transfer", json!({"cents": 500}))]);
    let agent = Agent::new(model).tool(tool.needs_approval());
    let ledger = LosesReplies { failures: failures.into(), ..LosesReplies::default() };
    let approvals = Approvals::new(agent.clone()).with_ledger(Arc::new(ledger));
    ChatServer::new(agent, approvals)
}

fn page(chats: &ChatServer) -> Conversation<'static> {
    let chats = chats.clone();
    Conversation::new(async move |chat: ChatRequest| {
        chats.stream_response(&Principal::new("ada"), chat).await.unwrap()
    })
}

#[tokio::test(start_paused = true)]
async fn an_approval_is_requested_once_the_ledger_answers_again_and_one_request_is_pending() {
    let chats = chats(3);
    let mut page = page(&chats);
    page.send("Go").await;
    assert!(requests_approval(&chunks(&page)), "{:?}", chunks(&page));
    // The requests whose replies were lost are revoked.
    let pending = chats.approvals().pending(&Principal::new("ada")).await.unwrap();
    assert_eq!(pending.len(), 1);
    page.approve("transfer").await;
    assert_eq!(outcomes(&chunks(&page)), [json!(500)]);
}

#[tokio::test(start_paused = true)]
async fn a_call_fails_if_the_ledger_does_not_answer_for_half_a_minute() {
    let chats = chats(usize::MAX);
    let mut page = page(&chats);
    page.send("Go").await;
    let text = "This tool call was not executed: nobody could be asked to approve it.";
    assert_eq!(outcomes(&chunks(&page)), [text]);
    assert_eq!(page.last_text(), "Done.", "the turn continues");
}
