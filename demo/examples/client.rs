//! A client in Rust. Start `cargo run --example chat`, then `cargo run --example client delete`.
use std::env::args;
use std::io::{Write, stdin, stdout};

use anyhow::Context;
use ui_message_stream::message::{Part, Role, ToolPart};
use ui_message_stream::{Json, UiMessage, reducer::ResponseReader};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let text = args().nth(1).context("which message? The first argument is its text")?;
    let url = args().nth(2).unwrap_or("http://127.0.0.1:3000/api/chat".to_owned());
    let chat = uuid::Uuid::new_v4().to_string();
    let question = UiMessage::new("1", Role::User, vec![Part::text(text)]);
    let mut answer = read(&url, &chat, &[&question]).await?;
    while answer.tool_parts().any(ToolPart::awaits_approval) {
        for call in answer.tool_parts_mut().filter(|call| call.awaits_approval()) {
            println!("\n{} {}: y/n?", call.tool_name, call.input().map_or("", Json::as_str));
            call.respond(stdin().lines().next().context("no decision")?? == "y", None)?;
        }
        answer = read(&url, &chat, &[&question, &answer]).await?;
    }
    Ok(())
}

async fn read(url: &str, chat: &str, messages: &[&UiMessage]) -> anyhow::Result<UiMessage> {
    let body = serde_json::json!({"id": chat, "messages": messages}).to_string();
    let http = reqwest::Client::new();
    let mut reader = ResponseReader::continuing(messages[messages.len() - 1].clone());
    while !reader.is_complete() {
        let request = match reader.connect()? {
            None => http.post(url).header("content-type", "application/json").body(body.clone()),
            Some(id) => http.get(format!("{url}/{chat}/stream")).header("last-event-id", &*id),
        };
        let mut response = request.send().await?.error_for_status()?;
        while let Ok(Some(bytes)) = response.chunk().await {
            print!("{}", reader.push(&bytes)?);
            stdout().flush()?;
        }
    }
    Ok(reader.into_message())
}
