//! What of a history is withheld from the agent, and how it is kept aside.

use super::Limits;
use crate::message::{Part, Role, ToolState, UiMessage, push_tightly};
use crate::record::{Extra, without};

/// A message that was changed or, being a system message, dropped: as it was sent.
#[derive(Debug, Clone)]
pub(super) struct Withheld {
    /// Where it stood in what was sent.
    place: usize,
    message: UiMessage,
}

/// Takes out of the messages what a server has no use for, and returns them as they were.
pub(super) fn sanitise(messages: &mut Vec<UiMessage>, limits: &Limits) -> Vec<Withheld> {
    let clean: Vec<bool> = messages.iter().map(|message| is_clean(message, limits)).collect();
    let mut withheld = Vec::with_capacity(clean.iter().filter(|clean| !**clean).count());
    for (place, message) in messages.iter_mut().enumerate() {
        if !clean[place] {
            let cleaned = cleaned(message, limits);
            withheld.push(Withheld { place, message: std::mem::replace(message, cleaned) });
        }
    }
    messages.retain(|message| message.role != Role::System);
    withheld
}

/// The messages as they were sent.
pub(super) fn as_sent<'a>(
    messages: &'a [UiMessage],
    withheld: &'a [Withheld],
) -> impl Iterator<Item = &'a UiMessage> {
    let mut kept = messages.iter();
    let mut withheld = withheld.iter().peekable();
    (0..).map_while(move |place| {
        let Some(Withheld { message, .. }) = withheld.next_if(|here| here.place == place) else {
            return kept.next();
        };
        if message.role != Role::System {
            kept.next();
        }
        Some(message)
    })
}

fn is_clean(message: &UiMessage, limits: &Limits) -> bool {
    let mut parts = message.parts.iter();
    message.role != Role::System
        && names_no_provider(&message.extra)
        && parts.all(|part| is_allowed(part, limits) && !addresses_provider(part))
        && message.overruled_tool_parts().is_empty()
}

/// A copy without what is withheld; of a system message nothing is left.
fn cleaned(message: &UiMessage, limits: &Limits) -> UiMessage {
    let mut cleaned = UiMessage::new(message.id.clone(), message.role, Vec::new());
    if message.role == Role::System {
        return cleaned;
    }
    let overruled = message.overruled_tool_parts();
    for (at, part) in message.parts.iter().enumerate() {
        if overruled.binary_search(&at).is_err() && is_allowed(part, limits) {
            let mut part = part.clone();
            strip(&mut part);
            push_tightly(&mut cleaned.parts, part);
        }
    }
    cleaned.metadata = message.metadata.clone();
    cleaned.extra = message.extra.clone();
    strip_extra(&mut cleaned.extra);
    cleaned
}

fn is_allowed(part: &Part, limits: &Limits) -> bool {
    !matches!(part, Part::File(file) if !limits.allows_file_at(&file.url))
}

/// Whether a part holds what is meant for a provider.
fn addresses_provider(part: &Part) -> bool {
    let (metadata, extra) = match part {
        Part::Text(part) => (&part.provider_metadata, &part.extra),
        Part::Reasoning(part) => (&part.provider_metadata, &part.extra),
        Part::SourceUrl(part) => (&part.provider_metadata, &part.extra),
        Part::SourceDocument(part) => (&part.provider_metadata, &part.extra),
        Part::File(part) => (&part.provider_metadata, &part.extra),
        Part::StepStart { extra } => (&None, extra),
        Part::Data(part) => (&None, &part.extra),
        Part::Tool(part) => match &part.state {
            ToolState::OutputAvailable { result_provider_metadata: Some(_), .. }
            | ToolState::OutputError { result_provider_metadata: Some(_), .. } => return true,
            state
                if !state
                    .approval_details()
                    .is_none_or(|details| names_no_provider(&details.extra)) =>
            {
                return true;
            }
            _ => (&part.call_provider_metadata, &part.extra),
        },
        Part::Unknown(part) => return without(part.as_json(), PROVIDERS).is_some(),
    };
    metadata.is_some() || !names_no_provider(extra)
}

/// Takes out of a part what is meant for a provider.
fn strip(part: &mut Part) {
    let (metadata, extra) = match part {
        Part::Text(part) => (&mut part.provider_metadata, &mut part.extra),
        Part::Reasoning(part) => (&mut part.provider_metadata, &mut part.extra),
        Part::SourceUrl(part) => (&mut part.provider_metadata, &mut part.extra),
        Part::SourceDocument(part) => (&mut part.provider_metadata, &mut part.extra),
        Part::File(part) => (&mut part.provider_metadata, &mut part.extra),
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
            if let Some(Some(stripped)) = without(&part.0, PROVIDERS) {
                part.0 = stripped;
            }
            return;
        }
    };
    *metadata = None;
    strip_extra(extra);
}

fn names_no_provider(extra: &Extra) -> bool {
    extra.is_empty() || extra.without(PROVIDERS).is_none()
}

fn strip_extra(extra: &mut Extra) {
    if let Some(stripped) = extra.without(PROVIDERS) {
        *extra = stripped;
    }
}

/// Fields that a provider's adapter may act on, wherever they stand.
const PROVIDERS: &[&str] = &[
    "providerMetadata",
    "callProviderMetadata",
    "resultProviderMetadata",
    "providerOptions",
    // `ai@7`: a file that the provider keeps.
    "providerReference",
];
