//! What each fuzz target does with its input. `tests/protocol/corpus.rs` does the same with the
//! corpora.

pub mod request;
pub mod sse_decode;
pub mod translator;
