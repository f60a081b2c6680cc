//! `GET /{id}/stream`: any number of readers read a run from its beginning, or after the last frame
//! that they have read, and get the same bytes.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use axum::{Extension, Router};
use chat_test_support::answers::{self, post, read_until, server_of, stored};
use futures::{StreamExt, poll, stream};
use serde_json::{Value, json};
use test_support::requests::{ada, call_mut, user_message};
use test_support::responses::{message_of, text_of};
use tokio::sync::Semaphore;
use ui_message_stream::approval::Principal;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::ToolCall;
use ui_message_stream::{AgentEvent, Json, UiMessage};
use ui_message_stream_chat::ChatLimits;
use ui_message_stream_chat::axum::chat_routes;
use ui_message_stream_chat::store::{InMemoryLogStore, LoadLog, LogKey, LogStore, ReadLogEntries};
use ui_message_stream_chat::{ChatServer, Turn};

/// A server whose agent writes one word for each permit. A user text with "where" makes it call a
/// tool of the client first.
struct Server {
    chats: ChatServer,
    permits: Arc<Semaphore>,
}

impl Server {
    fn new() -> Self {
        let permits = Arc::new(Semaphore::new(0));
        let awaited = Arc::clone(&permits);
        let agent = move |turn: Turn| {
            let permits = Arc::clone(&awaited);
            let last = serde_json::to_string(&turn.chat.messages.last()).unwrap();
            async_stream::stream! {
                if last.contains("where") && !last.contains("Lisbon") {
                    yield AgentEvent::text("Let me see. ");
                    let call = ToolCall::new("c1", "where").client_executed();
                    yield AgentEvent::tool_input(call, Json::parse("{}").unwrap());
                    return;
                }
                for word in ["one ", "two ", "three "] {
                    permits.acquire().await.unwrap().forget();
                    yield AgentEvent::text(word);
                }
                yield AgentEvent::finish(FinishReason::Stop);
            }
        };
        let limits = ChatLimits::default().with_max_user_readers(100);
        Server { chats: server_of(agent).with_limits(limits), permits }
    }

    fn routes(&self, user: &str) -> Router {
        chat_routes(self.chats.clone()).layer(Extension(Principal::new(user)))
    }

    /// Sends a request, and returns the status and the body, which is read to its end.
    fn send(
        &self,
        user: &str,
        method: Method,
        path: &str,
        last_event_id: Option<&str>,
        body: &str,
    ) -> tokio::task::JoinHandle<(StatusCode, String)> {
        let headers = last_event_id.map(|last| [("last-event-id", last.to_owned())]);
        let (routes, path, body) = (self.routes(user), path.to_owned(), body.to_owned());
        tokio::spawn(async move {
            let headers: Vec<_> =
                headers.iter().flatten().map(|(name, id)| (*name, &**id)).collect();
            let response = answers::send(&routes, method, &path, &headers, body).await;
            (response.status(), text_of(response.into_body()).await)
        })
    }

    fn post(&self, messages: &Value) -> tokio::task::JoinHandle<(StatusCode, String)> {
        let body = json!({"id": "chat", "messages": messages}).to_string();
        self.send("ada", Method::POST, "/", None, &body)
    }

    fn get(&self, last_event_id: Option<&str>) -> tokio::task::JoinHandle<(StatusCode, String)> {
        self.send("ada", Method::GET, "/chat/stream", last_event_id, "")
    }

    async fn stored(&self) -> Vec<UiMessage> {
        stored(&self.chats).await.messages.iter().cloned().collect()
    }
}

fn user(text: &str) -> Value {
    json!([user_message("m1", text)])
}

/// The ids of the frames of a response.
fn ids(response: &str) -> Vec<&str> {
    response.lines().filter_map(|line| line.strip_prefix("id: ")).collect()
}

async fn pause() {
    tokio::time::sleep(Duration::from_secs(2)).await;
}

#[tokio::test(start_paused = true)]
async fn readers_that_join_at_any_time_get_the_same_bytes() {
    let server = Server::new();
    let mut readers = vec![server.post(&user("Hi"))];
    pause().await;
    for _ in 0..3 {
        for _ in 0..30 {
            readers.push(server.get(None));
        }
        pause().await;
        server.permits.add_permits(1);
        pause().await;
    }
    let (_, first) = readers.remove(0).await.unwrap();
    assert!(first.contains("three") && first.ends_with("data: [DONE]\n\n"), "{first}");
    for reader in readers {
        assert_eq!(reader.await.unwrap(), (StatusCode::OK, first.clone()));
    }
    assert_eq!(server.get(None).await.unwrap().0, StatusCode::NO_CONTENT, "the run has ended");
}

#[tokio::test(start_paused = true)]
async fn a_response_that_begins_with_a_long_page_sends_its_first_frame_alone() {
    let agent = |_| stream::iter([AgentEvent::text("long ".repeat(200))]).chain(stream::pending());
    let chats = server_of(agent);
    let mut posted = post(&chats, "m1", "Hi").await;
    let whole = read_until(&mut posted, "long long").await;
    let frames: Vec<_> = whole.split_inclusive("\n\n").collect();
    let (long, before) = frames.split_last().unwrap();
    assert!(before[0].contains(r#""type":"start""#) && before[0].len() <= 511, "{whole}");

    let ids = ids(&whole);
    let after = |count: usize| count.checked_sub(1).map(|at| ids[at]);
    // A frame may be longer than a first piece.
    for (read, first) in [(0, before[0]), (1, before[1]), (before.len(), &long[..511])] {
        let rest = frames[read..].concat();
        let response = chats.resume_stream(&ada(), &"chat".into(), after(read)).await;
        let mut response = response.unwrap().unwrap();
        assert_eq!(response.next().await.unwrap().unwrap(), first);
        // A server flushes what it has when the body is pending.
        assert!(poll!(response.next()).is_pending());
        assert_eq!(response.next().await.unwrap().unwrap(), rest[first.len()..]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_of_three_hours_is_kept_open_and_read_from_its_beginning_by_any_reader() {
    let server = Server::new();
    let mut readers = vec![server.post(&user("Hi"))];
    for _ in 0..3 {
        pause().await;
        readers.push(server.get(None));
        tokio::time::sleep(Duration::from_secs(60 * 60)).await;
        server.permits.add_permits(1);
    }
    let mut texts = Vec::new();
    for reader in readers {
        let (status, body) = reader.await.unwrap();
        let comments = body.matches(": keep-alive\n\n").count();
        assert!(status.is_success() && comments >= 3600 / 15 - 1, "{comments} comments");
        texts.push(body.replace(": keep-alive\n\n", ""));
    }
    assert!(texts[0].contains("three") && texts[0].ends_with("data: [DONE]\n\n"), "{}", texts[0]);
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_run_and_the_run_of_another_user_are_answered_alike() {
    let server = Server::new();
    server.permits.add_permits(3);
    let (_, whole) = server.post(&user("Hi")).await.unwrap();
    let id = ids(&whole)[0];
    let (run, _) = id.split_once('.').unwrap();
    for (person, id) in [
        ("mallory", id.to_owned()),
        ("ada", "run_0.0".to_owned()),
        ("ada", run.to_owned()),
        ("ada", format!("{run}.x")),
        ("ada", String::new()),
    ] {
        let answer = server.send(person, Method::GET, "/chat/stream", Some(&id), "").await;
        assert_eq!(answer.unwrap(), (StatusCode::NO_CONTENT, String::new()), "{person} {id}");
    }
    tokio::time::sleep(Duration::from_secs(601)).await;
    assert_eq!(server.get(Some(id)).await.unwrap().0, StatusCode::NO_CONTENT);
}

/// A chat that was deleted and begun again has another log, with runs at the same positions.
#[tokio::test(start_paused = true)]
async fn a_place_in_another_log_of_the_chat_is_not_continued() {
    let server = Server::new();
    server.permits.add_permits(6);
    let (_, whole) = server.post(&user("Hi")).await.unwrap();
    let id = ids(&whole)[0];
    assert_eq!(server.get(Some(id)).await.unwrap().0, StatusCode::OK);
    let deleted = server.send("ada", Method::DELETE, "/chat", None, "").await.unwrap();
    assert_eq!(deleted.0, StatusCode::NO_CONTENT);
    server.post(&user("Hi")).await.unwrap();
    assert_eq!(server.get(Some(id)).await.unwrap(), (StatusCode::NO_CONTENT, String::new()));
}

/// The begin of a run that the chat shows does not open the frames of one whose message was edited away.
#[tokio::test(start_paused = true)]
async fn a_place_beyond_the_end_of_its_run_is_not_continued() {
    let server = Server::new();
    server.permits.add_permits(9);
    let (_, first) = server.post(&user("Hi")).await.unwrap();
    let m2 = |text: &str| json!([user_message("m2", text)]);
    let (_, second) = server.post(&m2("A secret")).await.unwrap();
    let edit = json!({"id": "chat", "messages": m2("Hello"), "messageId": "m2"}).to_string();
    server.send("ada", Method::POST, "/", None, &edit).await.unwrap();
    let (first, second) = (ids(&first), ids(&second));
    let (shown, _) = first[0].split_once(".0x").unwrap();
    for removed in &second {
        let (_, position) = removed.split_once(".0x").unwrap();
        let forged = format!("{shown}.0x{position}");
        let response = server.get(Some(&forged)).await.unwrap();
        assert_eq!(response, (StatusCode::NO_CONTENT, String::new()), "{forged}");
    }
    for shown in first {
        assert_eq!(server.get(Some(shown)).await.unwrap().0, StatusCode::OK, "{shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_route_returns_what_was_edited_away_and_the_store_forgets_it() {
    for is_stopped in [false, true] {
        let store = Arc::new(InMemoryLogStore::new());
        let Server { chats, permits } = Server::new();
        let server = Server { chats: chats.with_store(store.clone()), permits };
        server.permits.add_permits(3);
        let (_, whole) = server.post(&user("A secret")).await.unwrap();
        let id = ids(&whole)[0];
        assert_eq!(server.get(Some(id)).await.unwrap().0, StatusCode::OK);
        let edited = json!({"id": "chat", "messages": user("Hello"), "messageId": "m1"});
        let edit = server.send("ada", Method::POST, "/", None, &edited.to_string());
        pause().await;
        if is_stopped {
            let stop = server.send("ada", Method::DELETE, "/chat/stream", None, "");
            assert_eq!(stop.await.unwrap().0, StatusCode::NO_CONTENT);
        }
        server.permits.add_permits(3);
        edit.await.unwrap();
        for path in ["/", "/chat"] {
            let (status, body) = server.send("ada", Method::GET, path, None, "").await.unwrap();
            assert!(status.is_success() && body.contains("Hello"), "{path}: {body}");
            assert!(!body.contains("secret"), "{path}: {body}");
        }
        assert_eq!(server.get(Some(id)).await.unwrap(), (StatusCode::NO_CONTENT, String::new()));
        let key = LogKey { owner: Principal::new("ada"), chat: "chat".into() };
        let holds = async || {
            let load = LoadLog { key: &key, has_frames: true, has_messages: true };
            let loaded = store.load(load).await.unwrap().unwrap();
            let (position, max_bytes) = (0, usize::MAX);
            let epoch = loaded.head.epoch;
            let read = ReadLogEntries { key: &key, epoch, position, max_bytes, is_reader: false };
            let page = store.read(read).await.unwrap();
            let read = page.into_iter().flat_map(|page| page.entries);
            let snapshot = loaded.snapshot.unwrap();
            let entries = loaded.entries.into_iter().map(|(_, entry)| entry).chain(read);
            let bytes = entries.map(|entry| String::from_utf8(entry.bytes.to_vec()).unwrap());
            let mut texts = bytes.chain(snapshot.messages).chain([snapshot.head]);
            texts.any(|text| text.contains("secret"))
        };
        assert!(holds().await);
        tokio::time::sleep(Duration::from_secs(11 * 60 + 1)).await;
        assert!(!holds().await, "is stopped: {is_stopped}");
    }
}

/// The page that is opened again gets the message from its beginning, and the page that has sent the
/// output gets the rest.
#[tokio::test(start_paused = true)]
async fn a_run_that_continues_a_message_is_read_with_the_message_in_front() {
    let server = Server::new();
    let (_, first) = server.post(&user("where am I?")).await.unwrap();
    let mut held = serde_json::to_value(message_of(None, &first)).unwrap();
    let call = call_mut(&mut held, "c1");
    (call["state"], call["output"]) = ("output-available".into(), "Lisbon".into());
    let messages = json!([user("where am I?")[0], held]);
    let post = server.post(&messages);
    pause().await;
    server.permits.add_permits(1);
    pause().await;
    let (opened_again, second_tab) = (server.get(None), server.get(None));
    pause().await;
    server.permits.add_permits(2);
    let (_, post) = post.await.unwrap();
    let (_, opened_again) = opened_again.await.unwrap();
    let stored = server.stored().await[1].clone();
    assert_eq!(message_of(None, &opened_again), stored, "{opened_again}");
    let held = UiMessage::parse(&held.to_string()).unwrap();
    assert_eq!(message_of(Some(held), &post), stored, "{post}");
    assert_eq!(second_tab.await.unwrap().1, opened_again);
    // After the message in front all readers get the same frames, each with its id.
    let after_start = |response: &str| {
        let at = response.find(&format!("id: {}\n", ids(response).last().unwrap())).unwrap();
        response[at..].to_owned()
    };
    assert_eq!(after_start(&post), after_start(&opened_again));
    // The client would run its tool again when it reads that the input is available.
    assert!(!opened_again.contains("tool-input-available"), "{opened_again}");
}

#[tokio::test(start_paused = true)]
async fn the_history_shows_what_a_live_run_has_written_and_a_stopped_one_keeps_it() {
    let server = Server::new();
    let store = Arc::new(InMemoryLogStore::new());
    let other = Server::new().chats.with_store(store.clone());
    let server = Server { chats: server.chats.with_store(store), permits: server.permits };
    let post = server.post(&user("Hi"));
    server.permits.add_permits(2);
    pause().await;
    let text = || async { server.stored().await[1].text() };
    let ended = || async {
        let (_, page) = server.send("ada", Method::GET, "/chat", None, "").await.unwrap();
        serde_json::from_str::<Value>(&page).unwrap().get("ended").cloned()
    };
    assert_eq!((text().await.as_str(), ended().await), ("one two ", None));
    // The stop reaches another server.
    other.stop(&Principal::new("ada"), &"chat".into()).await.unwrap();
    let (_, read) = post.await.unwrap();
    assert!(read.contains(r#""type":"abort""#), "{read}");
    assert_eq!(ended().await, Some("stopped".into()));
    // The server of the run learns it from its next append, within a third of a lease.
    tokio::time::sleep(Duration::from_secs(4)).await;
    server.permits.add_permits(1);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(text().await, "one two ");
    assert_eq!(server.permits.available_permits(), 1, "the agent has stopped");
}

#[tokio::test(start_paused = true)]
async fn at_the_limit_of_runs_the_oldest_without_a_reader_ends() {
    let silent = |_: Turn| stream::pending::<AgentEvent>();
    let chats = server_of(silent).with_limits(ChatLimits::default().with_max_user_runs(2));
    let server = Server { chats, permits: Arc::new(Semaphore::new(0)) };
    let post = |chat: &str| {
        let body = json!({"id": chat, "messages": user("Hi")}).to_string();
        server.send("ada", Method::POST, "/", None, &body)
    };
    let (first, second) = (post("a"), post("b"));
    pause().await;
    // Both have readers.
    let (status, text) = post("c").await.unwrap();
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{text}");
    first.abort();
    tokio::time::sleep(Duration::from_secs(31)).await;
    let third = post("c");
    pause().await;
    assert!(!third.is_finished() && !second.is_finished());
    // The run whose reader has gone learns it from its next append.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let stream = server.send("ada", Method::GET, "/a/stream", None, "").await.unwrap();
    assert_eq!(stream.0, StatusCode::NO_CONTENT);
}
