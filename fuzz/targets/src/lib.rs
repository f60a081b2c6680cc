//! The code of each fuzz target. `tests/protocol/corpus.rs` runs it on the corpora.

pub mod request;
pub mod sse_decode;
pub mod translator;
