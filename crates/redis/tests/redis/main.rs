//! The ledger in a real Redis.

mod ledger;
mod proxy;
