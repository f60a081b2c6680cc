//! The demo: a chat whose tools ask for approval. It needs no API key, no service and no build
//! step.
//!
//! Run `cargo run --example chat`, then open the page and ask it to delete a file. Ask it to tidy up, and
//! an agent inside the agent asks to delete two files. With a real provider:
//! `OPENAI_API_KEY=… cargo run -p chat-openai`.
//!
//! Chats, approvals and the users' worlds are in the file `chat.db`, or the one that `UIMS_DATA`
//! names. Kill the demo, start it again, and the page goes on. `CHAT_STORE=memory` keeps nothing.
//! `CHAT_STORE=redis://127.0.0.1/` keeps chats and approvals in Redis: start the demo on two ports with
//! the same file, and each serves the chats of both. `CHAT_STORE=postgresql://…` does this in Postgres.
//!
//! With the argument `schemas` it prints the schemas of its tools, and ends.

use std::sync::Arc;

use demo::{ScriptedModel, Storage};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    if std::env::var_os("OPENAI_API_KEY").is_some() {
        println!("A scripted model answers; for a real one: cargo run -p chat-openai");
    }
    demo::init_log();
    let storage = Storage::open().await?;
    let model = Arc::new(ScriptedModel);
    if std::env::args().nth(1).as_deref() == Some("schemas") {
        println!("{}", demo::schemas(model, &storage)?);
        return Ok(());
    }
    demo::run(model, storage).await
}
