//! The features that a test of a user's route needs.

use futures_util::stream;
use ui_message_stream::testing::Conversation;
use ui_message_stream::{AgentEvent, ChatRequest, UiMessageStream};

async fn chat(chat: ChatRequest) -> UiMessageStream {
    UiMessageStream::reply(&chat, stream::iter([AgentEvent::text("Hello")]))
}

fn main() {
    println!("{:?}", Conversation::new(chat));
}
