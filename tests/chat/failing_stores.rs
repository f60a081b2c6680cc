//! What requests and readers get while a store fails, loses replies or panics.

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
use ui_message_stream::chat::{ChatError, ChatServer, ChatStream, Turn};
use ui_message_stream::event::ToolCall;
use ui_message_stream::id::ChatId;
use ui_message_stream::json::Json;
use ui_message_stream::request::Limits;
use ui_message_stream::response::{BodyError, ResponseOutcome};
use ui_message_stream::{AgentEvent, BoxFuture, ChatRequest};

/// Stores of chats and of logs that fail.
#[derive(Debug, Default)]
struct Faults {
    chats: InMemoryChatStore,
    runs: InMemoryRunStore,
    /// How many saves are applied without a reply.
    lost_saves: AtomicUsize,
    /// Saves are answered by an error, after the time that a store waits for its database.
    hangs: AtomicBool,
    /// The next load panics.
    panics: AtomicBool,
    /// Logs cannot be read.
    is_unreadable: AtomicBool,
    /// A read of a log that fails never has a reply.
    hangs_reads: AtomicBool,
    /// No run can be taken, and nothing can be appended to logs.
    is_unwritable: AtomicBool,
    /// How many takes fail.
    failing_takes: AtomicUsize,
    /// How many times a log was read.
    log_reads: AtomicUsize,
}

impl Faults {
    /// Lets all operations of runs fail for this time.
    async fn be_away(&self, time: Duration) {
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
        match self.is_unreadable.load(Ordering::SeqCst) {
            true if self.hangs_reads.load(Ordering::SeqCst) => Box::pin(pending()),
            true => Box::pin(async { Err(RunStoreError::new("no connection")) }),
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
struct Server {
    chats: ChatServer,
    faults: Arc<Faults>,
    calls: Arc<AtomicUsize>,
    permits: Arc<Semaphore>,
}

impl Server {
    /// Returns another server on the same stores, whose agent says nothing.
    fn other(&self) -> ChatServer {
        let agent = |_: Turn| stream::empty::<AgentEvent>();
        let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox));
        chats.with_store(self.faults.clone()).with_run_store(self.faults.clone())
    }
}

fn server() -> Server {
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

fn ada() -> Principal {
    Principal::new("ada")
}

fn post(id: &str, text: &str) -> ChatRequest {
    let message: Value =
        json!({"id": id, "role": "user", "parts": [{"type": "text", "text": text}]});
    let body = json!({"id": "chat", "message": message}).to_string();
    ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap()
}

async fn text_of(response: ChatStream) -> String {
    let frames = response.map(|frame| frame.unwrap().to_vec()).collect::<Vec<_>>();
    let frames = timeout(Duration::from_secs(120), frames).await.expect("the response ends");
    String::from_utf8(frames.concat()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_save_whose_reply_is_lost_is_compared_with_the_chat_and_the_run_goes_on() {
    for lost in [1, 2] {
        let server = server();
        server.permits.add_permits(1);
        server.faults.lost_saves.store(lost, Ordering::SeqCst);
        let response = server.chats.stream_response(&ada(), post("m1", "Hi")).await.unwrap();
        assert!(text_of(response).await.contains("answer"));
        assert_eq!(server.calls.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_save_never_has_a_reply_is_refused_and_can_be_sent_again() {
    let server = server();
    server.permits.add_permits(2);
    server.faults.lost_saves.store(3, Ordering::SeqCst);
    let mut refused = server.chats.stream_response(&ada(), post("m1", "Hi")).await;
    // A save can arrive without its reply. The run that it names is not driven.
    for _ in 0..3 {
        if let Ok(response) = refused {
            assert!(text_of(response).await.contains("answer"));
            return;
        }
        refused = server.chats.stream_response(&ada(), post("m1", "Hi")).await;
    }
    panic!("the message is not answered: {:?}", refused.err());
}

#[tokio::test(start_paused = true)]
async fn a_turn_gives_up_half_a_minute_after_its_store_has_begun_to_hang() {
    let server = server();
    let response = server.chats.stream_response(&ada(), post("m1", "Hi")).await.unwrap();
    drop(response);
    while server.calls.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let hangs_since = tokio::time::Instant::now();
    server.faults.hangs.store(true, Ordering::SeqCst);
    server.permits.add_permits(1);
    // The turn saves its message.
    assert_eq!(server.chats.shut_down(Duration::from_secs(600)).await, 0);
    let seconds = hangs_since.elapsed().as_secs();
    assert!((20..=40).contains(&seconds), "{seconds} s");
}

#[tokio::test(start_paused = true)]
async fn a_log_that_cannot_be_read_is_an_error_of_the_request() {
    let server = server();
    let mut response = server.chats.stream_response(&ada(), post("m1", "Hi")).await.unwrap();
    let first = String::from_utf8(response.next().await.unwrap().unwrap().to_vec()).unwrap();
    let id = first.strip_prefix("id: ").unwrap().lines().next().unwrap();
    server.faults.is_unreadable.store(true, Ordering::SeqCst);
    let (chat, ada) = ("chat".into(), ada());
    let resumed = server.chats.resume_stream(&ada, &chat, Some(id));
    let resumed = timeout(Duration::from_secs(60), resumed).await.unwrap();
    assert!(matches!(resumed, Err(ChatError::Runs(_))), "{resumed:?}");
    let next = server.chats.stream_response(&ada, post("m2", "No"));
    let next = timeout(Duration::from_secs(60), next).await.unwrap();
    assert!(matches!(next, Err(ChatError::Runs(_))), "{next:?}");
    // The next request finds a run whose holder is gone.
    server.faults.is_unreadable.store(false, Ordering::SeqCst);
    server.permits.add_permits(2);
    let next = server.chats.stream_response(&ada, post("m2", "No"));
    let next = timeout(Duration::from_secs(60), next).await.unwrap().unwrap();
    assert!(text_of(next).await.contains("answer"));
}

#[tokio::test(start_paused = true)]
async fn a_response_is_cut_off_if_its_log_cannot_be_read_for_half_a_minute_and_can_be_continued() {
    for (seconds, hangs_reads) in [(20, false), (40, false), (20, true), (40, true)] {
        let server = server();
        server.faults.hangs_reads.store(hangs_reads, Ordering::SeqCst);
        let mut written = server.chats.stream_response(&ada(), post("m1", "Hi")).await.unwrap();
        let _ = written.next().await.unwrap().unwrap();
        // A server reads its own logs from its memory.
        let other = server.other();
        let mut read = other.resume_stream(&ada(), &"chat".into(), None).await.unwrap().unwrap();
        let first = read.next().await.unwrap().unwrap();
        server.faults.is_unreadable.store(true, Ordering::SeqCst);
        server.permits.add_permits(1);
        let read = read.collect::<Vec<_>>();
        let (mut pages, ()) = tokio::join!(timeout(Duration::from_secs(120), read), async {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            server.faults.is_unreadable.store(false, Ordering::SeqCst);
        });
        let pages = pages.as_mut().expect("the response ends");
        let cut = pages.pop_if(|page| page.is_err());
        assert_eq!(cut, (seconds > 30).then_some(Err(BodyError::CutOff)));
        let mut text = String::from_utf8(first.to_vec()).unwrap();
        for page in pages {
            text.push_str(str::from_utf8(page.as_ref().unwrap()).unwrap());
        }
        // A proxy does not close the connection meanwhile.
        assert!(text.contains(": keep-alive\n\n"), "{text}");
        if cut.is_some() {
            assert!(!text.contains("[DONE]") && !text.contains(r#""type":"error""#), "{text}");
            let last = text.lines().rev().find_map(|line| line.strip_prefix("id: "));
            let rest = other.resume_stream(&ada(), &"chat".into(), last).await.unwrap().unwrap();
            text.push_str(&text_of(rest).await);
        }
        assert_eq!(text.matches(r#""delta":"answer""#).count(), 1, "{text}");
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_goes_on_after_its_store_was_away_for_longer_than_the_lease() {
    for outage in (11_000..16_000).step_by(100).map(Duration::from_millis) {
        let server = server();
        let response = server.chats.stream_response(&ada(), post("m1", "Hi")).await.unwrap();
        let other = server.other();
        let open = async |chats: &ChatServer| {
            let opened = chats.resume_stream(&ada(), &"chat".into(), None).await;
            text_of(opened.unwrap().unwrap()).await
        };
        let repeat = async |chats: &ChatServer| {
            text_of(chats.stream_response(&ada(), post("m1", "Hi")).await.unwrap()).await
        };
        let read = open(&other);
        let opened_again = async {
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            server.faults.be_away(outage).await;
            let go_on = async {
                tokio::time::sleep(Duration::from_secs(4)).await;
                server.permits.add_permits(1);
            };
            tokio::join!(
                open(&server.chats),
                open(&other),
                repeat(&server.chats),
                repeat(&other),
                go_on
            )
        };
        let (text, read, again) = tokio::join!(text_of(response), read, opened_again);
        for text in [text, read, again.0, again.1, again.2, again.3] {
            assert!(text.contains(r#""delta":"answer""#), "{outage:?}: {text}");
            assert!(text.ends_with("data: [DONE]\n\n"), "{outage:?}: {text}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_goes_on_while_its_servers_shut_down_although_its_store_was_away() {
    let server = server();
    let response = server.chats.stream_response(&ada(), post("m1", "Hi")).await.unwrap();
    let other = server.other();
    let read = other.resume_stream(&ada(), &"chat".into(), None).await.unwrap().unwrap();
    let go_on = async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        server.faults.be_away(Duration::from_secs(12)).await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        server.permits.add_permits(1);
    };
    let grace = Duration::from_secs(60);
    let (text, read, ended, ended_other, ()) = tokio::join!(
        text_of(response),
        text_of(read),
        server.chats.shut_down(grace),
        other.shut_down(grace),
        go_on
    );
    assert_eq!((ended, ended_other), (0, 0));
    for text in [text, read] {
        assert!(text.contains(r#""delta":"answer""#), "{text}");
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_shuts_down_hands_a_run_over_although_its_store_fails_twice() {
    let server = server();
    let response = server.chats.stream_response(&ada(), post("m1", "Hi")).await.unwrap();
    server.faults.failing_takes.store(2, Ordering::SeqCst);
    let (stopped, begun) =
        tokio::join!(server.chats.shut_down(Duration::from_secs(1)), text_of(response));
    assert_eq!(stopped, 1);
    assert_eq!(server.faults.failing_takes.load(Ordering::SeqCst), 0);
    let other = server.other();
    let last = begun.lines().rev().find_map(|line| line.strip_prefix("id: "));
    let asked_at = tokio::time::Instant::now();
    let rest = other.resume_stream(&ada(), &"chat".into(), last).await.unwrap().unwrap();
    assert!(text_of(rest).await.ends_with("data: [DONE]\n\n"));
    // The clock is paused. The lease has ten seconds.
    assert!(asked_at.elapsed() < Duration::from_secs(2), "{:?}", asked_at.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_store_is_rarely_read_for_a_client_of_the_server_that_writes() {
    let faults = Arc::new(Faults::default());
    let agent = |_: Turn| {
        stream::iter(0..600).then(|number| async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            AgentEvent::text(format!("{number} "))
        })
    };
    let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox));
    let chats = chats.with_store(faults.clone()).with_run_store(faults.clone());
    let response = chats.stream_response(&ada(), post("m1", "Hi")).await.unwrap();
    assert!(text_of(response).await.contains("599"));
    // The store has to know that the run is read.
    let reads = faults.log_reads.load(Ordering::SeqCst);
    assert!((6..=20).contains(&reads), "{reads} reads in a minute");
}

#[tokio::test(start_paused = true)]
async fn a_reader_of_a_run_whose_task_has_panicked_gets_the_end_of_the_response() {
    let server = server();
    let response = server.chats.stream_response(&ada(), post("m1", "Hi")).await.unwrap();
    while server.calls.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The run loads the chat at the next third of its lease.
    server.faults.panics.store(true, Ordering::SeqCst);
    let renewed_at = tokio::time::Instant::now();
    let text = text_of(response).await;
    assert!(text.contains("An ") && text.contains("The server was interrupted."), "{text}");
    // The clock is paused. The lease of ten seconds was renewed at most a third of it later.
    let seconds = renewed_at.elapsed().as_secs_f64();
    assert!((10.0..10.0 / 3.0 + 14.0).contains(&seconds), "{seconds} s");
    let chat = server.chats.chat(&ada(), &"chat".into()).await.unwrap();
    assert_eq!(chat.messages.len(), 2, "what the run has written is kept");
    assert_eq!(server.chats.run_counts().lapsed, 1);

    // A page that has lost this response repeats its request.
    let again = server.chats.stream_response(&ada(), post("m1", "Hi")).await.unwrap();
    let text = text_of(again).await;
    assert!(text.contains("An ") && text.contains("The server was interrupted."), "{text}");
    let again = server.chats.complete_response(&ada(), post("m1", "Hi")).await.unwrap();
    assert_eq!(again.outcome, ResponseOutcome::Failed);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_repeated_after_its_run_was_stopped_gets_an_abort() {
    let server = server();
    let response = server.chats.stream_response(&ada(), post("m1", "Hi")).await.unwrap();
    while server.calls.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.chats.stop(&ada(), &"chat".into()).await.unwrap();
    let again = server.chats.stream_response(&ada(), post("m1", "Hi")).await.unwrap();
    for response in [response, again] {
        let text = text_of(response).await;
        assert!(text.contains(r#"{"type":"abort"}"#) && text.contains("[DONE]"), "{text}");
    }
    let again = server.chats.complete_response(&ada(), post("m1", "Hi")).await.unwrap();
    assert_eq!(again.outcome, ResponseOutcome::Aborted);
}

/// The agent calls a tool in its first step. Its second step never ends, or, in a second run, at once.
#[tokio::test(start_paused = true)]
async fn a_response_goes_on_when_its_run_is_lost_between_two_steps() {
    let (faults, calls) = (Arc::new(Faults::default()), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&calls);
    let agent = move |_: Turn| {
        let first = [
            AgentEvent::tool_input(ToolCall::new("c1", "look"), Json::parse("{}").unwrap()),
            AgentEvent::tool_output("c1", Json::string("seen")),
            AgentEvent::StepFinish,
            AgentEvent::StepStart,
        ];
        match counted.fetch_add(1, Ordering::SeqCst) {
            0 => stream::iter(first).chain(stream::pending()).boxed(),
            _ => stream::iter([AgentEvent::text("All of it.")]).boxed(),
        }
    };
    let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox));
    let chats = chats.with_store(faults.clone()).with_run_store(faults.clone());
    let response = chats.stream_response(&ada(), post("m1", "Hi")).await.unwrap();
    let id = ChatId::from("chat");
    while faults.chats.load(&ada(), &id).await.unwrap().unwrap().chat.messages.len() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The run loads the chat at the next third of its lease.
    faults.panics.store(true, Ordering::SeqCst);
    let text = text_of(response).await;
    let count = |part: &str| text.matches(part).count();
    assert_eq!((count(r#""type":"start","#), count("[DONE]")), (1, 1), "{text}");
    assert!(text.contains("seen") && text.contains("All of it."), "{text}");
    assert!(!text.contains("error") && !text.contains("abort"), "{text}");
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    let chat = chats.chat(&ada(), &id).await.unwrap();
    let json = serde_json::to_value(&chat.messages[1]).unwrap();
    let parts: Vec<_> =
        json["parts"].as_array().unwrap().iter().map(|part| &part["type"]).collect();
    assert_eq!(parts, ["step-start", "tool-look", "step-start", "text"]);

    // A client that was cut before the server was lost goes on in the same way.
    let cut = text.lines().position(|line| line.contains("seen")).unwrap();
    let last = text.lines().nth(cut - 1).unwrap().strip_prefix("id: ").unwrap();
    let rest = chats.resume_stream(&ada(), &id, Some(last)).await.unwrap().unwrap();
    assert_eq!(text_of(rest).await, text[text.find("seen").unwrap() + "seen\"}\n\n".len()..]);
}

/// A save of a step is not repeated, and the next step is saved with the one before.
#[tokio::test(start_paused = true)]
async fn a_run_goes_on_although_no_save_of_its_steps_has_a_reply() {
    let faults = Arc::new(Faults::default());
    let lost = Arc::clone(&faults);
    let agent = move |_: Turn| {
        lost.lost_saves.store(25, Ordering::SeqCst);
        let steps = stream::iter(0..25).then(|step| async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let text = AgentEvent::text(format!("Step {step}."));
            stream::iter([text, AgentEvent::StepFinish, AgentEvent::StepStart])
        });
        steps.flatten().chain(stream::once(async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            AgentEvent::text("All of it.")
        }))
    };
    let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox));
    let chats = chats.with_store(faults.clone()).with_run_store(faults.clone());
    let response = chats.stream_response(&ada(), post("m1", "Hi")).await.unwrap();
    let text = text_of(response).await;
    assert!(text.contains("All of it.") && text.contains("[DONE]"), "{text}");
    assert_eq!(faults.lost_saves.load(Ordering::SeqCst), 0, "each step was saved");
    let chat = chats.chat(&ada(), &"chat".into()).await.unwrap();
    assert!(serde_json::to_string(&chat.messages[1]).unwrap().contains("All of it."));
}

#[tokio::test(start_paused = true)]
async fn a_comment_comes_in_time_although_a_read_begins_to_hang_after_a_silence() {
    let server = server();
    let mut written = server.chats.stream_response(&ada(), post("m1", "Hi")).await.unwrap();
    let _ = written.next().await.unwrap().unwrap();
    let other = server.other();
    let mut read = other.resume_stream(&ada(), &"chat".into(), None).await.unwrap().unwrap();
    let mut page = read.next().await.unwrap().unwrap();
    server.faults.hangs_reads.store(true, Ordering::SeqCst);
    let silence = async {
        tokio::time::sleep(Duration::from_secs(14)).await;
        server.faults.is_unreadable.store(true, Ordering::SeqCst);
    };
    let mut waited = Duration::ZERO;
    let comment = async {
        while page != ": keep-alive\n\n" {
            let began = tokio::time::Instant::now();
            page = read.next().await.unwrap().unwrap();
            waited = began.elapsed();
        }
    };
    let (comment, ()) = tokio::join!(timeout(Duration::from_secs(60), comment), silence);
    comment.expect("a comment");
    assert!((15..=21).contains(&waited.as_secs()), "{waited:?}");
}
