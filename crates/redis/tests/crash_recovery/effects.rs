//! The effect log: what tools did, judged by nobody else's word.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A file of lines, each on the disk before anything else happens.
#[derive(Debug, Clone)]
pub(crate) struct EffectLog(PathBuf);

impl EffectLog {
    pub(crate) fn at(path: impl Into<PathBuf>) -> Self {
        EffectLog(path.into())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a line, and says when it is to be put on the disk.
    pub(crate) fn write(&self, line: &str) -> File {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
        file
    }

    /// How many lines there are that begin with this.
    pub(crate) fn count(&self, beginning: &str) -> usize {
        let lines = std::fs::read_to_string(&self.0).unwrap_or_default();
        lines.lines().filter(|line| line.starts_with(beginning)).count()
    }
}
