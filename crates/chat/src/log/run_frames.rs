//! [`RunFrames`]: what a client reads of the entries of a run. It does no I/O.

use std::borrow::Cow;
use std::io::Write;

use super::end_message::end_message;
use super::entry::{Entry, OtherEntry, RunEnd, StepEnd, frame_of};
use super::event_id::{EventId, FRAME_BITS, FRAME_DIGITS, each};
use super::open_chunks::{OpenChunks, each_chunk};
use super::writer::{encoded, settled_call, shown};
use crate::conversation::push_recorded;
use ui_message_stream::UserText;
use ui_message_stream::chunk::{Chunk, FinishReason, Version};
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::{ApprovalId, MessageId, ToolCallId};
use ui_message_stream::json::Json;
use ui_message_stream::message::UiMessage;
use ui_message_stream::reducer::Reducer;
use ui_message_stream::sse::DONE;

/// Makes the frames of a run, from its first entry or from a later one.
#[derive(Debug)]
pub(crate) struct RunFrames {
    /// The position of the first entry of the run.
    begin: u64,
    /// What the `id:` of each frame begins with.
    id_head: Vec<u8>,
    /// How many frames of the next entry the client has read.
    skipped: usize,
    /// How many frames the client has read that the log did not hold: of the next entries that are only frames.
    ahead: usize,
    /// These frames, if this value has made them.
    unstored: Vec<u8>,
    version: Version,
    /// The message of the run.
    message_id: Option<MessageId>,
    /// The client has the results of calls before this position.
    results_before: u64,
    /// The calls with such a result.
    settled_before: Vec<ToolCallId>,
    /// The approvals of these calls.
    answered: Vec<ApprovalId>,
    step_end: Option<StepEnd>,
    /// Why the model has stopped in its last call, if the frames do not say it.
    reason: Option<FinishReason>,
}

/// How the frames go on after an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    More,
    /// The entry was the last one, and its frames are complete.
    Ended,
    /// The entry is the end of a run that has not finished, of which [`RunFrames::end`] makes the frames. It
    /// needs the entries from [`RunFrames::begin`] on.
    CutOff,
    /// The log does not hold what the client has read, and the client has to load the chat.
    Lost,
}

impl RunFrames {
    /// Creates the frames of a run from this place on.
    pub(crate) fn new(place: EventId, version: Version) -> Self {
        let EventId { epoch, begin, frames, is_ahead, .. } = place;
        let (skipped, ahead) = if is_ahead { (0, frames) } else { (frames, 0) };
        RunFrames {
            begin,
            id_head: format!("id: {:014x}-{begin:x}.", epoch.0).into_bytes(),
            skipped,
            ahead,
            unstored: Vec::new(),
            version,
            message_id: None,
            results_before: 0,
            settled_before: Vec::new(),
            answered: Vec::new(),
            step_end: None,
            reason: None,
        }
    }

    /// Returns why the model has stopped in its last call, if the frames do not say it.
    pub(crate) fn reason(&self) -> Option<FinishReason> {
        self.reason
    }

    pub(crate) fn begin(&self) -> u64 {
        self.begin
    }

    /// Adds what the client reads of the entry at this position.
    pub(crate) fn push(&mut self, position: u64, entry: &Entry, out: &mut Vec<u8>) -> Next {
        let next = self.push_entry(position, entry, out);
        if next != Next::CutOff {
            self.skipped = 0;
        }
        next
    }

    /// Adds those frames that the client has not read. The log will have them from this position on.
    pub(crate) fn push_ahead(&mut self, position: u64, frames: &[u8], out: &mut Vec<u8>) {
        if self.skipped > 0 {
            // The log holds the next entry, perhaps that of another turn. These frames may follow it.
            return;
        }
        if self.unstored.is_empty() {
            // The client has read them in another response.
            let read: Vec<_> = each(frames).take(self.ahead).map(|(_, frame, _)| frame).collect();
            if read.len() < self.ahead {
                return;
            }
            self.unstored = read.concat();
        }
        for (_, frame, _) in each(frames.strip_prefix(&*self.unstored).unwrap_or_default()) {
            self.ahead += 1;
            self.push_id(position, self.ahead, true, out);
            out.extend_from_slice(frame);
            self.unstored.extend_from_slice(frame);
        }
    }

    /// Counts the frames of an entry that the client has read before the log held it. Returns whether the client has
    /// read them, and not others.
    fn has_stored(&mut self, frames: &[u8]) -> bool {
        let known = self.unstored.len().min(frames.len());
        if self.unstored[..known] != frames[..known] {
            return false;
        }
        self.unstored.drain(..known);
        self.skipped = self.ahead;
        self.ahead = self.ahead.saturating_sub(each(frames).count());
        true
    }

    /// Returns what follows an entry that is not only frames, if it comes before frames that the client has read.
    /// `None`: what the client reads of the entry.
    fn next_before_unstored(&self, entry: &OtherEntry) -> Option<Next> {
        let is_known = !self.unstored.is_empty();
        match entry {
            _ if self.ahead == 0 => None,
            // Another turn has given it. The frames follow.
            OtherEntry::Result { .. } if is_known => None,
            // The client reads an end of what it has read.
            OtherEntry::End { end, .. } if is_known && end.early().is_some() => Some(Next::CutOff),
            _ => Some(Next::Lost),
        }
    }

    fn push_entry(&mut self, position: u64, entry: &Entry, out: &mut Vec<u8>) -> Next {
        let mut output_of = entry.preliminary_of().into_iter();
        // A result that the client has is newer.
        let is_old = output_of.any(|call| self.settled_before.contains(call));
        let Some(other) = entry.other() else {
            let frames = entry.frames();
            if self.ahead > 0 && !self.has_stored(&frames) {
                return Next::Lost;
            }
            self.frame(position, &frames, out);
            return Next::More;
        };
        if let Some(next) = self.next_before_unstored(other) {
            return next;
        }
        if !is_old {
            let older = entry.older_frames().filter(|_| !self.version.is_v7());
            let shown = older.unwrap_or_else(|| self.shown(&entry.frames()));
            self.frame(position, shown.as_bytes(), out);
        }
        match other {
            OtherEntry::Begin { message_id, .. } => {
                self.message_id = Some(message_id.clone());
                if position == self.begin {
                    let message_id = Some(Cow::Borrowed(message_id.as_str()));
                    let start = encoded(&Chunk::Start { message_id, message_metadata: None });
                    self.frame(position, start.as_bytes(), out);
                }
                self.step_end = None;
            }
            OtherEntry::Result { received, chunks } => {
                let is_own = position >= self.results_before
                    && received.result.message_id == self.message_id;
                let frames: String = chunks.iter().map(|chunk| frame_of(chunk)).collect();
                let mut shown = String::new();
                each_chunk(frames.as_bytes(), |chunk| {
                    // A client does not find a call of another message, so it reads only data about it.
                    if is_own || matches!(chunk, Chunk::Data { .. }) {
                        self.show(chunk, &mut shown);
                    }
                });
                self.frame(position, shown.as_bytes(), out);
            }
            OtherEntry::Step => self.step_end = None,
            OtherEntry::StepEnd(end) => {
                (self.step_end, self.reason) = (Some(end.clone()), end.reason);
            }
            OtherEntry::End { end: RunEnd::ResumedBy(_), .. } => {}
            OtherEntry::End { end: run_end, .. } => {
                let end = self.step_end.take().filter(|_| run_end.early().is_none());
                let Some(end) = end else { return Next::CutOff };
                let frames = [self.shown(end.last.concat().as_bytes()).as_bytes(), DONE].concat();
                self.frame(position, &frames, out);
                return Next::Ended;
            }
            OtherEntry::Chunk { .. }
            | OtherEntry::Refused { .. }
            | OtherEntry::Preliminary { .. }
            | OtherEntry::Settled { .. }
            | OtherEntry::Call { .. }
            | OtherEntry::Import { .. }
            | OtherEntry::Request(_)
            | OtherEntry::HandedOver
            | OtherEntry::Claimed { .. } => {}
        }
        Next::More
    }

    /// Adds the end of a run that has not finished. `entries` are those of the run, with its end, which
    /// stands at this position. `begun` is the message that it has continued.
    pub(crate) fn end<'e>(
        &mut self,
        position: u64,
        begun: Option<UiMessage>,
        entries: impl IntoIterator<Item = &'e Entry>,
        out: &mut Vec<u8>,
    ) {
        let calls = |message: &UiMessage| -> Vec<ToolCallId> {
            message.tool_parts().map(|part| part.tool_call_id.clone()).collect()
        };
        let earlier = begun.as_ref().map(calls).unwrap_or_default();
        let mut reducer = begun.map_or_else(Reducer::new, Reducer::continuing);
        let mut open = OpenChunks::default();
        let mut step_end = None;
        let unstored = Entry::Frame(std::mem::take(&mut self.unstored).into());
        let mut claimed: Vec<&ToolCallId> = Vec::new();
        let mut event = AgentEvent::Abort { reason: None };
        let mut ended = None;
        let entries = entries.into_iter().map(|entry| -> &Entry { entry });
        for entry in entries.chain([&unstored]) {
            if let Some(OtherEntry::End { end, .. }) = entry.other() {
                ended = end.early();
            }
            match entry.other() {
                Some(OtherEntry::Step) => (step_end, claimed) = (None, Vec::new()),
                Some(OtherEntry::Claimed { approvals }) => {
                    claimed = approvals.iter().map(|approval| &approval.tool_call_id).collect();
                }
                Some(OtherEntry::StepEnd(end)) => step_end = Some(end),
                Some(OtherEntry::End { end: RunEnd::Failed(text), .. }) => {
                    event = AgentEvent::error(text.clone());
                }
                Some(OtherEntry::End { end: RunEnd::Interrupted, .. }) => {
                    event = AgentEvent::error(UserText::AnswerInterrupted);
                }
                _ => {}
            }
            // The message has a question that was asked again, or its result.
            let is_again = entry.preliminary_of().is_some();
            each_chunk(&entry.frames(), |chunk| {
                if is_again && matches!(chunk, Chunk::ToolApprovalRequest { .. }) {
                    return;
                }
                push_recorded(chunk, &mut reducer);
                open.push(chunk);
                if let Some(settled) = settled_call(chunk) {
                    claimed.retain(|call| **call != settled);
                }
            });
        }
        let message = reducer.message();
        let is_object = |end: &StepEnd| end.metadata.as_ref().is_none_or(Json::is_object);
        let can_say = ended.is_some() && step_end.is_none_or(is_object);
        let metadata = can_say.then(|| message.end_metadata(ended)).flatten();
        let metadata = metadata.map(|metadata| {
            encoded(&Chunk::MessageMetadata { message_metadata: Some(Cow::Owned(metadata)) })
        });
        let metadata = metadata.unwrap_or_default();
        let mut last: String = match step_end {
            Some(end) => metadata + &self.shown(end.last.concat().as_bytes()),
            None => {
                let unknown = claimed.into_iter().map(|call| Chunk::ToolOutputError {
                    tool_call_id: Cow::Borrowed(call),
                    error_text: Cow::Borrowed(UserText::OutcomeUnknown.text()),
                    provider_executed: Some(true),
                    provider_metadata: None,
                    tool_metadata: None,
                    dynamic: None,
                });
                let open = unknown
                    .chain(open.ends())
                    .map(|chunk| encoded(&chunk.for_version(self.version)));
                let mut own = calls(reducer.message());
                own.retain(|call| !earlier.contains(call));
                let mut last: String = open.chain([metadata]).collect();
                end_message(reducer.message(), &own, &event, self.version, |chunk| {
                    last.push_str(&encoded(&chunk));
                });
                last
            }
        };
        last.push_str(&String::from_utf8_lossy(DONE));
        self.frame(position, last.as_bytes(), out);
    }

    /// Adds the frames of the entry at this position, each with the `id:` from which a client continues. If the client
    /// has read frames that follow the entry, only the last one has a place.
    fn frame(&self, position: u64, frames: &[u8], out: &mut Vec<u8>) {
        // Most entries are one frame.
        out.reserve(self.id_head.len() + MAX_ID_DIGITS + 1 + frames.len());
        let mut id = Vec::new();
        for (number, frame, is_last) in each(frames) {
            if number <= self.skipped {
                continue;
            }
            if is_last {
                self.push_id(position + 1, self.ahead, self.ahead > 0, out);
            } else if self.ahead == 0 {
                if id.is_empty() {
                    self.push_id(position, number, false, &mut id)
                } else {
                    count_up(&mut id)
                }
                out.extend_from_slice(&id);
            }
            out.extend_from_slice(frame);
        }
    }

    /// Adds the line of an `id:`. Its number is `position << FRAME_BITS | frames`.
    fn push_id(&self, position: u64, frames: usize, is_ahead: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id_head);
        // Writing to a `Vec` does not fail.
        let _ = if is_ahead {
            writeln!(out, "{}", (position << FRAME_BITS) | frames as u64)
        } else {
            writeln!(out, "0x{position:x}{frames:0FRAME_DIGITS$x}")
        };
    }

    /// Sets where the client stands ahead of the log.
    pub(crate) fn set_place(&mut self, place: EventId) {
        (self.skipped, self.ahead) =
            if place.is_ahead { (0, place.frames) } else { (place.frames, 0) };
    }

    /// Returns the frames that the client has read and the log does not hold, as far as they are known.
    #[cfg(test)]
    pub(crate) fn unstored(&self) -> &[u8] {
        &self.unstored
    }

    /// The client has read so many frames of the next entry.
    pub(crate) fn skip(&mut self, frames: usize) {
        self.skipped = frames;
    }

    /// Sets the message of the run, if its first entry is not read.
    pub(crate) fn set_message(&mut self, id: MessageId) {
        self.message_id = Some(id);
    }

    /// The client reads this message, which has the results of calls before this position.
    pub(crate) fn set_results_before(&mut self, position: u64, message: &UiMessage) {
        let settled = || message.tool_parts().filter(|part| part.is_settled());
        self.settled_before = settled().map(|part| part.tool_call_id.clone()).collect();
        self.answered = settled().filter_map(|part| part.approval_id().cloned()).collect();
        self.results_before = position;
    }

    /// Returns what the client reads of frames.
    fn shown(&mut self, frames: &[u8]) -> String {
        let mut out = String::new();
        each_chunk(frames, |chunk| self.show(chunk, &mut out));
        out
    }

    fn show(&mut self, chunk: &Chunk<'_>, out: &mut String) {
        if let Chunk::ToolApprovalResponse { approval_id, .. } = chunk {
            // A preliminary output or a result is newer than the answer to the request.
            if self.answered.iter().any(|id| **id == **approval_id) {
                return;
            }
            self.answered.push(ApprovalId::new(&**approval_id));
        }
        match (chunk, shown(chunk.clone(), self.version)) {
            // This client has no reason for an answer that is cut, and reads nothing after an error.
            (
                Chunk::Finish { finish_reason: Some(FinishReason::Interrupted), .. },
                Some(Chunk::Finish { finish_reason: Some(FinishReason::Other), message_metadata }),
            ) => {
                let metadata = message_metadata.map(Some);
                out.extend(metadata.map(|metadata| {
                    encoded(&Chunk::MessageMetadata { message_metadata: metadata })
                }));
                let error_text = Cow::Borrowed(UserText::AnswerCutOff.text());
                let finish_reason = Some(FinishReason::Error);
                out.push_str(&encoded(&Chunk::Error { error_text }));
                out.push_str(&encoded(&Chunk::Finish { finish_reason, message_metadata: None }));
            }
            (_, shown) => out.extend(shown.map(|chunk| encoded(&chunk))),
        }
    }
}

/// The digits of the number of an `id:`, at most.
const MAX_ID_DIGITS: usize = 18;

/// Adds one to the hexadecimal number at the end of a line.
fn count_up(line: &mut [u8]) {
    for digit in line.iter_mut().rev().skip(1) {
        match digit {
            b'f' => *digit = b'0',
            b'9' => return *digit = b'a',
            _ => return *digit += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::writer::question_entry;
    use crate::store::Epoch;

    #[test]
    fn an_event_id_is_read_as_it_was_written() {
        let id = EventId { position: 300, frames: 2, ..EventId::of_run(Epoch(0xabc), 16) };
        let mut text = Vec::new();
        RunFrames::new(id, Version::V6).frame(
            300,
            b"data: 1\n\ndata: 2\n\ndata: 3\n\ndata: 4\n\n",
            &mut text,
        );
        assert_eq!(text, b"id: 00000000000abc-10.0x12c00003\ndata: 3\n\nid: 00000000000abc-10.0x12d00000\ndata: 4\n\n");
        assert_eq!(EventId::parse("abc-10.0x12c00002"), Some(id));
        // A server that does not know frames ahead of the log reads only the other form.
        let ahead = EventId { is_ahead: true, ..id };
        assert_eq!(EventId::parse(&format!("abc-10.{}", 0x12c0_0002)), Some(ahead));
        for wrong in [
            "",
            "abc",
            "abc-10",
            "abc-10.12c00000",
            "abc-10.0x100000",
            "abc-10.0x12c00000.1",
            "run_1.2",
        ] {
            assert_eq!(EventId::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn each_frame_of_a_large_entry_has_its_own_number() {
        for position in [0, 1, 0xf, u64::from(u32::MAX)] {
            let begun = EventId { position, ..EventId::of_run(Epoch(1), 0) };
            let frames = RunFrames::new(begun, Version::V6);
            let mut out = Vec::new();
            frames.frame(position, "data: x\n\n".repeat(0x1002).as_bytes(), &mut out);
            let out = String::from_utf8(out).unwrap();
            let ids = out.lines().filter_map(|line| EventId::parse(line.strip_prefix("id: ")?));
            let numbers = (1..0x1002).map(|frames| EventId { frames, ..begun });
            let end = EventId { position: position + 1, ..begun };
            assert!(ids.eq(numbers.chain([end])), "{position}");
        }
    }

    #[test]
    fn a_stopped_run_ends_with_a_step_if_the_page_would_send_its_answers_again() {
        for (state, is_ended) in [("approved", true), ("pending", false)] {
            let begun = r#"{"id": "a1", "role": "assistant", "parts": [{"type": "step-start"}, {
                "type": "tool-act", "toolCallId": "c1", "input": {}, "state": "approval-requested",
                "approval": {"id": "ap1"}
            }, {"type": "data-approval", "id": "c1", "data": {"state": "STATE"}}]}"#;
            let begun = UiMessage::parse(&begun.replace("STATE", state)).unwrap();
            let response =
                r#"{"type":"tool-approval-response","approvalId":"ap1","approved":true}"#;
            let response = OtherEntry::Chunk { chunk: response.into() }.into();
            let announced: &[Entry] = if is_ended { &[response] } else { &[] };
            for (version, entries) in
                [(Version::V6, &[][..]), (Version::V6, announced), (Version::NEWEST, announced)]
            {
                let mut frames = RunFrames::new(EventId::of_run(Epoch(1), 0), version);
                let mut out = Vec::new();
                frames.end(1, Some(begun.clone()), entries, &mut out);
                let out = String::from_utf8(out).unwrap();
                assert_eq!(out.contains("data-run-end"), is_ended, "{out}");
                assert!(!out.contains("tool-output-error"), "{out}");
            }
        }
    }

    #[test]
    fn a_question_that_was_asked_again_does_not_open_a_call_that_has_a_result() {
        let begun = UiMessage::parse(
            r#"{"id": "a1", "role": "assistant", "parts": [{"type": "step-start"}, {
                "type": "tool-act", "toolCallId": "c1", "input": {}, "state": "output-error",
                "errorText": "It has expired.", "approval": {"id": "ap1", "approved": true}
            }]}"#,
        );
        let entries: [Entry; 1] = [question_entry(&"c1".into(), &"ap1".into()).into()];
        let mut frames = RunFrames::new(EventId::of_run(Epoch(1), 0), Version::NEWEST);
        let mut out = Vec::new();
        frames.end(1, Some(begun.unwrap()), &entries, &mut out);
        let out = String::from_utf8(out).unwrap();
        assert!(out.contains("data-run-end"), "{out}");
    }

    #[test]
    fn each_frame_has_the_id_of_what_follows_it() {
        let text = |place| {
            let frames = RunFrames::new(place, Version::V6);
            let mut out = Vec::new();
            frames.frame(3, b"data: a\n\ndata: b\n\n", &mut out);
            String::from_utf8(out).unwrap()
        };
        let place = EventId { position: 3, ..EventId::of_run(Epoch(1), 2) };
        assert_eq!(
            text(place),
            "id: 00000000000001-2.0x300001\ndata: a\n\nid: 00000000000001-2.0x400000\ndata: b\n\n"
        );
        assert_eq!(
            text(EventId { frames: 1, ..place }),
            "id: 00000000000001-2.0x400000\ndata: b\n\n"
        );
    }

    /// A run in which the client has read the frames `a`, `b` and `c` before the log held them, and what it has read.
    fn read_ahead() -> (RunFrames, String) {
        let place = EventId { position: 3, ..EventId::of_run(Epoch(1), 2) };
        let mut frames = RunFrames::new(place, Version::V6);
        let mut out = Vec::new();
        frames.push_ahead(3, b"data: a\n\ndata: b\n\n", &mut out);
        frames.push_ahead(3, b"data: a\n\ndata: b\n\ndata: c\n\n", &mut out);
        // Other text is not shown after it.
        frames.push_ahead(3, b"data: x\n\ndata: b\n\ndata: c\n\ndata: d\n\n", &mut out);
        (frames, String::from_utf8(out).unwrap())
    }

    /// What the client reads then of these entries.
    fn read_then(entries: &[Entry]) -> (Next, String) {
        let (mut frames, _) = read_ahead();
        let mut next = Next::More;
        let mut out = Vec::new();
        for (position, entry) in (3..).zip(entries) {
            next = frames.push(position, entry, &mut out);
        }
        (next, String::from_utf8(out).unwrap())
    }

    fn stored(frames: &[&str]) -> Entry {
        let frames: String = frames.iter().map(|frame| format!("data: {frame}\n\n")).collect();
        Entry::Frame(frames.into())
    }

    #[test]
    fn only_frames_ahead_of_the_log_have_another_id_and_each_is_read_once() {
        let head = "id: 00000000000001-2.";
        let number = 3 << FRAME_BITS;
        let ids: Vec<_> = (1..=3).map(|frames| format!("{head}{}\n", number + frames)).collect();
        let [a, b, c] = &ids[..] else { unreachable!() };
        assert_eq!(read_ahead().1, format!("{a}data: a\n\n{b}data: b\n\n{c}data: c\n\n"));
        let rest = |id: &str, frame| (Next::More, format!("{head}{id}\ndata: {frame}\n\n"));
        assert_eq!(read_then(&[stored(&["a", "b", "c", "d"])]), rest("0x400000", "d"));
        assert_eq!(read_then(&[stored(&["a", "b"])]), (Next::More, String::new()));
        let two = [stored(&["a", "b"]), stored(&["c", "d"])];
        assert_eq!(read_then(&two), rest("0x500000", "d"));
        // Another run has written it.
        assert_eq!(read_then(&[stored(&["x"])]), (Next::Lost, String::new()));
    }

    #[test]
    fn a_client_reads_text_again_in_no_other_response() {
        let place =
            EventId { position: 3, frames: 2, is_ahead: true, ..EventId::of_run(Epoch(1), 2) };
        for (ahead, read) in [("", ""), ("a", ""), ("ab", ""), ("abc", "c")] {
            let frames: String = ahead.chars().map(|text| format!("data: {text}\n\n")).collect();
            let mut run = RunFrames::new(place, Version::V6);
            let mut out = Vec::new();
            run.push_ahead(3, frames.as_bytes(), &mut out);
            run.push(3, &stored(&["a", "b", "c"]), &mut out);
            let out = String::from_utf8(out).unwrap();
            assert_eq!(out.matches("data: ").count(), 1, "{ahead}: {out}");
            assert_eq!(out.contains(".0x"), read.is_empty(), "{ahead}: {out}");
        }
        // The log holds the entry in which the client stands, and the server of the run does not know it yet.
        let place = EventId { is_ahead: false, ..place };
        let mut run = RunFrames::new(place, Version::V6);
        let mut out = Vec::new();
        run.push_ahead(3, b"data: a\n\ndata: b\n\ndata: c\n\n", &mut out);
        assert!(out.is_empty());
    }

    #[test]
    fn a_client_whose_text_is_lost_reads_an_end_of_what_it_has_read_or_loads_the_chat() {
        let end = |end| OtherEntry::End { run: "r1".into(), end };
        for (entry, next) in [
            (end(RunEnd::Stopped), Next::CutOff),
            (end(RunEnd::Finished), Next::Lost),
            (end(RunEnd::ResumedBy("r2".into())), Next::Lost),
            (OtherEntry::HandedOver, Next::Lost),
            (OtherEntry::Step, Next::Lost),
        ] {
            let entries: [Entry; 1] = [entry.clone().into()];
            assert_eq!(read_then(&entries), (next, String::new()), "{entry:?}");
        }
        let (mut frames, _) = read_ahead();
        let text = r#"data: {"type":"text-start","id":"t1"}"#.to_owned() + "\n\n";
        let mut out = Vec::new();
        let mut open = Vec::new();
        frames.unstored = text.into_bytes();
        let entries: [Entry; 1] = [end(RunEnd::Stopped).into()];
        frames.end(3, None, &entries, &mut out);
        each_chunk(&out, |chunk| open.push(format!("{chunk:?}")));
        assert!(open[0].starts_with("TextEnd"), "{open:?}");
    }
}
