//! The reducer: it holds the same message as the real client, and a message is rebuilt from its
//! chunks.
//!
//! These tests use recordings of the client; `reduce_differential` runs the real one.

mod compacting;
mod fixtures;
mod rules;
