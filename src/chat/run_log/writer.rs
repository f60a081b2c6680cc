//! [`LogWriter`]: writes events and results as the entries of a log, and records the message.

use std::borrow::Cow;

use bytes::{BufMut, BytesMut};

use super::record::{Note, RunRecord, end_of_last_call, is_final};
use super::taken_end::TakenEnd;
use crate::approval::{DeferredToolResult, PendingToolCall};
use crate::chat::conversation::{Chat, KeptSteps, LiveRun, RECORDED_VERSION, ReceivedResult};
use crate::chat::log::LogEntry;
use crate::chunk::{Chunk, FinishReason, Version};
use crate::event::{AgentEvent, Executor};
use crate::id::{ApprovalId, RunId, ToolCallId};
use crate::message::{Part, ToolPart, ToolState, UiMessage};
use crate::sse::{DONE, Encoder};
use crate::translator::{ResultKind, TranslateError, Translator};

/// Writes the log of one run: its entries in the order in which they are appended, and the message
/// that they make.
#[derive(Debug)]
pub(crate) struct LogWriter {
    translator: Translator,
    entries: EntryWriter,
    /// The chunks at which the client stops reading. They are sent with the end of the log.
    last: Vec<Vec<u8>>,
    /// How many calls of the translator have an outcome that the frames do not show.
    outcomes: usize,
    /// The agent has ended a step, and has not begun the next one.
    is_step_ended: bool,
    step_end: Option<StepEnd>,
    /// Why events of the agent were dropped, until this is reported.
    dropped: Vec<TranslateError>,
}

/// The client for which a log is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogClient {
    pub(crate) version: Version,
    /// Whether it can answer approval requests.
    pub(crate) has_approvals: bool,
}

/// What the log holds at the end of a step.
#[derive(Debug)]
pub(crate) struct StepEnd {
    pub(crate) record: Box<RunRecord>,
    pub(crate) kept: KeptSteps,
}

/// Everything of a writer but the translator, which lends its chunks.
#[derive(Debug)]
struct EntryWriter {
    client: LogClient,
    record: RunRecord,
    encoder: Encoder,
    queue: Queue,
    /// The number of entries before those in the queue.
    length: u64,
}

/// The entries that were not appended yet, in one buffer.
#[derive(Debug)]
struct Queue {
    /// The line from which a client continues after the next frame: `id: `, the id of the run, a dot,
    /// and the number of entries before and in the queue.
    id_line: Vec<u8>,
    /// The bytes of the entries. An allocation of this buffer holds the bytes of several appends.
    bytes: BytesMut,
    /// The kind of each entry, and where its bytes end.
    entries: Vec<(EntryKind, usize)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryKind {
    Frame,
    Note,
}

impl LogWriter {
    /// Creates the writer of a new log, and writes its first frame.
    pub(crate) fn begin(
        chat: &Chat,
        live: &LiveRun,
        posted: Option<&UiMessage>,
        client: LogClient,
    ) -> Self {
        let record = RunRecord::new(chat, live);
        let stored = chat.message(&live.message_id);
        let continued = stored.map(|stored| with_posted_answers(stored, posted));
        let translator = match continued.as_ref().or(posted) {
            Some(message) => Translator::continuing(message),
            None => Translator::new(live.message_id.clone()),
        };
        let mut writer =
            Self::with_translator(translator, EntryWriter::new(live, record, 0, client));
        writer.translator.start(&mut |chunk| writer.entries.write(&chunk));
        writer
    }

    fn with_translator(translator: Translator, entries: EntryWriter) -> Self {
        let translator = recording(translator, entries.client);
        LogWriter {
            translator,
            entries,
            last: Vec::new(),
            outcomes: 0,
            is_step_ended: false,
            step_end: None,
            dropped: Vec::new(),
        }
    }

    /// Creates a writer that continues the log of another holder.
    pub(crate) fn of_taken(
        chat: &Chat,
        live: &LiveRun,
        entries: &[LogEntry],
        client: LogClient,
    ) -> Self {
        if entries.is_empty() {
            // Its readers need the start.
            return Self::begin(chat, live, None, client);
        }
        let mut record = RunRecord::of_log(chat, live, entries);
        let mut translator = Translator::continuing(record.message());
        // The old holder has not given them results.
        translator.require_results(&record.own_calls());
        // The log holds the start already.
        translator.start(&mut |_| {});
        let length = entries.len().try_into().unwrap_or(u64::MAX);
        Self::with_translator(translator, EntryWriter::new(live, record, length, client))
    }

    pub(crate) fn record(&self) -> &RunRecord {
        &self.entries.record
    }

    /// Removes and returns the entries that were not appended yet.
    pub(crate) fn take_queue<C: FromIterator<LogEntry>>(&mut self) -> C {
        self.entries.length = self.entries.total();
        self.entries.queue.take()
    }

    /// Notes the end of a step when the agent has begun the next one: the conversation can get the
    /// message up to there. What the last step has written is saved with the end of the run. The event
    /// is written before, because it ends what the agent has written after the end of the step.
    #[inline]
    pub(crate) fn note_step(&mut self, event: &AgentEvent) {
        match event {
            AgentEvent::StepFinish => self.is_step_ended = true,
            AgentEvent::StepStart => self.begin_step(),
            AgentEvent::Chunk(chunk) => match **chunk {
                Chunk::FinishStep {} => self.is_step_ended = true,
                Chunk::StartStep {} => self.begin_step(),
                _ => {}
            },
            _ => {}
        }
    }

    #[cold]
    fn begin_step(&mut self) {
        if std::mem::take(&mut self.is_step_ended) {
            let record = Box::new(self.record().clone());
            let kept = record.kept(self.entries.total());
            self.step_end = Some(StepEnd { record, kept });
        }
    }

    /// Returns the end of a step that the conversation may lack.
    pub(crate) fn step_end(&self) -> Option<&StepEnd> {
        self.step_end.as_ref()
    }

    /// Forgets the end of this step: the conversation holds it, or the next one is kept with it.
    pub(crate) fn forget_step_end(&mut self, kept: KeptSteps) {
        self.step_end = self.step_end.take().filter(|end| end.kept != kept);
    }

    /// Removes and returns the reasons why events of the agent were dropped.
    pub(crate) fn take_dropped(&mut self) -> Vec<TranslateError> {
        std::mem::take(&mut self.dropped)
    }

    pub(crate) fn has_queue(&self) -> bool {
        !self.entries.queue.entries.is_empty()
    }

    pub(crate) fn queued_bytes(&self) -> usize {
        self.entries.queue.bytes.len()
    }

    /// Writes an event of the agent.
    pub(crate) fn event(&mut self, event: &AgentEvent) {
        // Most events are text for the part that is being written.
        if let AgentEvent::TextDelta { id: None, delta } = event
            && let Some(id) = self.translator.open_part_of(delta)
        {
            return self.entries.write_text(id, delta);
        }
        let is_delta =
            matches!(event, AgentEvent::TextDelta { .. } | AgentEvent::ToolInputDelta { .. });
        if !is_delta {
            self.note_client_executed(event);
            if let Some(result) = self.entries.record.forwarded_result(event) {
                return self.entries.note(Note::Results { results: vec![result], frames: 0 });
            }
        }
        let entries = &mut self.entries;
        let handled = self.translator.handle_event(event, &mut |chunk| entries.write(&chunk));
        self.dropped.extend(handled.err());
        if !is_delta {
            self.note_outcomes();
        }
    }

    /// Writes an event about a call, if the message holds that call.
    pub(crate) fn event_of_call(&mut self, call: &ToolCallId, event: &AgentEvent) {
        if self.entries.record.message().tool_parts().any(|part| part.tool_call_id == *call) {
            self.event(event);
        }
    }

    fn note_client_executed(&mut self, event: &AgentEvent) {
        if let AgentEvent::ToolInput { call, input } = event
            && call.executed_by == Executor::Client
        {
            let id = call.id.shortened().unwrap_or_else(|| call.id.clone());
            let call =
                PendingToolCall::client_executed(id, call.tool_name.to_string(), input.clone());
            self.entries.note(Note::ClientExecuted(vec![call]));
        }
    }

    /// Writes which calls have an outcome that the frames do not show, if there are new ones.
    fn note_outcomes(&mut self) {
        let of = |kind| self.translator.settled_as(kind).cloned().collect::<Vec<ToolCallId>>();
        let (rejected, unknown) = (of(ResultKind::Rejected), of(ResultKind::OutcomeUnknown));
        let count = rejected.len() + unknown.len();
        if count > self.outcomes {
            self.outcomes = count;
            self.entries.note(Note::Outcomes { rejected, unknown });
        }
    }

    /// Writes the end of a model call: an event after which the agent emits nothing, or `None` if it
    /// has stopped without one. What the client reads last is kept back until the log ends.
    pub(crate) fn end_call(&mut self, event: Option<&AgentEvent>) {
        self.write_end(event, false);
    }

    fn write_end(&mut self, event: Option<&AgentEvent>, is_last: bool) {
        self.leave_answered_open();
        let (mut last, version) = (Vec::new(), self.entries.client.version);
        let (mut metadata, mut reason) = (None, event.and_then(finish_reason));
        let entries = &mut self.entries;
        let mut out = |chunk: Chunk<'_>| {
            if !is_final(&chunk) {
                return entries.write(&chunk);
            }
            if let Chunk::Finish { message_metadata: Some(given), .. } = &chunk {
                metadata = Some((**given).clone());
            }
            let shown = chunk.for_version(version);
            if let Chunk::Finish { finish_reason: Some(_), .. } = shown {
                reason = None;
            }
            last.push(encoded(&shown));
        };
        match event {
            Some(event) => {
                let handled = self.translator.handle_event(event, &mut out);
                self.dropped.extend(handled.err());
            }
            None => self.translator.end(&mut out),
        }
        metadata.into_iter().for_each(|metadata| self.entries.note(Note::Metadata(metadata)));
        self.note_outcomes();
        self.note_end(last, is_last, reason);
    }

    /// Lets the end of a response leave the calls open whose results come later.
    fn leave_answered_open(&mut self) {
        let answered = self.entries.record.answered_calls();
        self.translator.set_answered(&answered);
    }

    /// Writes the end of a response without a model call. The message does not change, although the
    /// client may need chunks before the end.
    pub(crate) fn end_without_call(&mut self) {
        self.leave_answered_open();
        let (mut frames, mut last, version) = (Vec::new(), Vec::new(), self.entries.client.version);
        self.translator.end(&mut |chunk: Chunk<'_>| match is_final(&chunk) {
            true => last.push(encoded(&chunk.for_version(version))),
            false => frames.push(encoded(&chunk.for_version(version))),
        });
        self.show(&frames, Vec::new());
        self.note_end(last, false, None);
    }

    /// Writes what the client reads last, so that a turn that takes the run writes the same end.
    fn note_end(&mut self, last: Vec<Vec<u8>>, is_last: bool, reason: Option<FinishReason>) {
        let frames = last.iter().map(|frame| String::from_utf8_lossy(frame).into_owned());
        self.entries.note(Note::Ended { frames: frames.collect(), is_last, reason });
        self.last = last;
        // Results of calls may follow.
        self.restart_translator();
    }

    /// Writes frames that do not change the message, except by these results.
    fn show(&mut self, frames: &[Vec<u8>], results: Vec<ReceivedResult>) {
        if frames.is_empty() && results.is_empty() {
            return;
        }
        self.entries.note(Note::Results { results, frames: frames.len() });
        self.entries.record.skip_no_frames();
        frames.iter().for_each(|frame| self.entries.queue.frame(frame));
    }

    /// Writes the result of a call that an earlier model call left open.
    pub(crate) fn result(&mut self, received: &ReceivedResult) {
        self.write_results(received, vec![received.clone()]);
    }

    /// Writes frames that show a result. The message does not change: it does not hold the call, or
    /// the answer was not accepted.
    pub(crate) fn show_result(&mut self, received: &ReceivedResult) {
        self.write_results(received, Vec::new());
    }

    fn write_results(&mut self, shown: &ReceivedResult, results: Vec<ReceivedResult>) {
        let (mut frames, version) = (Vec::new(), self.entries.client.version);
        let mut out = |chunk: Chunk<'_>| frames.push(encoded(&chunk.for_version(version)));
        let shown = self.entries.record.with_id_of_call(shown);
        for event in shown.iter().flat_map(ReceivedResult::events_for_all) {
            let _ = self.translator.handle_result(&event, &mut out);
        }
        self.show(&frames, results);
    }

    /// Writes that the model is about to be called. It continues the message with all results.
    pub(crate) fn step(&mut self) {
        self.last.clear();
        self.entries.note(Note::Step);
        self.restart_translator();
    }

    /// Continues the message that the log holds, without another start.
    pub(crate) fn restart_translator(&mut self) {
        let message = self.entries.record.message();
        if !message.parts.is_empty() {
            self.translator = recording(Translator::continuing(message), self.entries.client);
            self.translator.start(&mut |_| {});
            self.outcomes = 0;
        }
    }

    pub(crate) fn claimed(&mut self, approvals: &[DeferredToolResult]) {
        let ids: Vec<ApprovalId> =
            approvals.iter().filter_map(|approval| approval.approval_id.clone()).collect();
        if !ids.is_empty() {
            self.entries.note(Note::Claimed(ids));
        }
    }

    /// Ends the message of a log whose holder is gone. If the last model call has ended, the log says
    /// how, unless a result has arrived since that no model can read.
    pub(crate) fn end_taken(&mut self, end: TakenEnd) {
        self.close_open();
        match (end, self.entries.record.end_of_call()) {
            // The next run writes the end.
            (TakenEnd::Resumed, _) | (_, Some(true)) => {}
            (TakenEnd::Interrupted, _) => {
                self.write_end(Some(&AgentEvent::error(INTERRUPTED)), true);
            }
            (_, Some(false)) => {}
            (TakenEnd::Aborted, None) => {
                self.write_end(Some(&AgentEvent::Abort { reason: None }), true);
            }
            // A result that arrives before the save is read by the model.
            (TakenEnd::Complete, None) => self.write_end(None, false),
        }
    }

    /// Ends the text and the step that are open.
    fn close_open(&mut self) {
        let (text, reasoning, is_step_open) = self.entries.record.open_chunks();
        let (text, reasoning) = (text.to_vec(), reasoning.to_vec());
        for id in text {
            self.entries.write(&Chunk::TextEnd { id: id.into(), provider_metadata: None });
        }
        for id in reasoning {
            self.entries.write(&Chunk::ReasoningEnd { id: id.into(), provider_metadata: None });
        }
        if is_step_open {
            self.entries.write(&Chunk::FinishStep {});
        }
    }

    /// Returns the end of the log of a lost run that this run resumes.
    pub(crate) fn resumed_by(run: &RunId) -> Vec<LogEntry> {
        // The note holds only an id.
        let note = serde_json::to_vec(&Note::ResumedBy(run.clone())).unwrap_or_default();
        vec![LogEntry::Note(note.into())]
    }

    /// Returns the end of a log whose message is saved: the end of its last model call.
    pub(crate) fn end_of_saved(run: &RunId, entries: &[LogEntry]) -> Vec<LogEntry> {
        let finish = || {
            let finish = Chunk::Finish { finish_reason: None, message_metadata: None };
            vec![String::from_utf8_lossy(&encoded(&finish)).into_owned()]
        };
        let mut queue = Queue::new(run, entries.len().try_into().unwrap_or(u64::MAX));
        let last = end_of_last_call(entries).unwrap_or_else(finish);
        last.iter().for_each(|frame| queue.frame(frame.as_bytes()));
        queue.frame(DONE);
        queue.take()
    }

    /// Writes the last frames of the log, which follow the save of the message.
    pub(crate) fn last_frames(&mut self) {
        for frame in std::mem::take(&mut self.last) {
            self.entries.queue.frame(&frame);
        }
        self.entries.queue.frame(DONE);
    }
}

impl EntryWriter {
    fn new(live: &LiveRun, record: RunRecord, length: u64, client: LogClient) -> Self {
        let queue = Queue::new(&live.run, length);
        EntryWriter { client, record, encoder: Encoder::default(), queue, length }
    }

    /// Returns the number of entries, with those in the queue.
    fn total(&self) -> u64 {
        self.length.saturating_add(self.queue.entries.len().try_into().unwrap_or(u64::MAX))
    }

    fn write(&mut self, chunk: &Chunk<'_>) {
        if has_only_text(chunk) {
            self.record.push_chunk(chunk);
            return self.frame_of(chunk);
        }
        let recorded = chunk.clone().for_version(RECORDED_VERSION);
        let shown = without_model_id(chunk.clone().for_version(self.client.version));
        if recorded == shown {
            self.record.push_chunk(&recorded);
        } else {
            let frame = encoded(&recorded);
            // A frame is `data: `, one line of JSON, and an empty line.
            let json = frame.strip_prefix(b"data: ").map(|data| String::from_utf8_lossy(data));
            self.note(Note::Recorded(json.unwrap_or_default().trim().to_owned()));
            self.record.skip_no_frames();
        }
        self.frame_of(&shown);
    }

    /// Writes a delta of the text part with this id.
    fn write_text(&mut self, id: &str, delta: &str) {
        self.record.push_text(id, delta);
        self.queue.begin_frame();
        self.encoder.encode_text(id, delta, &mut self.queue.bytes);
        self.queue.end_entry(EntryKind::Frame);
    }

    fn frame_of(&mut self, chunk: &Chunk<'_>) {
        self.queue.begin_frame();
        self.encoder.encode(chunk, &mut self.queue.bytes);
        self.queue.end_entry(EntryKind::Frame);
    }

    fn note(&mut self, note: Note) {
        // Notes hold only values that can be written.
        let _ = serde_json::to_writer((&mut self.queue.bytes).writer(), &note);
        self.queue.end_entry(EntryKind::Note);
        self.record.push_note(note);
    }
}

impl Queue {
    /// Creates an empty queue, for a log of this number of entries.
    fn new(run: &RunId, length: u64) -> Self {
        let id_line = format!("id: {run}.{length}\n").into_bytes();
        Queue { id_line, bytes: BytesMut::with_capacity(BLOCK_BYTES), entries: Vec::new() }
    }

    fn frame(&mut self, frame: &[u8]) {
        self.begin_frame();
        self.bytes.extend_from_slice(frame);
        self.end_entry(EntryKind::Frame);
    }

    /// Writes the id from which a client continues after the frame.
    fn begin_frame(&mut self) {
        self.bytes.extend_from_slice(&self.id_line);
    }

    #[inline]
    fn end_entry(&mut self, kind: EntryKind) {
        self.entries.push((kind, self.bytes.len()));
        self.count_entry();
    }

    /// Adds 1 to the number in the id line.
    fn count_entry(&mut self) {
        for at in (0..self.id_line.len() - 1).rev() {
            let digit = &mut self.id_line[at];
            match *digit {
                b'0'..=b'8' => return *digit += 1,
                b'9' => *digit = b'0',
                // All digits were 9.
                _ => return self.id_line.insert(at + 1, b'1'),
            }
        }
    }

    /// Removes and returns the entries.
    fn take<C: FromIterator<LogEntry>>(&mut self) -> C {
        let mut rest = self.bytes.split().freeze();
        let mut begin = 0;
        let entries = self.entries.drain(..).map(|(kind, end)| {
            let entry = rest.split_to(end - begin);
            begin = end;
            match kind {
                EntryKind::Frame => LogEntry::Frame(entry),
                EntryKind::Note => LogEntry::Note(entry),
            }
        });
        entries.collect()
    }
}

/// Returns a stored message with the answers of the posted one that are not recorded yet, and with the
/// calls that only the page holds. A page may hold less of the message than other readers, who read
/// the results of all its calls.
fn with_posted_answers(stored: &UiMessage, posted: Option<&UiMessage>) -> UiMessage {
    let mut message = stored.clone();
    let Some(posted) = posted else { return message };
    for part in &mut message.parts {
        let Part::Tool(part) = part else { continue };
        let is_it = |posted: &&ToolPart| posted.tool_call_id == part.tool_call_id;
        let posted = posted.tool_parts().find(is_it);
        let is_answer = |posted: &&ToolPart| {
            !posted.is_settled() && !matches!(posted.state, ToolState::InputStreaming { .. })
        };
        if let Some(posted) = posted.filter(is_answer).filter(|_| !part.is_settled()) {
            part.state = posted.state.clone();
        }
    }
    let is_stored =
        |call: &ToolCallId| stored.tool_parts().any(|stored| stored.tool_call_id == *call);
    let of_page = |part: &&Part| part.as_tool().is_some_and(|it| !is_stored(&it.tool_call_id));
    message.parts.extend(posted.parts.iter().filter(of_page).cloned());
    message
}

/// Returns a translator of chunks that hold what this client reads and what is recorded.
fn recording(translator: Translator, client: LogClient) -> Translator {
    let translator = if client.has_approvals { translator } else { translator.without_approvals() };
    let version = client.version;
    let version = if version < Version::V6 { version } else { version.max(RECORDED_VERSION) };
    translator.with_version(version).recording_model_ids()
}

/// Returns why the model has stopped, if this is its end.
fn finish_reason(event: &AgentEvent) -> Option<FinishReason> {
    match event {
        AgentEvent::Finish { reason, .. } => Some(*reason),
        AgentEvent::Chunk(chunk) => match **chunk {
            Chunk::Finish { finish_reason, .. } => finish_reason,
            _ => None,
        },
        _ => None,
    }
}

/// Whether all clients get this chunk as it is.
fn has_only_text(chunk: &Chunk<'_>) -> bool {
    matches!(
        chunk,
        Chunk::TextDelta { provider_metadata: None, .. }
            | Chunk::ReasoningDelta { provider_metadata: None, .. }
            | Chunk::ToolInputDelta { .. }
    )
}

/// Removes the id that the model gave to the call of the chunk. Clients do not read it.
fn without_model_id(mut chunk: Chunk<'_>) -> Chunk<'_> {
    if let Chunk::ToolInputStart { provider_metadata, .. }
    | Chunk::ToolInputAvailable { provider_metadata, .. }
    | Chunk::ToolInputError { provider_metadata, .. } = &mut chunk
        && let Some(without) = provider_metadata.as_ref().and_then(|it| it.without_model_id())
    {
        *provider_metadata = without.map(Cow::Owned);
    }
    chunk
}

fn encoded(chunk: &Chunk<'_>) -> Vec<u8> {
    let mut frame = Vec::new();
    Encoder::default().encode(chunk, &mut frame);
    frame
}

/// What the client shows of a run that was lost in a step.
pub(crate) const INTERRUPTED: &str = "The server was interrupted. The answer is not complete.";

/// The size of an allocation for the bytes of entries.
const BLOCK_BYTES: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::approval::Principal;
    use crate::chat::log::Fence;
    use crate::message::TextState;

    #[test]
    fn the_id_of_a_frame_holds_the_number_of_entries_before_it() {
        let mut queue = Queue::new(&RunId::new("run_9"), 98);
        (0..1_000).for_each(|_| queue.frame(DONE));
        for (entry, number) in queue.take::<Vec<_>>().iter().zip(98..) {
            let id = format!("id: run_9.{number}\n");
            assert!(entry.bytes().starts_with(id.as_bytes()), "{entry:?}");
        }
    }

    #[test]
    fn a_step_that_ends_before_its_text_is_kept_with_it() {
        let live = LiveRun {
            run: "r1".into(),
            fence: Fence(1),
            message_id: "a1".into(),
            kept: None,
            resumes: None,
            only_for: None,
        };
        let mut chat = Chat::new("c", Principal::new("ada"));
        chat.set_live_run(live.clone());
        let client = LogClient { version: Version::V6, has_approvals: true };
        let mut writer = LogWriter::begin(&chat, &live, None, client);
        let (start, finish) = (AgentEvent::StepStart, AgentEvent::StepFinish);
        let text = AgentEvent::text;
        for event in [start.clone(), text("a"), finish, text("b"), start, text("c")] {
            writer.event(&event);
            writer.note_step(&event);
        }
        let mut kept = writer.step_end().unwrap().record.clone();
        let texts = kept.message().parts.iter().filter_map(|part| match part {
            Part::Text(part) => Some((part.text.as_str(), part.state)),
            _ => None,
        });
        let done = Some(TextState::Done);
        assert_eq!(texts.collect::<Vec<_>>(), [("a", done), ("b", done)]);
    }
}
