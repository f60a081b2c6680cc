//! [`stream_long_answer`]: a response of many short deltas, of which the tests of a store count what the
//! store writes.

use std::sync::Arc;

use futures::{StreamExt, stream};
use serde_json::json;
use test_support::requests::{ada, send, user_message};
use tokio::sync::{Semaphore, watch};
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{Approvals, EmptyToolbox};
use ui_message_stream::event::AgentEvent;
use ui_message_stream_chat::store::{AppendLog, AppendResult, LogStore};
use ui_message_stream_chat::{ChatServer, Turn};

use crate::log_double::{Answer, Intercepts, LogDouble};

/// The sizes of a response.
#[derive(Debug, Clone, Copy)]
pub struct LongAnswer {
    /// The bytes of the response.
    pub log_bytes: usize,
    /// The bytes of the stored message as JSON.
    pub message_bytes: usize,
}

impl LongAnswer {
    /// Returns how many bytes a store may write for the response. The frames are stored without the ids that
    /// they have in the response, which are about a third of it. A database writes each byte twice: into its
    /// log, and into its tables.
    pub fn permitted_bytes(self) -> usize {
        self.log_bytes * 7 / 4 + self.message_bytes * 4
    }
}

/// Answers a message with 32 000 deltas of text, in appends that do not depend on the speed of the
/// machine.
///
/// The agent says the deltas in bursts. The store holds an append back while the agent says a burst, and
/// the agent says the next one when the response has what was said before. So the frames of a burst are
/// in two appends: the first one, and all that was said meanwhile. It is the same with a store that is
/// slow. Without this, the number of appends, and the pages that SQLite writes besides the frames of
/// each, would differ from machine to machine.
pub async fn stream_long_answer<S>(store: Arc<S>) -> LongAnswer
where
    S: LogStore + LedgerStore,
{
    let (is_speaking, watched) = watch::channel(false);
    let (is_speaking, permits) = (Arc::new(is_speaking), Arc::new(Semaphore::new(1)));
    let permits_of_agent = permits.clone();
    let agent = move |_: Turn| {
        let (is_speaking, permits) = (is_speaking.clone(), permits_of_agent.clone());
        stream::iter(0..DELTAS).then(move |at| {
            let (is_speaking, permits) = (is_speaking.clone(), permits.clone());
            async move {
                if at % BURST == 0 {
                    permits.acquire().await.unwrap().forget();
                    is_speaking.send_replace(true);
                }
                if (at + 1) % BURST == 0 {
                    is_speaking.send_replace(false);
                }
                AgentEvent::text(WORDS[at % 8])
            }
        })
    };
    let slow = SlowAppends { store: store.clone(), is_speaking: watched };
    let approvals = Approvals::new(EmptyToolbox).with_ledger(store);
    let chats = ChatServer::new(agent, approvals).with_store(Arc::new(LogDouble(slow)));
    let ada = ada();
    let request = send("long", &json!([user_message("m1", "Go on")]));
    let mut response = chats.stream_response(&ada, request).await.unwrap();
    let (mut log_bytes, mut frame_count, mut bursts) = (0, 0, 1);
    while let Some(frames) = response.next().await {
        let frames = frames.unwrap();
        log_bytes += frames.len();
        frame_count += frames.windows(2).filter(|bytes| bytes == b"\n\n").count();
        if frame_count >= bursts * BURST {
            bursts += 1;
            permits.add_permits(1);
        }
    }
    assert_eq!(chats.shut_down(test_support::patience()).await, 0);
    let stored = chats.chat(&ada, &"long".into()).await.unwrap();
    let message = stored.messages.last().unwrap();
    assert_eq!(message.text().len(), DELTAS / 8 * WORDS.concat().len());
    LongAnswer { log_bytes, message_bytes: serde_json::to_vec(message).unwrap().len() }
}

/// The logs of a store, to which nothing is appended while the agent says a burst.
#[derive(Debug)]
struct SlowAppends<S> {
    store: Arc<S>,
    is_speaking: watch::Receiver<bool>,
}

impl<S: LogStore> Intercepts for SlowAppends<S> {
    fn store(&self) -> &dyn LogStore {
        &*self.store
    }

    fn append<'a>(&'a self, append: AppendLog<'a>) -> Answer<'a, AppendResult> {
        let mut is_speaking = self.is_speaking.clone();
        Box::pin(async move {
            let _ = is_speaking.wait_for(|is_speaking| !is_speaking).await;
            self.store.append(append).await
        })
    }
}

const DELTAS: usize = 32_000;

/// The number of deltas that the agent says before it waits. Their frames are about 173 KB. With more than
/// 256 KiB, the turn would wait for the store, and the store for the agent.
const BURST: usize = 1_600;

const WORDS: [&str; 8] =
    ["The ", "quick ", "brown fox ", "jumps over ", "lazy, ", "sleeping ", "dogs again ", "and "];
