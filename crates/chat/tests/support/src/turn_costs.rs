//! Counts what a short turn costs a store. Times are not measured.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use serde_json::json;
use test_support::requests::{request, user_message};
use tokio::time::sleep;
use ui_message_stream::AgentEvent;
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream_chat::store::LogStore;
use ui_message_stream_chat::{ChatServer, Turn};

/// Answers a short message in each of fifteen new chats. Returns, for each counter of the store, by how much it grew
/// in the last ten of these turns, in ascending order.
pub async fn costs_of_ten_turns<const N: usize>(
    store: Arc<impl LogStore + LedgerStore + 'static>,
    counters: impl AsyncFn() -> [u64; N],
) -> [Vec<u64>; N] {
    let agent = |_: Turn| stream::iter([AgentEvent::text("I see.")]);
    let approvals = Approvals::new(EmptyToolbox).with_ledger(store.clone());
    let chats = ChatServer::new(agent, approvals).with_store(store);
    let mut before = settled(&counters).await;
    let mut costs: [Vec<u64>; N] = std::array::from_fn(|_| Vec::new());
    for number in 0..15 {
        let message = user_message("m", "Go on");
        let request = request(&json!({"id": format!("chat {number}"), "message": message}));
        let response = chats.stream_response(&Principal::new("ada"), request).await.unwrap();
        // A response that is read while its run goes on may have to wait, and reads more than once.
        settled(&counters).await;
        response.for_each(async |_| {}).await;
        let after = settled(&counters).await;
        // The first turns open connections and prepare statements.
        if number >= 5 {
            for (costs, (after, before)) in costs.iter_mut().zip(after.into_iter().zip(before)) {
                costs.push(after.checked_sub(before).expect("the counters of a store only grow"));
            }
        }
        before = after;
    }
    costs.iter_mut().for_each(|costs| costs.sort_unstable());
    costs
}

/// Reads the counters until they are equal six times in a row. On a machine that is busy, they may grow later, and
/// that is counted for the next turn.
async fn settled<const N: usize>(counters: &impl AsyncFn() -> [u64; N]) -> [u64; N] {
    let mut last = counters().await;
    let mut equal = 0;
    while equal < 5 {
        sleep(Duration::from_millis(60)).await;
        let now = counters().await;
        equal = if now == last { equal + 1 } else { 0 };
        last = now;
    }
    last
}
