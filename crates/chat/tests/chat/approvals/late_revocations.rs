//! A turn that is slow revokes nothing that a later run has requested: it revokes what was pending
//! while the chat still had the revision that it has loaded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_stream::stream;
use chat_test_support::answers::{decide, post, questions};
use chat_test_support::log_double::{Answer, Intercepts, LogDouble};
use test_support::any_tool::AnyTool;
use test_support::eventually;
use test_support::requests::{ada, say};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use ui_message_stream::approval::store::InMemoryLedger;
use ui_message_stream::approval::{Approvals, KeyRing};
use ui_message_stream::event::ToolCall;
use ui_message_stream::id::ApprovalId;
use ui_message_stream::{AgentEvent, Json};
use ui_message_stream_chat::store::{InMemoryLogStore, LoadLog, LoadedLog, LogStore};
use ui_message_stream_chat::{ChatServer, Turn};

/// A store that can hold back the reply to the next load.
#[derive(Debug)]
struct SlowLoads {
    store: Arc<InMemoryLogStore>,
    holds_next: AtomicBool,
    released: Semaphore,
}

impl SlowLoads {
    fn hold_next(&self) {
        self.holds_next.store(true, Ordering::SeqCst);
    }

    fn is_holding(&self) -> bool {
        !self.holds_next.load(Ordering::SeqCst)
    }
}

impl Intercepts for SlowLoads {
    fn store(&self) -> &dyn LogStore {
        &*self.store
    }

    fn load<'a>(&'a self, load: LoadLog<'a>) -> Answer<'a, Option<LoadedLog>> {
        Box::pin(async move {
            let loaded = self.store.load(load).await;
            if self.holds_next.swap(false, Ordering::SeqCst) {
                self.released.acquire().await.unwrap().forget();
            }
            loaded
        })
    }
}

/// Two servers with the same stores. The loads of the first one can be slow. Their agent requests an
/// approval. After that, the agent of the first server waits for a permit and fails.
struct Servers {
    slow: ChatServer,
    fast: ChatServer,
    loads: Arc<LogDouble<SlowLoads>>,
    permits: Arc<Semaphore>,
}

impl Servers {
    fn new() -> Self {
        let ledger = Arc::new(InMemoryLedger::new());
        let (keys, permits) =
            (KeyRing::new(1, &test_support::secret(7)).unwrap(), Arc::new(Semaphore::new(0)));
        let store = Arc::new(InMemoryLogStore::new());
        let loads = Arc::new(LogDouble(SlowLoads {
            store: Arc::clone(&store),
            holds_next: AtomicBool::new(false),
            released: Semaphore::new(0),
        }));
        let server = |permits: Option<Arc<Semaphore>>| {
            let agent = move |turn: Turn| {
                let permits = permits.clone();
                stream! {
                    let call = ToolCall::new(format!("call-{}", permits.is_some()), "ring");
                    yield AgentEvent::tool_input(call.clone(), Json::null());
                    yield turn.approvals.request_approval_of(&call, &Json::null()).await;
                    if let Some(permits) = permits {
                        permits.acquire().await.unwrap().forget();
                        yield AgentEvent::error("The model has failed.");
                    }
                }
            };
            let approvals = Approvals::new(AnyTool::with_output("it rang"))
                .with_keys(keys.clone())
                .with_ledger(ledger.clone());
            ChatServer::new(agent, approvals)
        };
        let slow = server(Some(Arc::clone(&permits))).with_store(loads.clone());
        Servers { slow, fast: server(None).with_store(store), loads, permits }
    }

    async fn pending(&self) -> Vec<ApprovalId> {
        questions(&self.fast).await
    }

    async fn until_held(&self) {
        eventually(async || self.loads.is_holding()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_does_not_revoke_what_the_agent_of_a_new_chat_with_the_same_id_requests() {
    let servers = Servers::new();
    servers.loads.hold_next();
    let deleting = {
        let slow = servers.slow.clone();
        tokio::spawn(async move { slow.delete(&ada(), &"chat".into()).await })
    };
    servers.until_held().await;
    servers.fast.complete_response(&ada(), say("chat", "m1", "Ring")).await.unwrap();
    let pending = servers.pending().await;
    assert_eq!(pending.len(), 1);
    servers.loads.released.add_permits(1);
    deleting.await.unwrap().unwrap();
    assert_eq!(servers.pending().await, pending);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_run_that_was_taken_does_not_revoke_what_the_next_run_of_its_message_requests()
{
    let servers = Servers::new();
    let response = post(&servers.slow, "m1", "Ring").await;
    eventually(async || !servers.pending().await.is_empty()).await;
    let [first] = &servers.pending().await[..] else { panic!("one request") };
    // The agent fails, and the turn loads the chat to save it.
    servers.loads.hold_next();
    servers.permits.add_permits(1);
    servers.until_held().await;
    // Another server stops the run. An answer to its message begins the next run, which asks again.
    servers.fast.stop(&ada(), &"chat".into()).await.unwrap();
    assert!(decide(&servers.fast, first, true).await);
    eventually(async || !servers.pending().await.is_empty()).await;
    let pending = servers.pending().await;
    servers.loads.released.add_permits(1);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(servers.pending().await, pending);
    drop(response);
}
