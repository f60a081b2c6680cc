//! The bench of the core, which has no server.

use std::process::Command;

use crate::install::target;
use crate::{Outcome, repository};

/// Runs `cargo bench --bench in_process` and returns the tables that it prints.
///
/// # Errors
/// If it fails.
pub(crate) fn run() -> Outcome<String> {
    eprintln!("cargo bench --bench in_process");
    let mut command = Command::new(env!("CARGO"));
    command.args(["bench", "--quiet", "--bench", "in_process"]).current_dir(repository());
    // The packages of the repository are compiled beside those of this workspace.
    command.arg("--target-dir").arg(target()?);
    let output = command.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
