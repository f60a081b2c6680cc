//! [`ChatServer::with_append_interval`]: when a run appends what it writes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_stream::stream;
use chat_test_support::log_double::{Answer, Intercepts, LogDouble};
use test_support::requests::{ada, say};
use test_support::responses::text_of;
use tokio::time::{Instant, sleep};
use ui_message_stream::approval::{Approvals, EmptyToolbox};
use ui_message_stream::event::ToolCall;
use ui_message_stream::{AgentEvent, Json};
use ui_message_stream_chat::store::{AppendLog, AppendResult, InMemoryLogStore, LogStore};
use ui_message_stream_chat::{ChatServer, Turn};

const INTERVAL: Duration = Duration::from_millis(50);

/// A store that records what is appended to each chat, and how many milliseconds after the first append.
#[derive(Debug, Default)]
struct Recorded {
    logs: InMemoryLogStore,
    begun: Mutex<Option<Instant>>,
    appends: Mutex<Vec<(String, u128, String)>>,
}

impl Intercepts for Recorded {
    fn store(&self) -> &dyn LogStore {
        &self.logs
    }

    fn append<'a>(&'a self, append: AppendLog<'a>) -> Answer<'a, AppendResult> {
        let begun = *self.begun.lock().unwrap().get_or_insert_with(Instant::now);
        let bytes = append.entries.iter().map(|it| str::from_utf8(&it.bytes).unwrap().to_owned());
        let append_of = (append.key.chat.to_string(), begun.elapsed().as_millis(), bytes.collect());
        self.appends.lock().unwrap().push(append_of);
        self.logs.append(append)
    }
}

impl Recorded {
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
    let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox)).with_store(store.clone());
    chats.with_append_interval(INTERVAL)
}

#[tokio::test(start_paused = true)]
async fn the_first_text_is_appended_at_once_and_more_text_once_in_an_interval_by_all_runs_together()
{
    let store = Arc::<LogDouble<Recorded>>::default();
    let chats = server(&store);
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
    let store = Arc::<LogDouble<Recorded>>::default();
    let chats = server(&store);
    let response = chats.stream_response(&ada(), say("chat", "m1", "Hi")).await.unwrap();
    text_of(response).await;
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
    let store = Arc::<LogDouble<Recorded>>::default();
    let (chats, other) = (server(&store), server(&store));
    let response = chats.stream_response(&ada(), say("chat", "m1", "Hi")).await.unwrap();
    let response = tokio::spawn(text_of(response));
    let reader = other.resume_stream(&ada(), &"chat".into(), None).await.unwrap().unwrap();
    let reader = tokio::spawn(text_of(reader));
    sleep(Duration::from_millis(515)).await;
    let stored = || store.of("chat", "word 2.").len();
    assert_eq!(stored(), 0);
    sleep(INTERVAL).await;
    assert_eq!(stored(), 1);
    assert_eq!(response.await.unwrap(), reader.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_the_interval_is_stored_before_a_run_is_handed_over() {
    let store = Arc::<LogDouble<Recorded>>::default();
    let chats = server(&store);
    let response = chats.stream_response(&ada(), say("chat", "m1", "Hi")).await.unwrap();
    let response = tokio::spawn(text_of(response));
    sleep(Duration::from_millis(515)).await;
    assert_eq!(store.of("chat", "word 2.").len(), 0);
    assert_eq!(chats.shut_down(Duration::ZERO).await, 1);
    assert_eq!(store.of("chat", "word 2.").len(), 1);
    response.await.unwrap();
    let chat = server(&store).chat(&ada(), &"chat".into()).await.unwrap();
    assert_eq!(chat.messages[1].text(), "word 0. word 1. word 2. ");
}

#[tokio::test(start_paused = true)]
async fn without_an_interval_each_delta_is_appended() {
    let store = Arc::<LogDouble<Recorded>>::default();
    let chats = server(&store).with_append_interval(Duration::ZERO);
    let response = chats.stream_response(&ada(), say("chat", "m1", "Hi")).await.unwrap();
    text_of(response).await;
    assert_eq!(store.of("chat", "word").len(), 60);
}
