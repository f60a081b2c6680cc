//! The stores in a real Redis and in a Redis Cluster of three nodes: the conformance suites, what
//! is kept and for how long, readers that wait, and a Redis that ends, hangs, is full, restarts
//! without its data, or whose replies are lost.

mod backend;
mod buckets;
mod bytes;
mod conformance;
mod faults;
mod formats;
mod hinted_entries;
mod hints;
mod ledger;
mod restarts;
mod retention;
mod rows;
mod turn_costs;
mod users;
mod warnings;
