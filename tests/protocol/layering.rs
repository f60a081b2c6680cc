//! The architecture of `src/` as tests: which part of the crate uses which, what is core, and which
//! files import each other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A part of the crate (its path under `src/`), whether it is core, and the parts that it uses, in the
/// order of the pipeline. A file belongs to the part with the longest path that holds it.
const PARTS: &[(&str, bool, &[&str])] = &[
    ("json", true, &[]),
    ("id", true, &[]),
    ("metadata", true, &[]),
    ("chunk", true, &[]),
    ("message", true, &["chunk"]),
    ("request", true, &["message"]),
    ("event", true, &["approval", "chunk"]),
    ("translator", true, &["chunk", "event", "message"]),
    ("sse", true, &["chunk"]),
    ("reducer", true, &["chunk", "message"]),
    ("checker", true, &["chunk", "message"]),
    ("approval", true, &["message"]),
    ("approval/store", false, &["approval"]),
    ("approval/service", false, &["approval", "approval/store", "event"]),
    ("model", true, &["approval", "chunk", "event", "message"]),
    ("model/call", false, &["model", "model/schema", "response"]),
    ("model/schema", false, &[]),
    ("agent/tool_loop", true, &["approval", "chunk", "event", "model"]),
    (
        "agent",
        false,
        &[
            "agent/tool_loop",
            "approval",
            "approval/service",
            "approval/store",
            "chat",
            "chat/conversation",
            "event",
            "message",
            "model",
            "model/call",
            "model/schema",
            "request",
            "response",
        ],
    ),
    (
        "chat/conversation",
        true,
        &["approval", "chunk", "event", "message", "reducer", "request", "translator"],
    ),
    ("chat/store", false, &["chat/conversation"]),
    (
        "chat",
        false,
        &[
            "approval",
            "approval/service",
            "approval/store",
            "chat/conversation",
            "chat/store",
            "chunk",
            "event",
            "message",
            "model",
            "reducer",
            "request",
            "response",
            "translator",
        ],
    ),
    ("response", false, &["chunk", "event", "message", "reducer", "request", "sse", "translator"]),
    (
        "axum",
        false,
        &[
            "approval",
            "approval/service",
            "chat",
            "chat/conversation",
            "message",
            "request",
            "response",
        ],
    ),
    (
        "testing",
        false,
        &["checker", "chunk", "event", "message", "reducer", "request", "response", "sse"],
    ),
];

/// Parts that every part may use.
const FREE_FOR_ALL: &[&str] = &["json", "id", "metadata"];

/// The items of `approval` that stand in a request or a response. A file that names no other item of
/// it makes no decision about approvals.
const APPROVAL_ITEMS_IN_HTTP: &[&str] =
    &["ApprovalDecision", "PendingApproval", "Principal", "UnixMillis"];

/// Crates that core may not use: core neither waits, nor reads a clock, nor speaks HTTP.
const NOT_IN_CORE: &[&str] = &[
    "axum",
    "futures_core",
    "futures_util",
    "getrandom",
    "http",
    "http_body",
    "http_body_util",
    "jsonschema",
    "schemars",
    "tokio",
    "tokio_util",
    "tower_layer",
    "tracing",
    "uuid",
];

/// Crates that belong to other packages of the workspace.
const NOT_IN_THE_ROOT: &[&str] = &["redis", "reqwest", "rig_agent", "rig_core", "rmcp"];

#[test]
fn a_part_uses_the_parts_that_the_table_gives_it_and_no_others() {
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in &files() {
        let used = uses.entry(file.part()).or_default();
        used.extend(file.imports.iter().map(|import| part_of(import)));
    }
    let mut wrong = Vec::new();
    for (part, used) in &mut uses {
        used.retain(|used| used != part && !FREE_FOR_ALL.contains(&used.as_str()));
        let row = PARTS.iter().find(|(name, ..)| name == part);
        let allowed = row.map(|(_, _, allowed)| allowed.iter().map(|part| (*part).to_owned()));
        // A row that allows more than is used would let a new dependency in unseen.
        if allowed.map(BTreeSet::from_iter).as_ref() != Some(used) {
            let is_core = row.is_some_and(|(_, is_core, _)| *is_core);
            wrong.push(format!("(\"{part}\", {is_core}, &{used:?}),"));
        }
    }
    let gone = PARTS.iter().filter(|(part, ..)| !uses.contains_key(*part));
    wrong.extend(gone.map(|(part, ..)| format!("no row `{part}`")));
    assert!(wrong.is_empty(), "the table should say:\n{}", wrong.join("\n"));
}

#[test]
fn the_table_has_no_circle() {
    let edges = PARTS.iter().map(|(part, _, uses)| {
        ((*part).to_owned(), uses.iter().map(|used| (*used).to_owned()).collect())
    });
    assert_eq!(circle(&edges.collect()), None);
}

#[test]
fn no_file_imports_itself_through_others() {
    let edges: BTreeMap<String, BTreeSet<String>> = files()
        .into_iter()
        .map(|mut file| {
            // The front door of a room holds its main type, which the files of the room use.
            let name = file.name;
            file.imports.retain(|other| !is_inside(other, &name) && !is_inside(&name, other));
            (name, file.imports)
        })
        .collect();
    let is_in_a_circle = |file: &&String| {
        let (mut open, mut seen) = (vec![*file], BTreeSet::new());
        while let Some(at) = open.pop() {
            open.extend(edges.get(at).into_iter().flatten().filter(|next| seen.insert(*next)));
        }
        seen.contains(*file)
    };
    let found: Vec<&str> = edges.keys().filter(is_in_a_circle).map(String::as_str).collect();
    assert_eq!(found, [""; 0]);
}

#[test]
fn core_neither_waits_nor_uses_a_library_of_glue() {
    for file in files() {
        let is_core = PARTS.iter().any(|(part, is_core, _)| *is_core && *part == file.part());
        for library in NOT_IN_CORE.iter().filter(|_| is_core).chain(NOT_IN_THE_ROOT) {
            assert!(!uses_crate(&file.code, library), "{} uses `{library}`", file.name);
        }
        for word in ["async ", ".await", "Instant::now", "SystemTime::now", "std::thread"] {
            assert!(!(is_core && file.code.contains(word)), "{}: `{word}`", file.name);
        }
    }
}

#[test]
fn no_file_both_speaks_http_and_decides_about_approvals() {
    for file in files() {
        let mut items = file.items_of_approval.iter();
        let decides = items.any(|item| !APPROVAL_ITEMS_IN_HTTP.contains(&item.as_str()));
        assert!(!(decides && uses_crate(&file.code, "http")), "{}", file.name);
    }
}

#[test]
fn the_way_of_an_approval_in_the_design_document_names_functions_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let design = fs::read_to_string(root.join("DESIGN.md")).unwrap();
    let rows = design.lines().filter_map(|line| line.strip_prefix("| `src/"));
    let mut number_of_rows = 0;
    for row in rows {
        let names: Vec<&str> = row.split('`').collect();
        let (file, function) = (names[0], names[2]);
        let code = fs::read_to_string(root.join("src").join(file)).unwrap();
        let signatures = ["(", "<"].map(|next| format!("fn {function}{next}"));
        let is_there = signatures.iter().any(|signature| code.contains(signature));
        assert!(is_there, "`{file}` has no function `{function}`");
        number_of_rows += 1;
    }
    assert!(number_of_rows > 15, "{number_of_rows} rows");
}

/// A source file.
struct File {
    /// Its path under `src/` without the extension; `approval` for `approval/mod.rs`.
    name: String,
    /// Its text without comments and without its own tests.
    code: String,
    /// The files that define what it imports.
    imports: BTreeSet<String>,
    items_of_approval: BTreeSet<String>,
}

impl File {
    fn part(&self) -> String {
        part_of(&self.name)
    }
}

fn part_of(file: &str) -> String {
    let holds = |part: &&str| file == *part || file.starts_with(&format!("{part}/"));
    let parts = PARTS.iter().map(|(part, ..)| *part);
    let longest = parts.filter(holds).max_by_key(|part| part.len());
    longest.unwrap_or_else(|| file.split('/').next().unwrap_or(file)).to_owned()
}

/// All files of `src/` but `lib.rs`.
fn files() -> Vec<File> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let codes: BTreeMap<String, String> = sources(&src)
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(&src).unwrap().with_extension("");
            let name = name.to_str().unwrap().trim_end_matches("/mod").to_owned();
            (name, code_of(&path))
        })
        .filter(|(name, _)| name != "lib")
        .collect();
    codes
        .iter()
        .map(|(name, code)| {
            let is_front_door = codes.keys().any(|other| is_inside(other, name));
            let mut file = File {
                name: name.clone(),
                code: code.clone(),
                imports: BTreeSet::new(),
                items_of_approval: BTreeSet::new(),
            };
            for path in paths_in(name, is_front_door, code) {
                if let [room, .., item] = path.as_slice()
                    && room == "approval"
                {
                    file.items_of_approval.insert(item.clone());
                }
                let defined_in = definition(&path, &codes).filter(|other| other != name);
                file.imports.extend(defined_in);
            }
            file
        })
        .collect()
}

fn is_inside(file: &str, folder: &str) -> bool {
    file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

fn code_of(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The paths that a file names, from the root of the crate. What a front door re-exports it does not
/// import: who uses the re-export imports the file that defines it.
fn paths_in(name: &str, is_front_door: bool, code: &str) -> Vec<Vec<String>> {
    let own: Vec<String> = name.split('/').map(str::to_owned).collect();
    let above = own[..own.len() - 1].to_vec();
    let mut paths = Vec::new();
    for (prefix, base) in [("crate::", Vec::new()), ("super::", above), ("self::", own)] {
        for (at, _) in code.match_indices(prefix) {
            let before = code[..at].chars().next_back();
            let statement = code[..at].rsplit(['\n', ';']).next().unwrap_or_default();
            let is_re_export = is_front_door && statement.trim_start().starts_with("pub");
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') || is_re_export {
                continue;
            }
            paths.extend(tree(&code[at + prefix.len()..]).into_iter().map(|path| {
                let up = path.iter().take_while(|segment| *segment == "super").count();
                let kept = base.len().saturating_sub(up);
                [&base[..kept], &path[up..]].concat()
            }));
        }
    }
    paths
}

/// The paths of `a::{b, c::d}`, at the beginning of a text.
fn tree(text: &str) -> Vec<Vec<String>> {
    if let Some(list) = text.strip_prefix('{') {
        let (mut depth, mut begin, mut paths) = (0, 0, Vec::new());
        for (at, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' if depth == 0 => {
                    paths.extend(tree(list[begin..at].trim_start()));
                    begin = at + 1;
                }
                '}' => {
                    paths.extend(tree(list[begin..at].trim_start()));
                    break;
                }
                _ => {}
            }
        }
        return paths;
    }
    let segment: String = text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    match text[segment.len()..].strip_prefix("::") {
        _ if segment.is_empty() => Vec::new(),
        Some(rest) if rest.starts_with(|c: char| c.is_alphabetic() || c == '{' || c == '_') => {
            let further = tree(rest).into_iter();
            further.map(|path| [vec![segment.clone()], path].concat()).collect()
        }
        _ => vec![vec![segment]],
    }
}

/// The file that defines what a path names.
fn definition(path: &[String], codes: &BTreeMap<String, String>) -> Option<String> {
    // The longest beginning of the path that is a file.
    let lengths = (1..=path.len()).rev();
    let mut found = lengths.map(|length| (path[..length].join("/"), length));
    let (file, length) = found.find(|(file, _)| codes.contains_key(file))?;
    let Some(item) = path.get(length) else { return Some(file) };
    let defines = |file: &str| {
        let kinds = ["struct", "enum", "trait", "type", "fn", "const", "static"];
        kinds.iter().any(|kind| {
            let definition = format!("{kind} {item}");
            codes[file].match_indices(&definition).any(|(at, _)| {
                let behind = codes[file][at + definition.len()..].chars().next();
                !behind.is_some_and(|c| c.is_alphanumeric() || c == '_')
            })
        })
    };
    if defines(&file) {
        return Some(file);
    }
    let mut inside = codes.keys().filter(|other| is_inside(other, &file));
    Some(inside.find(|other| defines(other)).cloned().unwrap_or(file))
}

/// Whether a path begins with the name of this crate, and not in the middle of a longer name.
fn uses_crate(code: &str, name: &str) -> bool {
    [format!("{name}::"), format!("use {name}")].iter().any(|named| {
        code.match_indices(named.as_str()).any(|(at, _)| {
            let before = code[..at].chars().next_back();
            let is_own = code[..at].ends_with("crate::") || code[..at].ends_with("super::");
            !is_own && !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
        })
    })
}

/// A path from a node back to itself, if there is one.
fn circle(edges: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    fn search(
        node: &str,
        edges: &BTreeMap<String, BTreeSet<String>>,
        path: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> Option<Vec<String>> {
        if let Some(begin) = path.iter().position(|other| other == node) {
            return Some([&path[begin..], &[node.to_owned()]].concat());
        }
        if !done.insert(node.to_owned()) {
            return None;
        }
        path.push(node.to_owned());
        let found =
            edges.get(node).into_iter().flatten().find_map(|next| search(next, edges, path, done));
        path.pop();
        found
    }
    let mut done = BTreeSet::new();
    edges.keys().find_map(|node| search(node, edges, &mut Vec::new(), &mut done))
}
