//! Provider-executed calls that need an approval, where several servers receive the decision: one
//! server sends it to the provider, and the other servers return the outcome.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::json;
use ui_message_stream::approval::Principal;
use ui_message_stream::chat::store::{ChatStore, ChatStoreError, InMemoryChatStore, VersionedChat};
use ui_message_stream::chat::{Chat, ChatServer};
use ui_message_stream::id::ChatId;
use ui_message_stream::request::Limits;
use ui_message_stream::{BoxFuture, ChatRequest};

use super::provider_double::{Host, NOW, Reply, ada, is_shortened, part, user_message};

#[tokio::test(start_paused = true)]
async fn a_retry_at_another_server_does_not_interrupt_the_waiting_server() {
    let host = Host::with_replies(&[Reply::ApprovalRequest, Reply::Hang]);
    host.say("m1").await;
    let decision_body = host.body_with_decisions(&[("link", true)]).await;
    let body = decision_body.to_string();
    let request = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();
    drop(host.chats.stream_response(&ada(), request).await.unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(host.approvals_sent(), 1);
    let at_other_server = host.post_to(&host.other, decision_body);
    let at_other_server = tokio::time::timeout(Duration::from_secs(60), at_other_server).await;
    assert!(
        at_other_server.is_err(),
        "it waits for the outcome at the other server: {at_other_server:?}"
    );
    host.post_to(&host.other, json!({"id": "chat", "messages": [user_message("m2")]})).await;
    assert_eq!(
        host.provider_inputs(),
        ["nothing", "approved", "unknown"],
        "the other server still waits for the result"
    );
    assert_eq!(part(&host.stored_messages().await, "link")["state"], "approval-responded");
}

#[tokio::test(start_paused = true)]
async fn an_unsent_approval_is_sent_by_the_server_that_continues_the_turn() {
    let host = Host::with_replies(&[Reply::Hang, Reply::ApprovalRequest, Reply::LinkOutput]);
    host.send_without_reading("m0").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.say("m1").await;
    let decision_body = host.body_with_decisions(&[("link", true)]).await;
    // This server has received the approval, and waits for its active run.
    assert!(host.decide("link", true).await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(host.approvals_sent(), 0);
    let at_other_server = host.post_to(&host.other, decision_body).await;
    assert!(is_shortened(&at_other_server), "{at_other_server:?}");
    host.chats.stop(&ada(), &"chat".into()).await.unwrap();
    host.wait_until_idle().await;
    assert_eq!(
        host.provider_inputs(),
        ["nothing", "nothing", "approved"],
        "and the model is not called again"
    );
}

#[tokio::test(start_paused = true)]
async fn an_approval_for_an_evicted_chat_is_answered() {
    let host = Host::with_replies(&[Reply::ApprovalRequest]);
    host.say("m1").await;
    let decision_body = host.body_with_decisions(&[("link", true)]).await;
    let with_empty_store = host.chats.clone().with_store(Arc::new(InMemoryChatStore::new()));
    let answer = host.post_to(&with_empty_store, decision_body).await;
    assert!(answer.iter().any(|chunk| chunk["delta"] == "Done"), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_retry_does_not_continue_the_turn_while_another_server_runs_a_call() {
    let host = Host::with_replies(&[Reply::ApprovalRequestAndSlowDelete, Reply::LinkOutput]);
    host.say("m1").await;
    let decision_body = host.body_with_decisions(&[("link", true)]).await;
    assert!(host.decide("link", true).await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(host.decide("own", true).await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.post_to(&host.other, decision_body).await;
    assert_eq!(host.provider_inputs(), ["nothing"], "the other call has not ended");
    host.wait_until_idle().await;
    assert_eq!(host.provider_inputs(), ["nothing", "approved"]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_waits_for_the_server_that_sent_a_long_stored_approval() {
    let host = Host::with_replies(&[Reply::ApprovalRequestAndDelete, Reply::Hang]);
    host.say("m1").await;
    assert!(host.decide("link", true).await);
    host.wait_until_idle().await;
    host.ledger.set_test_time(NOW.after(Duration::from_secs(601)));
    let decision_body = host.body_with_decisions(&[("own", true)]).await;
    let request =
        ChatRequest::parse(decision_body.to_string().as_bytes(), &Limits::default()).unwrap();
    drop(host.chats.stream_response(&ada(), request).await.unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(host.approvals_sent(), 1);
    let at_other_server =
        tokio::time::timeout(Duration::from_secs(60), host.post_to(&host.other, decision_body));
    assert!(at_other_server.await.is_err(), "it waits for the run of this server");
    assert_eq!(host.provider_inputs(), ["nothing", "approved"]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_does_not_wait_for_a_run_of_another_message() {
    let host =
        Host::with_replies(&[Reply::Hang, Reply::Hang, Reply::ApprovalRequest, Reply::LinkOutput]);
    host.send_without_reading_to(&host.other, "m00").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.send_without_reading("m0").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.say("m1").await;
    let decision_body = host.body_with_decisions(&[("link", true)]).await;
    assert!(host.decide("link", true).await);
    // The approval is not sent yet: this server waits for the run of another message.
    let at_other_server =
        tokio::time::timeout(Duration::from_secs(60), host.post_to(&host.other, decision_body));
    assert!(is_shortened(&at_other_server.await.expect("it does not wait for its own run")));
}

#[tokio::test(start_paused = true)]
async fn a_server_returns_the_output_of_an_approval_that_another_server_sent() {
    let host = Host::with_replies(&[Reply::ApprovalRequestAndSlowCall, Reply::LinkOutput]);
    host.send_without_reading("m1").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let decision_body = host.body_with_decisions(&[("link", true)]).await;
    let at_other_server = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        host.post_to(&host.other, decision_body.clone()).await
    };
    let (first, at_other_server) =
        futures::join!(host.post(decision_body.clone()), at_other_server);
    assert!(is_shortened(&at_other_server), "{at_other_server:?}");
    assert!(is_shortened(&first), "{first:?}");
}

/// A chat store that stops the run as soon as a pending approval was claimed for sending.
#[derive(Debug, Default)]
struct StopsAfterClaim {
    store: InMemoryChatStore,
    chats: OnceLock<ChatServer>,
}

impl ChatStore for StopsAfterClaim {
    fn load<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
    ) -> BoxFuture<'a, Result<Option<VersionedChat>, ChatStoreError>> {
        self.store.load(owner, id)
    }

    fn save<'a>(
        &'a self,
        chat: &'a Chat,
        revision: Option<u64>,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        Box::pin(async move {
            let before = self.store.load(&chat.owner, &chat.id).await?;
            let had_unsent_approval =
                before.is_some_and(|stored| !stored.chat.unsent_approvals.is_empty());
            let saved = self.store.save(chat, revision).await?;
            if had_unsent_approval && chat.unsent_approvals.is_empty() {
                self.chats.get().unwrap().stop(&ada(), &chat.id).await.unwrap();
            }
            Ok(saved)
        })
    }
}

#[tokio::test(start_paused = true)]
async fn an_approval_claimed_by_a_stopped_run_is_returned_to_the_chat() {
    let mut host = Host::with_replies(&[Reply::ApprovalRequestAndDelete, Reply::LinkOutput]);
    let store = Arc::new(StopsAfterClaim::default());
    host.chats = host.chats.clone().with_store(store.clone());
    store.chats.set(host.chats.clone()).unwrap();
    host.say("m1").await;
    assert!(host.decide("link", true).await);
    host.wait_until_idle().await;
    assert!(host.decide("own", true).await);
    host.wait_until_idle().await;
    assert_eq!(host.provider_inputs(), ["nothing"], "the run was stopped before the model call");
    let stored = host.chats.chat(&ada(), &"chat".into()).await.unwrap();
    assert_eq!(stored.unsent_approvals.len(), 1);
    assert_eq!(part(&host.stored_messages().await, "link")["state"], "approval-responded");
    assert_eq!(host.deleted.load(Ordering::SeqCst), 1);
}

/// A chat store whose reads fail once `now` is set.
#[derive(Debug)]
struct Unreadable {
    store: Arc<InMemoryChatStore>,
    now: AtomicBool,
}

impl ChatStore for Unreadable {
    fn load<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
    ) -> BoxFuture<'a, Result<Option<VersionedChat>, ChatStoreError>> {
        match self.now.load(Ordering::SeqCst) {
            true => Box::pin(async { Err(ChatStoreError::new("it cannot be read")) }),
            false => self.store.load(owner, id),
        }
    }

    fn save<'a>(
        &'a self,
        chat: &'a Chat,
        revision: Option<u64>,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        self.store.save(chat, revision)
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_for_another_server_ends_when_the_chat_store_fails() {
    let host = Host::with_replies(&[Reply::ApprovalRequest, Reply::Hang]);
    host.say("m1").await;
    let decision_body = host.body_with_decisions(&[("link", true)]).await;
    assert!(host.decide("link", true).await);
    host.wait_until_idle().await;
    assert_eq!(host.provider_inputs(), ["nothing", "approved"]);
    let store = Arc::new(Unreadable { store: host.store.clone(), now: AtomicBool::new(false) });
    let at_other_server = host.other.clone().with_store(store.clone());
    let fail_reads = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        store.now.store(true, Ordering::SeqCst);
    };
    let retry = tokio::time::timeout(
        Duration::from_secs(3600),
        host.post_to(&at_other_server, decision_body),
    );
    let (answer, ()) = futures::join!(retry, fail_reads);
    let answer = answer.expect("the retry ends");
    assert!(answer.iter().any(|chunk| chunk["type"] == "error"), "{answer:?}");
}
