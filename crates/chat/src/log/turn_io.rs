//! What a [`LogTurn`](super::turn::LogTurn) asks of its driver, and what the driver passes to it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::decision::{Append, Response};
use super::entry::Entry;
use super::state::FoldError;
use super::state::stored::StateSnapshot;
use crate::conversation::Chat;
use crate::conversation::ReceivedResult;
use crate::store::{AppendResult, Epoch, LoadedLog, LogPage, Unchanged};
use ui_message_stream::approval::{DeferredToolResult, PendingToolCall, ResumePlan};
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::{ApprovalId, MessageId, RunId, ToolCallId};
use ui_message_stream::translator::TranslateError;

/// The number of an effect. Its replies carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EffectId(pub(crate) u32);

/// What the driver must do next.
#[derive(Debug)]
pub(crate) enum Action {
    /// Start this effect without waiting for it.
    Start(EffectId, Effect),
    /// Send this response to the client. It comes at most once.
    Respond(Response),
    /// Drop the stream of the agent.
    StopAgent,
    /// Log that an event of the agent had no valid translation.
    Report(TranslateError),
    /// The turn has begun a run. It will show what follows this position.
    HoldRun { epoch: Epoch, position: u64 },
    /// The log holds these entries, from this position on. Readers of this server are shown them.
    Show { epoch: Epoch, first: u64, entries: Arc<[Entry]> },
    /// The log will hold these frames from this position on. Readers of this server are shown them.
    ShowText { epoch: Epoch, position: u64, frames: Bytes },
    /// The run of the turn has ended, or another turn has ended it.
    LeaveRun,
    /// The turn has ended this run of another one, perhaps because it was lost.
    EndedOther { run: RunId, was_lost: bool },
    /// Log that a run ends because of a limit.
    ReportLimit(RunId, RunLimit),
    /// Log that this version cannot read the chat. The turn writes nothing more.
    RefuseLog(FoldError),
    /// Wait for an input, or until this time of the server.
    Wait { until: Option<Duration> },
    /// The turn has ended.
    End,
}

/// A limit that ends a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunLimit {
    /// The bytes of its log.
    LogBytes,
    /// The time without a reader.
    UnreadTime,
    /// The live runs of its user: another one has begun.
    UserRuns,
}

/// An operation for the driver to start.
#[derive(Debug, Clone)]
pub(crate) enum Effect {
    Load {
        has_frames: bool,
    },
    /// Read the entries from this position on.
    ReadTail {
        epoch: Epoch,
        position: u64,
    },
    Append(Append),
    Delete {
        epoch: Epoch,
        control: u64,
    },
    /// Close these calls, because of a new message of the user, with the answers that came with it.
    /// Those in `removed` are closed in any case, because their message is removed.
    CloseCalls {
        open: Vec<PendingToolCall>,
        removed: Vec<PendingToolCall>,
        plan: Box<ResumePlan>,
        chat: Box<Chat>,
    },
    /// Look up which of these calls the ledger has decided.
    FindDecided(Vec<PendingToolCall>),
    /// Redeem the answers of the plan. Each answered call is [`Input::Settled`], and then the answers are
    /// [`Input::Redeemed`].
    Redeem {
        plan: Box<ResumePlan>,
        chat: Box<Chat>,
    },
    /// Claim these approvals of calls that the provider executes, for the next model call of this run:
    /// [`Input::Claimed`]. The holder does not wait for it, because it has to renew its lease meanwhile.
    ClaimForProvider {
        run: RunId,
        approvals: Vec<DeferredToolResult>,
    },
    /// Revoke the pending approvals of the log with this epoch, or of a chat without a log.
    RevokePending(Option<Epoch>),
    /// Revoke the pending approvals that the newest log does not show: runs that have ended have requested
    /// them in vain. Those of the message that a live run writes stay. Has no reply.
    RevokeUnshown,
    /// Store the state. If the stored one is not as expected, all messages are written. Has no reply.
    PutSnapshot {
        epoch: Epoch,
        snapshot: StateSnapshot,
        unchanged: Option<Unchanged>,
    },
    /// Call the agent: [`Input::Agent`] and then [`Input::AgentEnded`].
    CallAgent(Box<CallAgent>),
    /// Wait a part of a lease.
    Pause,
    /// Wait for a moment that is much shorter than a lease.
    ShortPause,
}

/// A call of the agent.
#[derive(Debug, Clone)]
pub(crate) struct CallAgent {
    pub(crate) run: RunId,
    pub(crate) chat: Chat,
    pub(crate) message_id: MessageId,
    /// The approvals that this call sends to the provider.
    pub(crate) sent: Vec<DeferredToolResult>,
    /// The results since the last model call.
    pub(crate) results: Vec<DeferredToolResult>,
    /// The outcomes of closed calls that the chat does not hold: they are still being executed.
    pub(crate) not_recorded: Vec<DeferredToolResult>,
}

/// The reply to an effect.
#[derive(Debug)]
pub(crate) enum Reply {
    /// `None` if the chat has no log.
    Loaded(Option<Box<LoadedLog>>),
    /// `None` if there is no log with this epoch.
    Tail(Option<LogPage>),
    Appended(AppendResult),
    /// It is not known whether an append or a deletion was executed. It may still be.
    Unknown,
    Deleted,
    /// The outcomes of the calls that the ledger has decided or closed.
    Calls(Vec<ReceivedResult>),
    LedgerFailed,
    Revoked,
    Waited,
}

/// An input.
#[derive(Debug)]
pub(crate) enum Input {
    Reply(EffectId, Reply),
    /// The result of an answered call.
    Settled(Box<ReceivedResult>),
    /// All answered calls have their results. `false` if the ledger has failed.
    Redeemed(bool),
    /// A call that is being executed shows this.
    Progress(Box<AgentEvent>),
    /// Those of the approvals that the run has claimed. `None` if the ledger has failed.
    Claimed {
        run: RunId,
        approvals: Vec<DeferredToolResult>,
        sent: Option<Vec<DeferredToolResult>>,
    },
    Agent(AgentEvent),
    AgentEnded,
    /// The ledger has the answers, or has failed to store one of them. These calls are being executed, which the
    /// events show.
    Accepted {
        is_incomplete: bool,
        executing: Vec<(ToolCallId, AgentEvent)>,
    },
    /// The answers to these questions do not count, and the questions still wait.
    AskedAgain(Vec<ApprovalId>),
    /// Another turn may have appended entries.
    Changed,
    /// A third of a lease has passed.
    Tick,
    /// Another turn of this server is about to end the run.
    Hurry,
    /// The server shuts down. The lease passes at once.
    HandOver,
    /// A store has failed for so long that the driver gives up.
    Failed,
}
