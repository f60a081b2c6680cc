//! [`EntryWriter`]: writes the events of the agent as entries of the log.
//!
//! The entries hold all that the newest client reads. A reader leaves out what its client does not know. The message
//! leaves out what is not recorded.

use std::borrow::Cow;

use super::entry::{Entry, OtherEntry, StepEnd};
use super::queue::Queue;
use super::state::ChatState;
use crate::conversation::Chat;
use crate::conversation::{ReceivedResult, live_message};
use crate::log::client::Client;
use ui_message_stream::chunk::{Chunk, FinishReason, Version};
use ui_message_stream::event::{AgentEvent, Executor};
use ui_message_stream::id::{ApprovalId, ToolCallId};
use ui_message_stream::message::{ToolPart, ToolState, UiMessage};
use ui_message_stream::sse::Encoder;
use ui_message_stream::translator::{ResultKind, TranslateError, Translator};

/// Writes the entries of a run, and adds their chunks to its message.
#[derive(Debug)]
pub(crate) struct EntryWriter {
    translator: Translator,
    /// Why events of the agent were dropped, until this is reported.
    dropped: Vec<TranslateError>,
}

impl EntryWriter {
    /// Creates the writer of a model call that continues this message.
    pub(crate) fn new(message: &UiMessage, client: Client) -> Self {
        let translator = if message.parts.is_empty() {
            Translator::new(message.id.clone())
        } else {
            Translator::continuing(message)
        };
        let translator =
            if client.answers_approvals() { translator } else { translator.without_approvals() };
        // `ai@5` reads other chunks, and not only fewer.
        let version = match client.version() {
            Version::V5 => Version::V5,
            _ => Version::NEWEST,
        };
        let mut translator = translator.with_version(version).recording_model_ids();
        // Readers write the start themselves.
        translator.start(&mut |_| {});
        EntryWriter { translator, dropped: Vec::new() }
    }

    pub(crate) fn take_dropped(&mut self) -> Vec<TranslateError> {
        std::mem::take(&mut self.dropped)
    }

    /// Writes an event of the agent.
    pub(crate) fn event(&mut self, event: &AgentEvent, state: &mut ChatState, queue: &mut Queue) {
        if let AgentEvent::ToolOutput { .. } | AgentEvent::ToolFailed { .. } = event
            && let Some(result) = state.forwarded_result(event)
        {
            let received = ReceivedResult::new(result, None);
            let chunks = Vec::new();
            return queue.push(OtherEntry::Result { received, chunks });
        }
        let EntryWriter { translator, dropped } = self;
        let mut write = |chunk: &Chunk<'_>| write(chunk, state, queue);
        if let AgentEvent::TextDelta { .. } | AgentEvent::ReasoningDelta { .. } = event {
            // It needs no list, and is the most frequent one.
            let handled = translator.handle_event(event, &mut |chunk| write(&chunk));
            return dropped.extend(handled.err());
        }
        let mut chunks = Vec::new();
        let handled = translator.handle_event(event, &mut |chunk| chunks.push(chunk.into_owned()));
        dropped.extend(handled.err());
        if let AgentEvent::ToolRefused { reason, .. } = event {
            return write_refusal(reason, &chunks, state, queue);
        }
        match waiting_call(event, &chunks) {
            Some(waiting) => write_call(waiting, &chunks, state, queue),
            None => chunks.iter().for_each(write),
        }
    }

    /// Writes a part of an approved call. It stays in the step of the calls: a step of its own would end that of a
    /// call that still waits.
    pub(crate) fn part_of_call(
        &mut self,
        event: &AgentEvent,
        state: &mut ChatState,
        queue: &mut Queue,
    ) {
        let handled = self.translator.handle_event(event, &mut |chunk| {
            if !matches!(chunk, Chunk::StartStep {}) {
                write(&chunk, state, queue);
            }
        });
        self.dropped.extend(handled.err());
    }

    /// Writes a preliminary output of an approved call. Clients read it, and the message does not get it: its call
    /// waits for the result of the ledger.
    pub(crate) fn preliminary_output(
        &mut self,
        call: &ToolCallId,
        event: &AgentEvent,
        queue: &mut Queue,
    ) {
        let handled = self.translator.handle_event(event, &mut |chunk| {
            let frame = encoded(&chunk);
            queue.push(OtherEntry::Preliminary { call: call.clone(), frame });
        });
        self.dropped.extend(handled.err());
    }

    /// Writes the end of a model call: an event after which the agent emits nothing, or `None` if it has
    /// stopped without one. What the client reads last is sent with the end of the run.
    pub(crate) fn end_call(
        &mut self,
        event: Option<&AgentEvent>,
        state: &mut ChatState,
        queue: &mut Queue,
    ) {
        state.return_message();
        self.translator.set_answered(&state.answered_calls());
        let of_client = state.chat().client_executed.iter();
        let of_client: Vec<_> = of_client.map(|call| call.tool_call_id.clone()).collect();
        self.translator.set_client_executed(&of_client);
        let is_cut = matches!(
            event,
            Some(
                AgentEvent::Abort { .. }
                    | AgentEvent::Error { .. }
                    | AgentEvent::Finish { reason: FinishReason::Interrupted, .. }
            )
        );
        let mut end = StepEnd { is_cut, ..StepEnd::default() };
        let mut reason = match event {
            Some(AgentEvent::Finish { reason, .. }) => Some(*reason),
            _ => None,
        };
        let mut out = |chunk: Chunk<'_>| {
            if !is_final(&chunk) {
                return write(&chunk, state, queue);
            }
            if let Chunk::Finish { message_metadata: Some(given), .. } = &chunk {
                end.metadata = Some((**given).clone());
            }
            if let Chunk::Finish { finish_reason: Some(_), .. } = chunk {
                reason = None;
            }
            end.last.push(encoded(&chunk));
        };
        match event {
            Some(event) => {
                let handled = self.translator.handle_event(event, &mut out);
                self.dropped.extend(handled.err());
            }
            None => self.translator.end(&mut out),
        }
        let of = |kind| self.translator.settled_as(kind).cloned().collect::<Vec<ToolCallId>>();
        end.rejected = of(ResultKind::Rejected);
        end.unknown = of(ResultKind::OutcomeUnknown);
        end.reason = reason.filter(|reason| *reason != FinishReason::Stop);
        queue.push(OtherEntry::StepEnd(end));
    }
}

/// Returns the call that waits for a user or a client after this event.
fn waiting_call(event: &AgentEvent, chunks: &[Chunk<'static>]) -> Option<ToolCallId> {
    let has = |is_it: fn(&Chunk<'_>) -> bool| chunks.iter().any(is_it);
    match event {
        AgentEvent::ToolInput { call, .. }
            if call.executed_by == Executor::Client
                && has(|chunk| matches!(chunk, Chunk::ToolInputAvailable { .. })) =>
        {
            Some(call.id.on_wire())
        }
        _ => chunks.iter().find_map(|chunk| match chunk {
            Chunk::ToolApprovalRequest { tool_call_id, .. } => {
                Some(ToolCallId::from(&**tool_call_id))
            }
            _ => None,
        }),
    }
}

/// Writes a call that waits, with all chunks that announce it, as one entry.
fn write_call(
    waiting: ToolCallId,
    chunks: &[Chunk<'static>],
    state: &mut ChatState,
    queue: &mut Queue,
) {
    chunks.iter().for_each(|chunk| state.push_chunk(chunk));
    match state.live_call(&waiting) {
        Some(message) => {
            let frames = chunks.iter().map(encoded).collect();
            queue.push(OtherEntry::Call { message, frames });
        }
        None => chunks.iter().for_each(|chunk| push(chunk, queue)),
    }
}

/// Writes the chunks of a refusal. Those that only some clients know are one entry.
fn write_refusal(
    reason: &str,
    chunks: &[Chunk<'static>],
    state: &mut ChatState,
    queue: &mut Queue,
) {
    let is_request = |chunk: &Chunk<'_>| matches!(chunk, Chunk::ToolApprovalRequest { .. });
    let begin = chunks.iter().position(is_request).unwrap_or(chunks.len());
    let (before, denial) = chunks.split_at(begin);
    before.iter().for_each(|chunk| write(chunk, state, queue));
    let Some((denial, after)) = denial.split_first_chunk::<3>() else { return };
    let [Chunk::ToolApprovalRequest { tool_call_id, .. }, ..] = denial else { return };
    let message = state.live_call(&ToolCallId::from(&**tool_call_id));
    let mut parts = message.iter().flat_map(UiMessage::tool_parts);
    let older = Chunk::ToolOutputError {
        tool_call_id: Cow::Borrowed(tool_call_id),
        error_text: Cow::Borrowed(reason),
        provider_executed: None,
        provider_metadata: None,
        tool_metadata: None,
        dynamic: parts.any(ToolPart::is_dynamic).then_some(true),
    };
    denial.iter().for_each(|chunk| state.push_chunk(chunk));
    let chunks = denial.each_ref().map(json_of);
    queue.push(OtherEntry::Refused { chunks, older: json_of(&older) });
    after.iter().for_each(|chunk| write(chunk, state, queue));
}

/// Writes a chunk. A chunk that settles a call which waits is added to the message when the log has it: a
/// turn that has redeemed an answer may append a result first.
fn write(chunk: &Chunk<'_>, state: &mut ChatState, queue: &mut Queue) {
    if let Some(call) = settled_call(chunk).filter(|call| state.is_waiting(call)) {
        return queue.push(OtherEntry::Settled { call, chunk: json_of(chunk) });
    }
    state.push_chunk(chunk);
    push(chunk, queue);
}

fn push(chunk: &Chunk<'_>, queue: &mut Queue) {
    if is_for_all(chunk) {
        queue.push_chunk(chunk)
    } else {
        queue.push(OtherEntry::Chunk { chunk: json_of(chunk) })
    }
}

/// Returns the call that gets its final result with this chunk.
pub(crate) fn settled_call(chunk: &Chunk<'_>) -> Option<ToolCallId> {
    match chunk {
        Chunk::ToolOutputAvailable { preliminary: Some(true), .. } => None,
        Chunk::ToolOutputAvailable { tool_call_id, .. }
        | Chunk::ToolOutputError { tool_call_id, .. }
        | Chunk::ToolOutputDenied { tool_call_id, .. } => Some(ToolCallId::from(&**tool_call_id)),
        _ => None,
    }
}

/// Writes the end of the live run of a server that is gone: an event, or `None` if its message is complete.
pub(crate) fn write_lost_end(event: Option<&AgentEvent>, state: &mut ChatState) -> Vec<Entry> {
    let client = Client::of_version(Version::NEWEST);
    let mut queue = Queue::default();
    let open = state.open_chunks();
    for chunk in open.ends() {
        write(&chunk, state, &mut queue);
    }
    let message = state.live_message();
    let mut writer = EntryWriter::new(&message, client);
    // The holder has not ended their inputs.
    let is_cut = |part: &&ToolPart| matches!(part.state, ToolState::InputStreaming { .. });
    let cut = message.tool_parts().filter(is_cut).map(|part| part.tool_call_id.clone());
    writer.translator.require_results(&cut.collect::<Vec<_>>());
    writer.end_call(event, state, &mut queue);
    queue.into_entries()
}

/// Returns the entry of a question that is asked again. Clients read it, and the message has it.
pub(crate) fn question_entry(call: &ToolCallId, question: &ApprovalId) -> OtherEntry {
    let frame = encoded(&Chunk::ToolApprovalRequest {
        approval_id: Cow::Borrowed(question),
        tool_call_id: Cow::Borrowed(call),
        approval_descriptor: None,
        input_schema_input: None,
        reason: None,
        is_automatic: None,
        signature: None,
    });
    OtherEntry::Preliminary { call: call.clone(), frame }
}

/// Returns the entry of a result of a call in this chat.
pub(crate) fn result_entry(chat: &Chat, received: &ReceivedResult) -> Entry {
    let mut chunks = Vec::new();
    let mut received = received.clone();
    if let Some((message, part)) = live_message::call_of_result(chat, &received.result) {
        received.result.message_id.get_or_insert_with(|| message.id.clone());
        let mut message = message.clone();
        if part.is_settled() {
            // It was unknown whether the call was executed.
            live_message::reopen(&mut message, &part.tool_call_id);
        }
        let mut translator = Translator::continuing(&message).with_version(Version::NEWEST);
        translator.start(&mut |_| {});
        let mut shown = received.clone();
        shown.result.tool_call_id = part.tool_call_id.clone();
        for event in shown.events_for_all() {
            let _ = translator.handle_result(&event, &mut |chunk| chunks.push(json_of(&chunk)));
        }
    }
    OtherEntry::Result { received, chunks }.into()
}

/// Whether the client stops reading at this chunk.
fn is_final(chunk: &Chunk<'_>) -> bool {
    matches!(chunk, Chunk::Finish { .. } | Chunk::Abort { .. } | Chunk::Error { .. })
}

/// Whether all clients read this chunk as it is.
fn is_for_all(chunk: &Chunk<'_>) -> bool {
    let has_only_text = matches!(
        chunk,
        Chunk::TextDelta { provider_metadata: None, .. }
            | Chunk::ReasoningDelta { provider_metadata: None, .. }
            | Chunk::ToolInputDelta { .. }
    );
    let is_same = |version| shown(chunk.clone(), version).as_ref() == Some(chunk);
    has_only_text || is_same(Version::V5) && is_same(Version::V6)
}

/// Returns what a client of this version reads of a chunk. `None` if it does not know the kind.
pub(crate) fn shown(chunk: Chunk<'_>, version: Version) -> Option<Chunk<'_>> {
    // For `ai@5` each output is the last one.
    let is_preliminary =
        matches!(chunk, Chunk::ToolOutputAvailable { preliminary: Some(true), .. });
    let is_known = chunk.is_kind_known_to(version) && !(is_preliminary && version == Version::V5);
    is_known.then(|| without_model_id(chunk.for_version(version)))
}

/// Removes the id that the model gave to the call of the chunk. Clients do not read it.
fn without_model_id(mut chunk: Chunk<'_>) -> Chunk<'_> {
    if let Chunk::ToolInputStart { provider_metadata, .. }
    | Chunk::ToolInputAvailable { provider_metadata, .. }
    | Chunk::ToolInputError { provider_metadata, .. } = &mut chunk
        && let Some(without) =
            provider_metadata.as_ref().and_then(|metadata| metadata.without_model_id())
    {
        *provider_metadata = without.map(Cow::Owned);
    }
    chunk
}

fn json_of(chunk: &Chunk<'_>) -> String {
    encoded(chunk).strip_prefix("data: ").unwrap_or_default().trim().to_owned()
}

/// Returns the frame of a chunk.
pub(crate) fn encoded(chunk: &Chunk<'_>) -> String {
    let mut frame = Vec::new();
    Encoder::default().encode(chunk, &mut frame);
    String::from_utf8_lossy(&frame).into_owned()
}

/// The entries of those results that change the chat.
pub(crate) fn accepted<'r>(
    chat: &Chat,
    results: impl IntoIterator<Item = &'r ReceivedResult>,
) -> Vec<Entry> {
    let new =
        results.into_iter().filter(|received| live_message::accepts_result(chat, &received.result));
    new.map(|received| result_entry(chat, received)).collect()
}
