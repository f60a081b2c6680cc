//! [`ChatCompletions`] and [`Responses`]: models of OpenAI, and of every server that speaks as it does.
//!
//! ```no_run
//! use ui_message_stream::agent::Agent;
//! use ui_message_stream_openai::{ChatCompletions, Endpoint};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let key = std::env::var("OPENAI_API_KEY")?;
//! let agent = Agent::new(ChatCompletions::new(Endpoint::openai(&key)?, "gpt-4.1-mini"));
//! // Any other server: Ollama, vLLM, Groq, Mistral, DeepSeek, xAI, OpenRouter.
//! let local = Endpoint::at("http://localhost:11434/v1")?;
//! let agent = Agent::new(ChatCompletions::new(local, "qwen3"));
//! # Ok(())
//! # }
//! ```
//!
//! A failure of the provider is an error of the stream: it goes to `tracing`, and the person reads
//! that something went wrong. A key stands in neither.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]
#![deny(clippy::disallowed_methods)]

mod response_stream;
mod chat_completions;
mod endpoint;
mod error;
mod request_overrides;
mod files;
mod function_tools;
mod strict_schema;
mod responses;

pub use self::chat_completions::ChatCompletions;
pub use self::endpoint::{Endpoint, EndpointError};
pub use self::error::ProviderError;
pub use self::responses::Responses;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
