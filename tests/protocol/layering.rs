//! The architecture of the root, of chats and of agents as tests: which part uses which, what is core,
//! and which files import each other in a cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A part (its path under `src/`; `chat` and `agent` are packages of their own), whether it is core,
/// and the parts that it uses. Each part uses only parts before it. A file belongs to the part with
/// the longest path that holds it.
const PARTS: &[(&str, bool, &[&str])] = &[
    ("debug", true, &[]),
    ("words", true, &[]),
    ("boxed", false, &[]),
    ("json", true, &[]),
    ("id", true, &[]),
    ("metadata", true, &[]),
    ("metrics", false, &[]),
    ("retry", false, &["metrics"]),
    ("texts", true, &[]),
    ("chunk", true, &[]),
    ("message", true, &["chunk"]),
    ("request", true, &["message"]),
    ("sse", true, &["chunk"]),
    ("reducer", true, &["chunk", "message"]),
    ("reducer/response_reader", true, &["chunk", "message", "reducer", "sse"]),
    ("checker", true, &["chunk", "message"]),
    ("approval", true, &["message"]),
    ("event", true, &["approval", "chunk"]),
    ("translator", true, &["chunk", "event", "message"]),
    ("approval/store", false, &["approval"]),
    (
        "approval/service",
        false,
        &["approval", "approval/store", "event", "metrics", "request", "retry"],
    ),
    ("model", true, &["approval", "chunk", "event", "message"]),
    ("model/call", false, &["model"]),
    ("agent/tool_loop", true, &["approval", "chunk", "event", "model"]),
    (
        "chat/conversation",
        true,
        &["approval", "chunk", "event", "message", "reducer", "request", "translator"],
    ),
    ("chat/store", false, &["approval"]),
    ("chat/store/rows/rules", true, &["chat/store"]),
    ("chat/store/rows", false, &["approval", "chat/store", "chat/store/rows/rules"]),
    (
        "response",
        false,
        &["approval", "chunk", "event", "message", "reducer", "request", "sse", "translator"],
    ),
    ("policy", false, &["approval", "request"]),
    ("axum", false, &["approval", "approval/store", "policy", "request", "response"]),
    ("testing", false, &["checker", "chunk", "event", "message", "reducer", "request", "sse"]),
    ("agent/metrics", false, &[]),
    ("agent/schema", false, &[]),
    ("chat/limits", true, &[]),
    (
        "chat/log",
        true,
        &[
            "approval",
            "chat/conversation",
            "chat/limits",
            "chat/store",
            "chunk",
            "event",
            "message",
            "reducer",
            "request",
            "sse",
            "translator",
        ],
    ),
    ("chat/metrics", false, &[]),
    (
        "chat",
        false,
        &[
            "approval",
            "approval/service",
            "approval/store",
            "chat/conversation",
            "chat/limits",
            "chat/log",
            "chat/metrics",
            "chat/store",
            "chat/store/rows",
            "chunk",
            "event",
            "message",
            "model",
            "request",
            "response",
            "retry",
            "sse",
        ],
    ),
    // A test, with the tools of the simulator of turns.
    (
        "chat/store/rows/simulator",
        false,
        &["approval", "chat", "chat/store", "chat/store/rows", "chat/store/rows/rules"],
    ),
    (
        "agent",
        false,
        &[
            "agent/metrics",
            "agent/schema",
            "agent/tool_loop",
            "approval",
            "approval/service",
            "chat",
            "chat/conversation",
            "chunk",
            "event",
            "message",
            "model",
            "model/call",
            "request",
            "response",
        ],
    ),
    (
        "chat/axum",
        false,
        &[
            "approval",
            "approval/service",
            "axum",
            "chat",
            "chat/conversation",
            "chat/store",
            "message",
            "policy",
            "request",
            "response",
        ],
    ),
];

/// Parts that every part may use.
const FREE_FOR_ALL: &[&str] = &["boxed", "json", "id", "metadata", "texts"];

/// The items of `approval` that are part of a request or a response. A file that names no other
/// item of `approval` makes no decision about approvals.
const APPROVAL_ITEMS_IN_HTTP: &[&str] = &[
    "ApprovalDecision",
    "EditableInput",
    "InboxQuery",
    "LedgerStoreError",
    "PendingApproval",
    "Principal",
    "RedeemError",
    "UnixMillis",
];

/// Crates that core may not use: core does not wait, read a clock or use HTTP.
const NOT_IN_CORE: &[&str] = &[
    "axum",
    "futures_core",
    "futures_util",
    "getrandom",
    "http",
    "http_body",
    "http_body_util",
    "hyper",
    "hyper_util",
    "jsonschema",
    "metrics",
    "schemars",
    "tokio",
    "tokio_util",
    "tower_layer",
    "tracing",
    "uuid",
];

/// Crates that belong to other packages of the workspace.
const NOT_IN_THE_ROOT: &[&str] = &["redis", "reqwest", "rig_agent", "rig_core", "rmcp"];

/// Front doors whose main type a file of their folder uses, although the front door uses that file. A
/// front door defines the main type of its room, and the file may name that type and nothing else of
/// the front door. The list only ever gets shorter.
const MAIN_TYPES: &[(&str, &str)] = &[("translator", "Translator")];

#[test]
fn each_part_uses_exactly_the_parts_in_its_row_of_the_table() {
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in &files() {
        let used = uses.entry(file.part()).or_default();
        used.extend(file.imports.iter().map(|(import, _)| part_of(import)));
    }
    let mut wrong = Vec::new();
    for (part, used) in &mut uses {
        used.retain(|used| used != part && !FREE_FOR_ALL.contains(&used.as_str()));
        let row = PARTS.iter().find(|(name, ..)| name == part);
        let allowed = row.map(|(_, _, allowed)| allowed.iter().map(|part| (*part).to_owned()));
        // A row that allows more than is used would let a new dependency pass unnoticed.
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
fn each_part_uses_only_parts_before_it() {
    for (at, (part, _, uses)) in PARTS.iter().enumerate() {
        let is_before = |used: &&str| PARTS[..at].iter().any(|(before, ..)| before == used);
        let climbing: Vec<_> = uses.iter().filter(|used| !is_before(used)).collect();
        assert!(climbing.is_empty(), "{part} uses {climbing:?}");
    }
}

#[test]
fn no_file_imports_itself_through_other_files() {
    let files = files();
    assert_eq!(cycle(&imports_between(&files, MAIN_TYPES)), None);
    for main_type in MAIN_TYPES {
        let others: Vec<_> =
            MAIN_TYPES.iter().copied().filter(|other| other != main_type).collect();
        let imports = imports_between(&files, &others);
        assert!(cycle(&imports).is_some(), "{main_type:?} is in no cycle: remove it");
    }
}

/// The imports of each file, without those of the main type of a room by the files inside it.
fn imports_between(
    files: &[File],
    main_types: &[(&str, &str)],
) -> BTreeMap<String, BTreeSet<String>> {
    let imports = |file: &File| {
        let others = file.imports.iter().filter(|(other, item)| {
            !(is_inside(&file.name, other) && main_types.contains(&(other.as_str(), item.as_str())))
        });
        (file.name.clone(), others.map(|(other, _)| other.clone()).collect())
    };
    files.iter().map(imports).collect()
}

#[test]
fn the_inherent_impl_of_a_type_is_in_two_files_at_most() {
    let mut places: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for file in files() {
        for name in types_with_inherent_impl(&file.code) {
            let imported = file.imports.iter().find(|(_, item)| *item == name);
            let (defined_in, _) =
                imported.cloned().unwrap_or_else(|| (file.name.clone(), name.clone()));
            places.entry((defined_in, name)).or_default().insert(file.name.clone());
        }
    }
    places.retain(|_, files| files.len() > 2);
    assert_eq!(places, BTreeMap::new());
}

#[test]
fn no_file_re_exports_an_item_of_another_part() {
    for file in files() {
        // A file that imports the item from here would use the other part around the table.
        let is_re_export = |line: &&str| {
            let (visibility, path) = line.split_once("use ").unwrap_or_default();
            let is_foreign = ["crate::", "super::"].iter().any(|root| path.starts_with(root));
            visibility.trim_start().starts_with("pub") && is_foreign
        };
        assert_eq!(file.code.lines().find(is_re_export), None, "{}", file.name);
    }
}

#[test]
fn core_neither_awaits_nor_uses_the_libraries_of_glue() {
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
fn no_file_uses_http_and_decides_about_approvals() {
    for file in files() {
        let mut items = file.items_of_approval.iter();
        let decides = items.any(|item| !APPROVAL_ITEMS_IN_HTTP.contains(&item.as_str()));
        assert!(!(decides && uses_crate(&file.code, "http")), "{}", file.name);
    }
}

#[test]
fn the_design_names_the_functions_of_an_approval_in_the_recorded_order() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let design = fs::read_to_string(root.join("DESIGN.md")).unwrap();
    // The order that `.ci/approval-order.mjs` has recorded, one paragraph for each table.
    let recorded = fs::read_to_string(root.join("fixtures/approval-order.txt")).unwrap();
    let (_, chapter) = design.split_once("### The way of one approval").unwrap();
    let (chapter, _) = chapter.split_once("\n## ").unwrap();
    let (mut order, mut rooms) = (String::new(), Vec::new());
    for line in chapter.lines() {
        let Some(row) = line.strip_prefix("| `") else {
            // Each table enters each room once.
            if !rooms.is_empty() {
                order.push('\n');
                rooms.clear();
            }
            continue;
        };
        let names: Vec<&str> = row.split('`').collect();
        let (file, function) = (names[0], names[2]);
        let (package, inside) = file.split_once("src/").unwrap_or_else(|| panic!("{row}"));
        let room = match package {
            "" => inside.split('/').next().unwrap(),
            package => package,
        };
        if rooms.last() != Some(&room) {
            assert!(!rooms.contains(&room), "`{room}` is entered again: {row}");
            rooms.push(room);
        }
        let code = fs::read_to_string(root.join(file)).unwrap();
        let signatures = ["(", "<"].map(|next| format!("fn {function}{next}"));
        let is_there = signatures.iter().any(|signature| code.contains(signature));
        assert!(is_there, "`{file}` has no function `{function}`");
        order.push_str(&format!("{file} {function}\n"));
    }
    assert_eq!(order.trim_end(), recorded.trim_end());
}

/// A source file.
struct File {
    /// Its path under `src/` without the extension; `approval` for `approval/mod.rs`.
    name: String,
    /// Its text without comments and without its own tests.
    code: String,
    /// What it imports: the file that defines it, and its name.
    imports: BTreeSet<(String, String)>,
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

/// The packages whose files are checked: the parts that hold them, and their folders.
const PACKAGES: [(&str, &str); 3] =
    [("", "src"), ("chat/", "crates/chat/src"), ("agent/", "crates/agent/src")];

/// All files of these packages but the `lib.rs` of the root. A package beside the root is a part, and its
/// `lib.rs` the front door of that part.
fn files() -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut codes = BTreeMap::new();
    for (part, folder) in PACKAGES {
        let folder = root.join(folder);
        for path in sources(&folder) {
            let name = path.strip_prefix(&folder).unwrap().with_extension("");
            let name = format!("{part}{}", name.to_str().unwrap());
            let name = name.trim_end_matches("/mod").trim_end_matches("/lib").to_owned();
            // Paths from the root of all packages.
            let code = code_of(&path)
                .replace("crate::", &format!("crate::{}", part.replace('/', "::")))
                .replace("ui_message_stream_chat::", "crate::chat::")
                .replace("ui_message_stream_agent::", "crate::agent::")
                .replace("ui_message_stream::", "crate::");
            codes.insert(name, code);
        }
    }
    codes.remove("lib");
    codes
        .iter()
        .map(|(name, code)| {
            let inside = codes.keys().filter_map(|other| other.strip_prefix(&format!("{name}/")));
            let children: Vec<&str> = inside.filter(|child| !child.contains('/')).collect();
            let mut file = File {
                name: name.clone(),
                code: code.clone(),
                imports: BTreeSet::new(),
                items_of_approval: BTreeSet::new(),
            };
            for path in paths_in(name, &children, code) {
                if let [room, .., item] = path.as_slice()
                    && room == "approval"
                {
                    file.items_of_approval.insert(item.clone());
                }
                let imported = definition(&path, &codes).filter(|(other, _)| other != name);
                file.imports.extend(imported);
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

/// The paths that a file names, from the root of the crate. What a front door only re-exports it does
/// not import: who uses the re-export imports the file that defines it.
fn paths_in(name: &str, children: &[&str], code: &str) -> Vec<Vec<String>> {
    let own: Vec<String> = name.split('/').map(str::to_owned).collect();
    let above = own[..own.len() - 1].to_vec();
    let below = children
        .iter()
        .map(|child| (format!("{child}::"), [&own[..], &[(*child).to_owned()]].concat()));
    let mut prefixes: Vec<(String, Vec<String>)> = below.collect();
    prefixes.extend([("crate::".into(), Vec::new()), ("super::".into(), above)]);
    prefixes.push(("self::".into(), own));
    let used = without_declarations(code);
    let mut paths = Vec::new();
    for (prefix, base) in prefixes {
        for (at, _) in code.match_indices(&prefix) {
            let before = code[..at].chars().next_back();
            let statement = code[..at].rsplit(['\n', ';']).next().unwrap_or_default();
            let is_re_export = !children.is_empty() && statement.trim_start().starts_with("pub");
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let mut named = tree(&code[at + prefix.len()..]);
            named.retain(|path| {
                !is_re_export || path.last().is_some_and(|item| has_word(&used, item))
            });
            paths.extend(named.into_iter().map(|path| {
                let up = path.iter().take_while(|segment| *segment == "super").count();
                let kept = base.len().saturating_sub(up);
                [&base[..kept], &path[up..]].concat()
            }));
        }
    }
    paths
}

/// The names of the types for which a code has an `impl` without a trait.
fn types_with_inherent_impl(code: &str) -> Vec<String> {
    let blocks = code.split("\nimpl").skip(1).filter_map(|block| block.split_once('{'));
    let headers = blocks.filter_map(|(header, _)| {
        let mut depth = 0;
        let type_at = header.find(|c| {
            depth += i32::from(c == '<') - i32::from(c == '>');
            depth == 0 && c == ' '
        })?;
        let header = header[type_at..].split(" where").next()?.trim();
        (!header.contains(" for ")).then_some(header)
    });
    let names = headers.map(|header| header.split(|c: char| !c.is_alphanumeric()).next());
    names.flatten().map(str::to_owned).collect()
}

/// The code without the declarations `use` and `mod`.
fn without_declarations(code: &str) -> String {
    let mut is_declaration = false;
    let lines = code.lines().filter(|line| {
        let keyword = line.split_whitespace().find(|word| !word.starts_with("pub"));
        is_declaration |= matches!(keyword, Some("use" | "mod"));
        let is_kept = !is_declaration;
        is_declaration &= !line.ends_with(';');
        is_kept
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether a code holds a word, and not only as a part of a longer name.
fn has_word(code: &str, word: &str) -> bool {
    let continues = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    code.match_indices(word).any(|(at, _)| {
        let (before, behind) = (&code[..at], &code[at + word.len()..]);
        !continues(before.chars().next_back()) && !continues(behind.chars().next())
    })
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

/// What a path names: the file that defines it, and its name there.
fn definition(path: &[String], codes: &BTreeMap<String, String>) -> Option<(String, String)> {
    // The longest prefix of the path that is a file.
    let lengths = (1..=path.len()).rev();
    let mut found = lengths.map(|length| (path[..length].join("/"), length));
    let (file, length) = found.find(|(file, _)| codes.contains_key(file))?;
    let Some(item) = path.get(length) else { return Some((file, String::new())) };
    let defines = |file: &str| {
        let kinds = ["struct", "enum", "trait", "type", "fn", "const", "static"];
        kinds.iter().any(|kind| has_word(&codes[file], &format!("{kind} {item}")))
    };
    if defines(&file) {
        return Some((file, item.clone()));
    }
    let mut inside = codes.keys().filter(|other| is_inside(other, &file));
    let file = inside.find(|other| defines(other)).cloned().unwrap_or(file);
    Some((file, item.clone()))
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
fn cycle(edges: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
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
