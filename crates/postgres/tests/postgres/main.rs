//! The stores in a real Postgres: the conformance suites, what is kept and for how long, schemas, readers
//! that wait, two chat servers, and a Postgres that crashes or whose replies are lost.

mod chat_servers;
mod clock;
mod conformance;
mod database;
mod faults;
mod formats;
mod hints;
mod insertions;
#[cfg(feature = "log-store")]
mod log_races;
#[cfg(feature = "log-store")]
mod log_store;
mod logs;
mod retention;
mod users;
