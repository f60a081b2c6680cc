//! Helpers for the tests of applications: read what a route returns, and talk to it as a client.
//!
//! The functions take a response, a handler or a script. They return chunks, messages and findings,
//! and panic if a test uses them wrongly. They open no socket. Under tokio's paused time they do
//! not wait for real time.
//!
//! - [`collect_chunks`]: the body of a response as chunks.
//! - [`snapshot`]: chunks or messages as lines to compare, with stable names for ids and times.
//! - [`Recording`]: a conversation that `ui-message-stream record` wrote, with approvals; compared
//!   with what a route says now.
//! - [`conformance`], [`assert_conformant`]: check whether the clients accept a stream.
//! - [`ScriptedAgent`]: an agent that emits given events, pauses, fails or panics.
//! - [`Conversation`]: acts as the browser. It holds the messages as the real client does, responds
//!   to approval requests, executes client-executed tools, sends messages, stops, reconnects, and
//!   sends automatically where `sendAutomaticallyWhen` returns true.
//!
//! ```
//! use futures::stream;
//! use ui_message_stream::testing::{Conversation, snapshot};
//! use ui_message_stream::{AgentEvent, UiMessageStream};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! # runtime.block_on(async {
//! let mut chat = Conversation::new(async |chat| {
//!     UiMessageStream::reply(&chat, stream::iter([AgentEvent::text("Hello!")]))
//! });
//! chat.send("Hi").await;
//! assert_eq!(
//!     snapshot(chat.last_chunks()),
//!     r#"{"type":"start","messageId":"msg-1"}
//! {"type":"start-step"}
//! {"type":"text-start","id":"text-1"}
//! {"type":"text-delta","id":"text-1","delta":"Hello!"}
//! {"type":"text-end","id":"text-1"}
//! {"type":"finish-step"}
//! {"type":"finish"}
//! "#
//! );
//! # });
//! ```
//!
//! Not supported: approval responses that a user gives while a response is being read, and resuming
//! a response from its middle after the connection broke.

mod collect;
mod conformance;
mod conversation;
mod recording;
mod route;
mod scripted_agent;
mod send_automatically;
mod snapshot;

pub use self::collect::{CollectError, collect_chunks};
pub use self::conformance::{Conformance, Finding, assert_conformant, conformance};
pub use self::conversation::Conversation;
pub use self::recording::Recording;
pub use self::scripted_agent::ScriptedAgent;
pub use self::send_automatically::{
    last_assistant_message_is_complete_with_approval_responses,
    last_assistant_message_is_complete_with_tool_calls,
};
pub use self::snapshot::snapshot;
