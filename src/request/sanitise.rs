//! Removes from a history what the agent must not see, and keeps the original messages.

use super::Limits;
use crate::json::{ExtraFields, without};
use crate::message::{Part, Role, ToolState, UiMessage, push_tightly};

/// A message as it was sent, which was changed in the history, or dropped as a system message.
#[derive(Debug, Clone)]
pub(super) struct OriginalMessage {
    /// Its index in the list that was sent.
    index: usize,
    message: UiMessage,
}

/// Removes from the messages the content that a server must not trust, and returns the originals of
/// all messages that it changed or dropped.
pub(super) fn sanitise(messages: &mut Vec<UiMessage>, limits: &Limits) -> Vec<OriginalMessage> {
    let clean: Vec<bool> = messages.iter().map(|message| is_clean(message, limits)).collect();
    let mut originals = Vec::with_capacity(clean.iter().filter(|clean| !**clean).count());
    for (index, message) in messages.iter_mut().enumerate() {
        if !clean[index] {
            let sanitised = sanitised(message, limits);
            originals
                .push(OriginalMessage { index, message: std::mem::replace(message, sanitised) });
        }
    }
    messages.retain(|message| message.role != Role::System);
    originals
}

/// Returns the messages as they were sent.
pub(super) fn unsanitized_messages<'a>(
    messages: &'a [UiMessage],
    originals: &'a [OriginalMessage],
) -> impl Iterator<Item = &'a UiMessage> {
    let mut rest = messages.iter();
    let mut originals = originals.iter().peekable();
    (0..).map_while(move |index| {
        let Some(OriginalMessage { message, .. }) = originals.next_if(|here| here.index == index)
        else {
            return rest.next();
        };
        if message.role != Role::System {
            rest.next();
        }
        Some(message)
    })
}

fn is_clean(message: &UiMessage, limits: &Limits) -> bool {
    let mut parts = message.parts.iter();
    message.role != Role::System
        && has_no_provider_field(&message.extra)
        && parts.all(|part| is_allowed(part, limits) && !has_provider_fields(part))
        && message.overruled_tool_parts().is_empty()
}

/// Returns a copy of a message without its forbidden parts and fields. The copy of a system message
/// is empty.
fn sanitised(message: &UiMessage, limits: &Limits) -> UiMessage {
    let mut sanitised = UiMessage::new(message.id.clone(), message.role, Vec::new());
    if message.role == Role::System {
        return sanitised;
    }
    let overruled = message.overruled_tool_parts();
    for (at, part) in message.parts.iter().enumerate() {
        if overruled.binary_search(&at).is_err() && is_allowed(part, limits) {
            let mut part = part.clone();
            strip(&mut part);
            push_tightly(&mut sanitised.parts, part);
        }
    }
    sanitised.metadata = message.metadata.clone();
    sanitised.extra = message.extra.clone();
    strip_extra(&mut sanitised.extra);
    sanitised
}

fn is_allowed(part: &Part, limits: &Limits) -> bool {
    !matches!(part, Part::File(file) | Part::ReasoningFile(file) if !limits.allows_file_at(&file.url))
}

/// Returns whether a part holds fields for a provider.
fn has_provider_fields(part: &Part) -> bool {
    let (metadata, extra) = match part {
        Part::Text(part) => (&part.provider_metadata, &part.extra),
        Part::Reasoning(part) => (&part.provider_metadata, &part.extra),
        Part::SourceUrl(part) => (&part.provider_metadata, &part.extra),
        Part::SourceDocument(part) => (&part.provider_metadata, &part.extra),
        Part::File(part) | Part::ReasoningFile(part) => (&part.provider_metadata, &part.extra),
        Part::Custom(part) => (&part.provider_metadata, &part.extra),
        Part::StepStart { extra } => (&None, extra),
        Part::Data(part) => (&None, &part.extra),
        Part::Tool(part) => match &part.state {
            ToolState::OutputAvailable { result_provider_metadata: Some(_), .. }
            | ToolState::OutputError { result_provider_metadata: Some(_), .. } => return true,
            state
                if !state
                    .approval_details()
                    .is_none_or(|details| has_no_provider_field(&details.extra)) =>
            {
                return true;
            }
            _ => (&part.call_provider_metadata, &part.extra),
        },
        Part::Unknown(part) => return without(part.as_json(), PROVIDER_FIELDS).is_some(),
    };
    metadata.is_some() || !has_no_provider_field(extra)
}

/// Removes the fields for a provider from a part.
fn strip(part: &mut Part) {
    let (metadata, extra) = match part {
        Part::Text(part) => (&mut part.provider_metadata, &mut part.extra),
        Part::Reasoning(part) => (&mut part.provider_metadata, &mut part.extra),
        Part::SourceUrl(part) => (&mut part.provider_metadata, &mut part.extra),
        Part::SourceDocument(part) => (&mut part.provider_metadata, &mut part.extra),
        Part::File(part) | Part::ReasoningFile(part) => {
            (&mut part.provider_metadata, &mut part.extra)
        }
        Part::Custom(part) => (&mut part.provider_metadata, &mut part.extra),
        Part::StepStart { extra } => (&mut None, extra),
        Part::Data(part) => (&mut None, &mut part.extra),
        Part::Tool(part) => {
            if let ToolState::OutputAvailable { result_provider_metadata, .. }
            | ToolState::OutputError { result_provider_metadata, .. } = &mut part.state
            {
                *result_provider_metadata = None;
            }
            if let Some(details) = part.state.approval_details_mut() {
                strip_extra(&mut details.extra);
            }
            (&mut part.call_provider_metadata, &mut part.extra)
        }
        Part::Unknown(part) => {
            if let Some(Some(stripped)) = without(&part.0, PROVIDER_FIELDS) {
                part.0 = stripped;
            }
            return;
        }
    };
    *metadata = None;
    strip_extra(extra);
}

fn has_no_provider_field(extra: &ExtraFields) -> bool {
    extra.is_empty() || extra.without(PROVIDER_FIELDS).is_none()
}

fn strip_extra(extra: &mut ExtraFields) {
    if let Some(stripped) = extra.without(PROVIDER_FIELDS) {
        *extra = stripped;
    }
}

/// Fields that a provider's adapter may act on, at any index of a message.
const PROVIDER_FIELDS: &[&str] = &[
    "providerMetadata",
    "callProviderMetadata",
    "resultProviderMetadata",
    "providerOptions",
    // `ai@7`: a file that the provider stores.
    "providerReference",
];
