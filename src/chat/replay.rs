//! The answer to a request that was answered before: what came of it then.

use super::ChatError;
use super::run::Run;
use crate::approval::{DeferredOutcome, DeferredToolResult};
use crate::event::AgentEvent;
use crate::history::Chat;
use crate::message::{Part, Role, UiMessage};
use crate::reducer::compact;

impl Run {
    /// Answers a request that was answered before with what came of it then.
    pub(super) async fn replay(&mut self, settled: &[DeferredToolResult]) -> Result<(), ChatError> {
        self.chats.0.live.are_over(self.chat.owner.tenant(), &self.chat.id).await;
        let Some(chat) = self.kept().await? else { return Ok(()) };
        // What the provider made of a yes came with the run that told it, not with the ledger.
        let told = settled.iter().filter(|result| {
            let by_provider = matches!(
                result.outcome,
                DeferredOutcome::Forwarded | DeferredOutcome::ForProvider { approved: true, .. }
            );
            result.is_final && by_provider
        });
        for said in told.filter_map(|result| chat.said_of(result)) {
            self.say(Ok(said)).await;
        }
        let rest = self.rest_of(&chat);
        self.say_rest(rest).await;
        Ok(())
    }

    /// Says what the client does not hold.
    pub(super) async fn say_rest(&mut self, rest: Option<UiMessage>) {
        for chunk in rest.and_then(|rest| compact(&rest).ok()).unwrap_or_default() {
            self.say(Ok(AgentEvent::Chunk(Box::new(chunk)))).await;
        }
    }

    /// What of the message the client does not hold, if it lacks something.
    pub(super) fn rest_of(&self, chat: &Chat) -> Option<UiMessage> {
        let parts = &chat.message(&self.message_id)?.parts;
        let mut content = parts.iter().enumerate().filter(|(_, part)| is_content(part));
        let (lacking, _) = content.nth(self.shown)?;
        let with_its_step = lacking.checked_sub(1).filter(|&at| is_step_start(&parts[at]));
        let rest = parts[with_its_step.unwrap_or(lacking)..].to_vec();
        Some(UiMessage::new(self.message_id.clone(), Role::Assistant, rest))
    }
}

/// Whether a part says something. What only ends a response, the client holds and the server may
/// not.
pub(super) fn is_content(part: &Part) -> bool {
    match part {
        Part::Data(data) => &*data.name != "run-end",
        part => !is_step_start(part),
    }
}

fn is_step_start(part: &Part) -> bool {
    matches!(part, Part::StepStart { .. })
}
