//! The real client: the npm packages that this folder pins, run by Node, check what this crate
//! writes and reads.
//!
//! Without Node a test says that it is skipped and passes; with `CI=true` it fails.

mod adapter;
mod canonical_json;
mod check_differential;
mod checker_warnings;
mod outputs_beside_denials;
mod random_streams;
mod reconnecting_fetch;
mod recordings;
mod reduce_differential;
mod translator_properties;
