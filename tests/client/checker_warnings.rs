//! The checker's warnings against the message that a stream gives, on random streams: it warns of
//! parts that are left open, and of a message that the client would send again automatically.
//!
//! Other tests compare the reducer and the helpers of `sendAutomaticallyWhen` with the real client.
//! `CHECK_CASES` sets the number of streams (5 000), `CHECK_SEED` selects them, and `CHECK_ONLY`
//! runs only the stream of this number.

use std::collections::BTreeSet;

use test_support::external_processes::say;
use test_support::rng::setting;
use ui_message_stream::UiMessage;
use ui_message_stream::checker::{Checker, ClientReader, Rule};
use ui_message_stream::chunk::ReceivedChunk;
use ui_message_stream::message::{Part, TextState, ToolState};
use ui_message_stream::reducer::Reducer;
use ui_message_stream::testing::{
    last_assistant_message_is_complete_with_approval_responses as is_complete_with_approvals,
    last_assistant_message_is_complete_with_tool_calls as is_complete_with_tool_calls,
};

use crate::random_streams::case::Case;
use crate::random_streams::generator;

#[test]
fn the_checkers_warnings_agree_with_the_message() {
    let seed = setting("CHECK_SEED").unwrap_or(20_260_201);
    let count = setting("CHECK_CASES").unwrap_or(5_000);
    let numbers = setting("CHECK_ONLY").map_or(0..count, |only| only..only + 1);
    let mut compared = 0;
    let mut seen = BTreeSet::new();
    for number in numbers {
        let case = generator::case(seed, number);
        let Some((reported, shown)) = reported_and_shown(&case) else { continue };
        compared += 1;
        seen.extend(shown.iter().copied());
        assert_eq!(
            reported,
            shown,
            "CHECK_SEED={seed} CHECK_ONLY={number}\nmessage: {:?}\n{}",
            case.message,
            case.chunks.join("\n")
        );
    }
    say(&format!("checker: {compared} streams and their open parts (CHECK_SEED={seed})"));
    if setting("CHECK_ONLY").is_none() {
        assert_eq!(seen, BTreeSet::from(COMPARED));
    }
}

/// Those of [`COMPARED`] that the checker reports, and those that the message shows. `None` if the
/// client throws, or if a tool call has more than one part: the checker reports that, and tracks
/// only the last part.
fn reported_and_shown(case: &Case) -> Option<(BTreeSet<Rule>, BTreeSet<Rule>)> {
    let message = case.message.as_deref().map(|message| UiMessage::parse(message).unwrap());
    let checker = message.as_ref().map_or_else(Checker::new, Checker::continuing);
    let mut checker = checker.with_reader(ClientReader::Chat);
    let has_left_text = message.as_ref().is_some_and(leaves_text);
    let mut reducer = message.map_or_else(Reducer::new, Reducer::continuing);
    let mut reported = BTreeSet::new();
    for chunk in &case.chunks {
        reducer.push(&ReceivedChunk::parse(chunk).ok()?).ok()?;
        reported.extend(checker.handle_data(chunk).iter().map(|violation| violation.rule));
    }
    reported.extend(checker.finish().iter().map(|violation| violation.rule));
    let is_repeated =
        reported.contains(&Rule::RepeatedToolCall) || reported.contains(&Rule::DynamicMismatch);
    if reducer.error_text().is_some() || is_repeated || has_left_text {
        return None;
    }
    let messages = [reducer.rendered()?.into_owned()];
    let mut ids = BTreeSet::new();
    if !messages[0].tool_parts().all(|part| ids.insert(part.tool_call_id.as_str())) {
        return None;
    }
    let any_call =
        |is_it: fn(&ToolState) -> bool| messages[0].tool_parts().any(|part| is_it(&part.state));
    let is_preliminary = |state: &ToolState| {
        matches!(state, ToolState::OutputAvailable { preliminary: Some(true), .. })
    };
    let text_is_left = leaves_text(&messages[0]);
    let mut shown = BTreeSet::new();
    for (rule, is_so) in [
        (Rule::PartLeftOpen, text_is_left),
        (Rule::InputLeftOpen, any_call(|state| matches!(state, ToolState::InputStreaming { .. }))),
        (Rule::OutputLeftPreliminary, any_call(is_preliminary)),
        (
            Rule::EndlessResubmission,
            is_complete_with_approvals(&messages) || is_complete_with_tool_calls(&messages),
        ),
    ] {
        shown.extend(is_so.then_some(rule));
    }
    reported.retain(|rule| COMPARED.contains(rule));
    // An input that was open at the end of its step may have ended later, and an open text keeps
    // the client from sending again.
    if !shown.contains(&Rule::InputLeftOpen) {
        reported.remove(&Rule::InputLeftOpen);
    }
    if text_is_left {
        reported.remove(&Rule::EndlessResubmission);
        shown.remove(&Rule::EndlessResubmission);
    }
    Some((reported, shown))
}

fn leaves_text(message: &UiMessage) -> bool {
    message.parts.iter().any(|part| match part {
        // For the helpers, a text without a state is incomplete too.
        Part::Text(part) => part.state != Some(TextState::Done),
        Part::Reasoning(part) => part.state == Some(TextState::Streaming),
        _ => false,
    })
}

const COMPARED: [Rule; 4] = [
    Rule::PartLeftOpen,
    Rule::InputLeftOpen,
    Rule::OutputLeftPreliminary,
    Rule::EndlessResubmission,
];
