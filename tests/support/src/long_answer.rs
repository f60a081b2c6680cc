//! [`stream_long_answer`]: a response of many short deltas, of which the tests of a store count what the
//! store writes.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use ui_message_stream::ChatRequest;
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream::chat::store::{ChatStore, RunStore};
use ui_message_stream::chat::{ChatServer, Turn};
use ui_message_stream::event::AgentEvent;
use ui_message_stream::request::Limits;

/// The sizes of a response.
#[derive(Debug, Clone, Copy)]
pub struct LongAnswer {
    /// The bytes of all frames.
    pub log_bytes: usize,
    /// The bytes of the stored message as JSON.
    pub message_bytes: usize,
}

impl LongAnswer {
    /// Returns how many bytes a store may write for the response.
    pub fn permitted_bytes(self) -> usize {
        self.log_bytes * 3 / 2 + self.message_bytes * 4
    }
}

/// Answers a message with 32 000 deltas of text, as fast as the store takes them.
pub async fn stream_long_answer<S>(store: Arc<S>) -> LongAnswer
where
    S: ChatStore + RunStore + LedgerStore,
{
    let deltas = |_: Turn| stream::iter((0..DELTAS).map(|at| AgentEvent::text(WORDS[at % 8])));
    let approvals = Approvals::new(EmptyToolbox).with_ledger(store.clone());
    let chats =
        ChatServer::new(deltas, approvals).with_store(store.clone()).with_run_store(store.clone());
    let ada = Principal::new("ada");
    let request = ChatRequest::parse(REQUEST.as_bytes(), &Limits::default()).unwrap();
    let mut response = chats.stream_response(&ada, request).await.unwrap();
    let mut log_bytes = 0;
    while let Some(frames) = response.next().await {
        log_bytes += frames.unwrap().len();
    }
    assert_eq!(chats.shut_down(Duration::from_secs(60)).await, 0);
    let stored = ChatStore::load(&*store, &ada, &"long".into()).await.unwrap().unwrap();
    let message = stored.chat.messages.last().unwrap();
    assert_eq!(message.text().len(), DELTAS / 8 * WORDS.concat().len());
    LongAnswer { log_bytes, message_bytes: serde_json::to_vec(message).unwrap().len() }
}

const DELTAS: usize = 32_000;

const WORDS: [&str; 8] =
    ["The ", "quick ", "brown fox ", "jumps over ", "lazy, ", "sleeping ", "dogs again ", "and "];

const REQUEST: &str = r#"{"id":"long","trigger":"submit-message","messages":[
    {"id":"m1","role":"user","parts":[{"type":"text","text":"Go on"}]}]}"#;
