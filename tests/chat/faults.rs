//! Stores that fail, lose replies or panic, and servers on them.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream::chat::log::{
    AppendEntries, AppendResult, BeginResult, BeginRun, LogPage, ReadLog, TakeResult, TakeRun,
};
use ui_message_stream::chat::store::{
    ChatPage, ChatStore, ChatStoreError, InMemoryChatStore, InMemoryRunStore, ListChats, RunStore,
    RunStoreError, SaveChat, SaveResult, VersionedChat,
};
use ui_message_stream::chat::{ChatServer, ChatStream, Turn};
use ui_message_stream::id::ChatId;
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, BoxFuture, ChatRequest};

/// Stores of chats and of logs that fail.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub chats: InMemoryChatStore,
    pub runs: InMemoryRunStore,
    /// How many saves are applied without a reply.
    pub lost_saves: AtomicUsize,
    /// Saves are answered by an error, after the time that a store waits for its database.
    pub hangs: AtomicBool,
    /// The next load panics.
    pub panics: AtomicBool,
    /// Logs cannot be read.
    pub is_unreadable: AtomicBool,
    /// A read of a log that fails never has a reply.
    pub hangs_reads: AtomicBool,
    /// No run can be taken, and nothing can be appended to logs.
    pub is_unwritable: AtomicBool,
    /// How many takes fail.
    pub failing_takes: AtomicUsize,
    /// How many reads of whole logs fail.
    pub failing_reads: AtomicUsize,
    /// Logs have lost all entries but the first one.
    pub has_lost_entries: AtomicBool,
    /// How many times a log was read.
    pub log_reads: AtomicUsize,
}

impl Faults {
    /// Lets all operations of runs fail for this time.
    pub(crate) async fn be_away(&self, time: Duration) {
        let set_away = |is_away| {
            self.is_unreadable.store(is_away, Ordering::SeqCst);
            self.is_unwritable.store(is_away, Ordering::SeqCst);
        };
        set_away(true);
        tokio::time::sleep(time).await;
        set_away(false);
    }
}

impl ChatStore for Faults {
    fn load<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
    ) -> BoxFuture<'a, Result<Option<VersionedChat>, ChatStoreError>> {
        assert!(!self.panics.swap(false, Ordering::SeqCst), "the store panics");
        self.chats.load(owner, id)
    }

    fn save<'a>(&'a self, save: SaveChat<'a>) -> BoxFuture<'a, Result<SaveResult, ChatStoreError>> {
        Box::pin(async move {
            if self.hangs.load(Ordering::SeqCst) {
                tokio::time::sleep(STORE_TIMEOUT).await;
                return Err(ChatStoreError::new("no reply"));
            }
            let result = self.chats.save(save).await;
            match count_down(&self.lost_saves) {
                true => Err(ChatStoreError::new("no reply")),
                false => result,
            }
        })
    }

    fn list<'a>(
        &'a self,
        owner: &'a Principal,
        list: ListChats<'a>,
    ) -> BoxFuture<'a, Result<ChatPage, ChatStoreError>> {
        self.chats.list(owner, list)
    }

    fn delete<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        self.chats.delete(owner, id, revision)
    }
}

impl RunStore for Faults {
    fn begin<'a>(
        &'a self,
        begin: BeginRun<'a>,
    ) -> BoxFuture<'a, Result<BeginResult, RunStoreError>> {
        self.runs.begin(begin)
    }

    fn append<'a>(
        &'a self,
        append: AppendEntries<'a>,
    ) -> BoxFuture<'a, Result<AppendResult, RunStoreError>> {
        match self.is_unwritable.load(Ordering::SeqCst) {
            true => Box::pin(async { Err(RunStoreError::new("no connection")) }),
            false => self.runs.append(append),
        }
    }

    fn read<'a>(
        &'a self,
        read: ReadLog<'a>,
    ) -> BoxFuture<'a, Result<Option<LogPage>, RunStoreError>> {
        self.log_reads.fetch_add(1, Ordering::SeqCst);
        let is_unreadable = self.is_unreadable.load(Ordering::SeqCst);
        let is_of_whole_log = read.after == 0 && !read.is_reader;
        match is_unreadable || is_of_whole_log && count_down(&self.failing_reads) {
            true if self.hangs_reads.load(Ordering::SeqCst) => Box::pin(pending()),
            true => Box::pin(async { Err(RunStoreError::new("no connection")) }),
            false if self.has_lost_entries.load(Ordering::SeqCst) => Box::pin(async move {
                let page = self.runs.read(read).await?;
                let left = 1_usize.saturating_sub(read.after.try_into().unwrap_or(usize::MAX));
                Ok(page.map(|page| LogPage {
                    entries: page.entries.into_iter().take(left).collect(),
                    length: 1,
                    ..page
                }))
            }),
            false => self.runs.read(read),
        }
    }

    fn take<'a>(&'a self, take: TakeRun<'a>) -> BoxFuture<'a, Result<TakeResult, RunStoreError>> {
        match self.is_unwritable.load(Ordering::SeqCst) || count_down(&self.failing_takes) {
            true => Box::pin(async { Err(RunStoreError::new("no connection")) }),
            false => self.runs.take(take),
        }
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
    pub faults: Arc<Faults>,
    pub calls: Arc<AtomicUsize>,
    pub permits: Arc<Semaphore>,
}

impl Server {
    /// Returns another server on the same stores, whose agent says nothing.
    pub(crate) fn other(&self) -> ChatServer {
        let agent = |_: Turn| stream::empty::<AgentEvent>();
        let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox));
        chats.with_store(self.faults.clone()).with_run_store(self.faults.clone())
    }
}

pub(crate) fn server() -> Server {
    let faults = Arc::new(Faults::default());
    let (calls, permits) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (counted, awaited) = (Arc::clone(&calls), Arc::clone(&permits));
    let agent = move |_: Turn| {
        counted.fetch_add(1, Ordering::SeqCst);
        let permits = Arc::clone(&awaited);
        let rest = async move {
            permits.acquire().await.unwrap().forget();
            AgentEvent::text("answer")
        };
        stream::once(async { AgentEvent::text("An ") }).chain(stream::once(rest))
    };
    let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox));
    let chats = chats.with_store(faults.clone()).with_run_store(faults.clone());
    Server { chats, faults, calls, permits }
}

pub(crate) fn ada() -> Principal {
    Principal::new("ada")
}

pub(crate) fn post(id: &str, text: &str) -> ChatRequest {
    let message: Value =
        json!({"id": id, "role": "user", "parts": [{"type": "text", "text": text}]});
    let body = json!({"id": "chat", "message": message}).to_string();
    ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap()
}

pub(crate) async fn text_of(response: ChatStream) -> String {
    let frames = response.map(|frame| frame.unwrap().to_vec()).collect::<Vec<_>>();
    let frames = timeout(Duration::from_secs(120), frames).await.expect("the response ends");
    String::from_utf8(frames.concat()).unwrap()
}
