//! Stop, an edit and a decision at another server, while a run writes 50 deltas a second to a store that needs
//! 60 ms for each operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_stream::stream;
use chat_test_support::answers::{post, server_of, stored};
use chat_test_support::log_double::{Answer, Intercepts, LogDouble};
use futures::StreamExt;
use serde_json::json;
use test_support::requests::{ada, call_mut, edit, request};
use tokio::time::{Instant, sleep};
use ui_message_stream::event::ToolCall;
use ui_message_stream::json::Json;
use ui_message_stream::{AgentEvent, ChatRequest};
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, Expected, InMemoryLogStore, LoadLog, LoadedLog, LogPage, LogStore,
    ReadLogEntries,
};
use ui_message_stream_chat::{ChatServer, Turn};

/// How one server reaches the store.
#[derive(Debug)]
struct Slow {
    logs: Arc<InMemoryLogStore>,
    /// The appends of requests. The run that a request has begun appends at a position.
    appends: AtomicUsize,
    operations: AtomicUsize,
}

const HALF_OF_AN_OPERATION: Duration = Duration::from_millis(30);

impl Slow {
    async fn slowly<T>(&self, operation: impl Future<Output = T>) -> T {
        self.operations.fetch_add(1, Ordering::SeqCst);
        sleep(HALF_OF_AN_OPERATION).await;
        let result = operation.await;
        sleep(HALF_OF_AN_OPERATION).await;
        result
    }
}

impl Intercepts for Slow {
    fn store(&self) -> &dyn LogStore {
        &*self.logs
    }

    fn load<'a>(&'a self, load: LoadLog<'a>) -> Answer<'a, Option<LoadedLog>> {
        Box::pin(async move { self.slowly(self.logs.load(load)).await })
    }

    fn read<'a>(&'a self, read: ReadLogEntries<'a>) -> Answer<'a, Option<LogPage>> {
        Box::pin(async move { self.slowly(self.logs.read(read)).await })
    }

    fn append<'a>(&'a self, append: AppendLog<'a>) -> Answer<'a, AppendResult> {
        let is_request = !matches!(append.expected, Expected::Position { .. });
        self.appends.fetch_add(usize::from(is_request), Ordering::SeqCst);
        Box::pin(async move { self.slowly(self.logs.append(append)).await })
    }
}

/// An agent that asks the page for its place, and then writes 50 words a second.
fn agent(_: Turn) -> impl futures::Stream<Item = AgentEvent> {
    stream! {
        let call = ToolCall::new("place", "get_location").client_executed();
        yield AgentEvent::tool_input(call, Json::null());
        for _ in 0..1_000 {
            yield AgentEvent::text("word ");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

struct Server {
    chats: ChatServer,
    store: Arc<LogDouble<Slow>>,
}

fn server(logs: &Arc<InMemoryLogStore>) -> Server {
    let logs = Arc::clone(logs);
    let (appends, operations) = <(AtomicUsize, AtomicUsize)>::default();
    let store = Arc::new(LogDouble(Slow { logs, appends, operations }));
    Server { chats: server_of(agent).with_store(store.clone()), store }
}

async fn decision(other: &ChatServer) -> ChatRequest {
    let mut answer = serde_json::to_value(&stored(other).await.messages[1]).unwrap();
    let call = call_mut(&mut answer, "place");
    (call["state"], call["output"]) = ("output-available".into(), "Berlin".into());
    request(&json!({"id": "chat", "message": answer}))
}

#[tokio::test(start_paused = true)]
async fn a_stop_an_edit_and_a_decision_need_one_append_while_another_server_writes_a_run() {
    for action in ["stop", "edit", "decision"] {
        let logs = Arc::new(InMemoryLogStore::new());
        let (first, other) = (server(&logs), server(&logs));
        let response = post(&first.chats, "m1", "Hi").await;
        let response = tokio::spawn(response.for_each(async |_| {}));
        sleep(Duration::from_secs(2)).await;
        let decision = decision(&other.chats).await;
        let before = other.store.operations.swap(0, Ordering::SeqCst);
        assert!(before > 0);
        let begun = Instant::now();
        match action {
            "stop" => other.chats.stop(&ada(), &"chat".into()).await.unwrap(),
            "edit" => {
                let edit = edit("chat", "m1", "Ho");
                drop(other.chats.stream_response(&ada(), edit).await.unwrap());
            }
            _ => drop(other.chats.stream_response(&ada(), decision).await.unwrap()),
        }
        let waited = begun.elapsed();
        let operations = other.store.operations.load(Ordering::SeqCst);
        let appends = other.store.appends.load(Ordering::SeqCst);
        println!("{action}: {waited:?}, {operations} operations, {appends} appends");
        assert_eq!(appends, 1, "{action}");
        // The clock is paused.
        assert!(waited <= 5 * 2 * HALF_OF_AN_OPERATION, "{action}: {waited:?}");
        drop(response);
    }
}
