//! The log of a conversation: one append-only list of entries, of which the state of the conversation is
//! the fold.
//!
//! ```text
//! request ──▶ decide(state, goal) ──▶ append, if nothing has changed since ──▶ readers
//!                 ▲                        │ conflict
//!                 └──── load the tail ◀────┘
//! ```
//!
//! | module | content |
//! |---|---|
//! | `entry`, `state` | what a log holds, and the fold over it |
//! | `decision`, `decide`, `answer`, `join` | what a request does next: a pure function |
//! | `turn`, `turn_io` | a request, and the holder of a run, as a state machine without I/O |
//! | `writer`, `queue`, `pace` | events of the agent become entries |
//! | `run_frames`, `event_id`, `end_message`, `replay`, `held_position`, `open_chunks` | what clients read of a run |
//!
//! Nothing here does I/O: `driver`, `effects` and `reader` wait for stores, agents and clients.
//! The chapter "One log for each chat" of `DESIGN.md` gives the rules.

pub(super) mod client;
pub(super) mod answer;
pub(super) mod decide;
pub(super) mod decision;
pub(super) mod end_message;
pub(super) mod entry;
pub(super) mod event_id;
pub(super) mod held_position;
pub(super) mod join;
pub(super) mod open_chunks;
pub(super) mod pace;
pub(super) mod queue;
pub(super) mod replay;
pub(super) mod run_frames;
pub(super) mod state;
pub(super) mod turn;
pub(super) mod turn_io;
pub(super) mod writer;
