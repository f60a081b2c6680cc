//! Raw chunks between the events, with fields that events do not have.

use std::borrow::Cow;

use test_support::rng::Dice;
use ui_message_stream::chunk::{Citations, FinishReason, InputEncoding};
use ui_message_stream::event::{Executor, Source, ToolCall};
use ui_message_stream::metadata::{ProviderMetadata, ToolMetadata};
use ui_message_stream::{AgentEvent, Chunk, Json};

use super::generator::HeldCalls;
use super::invalid_events::{self, Cast};
use super::pools::FILE_URLS;
use super::values::RandomValues;

type Owned = Cow<'static, str>;

/// Replaces some or all of the events by the corresponding chunks, and adds a few chunks.
pub(crate) fn mix_in(dice: &mut Dice, held: &HeldCalls, is_v7: bool, events: &mut Vec<AgentEvent>) {
    let percent = dice.weighted(&[(1, 30), (1, 70), (1, 100)]);
    for event in events.iter_mut() {
        if dice.chance(percent)
            && let Some(chunk) = corresponding(dice, event)
        {
            *event = AgentEvent::Chunk(Box::new(chunk));
        }
    }
    if dice.chance(50) {
        // The first chunk of another server's stream.
        events.insert(0, AgentEvent::Chunk(Box::new(start(dice))));
    }
    if is_v7 {
        answer_some(dice, events);
        cite_some(dice, events);
    }
    let cast = Cast::of(dice, held, events);
    for _ in 0..if is_v7 { dice.below(8) } else { dice.below(4) } {
        let at = dice.below(events.len() + 1);
        let chunk = match dice.below(9) {
            0 => Some(start(dice)),
            1 => Some(empty_delta_with_metadata(dice, &cast)),
            2..=4 => Some(of_v7(dice, &cast)),
            _ => {
                let event = invalid_events::any(dice, &cast);
                corresponding(dice, &event)
            }
        };
        if let Some(chunk) = chunk {
            events.insert(at, AgentEvent::Chunk(Box::new(chunk)));
        }
    }
}

/// The corresponding chunk, as another server might write it. Not every event has one.
fn corresponding(dice: &mut Dice, event: &AgentEvent) -> Option<Chunk<'static>> {
    let provider_metadata = metadata(dice);
    Some(match event.clone() {
        AgentEvent::StepStart => Chunk::StartStep {},
        AgentEvent::StepFinish => Chunk::FinishStep {},
        AgentEvent::TextStart { id } => Chunk::TextStart { id: owned(&id), provider_metadata },
        AgentEvent::TextDelta { id: Some(id), delta } if !delta.is_empty() => {
            Chunk::TextDelta { id: owned(&id), delta: owned(&delta), provider_metadata }
        }
        AgentEvent::TextEnd { id } => {
            Chunk::TextEnd { id: owned(&id), citations: citations(dice), provider_metadata }
        }
        AgentEvent::ReasoningStart { id } => {
            Chunk::ReasoningStart { id: owned(&id), provider_metadata }
        }
        AgentEvent::ReasoningDelta { id: Some(id), delta } if !delta.is_empty() => {
            Chunk::ReasoningDelta { id: owned(&id), delta: owned(&delta), provider_metadata }
        }
        AgentEvent::ReasoningEnd { id: Some(id), .. } => {
            Chunk::ReasoningEnd { id: owned(&id), provider_metadata }
        }
        AgentEvent::ToolInputStart { call } => Chunk::ToolInputStart {
            tool_call_id: owned(&call.id),
            // Another server may know the tool and its executor only with the input.
            tool_name: if dice.chance(10) { "unknown".into() } else { owned(&call.tool_name) },
            input_encoding: encoding(dice),
            provider_executed: provider_executed(dice, &call).filter(|_| dice.chance(80)),
            provider_metadata: of_call(&call),
            tool_metadata: attached(&call),
            dynamic: dynamic(dice, &call),
            title: title(&call),
        },
        AgentEvent::ToolInputDelta { tool_call_id, delta } => Chunk::ToolInputDelta {
            tool_call_id: owned(&tool_call_id),
            input_text_delta: owned(&delta),
        },
        AgentEvent::ToolInput { call, input } => Chunk::ToolInputAvailable {
            tool_call_id: owned(&call.id),
            tool_name: owned(&call.tool_name),
            input: json(dice, input),
            provider_executed: provider_executed(dice, &call),
            provider_metadata: of_call(&call),
            tool_metadata: attached(&call),
            dynamic: dynamic(dice, &call),
            title: title(&call),
        },
        AgentEvent::ToolInputInvalid { call, input, error } => Chunk::ToolInputError {
            tool_call_id: owned(&call.id),
            tool_name: owned(&call.tool_name),
            input: json(dice, input),
            error_text: owned(&error),
            provider_executed: provider_executed(dice, &call),
            provider_metadata: of_call(&call),
            tool_metadata: attached(&call),
            dynamic: dynamic(dice, &call),
            title: title(&call),
        },
        AgentEvent::ApprovalRequested { tool_call_id, approval_id, .. } => {
            Chunk::ToolApprovalRequest {
                approval_id: owned(&approval_id),
                tool_call_id: owned(&tool_call_id),
                approval_descriptor: dice.chance(15).then(|| Cow::Owned(dice.json())),
                input_schema_input: dice.chance(15).then(|| Cow::Owned(dice.json())),
                reason: dice.chance(15).then_some("why".into()),
                is_automatic: dice.chance(30).then_some(true),
                signature: dice.chance(15).then_some("sig".into()),
            }
        }
        AgentEvent::ToolOutput { tool_call_id, output, preliminary } => {
            Chunk::ToolOutputAvailable {
                tool_call_id: owned(&tool_call_id),
                output: json(dice, output),
                provider_executed: dice.chance(10).then_some(true),
                provider_metadata,
                tool_metadata: None,
                // The client reads the field of the call, not this one.
                dynamic: dice.chance(10).then_some(true),
                preliminary: (preliminary || dice.chance(10)).then_some(preliminary),
            }
        }
        AgentEvent::ToolFailed { tool_call_id, error } => Chunk::ToolOutputError {
            tool_call_id: owned(&tool_call_id),
            error_text: owned(&error),
            provider_executed: dice.chance(10).then_some(true),
            provider_metadata,
            tool_metadata: None,
            dynamic: None,
        },
        AgentEvent::ToolDenied { tool_call_id } => {
            Chunk::ToolOutputDenied { tool_call_id: owned(&tool_call_id) }
        }
        AgentEvent::Source(source) => match *source {
            Source::Url { source_id, url, title } => Chunk::SourceUrl {
                source_id: owned(&source_id),
                url: owned(&url),
                title: title.as_deref().map(owned),
                provider_metadata,
            },
            Source::Document { source_id, media_type, title, filename } => Chunk::SourceDocument {
                source_id: owned(&source_id),
                media_type: owned(&media_type),
                title: owned(&title),
                filename: filename.as_deref().map(owned),
                provider_metadata,
            },
            _ => return None,
        },
        AgentEvent::File(file) => Chunk::File {
            url: owned(&file.url),
            media_type: owned(&file.media_type),
            provider_metadata,
        },
        AgentEvent::Data(data) => Chunk::Data {
            name: owned(&data.name),
            id: data.id.as_deref().map(owned),
            data: json(dice, data.data.clone()),
            transient: (data.transient || dice.chance(10)).then_some(data.transient),
        },
        AgentEvent::Metadata(json) => {
            Chunk::MessageMetadata { message_metadata: Some(Cow::Owned(json)) }
        }
        AgentEvent::Error { error_text } => Chunk::Error { error_text: owned(&error_text) },
        AgentEvent::Abort { reason } => Chunk::Abort { reason: reason.as_deref().map(owned) },
        AgentEvent::Finish { reason, metadata } => Chunk::Finish {
            finish_reason: (reason != FinishReason::Other).then_some(reason),
            message_metadata: metadata.map(Cow::Owned),
        },
        _ => return None,
    })
}

/// Adds answers to some approval requests, directly after them or later.
fn answer_some(dice: &mut Dice, events: &mut Vec<AgentEvent>) {
    let asked = |event: &AgentEvent| match event {
        AgentEvent::ApprovalRequested { approval_id, .. } => Some(owned(approval_id)),
        AgentEvent::Chunk(chunk) => match &**chunk {
            Chunk::ToolApprovalRequest { approval_id, .. } => Some(owned(approval_id)),
            _ => None,
        },
        _ => None,
    };
    let requests: Vec<(usize, Owned)> = events
        .iter()
        .enumerate()
        .rev()
        .filter_map(|(at, event)| Some((at, asked(event)?)))
        .collect();
    for (at, approval_id) in requests {
        if dice.chance(40) {
            let last = if dice.chance(70) { at + 1 } else { events.len() };
            let answered = Chunk::ToolApprovalResponse {
                approval_id,
                approved: dice.chance(50),
                reason: dice.chance(50).then(|| dice.text().into()),
                provider_executed: None,
                provider_metadata: None,
            };
            events.insert(last, AgentEvent::Chunk(Box::new(answered)));
        }
    }
}

/// Adds citations to ends of texts.
fn cite_some(dice: &mut Dice, events: &mut [AgentEvent]) {
    for event in events {
        if let AgentEvent::TextEnd { id } = event
            && dice.chance(50)
        {
            let id = owned(id);
            let end = Chunk::TextEnd { id, citations: citations(dice), provider_metadata: None };
            *event = AgentEvent::Chunk(Box::new(end));
        }
    }
}

/// A chunk that only `ai@7` knows.
fn of_v7(dice: &mut Dice, cast: &Cast) -> Chunk<'static> {
    let provider_metadata = metadata(dice);
    match dice.below(6) {
        0 => Chunk::Custom { content_kind: "openai.compaction".into(), provider_metadata },
        1 => Chunk::ReasoningFile {
            url: dice.pick(FILE_URLS).into(),
            media_type: "image/png".into(),
            provider_metadata,
        },
        2 => Chunk::ResetStep {},
        _ => Chunk::ToolApprovalResponse {
            approval_id: cast.approval(dice).into(),
            approved: dice.chance(50),
            reason: dice.chance(50).then(|| dice.text().into()),
            provider_executed: None,
            provider_metadata: None,
        },
    }
}

fn citations(dice: &mut Dice) -> Option<Cow<'static, Citations>> {
    let source = r#"{"type":"source","sourceType":"url","id":"s","url":"https://example.org/"}"#;
    let cited = format!(r#"[{{"source":{source},"startIndex":0,"citedText":"cited"}}]"#);
    dice.chance(80).then(|| Cow::Owned(Citations::parse(&cited).expect("it has the shape")))
}

fn start(dice: &mut Dice) -> Chunk<'static> {
    Chunk::Start {
        message_id: dice.chance(60).then(|| dice.pick(&["msg_1", "another", ""]).into()),
        message_metadata: dice.chance(40).then(|| Cow::Owned(dice.json_object())),
    }
}

/// Some providers send their signature in an empty delta.
fn empty_delta_with_metadata(dice: &mut Dice, cast: &Cast) -> Chunk<'static> {
    let provider_metadata = dice.provider_metadata().map(Cow::Owned);
    let (id, delta) = (owned(cast.part(dice)), Cow::Borrowed(""));
    match dice.chance(50) {
        true => Chunk::TextDelta { id, delta, provider_metadata },
        false => Chunk::ReasoningDelta { id, delta, provider_metadata },
    }
}

fn metadata(dice: &mut Dice) -> Option<Cow<'static, ProviderMetadata>> {
    dice.provider_metadata().filter(|_| dice.chance(25)).map(Cow::Owned)
}

/// Some servers omit JSON that is `null`.
fn json(dice: &mut Dice, json: Json) -> Option<Cow<'static, Json>> {
    (!json.is_null() || dice.chance(50)).then_some(Cow::Owned(json))
}

fn provider_executed(dice: &mut Dice, call: &ToolCall) -> Option<bool> {
    let by_provider = call.executed_by == Executor::Provider;
    (by_provider || dice.chance(10)).then_some(by_provider)
}

fn dynamic(dice: &mut Dice, call: &ToolCall) -> Option<bool> {
    (call.dynamic || dice.chance(10)).then_some(call.dynamic)
}

fn encoding(dice: &mut Dice) -> Option<InputEncoding> {
    dice.weighted(&[(80, None), (10, Some(InputEncoding::Json)), (10, Some(InputEncoding::Text))])
}

fn title(call: &ToolCall) -> Option<Owned> {
    call.title.as_deref().map(owned)
}

fn of_call(call: &ToolCall) -> Option<Cow<'static, ProviderMetadata>> {
    call.provider_metadata.clone().map(Cow::Owned)
}

fn attached(call: &ToolCall) -> Option<Cow<'static, ToolMetadata>> {
    call.tool_metadata.clone().map(Cow::Owned)
}

fn owned(text: &str) -> Owned {
    Cow::Owned(text.to_owned())
}
