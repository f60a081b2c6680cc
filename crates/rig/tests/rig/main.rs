//! rig's models and agents. Everything that a provider streams reaches the browser's message
//! through rig and this crate, and the provider accepts every request. A call that needs approval
//! runs once, after it was approved.

mod agent;
mod agents;
mod agreed;
mod answers;
mod as_they_are;
mod authorization;
mod chats;
mod client;
mod doubled;
mod histories;
mod hooks;
mod hosted;
mod model;
mod provider;
mod recordings;
