//! [`ChatServer::with_append_interval`]: when a run appends what it writes, and what readers get before.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_stream::stream;
use chat_test_support::answers::{follow, post, read_until, server_of, stored};
use chat_test_support::log_double::{Answer, Intercepts, LogDouble};
use futures::StreamExt;
use test_support::requests::{ada, say};
use test_support::responses::text_of;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use ui_message_stream::event::ToolCall;
use ui_message_stream::{AgentEvent, Json};
use ui_message_stream_chat::store::{AppendLog, AppendResult, InMemoryLogStore, LogStore};
use ui_message_stream_chat::{ChatError, ChatServer, ChatStream, Turn};

/// The default.
const INTERVAL: Duration = Duration::from_millis(50);

/// A store that records what is appended to each chat, and how many milliseconds after the first append. It can hang
/// when words are appended.
#[derive(Debug, Default)]
struct Recorded {
    logs: Arc<InMemoryLogStore>,
    hangs: AtomicBool,
    goes_on: Notify,
    begun: Mutex<Option<Instant>>,
    appends: Mutex<Vec<(String, u128, String)>>,
}

impl Intercepts for Recorded {
    fn store(&self) -> &dyn LogStore {
        &*self.logs
    }

    fn append<'a>(&'a self, append: AppendLog<'a>) -> Answer<'a, AppendResult> {
        let begun = *self.begun.lock().unwrap().get_or_insert_with(Instant::now);
        let bytes = append.entries.iter().map(|it| str::from_utf8(&it.bytes).unwrap().to_owned());
        let append_of =
            (append.key.chat.to_string(), begun.elapsed().as_millis(), bytes.collect::<String>());
        let hangs = self.hangs.load(Ordering::Relaxed) && append_of.2.contains("word");
        self.appends.lock().unwrap().push(append_of);
        if !hangs {
            return self.logs.append(append);
        }
        Box::pin(async move {
            self.goes_on.notified().await;
            self.logs.append(append).await
        })
    }
}

impl Recorded {
    fn hang(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::Relaxed);
        if !hangs {
            self.goes_on.notify_waiters();
        }
    }

    /// Returns the appends to this chat that contain the text.
    fn of(&self, chat: &str, text: &str) -> Vec<(u128, String)> {
        let appends = self.appends.lock().unwrap();
        let of_chat = appends.iter().filter(|(of, _, bytes)| of == chat && bytes.contains(text));
        of_chat.map(|(_, at, bytes)| (*at, bytes.clone())).collect()
    }
}

/// An agent that writes 60 words in 600 milliseconds after a pause, calls a tool of the page, writes two more, and
/// ends.
fn agent(_: Turn) -> impl futures::Stream<Item = AgentEvent> {
    stream! {
        sleep(Duration::from_millis(490)).await;
        for word in 0..60 {
            yield AgentEvent::text(format!("word {word}. "));
            sleep(Duration::from_millis(10)).await;
        }
        let call = ToolCall::new("c1", "where").client_executed();
        yield AgentEvent::tool_input(call, Json::parse("{}").unwrap());
        sleep(Duration::from_millis(1)).await;
        yield AgentEvent::text("almost ");
        sleep(Duration::from_millis(1)).await;
        yield AgentEvent::text("done");
    }
}

fn server(store: &Arc<LogDouble<Recorded>>) -> ChatServer {
    server_of(agent).with_store(store.clone())
}

/// Returns a server, and its store.
fn server_with_store() -> (ChatServer, Arc<LogDouble<Recorded>>) {
    let store = Arc::<LogDouble<Recorded>>::default();
    (server(&store), store)
}

#[tokio::test(start_paused = true)]
async fn the_first_text_is_appended_at_once_and_more_text_once_in_an_interval_by_all_runs_together()
{
    let (chats, store) = server_with_store();
    let first = chats.stream_response(&ada(), say("one", "m1", "Hi")).await.unwrap();
    sleep(Duration::from_millis(23)).await;
    let second = chats.stream_response(&ada(), say("two", "m1", "Hi")).await.unwrap();
    let (first, second) = tokio::join!(text_of(first), text_of(second));
    assert!(first.ends_with("data: [DONE]\n\n") && second.ends_with("data: [DONE]\n\n"));

    let times = |chat| store.of(chat, "word").into_iter().map(|(at, _)| at).collect::<Vec<_>>();
    let ticks = (500..=1050).step_by(50);
    // The last one is that of the call.
    assert_eq!(times("one"), [490].into_iter().chain(ticks).chain([1090]).collect::<Vec<_>>());
    let ticks = (550..=1100).step_by(50);
    assert_eq!(times("two"), [513].into_iter().chain(ticks).chain([1113]).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_call_and_the_end_of_a_run_are_appended_at_once_with_the_text_before_them() {
    let (chats, store) = server_with_store();
    text_of(post(&chats, "m1", "Hi").await).await;
    let called = store.of("chat", "tool-input-available");
    let [(at, call)] = &called[..] else { panic!("{called:?}") };
    assert_eq!(*at, 1090);
    assert!(call.contains("word 59"), "the text that waited comes first: {call}");
    let ended = store.of("chat", r#"{"end":"#);
    let [(at, end)] = &ended[..] else { panic!("{ended:?}") };
    assert_eq!(*at, 1092);
    assert!(end.contains("almost") && end.contains("done"), "{end}");
}

#[tokio::test(start_paused = true)]
async fn a_reader_at_another_server_reads_the_text_after_an_interval() {
    let (chats, store) = server_with_store();
    let other = server(&store);
    let response = tokio::spawn(text_of(post(&chats, "m1", "Hi").await));
    let reader = tokio::spawn(text_of(follow(&other).await));
    sleep(Duration::from_millis(515)).await;
    let stored = || store.of("chat", "word 2.").len();
    assert_eq!(stored(), 0);
    sleep(INTERVAL).await;
    assert_eq!(stored(), 1);
    assert_eq!(data(&response.await.unwrap()), data(&reader.await.unwrap()));
}

fn ids(read: &str) -> impl DoubleEndedIterator<Item = &str> {
    read.lines().filter_map(|line| line.strip_prefix("id: "))
}

/// What was read without the ids.
fn data(read: &str) -> Vec<&str> {
    read.lines().filter(|line| line.starts_with("data:")).collect()
}

/// Begins an answer, and reads it up to a word that is not stored.
async fn begun(chats: &ChatServer, store: &Recorded) -> (ChatStream, String) {
    let mut response = post(chats, "m1", "Hi").await;
    let read = read_until(&mut response, "word 2.").await;
    assert_eq!(store.of("chat", "word 2.").len(), 0);
    (response, read)
}

/// Returns the text of the first answer.
async fn answer(chats: &ChatServer) -> String {
    stored(chats).await.messages[1].text()
}

const READ: &str = "word 0. word 1. word 2. ";

#[tokio::test(start_paused = true)]
async fn readers_of_the_same_server_read_text_at_once_and_calls_and_ends_from_the_log() {
    let (chats, store) = server_with_store();
    let (response, read) = begun(&chats, &store).await;
    // A client that is cut continues there, at this server and at another one.
    let last = ids(&read).next_back();
    assert!(!last.unwrap().contains("0x"), "{read}");
    let again = chats.resume_stream(&ada(), &"chat".into(), last).await.unwrap().unwrap();
    let other = server(&store).resume_stream(&ada(), &"chat".into(), last).await.unwrap().unwrap();
    let (response, again, other) = tokio::join!(text_of(response), text_of(again), text_of(other));
    assert!(response.contains("word 3.") && !response.contains("word 2."), "{response}");
    assert_eq!((data(&again), data(&other)), (data(&response), data(&response)));
    // Of what this client reads, nothing is ahead of the store.
    assert!(ids(&other).all(|id| id.contains(".0x")), "{other}");
    for line in response.lines().collect::<Vec<_>>().windows(2) {
        let is_ahead = line[0].starts_with("id: ") && !line[0].contains(".0x");
        assert!(!is_ahead || !line[1].contains("tool") && !line[1].contains("finish"), "{line:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_is_shown_each_word_when_it_is_written_also_after_it_has_read_the_store() {
    let agent = |_: Turn| {
        stream! {
            for word in 0..700 {
                sleep(Duration::from_millis(10)).await;
                yield AgentEvent::text(format!("word {word}. "));
            }
        }
    };
    let chats = server_of(agent);
    let mut response = post(&chats, "m1", "Hi").await;
    let begun = Instant::now();
    let (mut read, mut shown) = (String::new(), 0);
    while let Some(page) = response.next().await {
        read += str::from_utf8(&page.unwrap()).unwrap();
        while read.contains(&format!("word {shown}.")) {
            shown += 1;
            assert_eq!(begun.elapsed().as_millis(), 10 * shown, "word {}", shown - 1);
        }
    }
    assert_eq!(shown, 700);
}

#[tokio::test(start_paused = true)]
async fn without_an_interval_readers_read_only_what_is_stored() {
    let store = Arc::<LogDouble<Recorded>>::default();
    let chats = server(&store).with_append_interval(Duration::ZERO);
    let mut response = post(&chats, "m1", "Hi").await;
    let mut read = String::new();
    while let Some(page) = response.next().await {
        read += str::from_utf8(&page.unwrap()).unwrap();
        let shown = (0..60).filter(|word| read.contains(&format!("word {word}."))).count();
        assert!(store.of("chat", "word").len() >= shown, "{read}");
    }
    assert!(read.contains("word 59.") && ids(&read).all(|id| id.contains(".0x")), "{read}");
    assert_eq!(store.of("chat", "word").len(), 60);
}

#[tokio::test(start_paused = true)]
async fn after_a_stop_elsewhere_a_reader_reads_the_end_of_what_it_has_read_and_its_last_id_is_void()
{
    let (chats, store) = server_with_store();
    let other = server(&store);
    let (response, read) = begun(&chats, &store).await;
    other.stop(&ada(), &"chat".into()).await.unwrap();
    for chats in [&chats, &other] {
        let again = chats.resume_stream(&ada(), &"chat".into(), ids(&read).next_back()).await;
        assert!(again.unwrap().is_none(), "the chat has to be loaded");
    }
    let read = read + &text_of(response).await;
    let count = |what: &str| read.matches(what).count();
    assert_eq!((count("text-start"), count("text-end"), count("[DONE]")), (1, 1, 1), "{read}");
    assert!(read.contains(r#""type":"abort""#), "{read}");
    assert_eq!(answer(&other).await, "word 0. word 1. ");
}

#[tokio::test(start_paused = true)]
async fn a_stop_and_a_new_message_at_the_server_of_a_run_keep_what_its_readers_have_read() {
    for is_stop in [true, false] {
        let (chats, store) = server_with_store();
        let (response, _) = begun(&chats, &store).await;
        match is_stop {
            true => chats.stop(&ada(), &"chat".into()).await.unwrap(),
            false => drop(post(&chats, "m2", "No").await),
        }
        let rest = text_of(response).await;
        assert!(rest.contains(r#""type":"abort""#), "{rest}");
        assert_eq!(answer(&chats).await, READ, "{is_stop}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_waits_for_text_ends_no_run_that_has_begun_meanwhile() {
    let store = Arc::<LogDouble<Recorded>>::default();
    let other = LogDouble(Recorded { logs: Arc::clone(&store.logs), ..Recorded::default() });
    let (chats, other) = (server(&store), server(&Arc::new(other)));
    let (response, _) = begun(&chats, &store).await;
    store.hang(true);
    let stopping = chats.clone();
    let stop = tokio::spawn(async move { stopping.stop(&ada(), &"chat".into()).await });
    sleep(INTERVAL / 2).await;
    assert!(!stop.is_finished());
    let next = post(&other, "m2", "No").await;
    stop.await.unwrap().unwrap();
    store.hang(false);
    let next = text_of(next).await;
    assert!(next.contains("word 59.") && !next.contains(r#""type":"abort""#), "{next}");
    drop(response);
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_away_readers_are_shown_the_text_of_two_intervals_and_later_all_of_it() {
    let (chats, store) = server_with_store();
    let (mut response, mut read) = begun(&chats, &store).await;
    store.hang(true);
    let begun = Instant::now();
    read += &read_until(&mut response, "word 12.").await;
    // Keep-alives come, and words do not.
    while begun.elapsed() < Duration::from_millis(300) {
        let page = tokio::time::timeout(INTERVAL, response.next()).await;
        let page = page.ok().map(|page| page.unwrap().unwrap()).unwrap_or_default();
        assert!(!page.starts_with(b"id: "), "{page:?}");
    }
    store.hang(false);
    read += &text_of(response).await;
    for word in 0..60 {
        assert_eq!(read.matches(&format!("word {word}.")).count(), 1, "{word} {read}");
    }
}

/// Returns a server with this store, and one with the same logs that does not hang.
fn two_servers(store: &Arc<LogDouble<Recorded>>) -> (ChatServer, ChatServer) {
    let other = LogDouble(Recorded { logs: Arc::clone(&store.logs), ..Recorded::default() });
    let lease = Duration::from_millis(300);
    (server(store).with_run_lease(lease), server(&Arc::new(other)).with_run_lease(lease))
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_text_of_a_lost_server_reads_nothing_else_and_loads_the_chat() {
    let store = Arc::<LogDouble<Recorded>>::default();
    let (chats, other) = two_servers(&store);
    let (response, read) = begun(&chats, &store).await;
    store.hang(true);
    let (chat, last) = ("chat".into(), ids(&read).next_back());
    let waiting = other.resume_stream(&ada(), &chat, last).await.unwrap().unwrap();
    let rest: Vec<_> = waiting.collect().await;
    let [.., Err(_)] = &rest[..] else { panic!("{rest:?}") };
    assert_eq!(rest.len(), 1, "{rest:?}");
    assert!(other.resume_stream(&ada(), &chat, last).await.unwrap().is_none());
    assert_eq!(answer(&other).await, "word 0. word 1. ");
    drop(response);
}

#[tokio::test(start_paused = true)]
async fn a_complete_response_is_made_of_what_is_stored() {
    let store = Arc::<LogDouble<Recorded>>::default();
    let (chats, other) = two_servers(&store);
    let complete = tokio::spawn({
        let chats = chats.clone();
        async move { chats.complete_response(&ada(), say("chat", "m1", "Hi")).await }
    });
    sleep(Duration::from_millis(515)).await;
    assert_eq!(store.of("chat", "word 2.").len(), 0);
    store.hang(true);
    // Another server ends the run, whose server cannot renew its lease.
    assert!(text_of(follow(&other).await).await.contains(r#""type":"error""#));
    let response: Result<_, ChatError> = complete.await.unwrap();
    assert_eq!(response.unwrap().message.unwrap().text(), "word 0. word 1. ");
    assert_eq!(answer(&other).await, "word 0. word 1. ");
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_the_interval_is_stored_before_a_run_is_handed_over() {
    let (chats, store) = server_with_store();
    let response = tokio::spawn(text_of(post(&chats, "m1", "Hi").await));
    sleep(Duration::from_millis(515)).await;
    assert_eq!(store.of("chat", "word 2.").len(), 0);
    assert_eq!(chats.shut_down(Duration::ZERO).await, 1);
    assert_eq!(store.of("chat", "word 2.").len(), 1);
    response.await.unwrap();
    assert_eq!(answer(&server(&store)).await, READ);
}
