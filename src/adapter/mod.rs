//! What adapters need beyond the other public rooms: adapters for models, for tool servers and for
//! other agent frameworks.
//!
//! The member crates of this workspace (`ui-message-stream-openai`, `-rig`, `-mcp`) use it, and so
//! can an adapter of your own. An adapter implements [`Model`](crate::agent::Model),
//! [`AnyTool`](crate::agent::AnyTool) or [`Respond`](crate::chat::Respond), and maps types: it
//! makes no decision about a tool call. The [run](crate::run) room decides what happens to a call,
//! the [approval](crate::approval) room who may approve it.
//!
//! - [`files`]: files in a message, as text for models that do not accept them.
//! - [`tools`]: the limits and the texts that all tools share.

pub mod files;
pub mod tools;
