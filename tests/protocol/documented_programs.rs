//! The programs of the documentation and the examples: `main` prints an error as a text and not as Rust, and
//! each server has a log, in which it says what the program has forgotten.

use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

use test_support::repository;

#[test]
fn each_main_prints_an_error_as_a_text_and_each_server_has_a_log() {
    let root = repository();
    let mut files = vec![root.join("README.md")];
    for folder in ["docs", "examples", "demo", "crates"] {
        add_files(&root.join(folder), &mut files);
    }
    let mut mains = 0;
    for path in files {
        let file = path.strip_prefix(&root).unwrap().display().to_string();
        let text = read_to_string(&path).unwrap();
        // A hidden line of an example, and a function that cannot fail, are not what a reader copies.
        for (before, main) in text.match_indices("fn main() -> ").map(|(at, _)| text.split_at(at)) {
            if before.rsplit('\n').next().unwrap().contains(['/', '#']) {
                continue;
            }
            mains += 1;
            let main = main.split("\n}").next().unwrap();
            let is_text = main.starts_with("fn main() -> anyhow::Result<()> {");
            assert!(is_text || file.starts_with("crates/cli/"), "{file}: {main}");
            let has_log =
                main.contains("tracing_subscriber::") || main.contains("demo::init_log()");
            assert!(
                has_log || WITHOUT_LOG.iter().any(|known| file.starts_with(known)),
                "{file}: {main}"
            );
        }
    }
    assert!(mains >= 15, "{mains}");
}

/// Their terminal belongs to the user.
const WITHOUT_LOG: [&str; 3] =
    ["crates/cli/", "crates/mcp/examples/mcp_tools.rs", "demo/examples/client.rs"];

fn add_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !["node_modules", "target", "tests"].contains(&name) {
            add_files(&path, files);
        } else if path.extension().is_some_and(|it| it == "md" || it == "rs") {
            files.push(path);
        }
    }
}
