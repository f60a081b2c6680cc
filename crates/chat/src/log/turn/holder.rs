//! What a turn does as the holder of a run: it redeems answers, calls the model, and appends what it writes.

use std::time::Duration;

use super::super::decision::{Append, Redemption, Response};
use super::super::entry::{OtherEntry, RunEnd};
use super::super::turn_io::{Action, CallAgent, Effect, RunLimit};
use super::super::writer::{EntryWriter, accepted, question_entry};
use super::held_run::{HeldRun, Phase};
use super::{LogTurn, state_after};
use crate::store::EntryKind;
use ui_message_stream::UserText;
use ui_message_stream::approval::DeferredToolResult;
use ui_message_stream::chunk::{Chunk, FinishReason};
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::{ApprovalId, RunId, ToolCallId};
use ui_message_stream::message::{ToolPart, ToolState};

impl LogTurn {
    /// Handles an event of the agent.
    pub(super) fn handle_event(&mut self, event: &AgentEvent) {
        if ends_call(event) {
            self.actions.push_back(Action::StopAgent);
            return self.end_call(Some(event));
        }
        let (Some(held), Some(view)) = (&mut self.held, &mut self.view) else { return };
        if let (Phase::Agent, Some(writer)) = (held.phase, &mut held.writer) {
            writer.event(event, &mut view.state, &mut held.queue);
            for dropped in writer.take_dropped() {
                self.actions.push_back(Action::Report(dropped));
            }
        }
    }

    pub(super) fn end_call(&mut self, event: Option<&AgentEvent>) {
        let (Some(held), Some(view)) = (&mut self.held, &mut self.view) else { return };
        if let (Phase::Agent, Some(writer)) = (held.phase, &mut held.writer) {
            writer.end_call(event, &mut view.state, &mut held.queue);
            held.failure = event.and_then(failure);
            held.phase = Phase::Idle;
        }
    }

    /// Writes that calls are being executed, before the model is called.
    pub(super) fn show_executing(&mut self, calls: &[(ToolCallId, AgentEvent)]) {
        let (Some(held), Some(view)) = (&mut self.held, &mut self.view) else { return };
        if held.phase != Phase::Redeeming {
            return;
        }
        let message = view.state.live_message();
        let mut writer = EntryWriter::new(&message, self.client);
        for (call, event) in calls {
            if message.tool_parts().any(|part| part.tool_call_id == *call) {
                writer.event(event, &mut view.state, &mut held.queue);
            }
        }
        // The results that are known come first.
        view.state.return_message();
    }

    /// Asks these questions again: the page that has answered them shows them as answered.
    pub(super) fn ask_again(&mut self, questions: &[ApprovalId]) {
        let (Some(held), Some(view)) = (&mut self.held, &mut self.view) else { return };
        if held.phase == Phase::Redeeming {
            let message = view.state.live_message();
            for part in message.tool_parts() {
                let asked = part.approval_id().filter(|id| questions.contains(id));
                if let (ToolState::ApprovalRequested { .. }, Some(question)) = (&part.state, asked)
                {
                    held.queue.push(question_entry(&part.tool_call_id, question));
                }
            }
        }
    }

    /// Shows what a call that is being executed has emitted.
    pub(super) fn show_progress(&mut self, event: &AgentEvent) {
        let (Some(held), Some(view)) = (&mut self.held, &mut self.view) else { return };
        if held.phase != Phase::Redeeming || held.early_end.is_some() || held.is_handed_over {
            return;
        }
        let message = view.state.live_message();
        let mut writer = EntryWriter::new(&message, self.client);
        match event {
            AgentEvent::ToolOutput { tool_call_id, .. } => {
                let is_it = |part: &ToolPart| part.tool_call_id == *tool_call_id;
                let has_call = message.tool_parts().any(|part| is_it(part) && !part.is_settled());
                // The other half is left to what the message gets.
                let has_room = held.bytes < self.memory.settings.limits.max_log_bytes() / 2;
                let mut results = self.memory.outbox.iter();
                let has_result =
                    results.any(|received| received.result.tool_call_id == *tool_call_id);
                if has_call && has_room && !has_result {
                    held.queue.remove_preliminary_of(tool_call_id);
                    writer.preliminary_output(tool_call_id, event, &mut held.queue);
                }
            }
            AgentEvent::Data(_) | AgentEvent::Source(_) | AgentEvent::File(_) => {
                writer.part_of_call(event, &mut view.state, &mut held.queue);
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
        let Some(held) = &mut self.held else { return };
        if held.early_end.is_some() || held.phase == Phase::Ending {
            return;
        }
        let event = match &end {
            RunEnd::Failed(error) => AgentEvent::error(error.clone()),
            _ => AgentEvent::Abort { reason: None },
        };
        held.early_end = Some((end, event.clone()));
        match held.phase {
            Phase::Agent => {
                self.actions.push_back(Action::StopAgent);
                self.end_call(Some(&event));
            }
            Phase::Redeeming => held.phase = Phase::Idle,
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
        let is_it =
            |held: &&mut HeldRun| held.phase == Phase::ClaimingForProvider && held.run == *run;
        let Some(held) = self.held.as_mut().filter(is_it) else { return };
        // Also those that another run has claimed, and those whose claim has failed or has no reply.
        if let Some(view) = &mut self.view {
            view.state.push_claimed(approvals);
            held.queue.push(OtherEntry::Claimed { approvals: approvals.to_vec() });
        }
        let Some(sent) = sent else {
            held.phase = Phase::Idle;
            return self.end_early(RunEnd::Failed(UserText::AnswerFailed.to_string()));
        };
        if held.early_end.is_some() || held.is_handed_over {
            held.phase = Phase::Idle;
            return;
        }
        self.call_agent(sent);
    }

    pub(super) fn call_agent(&mut self, sent: Vec<DeferredToolResult>) {
        let (Some(held), Some(view)) = (&mut self.held, &mut self.view) else { return };
        held.phase = Phase::Agent;
        let message = view.state.live_message();
        let mut writer = EntryWriter::new(&message, self.client);
        if message.answer_end().is_some()
            && let Some(continued) = message.end_metadata(None)
        {
            writer.event(&AgentEvent::Metadata(continued), &mut view.state, &mut held.queue);
            view.state.return_message();
        }
        held.writer = Some(writer);
        let run = held.run.clone();
        let message_id = held.message_id.clone();
        let chat = view.state.chat().clone();
        let results = std::mem::take(&mut held.results);
        let closed = self.memory.known.take().map(|known| known.results).unwrap_or_default();
        let closed = closed.into_iter().map(|received| received.result);
        let not_recorded = closed.filter(|result| !chat.is_known(result)).collect();
        let call = CallAgent { run, chat, message_id, sent, results, not_recorded };
        self.start(Effect::CallAgent(Box::new(call)));
    }

    /// Shows the text that waits to the readers of this server, unless something else comes before it.
    pub(super) fn show_text(&mut self) {
        let (Some(held), Some(view)) = (&mut self.held, &self.view) else { return };
        if held.pace.may_show(!held.queue.is_empty(), self.now)
            && !self.is_stale
            && let Some(frames) = held.queue.take_text()
        {
            let epoch = view.head.epoch;
            let position = view.state.length();
            self.actions.push_back(Action::ShowText { epoch, position, frames });
        }
    }

    /// Returns when the frames that wait are appended, if nothing else comes first.
    pub(super) fn due(&self) -> Option<Duration> {
        let held = self.held.as_ref().filter(|held| self.busy.is_none() && !held.queue.is_empty());
        held.map(|held| held.pace.due())
    }

    /// Continues the run of this turn. Returns `false` if it has nothing to do.
    pub(super) fn advance(&mut self) -> bool {
        let (Some(held), Some(view)) = (&mut self.held, &self.view) else { return false };
        let Some(live) = view.state.live() else { return false };
        if !self.has_responded {
            if view.state.lacks_begun_message() {
                self.wait_for(Effect::Load { has_frames: true });
                return true;
            }
            // The client reads all results as frames of the run, which it can ask for again.
            let joined = held.pending_response.take().unwrap_or_else(|| view.joined(live));
            // The client keeps its answers until the response begins.
            if !matches!(self.memory.redemption, Redemption::Due | Redemption::Storing) {
                self.respond(joined);
                return true;
            }
            held.pending_response = Some(joined);
        }
        let position = view.position();
        let lease = Some(self.memory.settings.lease);
        let limits = &self.memory.settings.limits;
        let reached = [
            (view.head.has_to_end, RunLimit::UserRuns),
            (view.head.unread >= limits.max_unread_time(), RunLimit::UnreadTime),
            (held.bytes > limits.max_log_bytes(), RunLimit::LogBytes),
        ];
        if let Some((_, limit)) = reached.into_iter().find(|(is_reached, _)| *is_reached)
            && held.early_end.is_none()
            && !held.is_handed_over
            && held.phase != Phase::Ending
        {
            self.actions.push_back(Action::ReportLimit(held.run.clone(), limit));
            self.end_early(RunEnd::Limit);
            return true;
        }
        let mut entries = accepted(view.state.chat(), &self.memory.outbox);
        let may_wait = entries.is_empty() && !self.has_to_renew && held.may_wait();
        if !may_wait || self.now >= held.pace.due() {
            entries.extend(held.queue.sealed());
            if entries.iter().any(|entry| entry.kind() == EntryKind::Frame) {
                held.pace.begin(self.now);
            }
        }
        if held.phase == Phase::Idle && !held.is_handed_over {
            // The end of the run follows that of its last step in the same append.
            let next = state_after(&view.state, Some(&held.queue), &entries);
            let has_ended = next.live().is_some_and(|live| live.step.end().is_some());
            if let Some(end) = held.end(next.chat()).filter(|_| has_ended) {
                let end = OtherEntry::End { run: held.run.clone(), end };
                entries.push(end.clone().into());
                held.queue.push(end);
                held.phase = Phase::Ending;
            }
        }
        if !entries.is_empty() || self.has_to_renew {
            self.append(Append { lease, ..Append::new(position, entries) });
            return true;
        }
        if held.is_handed_over {
            // The log holds what this server has written, and the run may have got results of others since.
            let append = Append::new(view.control(), vec![OtherEntry::HandedOver.into()]);
            let lease = Some(Duration::ZERO);
            // The ledger may lack the answers.
            self.respond(Response::ShuttingDown);
            self.start(Effect::Append(Append { lease, ..append }));
            self.is_over = true;
            return true;
        }
        match held.phase {
            Phase::Redeeming => match self.memory.redemption {
                Redemption::Due => self.redeem(),
                Redemption::Storing | Redemption::Executing => return false,
                _ => held.phase = Phase::Idle,
            },
            Phase::Idle => self.next_step(),
            // The log holds the step, and says that the run has to end.
            Phase::Stepping if held.early_end.is_some() => held.phase = Phase::Idle,
            // The log holds the step: the run lives.
            Phase::Stepping => {
                held.has_to_call = false;
                held.phase = Phase::ClaimingForProvider;
                let run = held.run.clone();
                let approvals = view.state.chat().clone().take_unsent_approvals();
                if approvals.is_empty() {
                    self.call_agent(Vec::new())
                } else {
                    let _ = self.start(Effect::ClaimForProvider { run, approvals });
                }
            }
            Phase::ClaimingForProvider | Phase::Agent | Phase::Ending => return false,
        }
        true
    }

    /// The log holds everything: the next step begins. If the run ends and has called no model, the end of a step is
    /// written, which its readers need.
    fn next_step(&mut self) {
        let (Some(held), Some(view)) = (&mut self.held, &mut self.view) else { return };
        if held.end(view.state.chat()).is_some() {
            let event = held.early_end.as_ref().map(|(_, event)| event.clone());
            let message = view.state.live_message();
            let mut writer = EntryWriter::new(&message, self.client);
            return writer.end_call(event.as_ref(), &mut view.state, &mut held.queue);
        }
        if view.state.lacks_frames() {
            // The model reads the whole message.
            return self.wait_for(Effect::Load { has_frames: true });
        }
        held.queue.push(OtherEntry::Step);
        held.phase = Phase::Stepping;
        held.results = view.state.unread().to_vec();
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
