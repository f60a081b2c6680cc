//! What a client shows of a message.

use super::approval::SettledApproval;
use super::part::Part;
use super::tool_part::ToolState;
use crate::UserText;
use crate::chunk::Version;

/// Returns the parts as a client of this version holds them, if they differ.
pub(super) fn parts_for(version: Version, parts: &[Part]) -> Option<Vec<Part>> {
    let is_older = !version.is_v7();
    let keeps_raw_inputs = version != Version::V5 && !version.keeps_invalid_input();
    let differs =
        |part: &Part| is_older && is_for_v7(part) || !keeps_raw_inputs && has_raw_input(part);
    if !parts.iter().any(differs) {
        return None;
    }
    let is_hidden = |part: &Part| matches!(part, Part::Custom(_) | Part::ReasoningFile(_));
    let mut shown: Vec<Part> = parts.to_vec();
    shown.retain(|part| !(is_older && is_hidden(part)));
    for part in &mut shown {
        let Part::Tool(part) = part else { continue };
        if is_older {
            part.state.remove_refusal();
        }
        if !keeps_raw_inputs {
            part.state.remove_raw_input();
        }
    }
    Some(shown)
}

/// Whether only clients of `ai@7` show the whole part.
fn is_for_v7(part: &Part) -> bool {
    match part {
        Part::Custom(_) | Part::ReasoningFile(_) => true,
        Part::Tool(part) => part.state.approval_details().is_some_and(|details| {
            details.request_reason.is_some() || details.is_automatic.is_some()
        }),
        _ => false,
    }
}

/// Whether the part is a failed call with the text or the value of an invalid input.
fn has_raw_input(part: &Part) -> bool {
    part.as_tool()
        .is_some_and(|part| matches!(part.state, ToolState::OutputError { raw_input: Some(_), .. }))
}

impl ToolState {
    /// Moves an invalid input from the field that some clients do not have.
    fn remove_raw_input(&mut self) {
        if let ToolState::OutputError { input, raw_input, .. } = self {
            *input = input.take().or(raw_input.take());
            *raw_input = None;
        }
    }

    fn remove_refusal(&mut self) {
        if let ToolState::OutputDenied { input, approval: Some(approval) } = self
            && approval.is_automatic()
        {
            let SettledApproval { reason, .. } = &mut **approval;
            *self = ToolState::OutputError {
                input: input.take(),
                raw_input: None,
                error_text: reason.take().unwrap_or_else(|| UserText::Refused.to_string()),
                approval: None,
                result_provider_metadata: None,
            };
        }
        if let Some(details) = self.approval_details_mut() {
            (details.request_reason, details.is_automatic) = (None, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::UiMessage;

    #[test]
    fn an_invalid_input_is_in_the_field_of_the_client() {
        let message = |input: &str| {
            let part = r#"{"type": "tool-act", "toolCallId": "c1", "state": "output-error", "#;
            let rest = r#""errorText": "no"}"#;
            let text =
                format!(r#"{{"id": "a1", "role": "assistant", "parts": [{part}{input}{rest}]}}"#);
            UiMessage::parse(&text).unwrap()
        };
        let cut_off = message(r#""rawInput": "{\"a\": 1, \"b", "#);
        let as_input = message(r#""input": "{\"a\": 1, \"b", "#);
        for (version, shown) in [
            (Version::V5, &as_input),
            (Version::V6, &cut_off),
            (Version::V7, &cut_off),
            (Version::NEWEST, &as_input),
        ] {
            assert_eq!(*cut_off.for_version(version), *shown, "{version:?}");
        }
        let both = message(r#""input": 1, "rawInput": 2, "#);
        assert_eq!(*both.for_version(Version::NEWEST), message(r#""input": 1, "#));
    }
}
