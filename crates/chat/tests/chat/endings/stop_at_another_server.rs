//! A run that writes nothing for a while ends soon after another server was told to stop it, or to delete
//! its chat.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use chat_test_support::answers::{post, server_of};
use futures::StreamExt;
use test_support::requests::ada;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use ui_message_stream::AgentEvent;
use ui_message_stream_chat::Turn;
use ui_message_stream_chat::store::InMemoryLogStore;

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
            server_of(agent).with_store(logs.clone())
        };
        let (ada, chat) = (ada(), "chat".into());
        let (first, second) = (server(), server());
        let response = tokio::spawn(post(&first, "m1", "Hi").await.collect::<Vec<_>>());
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
