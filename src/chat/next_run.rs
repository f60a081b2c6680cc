//! Of several runs that answer one message, the one that goes on: that which writes the last result
//! which the history lacks, once those that were begun before it have written theirs.

use std::time::Duration;

use tokio::time::sleep;

use super::ChatError;
use super::live::{Live, LiveRun};
use super::run::Run;
use crate::approval::{DeferredOutcome, DeferredToolResult, DeferredToolResults, OpenCall};
use crate::history::Chat;
use crate::id::{ApprovalId, ToolCallId};
use crate::message::{ToolPart, ToolState, UiMessage};

impl Run {
    /// Waits until what this message lacks is written by the runs that were begun before, if it
    /// lacks anything. It is not this run's turn if the run that asked has asked for more than it had
    /// `asked` when this one began, or if the decision came from elsewhere and the person wrote on.
    pub(super) async fn is_next(
        &mut self,
        live: &LiveRun,
        asked: &[ToolCallId],
    ) -> Result<bool, ChatError> {
        let is_written = |message: &UiMessage| {
            message.tool_parts().any(|part| {
                let (approval, id) = (part.approval_id(), &part.tool_call_id);
                self.chat.is_done_here(approval, id) == Some(false)
            })
        };
        if self.request.is_none()
            || self.chat.message(&self.message_id).is_some_and(is_written)
            || live.has_earlier_of_message()
        {
            self.wait_for_earlier(live).await?;
        }
        let asks_for_more = self.open_calls().iter().any(|call| !asked.contains(call));
        let is_its_turn = match &self.request {
            // A page that answers is answered, also where the person wrote on since, and where the
            // server does not know what it holds: in a message of its own then.
            Some(_) => self.chat.wants(&self.message_id),
            None => self.chat.messages.last().is_some_and(|last| last.id == self.message_id),
        };
        Ok(is_its_turn && !asks_for_more)
    }

    /// Waits for the runs of this chat that were begun before, and reads what they wrote.
    pub(super) async fn wait_for_earlier(&mut self, live: &LiveRun) -> Result<(), ChatError> {
        live.earlier_are_over().await;
        self.reload().await.map(drop)
    }

    /// Reads the chat anew; `false` if it was forgotten.
    async fn reload(&mut self) -> Result<bool, ChatError> {
        let kept = self.kept().await?;
        let is_there = kept.is_some();
        self.chat = kept.unwrap_or_else(|| self.chat.clone());
        Ok(is_there)
    }

    /// The chat as it is kept now.
    pub(super) async fn kept(&self) -> Result<Option<Chat>, ChatError> {
        let kept = self.chats.0.store.load(self.chat.owner.tenant(), &self.chat.id).await?;
        Ok(kept.map(|kept| kept.chat).filter(|chat| chat.owner == self.chat.owner))
    }

    /// Whether another server may hear what a provider makes of a yes, and this run is to wait for it.
    /// What the person says anew waits for nothing.
    pub(super) fn is_heard_elsewhere(&self, result: &DeferredToolResult, live: &LiveRun) -> bool {
        let is_told = result.outcome == DeferredOutcome::Forwarded;
        is_told && !self.has_question && !live.has_earlier_of_message()
    }

    /// Waits for what a provider makes of a yes that another server handed over: until the history
    /// has it, or nobody listens for it any more. What cannot be seen now is looked at again.
    pub(super) async fn heard_of(
        &mut self,
        mut result: DeferredToolResult,
        live: &LiveRun,
    ) -> Result<DeferredToolResult, ChatError> {
        let mut told = live.subscribe();
        let Some(id) = result.approval_id.clone() else { return Ok(result) };
        let approvals = self.chats.approvals().of_chat(&self.chat.owner, &self.chat.id);
        let mut failures = 0;
        loop {
            let has_result = self.chat.has_result(Some(&id), &result.tool_call_id);
            if self.chat.keeps_yes(Some(&id)) || has_result != Some(false) {
                return Ok(result);
            }
            let listens = approvals.outcomes_of(std::slice::from_ref(&id)).await;
            match &listens {
                Ok(outcomes) if matches!(outcomes[..], [(_, DeferredOutcome::Forwarded)]) => {}
                Ok(_) => {
                    result.outcome = DeferredOutcome::OutcomeUnknown;
                    return Ok(result);
                }
                Err(error) => tracing::warn!(%error, "who listens to a provider is not seen"),
            }
            tokio::select! {
                () = sleep(LOOK_AGAIN) => {}
                _ = told.wait_for(|live| *live == Live::IsToStop) => return Ok(result),
            }
            let is_there = self.reload().await;
            if let Err(error) = &is_there {
                tracing::warn!(%error, "what a provider said is not seen");
            }
            failures = match (&is_there, &listens) {
                (Ok(false), _) => return Err(ChatError::NotYours),
                (Ok(true), Ok(_)) => 0,
                _ => failures + 1,
            };
            if failures > MOST_FAILURES {
                listens?;
                is_there?;
            }
        }
    }

    /// The calls of the message that wait for the person or the client.
    pub(super) fn open_calls(&self) -> Vec<ToolCallId> {
        let parts = self.chat.message(&self.message_id).into_iter().flat_map(UiMessage::tool_parts);
        let is_left =
            |id: &ToolCallId| self.chat.left_to_client.iter().any(|call| call.tool_call_id == *id);
        let open = parts.filter(|part| {
            let is_asked = matches!(part.state, ToolState::ApprovalRequested { .. });
            is_asked || !part.is_settled() && is_left(&part.tool_call_id)
        });
        open.map(|part| part.tool_call_id.clone()).collect()
    }

    /// Whether the message holds calls that nobody has answered, or that another run here was given
    /// the answer to and is about to settle.
    pub(super) fn is_waiting(
        &self,
        chat: &Chat,
        deferred: &DeferredToolResults,
        others_run: bool,
    ) -> bool {
        let is_open = |call: &OpenCall| {
            chat.is_done_here(call.approval_id.as_ref(), &call.tool_call_id) != Some(true)
        };
        let is_answered_here = |id: &ApprovalId| {
            deferred.results().iter().any(|result| result.approval_id.as_ref() == Some(id))
        };
        let is_settled_there = |part: &ToolPart| match &part.state {
            ToolState::ApprovalRequested { approval, .. } => !is_answered_here(&approval.id),
            _ => false,
        };
        let message = chat.message(&self.message_id).filter(|_| others_run);
        deferred.pending().iter().any(is_open)
            || message.is_some_and(|message| message.tool_parts().any(is_settled_there))
    }
}

/// What became of a call. Of what its provider runs the ledger learns no outcome: it stands in the
/// history, or is still to come there.
pub(super) fn as_it_ended(
    mut result: DeferredToolResult,
    chat: &Chat,
    others_run: bool,
) -> DeferredToolResult {
    let (approval, id) = (result.approval_id.as_ref(), &result.tool_call_id);
    if result.outcome == DeferredOutcome::OutcomeUnknown
        && chat.is_providers(approval, id)
        && (others_run || chat.keeps_yes(approval) || chat.has_result(approval, id) == Some(true))
    {
        result.outcome = DeferredOutcome::Forwarded;
    }
    result
}

/// Whether the calls that were answered have their results. Of one that the history does not hold,
/// `lacks_result` says.
pub(super) fn have_results(
    chat: &Chat,
    deferred: &DeferredToolResults,
    lacks_result: impl Fn(&DeferredToolResult) -> bool,
) -> bool {
    let mut answered = deferred.results().iter().filter(|result| result.is_final);
    answered.all(|result| {
        let found = chat.is_done_here(result.approval_id.as_ref(), &result.tool_call_id);
        found.unwrap_or_else(|| !lacks_result(result))
    })
}

/// Whether an earlier request cannot have brought this result.
pub(super) fn is_news(result: &DeferredToolResult) -> bool {
    !matches!(
        result.outcome,
        DeferredOutcome::Ran { .. }
            | DeferredOutcome::Running { .. }
            | DeferredOutcome::Forwarded
            | DeferredOutcome::OutcomeUnknown
    )
}

/// How often in a row it may not be seen what another server writes: for longer than it listens.
const MOST_FAILURES: u32 = 330;

/// How often a chat is looked at that another server writes.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
