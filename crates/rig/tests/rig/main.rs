//! rig's models and agents: what a provider streams goes through rig and this crate to the browser's
//! message, whole, and goes back to the provider as it takes it; what needs a person is asked about,
//! and runs once it is approved.

mod agent;
mod agents;
mod agreed;
mod answers;
mod chats;
mod client;
mod doubled;
mod histories;
mod hooks;
mod hosted;
mod model;
mod provider;
mod recordings;
