//! The faults of one case: in the answers to its events, and in the clients' results.

use serde_json::Value;
use ui_message_stream::chunk::Version;

use super::case::Case;
use super::compare::{Difference, differences};
use super::expected::{Expected, expected};
use super::translate::Translated;

/// All faults, including those in the real client's answer if there is one.
pub(crate) fn faults(
    case: &Case,
    translated: &Translated,
    answer: Option<&Value>,
) -> Vec<Difference> {
    let expected = expected(case);
    let mut wrong = Vec::new();
    wrong.extend(wrong_frame(&translated.kinds));
    if case.version != Version::V5 {
        wrong.extend(wrong_answer(case, &expected, translated));
    }
    for client in case.clients() {
        let Some(result) = answer.map(|answer| &answer["results"][client]) else { continue };
        let mut faults = client_faults(&expected, result);
        if result["rejected"].is_null() && case.version != Version::V5 {
            faults.extend(differences(client, &expected, &result["message"]));
        }
        wrong.extend(
            faults
                .into_iter()
                .map(|fault| Difference::new(fault.what, format!("in {client}: {}", fault.detail))),
        );
    }
    wrong
}

/// A response starts its message once and first, and ends with an end chunk.
fn wrong_frame(kinds: &[String]) -> Option<Difference> {
    let starts = kinds.iter().filter(|kind| *kind == "start").count();
    let [first, .., last] = kinds else {
        return Some(Difference::new("a response has no beginning and no end", ""));
    };
    let framed = starts == 1 && first == "start" && matches!(last.as_str(), "finish" | "abort");
    (!framed).then(|| Difference::new("a response begins or ends wrongly", format!("{kinds:?}")))
}

/// The first event whose answer is not one of the correct ones.
fn wrong_answer(case: &Case, expected: &Expected, translated: &Translated) -> Option<Difference> {
    let answers = expected.answers.iter().zip(&translated.answers).zip(&case.events).enumerate();
    for (number, ((right, answer), event)) in answers {
        if !right.contains(&answer.as_str()) {
            return Some(Difference::new(
                format!("an event is answered {answer} where {right:?} is right"),
                format!("event {number}, {event:?}"),
            ));
        }
    }
    None
}

/// Faults that no client version may have.
fn client_faults(expected: &Expected, result: &Value) -> Vec<Difference> {
    let rejected = &result["rejected"];
    if !rejected.is_null() {
        let what = format!("a client rejects it: {} over {}", rejected["name"], kind_in(rejected));
        return vec![Difference::new(what, rejected.to_string())];
    }
    let mut wrong = Vec::new();
    if result["errorText"].as_str() != expected.error.as_deref() {
        let what = "a client sees another error, or one too many or too few";
        wrong.push(Difference::new(what, result["errorText"].to_string()));
    }
    // An empty message whose id the client makes is never shown.
    let message = &result["message"];
    let is_empty = message["parts"].as_array().is_some_and(Vec::is_empty) && expected.id.is_none();
    if result.get("shown").is_some_and(|shown| !(shown.is_null() && is_empty)) {
        let detail = format!("{} of {message}", result["shown"]);
        wrong.push(Difference::new("a client does not show all it holds", detail));
    }
    for predicate in ["approvals", "toolCalls"] {
        if expected.error.is_none() && result["resubmits"][predicate] != false {
            let what = format!("a client would resubmit for ever ({predicate})");
            wrong.push(Difference::new(what, message.to_string()));
        }
    }
    wrong
}

/// The kind of the chunk that a schema error quotes, or the text of a reducer error without its
/// names.
fn kind_in(rejected: &Value) -> &str {
    let message = rejected["message"].as_str().unwrap_or_default();
    match message.split_once("{\"type\":\"") {
        Some((_, quoted)) => quoted.split('"').next().unwrap_or_default(),
        None => message.split('"').next().unwrap_or_default(),
    }
}
