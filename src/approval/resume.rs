//! [`ResumePlan`]: what a history says of the calls that were left open, and what becomes of it.

use std::collections::{HashMap, HashSet};

use super::{
    ApprovalRequest, ApprovalResponse, ClientOutput, ClientResult, DeferredOutcome,
    DeferredToolResult, DeferredToolResults, OpenCall,
};
use crate::id::{ApprovalId, MessageId, ToolCallId};
use crate::json::Json;
use crate::message::{Part, Role, ToolPart, ToolState, UiMessage};

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
        let history = History::of(messages);
        let new_from = new_results_from(messages, continued);
        let mut approvals: HashMap<&ApprovalId, (Standing, usize, usize)> = HashMap::new();
        let mut denied: HashSet<&ApprovalId> = HashSet::new();
        let mut outputs = Vec::new();
        for (message_at, message) in assistants(messages) {
            let overruled = message.overruled_tool_parts();
            for (part_at, part) in message.parts.iter().enumerate() {
                let Part::Tool(part) = part else { continue };
                let is_overruled = overruled.binary_search(&part_at).is_ok();
                if let Some((id, standing)) = standing(part) {
                    if standing == Standing::Denied {
                        denied.insert(id);
                    }
                    if !is_overruled || standing == Standing::Settled {
                        let here = (standing, message_at, part_at);
                        let furthest = approvals.entry(id).or_insert(here);
                        if furthest.0 < standing {
                            *furthest = here;
                        }
                    }
                }
                if !is_overruled && let Some(output) = client_output(part) {
                    let is_new = new_from
                        .is_some_and(|(message, from)| message == message_at && from <= part_at);
                    outputs.push(Output {
                        message: message_at,
                        is_new,
                        output,
                    });
                }
            }
        }
        let mut open: Vec<(usize, usize)> = approvals
            .into_iter()
            .filter(|(id, (standing, ..))| match standing {
                Standing::Requested | Standing::Denied => true,
                Standing::Approved => !denied.contains(id),
                Standing::Settled => false,
            })
            .map(|(_, (_, message_at, part_at))| (message_at, part_at))
            .collect();
        open.sort_unstable();
        let mut plan = ResumePlan {
            approvals: Vec::new(),
            pending: Vec::new(),
            superseded: Vec::new(),
            outputs,
            history,
        };
        for (message_at, part_at) in open {
            if let Some(part) = messages[message_at].parts[part_at].as_tool() {
                plan.add(message_at, part);
            }
        }
        plan
    }

    /// Adds an approval that has no result.
    fn add(&mut self, message_at: usize, part: &ToolPart) {
        let tool_call_id = part.tool_call_id.clone();
        let tool_name = part.tool_name.clone();
        let input = part.input().cloned();
        let provider_executed = part.provider_executed == Some(true);
        match &part.state {
            ToolState::ApprovalResponded { approval, .. } => {
                let response = ApprovalResponse {
                    approval_id: approval.id.clone(),
                    tool_call_id,
                    tool_name,
                    input,
                    approved: approval.approved,
                    reason: approval.reason.clone(),
                    provider_executed,
                };
                self.approvals.push((message_at, response));
            }
            ToolState::ApprovalRequested { approval, .. } => {
                let approval_id = approval.id.clone();
                let request = ApprovalRequest {
                    approval_id,
                    tool_call_id,
                    tool_name,
                    input,
                    provider_executed,
                };
                if self.history.went_on_after(message_at) {
                    self.superseded.push(request);
                } else {
                    self.pending.push(request);
                }
            }
            _ => {}
        }
    }

    /// The answers to calls without a result, in the order of the history.
    pub fn approvals(&self) -> impl Iterator<Item = &ApprovalResponse> {
        self.approvals.iter().map(|(_, response)| response)
    }

    /// The results in the last step of the message that the response goes on with, or else of the
    /// last assistant message: no model call has seen them. Which of them the client gave, the
    /// host knows; the others are results of the server's own tools.
    pub fn outputs(&self) -> impl Iterator<Item = &ClientOutput> {
        self.outputs
            .iter()
            .filter(|output| output.is_new)
            .map(|output| &output.output)
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
            let known = open.iter().position(|call| {
                call.approval_id.as_ref() == Some(&response.approval_id)
                    && call.tool_call_id == response.tool_call_id
            });
            let known = known.map(|at| open.remove(at));
            results.push(DeferredToolResult {
                message_id: self.history.message_ids.get(*message_at).cloned(),
                tool_call_id: response.tool_call_id.clone(),
                tool_name: known
                    .map_or(&response.tool_name, |call| &call.tool_name)
                    .clone(),
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
                    ClientResult::Output(output) => DeferredOutcome::Output {
                        output: output.clone(),
                    },
                    ClientResult::ErrorText(error_text) => DeferredOutcome::OutputError {
                        error_text: error_text.clone(),
                    },
                },
                // The client shows a result, so nobody can answer the question any more.
                (Some(_), Some(_)) if !went_on => DeferredOutcome::Refused,
                _ => {
                    if went_on {
                        &mut superseded
                    } else {
                        &mut pending
                    }
                    .push(call.clone());
                    continue;
                }
            };
            results.push(DeferredToolResult {
                message_id: message_at
                    .and_then(|at| self.history.message_ids.get(at))
                    .cloned(),
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
        Some(call) if call.provider_executed => DeferredOutcome::ForProvider {
            approved: response.approved,
            reason,
        },
        _ if !response.approved => DeferredOutcome::Denied { reason },
        Some(call) => DeferredOutcome::Approved {
            input: call.input.clone(),
        },
        None => DeferredOutcome::Refused,
    }
}

impl History {
    fn of(messages: &[UiMessage]) -> Self {
        let calls = assistants(messages).flat_map(|(at, message)| {
            message
                .tool_parts()
                .map(move |part| (part.tool_call_id.clone(), at))
        });
        History {
            message_ids: messages.iter().map(|message| message.id.clone()).collect(),
            last_user: messages
                .iter()
                .rposition(|message| message.role == Role::User),
            message_of: calls.collect(),
        }
    }

    /// Whether the person wrote a message after this one.
    fn went_on_after(&self, message_at: usize) -> bool {
        self.last_user > Some(message_at)
    }

    fn ends_with_user(&self) -> bool {
        self.last_user
            .is_some_and(|at| at + 1 == self.message_ids.len())
    }
}

/// How far an approval has come; a later one overrules an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Requested,
    Approved,
    Denied,
    Settled,
}

fn standing(part: &ToolPart) -> Option<(&ApprovalId, Standing)> {
    match &part.state {
        ToolState::ApprovalRequested { approval, .. } => Some((&approval.id, Standing::Requested)),
        ToolState::ApprovalResponded { approval, .. } if approval.approved => {
            Some((&approval.id, Standing::Approved))
        }
        ToolState::ApprovalResponded { approval, .. } => Some((&approval.id, Standing::Denied)),
        ToolState::OutputAvailable {
            approval: Some(approval),
            ..
        }
        | ToolState::OutputError {
            approval: Some(approval),
            ..
        }
        | ToolState::OutputDenied {
            approval: Some(approval),
            ..
        } => Some((&approval.id, Standing::Settled)),
        _ => None,
    }
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
    Some(ClientOutput {
        tool_call_id: part.tool_call_id.clone(),
        result,
    })
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
    let last_step = message
        .parts
        .iter()
        .rposition(|part| matches!(part, Part::StepStart { .. }));
    Some((at, last_step.unwrap_or(0)))
}

fn assistants(messages: &[UiMessage]) -> impl DoubleEndedIterator<Item = (usize, &UiMessage)> {
    messages
        .iter()
        .enumerate()
        .filter(|(_, message)| message.role == Role::Assistant)
}
