//! The stream between an AI agent and the chat in front of it, with a person in the loop.

pub mod json;
pub mod record;
pub mod id;
pub mod metadata;
pub mod chunk;
pub mod event;
pub mod sse;

pub use chunk::Chunk;
pub use event::AgentEvent;
pub use json::Json;
