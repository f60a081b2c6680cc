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

#[cfg(feature = "approvals")]
mod agent;
#[cfg(feature = "approvals")]
mod complete;
mod conversation;
#[cfg(feature = "approvals")]
mod deliveries;
#[cfg(feature = "approvals")]
mod driver;
#[cfg(feature = "approvals")]
mod effects;
#[cfg(feature = "approvals")]
mod error;
#[cfg(feature = "approvals")]
mod folds;
#[cfg(feature = "approvals")]
mod followers;
#[cfg(feature = "approvals")]
mod hints;
#[cfg(feature = "approvals")]
mod inner;
#[cfg(feature = "approvals")]
mod load_state;
#[cfg(feature = "approvals")]
mod loads;
#[cfg(feature = "approvals")]
mod log;
#[cfg(feature = "approvals")]
mod message_sink;
#[cfg(feature = "approvals")]
mod reader;
#[cfg(feature = "approvals")]
mod readers;
#[cfg(feature = "approvals")]
mod redeem;
#[cfg(feature = "approvals")]
mod run_counts;
#[cfg(feature = "approvals")]
mod server;
#[cfg(feature = "approvals")]
mod settings;
#[cfg(feature = "approvals")]
mod shutdown;
#[cfg(all(test, feature = "approvals"))]
mod simulator;
#[cfg(feature = "approvals")]
mod sink;
#[cfg(feature = "approvals")]
mod started_turn;
#[cfg(feature = "approvals")]
pub mod store;
#[cfg(feature = "approvals")]
mod stream;
#[cfg(feature = "approvals")]
mod sweeps;
#[cfg(feature = "approvals")]
mod tail;

#[cfg(feature = "approvals")]
pub use self::agent::{AgentEventStream, ChatAgent, Turn};
#[cfg(feature = "approvals")]
pub use self::complete::ChatResponse;
pub use self::conversation::{
    Chat, ClientAnswers, HistoryCompleteness, HistoryImport, Messages, MessagesIter, PostedHistory,
    RecordedMessage, Recorder, RequestConflict, RequestEffect, StopReason,
};
#[cfg(feature = "approvals")]
pub use self::error::ChatError;
#[cfg(feature = "approvals")]
pub use self::message_sink::{MessageChange, MessageDelivery, MessageSink};
#[cfg(feature = "approvals")]
pub use self::run_counts::RunCounts;
#[cfg(feature = "approvals")]
pub use self::server::{ChatServer, DecisionReceipt};
#[cfg(feature = "approvals")]
pub use self::stream::ChatStream;
