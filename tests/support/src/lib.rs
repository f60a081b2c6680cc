//! Code that the tests of several packages of this workspace share.

use std::path::{Path, PathBuf};

pub mod adapter_server;
pub mod contention;
pub mod external_processes;
pub mod fixture_files;
pub mod js_numbers;
pub mod message_contents;
pub mod notifier_kills;
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

/// Returns a secret for the keys of approvals. Each number gives another one.
pub fn secret(number: u8) -> [u8; 32] {
    std::array::from_fn(|at| number.wrapping_add(at as u8))
}
