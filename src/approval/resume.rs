//! [`ResumePlan`]: what a history says of the calls that were left open, and what becomes of it.

use std::collections::{HashMap, HashSet};

use super::{
    ApprovalRequest, ApprovalResponse, ClientOutput, ClientResult, DeferredOutcome,
    DeferredToolResult, DeferredToolResults, OpenCall,
};
use crate::id::{ApprovalId, MessageId, ToolCallId};
use crate::json::Json;
use crate::message::{AnsweredApproval, Approval, Part, Role, ToolPart, ToolState, UiMessage};

/// What a client's history says of the calls that were left open. Nothing of it is believed yet.
///
/// ```
/// use ui_message_stream::approval::{DeferredOutcome, OpenCall, ResumePlan};
/// use ui_message_stream::request::{ChatRequest, Limits};
/// use ui_message_stream::Json;
///
/// let body = br#"{"id": "chat-1", "messageId": "m2", "messages": [
///     {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Delete my notes"}]},
///     {"id": "m2", "role": "assistant", "parts": [{
///         "type": "tool-delete", "toolCallId": "call_1", "input": {"path": "/etc"},
///         "state": "approval-responded", "approval": {"id": "ap_1", "approved": true}
///     }]}
/// ]}"#;
/// let chat = ChatRequest::parse(body, &Limits::default()).unwrap();
/// let asked = OpenCall::awaiting_approval("ap_1", "call_1", "delete", Json::of("notes.txt")?);
///
/// let plan = ResumePlan::new(chat.messages(), chat.continued());
/// assert!(plan.approvals().next().unwrap().approved);
///
/// // What runs is what was asked for, with the input that was asked with.
/// let deferred = plan.settle(&[asked]);
/// let [result] = deferred.results() else { panic!() };
/// assert_eq!(result.outcome, DeferredOutcome::Approved { input: Json::of("notes.txt")? });
/// # Ok::<(), ui_message_stream::json::JsonError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct ResumePlan {
    approvals: Vec<(usize, ApprovalResponse)>,
    pending: Vec<ApprovalRequest>,
    superseded: Vec<ApprovalRequest>,
    outputs: Vec<Output>,
    history: History,
}

/// A result that the history holds.
#[derive(Debug, Clone)]
struct Output {
    message: usize,
    is_new: bool,
    output: ClientOutput,
}

/// What of the history the host's record is held against.
#[derive(Debug, Clone)]
struct History {
    message_ids: Vec<MessageId>,
    /// The last message of the person.
    last_user: Option<usize>,
    /// The last message that holds a call.
    message_of: HashMap<ToolCallId, usize>,
}

impl ResumePlan {
    /// Reads a history: [`ChatRequest::messages`](crate::ChatRequest::messages), and the message
    /// that the response goes on with, [`ChatRequest::continued`](crate::ChatRequest::continued).
    ///
    /// The parts of all assistant messages count, of static and dynamic tools alike. Only the
    /// state `approval-responded` is an answer. An approval id counts once: a call that has its
    /// result needs no answer any more, and where a history says both yes and no, it is no.
    pub fn new(messages: &[UiMessage], continued: Option<&UiMessage>) -> Self {
        let mut plan = ResumePlan {
            approvals: Vec::new(),
            pending: Vec::new(),
            superseded: Vec::new(),
            outputs: Vec::new(),
            history: History::of(messages),
        };
        let new_from = new_results_from(messages, continued);
        let (settled, denied) = settled_and_denied(messages);
        let mut seen: HashSet<&ApprovalId> = HashSet::new();
        for (place, part) in tool_parts(messages) {
            match &part.state {
                ToolState::ApprovalResponded { approval, .. }
                    if !settled.contains(&approval.id)
                        && (!approval.approved || !denied.contains(&approval.id))
                        && seen.insert(&approval.id) =>
                {
                    plan.approvals.push((place.0, response(part, approval)));
                }
                _ => plan.outputs.extend(client_output(part).map(|output| Output {
                    message: place.0,
                    is_new: new_from.is_some_and(|from| from.0 == place.0 && from.1 <= place.1),
                    output,
                })),
            }
        }
        for (place, part) in tool_parts(messages) {
            if let ToolState::ApprovalRequested { approval, .. } = &part.state
                && !settled.contains(&approval.id)
                && seen.insert(&approval.id)
            {
                if plan.history.went_on_after(place.0) {
                    plan.superseded.push(request(part, approval));
                } else {
                    plan.pending.push(request(part, approval));
                }
            }
        }
        plan
    }

    /// The answers to calls without a result, in the order of the history.
    pub fn approvals(&self) -> impl Iterator<Item = &ApprovalResponse> {
        self.approvals.iter().map(|(_, response)| response)
    }

    /// The results in the last step of the message that the response goes on with, or else of the
    /// last assistant message: no model call has seen them. Which of them the client gave, the
    /// host knows; the others are results of the server's own tools.
    pub fn outputs(&self) -> impl Iterator<Item = &ClientOutput> {
        self.outputs.iter().filter(|output| output.is_new).map(|output| &output.output)
    }

    /// The questions without an answer, in the order of the history.
    pub fn pending(&self) -> &[ApprovalRequest] {
        &self.pending
    }

    /// The questions that the person wrote past: they have no answer, and a message of the person
    /// follows.
    pub fn superseded(&self) -> &[ApprovalRequest] {
        &self.superseded
    }

    /// Holds the history against the host's own record of the calls that it left open.
    ///
    /// An approved call runs if the record has it under the same approval id, with the record's
    /// tool and input; else it is refused. A denial is honoured in any case. An output is taken
    /// for a call that was left to the client; given for a call that waits for a person, it is
    /// refused. What the record has beyond that is still pending, or superseded if the person
    /// wrote on.
    ///
    /// The host takes what has a result out of its record before it runs anything.
    pub fn settle(self, open_calls: &[OpenCall]) -> DeferredToolResults {
        let mut open: Vec<&OpenCall> = open_calls.iter().collect();
        let mut results = Vec::new();
        for (message_at, response) in &self.approvals {
            // By the approval alone: on the wire the call may have another id than the host gave it.
            let asked = Some(&response.approval_id);
            let known = open.iter().position(|call| call.approval_id.as_ref() == asked);
            let known = known.map(|at| open.remove(at));
            results.push(DeferredToolResult {
                message_id: self.history.message_ids.get(*message_at).cloned(),
                tool_call_id: response.tool_call_id.clone(),
                tool_name: known.map_or(&response.tool_name, |call| &call.tool_name).clone(),
                approval_id: Some(response.approval_id.clone()),
                outcome: outcome(response, known),
            });
        }
        let mut pending = Vec::new();
        let mut superseded = Vec::new();
        for call in open {
            let message_at = self.history.message_of.get(&call.tool_call_id).copied();
            let went_on = match message_at {
                Some(message_at) => self.history.went_on_after(message_at),
                None => self.history.ends_with_user(),
            };
            let given = self.outputs.iter().find(|given| {
                Some(given.message) == message_at && given.output.tool_call_id == call.tool_call_id
            });
            let outcome = match (given, &call.approval_id) {
                (Some(given), None) => match &given.output.result {
                    ClientResult::Output(output) => {
                        DeferredOutcome::Output { output: output.clone() }
                    }
                    ClientResult::ErrorText(error_text) => {
                        DeferredOutcome::OutputError { error_text: error_text.clone() }
                    }
                },
                // The client shows a result, so nobody can answer the question any more.
                (Some(_), Some(_)) if !went_on => DeferredOutcome::Refused,
                _ => {
                    if went_on { &mut superseded } else { &mut pending }.push(call.clone());
                    continue;
                }
            };
            results.push(DeferredToolResult {
                message_id: message_at.and_then(|at| self.history.message_ids.get(at)).cloned(),
                tool_call_id: call.tool_call_id.clone(),
                tool_name: call.tool_name.clone(),
                approval_id: call.approval_id.clone(),
                outcome,
            });
        }
        DeferredToolResults::new(results, pending, superseded)
    }
}

fn outcome(response: &ApprovalResponse, known: Option<&OpenCall>) -> DeferredOutcome {
    let reason = response.reason.clone();
    match known {
        Some(call) if call.provider_executed => {
            DeferredOutcome::ForProvider { approved: response.approved, reason }
        }
        _ if !response.approved => DeferredOutcome::Denied { reason },
        Some(call) => DeferredOutcome::Approved { input: call.input.clone() },
        None => DeferredOutcome::Refused,
    }
}

impl History {
    fn of(messages: &[UiMessage]) -> Self {
        let calls = assistants(messages).flat_map(|(at, message)| {
            message.tool_parts().map(move |part| (part.tool_call_id.clone(), at))
        });
        History {
            message_ids: messages.iter().map(|message| message.id.clone()).collect(),
            last_user: messages.iter().rposition(|message| message.role == Role::User),
            message_of: calls.collect(),
        }
    }

    /// Whether the person wrote a message after this one.
    fn went_on_after(&self, message_at: usize) -> bool {
        self.last_user > Some(message_at)
    }

    fn ends_with_user(&self) -> bool {
        self.last_user.is_some_and(|at| at + 1 == self.message_ids.len())
    }
}

fn response(part: &ToolPart, approval: &AnsweredApproval) -> ApprovalResponse {
    ApprovalResponse {
        approval_id: approval.id.clone(),
        tool_call_id: part.tool_call_id.clone(),
        tool_name: part.tool_name.clone(),
        input: part.input().cloned(),
        approved: approval.approved,
        reason: approval.reason.clone(),
        provider_executed: part.provider_executed == Some(true),
    }
}

fn request(part: &ToolPart, approval: &Approval) -> ApprovalRequest {
    ApprovalRequest {
        approval_id: approval.id.clone(),
        tool_call_id: part.tool_call_id.clone(),
        tool_name: part.tool_name.clone(),
        input: part.input().cloned(),
        provider_executed: part.provider_executed == Some(true),
    }
}

/// The approvals that have their result, and those that are answered with a no anywhere.
fn settled_and_denied(messages: &[UiMessage]) -> (HashSet<&ApprovalId>, HashSet<&ApprovalId>) {
    let (mut settled, mut denied) = (HashSet::new(), HashSet::new());
    for part in assistants(messages).flat_map(|(_, message)| message.tool_parts()) {
        match &part.state {
            ToolState::ApprovalResponded { approval, .. } if !approval.approved => {
                denied.insert(&approval.id);
            }
            ToolState::OutputAvailable { approval: Some(approval), .. }
            | ToolState::OutputError { approval: Some(approval), .. }
            | ToolState::OutputDenied { approval: Some(approval), .. } => {
                settled.insert(&approval.id);
            }
            _ => {}
        }
    }
    (settled, denied)
}

/// The tool parts that count, each with its message and its place there.
fn tool_parts(messages: &[UiMessage]) -> impl Iterator<Item = ((usize, usize), &ToolPart)> {
    assistants(messages).flat_map(|(message_at, message)| {
        let overruled = message.overruled_tool_parts();
        message.parts.iter().enumerate().filter_map(move |(part_at, part)| {
            let part = part.as_tool().filter(|_| overruled.binary_search(&part_at).is_err());
            Some(((message_at, part_at), part?))
        })
    })
}

/// The result that a part holds, unless the provider ran the tool or more is to come.
fn client_output(part: &ToolPart) -> Option<ClientOutput> {
    if part.provider_executed == Some(true) || !part.is_settled() {
        return None;
    }
    let result = match &part.state {
        ToolState::OutputAvailable { output, .. } => {
            ClientResult::Output(output.clone().unwrap_or_else(Json::null))
        }
        ToolState::OutputError { error_text, .. } => ClientResult::ErrorText(error_text.clone()),
        _ => return None,
    };
    Some(ClientOutput { tool_call_id: part.tool_call_id.clone(), result })
}

/// The message and the part from where on results are new to the model.
fn new_results_from(
    messages: &[UiMessage],
    continued: Option<&UiMessage>,
) -> Option<(usize, usize)> {
    let (at, message) = match continued {
        Some(continued) => assistants(messages).rfind(|(_, message)| message.id == continued.id),
        None => assistants(messages).next_back(),
    }?;
    let last_step = message.parts.iter().rposition(|part| matches!(part, Part::StepStart { .. }));
    Some((at, last_step.unwrap_or(0)))
}

fn assistants(messages: &[UiMessage]) -> impl DoubleEndedIterator<Item = (usize, &UiMessage)> {
    messages.iter().enumerate().filter(|(_, message)| message.role == Role::Assistant)
}
