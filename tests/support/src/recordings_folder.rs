//! The recordings in a folder that the environment names.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use futures::FutureExt;

/// Replays each recording of the folder in the environment variable `RECORDINGS`. If a recording
/// requests an approval, also replays it together with each other recording whose name has the same
/// stem, which may be what follows it. Panics at the end if any of them has failed.
pub async fn replay_all(
    replay: impl AsyncFn(&str) -> String,
    predicate: impl Fn(&str) -> bool,
    both_ways: impl AsyncFn(&str, &str) -> String,
) {
    let folder = std::env::var_os("RECORDINGS").expect("RECORDINGS names a folder");
    let folder = Path::new(&folder);
    let files = recordings(folder);
    assert!(!files.is_empty(), "{} holds no recordings", folder.display());
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let stem = |path: &Path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.split('.').next().unwrap_or_default().to_owned()
    };
    let mut failed = 0;
    let mut report = |name: String, replayed: Result<String, _>| {
        failed += usize::from(replayed.is_err());
        println!("{name}: {}", replayed.unwrap_or_else(|_: Box<dyn Any + Send>| "FAILED".into()));
    };
    for path in &files {
        let name = path.strip_prefix(folder).unwrap().display();
        report(name.to_string(), AssertUnwindSafe(replay(&read(path))).catch_unwind().await);
        if !predicate(&read(path)) {
            continue;
        }
        for then in files.iter().filter(|then| *then != path && stem(then) == stem(path)) {
            let then_name = then.strip_prefix(folder).unwrap().display();
            let (first, second) = (read(path), read(then));
            let replayed = AssertUnwindSafe(both_ways(&first, &second)).catch_unwind().await;
            report(format!("{name}, then {then_name}"), replayed);
        }
    }
    assert_eq!(failed, 0, "of {} recordings", files.len());
}

/// Returns the recordings in a folder and in the folders below it, in order.
fn recordings(folder: &Path) -> Vec<PathBuf> {
    let mut open = vec![folder.to_owned()];
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "jsonl") {
            found.push(path);
        }
    }
    found.sort();
    found
}
