//! A response as an `http_body::Body`, for a server of any framework.

use futures_util::stream;
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, ChatRequest, UiMessageStream};

fn main() -> anyhow::Result<()> {
    let body = br#"{"id":"1","messages":[{"id":"m","role":"user","parts":[{"type":"text","text":"Hi"}]}]}"#;
    let chat = ChatRequest::parse(body, &Limits::default())?;
    let response = UiMessageStream::reply(&chat, stream::iter([AgentEvent::text("Hello")]));
    println!("{response:?}");
    Ok(())
}
