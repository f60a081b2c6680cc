//! Pools of names and ids: few enough to collide, and unusual enough to reveal errors.

pub(crate) const TOOL_NAMES: &[&str] = &["read_file", "delete-file", "погода", "constructor"];

pub(crate) const TOOL_CALL_IDS: &[&str] =
    &["call_0", "call_1", "", "__proto__", "constructor", "ключ-🔑", "held_1"];

/// The ids of calls in continued messages. The last one is an id that a translator might generate.
pub(crate) const HELD_CALL_IDS: &[&str] =
    &["call_0", "call_1", "", "__proto__", "constructor", "ключ-🔑", "held_1", "call_0-2"];

pub(crate) const APPROVAL_IDS: &[&str] = &["ap_1", "ap_2", "ap_3", "", "__proto__", "held_ap_1"];

/// Some are ids that a translator might generate for an unnamed part.
pub(crate) const PART_IDS: &[&str] =
    &["t1", "t2", "0", "1", "2", "", "__proto__", "constructor", "text-1", "reasoning-1", "ключ"];

pub(crate) const DATA_NAMES: &[&str] = &["status", "weather", "", "__proto__", "run-end"];

/// The last ones a browser runs as a script, or resolves against its page.
pub(crate) const SOURCE_URLS: &[&str] = &[
    "https://example.org/?q=a&b",
    "HTTP://example.org",
    "https:example.org",
    "javascript:alert(1)",
    "\tJava\nScript:alert(1)//https://",
    "data:text/html,<script>alert(1)</script>",
    "/https:",
    "",
];

pub(crate) const FILE_URLS: &[&str] = &[
    "https://example.org/a.png",
    "data:image/png;base64,AA==",
    "http://example.org/a.png",
    "javascript:alert(1)",
    " data:text/html,<script>alert(1)</script>",
    "file:///etc/passwd",
];

pub(crate) const DATA_IDS: &[&str] = &["1", "2", "", "__proto__"];
