//! What a server writes to its store, and what a host's own tables get.

mod append_interval;
mod log_store;
mod message_sink;
mod operations;
mod retention;
mod stored_formats;
mod unknown_entries;
mod wrong_stores;
