//! The log of a chat: one append-only list of entries, of which the state of the chat is the fold.
//!
//! ```text
//! request ──▶ decide(state, goal) ──▶ append, if nothing has changed since ──▶ readers
//!                 ▲                        │ conflict
//!                 └──── load the tail ◀────┘
//! ```
//!
//! The chapter "One log for each chat" of `DESIGN.md` gives the rules. Nothing but tests uses this module
//! yet: it replaces the record of a chat and the logs of its runs.

mod decide;
mod entry;
mod memory;
mod simulator;
mod state;
mod store;
mod turn;
mod writer;
