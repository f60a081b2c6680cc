//! Gates, with which tests hold up a text or a deletion for as long as they need.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::sleep;

/// A gate. It is closed while its file stands in the folder that `DEMO_GATES` names. All servers with that
/// folder, also those that are started later, have the same gates. Without that variable there are none.
#[derive(Debug)]
pub(crate) struct Gate(PathBuf);

impl Gate {
    /// Returns the gate with this name. Returns `None` if there are no gates, or if the name could lead out
    /// of their folder.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let folder = PathBuf::from(std::env::var_os("DEMO_GATES")?);
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        (name.chars().all(is_name) && !name.starts_with('.')).then(|| Gate(folder.join(name)))
    }

    /// Returns whether the gate is closed, and tells the test that something waits at it: its file is no
    /// longer empty.
    pub(crate) fn is_closed(&self) -> bool {
        // A gate that the test opens meanwhile stays open.
        std::fs::OpenOptions::new()
            .write(true)
            .open(&self.0)
            .is_ok_and(|mut file| std::io::Write::write_all(&mut file, b"waits").is_ok())
    }

    /// Waits until the gate is open.
    pub(crate) async fn pass(&self) {
        while self.is_closed() {
            sleep(TICK).await;
        }
    }
}

/// How often a gate is looked at.
pub(crate) const TICK: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_variable_there_are_no_gates() {
        assert!(std::env::var_os("DEMO_GATES").is_none() && Gate::named("a").is_none());
    }
}
