//! Code that the tests of several packages of this workspace share.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub mod adapter_server;
pub mod any_tool;
pub mod approvals;
pub mod contention;
pub mod external_processes;
pub mod fixture_files;
pub mod js_numbers;
pub mod kills;
pub mod ledger_double;
pub mod message_contents;
pub mod prompt_rules;
pub mod random_messages;
pub mod recorded_streams;
pub mod recordings_folder;
pub mod requests;
pub mod responses;
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

/// Awaits a future. Panics after [`patience`].
#[track_caller]
pub fn within_patience<F: IntoFuture>(future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    let limited = tokio::time::timeout(patience(), future);
    async move {
        limited.await.unwrap_or_else(|_| panic!("{caller}: waits for longer than TEST_PATIENCE"))
    }
}

/// Polls a condition until it holds. Panics after [`patience`].
#[track_caller]
pub fn eventually(mut holds: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    within_patience(async move {
        while !holds().await {
            tokio::time::sleep(POLL).await;
        }
    })
}

/// As [`eventually`], for a thread without a runtime.
#[track_caller]
pub fn eventually_blocking(mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < patience(), "waits for longer than TEST_PATIENCE");
        std::thread::sleep(POLL);
    }
}

/// The pause between two looks at a condition.
const POLL: Duration = Duration::from_millis(5);
