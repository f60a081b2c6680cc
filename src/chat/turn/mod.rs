//! A turn that is executing: its agent, its reader, and the other runs of its conversation.

mod driver;
mod listen;
pub(super) mod live;
mod next_run;
mod reader;
mod replay;
pub(super) mod run;
