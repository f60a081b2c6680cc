//! Conversations that the server stores.
//!
//! - [`Chat`] is the stored conversation. [`Recorder`] turns the events of an agent into the
//!   assistant message of a conversation, a [`RecordedMessage`]. Both do no I/O.
//! - [`ChatAgent`] is an agent that answers a [`Turn`]. A host that serves conversations with its
//!   own code creates the turns itself with [`Turn::new`].
//! - [`ChatServer`] serves conversations, each as one log in a [`store`]. For each request it loads the
//!   conversation, redeems the answers of the user and the client, runs the agent, and appends what the
//!   agent writes to the log. All responses read the log.
//!
//! ```text
//! request ──▶ turn ──▶ history ──▶ agent ──▶ log ──▶ history
//!                                             └────▶ responses
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]
#![deny(clippy::disallowed_methods)]

#[macro_use]
mod debug;

mod agent;
#[cfg(feature = "axum")]
pub mod axum;
mod complete;
mod conversation;
mod deliveries;
mod driver;
mod effects;
mod error;
mod expiries;
mod folds;
mod followers;
mod hints;
mod inner;
mod limits;
mod load_state;
mod loads;
mod log;
mod message_sink;
mod notices;
mod metrics;
mod reader;
mod readers;
mod redeem;
mod registry;
mod run_counts;
mod server;
mod settings;
mod shutdown;
#[cfg(test)]
mod tests;
mod sink;
mod started_turn;
pub mod store;
mod stream;
mod sweeps;
mod tail;
mod ticks;

pub use self::agent::{AgentEventStream, ChatAgent, Turn};
pub use self::complete::ChatResponse;
pub use self::conversation::{
    Chat, ClientAnswers, HistoryCompleteness, HistoryImport, Messages, MessagesIter, PostedHistory,
    RecordedMessage, Recorder, RequestConflict, RequestEffect, StopReason,
};
pub use self::error::ChatError;
pub use self::limits::{ChatLimitError, ChatLimits};
pub use self::message_sink::{MessageChange, MessageDelivery, MessageSink};
pub use self::run_counts::RunCounts;
pub use self::server::{ChatServer, DecisionReceipt};
pub use self::stream::ChatStream;

#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../docs/your-agent.md")]
struct YourAgentExamples;

#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../docs/your-agent-reference.md")]
struct YourAgentReferenceExamples;

#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../docs/operations.md")]
struct OperationsExamples;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/metrics.md")]
struct MetricsExamples;

#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
