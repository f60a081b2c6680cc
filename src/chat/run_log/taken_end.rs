//! [`TakenEnd`]: how the message of a run ends whose holder is gone.

use super::record::RunRecord;
use crate::chat::conversation::Chat;
use crate::message::{Part, Role, UiMessage};

/// How the message of a log ends whose holder is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TakenEnd {
    /// The user has stopped the run, or has sent another message.
    Aborted,
    /// The run was lost, and its message is complete, or waits for an answer.
    Complete,
    /// The run was lost in a step.
    Interrupted,
    /// The run was lost between two steps, and another run resumes it.
    Resumed,
}

impl TakenEnd {
    /// Returns how the message of a lost run ends: it is resumed if every call has its result and the
    /// log does not break off in a step.
    ///
    /// `chat` is the conversation that names the run. `is_shortened` says that the store has lost
    /// entries of the log that the conversation holds.
    pub(crate) fn of_lost(record: &RunRecord, chat: &Chat, is_shortened: bool) -> Self {
        let mut next = record.keep_in(chat);
        next.end_live_run();
        let id = record.message_id();
        let is_unread = next.message_to_continue() == Some(id);
        let has_ended = record.end_of_call();
        let has_written = |message: &UiMessage| message.parts.len() > record.begun_parts();
        match next.message(id) {
            _ if has_ended == Some(true) => TakenEnd::Complete,
            _ if is_shortened || record.breaks_off() => TakenEnd::Interrupted,
            Some(_) if is_unread => TakenEnd::Resumed,
            _ if has_ended.is_some() => TakenEnd::Complete,
            None if next.ends_with(Role::User) => TakenEnd::Resumed,
            None => TakenEnd::Complete,
            Some(message) if has_written(message) && next.has_open_calls(message) => {
                TakenEnd::Complete
            }
            // Also if the run was begun by answers that were not redeemed: the client has to send them
            // again.
            Some(message) if message.tool_parts().any(|part| !part.is_settled()) => {
                TakenEnd::Interrupted
            }
            Some(message) if ends_with_calls(message) => TakenEnd::Resumed,
            Some(_) => TakenEnd::Complete,
        }
    }
}

/// Returns whether the last step of a message has calls, whose results the model has not read.
fn ends_with_calls(message: &UiMessage) -> bool {
    let mut last_step = message.parts.iter().rev();
    let mut last_step =
        last_step.by_ref().take_while(|part| !matches!(part, Part::StepStart { .. }));
    last_step.any(|part| matches!(part, Part::Tool(_)))
}
