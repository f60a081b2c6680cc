//! The response to a repeated request: the stored result of the first one.

use super::run::{Run, is_content, is_step_start};
use crate::approval::{DeferredOutcome, DeferredToolResult};
use crate::chat::{Chat, ChatError};
use crate::event::AgentEvent;
use crate::message::{Role, UiMessage};
use crate::reducer::compact;

impl Run {
    /// Answers a repeated request with the stored result of the first one.
    ///
    /// Waits until the runs of the conversation have ended. Then emits the results of the calls in
    /// `settled` whose approvals were sent to their provider, and the parts of the message that the
    /// client does not hold.
    pub(in crate::chat) async fn replay(
        &mut self,
        settled: &[DeferredToolResult],
    ) -> Result<(), ChatError> {
        self.chats.live.are_over(&self.chat.owner, &self.chat.id).await;
        let Some(chat) = self.kept().await? else { return Ok(()) };
        // The result of a provider-executed call comes from the run that sent the approval to the
        // provider. The ledger does not hold it.
        let told = settled.iter().filter(|result| {
            let by_provider = matches!(
                result.outcome,
                DeferredOutcome::ForwardedToProvider
                    | DeferredOutcome::ForwardToProvider { approved: true, .. }
            );
            result.is_final && by_provider
        });
        for said in told.filter_map(|result| chat.result_event(result)) {
            self.say(Ok(said)).await;
        }
        let rest = self.rest_of(&chat);
        self.say_rest(rest).await;
        Ok(())
    }

    /// Emits the parts of the message that the client does not hold.
    pub(in crate::chat) async fn say_rest(&mut self, rest: Option<UiMessage>) {
        let rest = match self.can_request_approvals {
            true => rest,
            // Another page shows the request, and may still approve the call.
            false => rest.map(UiMessage::without_open_approvals),
        };
        for chunk in rest.and_then(|rest| compact(&rest).ok()).unwrap_or_default() {
            self.say(Ok(AgentEvent::Chunk(Box::new(chunk)))).await;
        }
    }

    /// Returns a message of the parts that the client does not hold, with the step start before
    /// them. Returns `None` if the client holds them all, or if the conversation does not hold the
    /// message.
    pub(in crate::chat) fn rest_of(&self, chat: &Chat) -> Option<UiMessage> {
        let parts = &chat.message(&self.message_id)?.parts;
        let mut content = parts.iter().enumerate().filter(|(_, part)| is_content(part));
        let (lacking, _) = content.nth(self.shown)?;
        let with_its_step = lacking.checked_sub(1).filter(|&at| is_step_start(&parts[at]));
        let rest = parts[with_its_step.unwrap_or(lacking)..].to_vec();
        let rest = UiMessage::new(self.message_id.clone(), Role::Assistant, rest);
        Some(rest.without_model_ids().unwrap_or(rest))
    }
}
