//! The demo with a model of a real provider: `OPENAI_API_KEY=… cargo run -p chat-openai`.
//!
//! `OPENAI_BASE_URL` names another server with the same API, `OPENAI_MODEL` the model
//! (`gpt-4.1-mini`), `OPENAI_API` the interface: `chat` (the default) or `responses`.

use std::env::{VarError, var};
use std::error::Error;
use std::sync::Arc;

use demo::SharedWorld;
use ui_message_stream::agent::Model;
use ui_message_stream_openai::{ChatCompletions, Endpoint, Responses};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    demo::serve(model()?, Arc::new(SharedWorld::default())).await
}

/// Returns the model that the environment names.
fn model() -> Result<Arc<dyn Model>, Box<dyn Error>> {
    let Some(key) = set("OPENAI_API_KEY")? else {
        return Err("OPENAI_API_KEY is not set; `cargo run --example chat` needs no key".into());
    };
    let endpoint = match set("OPENAI_BASE_URL")? {
        Some(url) => Endpoint::at(&url)?.with_key(&key)?,
        None => Endpoint::openai(&key)?,
    };
    let model = set("OPENAI_MODEL")?.unwrap_or_else(|| "gpt-4.1-mini".to_owned());
    Ok(match set("OPENAI_API")?.as_deref() {
        None | Some("chat") => Arc::new(ChatCompletions::new(endpoint, model)),
        Some("responses") => Arc::new(Responses::new(endpoint, model)),
        Some(_) => return Err("OPENAI_API is neither `chat` nor `responses`".into()),
    })
}

/// Returns a variable of the environment, if it is set and not empty.
fn set(name: &str) -> Result<Option<String>, Box<dyn Error>> {
    match var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(format!("{name} is not UTF-8").into()),
    }
}
