//! A run that writes nothing for a while ends soon after another server was told to stop it, or to delete
//! its chat.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use test_support::requests;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use ui_message_stream::AgentEvent;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream_chat::store::InMemoryLogStore;
use ui_message_stream_chat::{ChatServer, Turn};

/// Part of the agent's stream.
struct Dropped(Arc<Notify>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[tokio::test(start_paused = true)]
async fn a_quiet_run_ends_within_a_second_after_a_stop_or_a_deletion_at_another_server() {
    for is_deletion in [false, true] {
        let (logs, dropped) = (Arc::new(InMemoryLogStore::new()), Arc::new(Notify::new()));
        let server = || {
            let dropped = Arc::clone(&dropped);
            let agent = move |_: Turn| {
                let dropped = Dropped(Arc::clone(&dropped));
                async_stream::stream! {
                    yield AgentEvent::text("One");
                    pending::<()>().await;
                    drop(dropped);
                }
            };
            ChatServer::new(agent, Approvals::new(EmptyToolbox)).with_store(logs.clone())
        };
        let (ada, chat) = (Principal::new("ada"), "chat".into());
        let request = requests::say("chat", "m1", "Hi");
        let (first, second) = (server(), server());
        let response = first.stream_response(&ada, request).await.unwrap();
        let response = tokio::spawn(response.collect::<Vec<_>>());
        // The lease is renewed after 3.3 seconds.
        sleep(Duration::from_secs(2)).await;
        let stopped_at = Instant::now();
        match is_deletion {
            true => second.delete(&ada, &chat).await.unwrap(),
            false => second.stop(&ada, &chat).await.unwrap(),
        }
        dropped.notified().await;
        let waited = stopped_at.elapsed();
        assert!(waited < Duration::from_secs(1), "{waited:?}");
        assert!(!response.await.unwrap().is_empty());
    }
}
