//! [`ChatCompletions`] and [`Responses`]: adapters for OpenAI's models and for every server with a
//! compatible API.
//!
//! ```no_run
//! use ui_message_stream_agent::Agent;
//! use ui_message_stream_openai::{ChatCompletions, Endpoint};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let key = std::env::var("OPENAI_API_KEY")?;
//! let agent = Agent::new(ChatCompletions::new(Endpoint::openai(&key)?, "gpt-4.1-mini"));
//! // Any other server: Ollama, vLLM, Groq, Mistral, DeepSeek, xAI, OpenRouter.
//! let local = Endpoint::new("http://localhost:11434/v1")?;
//! let agent = Agent::new(ChatCompletions::new(local, "qwen3"));
//! # Ok(())
//! # }
//! ```
//!
//! The default feature `client` contains these adapters. Without it the crate consists only of
//! [`response_items`], which other adapters of the same API use without an HTTP client.
//!
//! A failure of the provider is an error of the stream. The error is logged with `tracing`, and the
//! user sees a general message. Neither contains a key.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]
#![deny(clippy::disallowed_methods)]

#[cfg(feature = "client")]
mod call_ids;
#[cfg(feature = "client")]
mod chat_completions;
#[cfg(feature = "client")]
mod deltas;
#[cfg(feature = "client")]
mod endpoint;
#[cfg(feature = "client")]
mod error;
#[cfg(feature = "client")]
mod fields;
#[cfg(feature = "client")]
mod files;
#[cfg(feature = "client")]
mod request_forms;
#[cfg(feature = "client")]
mod request_overrides;
pub mod response_items;
#[cfg(feature = "client")]
mod response_stream;
#[cfg(feature = "client")]
mod responses;
#[cfg(feature = "client")]
mod strict_schema;

#[cfg(feature = "client")]
pub use self::chat_completions::ChatCompletions;
#[cfg(feature = "client")]
pub use self::endpoint::{Endpoint, EndpointError};
#[cfg(feature = "client")]
pub use self::error::ProviderError;
#[cfg(feature = "client")]
pub use self::responses::Responses;

#[cfg(all(doctest, feature = "client"))]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

// Here and not in its own package, because one of its examples uses this package.
#[cfg(all(doctest, feature = "client"))]
#[doc = include_str!("../../agent/README.md")]
struct AgentReadmeExamples;
