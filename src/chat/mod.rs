//! Conversations that the server stores.
//!
//! - [`Chat`] is the stored conversation. [`Recorder`] turns the events of an agent into the
//!   assistant message of a conversation. Both are core: a host that serves conversations with its
//!   own code uses only these two.
//! - [`ChatServer`] serves conversations. For each turn it loads the conversation from a
//!   [`store`], redeems the answers of the user and the client, runs the agent, and saves the
//!   result.
//!
//! ```text
//! request ──▶ history ──▶ resolve ──▶ Turn ──▶ agent ──▶ Recorder ──▶ history
//!                            └─────────────────────┴───▶ response
//! ```

mod conversation;
#[cfg(feature = "approvals")]
mod server;
#[cfg(feature = "approvals")]
pub mod store;
#[cfg(feature = "approvals")]
mod turn;

pub use self::conversation::{Chat, ClientAnswers, Recorder, StopReason};
#[cfg(feature = "approvals")]
pub use self::server::{
    AgentEventStream, ChatAgent, ChatError, ChatResponse, ChatServer, DecisionReceipt, Turn,
};
