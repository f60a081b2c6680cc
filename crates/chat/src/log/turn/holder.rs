//! What a turn does as the holder of a run: it redeems answers, calls the model, and appends what it writes.

use std::time::Duration;

use super::super::decision::{Append, Redemption, Response};
use super::super::entry::{OtherEntry, RunEnd};
use super::super::turn_io::{Action, CallAgent, Effect, RunLimit};
use super::super::writer::{EntryWriter, accepted};
use super::hold::{Hold, Phase};
use super::{LogTurn, state_after};
use crate::store::EntryKind;
use ui_message_stream::UserText;
use ui_message_stream::approval::DeferredToolResult;
use ui_message_stream::chunk::{Chunk, FinishReason};
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::{RunId, ToolCallId};
use ui_message_stream::message::ToolPart;

impl LogTurn {
    /// Handles an event of the agent.
    pub(super) fn handle_event(&mut self, event: &AgentEvent) {
        if ends_call(event) {
            self.actions.push_back(Action::StopAgent);
            return self.end_call(Some(event));
        }
        let (Some(hold), Some(view)) = (&mut self.hold, &mut self.view) else { return };
        if let (Phase::Agent, Some(writer)) = (hold.phase, &mut hold.writer) {
            writer.event(event, &mut view.state, &mut hold.queue);
            for dropped in writer.take_dropped() {
                self.actions.push_back(Action::Report(dropped));
            }
        }
    }

    pub(super) fn end_call(&mut self, event: Option<&AgentEvent>) {
        let (Some(hold), Some(view)) = (&mut self.hold, &mut self.view) else { return };
        if let (Phase::Agent, Some(writer)) = (hold.phase, &mut hold.writer) {
            writer.end_call(event, &mut view.state, &mut hold.queue);
            hold.failure = event.and_then(failure);
            hold.phase = Phase::Idle;
        }
    }

    /// Writes that calls are being executed, before the model is called.
    pub(super) fn show_executing(&mut self, calls: &[(ToolCallId, AgentEvent)]) {
        let (Some(hold), Some(view)) = (&mut self.hold, &mut self.view) else { return };
        if hold.phase != Phase::Redeeming {
            return;
        }
        let message = view.state.live_message();
        let mut writer = EntryWriter::new(&message, self.client);
        for (call, event) in calls {
            if message.tool_parts().any(|part| part.tool_call_id == *call) {
                writer.event(event, &mut view.state, &mut hold.queue);
            }
        }
        // The results that are known come first.
        view.state.return_message();
    }

    /// Shows what a call that is being executed has emitted.
    pub(super) fn show_progress(&mut self, event: &AgentEvent) {
        let (Some(hold), Some(view)) = (&mut self.hold, &mut self.view) else { return };
        if hold.phase != Phase::Redeeming || hold.early_end.is_some() || hold.is_handed_over {
            return;
        }
        let message = view.state.live_message();
        let mut writer = EntryWriter::new(&message, self.client);
        match event {
            AgentEvent::ToolOutput { tool_call_id, .. } => {
                let is_it = |part: &ToolPart| part.tool_call_id == *tool_call_id;
                let has_call = message.tool_parts().any(|part| is_it(part) && !part.is_settled());
                // The other half is left to what the message gets.
                let has_room = hold.bytes < self.mine.settings.limits.max_log_bytes() / 2;
                let mut results = self.mine.outbox.iter();
                let has_result =
                    results.any(|received| received.result.tool_call_id == *tool_call_id);
                if has_call && has_room && !has_result {
                    hold.queue.remove_outputs_of(tool_call_id);
                    writer.preliminary_output(tool_call_id, event, &mut hold.queue);
                }
            }
            AgentEvent::Data(_) | AgentEvent::Source(_) | AgentEvent::File(_) => {
                writer.part_of_call(event, &mut view.state, &mut hold.queue);
            }
            // The changed input is shown with the result.
            _ => {}
        }
        view.state.return_message();
        for dropped in writer.take_dropped() {
            self.actions.push_back(Action::Report(dropped));
        }
    }

    /// Ends the run of this turn, and its model call.
    pub(super) fn end_early(&mut self, end: RunEnd) {
        let Some(hold) = &mut self.hold else { return };
        if hold.early_end.is_some() || hold.phase == Phase::Ending {
            return;
        }
        let event = match &end {
            RunEnd::Failed(error) => AgentEvent::error(error.clone()),
            _ => AgentEvent::Abort { reason: None },
        };
        hold.early_end = Some((end, event.clone()));
        match hold.phase {
            Phase::Agent => {
                self.actions.push_back(Action::StopAgent);
                self.end_call(Some(&event));
            }
            Phase::Redeeming => hold.phase = Phase::Idle,
            _ => {}
        }
    }

    /// The approvals for the provider are claimed, and the model can be called.
    pub(super) fn claimed(
        &mut self,
        run: &RunId,
        approvals: &[DeferredToolResult],
        sent: Option<Vec<DeferredToolResult>>,
    ) {
        let is_it = |hold: &&mut Hold| hold.phase == Phase::Claiming && hold.run == *run;
        let Some(hold) = self.hold.as_mut().filter(is_it) else { return };
        // Also those that another run has claimed, and those whose claim has failed or has no reply.
        if let Some(view) = &mut self.view {
            view.state.push_claimed(approvals);
            hold.queue.push(OtherEntry::Claimed { approvals: approvals.to_vec() });
        }
        let Some(sent) = sent else {
            hold.phase = Phase::Idle;
            return self.end_early(RunEnd::Failed(UserText::AnswerFailed.to_string()));
        };
        if hold.early_end.is_some() || hold.is_handed_over {
            hold.phase = Phase::Idle;
            return;
        }
        self.call_agent(sent);
    }

    pub(super) fn call_agent(&mut self, sent: Vec<DeferredToolResult>) {
        let (Some(hold), Some(view)) = (&mut self.hold, &mut self.view) else { return };
        hold.phase = Phase::Agent;
        let message = view.state.live_message();
        let mut writer = EntryWriter::new(&message, self.client);
        if message.answer_end().is_some()
            && let Some(continued) = message.end_metadata(None)
        {
            writer.event(&AgentEvent::Metadata(continued), &mut view.state, &mut hold.queue);
            view.state.return_message();
        }
        hold.writer = Some(writer);
        let run = hold.run.clone();
        let message_id = hold.message_id.clone();
        let chat = view.state.chat().clone();
        let results = std::mem::take(&mut hold.results);
        let closed = self.mine.known.take().map(|known| known.results).unwrap_or_default();
        let closed = closed.into_iter().map(|received| received.result);
        let not_recorded = closed.filter(|result| !chat.is_known(result)).collect();
        let call = CallAgent { run, chat, message_id, sent, results, not_recorded };
        self.start(Effect::CallAgent(Box::new(call)));
    }

    /// Shows the text that waits to the readers of this server, unless something else comes before it.
    pub(super) fn show_text(&mut self) {
        let (Some(hold), Some(view)) = (&mut self.hold, &self.view) else { return };
        if hold.pace.may_show(!hold.queue.is_empty(), self.now)
            && !self.is_stale
            && let Some(frames) = hold.queue.take_text()
        {
            let epoch = view.head.epoch;
            let position = view.state.length();
            self.actions.push_back(Action::ShowText { epoch, position, frames });
        }
    }

    /// Returns when the frames that wait are appended, if nothing else comes first.
    pub(super) fn due(&self) -> Option<Duration> {
        let hold = self.hold.as_ref().filter(|hold| self.busy.is_none() && !hold.queue.is_empty());
        hold.map(|hold| hold.pace.due())
    }

    /// Continues the run of this turn. Returns `false` if it has nothing to do.
    pub(super) fn advance(&mut self) -> bool {
        let (Some(hold), Some(view)) = (&mut self.hold, &self.view) else { return false };
        let Some(live) = view.state.live() else { return false };
        if !self.has_responded {
            if view.state.lacks_begun_message() {
                self.wait_for(Effect::Load { has_frames: true });
                return true;
            }
            // The client reads all results as frames of the run, which it can ask for again.
            let joined = hold.pending_response.take().unwrap_or_else(|| view.joined(live));
            // The client keeps its answers until the response begins.
            if !matches!(self.mine.redemption, Redemption::Due | Redemption::Storing) {
                self.respond(joined);
                return true;
            }
            hold.pending_response = Some(joined);
        }
        let position = view.position();
        let lease = Some(self.mine.settings.lease);
        let limits = &self.mine.settings.limits;
        let reached = [
            (view.head.has_to_end, RunLimit::UserRuns),
            (view.head.unread >= limits.max_unread_time(), RunLimit::UnreadTime),
            (hold.bytes > limits.max_log_bytes(), RunLimit::LogBytes),
        ];
        if let Some((_, limit)) = reached.into_iter().find(|(is_reached, _)| *is_reached)
            && hold.early_end.is_none()
            && !hold.is_handed_over
            && hold.phase != Phase::Ending
        {
            self.actions.push_back(Action::ReportLimit(hold.run.clone(), limit));
            self.end_early(RunEnd::Limit);
            return true;
        }
        let mut entries = accepted(view.state.chat(), &self.mine.outbox);
        let may_wait = entries.is_empty() && !self.has_to_renew && hold.may_wait();
        if !may_wait || self.now >= hold.pace.due() {
            entries.extend(hold.queue.sealed());
            if entries.iter().any(|entry| entry.kind() == EntryKind::Frame) {
                hold.pace.begin(self.now);
            }
        }
        if hold.phase == Phase::Idle && !hold.is_handed_over {
            // The end of the run follows that of its last step in the same append.
            let next = state_after(&view.state, Some(&hold.queue), &entries);
            let has_ended = next.live().is_some_and(|live| live.step.end().is_some());
            if let Some(end) = hold.end(next.chat()).filter(|_| has_ended) {
                let end = OtherEntry::End { run: hold.run.clone(), end };
                entries.push(end.clone().into());
                hold.queue.push(end);
                hold.phase = Phase::Ending;
            }
        }
        if !entries.is_empty() || self.has_to_renew {
            self.append(Append { lease, ..Append::new(position, entries) });
            return true;
        }
        if hold.is_handed_over {
            // The log holds what this server has written, and the run may have got results of others since.
            let append = Append::new(view.control(), vec![OtherEntry::HandedOver.into()]);
            let lease = Some(Duration::ZERO);
            // The ledger may lack the answers.
            self.respond(Response::ShuttingDown);
            self.start(Effect::Append(Append { lease, ..append }));
            self.is_over = true;
            return true;
        }
        match hold.phase {
            Phase::Redeeming => match self.mine.redemption {
                Redemption::Due => self.redeem(),
                Redemption::Storing | Redemption::Executing => return false,
                _ => hold.phase = Phase::Idle,
            },
            Phase::Idle => self.next_step(),
            // The log holds the step, and says that the run has to end.
            Phase::Stepping if hold.early_end.is_some() => hold.phase = Phase::Idle,
            // The log holds the step: the run lives.
            Phase::Stepping => {
                hold.has_to_call = false;
                hold.phase = Phase::Claiming;
                let run = hold.run.clone();
                let approvals = view.state.chat().clone().take_unsent_approvals();
                if approvals.is_empty() {
                    self.call_agent(Vec::new())
                } else {
                    let _ = self.start(Effect::Claim { run, approvals });
                }
            }
            Phase::Claiming | Phase::Agent | Phase::Ending => return false,
        }
        true
    }

    /// The log holds everything: the next step begins. If the run ends and has called no model, the end of a step is
    /// written, which its readers need.
    fn next_step(&mut self) {
        let (Some(hold), Some(view)) = (&mut self.hold, &mut self.view) else { return };
        if hold.end(view.state.chat()).is_some() {
            let event = hold.early_end.as_ref().map(|(_, event)| event.clone());
            let message = view.state.live_message();
            let mut writer = EntryWriter::new(&message, self.client);
            return writer.end_call(event.as_ref(), &mut view.state, &mut hold.queue);
        }
        if view.state.lacks_frames() {
            // The model reads the whole message.
            return self.wait_for(Effect::Load { has_frames: true });
        }
        hold.queue.push(OtherEntry::Step);
        hold.phase = Phase::Stepping;
        hold.results = view.state.unread().to_vec();
    }
}

/// Whether the agent emits nothing after this event.
fn ends_call(event: &AgentEvent) -> bool {
    match event {
        AgentEvent::Finish { .. } | AgentEvent::Abort { .. } | AgentEvent::Error { .. } => true,
        AgentEvent::Chunk(chunk) => {
            matches!(**chunk, Chunk::Finish { .. } | Chunk::Abort { .. } | Chunk::Error { .. })
        }
        _ => false,
    }
}

/// Returns what clients read of the error in this event.
fn failure(event: &AgentEvent) -> Option<String> {
    let cut_off = || UserText::AnswerCutOff.to_string();
    match event {
        AgentEvent::Error { error_text } => Some(error_text.to_string()),
        AgentEvent::Finish { reason: FinishReason::Interrupted, .. } => Some(cut_off()),
        AgentEvent::Chunk(chunk) => match &**chunk {
            Chunk::Error { error_text } => Some(error_text.to_string()),
            Chunk::Finish { finish_reason: Some(FinishReason::Interrupted), .. } => Some(cut_off()),
            _ => None,
        },
        _ => None,
    }
}
