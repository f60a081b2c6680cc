//! `GET /?events`: a page follows all chats of its user.

use std::collections::VecDeque;
use std::future::{pending, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, StatusCode, header};
use chat_test_support::answers::{self, server_of};
use chat_test_support::log_double::{Answer, Intercepts, LogDouble};
use chat_test_support::test_server::{Client, Host, PRINCIPAL_HEADER};
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use test_support::requests::{self, ada};
use tokio::time::timeout;
use ui_message_stream::approval::Principal;
use ui_message_stream::{AgentEvent, BoxFuture};
use ui_message_stream_chat::store::{
    ChatPage, ChatStoreError, InMemoryLogStore, ListChats, LogStore,
};
use ui_message_stream_chat::{ChatServer, ChatStream, Turn};

/// The events that a page has not read yet.
struct Events {
    frames: BoxStream<'static, String>,
    read: VecDeque<(String, Value)>,
}

impl Events {
    /// Opens the stream of a user, and returns it with the data of its first event.
    async fn open(host: &Host, user: &str, query: &str) -> (Self, Value) {
        let (path, user) = (format!("/api/chat?{query}"), [(PRINCIPAL_HEADER, user)]);
        let response = answers::send(&host.routes, Method::GET, &path, &user, "").await;
        // A browser that may store it reads it twice.
        assert_eq!(response.headers()["cache-control"], "no-store, no-transform");
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
        Self::begin(response.into_body().into_data_stream().map(|frame| frame.unwrap())).await
    }

    async fn of(stream: ChatStream) -> (Self, Value) {
        Self::begin(stream.map(|frame| frame.unwrap())).await
    }

    async fn begin(
        frames: impl futures::Stream<Item = bytes::Bytes> + Send + 'static,
    ) -> (Self, Value) {
        let frames = frames.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()).boxed();
        let mut events = Events { frames, read: VecDeque::new() };
        let (name, first) = events.next().await.unwrap();
        assert_eq!(name, "chats");
        (events, first)
    }

    /// Returns the name and the data of the next event. `None` at the end of the stream.
    async fn next(&mut self) -> Option<(String, Value)> {
        test_support::within_patience(self.next_event()).await
    }

    async fn next_event(&mut self) -> Option<(String, Value)> {
        while self.read.is_empty() {
            let text = self.frames.next().await?;
            for event in text.split_terminator("\n\n").filter(|event| !event.starts_with(':')) {
                let (name, data) = event.split_once('\n').unwrap();
                let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
                self.read.push_back((name.strip_prefix("event: ").unwrap().to_owned(), data));
            }
        }
        self.read.pop_front()
    }

    /// Reads until a chat is in this state.
    async fn until(&mut self, id: &str, is_live: bool, has_questions: bool) -> Value {
        loop {
            let (name, chat) = self.next().await.unwrap();
            assert_eq!((&*name, &chat["id"]), ("chat", &json!(id)), "{chat}");
            if chat["isLive"] == is_live && chat["hasQuestions"] == has_questions {
                return chat;
            }
        }
    }
}

#[tokio::test]
async fn a_page_sees_what_another_page_of_the_user_does_and_nothing_of_another_user() {
    let host = Host::new();
    Client::new("alice", "old").say(&host, "hello").await;
    let (mut events, first) = Events::open(&host, "alice", "events").await;
    assert_eq!(first, host.get("alice", "/api/chat").await.json());
    let (mut of_bob, first) = Events::open(&host, "bob", "events=").await;
    assert_eq!(first, json!({"chats": []}));

    let mut page = Client::new("alice", "new");
    page.say(&host, "delete notes.txt").await;
    let asked = events.until("new", false, true).await;
    assert_eq!(asked["title"], "delete notes.txt");
    assert!(asked["updatedAt"].is_u64(), "{asked}");

    let answered = host.answer_and_hold(&page).await;
    // The call has no result yet.
    let begun = events.until("new", true, true).await;
    host.tools.hold(false);
    page.respond(true);
    page.apply_response(&answered.await.unwrap());
    let ended = events.until("new", false, false).await;
    let version = |chat: &Value| chat["version"].as_u64().unwrap();
    assert!(version(&asked) < version(&begun) && version(&begun) < version(&ended));

    page.say(&host, "thanks").await;
    let mut thanked = ended.clone();
    while version(&thanked) == version(&ended) || thanked["isLive"] == true {
        thanked = events.next().await.unwrap().1;
    }
    let listed = host.get("alice", "/api/chat?limit=1").await.json();
    assert_eq!(listed["chats"][0], thanked);

    host.send("alice", Method::DELETE, "/api/chat/new", Body::empty()).await;
    assert_eq!(events.next().await, Some(("deleted".to_owned(), json!({"id": "new"}))));

    Client::new("bob", "his").say(&host, "hello").await;
    of_bob.until("his", false, false).await;
}

#[tokio::test(start_paused = true)]
async fn a_chat_that_newer_ones_replace_is_not_shown_as_deleted() {
    let host = Host::new();
    let say = async |chat: &str| {
        Client::new("alice", chat).say(&host, chat).await;
        tokio::time::sleep(Duration::from_millis(3)).await;
    };
    for chat in ["a", "b", "c"] {
        say(chat).await;
    }
    let (mut events, first) = Events::open(&host, "alice", "limit=2&events").await;
    assert_eq!((&first["chats"][0]["id"], &first["chats"][1]["id"]), (&json!("c"), &json!("b")));
    say("d").await;
    events.until("d", false, false).await;
    host.send("alice", Method::DELETE, "/api/chat/c", Body::empty()).await;
    assert_eq!(events.next().await.unwrap(), ("deleted".to_owned(), json!({"id": "c"})));
    // It is among the newest two again.
    events.until("b", false, false).await;
}

#[tokio::test]
async fn the_events_are_refused_as_the_list_is() {
    let host = Host::new();
    let refused = answers::send(&host.routes, Method::GET, "/api/chat?events", &[], "").await;
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    for (query, expected) in [
        ("events&limit=0", "limit: expected a whole number from 1 to 100"),
        ("events&after=1000-Y2hhdCAx", "after: cannot be combined with `events`"),
        ("search=x&events", "search: cannot be combined with `events`"),
    ] {
        let answer = host.get("alice", &format!("/api/chat?{query}")).await;
        assert_eq!((answer.status, &*answer.text), (StatusCode::BAD_REQUEST, expected), "{query}");
    }
}

/// A store whose lists are counted, may fail, and may give no hints.
#[derive(Debug, Default)]
struct Lists {
    store: InMemoryLogStore,
    reads: AtomicUsize,
    fails: AtomicBool,
    panics: AtomicBool,
    gives_no_hints: AtomicBool,
}

impl Intercepts for Lists {
    fn store(&self) -> &dyn LogStore {
        &self.store
    }

    fn list<'a>(&'a self, owner: &'a Principal, list: ListChats<'a>) -> Answer<'a, ChatPage> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics.load(Ordering::SeqCst), "the store of this test panics");
        match self.fails.load(Ordering::SeqCst) {
            true => Box::pin(ready(Err(ChatStoreError::new("no connection")))),
            false => self.store.list(owner, list),
        }
    }

    fn changed_list<'a>(&'a self, owner: &'a Principal) -> BoxFuture<'a, ()> {
        match self.gives_no_hints.load(Ordering::SeqCst) {
            true => Box::pin(pending()),
            false => self.store.changed_list(owner),
        }
    }
}

fn server() -> (ChatServer, Arc<LogDouble<Lists>>) {
    let store = Arc::new(LogDouble::<Lists>::default());
    let agent = |_: Turn| stream::iter([AgentEvent::text("Hi")]);
    (server_of(agent).with_store(store.clone()), store)
}

async fn say(chats: &ChatServer, chat: &str) {
    chats.complete_response(&ada(), requests::say(chat, "m1", "Hi")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_responses_of_a_user_share_each_read_of_the_list_and_nothing_reads_it_after_them() {
    let (chats, store) = server();
    say(&chats, "c").await;
    let open = async || Events::of(chats.follow(&ada(), 20).unwrap()).await.0;
    let mut pages = Vec::new();
    for _ in 0..10 {
        pages.push(open().await);
    }
    assert_eq!(store.reads.load(Ordering::SeqCst), 1);
    chats.delete(&ada(), &"c".into()).await.unwrap();
    for page in &mut pages {
        assert_eq!(page.next().await.unwrap().0, "deleted");
    }
    assert_eq!(store.reads.load(Ordering::SeqCst), 2);
    drop(pages);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(store.reads.load(Ordering::SeqCst), 2);
    drop(open().await);
    assert_eq!(store.reads.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn without_hints_a_change_is_seen_and_comments_keep_a_silent_response_open() {
    let (chats, store) = server();
    store.gives_no_hints.store(true, Ordering::SeqCst);
    let (mut events, _) = Events::of(chats.follow(&ada(), 20).unwrap()).await;
    say(&chats, "c").await;
    events.until("c", false, false).await;
    assert_eq!(events.frames.next().await.unwrap(), ": keep-alive\n\n");
}

#[tokio::test(start_paused = true)]
async fn a_response_survives_a_store_that_fails_for_a_while_and_is_cut_off_after_30_seconds() {
    for (seconds, is_cut_off) in [(20, false), (40, true)] {
        let (chats, store) = server();
        let mut frames = chats.follow(&ada(), 20).unwrap();
        frames.next().await.unwrap().unwrap();
        store.fails.store(true, Ordering::SeqCst);
        say(&chats, "c").await;
        let frames = tokio::spawn(async move {
            let changed = frames.by_ref().skip_while(|frame| {
                let is_comment = frame.as_ref().is_ok_and(|frame| frame.starts_with(b":"));
                ready(is_comment)
            });
            let changed = Box::pin(changed).next().await.unwrap();
            (changed.is_err(), frames)
        });
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        store.fails.store(false, Ordering::SeqCst);
        let (is_error, mut frames) =
            timeout(Duration::from_secs(60), frames).await.unwrap().unwrap();
        assert_eq!(is_error, is_cut_off);
        if is_cut_off {
            assert!(frames.next().await.is_none());
        }
        // The next response begins again.
        let (_, first) = Events::of(chats.follow(&ada(), 20).unwrap()).await;
        assert_eq!(first["chats"][0]["id"], "c");
    }
}

#[tokio::test(start_paused = true)]
async fn responses_with_other_limits_share_the_reads_and_see_as_many_chats_as_they_ask_for() {
    let (chats, store) = server();
    for chat in ["a", "b", "c"] {
        say(&chats, chat).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let reads = store.reads.load(Ordering::SeqCst);
    let ids = |page: &Value| -> Vec<String> {
        let ids = page["chats"].as_array().unwrap().iter();
        ids.map(|chat| chat["id"].as_str().unwrap().to_owned()).collect()
    };
    let (mut all, first) = Events::of(chats.follow(&ada(), 20).unwrap()).await;
    assert_eq!(ids(&first), ["c", "b", "a"]);
    let (mut two, first) = Events::of(chats.follow(&ada(), 2).unwrap()).await;
    assert_eq!((ids(&first), first["after"].is_string()), (vec!["c".into(), "b".into()], true));
    assert_eq!(store.reads.load(Ordering::SeqCst) - reads, 1);
    chats.delete(&ada(), &"c".into()).await.unwrap();
    assert_eq!(all.next().await.unwrap(), ("deleted".into(), json!({"id": "c"})));
    assert_eq!(two.next().await.unwrap(), ("deleted".into(), json!({"id": "c"})));
    assert_eq!(two.next().await.unwrap().1["id"], "a");
}

#[tokio::test(start_paused = true)]
async fn a_response_ends_after_15_minutes_so_that_its_client_is_authenticated_again() {
    let (chats, _) = server();
    let mut frames = chats.follow(&ada(), 20).unwrap();
    let begun = tokio::time::Instant::now();
    while frames.next().await.is_some() {}
    assert_eq!(begun.elapsed().as_secs(), 15 * 60);
}

#[test]
fn a_response_that_is_polled_outside_of_a_runtime_panics_and_locks_nothing() {
    let (chats, _) = server();
    for _ in 0..2 {
        let mut frames = chats.follow(&ada(), 20).unwrap();
        let next = std::panic::AssertUnwindSafe(|| futures::executor::block_on(frames.next()));
        assert!(std::panic::catch_unwind(next).is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn responses_are_cut_off_when_reading_the_list_panics_and_the_next_one_begins_again() {
    let (chats, store) = server();
    let mut frames = chats.follow(&ada(), 20).unwrap();
    frames.next().await.unwrap().unwrap();
    store.panics.store(true, Ordering::SeqCst);
    say(&chats, "c").await;
    let frames =
        frames.filter(|frame| ready(!matches!(frame, Ok(bytes) if bytes.starts_with(b":"))));
    assert!(Box::pin(frames).next().await.unwrap().is_err());
    store.panics.store(false, Ordering::SeqCst);
    let (_, first) = Events::of(chats.follow(&ada(), 20).unwrap()).await;
    assert_eq!(first["chats"][0]["id"], "c");
}

#[tokio::test(start_paused = true)]
async fn a_response_ends_with_its_server_and_does_not_delay_it() {
    let grace = Duration::from_secs(20);
    let (chats, _) = server();
    let (mut events, _) = Events::of(chats.follow(&ada(), 20).unwrap()).await;
    assert_eq!(timeout(grace / 2, chats.shut_down(grace)).await, Ok(0));
    assert_eq!(events.next().await, None);
}
