//! The stores in one SQLite file: the conformance suites, what is kept and for how long, readers that wait,
//! and a file that is locked, of a newer version, or of another program.

mod chat_server;
mod clock;
mod conformance;
mod faults;
mod file_health;
mod folder;
mod formats;
mod hints;
mod log_removal;
mod log_store;
mod reopening;
mod retention;
mod shared_transactions;
mod turn_costs;
mod users;
