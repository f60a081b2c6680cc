//! The demo: a chat whose tools ask for approval. It needs no API key, no service and no build
//! step.
//!
//! Run `cargo run --example chat`, then open the page and ask it to delete a file. With a real
//! provider: `OPENAI_API_KEY=… cargo run -p chat-openai`.

use std::error::Error;
use std::sync::Arc;

use demo::{ScriptedModel, SharedWorld};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    if std::env::var_os("OPENAI_API_KEY").is_some() {
        println!("A scripted model answers; for a real one: cargo run -p chat-openai");
    }
    let world = Arc::new(SharedWorld::default());
    demo::run(Arc::new(ScriptedModel::new(Arc::clone(&world))), world).await
}
