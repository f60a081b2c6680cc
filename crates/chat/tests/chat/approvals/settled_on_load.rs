//! A load of a chat stores what the ledger knows about calls that the chat holds as open.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_stream::stream;
use chat_test_support::answers::{decide, has_questions, post, questions, stored};
use serde_json::json;
use test_support::eventually;
use test_support::requests::{ada, respond_to_all, send, user_message};
use test_support::thread_subscriber::captured;
use tokio::time::{sleep, timeout};
use ui_message_stream::AgentEvent;
use ui_message_stream::approval::store::InMemoryLedger;
use ui_message_stream::approval::{Approvals, DeferredOutcome, KeyRing, OnNewMessage, ToolList};
use ui_message_stream::event::ToolCall;
use ui_message_stream::json::Json;
use ui_message_stream::message::AnswerEnd;
use ui_message_stream::message::ToolState;
use ui_message_stream_chat::store::InMemoryLogStore;
use ui_message_stream_chat::{Chat, ChatServer, Turn};

use crate::endings::faults::text_of;

const TTL: Duration = Duration::from_secs(600);

/// Two servers on the same stores. The second one may have another key.
struct Servers {
    first: ChatServer,
    second: ChatServer,
    /// How often an agent was called.
    calls: Arc<AtomicUsize>,
}

impl Servers {
    /// The agent asks for an approval.
    fn new(keys: [u8; 2]) -> Self {
        Self::with_rule(keys, OnNewMessage::default())
    }

    fn with_rule(keys: [u8; 2], on_new_message: OnNewMessage) -> Self {
        let (logs, ledger) = (Arc::new(InMemoryLogStore::new()), Arc::new(InMemoryLedger::new()));
        let calls = Arc::new(AtomicUsize::new(0));
        let [first, second] = keys.map(|key| {
            let calls = Arc::clone(&calls);
            let agent = move |turn: Turn| {
                calls.fetch_add(1, Ordering::SeqCst);
                stream! {
                    let call = ToolCall::new("call", "ring");
                    yield AgentEvent::tool_input(call.clone(), Json::null());
                    yield turn.approvals.request_approval_of(&call, &Json::null()).await;
                }
            };
            let tools = ToolList::new().tool("ring", "Rings the bell.", &Json::null());
            let keys = KeyRing::new(1, &test_support::secret(key)).unwrap();
            let approvals = Approvals::new(tools).with_approval_ttl(TTL).with_keys(keys);
            let approvals = approvals.on_new_message(on_new_message);
            ChatServer::new(agent, approvals.with_ledger(ledger.clone())).with_store(logs.clone())
        });
        Servers { first, second, calls }
    }

    async fn ask(&self) {
        text_of(post(&self.first, "m1", "Ring").await).await;
        assert!(has_questions(&self.second).await);
    }

    async fn load(&self) -> Chat {
        stored(&self.second).await
    }

    async fn close(&self) {
        let is_closed = eventually(async || !has_questions(&self.second).await);
        timeout(Duration::from_secs(60), is_closed).await.expect("the question is closed");
        let chat = self.load().await;
        assert!(error_of(&chat).contains("not executed"));
        assert!(!chat.has_open_questions());
        assert_eq!(chat.answer_end(), Some(AnswerEnd::Finished));
    }
}

fn error_of(chat: &Chat) -> &str {
    match &chat.messages[1].tool_parts().next().unwrap().state {
        ToolState::OutputError { error_text, .. } => error_text,
        state => panic!("{state:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_that_has_expired_is_closed_in_the_store_by_a_load() {
    let servers = Servers::new([7, 7]);
    servers.ask().await;
    sleep(TTL + Duration::from_secs(1)).await;
    assert!(error_of(&servers.load().await).contains("not executed"));
    servers.close().await;
    // A call that was closed without a decision is no reason to call the model.
    assert_eq!(servers.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_question_whose_key_was_lost_is_closed_in_the_store_by_the_next_message() {
    let (log, _guard) = captured();
    let servers = Servers::new([7, 8]);
    servers.ask().await;
    // A server that was started with a wrong key closes nothing.
    assert!(servers.load().await.has_open_questions());
    sleep(Duration::from_secs(120)).await;
    // It says so once.
    let text = log.text();
    let warnings: Vec<&str> = text.lines().filter(|line| line.contains("another key")).collect();
    assert!(matches!(warnings[..], [line] if line.contains("WARN")), "{warnings:#?}");
    assert!(has_questions(&servers.second).await);
    text_of(post(&servers.second, "m2", "Go on").await).await;
    let chat = servers.load().await;
    assert!(error_of(&chat).contains("not executed"));
    assert_eq!(chat.open_approvals().len(), 1, "the new question");
    assert_eq!(questions(&servers.first).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_message_at_a_server_with_another_key_closes_no_question_that_messages_leave_open() {
    let servers = Servers::with_rule([7, 8], OnNewMessage::Run);
    servers.ask().await;
    text_of(post(&servers.second, "m2", "Go on").await).await;
    assert_eq!(questions(&servers.first).await.len(), 1);
    assert_eq!(servers.load().await.open_approvals().len(), 2, "the new question, too");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_a_server_with_another_key_has_closed_is_executed_by_no_other_server() {
    let servers = Servers::new([7, 8]);
    servers.ask().await;
    let [asked] = &questions(&servers.first).await[..] else { panic!() };
    let mut answer = serde_json::to_value(&servers.load().await.messages[1]).unwrap();
    respond_to_all(&mut answer, true);
    let answered = send("chat", &json!([user_message("m1", "Ring"), answer]));
    text_of(servers.second.stream_response(&ada(), answered).await.unwrap()).await;
    assert!(error_of(&servers.load().await).contains("not executed"));
    assert_eq!(questions(&servers.first).await, []);
    decide(&servers.first, asked, true).await;
    let chat = servers.load().await;
    assert!(error_of(&chat).contains("not executed"), "{chat:?}");
    let outcomes = servers.first.approvals().for_chat(&ada(), &"chat".into());
    let outcomes = outcomes.outcomes(std::slice::from_ref(asked)).await.unwrap();
    assert!(matches!(outcomes[..], [(_, DeferredOutcome::Revoked)]), "{outcomes:?}");
}
