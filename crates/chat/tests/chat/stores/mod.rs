//! What a server writes to its store, and what a host's own tables get.

mod append_interval;
mod log_store;
mod message_sink;
mod operations;
pub(crate) mod row_store;
mod stored_formats;
mod unknown_entries;
