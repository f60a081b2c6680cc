//! The reducer: it holds what the real client holds, and a message comes back from its chunks.
//!
//! The recorded client is asked here; `reduce_differential` asks the real one.

mod compacting;
mod fixtures;
mod rules;
