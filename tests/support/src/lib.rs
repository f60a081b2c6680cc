//! Code that the tests of several packages of this workspace share.

use std::path::{Path, PathBuf};

pub mod adapter_server;
pub mod browser;
pub mod calling_model;
pub mod contention;
pub mod deleted_users;
pub mod external_processes;
pub mod faulted_operations;
pub mod fixture_files;
pub mod js_numbers;
pub mod log_double;
pub mod log_hints;
pub mod long_answer;
pub mod prompt_rules;
pub mod random_logs;
pub mod random_messages;
pub mod recorded_conversations;
pub mod recorded_streams;
pub mod recordings_folder;
pub mod rng;
pub mod store_requests;
pub mod test_server;
pub mod thread_subscriber;

/// Returns the folder of this repository.
pub fn repository() -> PathBuf {
    let support = Path::new(env!("CARGO_MANIFEST_DIR"));
    support.ancestors().nth(2).unwrap().to_owned()
}

/// Returns a secret for the keys of approvals. Each number gives another one.
pub fn secret(number: u8) -> [u8; 32] {
    std::array::from_fn(|at| number.wrapping_add(at as u8))
}
