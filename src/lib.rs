//! The stream between an AI agent and the chat in front of it, with a person in the loop.

pub mod json;
pub mod record;
pub mod id;
pub mod metadata;
pub mod chunk;

pub use chunk::Chunk;
pub use json::Json;
