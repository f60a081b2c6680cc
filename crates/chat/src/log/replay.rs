//! The frames that give a stored message to a client.

use std::borrow::Cow;

use super::client::Client;
use super::held_position::{content, held_parts, is_held_as};
use crate::conversation::json_len;
use crate::conversation::model_ids::without_model_ids;
use ui_message_stream::UserText;
use ui_message_stream::chunk::{Chunk, Version};
use ui_message_stream::event::{AgentEvent, Data};
use ui_message_stream::id::ToolCallId;
use ui_message_stream::json::Json;
use ui_message_stream::message::{DataPart, Part, Role, ToolPart, ToolState, UiMessage};
use ui_message_stream::reducer::compact;
use ui_message_stream::sse::{DONE, Encoder};
use ui_message_stream::translator::Translator;

/// Returns the frames that give a stored message to a client which has posted `posted` of it, from `start`
/// to `[DONE]`. The first one is alone. The message has ended with `end`, or else with `finish`. The next
/// model call sends the approvals of the calls in `unsent`.
pub(crate) fn whole_response(
    posted: Option<&UiMessage>,
    stored: &UiMessage,
    (end, unsent): (Option<AgentEvent>, &[ToolCallId]),
    client: Client,
) -> [Vec<u8>; 2] {
    let message = &*client.shown(stored);
    let version = client.version();
    let (held, inputs) = complete_inputs(posted, message, version);
    let posted = posted.map(|posted| held.as_ref().unwrap_or(posted));
    let mut translator = translator_for(posted, message, version);
    // What another page has approved goes to the client that has done so.
    let denied = posted
        .into_iter()
        .flat_map(UiMessage::tool_parts)
        .filter(|part| is_denied(part) && has_input_only(message, part.tool_call_id.as_str()));
    let denied = denied.map(|part| part.tool_call_id.clone());
    let left: Vec<ToolCallId> = unsent.iter().cloned().chain(denied).collect();
    translator.set_answered(&left);
    let mut first = Vec::new();
    let mut encoder = Encoder::default();
    // A message may be large, and a vector that grows takes twice its bytes.
    let mut rest = match posted {
        None => Vec::with_capacity(json_len(message) + BYTES_OF_FRAMES * message.parts.len()),
        Some(_) => Vec::new(),
    };
    translator.start(&mut |chunk| encoder.encode(&chunk, &mut first));
    let mut out = |chunk: Chunk<'_>| replay(stored, chunk, version, &mut encoder, &mut rest);
    inputs.into_iter().for_each(|chunk| out(chunk.for_version(version)));
    let metadata = message.metadata.as_ref().filter(|metadata| {
        posted.is_some_and(|posted| !is_same_json(posted.metadata.as_ref(), Some(*metadata)))
    });
    let metadata = metadata.map(|metadata| AgentEvent::Metadata(metadata.clone()));
    let mut handle = |event| {
        let _ = translator.handle_event(&event, &mut out);
    };
    catch_up(posted, message, version, &mut handle);
    metadata.into_iter().chain(end).for_each(handle);
    // Writes nothing after another end.
    translator.finish(&mut out);
    rest.extend_from_slice(DONE);
    [first, rest]
}

/// Returns the frames that begin the response of a run which continues this message, for a client
/// that has posted `posted` of it. Returns `None` if it lacks nothing.
pub(crate) fn front(
    posted: Option<&UiMessage>,
    stored: &UiMessage,
    client: Client,
) -> Option<Vec<u8>> {
    let message = &*client.shown(stored);
    let version = client.version();
    let (held, inputs) = complete_inputs(posted, message, version);
    let posted = posted.map(|posted| held.as_ref().unwrap_or(posted));
    let mut translator = translator_for(posted, message, version);
    let mut frames = Vec::new();
    let mut encoder = Encoder::default();
    let mut out = |chunk: Chunk<'_>| replay(stored, chunk, version, &mut encoder, &mut frames);
    translator.start(&mut out);
    let has_inputs = !inputs.is_empty();
    let mut has_events = false;
    inputs.into_iter().for_each(|chunk| out(chunk.for_version(version)));
    catch_up(posted, message, version, &mut |event| {
        has_events = true;
        let _ = translator.handle_event(&event, &mut out);
    });
    if has_events {
        let _ = translator.handle_event(&AgentEvent::StepFinish, &mut out);
    } else if !has_inputs {
        return None;
    }
    Some(frames)
}

/// Writes a chunk of a message that exists already. A client executes a call of its own when it reads
/// `tool-input-available`, so only a call that has nothing but its input is written so: the input of every
/// other call is written as a streamed one.
fn replay(
    stored: &UiMessage,
    chunk: Chunk<'_>,
    version: Version,
    encoder: &mut Encoder,
    out: &mut Vec<u8>,
) {
    match chunk {
        Chunk::ToolInputAvailable {
            tool_call_id,
            tool_name,
            input: Some(input),
            provider_executed,
            provider_metadata,
            tool_metadata,
            dynamic,
            title,
        } if provider_executed != Some(true) && !has_input_only(stored, &tool_call_id) => {
            let start = Chunk::ToolInputStart {
                tool_call_id: Cow::Borrowed(&tool_call_id),
                tool_name,
                input_encoding: None,
                provider_executed,
                provider_metadata,
                tool_metadata,
                dynamic,
                title,
            };
            encoder.encode(&start.for_version(version), out);
            let input_text_delta = Cow::Borrowed(input.as_str());
            let tool_call_id = Cow::Borrowed(&*tool_call_id);
            encoder.encode(&Chunk::ToolInputDelta { tool_call_id, input_text_delta }, out);
        }
        chunk => encoder.encode(&chunk, out),
    }
}

/// Whether the message holds this call with nothing but its input, so that a client may execute it.
fn has_input_only(message: &UiMessage, id: &str) -> bool {
    let has_input = |part: &ToolPart| matches!(part.state, ToolState::InputAvailable { .. });
    message.tool_parts().any(|part| part.tool_call_id.as_str() == id && has_input(part))
}

/// Whether the client holds a denial of this call.
fn is_denied(part: &ToolPart) -> bool {
    matches!(&part.state, ToolState::ApprovalResponded { approval, .. } if !approval.approved)
}

fn translator_for(posted: Option<&UiMessage>, message: &UiMessage, version: Version) -> Translator {
    let translator = match posted {
        Some(posted) => Translator::continuing(posted),
        None => Translator::new(message.id.clone()),
    };
    translator.with_version(version)
}

/// Looks for calls in the last step of the posted message whose inputs the client holds as incomplete,
/// and the stored message does not. Returns the posted message with these calls, and the chunks that
/// give them to the client. A call whose chunks this client cannot read is left out.
fn complete_inputs(
    posted: Option<&UiMessage>,
    message: &UiMessage,
    version: Version,
) -> (Option<UiMessage>, Vec<Chunk<'static>>) {
    let mut held = None;
    let mut chunks = Vec::new();
    let Some(posted) = posted.filter(|posted| posted.id == message.id) else {
        return (held, chunks);
    };
    let is_incomplete = |part: &ToolPart| matches!(part.state, ToolState::InputStreaming { .. });
    let is_step_start = |part: &Part| matches!(part, Part::StepStart { .. });
    // The client looks for an input in its last step.
    let last_step = posted.parts.iter().rposition(is_step_start).unwrap_or(0);
    for (at, part) in posted.parts.iter().enumerate().skip(last_step) {
        let Some(part) = part.as_tool().filter(|part| is_incomplete(part)) else { continue };
        let is_it = |stored: &&ToolPart| stored.tool_call_id == part.tool_call_id;
        let stored = message.tool_parts().find(is_it).filter(|stored| !is_incomplete(stored));
        let Some(stored) = stored.map(|stored| Part::Tool(Box::new(stored.clone()))) else {
            continue;
        };
        let call = UiMessage::new(message.id.clone(), Role::Assistant, vec![stored.clone()]);
        let mut of_call = Vec::new();
        each_chunk_of(&call, version, |chunk| of_call.push(chunk));
        of_call.retain(|chunk| !matches!(chunk, Chunk::Start { .. }));
        if !of_call.is_empty() && of_call.iter().all(|chunk| chunk.is_kind_known_to(version)) {
            held.get_or_insert_with(|| posted.clone()).parts[at] = stored;
            chunks.extend(of_call);
        }
    }
    (held, chunks)
}

/// Calls `each` with the events that make the message that a client has posted the whole message: the results of
/// its calls, new data, and the parts that it lacks.
fn catch_up(
    posted: Option<&UiMessage>,
    message: &UiMessage,
    version: Version,
    each: &mut impl FnMut(AgentEvent),
) {
    let Some(posted) = posted else {
        return each_chunk_of(message, version, |chunk| each(AgentEvent::Chunk(Box::new(chunk))));
    };
    for part in &message.parts {
        match part {
            Part::Tool(part) if part.is_settled() => {
                let is_it = |posted: &&ToolPart| {
                    posted.tool_call_id == part.tool_call_id && !posted.is_settled()
                };
                if posted.tool_parts().any(|posted| is_it(&posted)) {
                    events_of_result(part).into_iter().for_each(&mut *each);
                }
            }
            Part::Tool(part) => {
                let mut asked = posted.tool_parts().filter(|posted| {
                    posted.tool_call_id == part.tool_call_id && posted.approval_id().is_some()
                });
                let ToolState::InputAvailable { input: Some(input) } = &part.state else {
                    continue;
                };
                let Some(asked) = asked.next() else { continue };
                let tool_call_id = part.tool_call_id.clone();
                each(if is_denied(asked) {
                    AgentEvent::DenialOverruled { tool_call_id }
                } else {
                    AgentEvent::HandedToClient { tool_call_id, input: input.clone() }
                });
            }
            Part::Data(part) if part.id.is_some() => {
                let is_other = |posted: &Part| match posted {
                    Part::Data(posted) => {
                        posted.name == part.name
                            && posted.id == part.id
                            && !is_same_json(posted.data.as_ref(), part.data.as_ref())
                    }
                    _ => false,
                };
                if posted.parts.iter().any(is_other) {
                    data_event(part).into_iter().for_each(&mut *each);
                }
            }
            _ => {}
        }
    }
    if let Some(rest) = rest_of(message, posted) {
        each_chunk_of(&rest, version, |chunk| each(AgentEvent::Chunk(Box::new(chunk))));
    }
}

/// Returns the events that show the result of a call.
fn events_of_result(part: &ToolPart) -> Vec<AgentEvent> {
    let id = part.tool_call_id.clone();
    let (approval, event) = match &part.state {
        ToolState::OutputAvailable { output, approval, .. } => {
            let output = output.clone().unwrap_or_else(Json::null);
            (approval, AgentEvent::tool_output(id.clone(), output))
        }
        ToolState::OutputError { error_text, approval, .. } => {
            (approval, AgentEvent::tool_failed(id.clone(), error_text.clone()))
        }
        ToolState::OutputDenied { approval: Some(approval), .. } if approval.is_automatic() => {
            return vec![AgentEvent::tool_refused(id, approval.reason.clone().unwrap_or_default())];
        }
        ToolState::OutputDenied { approval, .. } => {
            (approval, AgentEvent::ToolDenied { tool_call_id: id.clone() })
        }
        _ => return Vec::new(),
    };
    let decision = approval.as_ref().and_then(|approval| {
        Some(AgentEvent::Chunk(Box::new(Chunk::ToolApprovalResponse {
            approval_id: Cow::Owned(approval.id.to_string()),
            approved: approval.approved?,
            reason: approval.reason.clone().map(Cow::Owned),
            provider_executed: None,
            provider_metadata: None,
        })))
    });
    let is_approved = approval.as_ref().is_some_and(|approval| approval.approved == Some(true));
    // An earlier process may have written the text in English.
    let lapsed = [UserText::Lapsed.text(), UserText::Lapsed.in_english()];
    let has_lapsed =
        matches!(&event, AgentEvent::ToolFailed { error, .. } if lapsed.contains(&&**error));
    // The client may hold a denial that arrived after the approval. It stays if the call did not run.
    let overruled =
        (is_approved && !has_lapsed).then_some(AgentEvent::DenialOverruled { tool_call_id: id });
    overruled.into_iter().chain(decision).chain([event]).collect()
}

/// Whether two values are the same. A client may write them in another way.
fn is_same_json(one: Option<&Json>, other: Option<&Json>) -> bool {
    let value = |json: Option<&Json>| json.and_then(|json| json.decode::<serde_json::Value>().ok());
    one == other || value(one) == value(other)
}

fn data_event(part: &DataPart) -> Option<AgentEvent> {
    let id = part.id.as_ref().map(|id| id.to_string().into());
    let name = part.name.to_string().into();
    let data = part.data.clone()?;
    let data = Data { name, id, data, transient: false };
    Some(AgentEvent::Data(Box::new(data)))
}

/// Returns the parts of a message that the client does not hold, with the step start before them.
/// Returns `None` if the client holds them all.
fn rest_of(message: &UiMessage, posted: &UiMessage) -> Option<UiMessage> {
    let shown = if posted.id == message.id {
        held_parts(posted, message)
    } else {
        overlap(posted, message)
    };
    let parts = &message.parts;
    let (lacking, _) = content(message).nth(shown)?;
    let is_step_start = |at: &usize| matches!(parts[*at], Part::StepStart { .. });
    let with_its_step = lacking.checked_sub(1).filter(is_step_start);
    let rest = parts[with_its_step.unwrap_or(lacking)..].to_vec();
    Some(UiMessage::new(message.id.clone(), Role::Assistant, rest))
}

/// Returns with how many of the first parts of a message the posted one ends, which has another id. There
/// are none if it was replaced by that message. The client may also have read the message as a part of the
/// posted one, which the server did not know.
fn overlap(posted: &UiMessage, message: &UiMessage) -> usize {
    let held: Vec<&Part> = content(posted).map(|(_, part)| part).collect();
    let parts: Vec<&Part> = content(message).map(|(_, part)| part).collect();
    let is_same = |(held, part): (&&Part, &&Part)| is_held_as(part, held);
    let is_overlap = |count: &usize| held.iter().skip(held.len() - count).zip(&parts).all(is_same);
    (1..=held.len().min(parts.len())).rev().find(is_overlap).unwrap_or(0)
}

/// Calls `each` with the chunks that rebuild a message, without the ids that the model gave to its calls. Each chunk
/// is made when the one before it has been dropped, because a message may be large.
fn each_chunk_of(message: &UiMessage, version: Version, each: impl FnMut(Chunk<'static>)) {
    let without_ids = without_model_ids(message);
    let message = without_ids.as_ref().unwrap_or(message);
    // Some fields cannot be streamed.
    let decided = compact(message).ok().filter(|chunks| {
        let is_decision = |chunk: &Chunk<'_>| matches!(chunk, Chunk::ToolApprovalResponse { .. });
        chunks.iter().all(|chunk| !is_decision(chunk) || chunk.is_kind_known_to(version))
    });
    let (undecided, bare);
    let chunks = match decided {
        Some(chunks) => chunks,
        None => {
            undecided = without_decisions(message.clone());
            match compact(&undecided) {
                Ok(chunks) => chunks,
                Err(_) => {
                    bare = UiMessage::new(undecided.id.clone(), undecided.role, undecided.parts);
                    compact(&bare).unwrap_or_default()
                }
            }
        }
    };
    chunks.into_iter().map(Chunk::into_owned).for_each(each);
}

/// Removes the decisions of the user, for which clients before `ai@7` have no chunk. The result of a call shows what
/// was decided, and so does the `data-approval` part.
fn without_decisions(mut message: UiMessage) -> UiMessage {
    for part in &mut message.parts {
        let Part::Tool(part) = part else { continue };
        match &mut part.state {
            ToolState::OutputAvailable { approval, .. }
            | ToolState::OutputError { approval, .. } => *approval = None,
            ToolState::OutputDenied { approval: Some(approval), .. } => {
                (approval.approved, approval.reason) = (None, None);
            }
            ToolState::ApprovalResponded { input, .. } => {
                part.state = ToolState::InputAvailable { input: input.take() };
            }
            _ => {}
        }
    }
    message
}

/// How many bytes the frames of a part have more than its JSON. A wrong number costs memory for a moment.
const BYTES_OF_FRAMES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::entry::{Entry, OtherEntry, RunEnd};
    use crate::log::event_id::EventId;
    use crate::log::open_chunks::each_chunk;
    use crate::log::queue::Queue;
    use crate::log::run_frames::{Next, RunFrames};
    use crate::log::state::ChatState;
    use crate::log::writer::{EntryWriter, write_lost_end};
    use crate::store::Epoch;
    use ui_message_stream::approval::Principal;
    use ui_message_stream::event::ToolCall;
    use ui_message_stream::reducer::Reducer;

    fn begun() -> ChatState {
        let mut state = ChatState::new("c", Principal::new("ada"));
        let begin = OtherEntry::Begin { run: "r1".into(), message_id: "a1".into() };
        for entry in [begin, OtherEntry::Step] {
            state.apply(&entry.into()).unwrap();
        }
        state
    }

    /// The entries of a run that writes a text and calls, without its end.
    fn log() -> Vec<Entry> {
        let mut state = begun();
        let mut entries = Vec::new();
        let mut writer = EntryWriter::new(&state.live_message(), Client::of_version(Version::V6));
        let mut write = |event| {
            let mut queue = Queue::default();
            writer.event(&event, &mut state, &mut queue);
            entries.extend(queue.into_entries());
        };
        let input = r#"{"path": "notes.txt", "force": true, "times": 12}"#;
        write(AgentEvent::text("Two things"));
        for (name, dynamic) in [("one", false), ("two", true), ("three", false)] {
            let mut call = ToolCall::new(format!("call-{name}"), name);
            call.dynamic = dynamic;
            write(AgentEvent::tool_input_start(call.clone()));
            for at in 0..input.len() {
                write(AgentEvent::tool_input_delta(call.id.clone(), &input[at..at + 1]));
            }
            write(AgentEvent::tool_input(call, Json::parse(input).unwrap()));
        }
        entries
    }

    /// Returns the content of a message. A replay can end with parts that are not content. It streams the
    /// input of a call that has failed, and the newest clients keep the text of a streamed input.
    fn content_of(message: &UiMessage) -> Vec<Part> {
        let mut parts: Vec<Part> = content(message).map(|(_, part)| part.clone()).collect();
        for part in &mut parts {
            if let Part::Tool(part) = part
                && let ToolState::OutputError { input: Some(_), raw_input, .. } = &mut part.state
            {
                *raw_input = None;
            }
        }
        parts
    }

    #[test]
    fn an_approval_that_was_not_sent_is_not_replayed_as_unknown() {
        let message = UiMessage::parse(
            r#"{"id": "a1", "role": "assistant", "parts": [{"type": "step-start"}, {
                "type": "tool-act", "toolCallId": "p1", "providerExecuted": true, "input": {},
                "state": "approval-responded", "approval": {"id": "ap1", "approved": true}
            }]}"#,
        );
        let message = message.unwrap();
        for (unsent, is_closed) in [(vec!["p1".into()], false), (Vec::new(), true)] {
            let posted = Some(&message);
            let frames =
                whole_response(posted, &message, (None, &unsent), Client::of_version(Version::V6));
            let frames = String::from_utf8(frames.concat()).unwrap();
            assert_eq!(frames.contains("tool-output-error"), is_closed, "{frames}");
        }
    }

    #[test]
    fn a_message_that_was_cut_at_any_entry_is_replayed_with_its_end() {
        let log = log();
        for cut in 1..=log.len() {
            let mut state = begun();
            log[..cut].iter().for_each(|entry| state.apply(entry).unwrap());
            let mut entries = write_lost_end(
                Some(&AgentEvent::error(UserText::AnswerInterrupted)),
                &mut state.clone(),
            );
            let end = OtherEntry::End { run: "r1".into(), end: RunEnd::Interrupted };
            entries.push(end.into());
            entries.iter().for_each(|entry| state.apply(entry).unwrap());
            let kept = state.into_chat();
            let stored = kept.message(&"a1".into()).unwrap();
            let mut reducer = Reducer::new();
            let mut errors = Vec::new();
            let end = kept.early_end(&stored.id);
            for frame in whole_response(None, stored, (end, &[]), Client::of_version(Version::V6)) {
                each_chunk(&frame, |chunk| match chunk {
                    Chunk::Error { error_text } => errors.push(error_text.to_string()),
                    chunk => reducer.push_chunk(chunk).unwrap(),
                });
            }
            assert_eq!(errors, [UserText::AnswerInterrupted.text()], "cut after {cut}");
            assert_eq!(content_of(reducer.message()), content_of(stored), "cut after {cut}");
        }
    }

    #[test]
    fn a_message_that_was_cut_at_any_entry_is_stored_as_its_client_shows_it() {
        let log = log();
        // `ai@5` has no chunk for an input that is cut off.
        let versions = [Version::V6, Version::NEWEST];
        for (cut, version) in (1..=log.len()).flat_map(|cut| versions.map(|version| (cut, version)))
        {
            let mut state = begun();
            let end = OtherEntry::End { run: "r1".into(), end: RunEnd::Stopped };
            let entries = [&log[..cut], &[end.into()]].concat();
            entries.iter().for_each(|entry| state.apply(entry).unwrap());
            let mut frames = RunFrames::new(EventId::of_run(Epoch(1), 0), version);
            let mut out = Vec::new();
            for (at, entry) in (0..).zip(&entries) {
                if frames.push(at, entry, &mut out) == Next::CutOff {
                    frames.end(at, None, &entries, &mut out);
                }
            }
            let mut reducer = Reducer::new().with_client(version);
            each_chunk(&out, |chunk| reducer.push_chunk(chunk).unwrap());
            let chat = state.into_chat();
            let stored = chat.message(&"a1".into()).unwrap().for_version(version);
            let shown = reducer.message().for_version(version);
            let (stored, shown): (Vec<_>, Vec<_>) =
                (content(&stored).collect(), content(&shown).collect());
            assert_eq!(shown, stored, "cut after {cut}, {version:?}");
        }
    }

    #[test]
    fn a_call_with_provider_metadata_is_replayed_without_keys_that_old_clients_do_not_know() {
        let message = UiMessage::parse(
            r#"{"id": "a1", "role": "assistant", "parts": [{"type": "step-start"}, {
                "type": "tool-act", "toolCallId": "c1", "input": {}, "output": 1,
                "state": "output-available", "callProviderMetadata": {"openai": {"itemId": "i1"}}
            }]}"#,
        );
        let message = message.unwrap();
        for (version, is_known) in [(Version::V6, false), (Version::V6Patch(39), true)] {
            let frames = whole_response(None, &message, (None, &[]), Client::of_version(version));
            let frames = String::from_utf8(frames.concat()).unwrap();
            let mut lines = frames.lines().filter(|line| line.contains("tool-input-start"));
            assert_eq!(lines.any(|line| line.contains("itemId")), is_known, "{frames}");
        }
    }

    #[test]
    fn a_call_that_was_cut_in_its_input_and_failed_is_shown_to_an_old_client_by_its_result() {
        let message = |state: &str| {
            let text = r#"{"id": "a1", "role": "assistant", "parts": [{"type": "step-start"}, {
                "type": "dynamic-tool", "toolName": "act", "toolCallId": "c1", STATE}]}"#;
            UiMessage::parse(&text.replace("STATE", state)).unwrap()
        };
        let posted = message(r#""state": "input-streaming", "input": {"a": 1}"#);
        let stored = message(r#""state": "output-error", "input": {"a": 1}, "errorText": "no""#);
        for (version, is_input) in [(Version::V5, false), (Version::V6, true)] {
            let frames = front(Some(&posted), &stored, Client::of_version(version)).unwrap();
            let frames = String::from_utf8(frames).unwrap();
            assert_eq!(frames.contains("tool-input-error"), is_input, "{frames}");
            assert_eq!(frames.contains("tool-output-error"), !is_input, "{frames}");
        }
    }

    #[test]
    fn the_metadata_of_a_message_with_an_answered_approval_is_replayed() {
        let message = UiMessage::parse(
            r#"{"id": "a1", "role": "assistant", "metadata": {"model": "m"}, "parts": [{
                "type": "tool-act", "toolCallId": "c1", "input": {}, "output": 1,
                "state": "output-available", "approval": {"id": "ap1", "approved": true}
            }]}"#,
        );
        let frames =
            whole_response(None, &message.unwrap(), (None, &[]), Client::of_version(Version::V6));
        let frames = String::from_utf8(frames.concat()).unwrap();
        assert!(frames.contains(r#""messageMetadata":{"model": "m"}"#), "{frames}");
    }
}
