//! The stores in a real Postgres: the conformance suites, what is kept and for how long, schemas, readers
//! that wait, two chat servers, and a Postgres that crashes or whose replies are lost.

mod batches;
mod chat_servers;
mod clock;
mod conformance;
mod database;
mod faults;
mod formats;
mod hints;
mod insertions;
mod log_races;
mod log_pages;
mod log_store;
mod retention;
mod sessions;
mod turn_costs;
mod users;
