//! Code that the tests of several packages of this workspace share.

use std::path::{Path, PathBuf};

pub mod adapter_server;
pub mod contention;
pub mod external_processes;
pub mod fixture_files;
pub mod js_numbers;
pub mod kills;
pub mod message_contents;
pub mod prompt_rules;
pub mod random_messages;
pub mod recorded_streams;
pub mod recordings_folder;
pub mod rng;
pub mod sockets;
pub mod thread_subscriber;

/// Returns the folder of this repository.
pub fn repository() -> PathBuf {
    let support = Path::new(env!("CARGO_MANIFEST_DIR"));
    support.ancestors().nth(2).unwrap().to_owned()
}

/// Returns for how long a test waits for a state before it fails: `TEST_PATIENCE` in seconds, or 120 seconds.
pub fn patience() -> std::time::Duration {
    std::time::Duration::from_secs(rng::setting("TEST_PATIENCE").unwrap_or(120))
}

/// Returns a secret for the keys of approvals. Each number gives another one.
pub fn secret(number: u8) -> [u8; 32] {
    std::array::from_fn(|at| number.wrapping_add(at as u8))
}
