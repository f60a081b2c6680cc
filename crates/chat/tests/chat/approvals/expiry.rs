//! Approval requests expire when their time has passed, without a request of a user.

use std::future::ready;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_stream::stream;
use chat_test_support::answers::{follow, has_questions, post, read_until, stored};
use chat_test_support::log_double::{Answer, Intercepts, LogDouble};
use futures::StreamExt;
use serde_json::json;
use test_support::requests::ada;
use test_support::responses::chunks_of;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use ui_message_stream::approval::store::InMemoryLedger;
use ui_message_stream::approval::{
    Approvals, AuditEvent, AuditEventKind, AuditSink, KeyRing, ToolList,
};
use ui_message_stream::event::ToolCall;
use ui_message_stream::message::ToolState;
use ui_message_stream::{AgentEvent, Json, UserText};
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, ChatStoreError, InMemoryLogStore, LogStore,
};
use ui_message_stream_chat::{ChatAgent, ChatServer, ChatStream, Turn};

use super::bell_ringer::ring;
use crate::endings::faults::text_of;

const TTL: Duration = Duration::from_secs(600);

/// The audit of all servers.
#[derive(Debug, Clone, Default)]
struct Audit(Arc<Mutex<Vec<AuditEvent>>>);

impl AuditSink for Audit {
    fn record(&self, event: &AuditEvent) {
        self.0.lock().unwrap().push(event.clone());
    }
}

impl Audit {
    /// For each request that has expired, how long it waited, in milliseconds.
    fn expired_after(&self) -> Vec<u64> {
        let events = self.0.lock().unwrap();
        let expired = events.iter().filter(|event| event.kind == AuditEventKind::Expired);
        expired.map(|event| event.at.0 - event.requested_at.unwrap().0).collect()
    }
}

/// Two servers on the same stores.
fn servers(agent: impl ChatAgent + Clone) -> ([ChatServer; 2], Audit) {
    servers_on(Arc::new(InMemoryLogStore::new()), agent)
}

fn servers_on(logs: Arc<impl LogStore>, agent: impl ChatAgent + Clone) -> ([ChatServer; 2], Audit) {
    let ledger = Arc::new(InMemoryLedger::new());
    let audit = Audit::default();
    let servers = [(); 2].map(|()| {
        let tools = ToolList::new().tool("ring", "Rings the bell.", &Json::null());
        let keys = KeyRing::new(1, &test_support::secret(7)).unwrap();
        let approvals = Approvals::new(tools).with_approval_ttl(TTL).with_keys(keys);
        let approvals = approvals.with_ledger(ledger.clone()).with_audit(audit.clone());
        ChatServer::new(agent.clone(), approvals).with_store(logs.clone())
    });
    (servers, audit)
}

#[tokio::test(start_paused = true)]
async fn a_request_expires_once_and_in_time_and_its_chat_shows_it() {
    let ([first, second], audit) = servers(ring);
    text_of(post(&first, "m1", "Ring").await).await;
    let mut page = second.follow(&ada(), 20).unwrap();
    let opened = page.next().await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&opened).contains(r#""hasQuestions":true"#), "{opened:?}");
    sleep(TTL - Duration::from_secs(1)).await;
    assert_eq!(audit.expired_after(), [0_u64; 0]);
    assert!(has_questions(&second).await);

    sleep(Duration::from_secs(2)).await;
    let waited = audit.expired_after();
    let ttl = u64::try_from(TTL.as_millis()).unwrap();
    assert!(matches!(waited[..], [one] if (ttl..ttl + 1_000).contains(&one)), "{waited:?}");
    assert!(!has_questions(&second).await, "the store shows it");
    // The page that follows the list of chats gets an event.
    let mut told = String::new();
    while !told.contains(r#""hasQuestions":false"#) {
        told.push_str(&String::from_utf8_lossy(&page.next().await.unwrap().unwrap()));
    }
}

/// A store that may be away.
#[derive(Debug, Default)]
struct Away {
    store: InMemoryLogStore,
    is_away: AtomicBool,
}

impl Intercepts for Away {
    fn store(&self) -> &dyn LogStore {
        &self.store
    }

    fn append<'a>(&'a self, append: AppendLog<'a>) -> Answer<'a, AppendResult> {
        if self.is_away.load(Ordering::Relaxed) {
            return Box::pin(ready(Err(ChatStoreError::new("away"))));
        }
        self.store.append(append)
    }
}

#[tokio::test(start_paused = true)]
async fn a_chat_shows_an_expiry_after_its_store_was_away() {
    let logs = Arc::new(LogDouble(Away::default()));
    let ([first, second], audit) = servers_on(Arc::clone(&logs), ring);
    text_of(post(&first, "m1", "Ring").await).await;
    logs.is_away.store(true, Ordering::Relaxed);
    sleep(TTL + Duration::from_secs(3)).await;
    assert_eq!(audit.expired_after().len(), 1);
    assert!(has_questions(&second).await);
    logs.is_away.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(5)).await;
    assert!(!has_questions(&second).await);
}

#[tokio::test(start_paused = true)]
async fn a_request_of_a_lost_server_expires_at_another_one() {
    let ([first, second], audit) = servers(ring);
    text_of(post(&first, "m1", "Ring").await).await;
    drop(first);
    sleep(TTL + Duration::from_secs(61)).await;
    assert_eq!(audit.expired_after().len(), 1);
    assert!(!has_questions(&second).await);
}

/// A request that expires sooner than those before it is not late.
#[tokio::test(start_paused = true)]
async fn a_request_may_expire_before_an_older_one() {
    let audit = Audit::default();
    let tools = ToolList::new().tool("ring", "Rings the bell.", &Json::null());
    let approvals = Approvals::new(tools).with_audit(audit.clone());
    let _chats =
        ChatServer::new(ring, approvals.clone()).with_store(Arc::new(InMemoryLogStore::new()));
    for (chat, seconds) in [("long", 3_600), ("short", 10)] {
        let approvals = approvals.clone().with_approval_ttl(Duration::from_secs(seconds));
        let of_chat = approvals.for_chat(&ada(), &chat.into());
        let (call, input) = (ToolCall::new("call", "ring"), Json::null());
        assert!(matches!(
            of_chat.request_approval_of(&call, &input).await,
            AgentEvent::ApprovalRequested { .. }
        ));
        sleep(Duration::from_secs(1)).await;
    }
    sleep(Duration::from_secs(11)).await;
    let waited = audit.expired_after();
    assert!(matches!(waited[..], [one] if (10_000..11_000).contains(&one)), "{waited:?}");
}

/// The agent goes on after its question, and has not ended when the question expires.
#[tokio::test(start_paused = true)]
async fn the_readers_of_a_live_answer_learn_in_time_that_its_question_has_expired() {
    let (gate, read) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(Vec::<String>::new())));
    let (permits, prompts) = (Arc::clone(&gate), Arc::clone(&read));
    let agent = move |turn: Turn| {
        let (permits, prompts) = (Arc::clone(&permits), Arc::clone(&prompts));
        stream! {
            let messages = turn.to_model_messages().model_messages(&turn.chat.messages);
            prompts.lock().unwrap().push(serde_json::to_string(&messages).unwrap());
            if turn.chat.messages.len() > 1 {
                yield AgentEvent::text("Then not.");
                return;
            }
            let call = ToolCall::new("call", "ring");
            yield AgentEvent::tool_input(call.clone(), Json::null());
            yield turn.approvals.request_approval_of(&call, &Json::null()).await;
            yield AgentEvent::text("Wait");
            permits.acquire().await.unwrap().forget();
            yield AgentEvent::text("ing.");
        }
    };
    let ([first, second], audit) = servers(agent);
    let begun = Instant::now();
    let mut page = post(&first, "m1", "Ring").await;
    let asked = read_until(&mut page, "Wait").await;
    let mut other = follow(&second).await;
    let expired = "tool-output-error";
    let learns = async |response: &mut ChatStream| {
        let read = timeout(TTL * 2, read_until(response, expired)).await.expect(expired);
        let learned = begun.elapsed();
        assert!((TTL..TTL + Duration::from_secs(1)).contains(&learned), "{learned:?}");
        read
    };
    let (here, there) = futures::join!(learns(&mut page), learns(&mut other));
    assert!(!has_questions(&second).await, "the store shows it");

    gate.add_permits(1);
    for (read, rest) in [(asked + &here, page), (there, other)] {
        let chunks = chunks_of(&(read + &text_of(rest).await));
        let of =
            |kind: &str| chunks.iter().filter(|chunk| chunk["type"] == kind).collect::<Vec<_>>();
        let [error] = of(expired)[..] else { panic!("{chunks:#?}") };
        assert_eq!(error["errorText"], UserText::Expired.text());
        let [asked, expired] = of("data-approval")[..] else { panic!("{chunks:#?}") };
        assert_eq!(
            (&asked["data"]["state"], &expired["data"]["state"]),
            (&json!("pending"), &json!("expired"))
        );
        assert_eq!(chunks.last().unwrap()["type"], "finish");
    }
    let read = read.lock().unwrap().clone();
    assert!(read.len() == 2 && read[1].contains(r#""why":"expired""#), "{read:#?}");
    assert_eq!(audit.expired_after().len(), 1);
    let chat = stored(&first).await;
    let call = chat.messages[1].tool_parts().next().unwrap();
    assert!(
        matches!(&call.state, ToolState::OutputError { error_text, .. } if error_text == UserText::Expired.text()),
        "{call:?}"
    );
}
