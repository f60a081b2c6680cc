//! The reducer: it holds what the real client holds, and a message comes back from its chunks.
//!
//! The recorded client is asked here; `reduce_differential` asks the real one.

#[path = "reduce/compacting.rs"]
mod compacting;
mod doubles;
#[path = "reduce/fixtures.rs"]
mod fixtures;
#[path = "reduce/rules.rs"]
mod rules;
