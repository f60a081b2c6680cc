//! What each fuzz target does with its input. `tests/corpus.rs` does the same with the corpora.

#![allow(dead_code, reason = "each binary uses one of them")]

pub(crate) mod request;
pub(crate) mod sse_decode;
pub(crate) mod translator;
