//! Where a client stands in the frames of a run, as the message shows it that the client holds.

use bytes::Bytes;

use super::open_chunks::{OpenChunks, each_chunk};
use ui_message_stream::approval::APPROVAL_DATA_NAME;
use ui_message_stream::chunk::Chunk;
use ui_message_stream::message::{Part, ToolPart, ToolState, UiMessage};
use ui_message_stream::reducer::Reducer;

/// Returns how many parts of a message are content.
pub(crate) fn content_parts(message: &UiMessage) -> usize {
    content(message).count()
}

/// Returns after how many parts that are content a client stands in a message. It may hold parts of its own,
/// and it may lack parts that its version cannot read.
pub(crate) fn held_parts(held: &UiMessage, message: &UiMessage) -> usize {
    let parts: Vec<&Part> = content(message).map(|(_, part)| part).collect();
    content(held).fold(0, |read, (_, held)| {
        let is_it = |part: &&Part| is_held_as(part, held);
        parts[read..].iter().position(is_it).map_or(read, |found| read + found + 1)
    })
}

/// Whether a client that holds this part has read it, or the beginning of it, as `held`.
pub(crate) fn is_held_as(part: &Part, held: &Part) -> bool {
    match (held, part) {
        (Part::Text(held), Part::Text(part)) => part.text.starts_with(&held.text),
        (Part::Reasoning(held), Part::Reasoning(part)) => part.text.starts_with(&held.text),
        (Part::Tool(held), Part::Tool(part)) => held.tool_call_id == part.tool_call_id,
        (Part::Data(held), Part::Data(part)) => held.name == part.name && held.id == part.id,
        (held, part) => held == part,
    }
}

/// Returns the parts of a message that are content, with their indices.
pub(crate) fn content(message: &UiMessage) -> impl Iterator<Item = (usize, &Part)> {
    message.parts.iter().enumerate().filter(|(_, part)| is_content(part, message))
}

/// Whether a part is content. Step starts are not, and neither are parts that only a client may hold:
/// `data-run-end` at the end of a response, and `data-approval` of a call in another message.
fn is_content(part: &Part, message: &UiMessage) -> bool {
    match part {
        Part::StepStart { .. } => false,
        Part::Data(data) if &*data.name == APPROVAL_DATA_NAME => {
            let is_it = |call: &ToolPart| Some(call.tool_call_id.as_str()) == data.id.as_deref();
            message.tool_parts().any(is_it)
        }
        Part::Data(data) => &*data.name != "run-end",
        _ => true,
    }
}

/// Where a client stands in the frames of a run.
#[derive(Debug, PartialEq)]
pub(crate) struct HeldPosition {
    /// How many frames it has read.
    pub(crate) read: usize,
    /// Those of them that it reads again: an input of a tool call that the client holds as incomplete is sent
    /// from its start. A call between them that is complete is not sent again, because the client would
    /// execute it again.
    pub(crate) again: Vec<u8>,
}

/// Returns where a client stands that holds this message, as far as its parts show it, or `None` if it has read
/// no part of the run. Each element of `frames` is one frame.
pub(crate) fn position_of(
    begun: Option<&UiMessage>,
    frames: &[Bytes],
    held: &UiMessage,
) -> Option<HeldPosition> {
    let begin = || begun.cloned().map_or_else(Reducer::new, Reducer::continuing);
    let mut whole = begin();
    let mut push = |chunk: &Chunk<'_>| drop(whole.push_chunk(chunk));
    frames.iter().for_each(|frame| each_chunk(frame, |chunk| push(chunk)));
    let parts = held_parts(held, whole.message());
    if parts <= begun.map_or(0, content_parts) {
        return None;
    }
    let first = last_handed_over(frames, held);
    let mut reducer = begin();
    let mut open = OpenChunks::default();
    let is_incomplete = |id: &str| {
        let mut calls = held.tool_parts().filter(|part| *part.tool_call_id == *id);
        calls.next().is_none_or(|part| matches!(part.state, ToolState::InputStreaming { .. }))
    };
    // The calls whose inputs are incomplete, with their frames.
    let mut inputs: Vec<(String, Vec<u8>)> = Vec::new();
    for (at, frame) in frames.iter().enumerate() {
        let mut is_delta = false;
        each_chunk(frame, |chunk| {
            let _ = reducer.push_chunk(chunk);
            open.push(chunk);
            match chunk {
                Chunk::TextDelta { .. } | Chunk::ReasoningDelta { .. } => is_delta = true,
                Chunk::ToolInputDelta { tool_call_id, .. } => {
                    is_delta = true;
                    let input = inputs.iter_mut().find(|(id, _)| *id == **tool_call_id);
                    input.into_iter().for_each(|(_, input)| input.extend_from_slice(frame));
                }
                Chunk::ToolInputStart { tool_call_id, .. } => {
                    inputs.push((tool_call_id.to_string(), frame.to_vec()));
                }
                // A call that the client executes has no other end of its input before it is approved.
                Chunk::ToolApprovalRequest { tool_call_id, .. }
                | Chunk::ToolInputAvailable { tool_call_id, .. }
                | Chunk::ToolInputError { tool_call_id, .. } => {
                    inputs.retain(|(id, _)| *id != **tool_call_id);
                }
                _ => {}
            }
        });
        // A delta begins no part and ends none. The reducer reads a whole input for each message that
        // it returns.
        if !is_delta
            && at >= first
            && !open.has_text()
            && inputs.iter().all(|(id, _)| is_incomplete(id))
            && content_parts(reducer.message()) >= parts
        {
            let again = inputs.into_iter().flat_map(|(_, input)| input).collect();
            return Some(HeldPosition { read: at + 1, again });
        }
    }
    None
}

/// Returns the index of the last frame that has given an approved call to the client, if the message holds what the
/// client has made of it. From an earlier frame on, the client would execute the call again.
fn last_handed_over(frames: &[Bytes], held: &UiMessage) -> usize {
    let is_executed = |id: &str| {
        let mut calls = held.tool_parts().filter(|part| *part.tool_call_id == *id);
        calls
            .any(|part| part.is_settled() || matches!(part.state, ToolState::InputAvailable { .. }))
    };
    let mut asked = Vec::new();
    let mut first = 0;
    for (at, frame) in frames.iter().enumerate() {
        each_chunk(frame, |chunk| match chunk {
            Chunk::ToolApprovalRequest { tool_call_id, .. } => asked.push(tool_call_id.to_string()),
            Chunk::ToolInputAvailable { tool_call_id, .. }
                if asked.iter().any(|id| **id == **tool_call_id) && is_executed(tool_call_id) =>
            {
                first = at;
            }
            _ => {}
        });
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use ui_message_stream::chunk::ReceivedChunk;

    /// The log of a message with a call that waits for approval, and a second call.
    const LOG: &[&str] = &[
        r#"{"type":"start","messageId":"a1"}"#,
        r#"{"type":"start-step"}"#,
        r#"{"type":"tool-input-start","toolCallId":"c1","toolName":"act"}"#,
        r#"{"type":"tool-input-delta","toolCallId":"c1","inputTextDelta":"{}"}"#,
        r#"{"type":"tool-input-available","toolCallId":"c1","toolName":"act","input":{}}"#,
        r#"{"type":"tool-approval-request","approvalId":"ap1","toolCallId":"c1"}"#,
        r#"{"type":"tool-input-start","toolCallId":"c2","toolName":"act"}"#,
        r#"{"type":"tool-input-delta","toolCallId":"c2","inputTextDelta":"{\"n\""}"#,
        r#"{"type":"tool-input-delta","toolCallId":"c2","inputTextDelta":":2}"}"#,
        r#"{"type":"tool-input-available","toolCallId":"c2","toolName":"act","input":{"n":2}}"#,
        r#"{"type":"tool-output-available","toolCallId":"c2","output":3}"#,
    ];

    fn read(message: Option<UiMessage>, chunks: &[&str]) -> UiMessage {
        let mut reducer = message.map_or_else(Reducer::new, Reducer::continuing);
        for chunk in chunks {
            reducer.push(&ReceivedChunk::parse(chunk).unwrap()).unwrap();
        }
        reducer.into_message()
    }

    fn log_of(chunks: &[&str]) -> Vec<Bytes> {
        let frame = |(at, chunk): (usize, &&str)| format!("id: r1.{at}\ndata: {chunk}\n\n");
        chunks.iter().enumerate().map(|chunk| frame(chunk).into()).collect()
    }

    #[test]
    fn a_client_that_was_cut_in_the_input_of_a_call_reads_the_input_from_its_start() {
        for cut in [7, 8, 9] {
            let held = read(None, &LOG[..cut]);
            let again = log_of(LOG)[6].to_vec();
            let position = Some(HeldPosition { read: 7, again });
            assert_eq!(position_of(None, &log_of(LOG), &held), position, "cut after {cut}");
        }
    }

    #[test]
    fn a_client_that_has_read_the_input_of_a_call_reads_what_follows_it() {
        for cut in [10, 11] {
            let held = read(None, &LOG[..cut]);
            assert_eq!(position_of(None, &log_of(LOG), &held), after(10), "cut after {cut}");
        }
    }

    #[test]
    fn a_client_that_was_cut_in_interleaved_inputs_reads_no_complete_input_again() {
        let one = &LOG[2..5];
        let two = &LOG[6..10];
        let log = [&LOG[..2], &one[..2], &two[..2], &one[2..], &two[2..]].concat();
        let held = read(None, &log[..7]);
        let HeldPosition { read: at, again } = position_of(None, &log_of(&log), &held).unwrap();
        assert_eq!(at, 7);
        assert_eq!(again, log_of(&log)[4..6].concat());
    }

    fn after(frames: usize) -> Option<HeldPosition> {
        Some(HeldPosition { read: frames, again: Vec::new() })
    }

    #[test]
    fn parts_of_the_page_and_parts_that_it_cannot_read_move_no_position() {
        let note = r#"{"id":"a1","role":"assistant","parts":[{"type":"text","text":"a note"}]}"#;
        let own = UiMessage::parse(note).unwrap();
        let held = read(None, &LOG[..6]);
        let position = position_of(None, &log_of(LOG), &held);
        assert!(position.is_some());
        for at in 0..=held.parts.len() {
            let mut held = held.clone();
            held.parts.insert(at, own.parts[0].clone());
            assert_eq!(position_of(None, &log_of(LOG), &held), position, "{at}");
        }
        assert_eq!(position_of(None, &log_of(LOG), &own), None);
        let later = [LOG, &[r#"{"type":"start-step"}"#, r#"{"type":"data-x","data":1}"#]].concat();
        let mut held = read(None, &later);
        held.parts.retain(|part| part.as_tool().is_none_or(|tool| *tool.tool_call_id != *"c1"));
        assert_eq!(position_of(None, &log_of(&later), &held), after(later.len()));
    }

    #[test]
    fn a_client_that_was_cut_at_any_part_holds_the_whole_message_after_the_rest() {
        // The client executes the first call of the second log, and reads its input once it is approved.
        let last = [r#"{"type":"data-x","data":1}"#];
        for log in [LOG.to_vec(), [&LOG[..4], &LOG[5..], &LOG[4..5], &last].concat()] {
            let whole = read(None, &log);
            for cut in 3..log.len() {
                let held = read(None, &log[..cut]);
                let position = position_of(None, &log_of(&log), &held);
                let HeldPosition { read: at, again } = position.unwrap_or_else(|| panic!("{cut}"));
                let available = r#"{"type":"tool-input-available","toolCallId":"c1""#;
                let (before, after) = log.split_at(cut);
                let is_read = before.iter().any(|chunk| chunk.starts_with(available));
                let comes = log[at..].iter().any(|chunk| chunk.starts_with(available));
                assert!(!is_read || !comes, "cut after {cut}: {after:?}");
                let mut reducer = Reducer::continuing(held);
                each_chunk(&again, |chunk| reducer.push_chunk(chunk).unwrap());
                let message = read(Some(reducer.into_message()), &log[at..]);
                assert_eq!(message, whole, "cut after {cut}, the rest begins at {at}");
            }
        }
    }
}
