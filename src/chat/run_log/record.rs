//! [`RunRecord`]: the message and the results that the log of a run holds.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::approval::{ApprovalStatus, DeferredOutcome, PendingToolCall};
use crate::chat::conversation::{
    Chat, EarlyEnd, KeptSteps, LiveRun, ReceivedResult, RecordedMessage, call_outcome,
};
use crate::chat::log::LogEntry;
use crate::chunk::{Chunk, FinishReason, ReceivedChunk};
use crate::event::{APPROVAL_DATA_NAME, AgentEvent};
use crate::id::{ApprovalId, MessageId, RunId, ToolCallId};
use crate::json::Json;
use crate::message::{Part, UiMessage};
use crate::reducer::Reducer;
use crate::sse::Decoder;

/// What the frames of a log do not show. A note is an entry of the log that is never sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub(crate) enum Note {
    /// The model is about to be called: it reads all results before this note.
    Step,
    /// Results of calls that earlier model calls left open.
    Results {
        results: Vec<ReceivedResult>,
        /// How many of the next frames show these results. The message gets the results from this
        /// note, because the frames show less.
        frames: usize,
    },
    /// The next model call sends these approvals to the provider.
    Claimed(Vec<ApprovalId>),
    /// The client executes these calls.
    ClientExecuted(Vec<PendingToolCall>),
    /// The next frame shows this chunk, as far as the client knows it. The message gets the chunk.
    Recorded(String),
    /// The metadata in the last frame of a model call.
    Metadata(Json),
    /// The calls that the last model call has settled without executing them, and those of which it
    /// is unknown whether they were executed. The frames show only error texts.
    Outcomes { rejected: Vec<ToolCallId>, unknown: Vec<ToolCallId> },
    /// A model call, or a response without one, has ended.
    Ended {
        /// The frames that the client reads last, if no model call follows.
        frames: Vec<String>,
        /// Whether no model call follows: a turn that has taken the run has aborted it, or has written
        /// that the server was interrupted.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_last: bool,
        /// Why the model has stopped, if the client reads frames that do not say it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<FinishReason>,
    },
    /// The server of the run was lost. This run writes what follows, and is the last entry.
    ResumedBy(RunId),
}

impl Note {
    /// Returns how a model call has ended, as far as this note says it: `None` if it says nothing, and
    /// `Some(None)` if a call begins.
    fn end(&self) -> Option<Option<(&[String], bool)>> {
        match self {
            Note::Ended { frames, is_last, .. } => Some(Some((frames.as_slice(), *is_last))),
            Note::Step => Some(None),
            _ => None,
        }
    }
}

/// The message that the log of a run holds, entry by entry.
///
/// The holder of the run adds chunks and notes as it appends them. A turn that takes the run reads
/// the entries. Both get the same message.
#[derive(Debug, Clone)]
pub(crate) struct RunRecord {
    message_id: MessageId,
    /// The message when the run began, if the run continues one.
    begun: Option<Arc<UiMessage>>,
    /// The conversation when the run began, with the message up to the last model call.
    chat: Chat,
    reducer: Reducer,
    deltas: Deltas,
    notes: Vec<Note>,
    /// The results since the last model call.
    unfolded: Vec<ReceivedResult>,
    client_executed: Vec<PendingToolCall>,
    /// The outcomes of calls that the frames do not show.
    outcomes: HashMap<ToolCallId, DeferredOutcome>,
    open: OpenChunks,
    /// The current step has content, or it has sent an approval to a provider.
    is_in_step: bool,
}

/// Text that the reducer does not hold yet. Deltas are added together. What is read for each delta
/// stands in one place in memory.
#[derive(Debug, Clone, Default)]
struct Deltas {
    text: String,
    /// The id of the part.
    id: String,
    /// The number of next frames that show what a note holds.
    skipped_frames: usize,
}

/// The chunks that need an end.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpenChunks {
    text: Vec<String>,
    reasoning: Vec<String>,
    step: bool,
}

impl RunRecord {
    /// Creates the record of an empty log. `chat` names the run.
    pub(crate) fn new(chat: &Chat, live: &LiveRun) -> Self {
        let message_id = live.message_id.clone();
        RunRecord {
            reducer: match chat.message(&message_id) {
                Some(message) => Reducer::continuing(message.clone()),
                None => Reducer::new(),
            },
            begun: chat.message_before_run(live),
            message_id,
            chat: chat.clone(),
            deltas: Deltas::default(),
            notes: Vec::new(),
            unfolded: Vec::new(),
            client_executed: Vec::new(),
            outcomes: HashMap::new(),
            open: OpenChunks::default(),
            is_in_step: false,
        }
    }

    /// Creates the record of a log. The message in `chat` holds the entries that are kept.
    pub(crate) fn of_log(chat: &Chat, live: &LiveRun, entries: &[LogEntry]) -> Self {
        let mut record = Self::new(chat, live);
        let kept = live.kept.map_or(0, |kept| kept.entries);
        let kept = usize::try_from(kept).unwrap_or(usize::MAX).min(entries.len());
        let (kept, new) = entries.split_at(kept);
        for note in kept.iter().filter_map(note_of) {
            if let Note::ClientExecuted(calls) = &note {
                record.client_executed.extend(calls.iter().cloned());
            }
            record.notes.push(note);
        }
        new.iter().for_each(|entry| record.push_entry(entry));
        record
    }

    /// Adds an entry of the log. An entry that this version cannot read changes nothing.
    fn push_entry(&mut self, entry: &LogEntry) {
        match entry {
            LogEntry::Note(_) => note_of(entry).into_iter().for_each(|note| self.push_note(note)),
            LogEntry::Frame(_) => each_chunk(entry, |chunk| self.push_chunk(chunk)),
        }
    }

    pub(crate) fn push_chunk(&mut self, chunk: &Chunk<'_>) {
        if self.deltas.skipped_frames > 0 {
            self.deltas.skipped_frames -= 1;
            return;
        }
        if is_final(chunk) {
            return;
        }
        self.open.push(chunk);
        match chunk {
            Chunk::FinishStep {} => self.is_in_step = false,
            Chunk::Start { .. } | Chunk::StartStep {} | Chunk::MessageMetadata { .. } => {}
            // The data of a call that is being executed, before the model is called.
            Chunk::Data { .. } if !self.open.step => {}
            _ => self.is_in_step = true,
        }
        self.add_text();
        // The reducer accepts each chunk that the translator emits.
        let _ = self.reducer.push_chunk(chunk);
    }

    /// Adds a delta of the text part with this id, which is open.
    #[inline]
    pub(crate) fn push_text(&mut self, id: &str, delta: &str) {
        if self.deltas.skipped_frames > 0 {
            self.deltas.skipped_frames -= 1;
            return;
        }
        // Another part begins with a chunk, before which this text is added.
        if self.deltas.text.is_empty() {
            self.deltas.id = id.to_owned();
        }
        self.deltas.text.push_str(delta);
    }

    /// Adds the deltas so far to the message.
    fn add_text(&mut self) {
        if self.deltas.text.is_empty() {
            return;
        }
        let text = std::mem::take(&mut self.deltas.text);
        let (id, delta) = (Cow::Borrowed(&*self.deltas.id), Cow::Borrowed(&*text));
        let delta = Chunk::TextDelta { id, delta, provider_metadata: None };
        let _ = self.reducer.push_chunk(&delta);
    }

    pub(crate) fn push_note(&mut self, note: Note) {
        match &note {
            Note::Step => {
                self.fold();
                self.is_in_step = false;
            }
            Note::Results { results, frames } => {
                self.unfolded.extend(results.iter().cloned());
                self.deltas.skipped_frames = *frames;
            }
            Note::Recorded(chunk) => {
                if let Ok(ReceivedChunk::Known { chunk, .. }) = ReceivedChunk::parse(chunk) {
                    self.push_chunk(&chunk);
                }
                self.deltas.skipped_frames = 1;
            }
            Note::Metadata(metadata) => {
                let message_metadata = Some(Cow::Borrowed(metadata));
                let _ = self.reducer.push_chunk(&Chunk::MessageMetadata { message_metadata });
            }
            Note::Outcomes { rejected, unknown } => {
                let of = |calls: &[ToolCallId], outcome: DeferredOutcome| {
                    calls
                        .iter()
                        .map(move |call| (call.clone(), outcome.clone()))
                        .collect::<Vec<_>>()
                };
                self.outcomes.extend(of(rejected, DeferredOutcome::Rejected));
                self.outcomes.extend(of(unknown, DeferredOutcome::OutcomeUnknown));
            }
            Note::ClientExecuted(calls) => self.client_executed.extend(calls.iter().cloned()),
            Note::Claimed(approvals) => {
                self.chat.remove_unsent(approvals);
                self.is_in_step = true;
            }
            Note::Ended { .. } => self.is_in_step = false,
            Note::ResumedBy(_) => {}
        }
        self.notes.push(note);
    }

    /// Does not skip frames: the writer does not push those that show a note as chunks.
    pub(crate) fn skip_no_frames(&mut self) {
        self.deltas.skipped_frames = 0;
    }

    /// Returns the result in this event if a provider emits it for a call of an earlier message.
    pub(crate) fn forwarded_result(&mut self, event: &AgentEvent) -> Option<ReceivedResult> {
        // Text makes no difference here.
        let result = self.chat.result_of_forwarded_call(event, || self.reducer.message())?;
        Some(ReceivedResult::new(result, None))
    }

    /// Returns whether the log holds a result of the same call.
    pub(crate) fn has_result_of(&self, result: &ReceivedResult) -> bool {
        self.results().any(|known| known.is_of_call_of(result))
    }

    fn results(&self) -> impl Iterator<Item = &ReceivedResult> {
        self.notes.iter().flat_map(|note| match note {
            Note::Results { results, .. } => results.as_slice(),
            _ => &[],
        })
    }

    /// Returns what the conversation holds of the log, if it holds this many entries.
    pub(crate) fn kept(&self, entries: u64) -> KeptSteps {
        KeptSteps { entries, begun_parts: self.begun_parts() }
    }

    /// Returns the number of parts that the message had when the run began.
    pub(super) fn begun_parts(&self) -> usize {
        self.begun.as_ref().map_or(0, |begun| begun.parts.len())
    }

    /// Returns the calls that the run has announced and that the client does not execute.
    pub(crate) fn own_calls(&mut self) -> Vec<ToolCallId> {
        let begun = self.begun.as_deref();
        let is_begun = |id: &ToolCallId| {
            begun.is_some_and(|begun| begun.tool_parts().any(|part| part.tool_call_id == *id))
        };
        let is_of_client =
            |id: &ToolCallId| self.client_executed.iter().any(|call| call.tool_call_id == *id);
        let calls = self.reducer.message().tool_parts().map(|part| &part.tool_call_id);
        calls.filter(|id| !is_begun(id) && !is_of_client(id)).cloned().collect()
    }

    /// Returns the calls that the user has answered and whose results come later: those that are being
    /// executed, and those whose approval no model call has sent to the provider.
    pub(crate) fn answered_calls(&mut self) -> Vec<ToolCallId> {
        let unsent = self.chat.unsent_approvals.iter();
        let unread = self.unfolded.iter().map(|unread| &unread.result);
        let granted = unsent.chain(unread).map(|result| result.tool_call_id.clone());
        let message = self.reducer.message();
        let executing = message.parts.iter().filter_map(approved_call).filter(|id| {
            let mut parts = message.tool_parts();
            parts.any(|part| part.tool_call_id == *id && part.provider_executed != Some(true))
        });
        granted.chain(executing).collect()
    }

    /// Returns the message as the log shows it, without the results since the last model call.
    pub(crate) fn message(&mut self) -> &UiMessage {
        self.add_text();
        self.reducer.message()
    }

    /// Returns a result with the id that its call has in this message, because the id in the result may
    /// be the agent's id of the call. Returns `None` if a call of another message has the result, and a
    /// call of this one has its id. An answer that was rejected keeps its id: it may name any approval.
    pub(super) fn with_id_of_call(&mut self, received: &ReceivedResult) -> Option<ReceivedResult> {
        let mut received = received.clone();
        let result = &mut received.result;
        let Some(approval) = result.approval_id.as_ref().filter(|_| result.is_final) else {
            return Some(received);
        };
        let message = self.message();
        if let Some(part) = message.tool_parts().find(|it| it.approval_id() == Some(approval)) {
            result.tool_call_id = part.tool_call_id.clone();
            return Some(received);
        }
        let is_taken = message.tool_parts().any(|it| it.tool_call_id == result.tool_call_id);
        // A call that was closed without a decision has no approval any more.
        (!is_taken || self.chat.is_call_of(&received, &self.message_id)).then_some(received)
    }

    /// Returns the ids of the text parts and of the reasoning parts that are open, and whether a
    /// step is open.
    pub(crate) fn open_chunks(&self) -> (&[String], &[String], bool) {
        (&self.open.text, &self.open.reasoning, self.open.step)
    }

    pub(super) fn message_id(&self) -> &MessageId {
        &self.message_id
    }

    /// Returns whether the log breaks off in a step. What its holder would have done in the rest of the
    /// step, and what it has done, is unknown.
    pub(super) fn breaks_off(&self) -> bool {
        self.is_in_step
    }

    /// Returns whether the last model call has ended, and if so, whether the log says that no other one
    /// follows.
    pub(super) fn end_of_call(&self) -> Option<bool> {
        self.notes.iter().rev().find_map(Note::end)?.map(|(_, is_last)| is_last)
    }

    /// Returns the conversation with the message and the results of this log. `chat` is the newest
    /// version of the conversation. Other messages stay as they are there.
    pub(crate) fn keep_in(&self, chat: &Chat) -> Chat {
        let mut record = self.clone();
        record.fold_message();
        let mut kept = chat.clone();
        let is_live = kept.live_run().is_some_and(|live| live.message_id == self.message_id);
        if (is_live || kept.message(&self.message_id).is_some())
            && let Some(message) = record.chat.message(&self.message_id)
        {
            kept.upsert_message(RecordedMessage {
                message: message.clone(),
                client_executed: record.client_executed.clone(),
                call_outcomes: record.chat.outcomes_of(&self.message_id),
            });
        }
        let is_last = kept.messages.last().is_some_and(|last| last.id == self.message_id);
        let mut unread = chat.has_unread_results();
        for note in &self.notes {
            match note {
                Note::Step => unread &= !is_last,
                Note::Results { results, .. } => {
                    let is_here = |it| is_last && kept.is_call_of(it, &self.message_id);
                    unread |= results.iter().any(is_here);
                    results.iter().for_each(|result| kept.record_received(result));
                }
                Note::Claimed(approvals) => kept.remove_unsent(approvals),
                Note::ClientExecuted(_)
                | Note::Recorded(_)
                | Note::Metadata(_)
                | Note::Outcomes { .. }
                | Note::Ended { .. }
                | Note::ResumedBy(_) => {}
            }
        }
        kept.set_unread_results(unread);
        kept.set_early_end(self.early_end());
        kept
    }

    /// Returns how the last model call has ended, if it has not finished.
    fn early_end(&self) -> Option<EarlyEnd> {
        let (frames, _) = self.notes.iter().rev().find_map(Note::end)??;
        let mut ended = None;
        for frame in frames {
            each_chunk(&LogEntry::Frame(frame.clone().into()), |chunk| match chunk {
                Chunk::Error { error_text } => ended = Some(Some(error_text.to_string())),
                Chunk::Abort { .. } => ended = Some(None),
                _ => {}
            });
        }
        ended.map(|error_text| EarlyEnd { message_id: self.message_id.clone(), error_text })
    }

    /// Adds the chunks and the results so far to the message, so that the next chunks continue it.
    fn fold(&mut self) {
        self.fold_message();
        if let Some(message) = self.chat.message(&self.message_id) {
            self.reducer = Reducer::continuing(message.clone());
        }
    }

    /// As [`fold`](Self::fold), for a record to which no chunks are added afterwards.
    fn fold_message(&mut self) {
        let mut message = self.message().clone();
        // The frames have another id if the client continues a message that the server does not hold.
        message.id = self.message_id.clone();
        if !message.parts.is_empty() {
            let mut recorded = RecordedMessage::from(message);
            recorded.client_executed = self.client_executed.clone();
            let parts = recorded.message.tool_parts().filter_map(|part| {
                let outcome = self.outcomes.get(&part.tool_call_id)?;
                part.is_settled().then(|| call_outcome(&self.message_id, part, outcome.clone()))
            });
            recorded.call_outcomes = parts.collect();
            self.chat.upsert_message(recorded);
        }
        for result in std::mem::take(&mut self.unfolded) {
            self.chat.record_result(&result.result, result.descriptor.as_ref());
        }
    }
}

impl OpenChunks {
    /// Returns whether a text or a reasoning is open.
    pub(crate) fn has_text(&self) -> bool {
        !self.text.is_empty() || !self.reasoning.is_empty()
    }

    /// Returns the chunks that end what is open.
    #[cfg(feature = "log-store")]
    pub(crate) fn ends(&self) -> Vec<Chunk<'static>> {
        let id = |id: &String| std::borrow::Cow::Owned(id.clone());
        let text =
            self.text.iter().map(|open| Chunk::TextEnd { id: id(open), provider_metadata: None });
        let reasoning = self
            .reasoning
            .iter()
            .map(|open| Chunk::ReasoningEnd { id: id(open), provider_metadata: None });
        let step = self.step.then_some(Chunk::FinishStep {});
        text.chain(reasoning).chain(step).collect()
    }

    pub(crate) fn push(&mut self, chunk: &Chunk<'_>) {
        match chunk {
            Chunk::TextStart { id, .. } => self.text.push(id.to_string()),
            Chunk::TextEnd { id, .. } => self.text.retain(|open| *open != **id),
            Chunk::ReasoningStart { id, .. } => self.reasoning.push(id.to_string()),
            Chunk::ReasoningEnd { id, .. } => self.reasoning.retain(|open| *open != **id),
            Chunk::StartStep {} => self.step = true,
            Chunk::FinishStep {} => self.step = false,
            _ => {}
        }
    }
}

/// Returns the call of which this part says that it is approved: it is being executed, has a result, or
/// its approval is for the provider.
fn approved_call(part: &Part) -> Option<ToolCallId> {
    #[derive(Deserialize)]
    struct Described {
        state: ApprovalStatus,
    }
    let Part::Data(data) = part else { return None };
    let described = data.data.as_ref().filter(|_| &*data.name == APPROVAL_DATA_NAME)?;
    let Described { state } = serde_json::from_str(described.as_str()).ok()?;
    data.id.as_deref().filter(|_| state == ApprovalStatus::Approved).map(ToolCallId::from)
}

/// Returns the frames with which the last model call of a log has ended. Returns `None` if it has not
/// ended.
pub(crate) fn end_of_last_call(entries: &[LogEntry]) -> Option<Vec<String>> {
    let mut notes = entries.iter().rev().filter_map(note_of);
    notes.find_map(|note| Some(note.end()?.map(|(frames, _)| frames.to_vec())))?
}

/// Returns why the model has stopped in its last call, if the frames of the log do not say it.
pub(crate) fn reason_of_last_call(entries: &[LogEntry]) -> Option<FinishReason> {
    entries.iter().rev().filter_map(note_of).find_map(|note| match note {
        Note::Ended { reason, .. } => Some(reason),
        _ => None,
    })?
}

/// Returns the run that writes what follows the log that ends with this entry.
pub(crate) fn resumed_by(last: &LogEntry) -> Option<RunId> {
    match note_of(last)? {
        Note::ResumedBy(run) => Some(run),
        _ => None,
    }
}

/// Returns the note that an entry holds, unless this version cannot read it.
fn note_of(entry: &LogEntry) -> Option<Note> {
    match entry {
        LogEntry::Note(bytes) => serde_json::from_slice(bytes).ok(),
        LogEntry::Frame(_) => None,
    }
}

/// Calls a function with each chunk in the frame of an entry. A chunk that this version cannot read is
/// left out.
pub(crate) fn each_chunk(entry: &LogEntry, handle: impl FnMut(&Chunk<'_>)) {
    if let LogEntry::Frame(bytes) = entry {
        each_frame(bytes, handle);
    }
}

/// Passes on the chunks of frames. One that this version cannot read is left out.
pub(crate) fn each_frame(bytes: &[u8], mut handle: impl FnMut(&Chunk<'_>)) {
    let mut decoder = Decoder::default();
    decoder.push(bytes);
    while let Some(event) = decoder.poll() {
        if let Ok(ReceivedChunk::Known { chunk, .. }) = ReceivedChunk::parse(&event.data) {
            handle(&chunk);
        }
    }
}

/// Whether the client stops reading at this chunk. It does not change the message, and is sent with
/// the end of the log.
pub(crate) fn is_final(chunk: &Chunk<'_>) -> bool {
    matches!(chunk, Chunk::Finish { .. } | Chunk::Abort { .. } | Chunk::Error { .. })
}
