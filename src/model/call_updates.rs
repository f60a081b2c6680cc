//! [`CallUpdates`]: what the current turn knows about open tool calls beyond the history.

use std::collections::HashMap;

use crate::approval::{ChangedInput, DeferredToolResult, DeferredToolResults, PendingToolCall};
use crate::id::{ApprovalId, ToolCallId};
use crate::message::{Role, UiMessage};

/// What the current turn knows about one open call beyond the history.
#[derive(Debug, Clone, Copy)]
pub(super) enum CallUpdate<'a> {
    /// The call has this result.
    Result(&'a DeferredToolResult),
    /// The call still waits for an approval response or a client output.
    Pending,
    /// The user sent another message instead of responding.
    Superseded,
}

impl<'a> CallUpdate<'a> {
    /// Returns both versions of the input, if the approver of the call has changed it in this turn.
    pub(super) fn changed_input(self) -> Option<&'a ChangedInput> {
        match self {
            CallUpdate::Result(result) => result.changed_input.as_ref(),
            CallUpdate::Pending | CallUpdate::Superseded => None,
        }
    }
}

/// The updates of all open calls, by position: index of the message, then index of the part.
#[derive(Debug, Default)]
pub(super) struct CallUpdates<'a>(HashMap<(usize, usize), CallUpdate<'a>>);

impl<'a> CallUpdates<'a> {
    /// Assigns each update to an open call: to the call with the approval id of the update, else to
    /// the latest call with its tool call id.
    pub(super) fn new(deferred: &'a DeferredToolResults, messages: &[&UiMessage]) -> Self {
        let open = OpenCalls::new(messages);
        let still_open = |calls: &'a [PendingToolCall], update: CallUpdate<'a>| {
            calls.iter().map(move |call| (call.approval_id.as_ref(), &call.tool_call_id, update))
        };
        let results = deferred.results().iter().map(|result| {
            (result.approval_id.as_ref(), &result.tool_call_id, CallUpdate::Result(result))
        });
        let deferred_updates = still_open(deferred.pending(), CallUpdate::Pending)
            .chain(still_open(deferred.superseded(), CallUpdate::Superseded))
            .chain(results);
        let mut updates = HashMap::new();
        let mut by_call_id_only = HashMap::new();
        for (approval_id, id, update) in deferred_updates {
            if let Some(position) =
                approval_id.and_then(|approval_id| open.by_approval_id.get(approval_id))
            {
                updates.insert(*position, update);
            } else if let Some((position, has_request)) = open.by_call_id.get(id)
                && (*has_request || !concerns_approval(approval_id, update))
            {
                by_call_id_only.insert(*position, update);
            }
        }
        for (position, update) in by_call_id_only {
            // A result from this turn takes precedence over a request that is still pending.
            if !matches!(updates.get(&position), Some(CallUpdate::Result(_))) {
                updates.insert(position, update);
            }
        }
        CallUpdates(updates)
    }

    /// Returns the update of the tool part at this position.
    pub(super) fn get(&self, message: usize, part: usize) -> Option<CallUpdate<'a>> {
        self.0.get(&(message, part)).copied()
    }
}

/// Whether an update concerns an approval response. Such an update is not applied to a call without
/// an approval request, even if the client claims a response, because that call may have run.
fn concerns_approval(approval_id: Option<&ApprovalId>, update: CallUpdate<'_>) -> bool {
    let is_rejected = matches!(update, CallUpdate::Result(result) if result.outcome.is_rejected());
    approval_id.is_some() || is_rejected
}

/// The positions of the tool calls that have no result.
#[derive(Debug, Default)]
struct OpenCalls<'m> {
    by_approval_id: HashMap<&'m ApprovalId, (usize, usize)>,
    /// The latest call of each id, and whether it has an approval request.
    by_call_id: HashMap<&'m ToolCallId, ((usize, usize), bool)>,
}

impl<'m> OpenCalls<'m> {
    fn new(messages: &[&'m UiMessage]) -> Self {
        let mut open = OpenCalls::default();
        let assistants =
            messages.iter().enumerate().filter(|(_, message)| message.role == Role::Assistant);
        for (at, message) in assistants {
            let overruled = message.overruled_tool_parts();
            for (position, part) in message.parts.iter().enumerate() {
                let part = part.as_tool().filter(|part| !part.is_settled());
                let Some(part) = part.filter(|_| overruled.binary_search(&position).is_err())
                else {
                    continue;
                };
                let approval_id = part.approval_id();
                open.by_call_id.insert(&part.tool_call_id, ((at, position), approval_id.is_some()));
                if let Some(approval_id) = approval_id {
                    open.by_approval_id.insert(approval_id, (at, position));
                }
            }
        }
        open
    }
}
