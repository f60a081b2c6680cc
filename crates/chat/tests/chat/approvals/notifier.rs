//! A chat server delivers the events of its approvals, and its shutdown waits for those that were begun.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chat_test_support::answers::post;
use futures::StreamExt;
use tokio::time::sleep;
use ui_message_stream::approval::{ApprovalEvent, ApprovalNotice, Approvals, Notifier, ToolList};
use ui_message_stream::{BoxError, BoxFuture, Json};
use ui_message_stream_chat::ChatServer;

use super::bell_ringer::ring;

/// Takes two seconds for each event.
#[derive(Debug, Clone, Default)]
struct Slow {
    begun: Arc<Mutex<Vec<ApprovalEvent>>>,
    delivered: Arc<Mutex<Vec<ApprovalEvent>>>,
}

impl Notifier for Slow {
    fn notify<'a>(&'a self, notice: &'a ApprovalNotice) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            self.begun.lock().unwrap().push(notice.event);
            sleep(Duration::from_secs(2)).await;
            self.delivered.lock().unwrap().push(notice.event);
            Ok(())
        })
    }
}

fn server(slow: &Slow) -> ChatServer {
    let tools = ToolList::new().tool("ring", "Rings the bell.", &Json::null());
    let approvals = Approvals::new(tools).with_notifier(slow.clone());
    ChatServer::new(ring, approvals.with_approval_ttl(Duration::from_secs(60)))
}

async fn ask(chats: &ChatServer) {
    drop(post(chats, "m1", "Ring").await.collect::<Vec<_>>().await);
}

#[tokio::test(start_paused = true)]
async fn events_are_delivered_beside_the_stream_also_when_a_request_expires() {
    let slow = Slow::default();
    let chats = server(&slow);
    let begun = tokio::time::Instant::now();
    ask(&chats).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "the stream does not wait");
    sleep(Duration::from_secs(3)).await;
    assert_eq!(*slow.delivered.lock().unwrap(), [ApprovalEvent::Requested]);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(*slow.delivered.lock().unwrap(), [ApprovalEvent::Requested, ApprovalEvent::Expired]);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_the_events_that_were_begun() {
    let slow = Slow::default();
    let chats = server(&slow);
    ask(&chats).await;
    sleep(Duration::from_millis(100)).await;
    assert_eq!(slow.begun.lock().unwrap().len(), 1);
    chats.shut_down(Duration::from_secs(10)).await;
    assert_eq!(slow.delivered.lock().unwrap().len(), 1);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(slow.begun.lock().unwrap().len(), 1, "it begins no more");
}
