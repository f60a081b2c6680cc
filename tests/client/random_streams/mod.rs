//! Random streams, the clients that read them, and the comparison.

pub(crate) mod case;
pub(crate) mod client;
pub(crate) mod compare;
pub(crate) mod generator;
pub(crate) mod in_chat;
pub(crate) mod minimise;
mod stream;
