//! What a chat server holds in memory: for half-sent bodies, for a turn in a long chat, and for responses
//! that are not read. This binary has a counting allocator, and therefore runs one test at a time.

mod half_sent_bodies;
mod turns;
mod unread_responses;

use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Held by the test that measures.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
