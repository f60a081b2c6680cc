//! A turn takes as much memory in a chat of 5 000 messages as in one of 10, beyond what the agent
//! reads: the versions of a chat share its messages.

use std::time::Duration;

use futures::{StreamExt, stream};
use serde_json::{Value, json};
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, ChatRequest};
use ui_message_stream_chat::ChatLimits;
use ui_message_stream_chat::{ChatServer, Turn};

use super::{ALONE, HEAP};

/// How many bytes a turn in a chat of 5 000 messages may take more at most than one in a chat of 10.
/// The list of the pages of a version has 8 bytes for 64 messages.
const MORE: usize = 16 << 10;

#[tokio::test(start_paused = true)]
async fn a_turn_takes_as_much_memory_in_a_long_chat_as_in_a_short_one() {
    let _alone = ALONE.lock().await;
    let mut peaks = Vec::new();
    // The first turn of a process takes more.
    for length in [10, 10, 1_000, 5_000] {
        peaks.push(peak_of_a_turn(length).await);
    }
    println!("peak of a turn at 10, 10, 1 000, 5 000 messages: {peaks:?} bytes");
    assert!(peaks[3] <= peaks[1] + MORE, "{peaks:?}");
}

/// Returns the peak of the memory that a turn with a constant agent takes, of a client that sends its
/// last message only.
async fn peak_of_a_turn(length: usize) -> usize {
    let agent = |_: Turn| stream::iter([AgentEvent::text("An answer.")]);
    let limits = ChatLimits::default().with_max_chat_messages(usize::MAX);
    let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox)).with_limits(limits);
    let message = |id: &str, role: &str| {
        let parts = json!([{"type": "text", "text": "A message of a usual length."}]);
        json!({"id": id, "role": role, "parts": parts})
    };
    let ada = Principal::new("ada");
    let answer = async |body: Value| {
        let limits = Limits::default().with_max_messages(usize::MAX).with_max_parts(usize::MAX);
        let limits = limits.with_max_nodes(usize::MAX);
        let request = ChatRequest::parse(body.to_string().as_bytes(), &limits).unwrap();
        let response = chats.stream_response(&ada, request).await.unwrap();
        drop(response.collect::<Vec<_>>().await);
    };
    // The server imports the history.
    let roles = ["user", "assistant"].into_iter().cycle();
    let history = (1..length).zip(roles).map(|(at, role)| message(&format!("m{at:05}"), role));
    answer(json!({"id": "chat", "messages": history.collect::<Vec<_>>()})).await;
    // The state is stored after the end.
    tokio::time::sleep(Duration::from_millis(100)).await;

    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    answer(json!({"id": "chat", "message": message("new", "user")})).await;
    let peak = HEAP.peak_usage().saturating_sub(before);

    let stored = chats.chat(&ada, &"chat".into()).await.unwrap();
    assert_eq!(stored.messages.len(), length + 2);
    peak
}
