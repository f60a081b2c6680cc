//! A client in Rust. Start `cargo run --example chat`, then `cargo run --example client "delete"`.
use std::{error::Error, io::Write, sync::Arc, time::Duration};
use ui_message_stream::chunk::{Chunk::TextDelta, ReceivedChunk};
use ui_message_stream::message::{Part, Role};
use ui_message_stream::{Json, UiMessage, reducer::Reducer, sse::Decoder};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let text = std::env::args().nth(1).ok_or("which message?")?;
    let url = std::env::args().nth(2).unwrap_or("http://127.0.0.1:3000/api/chat".to_owned());
    let id = uuid::Uuid::new_v4().to_string();
    let question = UiMessage::new("1", Role::User, vec![Part::text(text)]);
    let mut answer = read(&url, &id, &[&question]).await?;
    while answer.tool_parts().any(|call| call.state.as_str() == "approval-requested") {
        for call in answer.tool_parts_mut().filter(|c| c.state.as_str() == "approval-requested") {
            println!("\n{} {}: y/n?", call.tool_name, call.input().map_or("", Json::as_str));
            call.respond(std::io::stdin().lines().next().ok_or("no decision")?? == "y", None)?;
        }
        answer = read(&url, &id, &[&question, &answer]).await?;
    }
    println!();
    Ok(())
}

/// Posts messages and reads the answer. Survives lost connections: the server has the rest of it.
async fn read(url: &str, id: &str, messages: &[&UiMessage]) -> Result<UiMessage, Box<dyn Error>> {
    let body = serde_json::json!({"id": id, "messages": messages}).to_string();
    let http = reqwest::Client::new();
    let mut reducer = Reducer::continuing(messages[messages.len() - 1].clone());
    let mut last_id: Option<Arc<str>> = None;
    for _ in 0..10 {
        // The server recognizes a request that it gets again.
        let request = match &last_id {
            None => http.post(url).header("content-type", "application/json").body(body.clone()),
            Some(last) => http.get(format!("{url}/{id}/stream")).header("last-event-id", &**last),
        };
        let mut response = request.send().await?.error_for_status()?;
        let mut decoder = Decoder::default();
        while let Ok(Some(bytes)) = response.chunk().await {
            decoder.push(&bytes);
            while let Some(event) = decoder.poll() {
                if event.data == "[DONE]" {
                    return Ok(reducer.into_message());
                }
                let chunk = ReceivedChunk::parse(&event.data)?;
                if let ReceivedChunk::Known { chunk: TextDelta { delta, .. }, .. } = &chunk {
                    print!("{delta}");
                    std::io::stdout().flush()?;
                }
                reducer.push(&chunk)?;
                last_id = event.id;
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Err("the connection broke too often".into())
}
