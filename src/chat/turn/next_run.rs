//! Selects the run that calls the model, among several runs that answer the calls of one message.
//!
//! It is the run that records the last missing result in the history, after the runs that started
//! before it have recorded theirs.

use std::time::Duration;

use tokio::time::sleep;

use super::live::{Live, LiveRun};
use super::run::Run;
use crate::approval::{DeferredOutcome, DeferredToolResult, DeferredToolResults, PendingToolCall};
use crate::chat::{Chat, ChatError};
use crate::id::{ApprovalId, ToolCallId};
use crate::message::{ToolPart, ToolState, UiMessage};

impl Run {
    /// Returns whether this run is the one that calls the model.
    ///
    /// If the message may lack results, first waits until the runs that started before this one
    /// have ended. Returns `false` if the message has open calls by then that are not in `asked`,
    /// the open calls at the start of this run. For a request, returns `false` if the conversation
    /// does not expect the message any more. For a decision that did not come in a chat request,
    /// returns `false` if the message is not the last one, because the user has sent another
    /// message.
    pub(in crate::chat) async fn is_next(
        &mut self,
        live: &LiveRun,
        asked: &[ToolCallId],
    ) -> Result<bool, ChatError> {
        let is_written = |message: &UiMessage| {
            message.tool_parts().any(|part| {
                let (approval, id) = (part.approval_id(), &part.tool_call_id);
                self.chat.is_resolved(approval, id) == Some(false)
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
            // A page that posts an answer gets a response, even if the user has sent another
            // message since. If the server does not have the message that the page holds, the
            // response is a message of its own.
            Some(_) => self.chat.expects(&self.message_id),
            None => self.chat.messages.last().is_some_and(|last| last.id == self.message_id),
        };
        Ok(is_its_turn && !asks_for_more)
    }

    /// Waits until the runs of this chat that started before this one have ended, and loads the
    /// chat again.
    pub(in crate::chat) async fn wait_for_earlier(
        &mut self,
        live: &LiveRun,
    ) -> Result<(), ChatError> {
        live.earlier_are_over().await;
        self.reload().await.map(drop)
    }

    /// Loads the chat again. Returns `false` and keeps the old version if the store has removed it.
    async fn reload(&mut self) -> Result<bool, ChatError> {
        let kept = self.kept().await?;
        let is_there = kept.is_some();
        self.chat = kept.unwrap_or_else(|| self.chat.clone());
        Ok(is_there)
    }

    /// Loads the stored chat. Returns `None` if the store has removed it.
    pub(in crate::chat) async fn kept(&self) -> Result<Option<Chat>, ChatError> {
        let kept = self.chats.load(&self.chat.owner, &self.chat.id).await?;
        Ok(kept.map(|kept| kept.chat))
    }

    /// Returns whether another server may receive the result of this provider-executed call, so
    /// that this run has to wait for it. A run that answers a new message of the user waits for no
    /// result.
    pub(in crate::chat) fn is_heard_elsewhere(
        &self,
        result: &DeferredToolResult,
        live: &LiveRun,
    ) -> bool {
        let is_told = result.outcome == DeferredOutcome::ForwardedToProvider;
        is_told && !self.has_question && !live.has_earlier_of_message()
    }

    /// Waits for the result of a provider-executed call whose approval another server sent to the
    /// provider.
    ///
    /// Waits until the history holds the result, until no server receives it any more, or until
    /// this run is stopped. If the stores cannot be read, tries again every 2 seconds, and fails
    /// after [`MOST_FAILURES`] failures in a row.
    pub(in crate::chat) async fn heard_of(
        &mut self,
        mut result: DeferredToolResult,
        live: &LiveRun,
    ) -> Result<DeferredToolResult, ChatError> {
        let mut told = live.subscribe();
        let Some(id) = result.approval_id.clone() else { return Ok(result) };
        let approvals = self.chats.approvals.for_chat(&self.chat.owner, &self.chat.id);
        let mut failures = 0;
        loop {
            let has_result = self.chat.has_result(Some(&id), &result.tool_call_id);
            if self.chat.has_unsent_approval(Some(&id)) || has_result != Some(false) {
                return Ok(result);
            }
            let listens = approvals.outcomes(std::slice::from_ref(&id)).await;
            match &listens {
                Ok(outcomes)
                    if matches!(outcomes[..], [(_, DeferredOutcome::ForwardedToProvider)]) => {}
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
                (Ok(false), _) => return Err(ChatError::NotFound),
                (Ok(true), Ok(_)) => 0,
                _ => failures + 1,
            };
            if failures > MOST_FAILURES {
                listens?;
                is_there?;
            }
        }
    }

    /// Returns the calls of the message that wait for the user or the client.
    pub(in crate::chat) fn open_calls(&self) -> Vec<ToolCallId> {
        let parts = self.chat.message(&self.message_id).into_iter().flat_map(UiMessage::tool_parts);
        let is_left =
            |id: &ToolCallId| self.chat.client_executed.iter().any(|call| call.tool_call_id == *id);
        let open = parts.filter(|part| {
            let is_asked = matches!(part.state, ToolState::ApprovalRequested { .. });
            is_asked || !part.is_settled() && is_left(&part.tool_call_id)
        });
        open.map(|part| part.tool_call_id.clone()).collect()
    }

    /// Returns whether the message holds calls that have no answer, or calls whose answer another
    /// run of this process has received and is about to record.
    pub(in crate::chat) fn is_waiting(
        &self,
        chat: &Chat,
        deferred: &DeferredToolResults,
        others_run: bool,
    ) -> bool {
        let is_open = |call: &PendingToolCall| {
            chat.is_resolved(call.approval_id.as_ref(), &call.tool_call_id) != Some(true)
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

/// Returns the result with the correct outcome of a provider-executed call.
///
/// The ledger never has the outcome of such a call and reports it as unknown. If the outcome is in
/// the history, or will be recorded there, returns it as sent to the provider.
pub(in crate::chat) fn as_it_ended(
    mut result: DeferredToolResult,
    chat: &Chat,
    others_run: bool,
) -> DeferredToolResult {
    let (approval, id) = (result.approval_id.as_ref(), &result.tool_call_id);
    if result.outcome == DeferredOutcome::OutcomeUnknown
        && chat.is_provider_executed(approval, id)
        && (others_run
            || chat.has_unsent_approval(approval)
            || chat.has_result(approval, id) == Some(true))
    {
        result.outcome = DeferredOutcome::ForwardedToProvider;
    }
    result
}

/// Whether the answered calls have their results. For a call that the history does not hold,
/// `lacks_result` decides.
pub(in crate::chat) fn have_results(
    chat: &Chat,
    deferred: &DeferredToolResults,
    lacks_result: impl Fn(&DeferredToolResult) -> bool,
) -> bool {
    let mut answered = deferred.results().iter().filter(|result| result.is_final);
    answered.all(|result| {
        let found = chat.is_resolved(result.approval_id.as_ref(), &result.tool_call_id);
        found.unwrap_or_else(|| !lacks_result(result))
    })
}

/// Whether this result is new, so that no earlier request can have caused it.
pub(in crate::chat) fn is_news(result: &DeferredToolResult) -> bool {
    !matches!(
        result.outcome,
        DeferredOutcome::Executed { .. }
            | DeferredOutcome::Executing { .. }
            | DeferredOutcome::ForwardedToProvider
            | DeferredOutcome::OutcomeUnknown
    )
}

/// The maximum number of failures in a row to read what another server writes. These take longer
/// than the time for which that server receives the result.
const MOST_FAILURES: u32 = 330;

/// The interval at which a chat is loaded that another server writes.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
