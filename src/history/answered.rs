//! Answers given by id, put where a browser would hold them.

use super::answers::place as place_of_output;
use super::settle::{failed, is_left, returned};
use super::{Answers, Chat};
use crate::approval::{ClientOutput, ClientResult, PersonsDecision};
use crate::message::{AnsweredApproval, Part, Role, ToolPart, ToolState, UiMessage};
use crate::record::FieldError;
use crate::request::{ChatRequest, ParseRequestError};

impl Chat {
    /// The request that a browser would send in which these answers were given, to the last message
    /// of this conversation. What they come to is decided as of any request.
    ///
    /// A call that has its result stays as it is: the same answers may come again. A decision about
    /// anything but the last message is passed over.
    ///
    /// # Errors
    /// [`ParseRequestError::Field`] names the output of a call that was not left to the client, and
    /// says where nothing of it answers anything.
    ///
    /// ```
    /// use ui_message_stream::approval::Principal;
    /// use ui_message_stream::history::{Answers, Chat};
    /// use ui_message_stream::request::Limits;
    ///
    /// let body = br#"{"toolOutputs": [{"toolCallId": "call_1", "output": "Berlin"}]}"#;
    /// let answers = Answers::parse(body, &Limits::default())?;
    /// let error = Chat::new("c", Principal::new("ada")).answered(&answers).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "toolOutputs[0].toolCallId: names no call of the last message that the client is to run"
    /// );
    /// # Ok::<(), ui_message_stream::request::ParseRequestError>(())
    /// ```
    pub fn answered(&self, answers: &Answers) -> Result<ChatRequest, ParseRequestError> {
        let last = self.messages.last().filter(|message| message.role == Role::Assistant);
        let mut message = last.cloned();
        let parts = message.as_mut().map_or(&mut [][..], |message| &mut message.parts);
        let mut answered = Vec::new();
        for (at, given) in answers.tool_outputs.iter().enumerate() {
            let place = self.give(given, parts).ok_or_else(|| {
                FieldError::new("toolCallId", NOT_LEFT).within(&place_of_output(at))
            })?;
            answered.push(place);
        }
        answered.extend(answers.decisions.iter().filter_map(|decision| decide(decision, parts)));
        match (message, answered.into_iter().max()) {
            (Some(mut message), Some(place)) => {
                end_with_step_of(&mut message, place);
                Ok(ChatRequest::of_last_message(self.id.clone(), message, answers.custom.clone()))
            }
            _ => Err(FieldError::new("decisions", NOT_ASKED).into()),
        }
    }

    /// Puts an output where it belongs; `None` if that is nowhere.
    fn give(&self, given: &ClientOutput, parts: &mut [Part]) -> Option<usize> {
        let id = &given.tool_call_id;
        let (place, part) = find(parts, |part| part.tool_call_id == *id)?;
        if !part.is_settled() {
            self.left_to_client.iter().find(|call| is_left(part, call))?;
            let input = part.input().cloned();
            part.state = match &given.result {
                ClientResult::Output(output) => returned(input, None, output.clone()),
                ClientResult::ErrorText(text) => failed(input, None, text.clone()),
            };
        }
        Some(place)
    }
}

/// Puts a decision where its question stands.
fn decide(decision: &PersonsDecision, parts: &mut [Part]) -> Option<usize> {
    let (place, part) = find(parts, |part| part.approval_id() == Some(&decision.approval_id))?;
    if let ToolState::ApprovalRequested { approval, .. } = &part.state {
        let question = (**approval).clone();
        let input = part.input().cloned();
        let approval = Box::new(AnsweredApproval {
            id: question.id,
            approved: decision.approved,
            reason: decision.reason.clone(),
            details: question.details,
        });
        part.state = ToolState::ApprovalResponded { input, approval };
    }
    Some(place)
}

fn find(parts: &mut [Part], is_it: impl Fn(&ToolPart) -> bool) -> Option<(usize, &mut ToolPart)> {
    let tools = parts.iter_mut().enumerate().filter_map(|(place, part)| match part {
        Part::Tool(part) => Some((place, &mut **part)),
        _ => None,
    });
    tools.filter(|(_, part)| is_it(part)).last()
}

/// Leaves out what was said after the step of this part: who answers it has not seen more, and is to
/// be told, where an earlier request brought the same answers.
fn end_with_step_of(message: &mut UiMessage, place: usize) {
    let mut after = message.parts.iter().skip(place);
    if let Some(steps) = after.position(|part| matches!(part, Part::StepStart { .. })) {
        message.parts.truncate(place + steps);
    }
}

const NOT_LEFT: &str = "names no call of the last message that the client is to run";

const NOT_ASKED: &str = "answers nothing that the last message asks";
