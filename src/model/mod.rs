//! Adapters of models: what a provider takes and streams, as [`Model`](crate::agent::Model).
//!
//! An adapter is a mapping and nothing else. What is to become of a call is decided in the
//! [run](crate::run) room, and who may approve it in the [approval](crate::approval) room.

mod files;
#[cfg(any(feature = "openai", feature = "rig"))]
mod hosted;
#[cfg(feature = "openai")]
pub mod openai;
#[cfg(feature = "rig")]
pub mod rig;
