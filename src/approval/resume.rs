//! [`ResumePlan`]: what a history says of the calls that were left open, and what becomes of it.

use std::collections::{HashMap, HashSet};

use super::{
    ApprovalRecord, ApprovalRequest, ApprovalResponse, ClientOutput, ClientResult, DeferredOutcome,
    DeferredToolResult, DeferredToolResults, OpenCall, PersonsDecision,
};
use crate::id::{ApprovalId, MessageId, ToolCallId};
use crate::json::Json;
use crate::message::{
    AnsweredApproval, Approval, ApprovalDetails, Part, Role, ToolKind, ToolPart, ToolState,
    UiMessage,
};
use crate::record::Extra;

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
/// assert!(matches!(
///     &result.outcome,
///     DeferredOutcome::Approved { input, .. } if *input == Json::of("notes.txt")?
/// ));
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
    /// The message that the response goes on with.
    continued: Option<usize>,
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
    questions: HashMap<ApprovalId, Question>,
}

/// A question as the history holds it.
#[derive(Debug, Clone)]
struct Question {
    message: usize,
    /// The id of its call on the wire; the host may know the call by another.
    tool_call_id: ToolCallId,
    has_result: bool,
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
            continued: continued.and_then(|continued| place_of(messages, continued)),
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

    /// Decisions that came by another way than the history: as if just this message held them.
    pub fn of_decisions<'d>(
        message_id: &MessageId,
        decisions: impl IntoIterator<Item = (&'d ApprovalRecord, &'d PersonsDecision)>,
    ) -> Self {
        let answered = decisions.into_iter().map(|(record, decision)| {
            Part::Tool(Box::new(ToolPart {
                tool_call_id: record.tool_call_id.clone(),
                tool_name: record.tool_name.clone(),
                kind: ToolKind::Static,
                title: None,
                tool_metadata: None,
                provider_executed: record.provider_executed.then_some(true),
                call_provider_metadata: None,
                state: ToolState::ApprovalResponded {
                    input: Some(record.input.clone()),
                    approval: Box::new(AnsweredApproval {
                        id: decision.approval_id.clone(),
                        approved: decision.approved,
                        reason: decision.reason.clone(),
                        details: ApprovalDetails::default(),
                    }),
                },
                extra: Extra::default(),
            }))
        });
        let message = UiMessage::new(message_id.clone(), Role::Assistant, answered.collect());
        Self::new(std::slice::from_ref(&message), Some(&message))
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
    /// tool and input, whether or not the person has written on since; else it is refused. A denial
    /// is honoured in any case. An answer that the record does not know and that stands in an older
    /// message was settled long ago, and is passed over. An output is taken for a call that was left
    /// to the client; given for a call that waits for a person, it is refused. What the record has
    /// beyond that is still pending, or superseded if the person wrote on.
    ///
    /// Before the host runs anything, it replaces its record by
    /// [`pending`](DeferredToolResults::pending): nothing else of it is open any more. It does not
    /// look for the results' tool call ids in its record, for these are the wire's.
    pub fn settle(self, open_calls: &[OpenCall]) -> DeferredToolResults {
        let mut open: Vec<&OpenCall> = open_calls.iter().collect();
        let answers = self.answers().map(|(is_continued, response)| {
            // By the approval alone: on the wire the call may have another id than the host gave it.
            let asked = Some(&response.approval_id);
            let known = open.iter().position(|call| call.approval_id.as_ref() == asked);
            let known = known.map(|at| open.remove(at));
            let is_heard = known.is_some() || is_continued;
            is_heard.then(|| Settled {
                tool_name: known.map(|call| call.tool_name.clone()),
                outcome: outcome(response, known),
                is_final: known.is_some(),
            })
        });
        let answers = answers.collect();
        self.settle_with(answers, &open.into_iter().cloned().collect::<Vec<_>>(), Vec::new())
    }

    /// The answers, and whether each stands in the message that the response goes on with.
    pub(super) fn answers(&self) -> impl Iterator<Item = (bool, &ApprovalResponse)> {
        let answers = self.approvals.iter();
        answers.map(|(message_at, response)| (self.continued == Some(*message_at), response))
    }

    /// Whether the person wrote on instead of answering this question.
    pub(super) fn wrote_past(&self, approval_id: &ApprovalId) -> bool {
        let question = self.history.questions.get(approval_id);
        self.history.went_on_since(question.map(|question| question.message))
    }

    /// Puts together what became of the answers, in their order (`None`: passed over), of the calls
    /// that have none, and of those that nobody can answer any more: `closed`.
    pub(super) fn settle_with(
        self,
        answers: Vec<Option<Settled>>,
        open_calls: &[OpenCall],
        closed: Vec<(OpenCall, DeferredOutcome)>,
    ) -> DeferredToolResults {
        let mut results = Vec::new();
        for ((message_at, response), answer) in self.approvals.iter().zip(answers) {
            let Some(Settled { tool_name, outcome, is_final }) = answer else { continue };
            results.push(DeferredToolResult {
                message_id: self.history.message_ids.get(*message_at).cloned(),
                tool_call_id: response.tool_call_id.clone(),
                tool_name: tool_name.unwrap_or_else(|| response.tool_name.clone()),
                approval_id: Some(response.approval_id.clone()),
                outcome,
                is_final,
            });
        }
        for (call, outcome) in closed {
            let id = call.approval_id.as_ref();
            results.extend(id.map(|id| self.result_of_question(&call, id, outcome)));
        }
        let mut pending = Vec::new();
        let mut superseded = Vec::new();
        for call in open_calls {
            let fate = match &call.approval_id {
                Some(id) => self.fate_of_question(call, id),
                None => self.fate_of_client_call(call),
            };
            match fate {
                Fate::Settled(result) => results.push(result),
                Fate::Pending => pending.push(call.clone()),
                Fate::Superseded => superseded.push(call.clone()),
            }
        }
        DeferredToolResults::new(results, pending, superseded)
    }

    /// A result of a question that the history may hold.
    fn result_of_question(
        &self,
        call: &OpenCall,
        approval_id: &ApprovalId,
        outcome: DeferredOutcome,
    ) -> DeferredToolResult {
        let question = self.history.questions.get(approval_id);
        let message = question.and_then(|question| self.history.message_ids.get(question.message));
        let wire_id = question.map_or(&call.tool_call_id, |question| &question.tool_call_id);
        DeferredToolResult {
            message_id: message.cloned(),
            tool_call_id: wire_id.clone(),
            tool_name: call.tool_name.clone(),
            approval_id: Some(approval_id.clone()),
            is_final: outcome != DeferredOutcome::Refused,
            outcome,
        }
    }

    /// What becomes of a question that has no answer.
    fn fate_of_question(&self, call: &OpenCall, approval_id: &ApprovalId) -> Fate {
        if self.wrote_past(approval_id) {
            return Fate::Superseded;
        }
        let question = self.history.questions.get(approval_id);
        // The client shows a result, so nobody can answer any more.
        if question.is_some_and(|question| question.has_result) {
            return Fate::Settled(self.result_of_question(
                call,
                approval_id,
                DeferredOutcome::Refused,
            ));
        }
        Fate::Pending
    }

    /// What becomes of a call that was left to the client.
    fn fate_of_client_call(&self, call: &OpenCall) -> Fate {
        let message_at = self.history.message_of.get(&call.tool_call_id).copied();
        let given = self.outputs.iter().find(|given| {
            Some(given.message) == message_at && given.output.tool_call_id == call.tool_call_id
        });
        let outcome = match given.map(|given| &given.output.result) {
            Some(ClientResult::Output(output)) => {
                DeferredOutcome::Output { output: output.clone() }
            }
            Some(ClientResult::ErrorText(error_text)) => {
                DeferredOutcome::OutputError { error_text: error_text.clone() }
            }
            None if self.history.went_on_since(message_at) => return Fate::Superseded,
            None => return Fate::Pending,
        };
        Fate::Settled(DeferredToolResult {
            message_id: message_at.and_then(|at| self.history.message_ids.get(at)).cloned(),
            tool_call_id: call.tool_call_id.clone(),
            tool_name: call.tool_name.clone(),
            approval_id: None,
            outcome,
            is_final: true,
        })
    }
}

/// What became of an answer.
pub(super) struct Settled {
    /// Which tool, if the host knows the call.
    pub(super) tool_name: Option<Box<str>>,
    pub(super) outcome: DeferredOutcome,
    pub(super) is_final: bool,
}

/// What becomes of a call that nobody answered.
enum Fate {
    Settled(DeferredToolResult),
    Pending,
    Superseded,
}

fn outcome(response: &ApprovalResponse, known: Option<&OpenCall>) -> DeferredOutcome {
    let reason = response.reason.clone();
    match known {
        Some(call) if call.provider_executed => {
            DeferredOutcome::ForProvider { approved: response.approved, reason, claim: None }
        }
        _ if !response.approved => DeferredOutcome::Denied { reason },
        Some(call) => DeferredOutcome::Approved { input: call.input.clone(), claim: None },
        None => DeferredOutcome::Refused,
    }
}

impl History {
    fn of(messages: &[UiMessage]) -> Self {
        let mut history = History {
            message_ids: messages.iter().map(|message| message.id.clone()).collect(),
            last_user: messages.iter().rposition(|message| message.role == Role::User),
            message_of: HashMap::new(),
            questions: HashMap::new(),
        };
        for (message, part) in assistants(messages)
            .flat_map(|(at, message)| message.tool_parts().map(move |part| (at, part)))
        {
            history.message_of.insert(part.tool_call_id.clone(), message);
            let Some(id) = part.approval_id() else { continue };
            let has_result = matches!(
                part.state,
                ToolState::OutputAvailable { .. }
                    | ToolState::OutputError { .. }
                    | ToolState::OutputDenied { .. }
            );
            if has_result || !history.questions.get(id).is_some_and(|known| known.has_result) {
                let tool_call_id = part.tool_call_id.clone();
                let question = Question { message, tool_call_id, has_result };
                history.questions.insert(id.clone(), question);
            }
        }
        history
    }

    /// Whether the person wrote a message after this one.
    fn went_on_after(&self, message_at: usize) -> bool {
        self.last_user > Some(message_at)
    }

    /// Whether the person wrote on after a call; after one that the history lacks, if theirs is the
    /// last word.
    fn went_on_since(&self, message_at: Option<usize>) -> bool {
        match message_at {
            Some(message_at) => self.went_on_after(message_at),
            None => self.ends_with_user(),
        }
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
        Some(continued) => place_of(messages, continued).map(|at| (at, &messages[at])),
        None => assistants(messages).next_back(),
    }?;
    let last_step = message.parts.iter().rposition(|part| matches!(part, Part::StepStart { .. }));
    Some((at, last_step.unwrap_or(0)))
}

/// Where an assistant message stands.
fn place_of(messages: &[UiMessage], message: &UiMessage) -> Option<usize> {
    assistants(messages).rfind(|(_, other)| other.id == message.id).map(|(at, _)| at)
}

fn assistants(messages: &[UiMessage]) -> impl DoubleEndedIterator<Item = (usize, &UiMessage)> {
    messages.iter().enumerate().filter(|(_, message)| message.role == Role::Assistant)
}
