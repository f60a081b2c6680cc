//! The decisions of [`ChatTurn`] as tables: the actions that a turn asks for, and the inputs that it
//! gets.

mod answers;
mod deletions;
mod harness;
mod lost_runs;
mod requests;
mod runs;
mod takes;
