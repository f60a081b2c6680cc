//! `DELETE /{id}`: a deleted chat does not come back, its run stops on any server, and an approval
//! that was requested in it has no effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_stream::stream;
use axum::http::{Method, StatusCode};
use chat_test_support::answers::{decide, post, questions, read_until};
use chat_test_support::log_double::{Answer, Intercepts, LogDouble};
use chat_test_support::test_server::Host;
use serde_json::json;
use test_support::any_tool::AnyTool;
use test_support::requests::ada;
use tokio::sync::Semaphore;
use tokio::time::sleep;
use ui_message_stream::approval::store::InMemoryLedger;
use ui_message_stream::approval::{Approvals, KeyRing};
use ui_message_stream::event::ToolCall;
use ui_message_stream::{AgentEvent, Json};
use ui_message_stream_chat::store::ChatStoreError;
use ui_message_stream_chat::store::{Epoch, InMemoryLogStore, LogKey, LogStore};
use ui_message_stream_chat::{ChatError, ChatServer, ChatStream, Turn};

use super::faults::text_of;

const CHAT: &str = "/api/chat/chat";

async fn delete(host: &Host, user: &str) -> StatusCode {
    let answer = host.send(user, Method::DELETE, CHAT, "").await;
    assert_eq!(answer.text, "");
    answer.status
}

#[tokio::test]
async fn a_deleted_chat_is_gone_and_its_approval_has_no_effect() {
    let (host, alice) = Host::with_alice("delete notes.txt").await;
    let id = alice.approval_ids()[0].clone();
    assert_eq!(delete(&host, "alice").await, StatusCode::NO_CONTENT);
    assert_eq!(host.get("alice", CHAT).await.status, StatusCode::NOT_FOUND);
    assert_eq!(host.get("alice", "/api/chat").await.json(), json!({"chats": []}));
    assert!(host.pending("alice").await.is_empty());

    assert!(!host.decides("alice", &id, true).await);
    // The page that is still open sends its answer in the chat.
    let answer = host.chat("alice", alice.answered(true).to_string()).await;
    assert_eq!(answer.status, StatusCode::CONFLICT);
    assert!(host.tools.effects().is_empty());
}

#[tokio::test]
async fn a_deletion_may_be_repeated_and_touches_no_chat_of_another_user() {
    let (host, _) = Host::with_alice("delete notes.txt").await;
    let hers = host.get("alice", CHAT).await.text;
    for _ in 0..2 {
        assert_eq!(delete(&host, "bob").await, StatusCode::NO_CONTENT);
    }
    assert_eq!(host.get("alice", CHAT).await.text, hers);
    assert_eq!(host.pending("alice").await.len(), 1);
    for _ in 0..2 {
        assert_eq!(delete(&host, "alice").await, StatusCode::NO_CONTENT);
    }
}

#[tokio::test(start_paused = true)]
async fn an_approved_tool_that_is_executing_does_not_bring_the_chat_back() {
    let (host, alice) = Host::with_alice("delete notes.txt").await;
    let answered = host.answer_and_hold(&alice).await;
    assert_eq!(delete(&host, "alice").await, StatusCode::NO_CONTENT);
    let answer = answered.await.unwrap();
    assert_eq!(answer.of_type("abort").len(), 1, "{}", answer.text);
    host.tools.hold(false);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(host.get("alice", CHAT).await.status, StatusCode::NOT_FOUND);
    assert_eq!(host.model.prompts().len(), 1, "the model is not called again");
}

/// A store whose deletions fail, before or after the chat is deleted.
#[derive(Debug, Default)]
struct FailingDeletions {
    store: InMemoryLogStore,
    fails_before: AtomicBool,
    fails_after: AtomicBool,
}

impl Intercepts for FailingDeletions {
    fn store(&self) -> &dyn LogStore {
        &self.store
    }

    fn delete<'a>(&'a self, key: &'a LogKey, epoch: Epoch, control: u64) -> Answer<'a, bool> {
        Box::pin(async move {
            if self.fails_before.load(Ordering::SeqCst) {
                return Err(ChatStoreError::new("no connection"));
            }
            let deleted = self.store.delete(key, epoch, control).await;
            match self.fails_after.load(Ordering::SeqCst) {
                true => Err(ChatStoreError::new("no reply")),
                false => deleted,
            }
        })
    }
}

/// Two servers with the same stores. Their agent says a word, waits for a permit, and requests an
/// approval.
struct Servers {
    first: ChatServer,
    second: ChatServer,
    store: Arc<LogDouble<FailingDeletions>>,
    permits: Arc<Semaphore>,
    /// How many times the bell rang.
    rung: Arc<AtomicUsize>,
}

impl Servers {
    fn new() -> Self {
        let permits = Arc::new(Semaphore::new(0));
        let (bell, rung) = AnyTool::counted("it rang");
        let store = Arc::<LogDouble<FailingDeletions>>::default();
        let (ledger, keys) =
            (Arc::new(InMemoryLedger::new()), KeyRing::new(1, &test_support::secret(7)).unwrap());
        let server = || {
            let permits = Arc::clone(&permits);
            let agent = move |turn: Turn| {
                let permits = Arc::clone(&permits);
                stream! {
                    yield AgentEvent::text("Wait. ");
                    permits.acquire().await.unwrap().forget();
                    let call = ToolCall::new("call", "ring");
                    yield AgentEvent::tool_input(call.clone(), Json::null());
                    yield turn.approvals.request_approval_of(&call, &Json::null()).await;
                }
            };
            let approvals = Approvals::new(bell.clone());
            let approvals = approvals.with_keys(keys.clone()).with_ledger(ledger.clone());
            ChatServer::new(agent, approvals).with_store(store.clone())
        };
        let (first, second) = (server(), server());
        Servers { first, second, store, permits, rung }
    }

    async fn post(&self) -> ChatStream {
        post(&self.first, "m1", "Ring").await
    }

    /// Makes deletions fail, before or after the chat is deleted, or succeed again.
    fn fail_deletions(&self, before: bool, fail: bool) {
        let fails = if before { &self.store.fails_before } else { &self.store.fails_after };
        fails.store(fail, Ordering::SeqCst);
    }

    async fn is_stored(&self) -> bool {
        self.first.chat(&ada(), &"chat".into()).await.is_ok()
    }
}

#[tokio::test(start_paused = true)]
async fn the_run_of_a_deleted_chat_stops_on_any_server_and_does_not_save_it() {
    for is_other_server in [false, true] {
        let servers = Servers::new();
        let mut response = servers.post().await;
        let begun = read_until(&mut response, "Wait. ").await;
        let deleting = if is_other_server { &servers.second } else { &servers.first };
        deleting.delete(&ada(), &"chat".into()).await.unwrap();
        let text = begun + &text_of(response).await;
        assert!(text.contains("Wait. ") && text.contains(r#""type":"abort""#), "{text}");
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        sleep(Duration::from_secs(30)).await;
        assert_eq!(servers.permits.available_permits(), 0);
        servers.permits.add_permits(1);
        sleep(Duration::from_secs(30)).await;
        assert_eq!(servers.permits.available_permits(), 1, "the agent is stopped");
        assert!(!servers.is_stored().await);
        let stream = servers.second.resume_stream(&ada(), &"chat".into(), None).await.unwrap();
        assert!(stream.is_none());
    }
}

/// The run is on another server, which learns of the deletion only when it writes.
#[tokio::test(start_paused = true)]
async fn an_approval_that_is_requested_after_the_deletion_is_revoked() {
    let servers = Servers::new();
    let response = servers.post().await;
    sleep(Duration::from_millis(100)).await;
    servers.second.delete(&ada(), &"chat".into()).await.unwrap();
    servers.permits.add_permits(1);
    text_of(response).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(servers.permits.available_permits(), 0, "the agent has requested an approval");
    assert_eq!(questions(&servers.first).await, []);
    assert!(!servers.is_stored().await);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_fails_leaves_no_approval_with_an_effect_and_can_be_repeated() {
    for fails_before in [true, false] {
        let servers = Servers::new();
        servers.permits.add_permits(1);
        text_of(servers.post().await).await;
        let [asked] = &questions(&servers.first).await[..] else { panic!("one is requested") };
        servers.fail_deletions(fails_before, true);
        let failed = servers.first.delete(&ada(), &"chat".into()).await;
        // After a lost reply the server looks whether the chat is gone.
        match fails_before {
            true => assert!(matches!(failed, Err(ChatError::Store(_))), "{failed:?}"),
            false => failed.unwrap(),
        }
        assert_eq!(servers.is_stored().await, fails_before);
        assert!(!decide(&servers.second, asked, true).await);
        servers.fail_deletions(fails_before, false);
        servers.second.delete(&ada(), &"chat".into()).await.unwrap();
        assert!(!servers.is_stored().await);
        assert_eq!(servers.rung.load(Ordering::SeqCst), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_goes_on_if_the_deletion_of_its_chat_fails_and_has_an_end_if_only_the_reply_is_lost()
{
    for fails_before in [true, false] {
        let servers = Servers::new();
        let mut response = servers.post().await;
        read_until(&mut response, "Wait. ").await;
        servers.fail_deletions(fails_before, true);
        let deleted = servers.second.delete(&ada(), &"chat".into()).await;
        assert_eq!(deleted.is_err(), fails_before, "{deleted:?}");
        servers.permits.add_permits(1);
        let text = text_of(response).await;
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        assert_eq!(text.contains("ring"), fails_before, "{text}");
        assert_eq!(servers.is_stored().await, fails_before);
    }
}

#[tokio::test]
async fn a_chat_that_is_posted_to_while_it_is_deleted_is_there_or_gone() {
    for _ in 0..20 {
        let servers = Servers::new();
        servers.permits.add_permits(2);
        text_of(servers.post().await).await;
        let (id, user) = (&"chat".into(), ada());
        let deleted = servers.second.delete(&user, id);
        let (posted, deleted) = tokio::join!(post(&servers.first, "m2", "Again"), deleted);
        deleted.unwrap();
        let text = text_of(posted).await;
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        // The message was applied before the deletion, or it has begun a new chat.
        if let Ok(stored) = servers.first.chat(&ada(), id).await {
            assert_eq!(stored.messages[0].id.as_str(), "m2");
        } else {
            assert_eq!(questions(&servers.first).await, []);
        }
    }
}
