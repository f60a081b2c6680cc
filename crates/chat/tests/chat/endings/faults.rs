//! A store that fails, loses replies or panics, and servers on it.

use std::future::{pending, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use chat_test_support::answers::{follow, post, server_of};
use chat_test_support::log_double::{Answer, Intercepts, LogDouble};
use futures::{StreamExt, stream};
use test_support::{eventually, responses};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use ui_message_stream::AgentEvent;
use ui_message_stream_chat::store::ChatStoreError;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, InMemoryLogStore, LoadLog, LoadedLog, LogPage, LogStore,
    ReadLogEntries,
};
use ui_message_stream_chat::{ChatServer, ChatStream, Turn};

/// A store that fails.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub logs: InMemoryLogStore,
    /// How many appends are applied without a reply.
    pub lost_appends: AtomicUsize,
    /// Appends are answered by an error, after the time that a store waits for its database.
    pub hangs: AtomicBool,
    /// The next append panics.
    pub panics: AtomicBool,
    /// Logs cannot be read.
    pub is_unreadable: AtomicBool,
    /// A read that fails never has a reply.
    pub hangs_reads: AtomicBool,
    /// Nothing can be appended.
    pub is_unwritable: AtomicBool,
    /// How many appends fail.
    pub failing_appends: AtomicUsize,
    /// How many reads fail.
    pub failing_reads: AtomicUsize,
    /// Logs have lost their entries.
    pub has_lost_entries: AtomicBool,
    /// How many times a log was read.
    pub reads: AtomicUsize,
}

impl Faults {
    /// Lets all operations fail for this time.
    pub(crate) async fn be_away(&self, time: Duration) {
        let set_away = |is_away| {
            self.is_unreadable.store(is_away, Ordering::SeqCst);
            self.is_unwritable.store(is_away, Ordering::SeqCst);
        };
        set_away(true);
        tokio::time::sleep(time).await;
        set_away(false);
    }

    /// The answer to a read that fails.
    fn failed_read<'a, T: Send + 'a>(&self) -> Answer<'a, T> {
        match self.hangs_reads.load(Ordering::SeqCst) {
            true => Box::pin(pending()),
            false => Box::pin(ready(Err(ChatStoreError::new("no connection")))),
        }
    }
}

impl Intercepts for Faults {
    fn store(&self) -> &dyn LogStore {
        &self.logs
    }

    fn load<'a>(&'a self, load: LoadLog<'a>) -> Answer<'a, Option<LoadedLog>> {
        match self.is_unreadable.load(Ordering::SeqCst) {
            true => self.failed_read(),
            false => self.logs.load(load),
        }
    }

    fn read<'a>(&'a self, read: ReadLogEntries<'a>) -> Answer<'a, Option<LogPage>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        match self.is_unreadable.load(Ordering::SeqCst) || count_down(&self.failing_reads) {
            true => self.failed_read(),
            false if self.has_lost_entries.load(Ordering::SeqCst) => Box::pin(ready(Ok(None))),
            false => self.logs.read(read),
        }
    }

    fn append<'a>(&'a self, append: AppendLog<'a>) -> Answer<'a, AppendResult> {
        assert!(!self.panics.swap(false, Ordering::SeqCst), "the store panics");
        if self.is_unwritable.load(Ordering::SeqCst) || count_down(&self.failing_appends) {
            return Box::pin(ready(Err(ChatStoreError::new("no connection"))));
        }
        Box::pin(async move {
            if self.hangs.load(Ordering::SeqCst) {
                tokio::time::sleep(STORE_TIMEOUT).await;
                return Err(ChatStoreError::new("no reply"));
            }
            let result = self.logs.append(append).await;
            match count_down(&self.lost_appends) {
                true => Err(ChatStoreError::new("no reply")),
                false => result,
            }
        })
    }
}

/// Counts a fault that is left to occur. Returns whether there was one.
fn count_down(left: &AtomicUsize) -> bool {
    let next = |left: usize| left.checked_sub(1);
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).is_ok()
}

const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// A server whose agent says a word, and then waits for a permit.
pub(crate) struct Server {
    pub chats: ChatServer,
    pub faults: Arc<LogDouble<Faults>>,
    pub calls: Arc<AtomicUsize>,
    pub permits: Arc<Semaphore>,
}

impl Server {
    /// Sends a message, and returns the response after its first frames were read.
    pub(crate) async fn begun(&self) -> ChatStream {
        let mut response = post(&self.chats, "m1", "Hi").await;
        let _ = response.next().await.unwrap().unwrap();
        response
    }

    /// Returns another server, and the response as it is read there. A server reads its own logs
    /// from its memory.
    pub(crate) async fn read_elsewhere(&self) -> (ChatServer, ChatStream) {
        let other = self.other();
        let read = follow(&other).await;
        (other, read)
    }

    /// Waits until the agent was called.
    pub(crate) async fn agent_runs(&self) {
        eventually(async || self.calls.load(Ordering::SeqCst) > 0).await;
    }

    /// Returns another server on the same store, whose agent says nothing.
    pub(crate) fn other(&self) -> ChatServer {
        server_of(|_: Turn| stream::empty::<AgentEvent>()).with_store(self.faults.clone())
    }
}

pub(crate) fn server() -> Server {
    let (faults, permits) = (Arc::new(LogDouble::<Faults>::default()), Arc::new(Semaphore::new(0)));
    let (chats, calls) = speaker(&faults, &permits);
    Server { chats, faults, calls, permits }
}

/// Creates a server, and sends it a message.
pub(crate) async fn asked() -> (Server, ChatStream) {
    let server = server();
    let response = post(&server.chats, "m1", "Hi").await;
    (server, response)
}

/// Returns a server whose agent says a word, and then waits for a permit. Returns also how many
/// times the agent was called.
pub(crate) fn speaker(
    store: &Arc<impl LogStore>,
    permits: &Arc<Semaphore>,
) -> (ChatServer, Arc<AtomicUsize>) {
    let calls = Arc::<AtomicUsize>::default();
    let (counted, awaited) = (Arc::clone(&calls), Arc::clone(permits));
    let agent = move |_: Turn| {
        counted.fetch_add(1, Ordering::SeqCst);
        let permits = Arc::clone(&awaited);
        let rest = async move {
            permits.acquire().await.unwrap().forget();
            AgentEvent::text("answer")
        };
        stream::once(async { AgentEvent::text("An ") }).chain(stream::once(rest))
    };
    (server_of(agent).with_store(store.clone()), calls)
}

pub(crate) async fn text_of(response: ChatStream) -> String {
    let text = responses::text_of(response);
    timeout(Duration::from_secs(120), text).await.expect("the response ends")
}
