//! Reads the events of the agent, sends them to the response, and stores the message.

use std::panic::AssertUnwindSafe;

use futures_util::StreamExt;

use super::live::{Live, LiveRun};
use super::run::Run;
use crate::approval::PendingApproval;
use crate::chat::agent::Event;
use crate::chat::{AgentEventStream, Chat, ChatError, RecordedMessage, Recorder};
use crate::chunk::Chunk;
use crate::event::AgentEvent;
use crate::id::ApprovalId;
use crate::message::UiMessage;
use crate::response::{MASKED_ERROR, panic_message};

impl Run {
    /// Reads the events of the agent until they end or the run is stopped, sends them to the
    /// response, and stores the message.
    ///
    /// An approval request and the end are sent only after the message is stored, because the
    /// client may answer as soon as it has received them.
    pub(in crate::chat) async fn listen(
        &mut self,
        said: AgentEventStream,
        live: &LiveRun,
    ) -> Result<(), ChatError> {
        let mut begun = self.chat.message(&self.message_id).cloned();
        let mut recorder = match &begun {
            Some(message) => Recorder::continuing(message.clone()),
            None => Recorder::new(self.message_id.clone()),
        };
        if !self.can_request_approvals {
            recorder = recorder.without_approvals();
        }
        let mut stop = live.subscribe();
        let mut said = AssertUnwindSafe(said).catch_unwind();
        let mut asked = Vec::new();
        let last = loop {
            let stopped = async { drop(stop.wait_for(|live| *live == Live::IsToStop).await) };
            let event = tokio::select! {
                biased;
                () = stopped => Some(Ok(AgentEvent::Abort { reason: None })),
                event = said.next() => event.map(|event| {
                    event.unwrap_or_else(|panic| Err(panic_message(&*panic).into()))
                }),
            };
            match &event {
                Some(Ok(event)) => recorder.handle_event(event),
                Some(Err(_)) => recorder.handle_event(&AgentEvent::error(MASKED_ERROR)),
                None => break None,
            }
            if let Some(Ok(event)) = &event
                && let Some(ran) = self.chat.result_of_forwarded_call(event, &mut recorder)
            {
                self.chats.change(&self.chat, |chat| chat.record_result(&ran, None)).await?;
            }
            if let Some(approval_id) = event.as_ref().and_then(requested_approval) {
                if !self.can_request_approvals {
                    // The agent has requested it with approvals of its own. The message says that
                    // the call was not executed, so that must hold before the message is stored.
                    self.revoke_requests(|asked| asked.approval_id == approval_id).await?;
                }
                asked.push(approval_id);
                let recorded = recorder.snapshot();
                if !self.keep(Some(&recorded), begun.as_ref()).await? {
                    break None;
                }
                begun = Some(recorded.message);
            }
            if event.as_ref().is_some_and(is_last) {
                break event;
            }
            if let Some(event) = event {
                self.say(event).await;
            }
        };
        // Cancels what the agent still does.
        drop(said);
        let was_cut = match &last {
            Some(Ok(event)) => !matches!(event, AgentEvent::Finish { .. }),
            Some(Err(_)) => true,
            None => false,
        };
        let mut recorded = recorder.finish();
        let is_kept = self.keep(recorded.as_ref(), begun.as_ref()).await?;
        if !is_kept {
            self.keep(None, None).await?;
            recorded = None;
        }
        let parts = || recorded.iter().flat_map(|recorded| recorded.message.tool_parts());
        let is_shown = |id: &ApprovalId| parts().any(|part| part.approval_id() == Some(id));
        // A request may be in no event if the agent was cut off, and may name no message if the agent
        // has approvals of its own.
        let is_unshown = |waiting: &PendingApproval| {
            let is_of_run = waiting.record.message_id == self.message_id
                || asked.contains(&waiting.approval_id);
            is_of_run && !is_shown(&waiting.approval_id)
        };
        if (was_cut || !is_kept || !asked.iter().all(is_shown))
            && let Err(error) = self.revoke_requests(is_unshown).await
        {
            tracing::warn!(%error, "a question that nobody was shown is not taken back");
        }
        if let Some(last) = last {
            self.say(last).await;
        }
        Ok(())
    }

    /// Stores the message. `begun` is the stored message that it continues. Returns `false` if the
    /// message was discarded.
    ///
    /// Without a message, removes the pending response and returns `true`.
    async fn keep(
        &self,
        recorded: Option<&RecordedMessage>,
        begun: Option<&UiMessage>,
    ) -> Result<bool, ChatError> {
        let keep = |chat: &mut Chat| match recorded {
            Some(recorded) => chat.upsert_message(recorded.clone(), begun),
            None => {
                chat.cancel_response(&self.message_id);
                true
            }
        };
        Ok(self.chats.change(&self.chat, keep).await?.1)
    }

    /// Revokes the pending approval requests of the chat that `is_unshown` selects: the translator
    /// rejected them, or the message was cut off or discarded. Keeps those that the stored message
    /// holds.
    async fn revoke_requests(
        &self,
        is_unshown: impl Fn(&PendingApproval) -> bool,
    ) -> Result<(), ChatError> {
        let approvals = &self.chats.approvals;
        let pending = approvals.for_chat(&self.chat.owner, &self.chat.id).pending().await?;
        // Another run may have requested an approval in the same message and stored it since.
        let kept = self.kept().await?;
        let parts = || kept.iter().filter_map(|chat| chat.message(&self.message_id));
        let parts = || parts().flat_map(UiMessage::tool_parts);
        let is_kept = |id: &ApprovalId| parts().any(|part| part.approval_id() == Some(id));
        for waiting in pending {
            if is_unshown(&waiting) && !is_kept(&waiting.approval_id) {
                approvals.revoke(waiting.record.id).await?;
            }
        }
        Ok(())
    }
}

/// Returns the id of the approval that an event requests.
fn requested_approval(event: &Event) -> Option<ApprovalId> {
    match event.as_ref().ok()? {
        AgentEvent::ApprovalRequested { approval_id, .. } => Some(approval_id.clone()),
        AgentEvent::Chunk(chunk) => match &**chunk {
            Chunk::ToolApprovalRequest { approval_id, .. } => Some(ApprovalId::new(&**approval_id)),
            _ => None,
        },
        _ => None,
    }
}

/// Whether no other event can follow this one.
fn is_last(event: &Event) -> bool {
    matches!(
        event,
        Err(_)
            | Ok(AgentEvent::Finish { .. } | AgentEvent::Abort { .. } | AgentEvent::Error { .. })
    )
}
