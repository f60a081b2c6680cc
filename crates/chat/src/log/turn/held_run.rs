//! [`HeldRun`]: the run of which a turn is the holder.

use super::super::decision::Response;
use super::super::entry::RunEnd;
use super::super::pace::Pace;
use super::super::queue::Queue;
use super::super::writer::EntryWriter;
use crate::conversation::Chat;
use ui_message_stream::approval::DeferredToolResult;
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::{MessageId, RunId};

/// The run of which the turn is the holder.
#[derive(Debug)]
pub(super) struct HeldRun {
    pub(super) run: RunId,
    pub(super) message_id: MessageId,
    pub(super) phase: Phase,
    /// The response that waits until the ledger has the answers.
    pub(super) pending_response: Option<Response>,
    pub(super) writer: Option<EntryWriter>,
    pub(super) queue: Queue,
    pub(super) pace: Pace,
    /// The model is called also if no result is unread.
    pub(super) has_to_call: bool,
    /// How the run ends early, with the event that ends its model call.
    pub(super) early_end: Option<(RunEnd, AgentEvent)>,
    /// The error with which the last model call has ended.
    pub(super) failure: Option<String>,
    /// The results that the next model call reads.
    pub(super) results: Vec<DeferredToolResult>,
    pub(super) bytes: usize,
    pub(super) is_handed_over: bool,
    /// Another turn of this server is about to end the run: what waits is appended at once.
    pub(super) is_hurried: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The answers are redeemed.
    Redeeming,
    /// No model call is under way. An end of the run is decided with what waits for the log, and a step when the log
    /// holds everything.
    Idle,
    /// The step is appended first: it proves that the run lives.
    Stepping,
    ClaimingForProvider,
    Agent,
    /// The end is appended, with what waits for the log.
    Ending,
}

impl HeldRun {
    /// Creates a held run that begins with this phase.
    pub(super) fn new(run: RunId, message_id: MessageId, phase: Phase, pace: Pace) -> Self {
        HeldRun {
            run,
            message_id,
            phase,
            pending_response: None,
            writer: None,
            queue: Queue::default(),
            pace,
            has_to_call: false,
            early_end: None,
            failure: None,
            results: Vec::new(),
            bytes: 0,
            is_handed_over: false,
            is_hurried: false,
        }
    }

    /// Whether only text waits for the log, and may wait for more: nothing is decided before the log has them.
    pub(super) fn may_wait(&self) -> bool {
        !self.is_handed_over
            && !self.is_hurried
            && matches!(self.phase, Phase::Redeeming | Phase::ClaimingForProvider | Phase::Agent)
            && self.queue.may_wait()
    }

    /// Returns how the run ends when this is the chat. `None`: the model is called.
    pub(super) fn end(&self, chat: &Chat) -> Option<RunEnd> {
        let is_due = chat.message_to_continue() == Some(&self.message_id);
        match (&self.early_end, &self.failure) {
            (Some((end, _)), _) => Some(end.clone()),
            (None, _) if self.has_to_call || is_due => None,
            (None, Some(error)) => Some(RunEnd::Failed(error.clone())),
            (None, None) => Some(RunEnd::Finished),
        }
    }
}
