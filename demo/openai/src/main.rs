//! The demo with the model of a real provider: `OPENAI_API_KEY=… cargo run -p chat-openai`.
//!
//! `OPENAI_BASE_URL` sets another server with the same API. `OPENAI_MODEL` sets the model
//! (`gpt-4.1-mini` by default). `OPENAI_API` sets the API: `chat` (the default) or `responses`.

use std::env::{VarError, var};
use std::sync::Arc;

use anyhow::{Context, bail};
use demo::Storage;
use ui_message_stream::model::Model;
use ui_message_stream_openai::{ChatCompletions, Endpoint, Responses};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    demo::init_log();
    demo::run(model()?, Storage::open().await?).await
}

/// Creates the model that the environment variables select.
fn model() -> anyhow::Result<Arc<dyn Model>> {
    let Some(key) = env_var("OPENAI_API_KEY")? else {
        bail!("OPENAI_API_KEY is not set; `cargo run --example chat` needs no key");
    };
    let endpoint = match env_var("OPENAI_BASE_URL")? {
        Some(url) => Endpoint::new(&url).context("OPENAI_BASE_URL")?.with_key(&key),
        None => Endpoint::openai(&key),
    };
    let endpoint = endpoint.context("OPENAI_API_KEY")?;
    let model = env_var("OPENAI_MODEL")?.unwrap_or_else(|| "gpt-4.1-mini".to_owned());
    Ok(match env_var("OPENAI_API")?.as_deref() {
        None | Some("chat") => Arc::new(ChatCompletions::new(endpoint, model)),
        Some("responses") => Arc::new(Responses::new(endpoint, model)),
        Some(_) => bail!("OPENAI_API is neither `chat` nor `responses`"),
    })
}

/// Returns the value of an environment variable if it is set and not empty.
fn env_var(name: &str) -> anyhow::Result<Option<String>> {
    match var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => bail!("{name} is not UTF-8"),
    }
}
