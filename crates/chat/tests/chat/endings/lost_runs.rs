//! A request that is delivered again gets an answer also if the run of the first one was lost, and no
//! second run while the first one is active.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use chat_test_support::answers::stored;
use chat_test_support::log_double::{Answer, Intercepts, LogDouble};
use futures::{FutureExt, StreamExt};
use serde_json::{Value, json};
use test_support::requests::{ada, edit, request, send, user_message};
use test_support::responses::text_of;
use test_support::{eventually, within_patience};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use ui_message_stream::message::AnswerEnd;
use ui_message_stream::{ChatRequest, UiMessage};
use ui_message_stream_chat::store::ChatStoreError;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, InMemoryLogStore, LoadLog, LogKey, LogStore, PutSnapshot,
    ReadLogEntries,
};
use ui_message_stream_chat::{ChatError, ChatServer};

use super::faults::speaker;

fn submit(messages: &[Value]) -> ChatRequest {
    send("chat", &json!(messages))
}

fn regenerate(messages: &[Value]) -> ChatRequest {
    request(&json!({"id": "chat", "messages": messages, "trigger": "regenerate-message"}))
}

/// A server on a store, whose agent counts its calls, says a word and waits for a permit.
struct Server {
    chats: ChatServer,
    calls: Arc<AtomicUsize>,
    permits: Arc<Semaphore>,
}

fn server(store: &Arc<impl LogStore>) -> Server {
    let permits = Arc::new(Semaphore::new(0));
    let (chats, calls) = speaker(store, &permits);
    Server { chats, calls, permits }
}

impl Server {
    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    async fn called(&self) {
        eventually(async || self.calls() > 0).await;
    }

    /// Posts a request and returns the complete message.
    async fn post(&self, request: &ChatRequest) -> Result<Option<UiMessage>, ChatError> {
        let response = self.chats.complete_response(&ada(), request.clone()).await;
        response.map(|response| response.message)
    }
}

/// A store with a run that was lost with its server before it called the model.
async fn store_with_lost_run(request: ChatRequest) -> Arc<LogDouble<Waits>> {
    let store = Waits::new(0);
    let lost = server(&store);
    tokio::spawn(async move { lost.post(&request).await });
    store.waits().await;
    // The lease has 10 seconds.
    tokio::time::sleep(Duration::from_secs(11)).await;
    store
}

/// Another reader or load would resume it.
#[tokio::test(start_paused = true)]
async fn a_run_that_was_lost_7_days_ago_ends_without_a_request() {
    let store = store_with_lost_run(submit(&[user_message("m1", "Hi")])).await;
    let server = server(&store);
    let _routes: axum::Router = ui_message_stream_chat::axum::chat_routes(server.chats.clone());
    let key = LogKey { owner: ada(), chat: "chat".into() };
    let is_live = async || {
        let load = LoadLog { key: &key, has_frames: false, has_messages: false };
        store.load(load).await.unwrap().unwrap().head.live_run.is_some()
    };
    tokio::time::sleep(Duration::from_secs(7 * 24 * 60 * 60 - 60)).await;
    assert!(is_live().await);
    tokio::time::sleep(Duration::from_secs(3 * 60)).await;
    assert!(!is_live().await);
    assert_eq!(server.calls(), 0);
    assert_eq!(stored(&server.chats).await.answer_end(), Some(AnswerEnd::Interrupted));
}

/// A store that stores no snapshot while `hang` is set: the server waits for it.
#[derive(Debug, Default)]
struct HangingSnapshots {
    store: InMemoryLogStore,
    hang: AtomicBool,
}

impl Intercepts for HangingSnapshots {
    fn store(&self) -> &dyn LogStore {
        &self.store
    }

    fn put_snapshot<'a>(&'a self, put: PutSnapshot<'a>) -> Answer<'a, bool> {
        match self.hang.load(Ordering::SeqCst) {
            true => Box::pin(std::future::pending()),
            false => self.store.put_snapshot(put),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_edited_away_goes_also_if_the_server_was_lost_before_it_stored_a_snapshot() {
    let store = Arc::<LogDouble<HangingSnapshots>>::default();
    let lost = server(&store);
    lost.permits.add_permits(4);
    lost.post(&submit(&[user_message("m1", "A secret")])).await.unwrap();
    store.hang.store(true, Ordering::SeqCst);
    lost.post(&edit("chat", "m1", "Hello")).await.unwrap();
    let key = LogKey { owner: ada(), chat: "chat".into() };
    let holds_secret = async || {
        let load = LoadLog { key: &key, has_frames: true, has_messages: true };
        let snapshot = store.load(load).await.unwrap().unwrap().snapshot.unwrap();
        snapshot.messages.iter().any(|message| message.contains("secret"))
    };
    assert!(holds_secret().await);
    drop(lost);
    store.hang.store(false, Ordering::SeqCst);
    let other = server(&store);
    let _routes: axum::Router = ui_message_stream_chat::axum::chat_routes(other.chats.clone());
    tokio::time::sleep(Duration::from_secs(12 * 60)).await;
    assert!(!holds_secret().await);
    let epoch = store.load(LoadLog { key: &key, has_frames: false, has_messages: false });
    let epoch = epoch.await.unwrap().unwrap().head.epoch;
    let (position, max_bytes, is_reader) = (1, usize::MAX, false);
    let read = ReadLogEntries { key: &key, epoch, position, max_bytes, is_reader };
    assert!(store.read(read).await.unwrap().is_none(), "the entries are kept");
    assert_eq!(stored(&other.chats).await.messages.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_run_was_lost_with_its_server_begins_another_run() {
    for request in [submit, regenerate].map(|request| request(&[user_message("m1", "Hi")])) {
        let store = store_with_lost_run(request.clone()).await;
        let server = server(&store);
        server.permits.add_permits(2);
        let message = server.post(&request).await.unwrap().unwrap();
        let chat = stored(&server.chats).await;
        assert_eq!((chat.messages.len(), &chat.messages[1]), (2, &message));
        let again = server.post(&submit(&[user_message("m1", "Hi")])).await.unwrap();
        assert_eq!((again, server.calls()), (Some(message), 1));
    }
}

/// Its response could not be the last message.
#[tokio::test(start_paused = true)]
async fn a_lost_run_is_not_repeated_if_other_messages_follow() {
    let store = store_with_lost_run(submit(&[user_message("m1", "Hi")])).await;
    let server = server(&store);
    server.permits.add_permits(2);
    server.post(&submit(&[user_message("m1", "Hi"), user_message("m2", "Hello?")])).await.unwrap();
    let before = stored(&server.chats).await;
    let response = server.post(&submit(&[user_message("m1", "Hi")])).await;
    assert!(matches!(response, Err(ChatError::AlreadyReceived { .. })), "{response:?}");
    assert_eq!((stored(&server.chats).await, server.calls()), (before, 1));
}

#[tokio::test]
async fn a_request_that_reaches_another_server_while_its_response_is_written_calls_no_model() {
    let store = Arc::new(InMemoryLogStore::new());
    let (first, second) = (server(&store), server(&store));
    let question = [user_message("m1", "Hi")];
    for request in [submit(&question), regenerate(&question)] {
        let response = first.chats.stream_response(&ada(), request.clone()).await.unwrap();
        let again = second.chats.stream_response(&ada(), request).await.unwrap();
        first.permits.add_permits(1);
        let (response, again) = futures::join!(text_of(response), text_of(again));
        assert!(response.contains("answer"), "{response}");
        assert_eq!(response, again);
    }
    assert_eq!((first.calls(), second.calls()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_run_renews_its_lease_and_stops_if_another_server_discards_its_response() {
    let store = Arc::new(InMemoryLogStore::new());
    let (first, second) = (server(&store), server(&store));
    let request = submit(&[user_message("m1", "Hi")]);
    let response = first.chats.stream_response(&ada(), request.clone()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(25)).await;
    // The lease of 10 seconds has not passed: a repetition reads the run.
    let again = second.chats.stream_response(&ada(), request).await.unwrap();

    second.permits.add_permits(1);
    let edited = second.post(&edit("chat", "m1", "Hello")).await.unwrap().unwrap();
    for response in [response, again] {
        let frames = timeout(Duration::from_secs(30), response.collect::<Vec<_>>()).await.unwrap();
        assert!(format!("{frames:?}").contains("abort"), "{frames:?}");
    }
    assert_eq!((first.calls(), second.calls()), (1, 1));
    let chat = stored(&first.chats).await;
    assert_eq!((chat.messages.len(), &chat.messages[1]), (2, &edited));
}

/// A store in which the append with this number waits after the commit. Appends can fail.
#[derive(Debug)]
struct Waits {
    store: InMemoryLogStore,
    number: usize,
    is_failing: AtomicBool,
    appends: AtomicUsize,
    waiting: AtomicUsize,
    permits: Semaphore,
}

impl Waits {
    fn new(number: usize) -> Arc<LogDouble<Self>> {
        Arc::new(LogDouble(Waits {
            store: InMemoryLogStore::new(),
            number,
            is_failing: AtomicBool::new(false),
            appends: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            permits: Semaphore::new(0),
        }))
    }

    async fn wait(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        drop(self.permits.acquire().await.unwrap());
    }

    async fn waits(&self) {
        eventually(async || self.waiting.load(Ordering::SeqCst) > 0).await;
    }
}

impl Intercepts for Waits {
    fn store(&self) -> &dyn LogStore {
        &self.store
    }

    fn append<'a>(&'a self, append: AppendLog<'a>) -> Answer<'a, AppendResult> {
        Box::pin(async move {
            let waits = self.appends.fetch_add(1, Ordering::SeqCst) == self.number;
            if self.is_failing.load(Ordering::SeqCst) {
                return Err(ChatStoreError::new("no connection"));
            }
            let result = self.store.append(append).await;
            if waits {
                self.wait().await;
            }
            result
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_chat_cannot_be_written_ends() {
    let store = Waits::new(usize::MAX);
    let server = server(&store);
    let request = submit(&[user_message("m1", "Hi")]);
    let response = server.chats.stream_response(&ada(), request).await.unwrap();
    server.called().await;
    store.is_failing.store(true, Ordering::SeqCst);
    drop(timeout(Duration::from_secs(55), response.collect::<Vec<_>>()).await.unwrap());
    assert_eq!(server.calls(), 1);
}

#[tokio::test]
async fn a_client_that_disconnects_while_its_message_is_saved_gets_the_answer_later() {
    let store = Waits::new(0);
    let server = server(&store);
    server.permits.add_permits(2);
    let request = submit(&[user_message("m1", "Hi")]);
    {
        tokio::select! {
            response = server.post(&request) => panic!("the save waits: {response:?}"),
            () = store.waits() => {}
        }
    }
    let again = server.post(&request).now_or_never();
    assert!(!matches!(again, Some(Ok(_))), "{again:?}");
    store.permits.add_permits(1);
    let again = within_patience(server.post(&request)).await;
    assert_eq!(again.unwrap(), stored(&server.chats).await.messages.get(1).cloned());
    assert_eq!(server.calls(), 1);
}

#[tokio::test]
async fn a_regeneration_that_was_stopped_can_be_requested_again() {
    let server = server(&Arc::new(InMemoryLogStore::new()));
    let question = [user_message("m1", "Hi")];
    let request = regenerate(&question);
    let stopped = server.chats.stream_response(&ada(), request.clone()).await.unwrap();
    server.called().await;
    let calls = server.calls();
    server.chats.stop(&ada(), &"chat".into()).await.unwrap();
    let again = server.chats.stream_response(&ada(), request).await.unwrap();
    server.permits.add_permits(1);
    drop(stopped.collect::<Vec<_>>().await);
    drop(again.collect::<Vec<_>>().await);
    let chat = stored(&server.chats).await;
    let message = serde_json::to_string(&chat.messages[1]).unwrap();
    assert!(chat.messages.len() == 2 && message.contains("answer"), "{message}");
    assert_eq!(server.calls(), calls + 1);
}
