//! Stores of logs: the one in memory and one in tables pass the conformance suite. What a turn writes, and
//! what a store in memory may hold.

use std::error::Error;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::Method;
use bytes::Bytes;
use chat_test_support::kept_runs;
use chat_test_support::log_double::{Answer, Intercepts, LogDouble};
use chat_test_support::test_server::{Client, Host};
use futures::future::poll_immediate;
use futures::{StreamExt, stream};
use serde_json::json;
use test_support::external_processes::say;
use test_support::thread_subscriber::captured;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal, UnixMillis};
use ui_message_stream::id::RunId;
use ui_message_stream::message::Role;
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, ChatRequest};
use ui_message_stream_chat::ChatLimits;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, EntryKind, Epoch, Expected, InMemoryLogStore, KEPT_AFTER_END,
    ListedChat, LiveRunChange, LoadLog, LogKey, LogStore, PutSnapshot, ReadLogEntries, StoredEntry,
    UserLimits, conformance,
};
use ui_message_stream_chat::{ChatError, ChatServer, Turn};

use crate::stores::row_store::RowStore;

#[tokio::test]
async fn the_store_in_memory_passes_the_conformance_suite() {
    let cases = conformance::check(async || InMemoryLogStore::new()).await;
    say(&format!("conformance of the store of logs in memory: {cases} cases"));
    assert!(cases >= 80, "{cases} cases");
}

#[tokio::test]
async fn a_store_in_tables_passes_the_conformance_suite() {
    let cases = conformance::check(async || RowStore::new()).await;
    assert!(cases >= 80, "{cases} cases");
}

/// A turn with a constant agent, of a client that sends its last message only.
#[tokio::test]
async fn what_a_turn_writes_does_not_depend_on_the_length_of_the_chat() {
    let mut costs = Vec::new();
    for length in [10, 1_000, 5_000] {
        let (store, ada) = (Arc::new(RowStore::new()), Principal::new("ada"));
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

#[tokio::test]
async fn a_new_chat_beyond_the_limit_of_its_user_is_refused_with_the_setting_until_one_is_deleted()
{
    let limits = ChatLimits::default().with_max_user_chats(2).with_max_user_runs(1);
    let host = Host::new().with_store(RowStore::new()).with_limits(limits);
    let (mut one, mut two) = (Client::new("alice", "one"), Client::new("alice", "two"));
    one.say(&host, "hello").await;
    two.say(&host, "delete notes.txt").await;
    let begin = async |user: &str| {
        let text = json!({"type": "text", "text": "hello"});
        let message = json!({"id": "m1", "role": "user", "parts": [text]});
        host.chat(user, json!({"id": "three", "messages": [message]}).to_string()).await
    };
    // A refused request leaves no run: the second one would be refused for that.
    for _ in 0..2 {
        let refused = begin("alice").await;
        let text = "you have 2 chats or more: delete one before you begin another; \
                    `ChatLimits::with_max_user_chats` allows more";
        assert_eq!((refused.status.as_u16(), &*refused.text), (413, text));
    }
    assert_eq!(host.get("alice", "/api/chat/three").await.status, 404);
    // The chats that exist, and other users, go on.
    one.say(&host, "hello").await;
    two.answer(&host, true).await;
    assert_eq!(host.tools.effects().len(), 1);
    assert_eq!(begin("bob").await.status, 200);
    let deleted = host.send("alice", Method::DELETE, "/api/chat/one", String::new()).await;
    assert!(deleted.status.is_success(), "{}", deleted.text);
    assert_eq!(begin("alice").await.status, 200);
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

const SECOND: Duration = Duration::from_secs(1);

fn key(owner: &str, chat: impl ToString) -> LogKey {
    LogKey { owner: Principal::new(owner), chat: chat.to_string().into() }
}

/// The entry of a new chat.
struct New {
    bytes: usize,
    has_questions: bool,
    max_user_chats: usize,
    keep_for: Option<Duration>,
}

const NEW: New = New { bytes: 1, has_questions: false, max_user_chats: 9_999, keep_for: None };

/// Creates a chat with one entry.
async fn create(store: &InMemoryLogStore, key: &LogKey, new: New) -> AppendResult {
    append(store, key, Expected::NoLog(Epoch(1)), LiveRunChange::None, new).await.unwrap()
}

async fn append(
    store: &InMemoryLogStore,
    key: &LogKey,
    expected: Expected,
    live_run: LiveRunChange<'_>,
    new: New,
) -> Result<AppendResult, Box<dyn Error>> {
    let New { bytes, has_questions, max_user_chats: chats, keep_for } = new;
    let bytes = Bytes::from(vec![b'x'; bytes]);
    let append = AppendLog {
        key,
        expected,
        entries: &[StoredEntry { kind: EntryKind::Control, bytes }],
        lease: None,
        only_lost: false,
        live_run,
        listed: Some(ListedChat { title: "", has_questions }),
        keep_for,
        limits: UserLimits { chats, runs: 9, unread: SECOND },
        is_for_sink: false,
    };
    Ok(store.append(append).await?)
}

async fn is_stored(store: &InMemoryLogStore, owner: &str, chat: impl ToString) -> bool {
    let load = LoadLog { key: &key(owner, chat), has_frames: true, has_messages: true };
    store.load(load).await.unwrap().is_some()
}

#[tokio::test]
async fn a_chat_does_not_count_after_its_time() {
    let store = InMemoryLogStore::with_test_clock(UnixMillis(1_000));
    let keep_for = Some(Duration::from_millis(500));
    let _ = create(&store, &key("alice", "chat"), New { keep_for, ..NEW }).await;
    store.set_test_time(UnixMillis(1_499));
    assert!(is_stored(&store, "alice", "chat").await);
    store.set_test_time(UnixMillis(1_500));
    assert!(format!("{store:?}").contains("users: 0"), "{store:?}");
}

#[tokio::test]
async fn the_entries_of_a_run_are_kept_for_readers_for_10_minutes_after_its_end() {
    let store = InMemoryLogStore::with_test_clock(UnixMillis(0));
    let key = key("alice", "chat");
    let (begins, none) = (LiveRunChange::Begins(&"run".into()), Expected::NoLog(Epoch(1)));
    let _ = append(&store, &key, none, begins, NEW).await.unwrap();
    let expected = Expected::Position { epoch: Epoch(1), position: 1 };
    let _ = append(&store, &key, expected, LiveRunChange::Ends, NEW).await.unwrap();
    let (epoch, position, unchanged) = (Epoch(1), 2, None);
    let put = PutSnapshot { key: &key, epoch, position, head: "{}", unchanged, changed: &[] };
    assert!(store.put_snapshot(put).await.unwrap());
    let kept = UnixMillis(0).after(KEPT_AFTER_END);
    for (time, is_kept) in [(UnixMillis(kept.0 - 1), true), (kept, false)] {
        store.set_test_time(time);
        store.sweep().await.unwrap();
        let (position, max_bytes, is_reader) = (0, usize::MAX, true);
        let read = ReadLogEntries { key: &key, epoch, position, max_bytes, is_reader };
        assert_eq!(store.read(read).await.unwrap().is_some(), is_kept);
    }
}

#[tokio::test]
async fn a_run_keeps_the_entries_of_the_one_that_it_resumes() {
    let store = InMemoryLogStore::with_test_clock(UnixMillis(0));
    let set_time = async |second| store.set_test_time(UnixMillis(second * 1000));
    kept_runs::a_run_keeps_the_entries_of_the_one_that_it_resumes(&store, set_time).await;
}

#[tokio::test]
async fn a_log_whose_snapshot_is_old_is_named_until_it_has_a_new_one() {
    let store = InMemoryLogStore::with_test_clock(UnixMillis(0));
    let set_time = async |second| store.set_test_time(UnixMillis(second * 1000));
    kept_runs::a_log_whose_snapshot_is_old_is_named_until_it_has_a_new_one(&store, set_time).await;
}

#[tokio::test]
async fn a_deletion_that_was_not_returned_for_30_days_is_forgotten() {
    let store = InMemoryLogStore::with_test_clock(UnixMillis(1_000_000));
    let set_time = async |second| store.set_test_time(UnixMillis(1_000_000 + second * 1000));
    kept_runs::a_deletion_that_was_not_returned_for_30_days_is_forgotten(&store, set_time).await;
}

#[tokio::test]
async fn of_the_runs_that_have_ended_those_with_too_many_bytes_are_forgotten_first_to_last() {
    let store = InMemoryLogStore::with_test_clock(UnixMillis(0)).with_max_ended_bytes(25_000);
    let (run, epoch) = ("run".into(), Epoch(1));
    let keys = ["first", "second", "third"].map(|chat| key("alice", chat));
    let large = || New { bytes: 10_000, ..NEW };
    for key in &keys {
        let begins = LiveRunChange::Begins(&run);
        let _ = append(&store, key, Expected::NoLog(epoch), begins, large()).await.unwrap();
    }
    let mut kept = Vec::new();
    for key in &keys {
        let expected = Expected::Position { epoch, position: 1 };
        let _ = append(&store, key, expected, LiveRunChange::Ends, NEW).await.unwrap();
        let (position, unchanged) = (2, None);
        let put = PutSnapshot { key, epoch, position, head: "{}", unchanged, changed: &[] };
        assert!(store.put_snapshot(put).await.unwrap());
        assert!(store.sweep().await.unwrap().lost_runs.is_empty());
        let (position, max_bytes, is_reader) = (0, usize::MAX, true);
        let mut are_kept = Vec::new();
        for key in &keys {
            let read = ReadLogEntries { key, epoch, position, max_bytes, is_reader };
            are_kept.push(store.read(read).await.unwrap().is_some());
        }
        kept.push(are_kept);
    }
    assert_eq!(kept, [[true, true, true], [true, true, true], [false, true, true]]);
}

#[tokio::test]
async fn a_reader_is_woken_by_an_append_and_by_the_deletion_of_the_chat() {
    let (store, key) = (InMemoryLogStore::new(), key("alice", "chat"));
    let _ = create(&store, &key, NEW).await;
    let mut waiting = std::pin::pin!(store.changed(&key, 1));
    assert!(poll_immediate(&mut waiting).await.is_none());
    let expected = Expected::Position { epoch: Epoch(1), position: 1 };
    let _ = append(&store, &key, expected, LiveRunChange::None, NEW).await.unwrap();
    waiting.await;
    let mut waiting = std::pin::pin!(store.changed(&key, 2));
    assert!(poll_immediate(&mut waiting).await.is_none());
    assert!(store.delete(&key, Epoch(1), 2).await.unwrap());
    waiting.await;
    // And later waits do not begin.
    store.changed(&key, 2).await;
}

#[tokio::test]
async fn too_many_chats_of_a_user_remove_the_oldest_own_one_without_questions() {
    let (log, _subscription) = captured();
    // Chats of the same time are removed in the order of their ids.
    let store = InMemoryLogStore::with_test_clock(UnixMillis(0));
    for number in 0..100 {
        let _ = create(&store, &key("bob", number), NEW).await;
    }
    let _ = create(&store, &key("alice", "asking"), New { has_questions: true, ..NEW }).await;
    for number in 0..1_001 {
        store.set_test_time(UnixMillis(number));
        let new = New { max_user_chats: 400, ..NEW };
        let created = create(&store, &key("alice", number), new).await;
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
    let asking = || New { has_questions: true, max_user_chats: 3, ..NEW };
    for number in 0..3 {
        let _ = create(&store, &key("alice", number), asking()).await;
    }
    let refused = create(&store, &key("alice", 3), asking()).await;
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
        let created = create(&store, &key(owner, chat), New { bytes, ..NEW }).await;
        assert!(matches!(created, AppendResult::Appended { .. }));
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
        let _ = create(&store, &key(owner, "chat"), New { bytes: 5_000, ..NEW }).await;
    }
    let alice = key("alice", "chat");
    let expected = Expected::Position { epoch: Epoch(1), position: 1 };
    let large = New { bytes: 20_000, ..NEW };
    let error = append(&store, &alice, expected, LiveRunChange::None, large).await.unwrap_err();
    let error = error.source().unwrap().to_string();
    assert!(error.contains("`InMemoryLogStore::with_max_user_bytes`"), "{error}");
    for owner in ["a", "b", "c"] {
        assert!(is_stored(&store, owner, "chat").await, "{owner}");
    }
    let load = LoadLog { key: &alice, has_frames: true, has_messages: true };
    assert_eq!(store.load(load).await.unwrap().unwrap().head.length, 1);
}

#[tokio::test]
async fn live_runs_have_no_more_bytes_than_their_user_and_displace_only_what_fits() {
    let store = InMemoryLogStore::new().with_max_user_bytes(20_000).with_max_store_bytes(40_000);
    let _ = create(&store, &key("bob", "chat"), New { bytes: 5_000, ..NEW }).await;
    let begin = async |chat: &str, bytes: usize| {
        let (run, key) = (RunId::from("run"), key("alice", chat));
        let live = LiveRunChange::Begins(&run);
        append(&store, &key, Expected::NoLog(Epoch(1)), live, New { bytes, ..NEW }).await
    };
    for chat in ["0", "1", "2"] {
        assert!(begin(chat, 5_000).await.is_ok());
    }
    let error = begin("3", 5_000).await.unwrap_err().source().unwrap().to_string();
    assert!(error.contains("has no room beside the live runs"), "{error}");
    let end = New { bytes: 500, ..NEW };
    let expected = Expected::Position { epoch: Epoch(1), position: 1 };
    let ended = append(&store, &key("alice", "0"), expected, LiveRunChange::Ends, end).await;
    assert!(matches!(ended, Ok(AppendResult::Appended { .. })), "a run can always end");
    assert!(begin("3", 5_000).await.is_ok());
    assert!(!is_stored(&store, "alice", "0").await && is_stored(&store, "alice", "1").await);
    assert!(is_stored(&store, "bob", "chat").await);
}
