//! The inputs and outputs of a turn.

use std::sync::Arc;

use crate::approval::{DeferredToolResult, PendingToolCall, ResumePlan};
use crate::chat::conversation::{Chat, ReceivedResult, RequestConflict};
use crate::chat::log::{AppendResult, BeginResult, Fence, LogEntry, TakeCondition, TakeResult};
use crate::event::AgentEvent;
use crate::id::{ApprovalId, MessageId, RunId, ToolCallId};
use crate::limits::ChatLimitError;
use crate::message::UiMessage;
use crate::request::ChatRequest;
use crate::translator::TranslateError;

/// A request to a conversation.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    /// A posted request: a new message, an edit, a regeneration, or answers.
    Post(Arc<ChatRequest>),
    /// Answers that did not come in a chat request, to calls of this message.
    Decisions { message_id: MessageId, plan: Box<ResumePlan> },
    /// Stop the run that is live now.
    Stop,
    /// Delete the conversation with its live run and its open approval requests.
    Delete,
    /// Read the live run.
    Follow,
    /// Store what this run has written, and end it, because its lease has passed.
    Mend { run: RunId, fence: Fence },
}

/// What the driver must do next.
#[derive(Debug)]
pub(crate) enum Action {
    /// Start this effect without waiting for it. Its inputs go to
    /// [`ChatTurn::handle`](super::ChatTurn::handle).
    Start(Effect),
    /// Perform this effect on a task of its own. It produces no input, and the turn may end before it.
    Spawn(Effect),
    /// Send this response to the client. It comes at most once.
    Respond(Response),
    /// Drop the stream of the agent.
    StopAgent,
    /// The run of this turn has ended, or was taken. The turn may go on.
    LeaveRun,
    /// Log that an event of the agent had no valid translation.
    Report(TranslateError),
    /// Log that the run ends because of this limit. It comes at most once.
    ReportLimit(RunId, RunLimit),
    /// Wait for an input.
    Wait,
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
#[derive(Debug)]
pub(crate) enum Effect {
    /// Load the conversation. Produces [`Input::Loaded`].
    Load,
    /// Save the conversation if it still has this revision. Its first messages, up to `unchanged`,
    /// are those of this revision. Produces [`Input::Saved`]. One that the user begins is not saved if
    /// the user has too many: then it produces [`Input::TooManyChats`].
    ///
    /// Before that, if it has, revoke the approval requests of the message `ended` that this version of
    /// the conversation does not show: its run was cut off and may have requested them in vain.
    Save {
        chat: Box<Chat>,
        unchanged: usize,
        revision: Option<u64>,
        is_begun: bool,
        ended: Option<EndedMessage>,
    },
    /// Revoke all pending approval requests of the conversation, if it still has this revision, or if
    /// there still is none. Produces [`Input::Revoked`] in any case.
    RevokePending(Option<u64>),
    /// Delete the conversation if it still has this revision. Produces [`Input::Deleted`].
    Delete(u64),
    /// Revoke those approval requests of a run that was taken which the conversation does not show.
    RevokeUnshown(EndedMessage),
    /// Redeem the answers of the plan: deny, execute, or grant to a provider. Produces
    /// [`Input::CallSettled`] for each answered call, perhaps [`Input::CallsExecuting`], and then
    /// [`Input::Redeemed`].
    Redeem { plan: Box<ResumePlan>, chat: Box<Chat> },
    /// Close the open calls of this conversation, because of a new message of the user, and redeem
    /// the answers that came with it. Calls on which others decide stay open. Produces
    /// [`Input::CallsClosed`], then [`Input::CallSettled`] for each call that is executed now, and
    /// then [`Input::Redeemed`].
    CloseOpenCalls { open: Vec<PendingToolCall>, plan: Box<ResumePlan>, chat: Box<Chat> },
    /// Look up which of these open calls the ledger has decided. Produces [`Input::CallsClosed`].
    FindDecided(Vec<PendingToolCall>),
    /// Claim these approvals for the next model call of this run. Produces [`Input::Claimed`].
    Claim { run: RunId, approvals: Vec<DeferredToolResult> },
    /// Begin a log. Produces [`Input::Begun`].
    Begin(RunId),
    /// Append to a log. Produces [`Input::Appended`].
    Append { run: RunId, fence: Fence, position: u64, entries: Arc<[LogEntry]>, end: bool },
    /// Take a run. If `waits` is set, its holder gets the time to renew its lease first. Produces
    /// [`Input::Taken`].
    Take { run: RunId, fence: Fence, condition: TakeCondition, waits: bool },
    /// Read a whole log. Produces [`Input::Log`].
    Read(RunId),
    /// Call the agent. Produces [`Input::Agent`] and then [`Input::AgentEnded`].
    CallAgent(Box<AgentCall>),
}

/// A message whose run ends.
#[derive(Debug, Clone)]
pub(crate) struct EndedMessage {
    pub(crate) id: MessageId,
    /// The approvals that the agent has requested in this run, as far as the turn knows. Their
    /// records may name another message, or none.
    pub(crate) requested: Vec<ApprovalId>,
}

/// A call of the agent.
#[derive(Debug)]
pub(crate) struct AgentCall {
    pub(crate) chat: Chat,
    pub(crate) message_id: MessageId,
    /// The approvals that this call sends to the provider. No other call sends them.
    pub(crate) sent: Vec<DeferredToolResult>,
    /// The results that the conversation does not hold: of calls that are still executing, and of
    /// answers that were not accepted.
    pub(crate) not_recorded: Vec<DeferredToolResult>,
    /// The results since the last model call that the conversation holds.
    pub(crate) recorded: Vec<DeferredToolResult>,
}

/// A result of an effect, or a hint.
#[derive(Debug)]
pub(crate) enum Input {
    /// The conversation and its revision. `None` if the store does not hold it.
    Loaded(Option<(Box<Chat>, u64)>),
    /// Whether the conversation was saved. If not, it has another revision.
    Saved(bool),
    /// It is not known whether the conversation was saved.
    SaveUnknown,
    /// The conversation is new, and its owner has too many. It was not saved.
    TooManyChats,
    Revoked,
    /// Whether the conversation was deleted. If not, it has another revision, or does not exist.
    Deleted(bool),
    CallSettled(Box<ReceivedResult>),
    /// The approved calls that are being executed, with the data that shows that they are approved. Only
    /// a run that the answers have begun writes it.
    CallsExecuting(Vec<(ToolCallId, AgentEvent)>),
    Redeemed,
    /// The answers could not be redeemed.
    NotRedeemed,
    /// The outcomes of those calls that are closed now, and of those that are executing.
    CallsClosed(Vec<ReceivedResult>),
    /// The open calls could not be closed, and the model must not be called.
    CallsNotClosed,
    /// Those of the approvals that the run has claimed.
    Claimed(Vec<DeferredToolResult>),
    /// The ledger has failed for so long that the approvals are not sent.
    NotClaimed,
    Begun(BeginResult),
    Appended(AppendResult),
    Taken(TakeResult),
    /// The entries of the log. `None` if there is no such run.
    Log(Option<Vec<LogEntry>>),
    Agent(AgentEvent),
    AgentEnded,
    /// A hint: another turn has changed the conversation.
    ChatChanged,
    /// A third of a lease has passed.
    Tick,
    /// A store or the ledger has failed for so long that the driver gives up.
    Failed,
}

/// The response to the client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Response {
    /// The response reads the log of this run, which writes the message.
    ///
    /// If the run continues a stored message, this is `begun`. A client that does not hold it reads
    /// it first. `shown` are the results of the answers of this request that the log may not hold.
    Join {
        run: RunId,
        message_id: MessageId,
        begun: Option<Arc<UiMessage>>,
        shown: Vec<ReceivedResult>,
    },
    /// The response is this stored message. `shown` are the results of the answers of this request.
    Stored { message_id: MessageId, shown: Vec<ReceivedResult> },
    /// There is nothing to send.
    Nothing,
    /// The request was received before, and there is no response to it.
    AlreadyReceived,
    /// The request does not fit the conversation.
    Refused(RequestConflict),
    /// The user has too many live runs.
    TooManyRuns,
    /// The new message does not fit into the conversation.
    Limit(ChatLimitError),
    /// A store or the ledger has failed.
    Failed,
}
