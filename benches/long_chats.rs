//! The CPU of a turn in a chat of 50, 800 and 3 200 turns, with an agent that always answers the
//! same, and a body that holds only the new message. The last turn may cost at most twice as much
//! as the first:
//!   cargo bench --bench long_chats

use std::fs;

use futures::{StreamExt, stream};
use serde_json::json;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream::chat::{ChatServer, Turn};
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, ChatRequest};

/// The chats in which each figure is measured, and the turns that are measured in each of them.
const CHATS: usize = 40;
const TURNS: usize = 50;

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
}

async fn turn(chats: &ChatServer, chat: usize, number: usize) {
    let message = json!({
        "id": format!("m{number}"), "role": "user", "parts": [{"type": "text", "text": "Go on"}],
    });
    let body = json!({"id": format!("chat {chat}"), "message": message}).to_string();
    let request = ChatRequest::parse(body.as_bytes(), &Limits::default()).expect("a valid request");
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
