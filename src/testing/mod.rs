//! For the tests of those who use this crate: what a route says, and a client that talks to it.
//!
//! Takes a response, a handler or a script; gives chunks, messages and findings, and panics as a
//! test should where it is used wrongly. Nothing here opens a socket, and nothing waits for real
//! time where tokio's is paused.
//!
//! - [`collect_chunks`]: a response's body as chunks.
//! - [`snapshot`]: chunks or messages as lines to compare, with stable names for ids and times.
//! - [`conformance`], [`assert_conformant`]: whether the clients accept a stream.
//! - [`ScriptedAgent`]: an agent that says what it was told to, pauses, fails or panics.
//! - [`Conversation`]: plays the browser's side. It holds the messages as the real client does,
//!   answers approvals, runs client-executed tools, writes on, stops, reconnects, and sends again
//!   where `sendAutomaticallyWhen` says so.
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
//! Left out: answers that a person gives while a response is read, and the rest of a response
//! without its beginning after the connection broke.

mod collect;
mod conformance;
mod conversation;
mod scripted_agent;
mod send_automatically;
mod snapshot;

pub use self::collect::{CollectError, collect_chunks};
pub use self::conformance::{Conformance, Finding, assert_conformant, conformance};
pub use self::conversation::Conversation;
pub use self::scripted_agent::ScriptedAgent;
pub use self::send_automatically::{
    last_assistant_message_is_complete_with_approval_responses,
    last_assistant_message_is_complete_with_tool_calls,
};
pub use self::snapshot::snapshot;
