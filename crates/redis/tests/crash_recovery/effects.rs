//! The effect log: an independent record of what the tools did.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A file of lines. The caller writes each line to the disk before it continues.
#[derive(Debug, Clone)]
pub(crate) struct EffectLog(PathBuf);

impl EffectLog {
    pub(crate) fn at(path: impl Into<PathBuf>) -> Self {
        EffectLog(path.into())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Appends a line. Returns the file, on which the caller calls `sync_all`.
    pub(crate) fn write(&self, line: &str) -> File {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
        file
    }

    /// Returns the number of lines with this prefix.
    pub(crate) fn count(&self, prefix: &str) -> usize {
        let lines = std::fs::read_to_string(&self.0).unwrap_or_default();
        lines.lines().filter(|line| line.starts_with(prefix)).count()
    }
}
