//! [`ChatState`]: the fold over the log of a chat.

pub(crate) mod end;
pub(crate) mod stored;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::end::{add_last_step, note_end};
use super::entry::{Entry, OtherEntry, ReadEntryError, RunEnd, StepEnd};
use super::open_chunks::OpenChunks;
use crate::Chat;
use crate::Messages;
use crate::conversation::request_change::apply_change;
use crate::conversation::{EndedRun, ReceivedResult, live_message, push_recorded};
use crate::store::{LoadedLog, StoredEntry};
use ui_message_stream::UserText;
use ui_message_stream::approval::{
    DeferredOutcome, DeferredToolResult, PendingToolCall, Principal,
};
use ui_message_stream::chunk::{Chunk, ReceivedChunk};
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::{ChatId, MessageId, RunId, ToolCallId};
use ui_message_stream::message::{Part, Role, UiMessage};
use ui_message_stream::reducer::Reducer;
use ui_message_stream::sse::Decoder;

/// The state of a chat after the first entries of its log.
#[derive(Debug, Clone)]
pub(crate) struct ChatState {
    chat: Chat,
    /// The number of entries.
    length: u64,
    live: Option<Live>,
    last_end: Option<LastEnd>,
    /// How many runs in a row were lost.
    losses: u32,
    /// The results that no model call has read.
    unread: Vec<DeferredToolResult>,
    /// Frames of the live run were left out, so its message has only the calls that wait.
    lacks_frames: bool,
}

/// The run that writes in the chat.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    pub(crate) run: RunId,
    pub(crate) message_id: MessageId,
    /// The position of its first entry.
    pub(crate) begin: u64,
    /// The number of parts that its message had then.
    pub(crate) begun_parts: usize,
    pub(crate) step: Step,
    /// The approvals that its model call sends to the provider.
    pub(crate) claimed: Vec<DeferredToolResult>,
    /// Its server has given it up.
    pub(crate) is_handed_over: bool,
    open: OpenChunks,
    reducer: Reducer,
    /// Whether the reducer holds the message, and not the chat.
    holds_message: bool,
}

/// The last step of a run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    NotBegun,
    /// The log has the step. The model was not called, or has ended what it began to write.
    Begun,
    /// The model was called, and the call has not ended.
    Called,
    Ended(StepEnd),
}

impl Step {
    pub(crate) fn end(&self) -> Option<&StepEnd> {
        match self {
            Step::Ended(end) => Some(end),
            Step::NotBegun | Step::Begun | Step::Called => None,
        }
    }
}

impl Live {
    /// Returns the entry that ends the run.
    pub(crate) fn end(&self, end: RunEnd) -> Entry {
        OtherEntry::End { run: self.run.clone(), end }.into()
    }
}

/// How the last run of a chat has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LastEnd {
    pub(crate) run: RunId,
    pub(crate) message_id: MessageId,
    /// The position of the first entry of the run.
    pub(crate) begin: u64,
    /// The number of parts that its message had then.
    begun_parts: usize,
    pub(crate) end: RunEnd,
}

/// The reason why an entry does not continue a log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FoldError {
    #[error(transparent)]
    Entry(#[from] ReadEntryError),
    #[error("a snapshot of a chat cannot be read: {0}")]
    Snapshot(#[from] serde_json::Error),
    #[error("entry {position} of the log is `{entry}`, which does not fit: {reason}")]
    Unexpected { position: u64, entry: &'static str, reason: &'static str },
}

impl ChatState {
    /// The state before the first entry.
    pub(crate) fn new(chat: impl Into<ChatId>, owner: Principal) -> Self {
        ChatState {
            chat: Chat::new(chat, owner),
            length: 0,
            live: None,
            last_end: None,
            losses: 0,
            unread: Vec::new(),
            lacks_frames: false,
        }
    }

    /// Returns the state of a loaded log, and the position and the messages of its snapshot.
    ///
    /// # Errors
    /// [`FoldError`], if this version cannot read the snapshot or an entry, or if the entries do not make
    /// a log.
    pub(crate) fn of_loaded(
        chat: &ChatId,
        owner: &Principal,
        loaded: &LoadedLog,
    ) -> Result<(Self, Option<(u64, Messages)>), FoldError> {
        let mut state = match &loaded.snapshot {
            Some(snapshot) => Self::of_snapshot(snapshot)?,
            None => Self::new(chat.clone(), owner.clone()),
        };
        let stored = loaded.snapshot.as_ref().map(|_| (state.length, state.chat.messages.clone()));
        for (position, entry) in &loaded.entries {
            state.skip_frames(*position);
            state.apply(&Entry::read(entry)?)?;
        }
        state.skip_frames(loaded.head.length);
        state.return_message();
        Ok((state, stored))
    }

    /// Returns the conversation. It lacks the chunks that were [pushed](Self::push_chunk) since the
    /// message was [returned](Self::return_message).
    pub(crate) fn chat(&self) -> &Chat {
        &self.chat
    }

    pub(crate) fn into_chat(mut self) -> Chat {
        self.return_message();
        self.chat
    }

    /// Returns the messages without what the live run has written.
    pub(crate) fn into_settled_messages(mut self) -> Messages {
        self.return_message();
        let begun = self.begun_message();
        let mut messages = self.chat.messages;
        let live = self.live;
        if let Some(at) = live.and_then(|live| messages.position(&live.message_id)) {
            match begun {
                Some(begun) => drop(messages.replace(at, begun)),
                None => messages.truncate(at),
            }
        }
        messages
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    pub(crate) fn live(&self) -> Option<&Live> {
        self.live.as_ref()
    }

    pub(crate) fn last_end(&self) -> Option<&LastEnd> {
        self.last_end.as_ref()
    }

    pub(crate) fn losses(&self) -> u32 {
        self.losses
    }

    /// Returns the results that no model call has read.
    pub(crate) fn unread(&self) -> &[DeferredToolResult] {
        &self.unread
    }

    pub(crate) fn lacks_frames(&self) -> bool {
        self.lacks_frames
    }

    /// Whether a step of the live run has begun, and the model can read the whole chat.
    pub(crate) fn can_call(&self) -> bool {
        !self.lacks_frames
            && self
                .live
                .as_ref()
                .is_some_and(|live| matches!(live.step, Step::Begun | Step::Called))
    }

    /// The entries before this position that were not applied are frames.
    fn skip_frames(&mut self, position: u64) {
        if position > self.length {
            self.return_message();
            if let Some(live) = &self.live {
                live_message::add_message(&mut self.chat, &live.message_id);
            }
            (self.length, self.lacks_frames) = (position, true);
        }
    }

    /// Applies the next entry.
    ///
    /// # Errors
    /// [`FoldError::Unexpected`], if the entry does not continue the log. The state is of no use then.
    pub(crate) fn apply(&mut self, entry: &Entry) -> Result<(), FoldError> {
        match entry {
            Entry::Frame(frame) => self.apply_frames(frame),
            Entry::Other(other) => self.apply_other(other),
        }?;
        self.length += 1;
        Ok(())
    }

    /// Applies the next entries, as they are stored.
    ///
    /// # Errors
    /// As [`apply`](Self::apply), and if this version does not know an entry.
    pub(crate) fn apply_stored(&mut self, entries: &[StoredEntry]) -> Result<(), FoldError> {
        entries.iter().try_for_each(|entry| self.apply(&Entry::read(entry)?))
    }

    /// Applies an entry of this turn, whose chunks and claims were pushed when it was written.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub(crate) fn apply_own(&mut self, entry: &Entry) -> Result<(), FoldError> {
        match entry.other() {
            None
            | Some(
                OtherEntry::Chunk { .. }
                | OtherEntry::Refused { .. }
                | OtherEntry::Preliminary { .. },
            ) => {
                self.live_of("frame").map(drop)?;
            }
            Some(OtherEntry::Call { message, .. }) => self.add_client_call(message),
            Some(OtherEntry::Claimed { .. }) => {}
            Some(other) => self.apply_other(other)?,
        }
        self.length += 1;
        Ok(())
    }

    /// A call with an approval request is not for the client, whose output would need no approval.
    fn add_client_call(&mut self, call: &UiMessage) {
        for part in call.tool_parts() {
            if part.approval_id().is_some() {
                self.chat
                    .client_executed
                    .retain(|of_client| of_client.tool_call_id != part.tool_call_id);
                continue;
            }
            live_message::add_client_call(&mut self.chat, PendingToolCall::of_part(part));
        }
    }

    fn unexpected(&self, entry: &'static str, reason: &'static str) -> FoldError {
        FoldError::Unexpected { position: self.length, entry, reason }
    }

    /// Returns the live run, to which this entry belongs.
    fn live_of(&mut self, entry: &'static str) -> Result<&mut Live, FoldError> {
        let error = FoldError::Unexpected {
            position: self.length,
            entry,
            reason: "no run is live, or it is another one",
        };
        self.live.as_mut().ok_or(error)
    }

    fn apply_other(&mut self, entry: &OtherEntry) -> Result<(), FoldError> {
        match entry {
            OtherEntry::Import { messages } => {
                if self.length > 0 {
                    return Err(self.unexpected("import", "it is not the first entry"));
                }
                live_message::begin_with_imported(&mut self.chat, messages.clone());
            }
            OtherEntry::Request(change) => {
                if self.live.is_some() {
                    return Err(self.unexpected("request", "a run is live"));
                }
                apply_change(&mut self.chat, change.clone());
                self.read_results();
            }
            OtherEntry::Begin { run, message_id } => self.begin(run, message_id)?,
            OtherEntry::Chunk { chunk } => {
                self.live_of("chunk")?;
                self.push_received(ReceivedChunk::parse(chunk).ok());
            }
            OtherEntry::Refused { chunks, .. } => {
                self.live_of("refused")?;
                let chunks = chunks.iter().map(|chunk| ReceivedChunk::parse(chunk).ok());
                chunks.for_each(|chunk| self.push_received(chunk));
            }
            OtherEntry::Preliminary { .. } => drop(self.live_of("preliminary")?),
            OtherEntry::Call { message, frames } => {
                self.live_of("call")?;
                self.apply_call(message, frames)?;
            }
            OtherEntry::Settled { call, chunk, .. } => {
                self.live_of("settled")?;
                self.settle(call, chunk);
            }
            OtherEntry::Step => self.begin_step()?,
            OtherEntry::StepEnd(end) => self.end_step(end)?,
            OtherEntry::Claimed { approvals } => {
                self.live_of("claimed")?;
                self.push_claimed(approvals);
            }
            OtherEntry::HandedOver => self.live_of("handed-over")?.is_handed_over = true,
            OtherEntry::Result { received, .. } => self.add_result(received),
            OtherEntry::End { run, end } => {
                if self.live_of("end")?.run != *run {
                    return Err(self.unexpected("end", "another run is live"));
                }
                self.end(end);
            }
        }
        Ok(())
    }

    fn begin(&mut self, run: &RunId, message_id: &MessageId) -> Result<(), FoldError> {
        if self.live.is_some() {
            return Err(self.unexpected("begin", "a run is live"));
        }
        let message = self.chat.message(message_id);
        // Without frames a message may have fewer parts than it has.
        let known = usize::from(self.lacks_frames);
        let begun_parts = message.map_or(0, |message| message.parts.len().max(known));
        let reducer = continuing(message, message_id);
        self.chat.begin_run(message_id.clone(), begun_parts == 0);
        self.live = Some(Live {
            run: run.clone(),
            message_id: message_id.clone(),
            begin: self.length,
            begun_parts,
            step: Step::NotBegun,
            claimed: Vec::new(),
            is_handed_over: false,
            open: OpenChunks::default(),
            reducer,
            holds_message: false,
        });
        Ok(())
    }

    fn apply_frames(&mut self, frames: &[u8]) -> Result<(), FoldError> {
        self.live_of("frame")?;
        let mut decoder = Decoder::default();
        decoder.push(frames);
        while let Some(event) = decoder.poll() {
            self.push_received(ReceivedChunk::parse(&event.data).ok());
        }
        Ok(())
    }

    /// Pushes a chunk to the message. A chunk that this version cannot read is left out, as the client
    /// of the run leaves it out.
    fn push_received(&mut self, received: Option<ReceivedChunk<'_>>) {
        if let Some(ReceivedChunk::Known { chunk, .. }) = received
            && !self.lacks_frames
        {
            self.push_chunk(&chunk);
        }
    }

    /// Adds a chunk of the live run to its message.
    pub(crate) fn push_chunk(&mut self, chunk: &Chunk<'_>) {
        let Some(live) = &mut self.live else { return };
        if !std::mem::replace(&mut live.holds_message, true)
            && let Some(message) = live_message::lend_message(&mut self.chat, &live.message_id)
        {
            live.reducer.exchange_message(message);
        }
        if !push_recorded(chunk, &mut live.reducer) {
            return;
        }
        match chunk {
            Chunk::FinishStep {} if live.step == Step::Called => live.step = Step::Begun,
            Chunk::Start { .. } | Chunk::MessageMetadata { .. } => {}
            Chunk::StartStep {} | Chunk::FinishStep {} => {}
            // Parts of a call that is being executed, before the model is called.
            Chunk::Data { .. } => {}
            Chunk::SourceUrl { .. } | Chunk::SourceDocument { .. } | Chunk::File { .. }
                if !live.open.has_step() => {}
            _ => live.step = Step::Called,
        }
        live.open.push(chunk);
    }

    /// The live run sends these approvals to the provider.
    pub(crate) fn push_claimed(&mut self, approvals: &[DeferredToolResult]) {
        if let Some(live) = &mut self.live {
            (live.step, live.claimed) = (Step::Called, approvals.to_vec());
        }
        let ids = approvals.iter().filter_map(|claimed| claimed.approval_id.clone());
        self.chat.remove_unsent(&ids.collect::<Vec<_>>());
    }

    /// Gives the message of the live run back to the chat.
    pub(crate) fn return_message(&mut self) {
        if let Some(live) = &mut self.live
            && std::mem::take(&mut live.holds_message)
        {
            let empty = UiMessage::new(live.message_id.clone(), Role::Assistant, Vec::new());
            live_message::return_message(&mut self.chat, live.reducer.exchange_message(empty));
        }
    }

    fn apply_call(&mut self, call: &UiMessage, frames: &str) -> Result<(), FoldError> {
        match &self.live {
            Some(live) if self.lacks_frames => {
                live_message::add_waiting_call(&mut self.chat, &live.message_id, call)
            }
            _ => self.apply_frames(frames.as_bytes())?,
        }
        self.add_client_call(call);
        Ok(())
    }

    /// The agent has given a result to a call that waits. A result that was appended before is kept, unless
    /// it says only that it is unknown whether the call was executed.
    fn settle(&mut self, call: &ToolCallId, chunk: &str) {
        self.return_message();
        let Some(id) = self.live.as_ref().map(|live| live.message_id.clone()) else { return };
        if !live_message::forget_unknown(&mut self.chat, &id, call) {
            return;
        }
        if self.lacks_frames {
            live_message::settle_call(&mut self.chat, &id, call)
        } else {
            self.push_received(ReceivedChunk::parse(chunk).ok())
        }
    }

    fn begin_step(&mut self) -> Result<(), FoldError> {
        self.return_message();
        let id = self.live_of("step")?.message_id.clone();
        // The agent goes on with them before it emits anything.
        let has_outer = |message: &UiMessage| !message.answered_outer_calls().is_empty();
        let has_outer = self.chat.message(&id).is_some_and(has_outer);
        let live = self.live_of("step")?;
        let is_called = has_outer || live.step == Step::Called;
        live.step = if is_called { Step::Called } else { Step::Begun };
        live.claimed.clear();
        self.read_results();
        Ok(())
    }

    fn end_step(&mut self, end: &StepEnd) -> Result<(), FoldError> {
        let live = self.live_of("step-end")?;
        live.step = Step::Ended(end.clone());
        let id = live.message_id.clone();
        self.losses = 0;
        if let Some(metadata) = &end.metadata {
            let message_metadata = Some(Cow::Borrowed(metadata));
            self.push_chunk(&Chunk::MessageMetadata { message_metadata });
        }
        self.return_message();
        live_message::add_outcomes(&mut self.chat, &id, &end.rejected, &DeferredOutcome::Rejected);
        live_message::add_outcomes(
            &mut self.chat,
            &id,
            &end.unknown,
            &DeferredOutcome::OutcomeUnknown,
        );
        Ok(())
    }

    fn add_result(&mut self, result: &ReceivedResult) {
        self.return_message();
        if !self.is_left_out(&result.result) {
            if !live_message::accepts_result(&self.chat, &result.result) {
                // The agent may give a result twice.
                return;
            }
            self.chat.record_received(result);
        }
        // The client has still to execute it.
        if !self.chat.is_with_client(&result.result) {
            self.unread.push(result.result.clone());
        }
    }

    /// Whether the call of this result may be in the frames that were left out: it has no approval, and its
    /// message lacks it. An earlier message may have a call with its id.
    fn is_left_out(&self, result: &DeferredToolResult) -> bool {
        let message = result.message_id.as_ref().and_then(|id| self.chat.message(id));
        let mut parts = message.into_iter().flat_map(UiMessage::tool_parts);
        let has_call = parts.any(|part| part.tool_call_id == result.tool_call_id);
        self.lacks_frames
            && result.approval_id.is_none()
            && result.message_id.is_some()
            && !has_call
    }

    fn read_results(&mut self) {
        self.unread.clear();
        self.chat.set_unread_results(false);
    }

    fn end(&mut self, end: &RunEnd) {
        self.return_message();
        let Some(live) = self.live.take() else { return };
        if live.step.end().is_none() {
            // Otherwise the frames have ended what was open.
            for claimed in &live.claimed {
                let outcome = DeferredOutcome::OutcomeUnknown;
                self.chat.record_result(&claimed.clone().with_outcome(outcome), None);
            }
            let is_called = live.step == Step::Called;
            live_message::close_message(&mut self.chat, &live.message_id, is_called);
            if matches!(end, RunEnd::Stopped | RunEnd::Replaced | RunEnd::Limit) {
                add_last_step(&mut self.chat, &live.message_id);
            }
        }
        let Live { run, message_id, begin, begun_parts, step, .. } = live;
        let is_cut = step.end().is_none_or(|end| end.is_cut);
        let error_text = match end {
            RunEnd::Failed(error_text) => Some(error_text.clone()),
            RunEnd::Interrupted => Some(UserText::AnswerInterrupted.to_string()),
            _ => None,
        };
        let ended = end.early().map(|end| {
            note_end(&mut self.chat, &message_id, Some(end));
            EndedRun { message_id: message_id.clone(), end, error_text, is_cut }
        });
        if !matches!(end, RunEnd::ResumedBy(_)) {
            self.chat.end_run(ended);
        }
        self.losses = match end {
            RunEnd::ResumedBy(_) => self.losses + 1,
            _ => 0,
        };
        let end = end.clone();
        self.last_end = Some(LastEnd { run, message_id, begin, begun_parts, end });
    }

    /// Returns the message that the last run has continued, if it began at this position, with the parts
    /// that it had before.
    pub(crate) fn continued_by(&self, begin: u64) -> Option<UiMessage> {
        let last = self.last_end.as_ref().filter(|last| last.begin == begin)?;
        self.begun_part_of(&last.message_id, last.begun_parts)
    }

    /// Returns the message of the live run, with everything that was pushed.
    pub(crate) fn live_message(&mut self) -> UiMessage {
        self.return_message();
        let Some(live) = &self.live else { return UiMessage::new("", Role::Assistant, Vec::new()) };
        let new = || UiMessage::new(live.message_id.clone(), Role::Assistant, Vec::new());
        self.chat.message(&live.message_id).cloned().unwrap_or_else(new)
    }

    /// Returns the live message with its newest call of this id alone.
    pub(crate) fn live_call(&mut self, id: &ToolCallId) -> Option<UiMessage> {
        self.return_message();
        let message = self.chat.message(&self.live.as_ref()?.message_id)?;
        let is_it = |part: &&Part| part.as_tool().is_some_and(|tool| tool.tool_call_id == *id);
        let part = message.parts.iter().rev().find(is_it)?.clone();
        Some(UiMessage::new(message.id.clone(), Role::Assistant, vec![part]))
    }

    /// Returns the chunks of the live run that need an end.
    pub(crate) fn open_chunks(&self) -> OpenChunks {
        self.live.as_ref().map(|live| live.open.clone()).unwrap_or_default()
    }

    /// Returns whether this call of the live message waits for a result that does not come from the agent.
    pub(crate) fn is_waiting(&mut self, id: &ToolCallId) -> bool {
        self.return_message();
        let message = self.live.as_ref().and_then(|live| self.chat.message(&live.message_id));
        message.is_some_and(|message| live_message::is_waiting(&self.chat, message, id))
    }

    /// Returns the result in this event, if a provider emits it for a call of an earlier message.
    pub(crate) fn forwarded_result(&mut self, event: &AgentEvent) -> Option<DeferredToolResult> {
        self.return_message();
        let message = self.live.as_ref().and_then(|live| self.chat.message(&live.message_id));
        self.chat.result_of_forwarded_call(event, || message)
    }

    /// Returns the calls of the live message whose approvals wait for the next model call, and whose
    /// results come later.
    pub(crate) fn answered_calls(&self) -> Vec<ToolCallId> {
        let answered = self.chat.unsent_approvals.iter().chain(&self.unread);
        answered.map(|result| result.tool_call_id.clone()).collect()
    }

    /// Whether the message that the live run continues has to be loaded with its frames.
    pub(crate) fn lacks_begun_message(&self) -> bool {
        self.lacks_frames && self.live.as_ref().is_some_and(|live| live.begun_parts > 0)
    }

    /// Whether the live run has written nothing, and its message has calls that wait. The answers that have
    /// begun the run may not have been redeemed.
    pub(crate) fn may_lack_answers(&self) -> bool {
        self.live.as_ref().is_some_and(|live| {
            let message = self.chat.message(&live.message_id);
            live.step.end().is_none()
                && message.is_some_and(|message| {
                    message.parts.len() == live.begun_parts && self.chat.has_open_calls(message)
                })
        })
    }

    /// Returns the message that the live run continues, with the parts that it had before and the results
    /// that they have now. `None` if the run writes a new message.
    pub(crate) fn begun_message(&self) -> Option<Arc<UiMessage>> {
        let live = self.live.as_ref()?;
        self.begun_part_of(&live.message_id, live.begun_parts).map(Arc::new)
    }

    /// Returns the first parts of a message, before which a run has begun. `None` if there are none.
    fn begun_part_of(&self, id: &MessageId, begun_parts: usize) -> Option<UiMessage> {
        let mut message = self.chat.message(id).filter(|_| begun_parts > 0)?.clone();
        message.parts.truncate(begun_parts);
        Some(message)
    }
}

/// Returns the reducer of a run that writes this message.
fn continuing(message: Option<&UiMessage>, id: &MessageId) -> Reducer {
    let new = || UiMessage::new(id.clone(), Role::Assistant, Vec::new());
    Reducer::continuing(message.cloned().unwrap_or_else(new)).without_input_texts()
}
