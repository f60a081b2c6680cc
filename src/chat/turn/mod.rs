//! A turn: a request to a conversation, from its arrival to the end of what it causes.
//!
//! The state machine decides. Its driver performs the effects, and waits for their results, for the
//! agent and for hints.

pub(super) mod driver;
mod effects;
pub(super) mod machine;
