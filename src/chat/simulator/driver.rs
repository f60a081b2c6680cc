//! [`Driver`]: a turn, and what its driver does for it.

use crate::approval::PendingToolCall;
use crate::chat::conversation::ReceivedResult;
use crate::chat::turn::machine::{ChatTurn, Effect, Input, Request};
use crate::event::AgentEvent;
use crate::id::{ApprovalId, RunId};

/// A turn with its driver.
pub(super) struct Driver {
    pub(super) number: u32,
    pub(super) server: usize,
    pub(super) turn: ChatTurn,
    pub(super) errands: Vec<Errand>,
    /// For how many steps the driver is slow.
    pub(super) rests: usize,
    /// The events that the agent still emits.
    pub(super) agent: Option<Vec<AgentEvent>>,
    pub(super) responses: u32,
    /// Whether the response says that something has failed.
    pub(super) has_failed: bool,
    pub(super) redemptions: Vec<Redemption>,
    /// The run of the last refused append, and whether the turn knows of it.
    pub(super) refused: Option<RunId>,
    pub(super) is_refused: bool,
    pub(super) ticked: u64,
    /// The number of steps before the request arrived.
    pub(super) began: u64,
    /// The reader for which this turn mends the conversation.
    pub(super) mends_for: Option<usize>,
    /// The approvals that a message of the user followed when the request arrived.
    pub(super) followed: Vec<ApprovalId>,
    pub(super) request: Request,
    /// The calls whose output the request holds.
    pub(super) outputs: Vec<String>,
    /// The run of each model call.
    pub(super) calls: Vec<RunId>,
}

impl Driver {
    /// Whether the request answers calls, and sends no message.
    pub(super) fn is_answer(&self) -> bool {
        match &self.request {
            Request::Post(request) => request.continued_message().is_some(),
            Request::Decisions { .. } => true,
            _ => false,
        }
    }
}

/// What a driver does next, in any order.
#[derive(Debug)]
pub(super) enum Errand {
    Do(Effect),
    /// Sends an answer to the ledger.
    Answer {
        approval: ApprovalId,
        is_approved: bool,
        redemption: usize,
    },
    /// Asks the ledger again for the result of a call that another turn executes.
    Await {
        approval: ApprovalId,
        is_approved: bool,
        redemption: usize,
    },
    /// The second half of an approval: the effect, then its record.
    Execute {
        approval: ApprovalId,
        redemption: usize,
    },
    /// The result of an answered call.
    Settle {
        result: Option<Box<ReceivedResult>>,
        redemption: usize,
    },
    Reply(Input),
}

/// What a server does on a task of its own. It does not stop with the turn.
#[derive(Debug)]
pub(super) enum Task {
    Execute(ApprovalId),
    Do(Effect),
}

/// Answers that a turn redeems.
#[derive(Debug)]
pub(super) struct Redemption {
    /// The calls that a new message closes.
    pub(super) open: Option<Vec<PendingToolCall>>,
    /// How many answers the ledger has not received.
    pub(super) left: usize,
    pub(super) known: Vec<ReceivedResult>,
    /// What follows for the calls that are executed.
    pub(super) executing: Vec<Errand>,
}
