//! The CPU of a turn in a chat of 50, 800 and 3 200 turns, with an agent that always answers the
//! same, and a body that holds only the new message. The last turn may cost at most twice as much
//! as the first. Then the CPU of an edit and of a regeneration of the last answer in chats of 100 and
//! of 10 000 messages whose answers have called a tool, and of a POST of 5 000 messages:
//!   cargo bench --bench long_chats

use std::fs;

use futures::{StreamExt, stream};
use serde_json::{Value, json};
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, ChatRequest};
use ui_message_stream_chat::ChatLimits;
use ui_message_stream_chat::{ChatServer, HistoryImport, Turn};

/// The chats in which each figure is measured, and the turns that are measured in each of them.
const CHATS: usize = 40;
const TURNS: usize = 50;

/// How often a request is measured in a long chat.
const ROUNDS: usize = 500;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let agent = |_: Turn| stream::iter([AgentEvent::text("I see.")]);
    let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox));
    let (mut turns, mut first) = (0, None);
    for length in [50, 800, 3_200] {
        while turns < length - TURNS / 2 {
            for chat in 0..CHATS {
                turn(&chats, chat, turns).await;
            }
            turns += 1;
        }
        let before = cpu_nanos();
        for _ in 0..TURNS {
            for chat in 0..CHATS {
                turn(&chats, chat, turns).await;
            }
            turns += 1;
        }
        let nanos = (cpu_nanos() - before) / (TURNS * CHATS) as u64;
        let ratio = nanos as f64 / *first.get_or_insert(nanos) as f64;
        let micros = nanos as f64 / 1_000.0;
        println!(
            "a turn in a chat of {length} turns: {micros:.1} µs of CPU, {ratio:.2} × the first"
        );
    }
    let history = |length| (0..length).map(message).collect::<Vec<_>>();
    let change = |length: usize, round: usize| {
        let text = format!("Changed {round}");
        let id = format!("m{}", length - 2);
        json!({"id": "chat", "messageId": id, "messages": [user(&id, &text)]})
    };
    let regenerate = |length: usize, _| {
        let posted = [message(length - 2)];
        json!({"id": "chat", "trigger": "regenerate-message", "messages": posted})
    };
    let post = |length: usize, round: usize| {
        let new = user(&format!("new {round}"), "Go on");
        let posted = [history(length), vec![new]].concat();
        json!({"id": "chat", "messages": posted})
    };
    in_chats("an edit of the last message", [100, 10_000], change).await;
    in_chats("a regeneration of the last answer", [100, 10_000], regenerate).await;
    in_chats("a POST of all messages", [50, 5_000], post).await;
}

/// Measures a request in chats of two lengths.
async fn in_chats(what: &str, lengths: [usize; 2], body: impl Fn(usize, usize) -> Value) {
    let mut first = None;
    for length in lengths {
        let agent = |_: Turn| stream::iter([AgentEvent::text("I see.")]);
        let limits = ChatLimits::default()
            .with_max_chat_messages(usize::MAX)
            .with_max_chat_bytes(usize::MAX);
        let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox));
        let chats = chats.with_limits(limits).with_history_import(HistoryImport::TextsAndResults);
        // The last message of the history is one of the user.
        let history: Vec<_> = (0..length - 1).map(message).collect();
        answer(&chats, parse(&json!({"id": "chat", "messages": history}))).await;
        let mut nanos = 0;
        for round in 0..ROUNDS {
            let request = parse(&body(length, round));
            let before = cpu_nanos();
            answer(&chats, request).await;
            nanos += cpu_nanos() - before;
        }
        let micros = nanos as f64 / ROUNDS as f64 / 1_000.0;
        let ratio = micros / *first.get_or_insert(micros);
        println!("{what} in a chat of {length}: {micros:.1} µs of CPU, {ratio:.2} × the first");
    }
}

/// The message at this place of a chat whose answers have called a tool.
fn message(at: usize) -> Value {
    match at % 2 {
        0 => user(&format!("m{at}"), "Go on"),
        _ => json!({"id": format!("m{at}"), "role": "assistant", "parts": [
            {"type": "tool-look", "toolCallId": format!("call {at}"), "state": "output-available",
             "input": {}, "output": "found"},
            {"type": "text", "text": "I see."},
        ]}),
    }
}

fn user(id: &str, text: &str) -> Value {
    json!({"id": id, "role": "user", "parts": [{"type": "text", "text": text}]})
}

fn parse(body: &Value) -> ChatRequest {
    let limits = Limits::default()
        .with_max_bytes(usize::MAX)
        .with_max_messages(usize::MAX)
        .with_max_parts(usize::MAX)
        .with_max_nodes(usize::MAX);
    ChatRequest::parse(body.to_string().as_bytes(), &limits).expect("a valid request")
}

async fn turn(chats: &ChatServer, chat: usize, number: usize) {
    let message = user(&format!("m{number}"), "Go on");
    let request = parse(&json!({"id": format!("chat {chat}"), "message": message}));
    answer(chats, request).await;
}

async fn answer(chats: &ChatServer, request: ChatRequest) {
    let ada = Principal::new("ada");
    let mut response = chats.stream_response(&ada, request).await.expect("a response");
    while response.next().await.is_some() {}
}

/// Returns the CPU time of this thread.
fn cpu_nanos() -> u64 {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let nanos = stat.split(' ').next().and_then(|nanos| nanos.parse().ok());
    nanos.expect("the time on the CPU comes first")
}
