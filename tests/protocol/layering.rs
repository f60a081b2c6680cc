//! Who may use whom: each room of `src/` names only the rooms that this table gives it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A room, whether it is core, and the rooms it may use. The four first ones anyone may use.
const ROOMS: &[(&str, bool, &[&str])] = &[
    ("json", true, &[]),
    ("record", true, &[]),
    ("id", true, &[]),
    ("metadata", true, &[]),
    ("chunk", true, &[]),
    ("message", true, &["chunk"]),
    ("request", true, &["message"]),
    ("approval", true, &["message"]),
    ("model_message", true, &["approval", "message"]),
    ("event", true, &["approval", "chunk"]),
    ("run", true, &["approval", "chunk", "event"]),
    ("translator", true, &["chunk", "event", "message"]),
    ("sse", true, &["chunk"]),
    ("reducer", true, &["chunk", "message"]),
    ("checker", true, &["chunk", "message"]),
    (
        "history",
        true,
        &["approval", "chunk", "event", "message", "reducer", "request", "translator"],
    ),
    ("stream", false, &["chunk", "event", "message", "reducer", "sse", "translator"]),
    ("smooth", false, &["event", "stream"]),
    ("writer", false, &["event", "stream"]),
    (
        "body",
        false,
        &["chunk", "message", "reducer", "request", "sse", "stream", "translator", "writer"],
    ),
    ("adapter", false, &["chat", "model_message", "run"]),
    (
        "agent",
        false,
        &[
            "adapter",
            "approval",
            "approvals",
            "chat",
            "event",
            "history",
            "ledger_store",
            "message",
            "model_message",
            "request",
            "run",
            "stream",
        ],
    ),
    (
        "axum",
        false,
        &["approval", "approvals", "body", "chat", "history", "message", "request", "stream"],
    ),
    ("ledger_store", false, &["approval"]),
    ("approvals", false, &["approval", "event", "ledger_store"]),
    ("chat_store", false, &["history"]),
    (
        "chat",
        false,
        &[
            "approval",
            "approvals",
            "body",
            "chat_store",
            "chunk",
            "event",
            "history",
            "ledger_store",
            "message",
            "reducer",
            "request",
            "stream",
            "translator",
        ],
    ),
    (
        "testing",
        false,
        &["checker", "chunk", "event", "message", "reducer", "request", "sse", "stream"],
    ),
];

const EVERYBODYS: &[&str] = &["json", "record", "id", "metadata"];

/// Of approvals, what stands in a request or an answer: whoever names no more decides nothing.
const SAID_OVER_HTTP: &[&str] = &["PersonsDecision", "Principal", "UnixMillis"];

/// What core may not touch: it neither waits, nor reads a clock, nor speaks HTTP.
const GLUE_ONLY: &[&str] = &[
    "tokio",
    "futures_core",
    "http",
    "http_body",
    "http_body_util",
    "axum",
    "tracing",
    "uuid",
    "tower_layer",
];

/// What only the other packages of this repository may use.
const OTHER_PACKAGES_ONLY: &[&str] = &["redis", "rmcp", "reqwest", "rig_agent", "rig_core"];

#[test]
fn every_room_stands_in_the_table() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(src).unwrap() {
        let path = entry.unwrap().path();
        let room = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if room != "lib" {
            found.insert(room);
        }
    }
    let table: BTreeSet<String> = ROOMS.iter().map(|(room, ..)| (*room).to_owned()).collect();
    assert_eq!(found, table);
}

#[test]
fn a_room_uses_the_rooms_that_the_table_gives_it_and_no_others() {
    let mut wrong = Vec::new();
    for (room, is_core, allowed) in ROOMS {
        let mut used_rooms = BTreeSet::new();
        for (path, code) in code_of(room) {
            for used in names_after(&code, "crate::") {
                if used != *room && !EVERYBODYS.contains(&used.as_str()) {
                    used_rooms.insert(used);
                }
            }
            let uses = |library: &str| {
                let named = [format!("{library}::"), format!("use {library}")];
                named.iter().any(|name| uses_name(&code, name))
            };
            for library in GLUE_ONLY.iter().filter(|library| *is_core && uses(library)) {
                wrong.push(format!("{} is core and uses `{library}`", path.display()));
            }
            for library in OTHER_PACKAGES_ONLY.iter().filter(|library| uses(library)) {
                wrong.push(format!("{} uses `{library}`", path.display()));
            }
        }
        // An edge that nobody uses would let a new dependency in unseen.
        let allowed: BTreeSet<String> = allowed.iter().map(|room| (*room).to_owned()).collect();
        if used_rooms != allowed {
            wrong.push(format!("`{room}` uses {used_rooms:?}, the table says {allowed:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn core_never_awaits() {
    for (room, ..) in ROOMS.iter().filter(|(_, is_core, _)| *is_core) {
        for (path, code) in code_of(room) {
            for word in ["async ", ".await", "Instant::now", "SystemTime::now", "std::thread"] {
                assert!(!code.contains(word), "{}: `{word}`", path.display());
            }
        }
    }
}

#[test]
fn no_file_both_speaks_http_and_decides_about_approvals() {
    for (room, ..) in ROOMS {
        for (path, code) in code_of(room) {
            let speaks_http = uses_name(&code, "http::");
            let names = names_after(&code, "crate::approval::");
            let decides = names.iter().any(|name| !SAID_OVER_HTTP.contains(&name.as_str()));
            assert!(!(speaks_http && decides), "{}", path.display());
        }
    }
}

/// The files of a room without comments and without their own tests.
fn code_of(room: &str) -> Vec<(PathBuf, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut open = vec![src.join(room), src.join(format!("{room}.rs"))];
    let mut files = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.is_file() {
            let text = fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let code = lines.collect::<Vec<_>>().join("\n");
            files.push((path, code));
        }
    }
    assert!(!files.is_empty(), "room `{room}` has no file");
    files
}

/// The names that stand behind `prefix`, in `prefix::name` and in `prefix{name, …}`.
fn names_after(code: &str, prefix: &str) -> BTreeSet<String> {
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices(prefix) {
        let after = &code[at + prefix.len()..];
        match after.strip_prefix('{') {
            Some(list) => {
                let list = list.split_once('}').map_or(list, |(list, _)| list);
                names.extend(list.split(',').map(|name| word(name.trim())));
            }
            None => drop(names.insert(word(after))),
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// Whether the name stands there as a whole path, not at the end of a longer word.
fn uses_name(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let is_own_room = code[..at].ends_with("crate::") || code[..at].ends_with("super::");
        !is_own_room && !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}
