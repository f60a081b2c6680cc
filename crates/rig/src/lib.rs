//! Models and agents of [rig](https://docs.rs/rig-agent/0.44) 0.44 behind `useChat`, for
//! [`ui_message_stream`].
//!
//! - [`RigModel`]: a completion model of rig, and therefore of any provider that rig supports, as
//!   the model of an [`Agent`](ui_message_stream_agent::Agent).
//! - [`RigAgent`]: an agent that was built with rig, as the agent of a chat.
//!
//! The crates [`rig_core`] and [`rig_agent`] are re-exported in the version that this crate uses.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]
#![deny(clippy::disallowed_methods)]

pub mod agent;
pub mod model;

pub use ::{rig_agent, rig_core};

pub use self::agent::RigAgent;
pub use self::model::RigModel;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
