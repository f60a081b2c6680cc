//! What became of open calls, written into the messages that hold them.

use super::{Chat, is_given_up};
use crate::approval::{
    self, DeferredOutcome, DeferredToolResult, DeferredToolResults, OpenCall, ToolOutcome,
};
use crate::event::AgentEvent;
use crate::id::{ApprovalId, ToolCallId};
use crate::json::Json;
use crate::message::{
    AnsweredApproval, Approval, ApprovalDetails, Part, PastApproval, Role, ToolPart, ToolState,
};

impl Chat {
    /// Whether a call of this conversation has its result. `None` if there is no such call.
    pub fn has_result(&self, approval: Option<&ApprovalId>, id: &ToolCallId) -> Option<bool> {
        self.call(approval, id).map(ToolPart::is_settled)
    }

    /// Whether nothing has to happen to a call here any more: it has its result, or the yes with
    /// which its provider gives one. `None` if there is no such call in this conversation.
    pub fn is_done_here(&self, approval: Option<&ApprovalId>, id: &ToolCallId) -> Option<bool> {
        self.call(approval, id).map(|part| part.is_settled() || is_allowed(part))
    }

    /// Whether a call is one that its provider runs.
    pub fn is_providers(&self, approval: Option<&ApprovalId>, id: &ToolCallId) -> bool {
        self.call(approval, id).is_some_and(|part| part.provider_executed == Some(true))
    }

    /// Whether this question was answered with a yes that its provider has not been told.
    pub fn keeps_yes(&self, approval: Option<&ApprovalId>) -> bool {
        self.for_provider.iter().any(|yes| yes.approval_id.as_ref() == approval)
    }

    /// Takes out what the provider is to be told now. It is told that, or never: who takes it out
    /// may be gone before it is told, and it is not to be told twice.
    pub fn hand_over(&mut self) -> Vec<DeferredToolResult> {
        let mut yeses = std::mem::take(&mut self.for_provider);
        // The person may have taken the message away, or hope was given up.
        yeses.retain(|yes| self.is_untold(yes));
        yeses
    }

    fn is_untold(&self, yes: &DeferredToolResult) -> bool {
        self.tool_parts().any(|part| is_of(part, yes) && is_allowed(part))
    }

    /// Keeps what was taken out and not told, unless it is settled or kept by now.
    #[cfg(feature = "approvals")]
    pub(crate) fn take_back(&mut self, untold: &[DeferredToolResult]) {
        for yes in untold {
            if self.is_untold(yes) && !self.keeps_yes(yes.approval_id.as_ref()) {
                self.for_provider.push(yes.clone());
            }
        }
    }

    /// Whether a provider asked about a call that has no result yet.
    pub fn has_providers_questions(&self) -> bool {
        self.tool_parts().any(|part| {
            part.provider_executed == Some(true)
                && part.approval_id().is_some()
                && !part.is_settled()
        })
    }

    /// What was handed over, and has no result yet. Whether it ran, only the provider knows.
    pub fn handed_over(&self) -> Vec<DeferredToolResult> {
        let assistants = self.messages.iter().filter(|message| message.role == Role::Assistant);
        let parts = assistants.flat_map(|message| message.tool_parts().map(move |p| (message, p)));
        let with_provider =
            parts.filter(|(_, part)| is_allowed(part) && !self.keeps_yes(part.approval_id()));
        let became = with_provider.map(|(message, part)| DeferredToolResult {
            message_id: Some(message.id.clone()),
            tool_call_id: part.tool_call_id.clone(),
            tool_name: part.tool_name.clone(),
            approval_id: part.approval_id().cloned(),
            outcome: DeferredOutcome::Forwarded,
            is_final: true,
        });
        became.collect()
    }

    /// The calls that a person was asked about, and that have no result here.
    pub fn open_questions(&self) -> Vec<OpenCall> {
        let open = self.tool_parts().filter(|part| !part.is_settled());
        let asked = open.filter_map(|part| {
            let input = part.input().cloned().unwrap_or_else(Json::null);
            let (id, name) = (part.tool_call_id.clone(), part.tool_name.clone());
            Some(OpenCall::awaiting_approval(part.approval_id()?.clone(), id, name, input))
        });
        asked.collect()
    }

    /// Writes down what became of a call, unless that is not the end of it. `descriptor` is what a
    /// person is shown beside the call now.
    pub fn settle(&mut self, result: &DeferredToolResult, descriptor: Option<&Json>) {
        if !result.is_final {
            return;
        }
        if result.approval_id.is_none() {
            self.left_to_client.retain(|call| call.tool_call_id != result.tool_call_id);
        }
        let is_it = |part: &ToolPart| is_of(part, result);
        let ran = matches!(result.outcome, DeferredOutcome::Ran { .. });
        // Of what was given up something may be heard all the same.
        let is_open = |part: &ToolPart| !part.is_settled() || ran && is_given_up(part);
        let Some(part) = self.last_part(|part| is_open(part) && is_it(part)) else { return };
        let Some(state) = settled(part, &result.outcome) else { return };
        part.state = state;
        let is_yes = is_allowed(part);
        let shown_beside = part.tool_call_id.clone();
        if let Some(descriptor) = descriptor {
            self.describe(&shown_beside, descriptor);
        }
        if is_yes {
            self.for_provider.push(result.clone());
        }
    }

    fn describe(&mut self, call: &ToolCallId, descriptor: &Json) {
        let parts = self.messages.iter_mut().rev().flat_map(|message| message.parts.iter_mut());
        let mut data = parts.filter_map(|part| match part {
            Part::Data(data) => Some(data),
            _ => None,
        });
        let of_call = |id: &str| id == call.as_str();
        let beside =
            data.find(|data| &*data.name == APPROVAL && data.id.as_deref().is_some_and(of_call));
        if let Some(beside) = beside {
            beside.data = Some(descriptor.clone());
        }
    }

    /// Writes down that the person wrote on instead of answering: these calls did not run.
    pub fn supersede(&mut self, deferred: &DeferredToolResults) {
        for OpenCall { tool_call_id, approval_id, .. } in deferred.superseded() {
            self.left_to_client.retain(|call| call.tool_call_id != *tool_call_id);
            let is_it = |part: &ToolPart| is_asked(part, approval_id.as_ref(), tool_call_id);
            let is_open = |part: &ToolPart| !part.is_settled() && is_it(part);
            let Some(part) = self.last_part(is_open) else { continue };
            let input = part.input().cloned();
            part.state = match asked(part) {
                Some(approval) => denied(input, approval, Some(WROTE_ON.to_owned())),
                None => failed(input, None, approval::REFUSED.to_owned()),
            };
        }
    }

    /// What a provider says of a call that it was allowed to run in an earlier message than `now`, the
    /// one that is being written.
    #[cfg(feature = "approvals")]
    pub(crate) fn ran_elsewhere(
        &self,
        event: &AgentEvent,
        now: &mut super::Recorder,
    ) -> Option<DeferredToolResult> {
        let (id, outcome) = match event {
            AgentEvent::ToolOutput { tool_call_id, output, preliminary: false } => {
                (tool_call_id, ToolOutcome::Output(output.clone()))
            }
            AgentEvent::ToolFailed { tool_call_id, error } => {
                (tool_call_id, ToolOutcome::Failed(error.to_string()))
            }
            _ => return None,
        };
        if now.message().tool_parts().any(|part| part.tool_call_id == *id) {
            return None;
        }
        let mut handed_over = self.handed_over().into_iter();
        let call = handed_over.find(|call| call.tool_call_id == *id)?;
        Some(DeferredToolResult { outcome: DeferredOutcome::Ran { outcome }, ..call })
    }

    /// How a call ended that the provider ran, as it was said then.
    pub fn said_of(&self, result: &DeferredToolResult) -> Option<AgentEvent> {
        let part = self.tool_parts().filter(|part| is_of(part, result)).last()?;
        let id = part.tool_call_id.clone();
        match &part.state {
            ToolState::OutputAvailable { output: Some(output), .. } => {
                Some(AgentEvent::tool_output(id, output.clone()))
            }
            ToolState::OutputError { error_text, .. } => {
                Some(AgentEvent::tool_failed(id, error_text.clone()))
            }
            _ => None,
        }
    }

    fn call(&self, approval: Option<&ApprovalId>, id: &ToolCallId) -> Option<&ToolPart> {
        self.tool_parts().filter(|part| is_asked(part, approval, id)).last()
    }

    fn tool_parts(&self) -> impl Iterator<Item = &ToolPart> {
        let assistants = self.messages.iter().filter(|message| message.role == Role::Assistant);
        assistants.flat_map(|message| message.tool_parts())
    }

    /// The latest call that is meant.
    fn last_part(&mut self, is_it: impl Fn(&ToolPart) -> bool) -> Option<&mut ToolPart> {
        let parts =
            self.messages.iter_mut().rev().flat_map(|message| message.parts.iter_mut().rev());
        let mut tools = parts.filter_map(|part| match part {
            Part::Tool(part) => Some(&mut **part),
            _ => None,
        });
        tools.find(|part| is_it(part))
    }
}

/// Whether the person allowed its provider to run it, and nothing came of that yet.
fn is_allowed(part: &ToolPart) -> bool {
    let is_yes =
        matches!(&part.state, ToolState::ApprovalResponded { approval, .. } if approval.approved);
    is_yes && part.provider_executed == Some(true)
}

/// A client's output is of a call of its tool that nobody was asked about: ids may recur.
fn is_of(part: &ToolPart, result: &DeferredToolResult) -> bool {
    let is_named = is_asked(part, result.approval_id.as_ref(), &result.tool_call_id);
    let is_clients = matches!(
        result.outcome,
        DeferredOutcome::Output { .. } | DeferredOutcome::OutputError { .. }
    );
    is_named && (!is_clients || part.approval_id().is_none() && part.tool_name == result.tool_name)
}

/// Whether this call is the one that was left to the client.
pub(super) fn is_left(part: &ToolPart, call: &OpenCall) -> bool {
    part.tool_call_id == call.tool_call_id
        && part.tool_name == call.tool_name
        && part.approval_id().is_none()
}

/// By the question if there was one; by its own id it may be one of several.
fn is_asked(part: &ToolPart, approval_id: Option<&ApprovalId>, id: &ToolCallId) -> bool {
    match approval_id {
        Some(approval_id) => part.approval_id() == Some(approval_id),
        None => part.tool_call_id == *id,
    }
}

fn settled(part: &ToolPart, outcome: &DeferredOutcome) -> Option<ToolState> {
    let input = part.input().cloned();
    let approved = || match &part.state {
        ToolState::OutputError { approval, .. } => approval.clone(),
        _ => asked(part).map(|approval| past(approval, true, None)),
    };
    Some(match outcome {
        DeferredOutcome::Denied { reason }
        | DeferredOutcome::ForProvider { approved: false, reason, .. } => {
            denied(input, asked(part)?, reason.clone())
        }
        DeferredOutcome::ForProvider { approved: true, reason, .. } => {
            let Approval { id, details } = asked(part)?;
            let (approved, reason) = (true, reason.clone());
            let approval = Box::new(AnsweredApproval { id, approved, reason, details });
            ToolState::ApprovalResponded { input, approval }
        }
        DeferredOutcome::Ran { outcome: ToolOutcome::Output(output) } => {
            returned(input, approved(), output.clone())
        }
        DeferredOutcome::Ran { outcome: ToolOutcome::Failed(error) } => {
            failed(input, approved(), error.clone())
        }
        DeferredOutcome::OutcomeUnknown => {
            failed(input, approved(), approval::OUTCOME_UNKNOWN.to_owned())
        }
        DeferredOutcome::Output { output } => returned(input, None, output.clone()),
        DeferredOutcome::OutputError { error_text } => failed(input, None, error_text.clone()),
        // Nobody said yes in time, and a validator takes no error with an unanswered question.
        DeferredOutcome::Expired => failed(input, None, approval::EXPIRED.to_owned()),
        DeferredOutcome::Revoked => failed(input, None, approval::REVOKED.to_owned()),
        DeferredOutcome::Approved { .. }
        | DeferredOutcome::Running { .. }
        | DeferredOutcome::Forwarded
        | DeferredOutcome::Refused => return None,
    })
}

/// The question of a part that has no result.
fn asked(part: &ToolPart) -> Option<Approval> {
    match &part.state {
        ToolState::ApprovalRequested { approval, .. } => Some((**approval).clone()),
        ToolState::ApprovalResponded { approval, .. } => {
            Some(Approval { id: approval.id.clone(), details: approval.details.clone() })
        }
        _ => None,
    }
}

fn past(approval: Approval, approved: bool, reason: Option<String>) -> Box<PastApproval> {
    let Approval { id, details } = approval;
    let details = ApprovalDetails { signature: None, ..details };
    Box::new(PastApproval { id, approved: Some(approved), reason, details })
}

fn denied(input: Option<Json>, approval: Approval, reason: Option<String>) -> ToolState {
    ToolState::OutputDenied { input, approval: Some(past(approval, false, reason)) }
}

pub(super) fn returned(
    input: Option<Json>,
    approval: Option<Box<PastApproval>>,
    output: Json,
) -> ToolState {
    ToolState::OutputAvailable {
        input,
        output: Some(output),
        preliminary: None,
        approval,
        result_provider_metadata: None,
    }
}

pub(super) fn failed(
    input: Option<Json>,
    approval: Option<Box<PastApproval>>,
    error_text: String,
) -> ToolState {
    ToolState::OutputError {
        input,
        raw_input: None,
        error_text,
        approval,
        result_provider_metadata: None,
    }
}

/// The data that is shown beside a call.
const APPROVAL: &str = "approval";

/// Why a call was denied that the person did not answer.
const WROTE_ON: &str = "not answered: the person wrote on instead";
