//! What a short turn costs a store. It is counted, and not a time.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use serde_json::json;
use tokio::time::sleep;
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, ChatRequest};
use ui_message_stream_chat::store::LogStore;
use ui_message_stream_chat::{ChatServer, Turn};

/// Answers a short message in each of ten new chats. Returns by how much each of the turns increased the counters
/// of the store.
pub async fn costs_of_ten_turns<const N: usize>(
    store: Arc<impl LogStore + LedgerStore + 'static>,
    counters: impl AsyncFn() -> [u64; N],
) -> [[u64; N]; 10] {
    let agent = |_: Turn| stream::iter([AgentEvent::text("I see.")]);
    let approvals = Approvals::new(EmptyToolbox).with_ledger(store.clone());
    let chats = ChatServer::new(agent, approvals).with_store(store);
    // The first turns open connections and prepare statements.
    for number in 0..5 {
        turn(&chats, number).await;
    }
    let mut before = settled(&counters).await;
    let mut costs = [[0; N]; 10];
    for (number, cost) in costs.iter_mut().enumerate() {
        turn(&chats, 5 + number).await;
        let after = settled(&counters).await;
        *cost = std::array::from_fn(|at| after[at] - before[at]);
        before = after;
    }
    costs
}

async fn turn(chats: &ChatServer, number: usize) {
    let message = json!({"id": "m", "role": "user", "parts": [{"type": "text", "text": "Go on"}]});
    let body = json!({"id": format!("chat {number}"), "message": message}).to_string();
    let request = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();
    let mut response = chats.stream_response(&Principal::new("ada"), request).await.unwrap();
    while response.next().await.is_some() {}
}

/// Reads counters until they stand still: a response ends before its turn does.
async fn settled<const N: usize>(counters: &impl AsyncFn() -> [u64; N]) -> [u64; N] {
    let mut last = counters().await;
    let mut equal = 0;
    while equal < 5 {
        // On a machine that is busy, this may pass before the turn goes on.
        sleep(Duration::from_millis(60)).await;
        let now = counters().await;
        equal = if now == last { equal + 1 } else { 0 };
        last = now;
    }
    last
}
