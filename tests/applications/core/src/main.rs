//! The core alone: a request in, the frames of a response out, without a runtime.

use ui_message_stream::request::Limits;
use ui_message_stream::sse::Encoder;
use ui_message_stream::{AgentEvent, ChatRequest, Chunk, Translator};

fn main() -> anyhow::Result<()> {
    let body = br#"{"id":"1","messages":[{"id":"m","role":"user","parts":[{"type":"text","text":"Hi"}]}]}"#;
    let chat = ChatRequest::parse(body, &Limits::default())?;
    let (mut encoder, mut frames) = (Encoder::default(), Vec::new());
    let mut write = |chunk: Chunk<'_>| encoder.encode(&chunk, &mut frames);
    let mut translator = Translator::new("message-1");
    translator
        .handle_event(&AgentEvent::text(format!("Hello, chat {}!", chat.id())), &mut write)?;
    translator.finish(&mut write);
    println!("{}", String::from_utf8(frames)?);
    Ok(())
}
