//! Two streams of chunks, side by side, as `fixtures/conversations/README.md` describes it.

use std::collections::{BTreeSet, HashMap};
use std::fs;

use serde_json::{Map, Value};

/// The lines of both streams. Each difference has a reason.
#[derive(Default)]
pub(crate) struct SideBySide(Vec<Line>);

struct Line {
    side: Side,
    chunk: String,
    reason: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Side {
    Both,
    Theirs,
    Ours,
}

const SIDES: [(&str, Side); 3] = [("  ", Side::Both), ("- ", Side::Theirs), ("+ ", Side::Ours)];

impl SideBySide {
    pub(crate) fn parse(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| {
            let (sign, side) = SIDES.iter().find(|(sign, _)| line.starts_with(sign))?;
            let line = line.strip_prefix(sign)?;
            let (chunk, reason) = match line.split_once(BECAUSE) {
                Some((chunk, reason)) => (chunk, Some(reason.to_owned())),
                None => (line, None),
            };
            Some(Line { side: *side, chunk: chunk.to_owned(), reason })
        });
        SideBySide(lines.collect())
    }

    /// Aligns both streams, and reuses the reasons of `before`.
    pub(crate) fn of(theirs: &[String], ours: &[String], before: &SideBySide) -> Self {
        let mut reasons: HashMap<(Side, String), Vec<&str>> = HashMap::new();
        for line in before.0.iter().rev() {
            let reason = line.reason.as_deref().unwrap_or(UNKNOWN);
            reasons.entry((line.side, line.chunk.clone())).or_default().push(reason);
        }
        let mut lines = Vec::new();
        let mut add = |side: Side, chunk: &String| {
            let known = reasons.get_mut(&(side, chunk.clone())).and_then(Vec::pop);
            let reason = (side != Side::Both).then(|| known.unwrap_or(UNKNOWN).to_owned());
            lines.push(Line { side, chunk: chunk.clone(), reason });
        };
        let common = longest_common(theirs, ours);
        let (mut t, mut o) = (0, 0);
        for (to_t, to_o) in common.into_iter().chain([(theirs.len(), ours.len())]) {
            theirs[t..to_t].iter().for_each(|chunk| add(Side::Theirs, chunk));
            ours[o..to_o].iter().for_each(|chunk| add(Side::Ours, chunk));
            if let Some(chunk) = theirs.get(to_t) {
                add(Side::Both, chunk);
            }
            (t, o) = (to_t + 1, to_o + 1);
        }
        SideBySide(lines)
    }

    pub(crate) fn to_text(&self, title: &str) -> String {
        let mut text = format!("{title}\n\n");
        for Line { side, chunk, reason } in &self.0 {
            let (sign, _) = SIDES.iter().find(|(_, known)| known == side).unwrap();
            let because = reason.as_ref().map(|reason| format!("{BECAUSE}{reason}"));
            text.push_str(&format!("{sign}{chunk}{}\n", because.unwrap_or_default()));
        }
        text
    }

    pub(crate) fn theirs(&self) -> Vec<String> {
        self.side(Side::Theirs)
    }

    pub(crate) fn ours(&self) -> Vec<String> {
        self.side(Side::Ours)
    }

    pub(crate) fn reasons(&self) -> impl Iterator<Item = &str> {
        let differences = self.0.iter().filter(|line| line.side != Side::Both);
        differences.map(|line| line.reason.as_deref().unwrap_or(UNKNOWN))
    }

    fn side(&self, side: Side) -> Vec<String> {
        let lines = self.0.iter().filter(|line| line.side == side || line.side == Side::Both);
        lines.map(|line| line.chunk.clone()).collect()
    }
}

/// The names in the table of reasons.
pub(crate) fn reasons() -> BTreeSet<String> {
    let path = test_support::repository().join("fixtures/conversations/README.md");
    let text = fs::read_to_string(path).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    rows.map(|(name, _)| name.to_owned()).collect()
}

/// Chunks as lines. Values that differ from run to run are replaced by placeholders.
pub(crate) fn lines_of(chunks: &[Value], model_calls: usize) -> Vec<String> {
    let (mut blocks, mut started): (HashMap<String, String>, usize) = Default::default();
    let mut lines: Vec<String> = chunks
        .iter()
        .map(|chunk| {
            let mut chunk = chunk.as_object().unwrap().clone();
            let kind = chunk["type"].as_str().unwrap().to_owned();
            if let Some((block @ ("text" | "reasoning"), event)) = kind.split_once('-') {
                let id = chunk["id"].as_str().unwrap().to_owned();
                let open = format!("{block} {id}");
                if event == "start" {
                    started += 1;
                    blocks.insert(open.clone(), format!("{block}-{started}"));
                }
                chunk["id"] = blocks[&open].clone().into();
            }
            for (key, value) in &mut chunk {
                if matches!(key.as_str(), "approvalId" | "signature") {
                    *value = format!("<{key}>").into();
                }
                if (kind.as_str(), key.as_str()) == ("data-approval", "data") {
                    *value = "<what the person is shown>".into();
                }
            }
            line(chunk)
        })
        .collect();
    lines.push(format!("calls of the model: {model_calls}"));
    lines
}

/// The type first, then the other fields sorted by name, for any map order.
fn line(mut chunk: Map<String, Value>) -> String {
    let kind = chunk.remove("type").unwrap();
    let mut fields: Vec<(String, Value)> = chunk.into_iter().collect();
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    let fields = fields.iter().map(|(key, value)| format!(r#","{key}":{value}"#));
    format!(r#"{{"type":{kind}{}}}"#, fields.collect::<String>())
}

/// The positions of the longest common subsequence of lines.
fn longest_common(a: &[String], b: &[String]) -> Vec<(usize, usize)> {
    let mut longest = vec![vec![0_usize; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            longest[i][j] = match a[i] == b[j] {
                true => longest[i + 1][j + 1] + 1,
                false => longest[i + 1][j].max(longest[i][j + 1]),
            };
        }
    }
    let (mut i, mut j, mut common) = (0, 0, Vec::new());
    while i < a.len() && j < b.len() {
        if a[i] == b[j] {
            common.push((i, j));
            (i, j) = (i + 1, j + 1);
        } else if longest[i + 1][j] >= longest[i][j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
    common
}

const BECAUSE: &str = "   because: ";
const UNKNOWN: &str = "?";
