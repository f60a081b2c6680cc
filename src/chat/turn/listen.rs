//! Reads the events of the agent, sends them to the response, and stores the message.

use std::panic::AssertUnwindSafe;

use futures_util::StreamExt;

use super::live::{Live, LiveRun};
use super::run::Run;
use crate::chat::agent::Event;
use crate::chat::{AgentEventStream, Chat, ChatError, RecordedMessage, Recorder};
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
            // The stored message then lacks the approval request of an agent that has requested one
            // by itself. It is revoked below, before the client is told that the call was not
            // executed.
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
            if let Some(Ok(AgentEvent::ApprovalRequested { approval_id, .. })) = &event {
                asked.push(approval_id.clone());
                let recorded = recorder.snapshot();
                if !self.keep(Some(&recorded), begun.as_ref()).await? {
                    break None;
                }
                begun = Some(recorded.message);
                if !self.can_request_approvals {
                    self.revoke_unshown_requests(|_| false).await?;
                }
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
        // If the agent was cut off, it may have issued approval requests that are in no event.
        if (was_cut || !is_kept || !asked.iter().all(is_shown))
            && let Err(error) = self.revoke_unshown_requests(is_shown).await
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

    /// Revokes the pending approval requests of this message that are neither shown nor stored: the
    /// translator rejected them, or the message was cut off or discarded.
    async fn revoke_unshown_requests(
        &self,
        is_shown: impl Fn(&ApprovalId) -> bool,
    ) -> Result<(), ChatError> {
        let approvals = &self.chats.approvals;
        let pending = approvals.for_chat(&self.chat.owner, &self.chat.id).pending().await?;
        // Another run may have requested an approval in the same message and stored it since.
        let kept = self.kept().await?;
        let parts = || kept.iter().filter_map(|chat| chat.message(&self.message_id));
        let parts = || parts().flat_map(UiMessage::tool_parts);
        let is_kept = |id: &ApprovalId| parts().any(|part| part.approval_id() == Some(id));
        for waiting in pending {
            let id = &waiting.approval_id;
            if waiting.record.message_id == self.message_id && !is_shown(id) && !is_kept(id) {
                approvals.revoke(waiting.record.id).await?;
            }
        }
        Ok(())
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
