//! [`Rows`]: all that a database has to do to be a [`LogStore`](super::LogStore).
//!
//! A database compares and writes rows, and knows no rule of chats. The rules are pure functions of rows and a time,
//! written once for all databases. A change of a log is a loop: the rows are read, a rule decides what is written, and
//! one [`Step`] writes it if no row has changed since. Otherwise the rule decides again.
//!
//! | module | content |
//! |---|---|
//! | `database`, `step` | what a database does |
//! | `rules` | what the rows of chats hold, and the rules: pure functions of them and a time |
//! | `log_rows` | the names of rows and lists, and the steps that read and write them |
//! | `known_logs` | what a process knows of the logs that it writes |
//! | `changes`, `appends`, `sweeps` | load rows, ask a rule, and write what it decides |
//! | `logs` | the functions of [`LogStore`](super::LogStore) |
//! | `waiters` | the waits of a process for changes |
//! | `conformance` | tests a database of rows |
//! | `memory` | rows in memory, and what goes first if they are too many |
//!
//! # What is stored
//! A *partition* is what one step can reach. Each user has one, and others hold the lists of the chats of all
//! users: those to sweep, and those that a sink has to get. In a partition are *rows* with a version, and *lists*. A row owns
//! *sequences* of items at consecutive positions, which are deleted with it.
//!
//! An entry in a list of another partition is written before the row that it belongs to, and removed after it. So
//! a list may name a chat that needs nothing, and always names one that needs something.

mod appends;
mod changes;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod database;
mod known_logs;
mod log_rows;
mod logs;
pub(super) mod memory;
mod rules;
#[cfg(test)]
mod simulator;
mod step;
mod sweeps;
mod waiters;

pub use self::database::Rows;
pub use self::known_logs::KnownLogs;
pub use self::log_rows::{ENTRIES, log_of_row, partition_of, row_of};
pub use self::step::{Found, Hint, Item, Read, Reply, Sequence, Step, Version, Write};
pub use self::waiters::{Known, Wait, Waiters};
