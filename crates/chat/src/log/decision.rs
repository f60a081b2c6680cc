//! What a turn knows when it decides, and what it can decide.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use super::entry::{Entry, OtherEntry};
use super::state::{ChatState, Live};
use crate::conversation::{
    HistoryImport, Messages, PostedHistory, ReceivedResult, RequestConflict,
};
use crate::store::{Epoch, Expected, LogHead};
use crate::{ChatLimitError, ChatLimits};
use ui_message_stream::approval::{PendingToolCall, Principal, ResumePlan};
use ui_message_stream::id::{ChatId, MessageId, RunId};
use ui_message_stream::message::UiMessage;
use ui_message_stream::request::ChatRequest;

/// What a request wants.
#[derive(Debug, Clone)]
pub(crate) enum Goal {
    /// Answer a new message, an edit or a regeneration.
    Ask(Arc<ChatRequest>),
    /// Settle calls of this message that a user or a client has answered.
    Answer {
        message_id: MessageId,
        plan: Box<ResumePlan>,
        /// The request that has posted the answers.
        posted: Option<Arc<ChatRequest>>,
    },
    Stop,
    Delete,
    Follow,
    /// A reader, or a load of the chat, has seen that the lease of this run has passed.
    Mend(RunId),
    /// The ledger knows the outcome of a call that the chat holds as open: its request has just expired, or a
    /// load of the chat has seen it.
    Settle {
        has_expired: bool,
    },
    /// The lease of this run has passed long ago: the run is ended, and not resumed.
    Expire(RunId),
}

impl Goal {
    /// The goal of a posted request.
    pub(crate) fn of(request: Arc<ChatRequest>) -> Self {
        match request.continued_message().map(|message| message.id.clone()) {
            Some(message_id) => {
                let plan = Box::new(plan_of(&request));
                Goal::Answer { message_id, plan, posted: Some(request) }
            }
            None => Goal::Ask(request),
        }
    }
}

/// The open calls in a request, with the inputs that its user has changed.
pub(crate) fn plan_of(request: &ChatRequest) -> ResumePlan {
    let plan = ResumePlan::new(request.messages(), request.continued_message());
    plan.with_changed_inputs(request.approval_inputs())
}

/// The settings of a turn, and the ids that it may use.
#[derive(Debug, Clone)]
pub(crate) struct TurnSettings {
    pub(crate) owner: Principal,
    pub(crate) chat_id: ChatId,
    pub(crate) posted_history: PostedHistory,
    pub(crate) history_import: HistoryImport,
    pub(crate) limits: ChatLimits,
    /// The lease of a run.
    pub(crate) lease: Duration,
    /// How long frames may wait for an append.
    pub(crate) append_interval: Duration,
    /// The id of the message, if the turn begins one.
    pub(crate) message_id: MessageId,
    /// The id of the first run of the turn. It is random. The ids of further runs begin with it.
    pub(crate) run_id: RunId,
    /// The epoch of the log, if the turn creates one. It is random.
    pub(crate) epoch: Epoch,
}

/// The chat as far as a turn has read it.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) state: ChatState,
    pub(crate) head: LogHead,
    /// The position and the messages of the stored state, as far as it is known.
    pub(crate) stored: Option<(u64, Messages)>,
}

impl View {
    /// The bytes of the chat.
    pub(crate) fn bytes(&self) -> usize {
        self.state.chat().bytes()
    }
}

/// What a turn has learned and begun, beside the chat.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) settings: TurnSettings,
    /// How often the turn has tried to begin a run. Each attempt has another id.
    pub(crate) attempts: u32,
    /// The turn has begun a run.
    pub(crate) has_begun: bool,
    /// The turn may resume a lost run.
    pub(crate) may_resume: bool,
    /// How often the store has refused a run, because the user has too many.
    pub(crate) refused_runs: u8,
    pub(crate) known: Option<KnownCalls>,
    pub(crate) redemption: Redemption,
    /// Results that this turn has redeemed, and that the chat may lack.
    pub(crate) outbox: Vec<ReceivedResult>,
    /// How often in a row the lease of the live run was found passed.
    pub(crate) lost_reads: u8,
    /// How often the turn has waited for the holder of a run.
    pub(crate) waits: u32,
    /// The log that the turn has found first. A deletion deletes no other.
    pub(crate) epoch: Option<Epoch>,
    /// The run that was live when the turn read the log first. A stop ends no other.
    pub(crate) found_live: Option<Option<RunId>>,
    /// The pending approvals were revoked when the chat had this version, or no log.
    pub(crate) revoked: Option<Option<(Epoch, u64)>>,
}

/// What the ledger has said about open calls.
#[derive(Debug)]
pub(crate) struct KnownCalls {
    pub(crate) asked: Vec<PendingToolCall>,
    /// The calls were closed, because of a message of the user.
    pub(crate) are_closed: bool,
    pub(crate) results: Vec<ReceivedResult>,
    pub(crate) has_failed: bool,
}

/// What has become of the answers of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Redemption {
    /// The request has none.
    None,
    Due,
    /// The ledger stores them.
    Storing,
    /// They are stored, and approved calls are executed.
    Executing,
    Done,
    Failed,
}

/// What a turn does next.
#[derive(Debug)]
pub(crate) enum Decision {
    /// Load the chat with its frames.
    LoadWhole,
    /// Close these calls, because of a new message of the user, with the answers that came with it.
    /// Those in `removed` are closed in any case, because their message is removed.
    CloseCalls {
        open: Vec<PendingToolCall>,
        removed: Vec<PendingToolCall>,
        plan: Box<ResumePlan>,
    },
    /// Look up which of these calls the ledger has decided.
    FindDecided(Vec<PendingToolCall>),
    Append(Append),
    Redeem,
    /// The answers are being redeemed.
    AwaitResults,
    /// The run gets its first entry in a moment.
    WaitForEntry,
    /// The holder gets a moment to renew the lease that has just passed.
    WaitForHolder,
    RevokePending,
    Delete {
        epoch: Epoch,
        control: u64,
    },
    Done(Response),
}

/// An append.
#[derive(Debug, Clone)]
pub(crate) struct Append {
    pub(crate) expected: Expected,
    /// The turn keeps them until the store has replied.
    pub(crate) entries: Arc<[Entry]>,
    /// The lease that the live run gets.
    pub(crate) lease: Option<Duration>,
    pub(crate) only_lost: bool,
    /// The title of the chat, and whether it has questions, after an append with a control entry.
    pub(crate) listed: Option<(String, bool)>,
}

/// The place in the source that refuses a request, for the log.
pub(crate) type Site = &'static Location<'static>;

/// The response to the client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Response {
    /// The response reads the run that begins at this position. A client that does not hold the message
    /// that the run continues reads it first, as it was `begun`.
    Join {
        epoch: Epoch,
        run: RunId,
        message_id: MessageId,
        begin: u64,
        begun: Option<Arc<UiMessage>>,
        /// The position up to which `begun` has the results of its calls.
        length: u64,
    },
    /// The response is this stored message.
    Stored(MessageId),
    /// There is nothing to send.
    Nothing,
    /// The request was received before, and there is no response to it.
    AlreadyReceived(Site),
    Refused(RequestConflict, Site),
    /// The request answers calls that the chat does not hold.
    UnknownCalls(Site),
    TooManyRuns,
    Limit(ChatLimitError),
    /// The ledger has failed.
    Failed,
    /// The server shuts down before the ledger has the answers.
    ShuttingDown,
}

impl Append {
    /// Creates an append that leaves the lease as it is.
    pub(crate) fn new(expected: Expected, entries: Vec<Entry>) -> Self {
        Append { expected, entries: entries.into(), lease: None, only_lost: false, listed: None }
    }
}

impl View {
    pub(crate) fn position(&self) -> Expected {
        Expected::Position { epoch: self.head.epoch, position: self.state.length() }
    }

    /// Returns the response that reads the live run.
    pub(crate) fn joined(&self, live: &Live) -> Response {
        Response::Join {
            epoch: self.head.epoch,
            run: live.run.clone(),
            message_id: live.message_id.clone(),
            begin: live.begin,
            begun: self.state.begun_message(),
            length: self.state.length(),
        }
    }

    pub(crate) fn control(&self) -> Expected {
        Expected::Control { epoch: self.head.epoch, control: self.head.control }
    }
}

impl Memory {
    /// Returns the id of the next run.
    pub(crate) fn run(&self) -> RunId {
        let first = &self.settings.run_id;
        match self.attempts {
            0 => first.clone(),
            number => format!("{first}-{number}").into(),
        }
    }

    /// Whether this turn has begun the run, or has tried to.
    pub(crate) fn is_own(&self, run: &RunId) -> bool {
        let rest = run.strip_prefix(self.settings.run_id.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    /// Returns what the ledger has said, if it was asked about all these calls.
    pub(crate) fn known_of(&self, open: &[PendingToolCall]) -> Option<&KnownCalls> {
        const NONE: &KnownCalls = &KnownCalls::NONE;
        let known = self.known.as_ref();
        let known = known.filter(|known| open.iter().all(|call| known.asked.contains(call)));
        known.or(open.is_empty().then_some(NONE))
    }

    pub(crate) fn begin(&self, message_id: &MessageId) -> Entry {
        OtherEntry::Begin { run: self.run(), message_id: message_id.clone() }.into()
    }

    /// Whether the store has refused a run, and not only because another turn of the same request had
    /// begun one.
    pub(crate) fn has_no_place(&self) -> bool {
        self.refused_runs > 1
    }

    pub(crate) fn append(&self, expected: Expected, entries: Vec<Entry>) -> Decision {
        let begins =
            entries.iter().any(|entry| matches!(entry.other(), Some(OtherEntry::Begin { .. })));
        let lease = begins.then_some(self.settings.lease);
        Decision::Append(Append { lease, ..Append::new(expected, entries) })
    }
}

impl KnownCalls {
    pub(crate) const NONE: Self =
        KnownCalls { asked: Vec::new(), are_closed: true, results: Vec::new(), has_failed: false };
}
