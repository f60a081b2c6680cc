//! The real model: with a key, and built with `--features openai`.
//!
//! `OPENAI_API_KEY`, and for other servers `OPENAI_BASE_URL`; `OPENAI_MODEL`, and `OPENAI_API`, which
//! is `chat` (the default) or `responses`.

use std::env::{VarError, var};
use std::error::Error;
use std::sync::Arc;

use ui_message_stream::agent::Model;
use ui_message_stream::model::openai::{ChatCompletions, Endpoint, Responses};

/// The model that the environment names, if it has a key.
pub(crate) fn model() -> Result<Option<Arc<dyn Model>>, Box<dyn Error>> {
    let Some(key) = set("OPENAI_API_KEY")? else { return Ok(None) };
    let endpoint = match set("OPENAI_BASE_URL")? {
        Some(url) => Endpoint::at(&url)?.with_key(&key)?,
        None => Endpoint::openai(&key)?,
    };
    let model = set("OPENAI_MODEL")?.unwrap_or_else(|| "gpt-4.1-mini".to_owned());
    Ok(Some(match set("OPENAI_API")?.as_deref() {
        None | Some("chat") => Arc::new(ChatCompletions::new(endpoint, model)),
        Some("responses") => Arc::new(Responses::new(endpoint, model)),
        Some(_) => return Err("OPENAI_API is neither `chat` nor `responses`".into()),
    }))
}

/// A variable that says something.
fn set(name: &str) -> Result<Option<String>, Box<dyn Error>> {
    match var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(format!("{name} is not UTF-8").into()),
    }
}
