//! Compares the message that the client holds with the expected one.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::expected::Expected;
use super::wildcard;

/// A difference between the client's message or behaviour and the expected one.
#[derive(Debug)]
pub(crate) struct Difference {
    /// The kind of difference, the same for all cases with one cause.
    pub(crate) what: String,
    /// The place, and its content.
    pub(crate) detail: String,
}

impl Difference {
    pub(crate) fn new(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Difference { what: what.into(), detail: detail.into() }
    }
}

/// The clients that show the last name of a static tool.
const NEWEST: &str = "6.0.326";
const NEWEST_V7: &str = "7.0.173";

/// The field of an expected part with the type that it had before, if that has changed.
pub(crate) const FIRST_TYPE: &str = "?first type";

/// The fields that client versions drop: the client, the kind of the part, and the field.
const NOT_KEPT: &[(&str, &str, &str)] = &[
    ("6.0.0", "file", "providerMetadata"),
    ("6.0.0", "reasoning", "id"),
    ("6.0.197", "reasoning", "id"),
    ("6.0.230", "reasoning", "id"),
    ("6.0.235", "reasoning", "id"),
    ("7.0.0", "reasoning", "id"),
    ("7.0.15", "reasoning", "id"),
    ("7.0.31", "reasoning", "id"),
];

/// The differences of the message that this client holds.
pub(crate) fn differences(client: &str, expected: &Expected, held: &Value) -> Vec<Difference> {
    let mut wrong = Vec::new();
    if let Some(id) = &expected.id
        && held["id"].as_str() != Some(id)
    {
        wrong.push(Difference::new("the message's id", format!("{} for {id:?}", held["id"])));
    }
    // The oldest version merges `constructor` too, which the others skip.
    let as_others_do = client != "6.0.0" || !held["metadata"].to_string().contains("constructor");
    if as_others_do && !same_json(&expected.metadata, &held["metadata"]) {
        let detail = format!("{} for {}", held["metadata"], expected.metadata);
        wrong.push(Difference::new("the metadata", detail));
    }
    let empty = Vec::new();
    let parts = without_run_end(expected, held["parts"].as_array().unwrap_or(&empty), &mut wrong);
    wrong.extend(different_part(client, expected, parts));
    wrong
}

/// Removes the final step that only marks the end of the run, and checks whether it is required.
fn without_run_end<'a>(
    expected: &Expected,
    parts: &'a [Value],
    wrong: &mut Vec<Difference>,
) -> &'a [Value] {
    let (rest, run_end) = match parts {
        [rest @ .., step, end]
            if step["type"] == "step-start"
                && end["type"] == "data-run-end"
                && rest.len() == expected.parts.len() =>
        {
            (rest, true)
        }
        _ => (parts, false),
    };
    let needed = expected.error.is_none() && would_resubmit(rest);
    let last = || format!("the last part is {:?}", parts.last());
    if needed && !run_end {
        wrong.push(Difference::new("no step says that the run is over", last()));
    }
    // An additional step is accepted if it is unknown which part a chunk reaches, or if an older client that reads
    // the same run may need it: it keeps removed calls, and a refused call has failed there.
    let is_refused = |part: &Value| part["approval"]["isAutomatic"] == true;
    let may_need = !expected.lost_calls.is_empty() || rest.iter().any(is_refused);
    if run_end && !needed && !expected.has_twins && !may_need {
        wrong.push(Difference::new("a step too many", last()));
    }
    rest
}

/// Whether a client of any version would send this message back automatically.
///
/// These are the two predicates of the SDK, in the form of each version, and the second one on a page that leaves out
/// denied calls.
fn would_resubmit(parts: &[Value]) -> bool {
    let last_step = parts.rsplit(|part| part["type"] == "step-start").next().unwrap_or_default();
    let tools: Vec<&Value> = last_step.iter().filter(|part| is_tool(part)).collect();
    let not_the_providers: Vec<&Value> =
        tools.iter().copied().filter(|part| part["providerExecuted"] != true).collect();

    let state = |part: &Value| part["state"].as_str().unwrap_or_default().to_owned();
    let has_result = |part: &Value| matches!(&*state(part), "output-available" | "output-error");
    let is_over = |part: &Value| has_result(part) && part["preliminary"] != true;
    let is_answered = |part: &Value| state(part) == "approval-responded";

    let asked_of = |tools: &[&Value], done: &dyn Fn(&Value) -> bool| {
        tools.iter().any(|part| is_answered(part))
            && tools.iter().all(|part| is_answered(part) || done(part))
    };
    asked_of(&not_the_providers, &has_result)
        || asked_of(&tools, &has_result)
        || asked_of(&tools, &|part| is_over(part) || state(part) == "output-denied")
        // Later versions also require that no text after the tools is unfinished.
        || (!not_the_providers.is_empty() && not_the_providers.iter().all(|part| has_result(part)))
        || (not_the_providers.iter().any(|part| has_result(part))
            && not_the_providers
                .iter()
                .all(|part| has_result(part) || state(part) == "output-denied"))
}

fn is_tool(part: &Value) -> bool {
    part["type"].as_str().is_some_and(|kind| kind == "dynamic-tool" || kind.starts_with("tool-"))
}

/// The first part that differs from the expected one.
fn different_part(client: &str, expected: &Expected, held: &[Value]) -> Option<Difference> {
    let lost = expected.lost_calls.iter().cloned().collect();
    let mut ids = HeldIds { lost, ..HeldIds::default() };
    for (number, expected) in expected.parts.iter().enumerate() {
        let Some(part) = held.get(number) else {
            return Some(Difference::new("a part is missing", format!("{number}: {expected}")));
        };
        let what = match wildcard::kind(expected) {
            Some("untouched") => {
                let same = same_json(&expected["part"], part);
                (!same).then(|| "a held part was changed".to_owned())
            }
            Some("twin") => {
                let same = ["type", "toolCallId"].iter().all(|key| expected[key] == part[key]);
                (!same).then(|| "a held part was replaced".to_owned())
            }
            _ => different_field(client, expected, part, &ids),
        };
        if let Some(what) = what {
            return Some(Difference::new(what, format!("part {number}: {part}\n  for {expected}")));
        }
        ids.see(part);
    }
    let number = expected.parts.len();
    held.get(number).map(|part| Difference::new("a part too many", format!("{number}: {part}")))
}

#[derive(Default)]
struct HeldIds {
    /// The tool call ids that the message holds so far.
    calls: HashSet<String>,
    /// The call of each approval request.
    asked: HashMap<String, String>,
    /// The ids of calls that the message has held, or will hold, until they are removed.
    lost: HashSet<String>,
}

impl HeldIds {
    fn see(&mut self, part: &Value) {
        if let (true, Some(id)) = (is_tool(part), part["toolCallId"].as_str()) {
            self.calls.insert(id.to_owned());
            if let Some(approval_id) = part["approval"]["id"].as_str() {
                self.asked.insert(approval_id.to_owned(), id.to_owned());
            }
        }
    }
}

/// The field of a part that differs from the expected one.
fn different_field(client: &str, expected: &Value, held: &Value, ids: &HeldIds) -> Option<String> {
    // Older clients keep the first name of a static tool.
    let first = expected.get(FIRST_TYPE).filter(|_| client != NEWEST && client != NEWEST_V7);
    let kind = first.unwrap_or(&expected["type"]).as_str().unwrap_or_default();
    if held["type"] != kind {
        return Some(format!("{kind} is something else"));
    }
    let keys: &[&str] = match kind {
        "step-start" => &["type"],
        "text" => &["text", "state", "providerMetadata", "citations"],
        // The generated id of an unnamed part does not matter.
        "reasoning" if expected.get("id").is_some() => &["id", "text", "state", "providerMetadata"],
        "reasoning" => &["text", "state", "providerMetadata"],
        "source-url" => &["sourceId", "url", "title", "providerMetadata"],
        "source-document" => &["sourceId", "mediaType", "title", "filename", "providerMetadata"],
        "file" | "reasoning-file" => &["url", "mediaType", "providerMetadata"],
        "custom" => &["kind", "providerMetadata"],
        "data-approval" if wildcard::kind(&expected["id"]) == Some("id of the call") => {
            if !ids.names_call(&expected["id"]["approval_id"], &held["id"]) {
                return Some(format!("id of {kind}"));
            }
            &["data"]
        }
        _ if kind.starts_with("data-") => &["id", "data"],
        _ => {
            return different_tool_field(client, expected, held, ids).map(|key| {
                let states = format!("{} for {}", held["state"], expected["state"]);
                format!("{key} of a tool part ({states})")
            });
        }
    };
    let key = keys.iter().find(|key| {
        !NOT_KEPT.contains(&(client, kind, key)) && !same_json(&expected[**key], &held[**key])
    })?;
    Some(format!("{key} of {kind}"))
}

fn different_tool_field(
    client: &str,
    expected: &Value,
    held: &Value,
    ids: &HeldIds,
) -> Option<&'static str> {
    const KEYS: &[&str] =
        &["toolName", "toolCallId", "state", "input", "rawInput", "output", "errorText", "title"];
    const FLAGS: &[&str] = &["providerExecuted", "preliminary"];
    // `ai@7` keeps an invalid input as the input since 7.0.119.
    let keeps_invalid = matches!(client, "7.0.120" | NEWEST_V7) && held.get("rawInput").is_none();
    let differs = |key: &&&str| {
        let (expected, held) = match **key {
            "input" if keeps_invalid && expected["input"].is_null() => {
                (expected.get("rawInput").unwrap_or(&Value::Null), &held["input"])
            }
            "rawInput" if keeps_invalid && expected["input"].is_null() => {
                (&Value::Null, &Value::Null)
            }
            key => (&expected[key], &held[key]),
        };
        match wildcard::kind(expected) {
            Some("anything") => false,
            Some("some text") => !is_some_text(held),
            Some("call id") => !ids.allow(expected["agent_id"].as_str(), held.as_str()),
            _ => !same_json(expected, held),
        }
    };
    if let Some(key) = KEYS.iter().find(differs) {
        return Some(key);
    }
    if let Some(flag) = FLAGS.iter().find(|key| (expected[**key] == true) != (held[**key] == true))
    {
        return Some(flag);
    }
    const APPROVAL: &[&str] = &["id", "approved", "reason", "requestReason", "isAutomatic"];
    let is_same = |key: &&str| {
        let [expected, held] = [expected, held].map(|part| &part["approval"][*key]);
        match wildcard::kind(expected) {
            Some("some text") => is_some_text(held),
            _ => expected == held,
        }
    };
    if !APPROVAL.iter().all(is_same) {
        return Some("approval");
    }
    let metadata = expected.get("callProviderMetadata");
    (metadata.is_some_and(|metadata| !same_json(metadata, &held["callProviderMetadata"])))
        .then_some("callProviderMetadata")
}

impl HeldIds {
    fn names_call(&self, approval_id: &Value, held: &Value) -> bool {
        let call = approval_id.as_str().and_then(|id| self.asked.get(id));
        call.is_some_and(|call| Some(&**call) == held.as_str())
    }

    /// A call keeps its id, unless the message already holds it, or has held it. Then any other id is correct.
    fn allow(&self, expected_id: Option<&str>, held: Option<&str>) -> bool {
        let (Some(expected_id), Some(held)) = (expected_id, held) else {
            return false;
        };
        let is_taken = self.calls.contains(expected_id) || self.lost.contains(expected_id);
        if is_taken { !self.calls.contains(held) } else { expected_id == held }
    }
}

fn is_some_text(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
}

/// Whether two values are equal in JavaScript, where all numbers are doubles.
fn same_json(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            let (one, other) = (one.as_f64().unwrap_or(0.0), other.as_f64().unwrap_or(0.0));
            // Parsing the digits of a double may miss the last bit.
            (one - other).abs() <= one.abs() * 1e-15
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| same_json(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .all(|(key, value)| other.get(key).is_some_and(|other| same_json(value, other)))
        }
        _ => one == other,
    }
}
