//! The store of logs in memory: how many chats and bytes it keeps, and what it lists. What a turn writes.

use std::error::Error;
use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use chat_test_support::log_double::{Answer, Intercepts, LogDouble};
use chat_test_support::store_requests::{
    EPOCH, adas, append_at, appended, control, create, creation, end, key as key_of, load, put,
    read_from,
};
use futures::future::poll_immediate;
use futures::{StreamExt, stream};
use serde_json::json;
use test_support::external_processes::say;
use test_support::requests::ada;
use test_support::thread_subscriber::captured;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal, UnixMillis};
use ui_message_stream::message::Role;
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, ChatRequest};
use ui_message_stream_chat::ChatLimits;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, InMemoryLogStore, ListChats, ListedChat, LiveRunChange, LoadLog,
    LoadedLog, LogKey, LogStore, PutSnapshot, StoredEntry, UserLimits,
};
use ui_message_stream_chat::{ChatError, ChatServer, Turn};

/// A store that counts the bytes that are written to it, and how often a chat is loaded.
#[derive(Debug, Default)]
struct Counted {
    store: InMemoryLogStore,
    written: AtomicUsize,
    loads: AtomicUsize,
}

impl Intercepts for Counted {
    fn store(&self) -> &dyn LogStore {
        &self.store
    }

    fn load<'a>(&'a self, load: LoadLog<'a>) -> Answer<'a, Option<LoadedLog>> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        self.store.load(load)
    }

    fn append<'a>(&'a self, append: AppendLog<'a>) -> Answer<'a, AppendResult> {
        let bytes = append.entries.iter().map(|entry| entry.bytes.len()).sum();
        self.written.fetch_add(bytes, Ordering::Relaxed);
        self.store.append(append)
    }

    fn put_snapshot<'a>(&'a self, put: PutSnapshot<'a>) -> Answer<'a, bool> {
        let changed: usize = put.changed.iter().map(String::len).sum();
        self.written.fetch_add(put.head.len() + changed, Ordering::Relaxed);
        self.store.put_snapshot(put)
    }
}

/// A turn with a constant agent, of a client that sends its last message only.
#[tokio::test]
async fn what_a_turn_writes_does_not_depend_on_the_length_of_the_chat() {
    let mut costs = Vec::new();
    for length in [10, 1_000, 5_000] {
        let (store, ada) = (Arc::<LogDouble<Counted>>::default(), Principal::new("ada"));
        let agent = |_: Turn| stream::iter([AgentEvent::text("An answer.")]);
        let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox));
        let limits = ChatLimits::default().with_max_chat_messages(usize::MAX);
        let chats = chats.with_limits(limits).with_store(store.clone());
        let message = |id: &str, role: &str| {
            let parts = json!([{"type": "text", "text": "A message of a usual length."}]);
            json!({"id": id, "role": role, "parts": parts})
        };
        let answer = async |body: serde_json::Value| {
            let limits = Limits::default().with_max_messages(usize::MAX);
            let limits = limits.with_max_parts(usize::MAX).with_max_nodes(usize::MAX);
            let request = ChatRequest::parse(body.to_string().as_bytes(), &limits).unwrap();
            let task = chats.stream_response(&ada, request).await.unwrap();
            drop(task.collect::<Vec<_>>().await);
            // The state is stored after the end.
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        // The server imports the history.
        let roles = ["user", "assistant"].into_iter().cycle();
        let history = (1..length).zip(roles).map(|(at, role)| message(&format!("m{at:05}"), role));
        let history: Vec<_> = history.collect();
        answer(json!({"id": "chat", "messages": history})).await;
        store.written.store(0, Ordering::Relaxed);
        store.loads.store(0, Ordering::Relaxed);
        answer(json!({"id": "chat", "message": message("new", "user")})).await;
        let cost = (store.written.load(Ordering::Relaxed), store.loads.load(Ordering::Relaxed));
        let stored = chats.chat(&ada, &"chat".into()).await.unwrap();
        assert_eq!(stored.messages.len(), length + 2);
        assert_eq!(stored.messages.last().unwrap().role, Role::Assistant);
        costs.push(cost);
    }
    say(&format!("bytes that a turn writes, and loads, at 10, 1 000, 5 000 messages: {costs:?}"));
    assert!(costs.iter().all(|cost| cost.0.abs_diff(costs[0].0) <= 50), "{costs:?}");
    assert!(costs.iter().all(|cost| cost.1 == 0), "this server has read the chat: {costs:?}");
}

/// A store that refuses the first 100 000 appends as concurrent changes.
#[derive(Debug, Default)]
struct AlwaysConflicts(InMemoryLogStore, AtomicUsize);

impl Intercepts for AlwaysConflicts {
    fn store(&self) -> &dyn LogStore {
        &self.0
    }

    fn append<'a>(&'a self, append: AppendLog<'a>) -> Answer<'a, AppendResult> {
        match self.1.fetch_add(1, Ordering::Relaxed) < 100_000 {
            true => Box::pin(ready(Ok(AppendResult::Conflict))),
            false => self.0.append(append),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_to_a_store_that_always_reports_a_conflict_ends_with_an_error() {
    let agent = |_: Turn| stream::iter([AgentEvent::text("Hello")]);
    let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox));
    let chats = chats.with_store(Arc::new(LogDouble::<AlwaysConflicts>::default()));
    let body = br#"{"id": "chat", "messages": [{"id": "m", "role": "user", "parts": []}]}"#;
    let request = ChatRequest::parse(body, &Limits::default());
    let response = chats.stream_response(&Principal::anonymous(), request.unwrap()).await;
    assert!(matches!(response, Err(ChatError::Store(_))), "{response:?}");
}

fn key(owner: &str, chat: impl ToString) -> LogKey {
    key_of(&Principal::new(owner), &chat.to_string())
}

/// A control entry with so many bytes.
fn entry(bytes: usize) -> [StoredEntry; 1] {
    [control(&"x".repeat(bytes))]
}

async fn is_stored(store: &InMemoryLogStore, owner: &str, chat: impl ToString) -> bool {
    load(store, &key(owner, chat)).await.is_some()
}

#[tokio::test]
async fn a_search_and_a_page_have_chats_that_are_not_read_together() {
    let store = InMemoryLogStore::with_test_clock(UnixMillis(0));
    // Chats of the same time are in the order of their ids.
    let chats: Vec<_> = (0..250).map(|number| format!("{number:03}")).collect();
    for chat in &chats {
        create(&store, &adas(chat)).await;
    }
    for chat in ["000", "130", "249"] {
        assert!(store.rename(&adas(chat), "Found").await.unwrap());
    }
    let listed = async |limit, search| {
        let list = ListChats { limit, after: None, search };
        let page = store.list(&ada(), list).await.unwrap();
        let ids: Vec<_> = page.chats.iter().map(|chat| chat.id.to_string()).collect();
        (ids, page.next.is_some())
    };
    let found = ["249", "130", "000"].map(str::to_owned);
    assert_eq!(listed(3, Some("found")).await, (found.to_vec(), false));
    assert_eq!(listed(2, Some("found")).await, (found[..2].to_vec(), true));
    let newest: Vec<_> = chats.into_iter().rev().take(220).collect();
    assert_eq!(listed(220, None).await, (newest, true));
}

#[tokio::test]
async fn of_the_runs_that_have_ended_those_with_too_many_bytes_are_forgotten_first_to_last() {
    let store = InMemoryLogStore::with_test_clock(UnixMillis(0)).with_max_ended_bytes(25_000);
    let (run, large) = ("run".into(), entry(10_000));
    let keys = ["first", "second", "third"].map(|chat| key("alice", chat));
    for key in &keys {
        let live_run = LiveRunChange::Begins(&run);
        appended(&store, AppendLog { live_run, ..creation(key, &large) }).await;
    }
    let mut kept = Vec::new();
    for key in &keys {
        end(&store, key, 1).await;
        assert!(put(&store, key, 2, &[]).await);
        assert!(store.sweep().await.unwrap().lost_runs.is_empty());
        let mut are_kept = Vec::new();
        for key in &keys {
            are_kept.push(read_from(&store, key, 0).await.is_some());
        }
        kept.push(are_kept);
    }
    assert_eq!(kept, [[true, true, true], [true, true, true], [false, true, true]]);
}

#[tokio::test]
async fn a_reader_is_woken_by_an_append_and_by_the_deletion_of_the_chat() {
    let (store, key) = (InMemoryLogStore::new(), key("alice", "chat"));
    create(&store, &key).await;
    let mut waiting = pin!(store.changed(&key, 1));
    assert!(poll_immediate(&mut waiting).await.is_none());
    appended(&store, append_at(&key, 1, &entry(1))).await;
    waiting.await;
    let mut waiting = pin!(store.changed(&key, 2));
    assert!(poll_immediate(&mut waiting).await.is_none());
    assert!(store.delete(&key, EPOCH, 2).await.unwrap());
    waiting.await;
    // And later waits do not begin.
    store.changed(&key, 2).await;
}

/// Creates a chat of a user who may have so many.
async fn create_of(
    store: &InMemoryLogStore,
    key: &LogKey,
    asks: bool,
    chats: usize,
) -> AppendResult {
    let listed = Some(ListedChat { title: "", has_questions: asks });
    let limits = UserLimits { chats, runs: 9, unread: Duration::from_secs(1) };
    store.append(AppendLog { listed, limits, ..creation(key, &entry(1)) }).await.unwrap()
}

#[tokio::test]
async fn too_many_chats_of_a_user_remove_the_oldest_own_one_without_questions() {
    let (log, _subscription) = captured();
    // Chats of the same time are removed in the order of their ids.
    let store = InMemoryLogStore::with_test_clock(UnixMillis(0));
    for number in 0..100 {
        create(&store, &key("bob", number)).await;
    }
    let _ = create_of(&store, &key("alice", "asking"), true, 9_999).await;
    for number in 0..1_001 {
        store.set_test_time(UnixMillis(number));
        let created = create_of(&store, &key("alice", number), false, 400).await;
        assert!(matches!(created, AppendResult::Appended { .. }));
    }
    for number in 0..100 {
        assert!(is_stored(&store, "bob", number).await, "bob's chat {number}");
    }
    assert!(is_stored(&store, "alice", "asking").await);
    assert!(!is_stored(&store, "alice", 601).await);
    assert!(is_stored(&store, "alice", 602).await, "399 of these chats are kept");
    assert!(is_stored(&store, "alice", 1_000).await);
    assert_eq!(log.text().matches("a chat was removed from memory").count(), 1_002 - 400);
    assert!(log.text().contains(r#"limit="max_user_chats""#), "{}", log.text());
}

#[tokio::test]
async fn a_user_whose_chats_all_have_questions_may_begin_no_further_one() {
    let store = InMemoryLogStore::new();
    for number in 0..3 {
        let _ = create_of(&store, &key("alice", number), true, 3).await;
    }
    let refused = create_of(&store, &key("alice", 3), true, 3).await;
    assert_eq!(refused, AppendResult::TooManyChats);
    assert!(is_stored(&store, "alice", 0).await && !is_stored(&store, "alice", 3).await);
}

#[tokio::test]
async fn the_bytes_of_a_user_and_of_the_store_are_bounded() {
    let store = InMemoryLogStore::with_test_clock(UnixMillis(0));
    let store = store.with_max_user_bytes(40_000).with_max_store_bytes(60_000);
    let mut time = 0;
    let mut create = async |owner: &str, chat: usize, bytes: usize| {
        time += 1;
        store.set_test_time(UnixMillis(time));
        appended(&store, creation(&key(owner, chat), &entry(bytes))).await;
    };
    for number in 0..3 {
        create("alice", number, 10_000).await;
    }
    create("bob", 0, 5_000).await;
    // Alice has too many bytes: one of hers goes.
    create("alice", 3, 10_000).await;
    assert!(!is_stored(&store, "alice", 0).await && is_stored(&store, "alice", 1).await);
    // The store has too many: the oldest one goes of the user who has the most.
    create("bob", 1, 25_000).await;
    assert!(!is_stored(&store, "alice", 1).await && is_stored(&store, "alice", 2).await);
    assert!(is_stored(&store, "bob", 0).await && is_stored(&store, "bob", 1).await);
    // Empty chats count, too.
    for number in 10..100 {
        create("carol", number, 0).await;
    }
    assert!(!is_stored(&store, "carol", 10).await && is_stored(&store, "carol", 99).await);
}

#[tokio::test]
async fn a_chat_with_more_bytes_than_its_user_may_have_is_not_written_and_removes_no_other() {
    let store = InMemoryLogStore::new().with_max_user_bytes(20_000).with_max_store_bytes(40_000);
    for owner in ["a", "b", "c", "alice"] {
        appended(&store, creation(&key(owner, "chat"), &entry(5_000))).await;
    }
    let (alice, large) = (key("alice", "chat"), entry(20_000));
    let error = store.append(append_at(&alice, 1, &large)).await.unwrap_err();
    let error = error.source().unwrap().to_string();
    assert!(error.contains("`InMemoryLogStore::with_max_user_bytes`"), "{error}");
    for owner in ["a", "b", "c"] {
        assert!(is_stored(&store, owner, "chat").await, "{owner}");
    }
    assert_eq!(load(&store, &alice).await.unwrap().head.length, 1);
}

#[tokio::test]
async fn live_runs_have_no_more_bytes_than_their_user_and_displace_only_what_fits() {
    let store = InMemoryLogStore::new().with_max_user_bytes(20_000).with_max_store_bytes(40_000);
    appended(&store, creation(&key("bob", "chat"), &entry(5_000))).await;
    let begin = async |chat: &str| {
        let (run, key, entries) = ("run".into(), key("alice", chat), entry(5_000));
        let live_run = LiveRunChange::Begins(&run);
        store.append(AppendLog { live_run, ..creation(&key, &entries) }).await
    };
    for chat in ["0", "1", "2"] {
        assert!(begin(chat).await.is_ok());
    }
    let error = begin("3").await.unwrap_err().source().unwrap().to_string();
    assert!(error.contains("has no room beside the live runs"), "{error}");
    // A run can always end.
    let (key, large) = (key("alice", "0"), entry(500));
    let live_run = LiveRunChange::Ends;
    appended(&store, AppendLog { live_run, ..append_at(&key, 1, &large) }).await;
    assert!(begin("3").await.is_ok());
    assert!(!is_stored(&store, "alice", "0").await && is_stored(&store, "alice", "1").await);
    assert!(is_stored(&store, "bob", "chat").await);
}
