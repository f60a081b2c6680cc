//! The files of a fixture folder.

use std::fs;
use std::path::PathBuf;

use crate::repository;

/// Returns the files in a folder below `fixtures` whose names end with `ending`, in order. Panics
/// if there are none.
pub fn fixture_files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let folder = repository().join("fixtures").join(folder);
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let ends_so = |path: &PathBuf| path.to_str().unwrap().ends_with(ending);
    let mut paths: Vec<_> = entries.filter(ends_so).collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths
}
