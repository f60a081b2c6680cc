//! What users and clients post.

use std::sync::Arc;

use crate::log::decision::Goal;
use ui_message_stream::approval::{
    ClientToolResult, DeferredOutcome, ResumePlan, UnverifiedToolOutput,
};
use ui_message_stream::id::{ApprovalId, MessageId};
use ui_message_stream::message::{ToolPart, UiMessage};
use ui_message_stream::request::{ChatRequest, Limits};

/// A call that a user has seen and may answer, or that the client executes.
#[derive(Clone, Debug)]
pub(super) struct SeenCall {
    pub(super) message: MessageId,
    pub(super) call: String,
    /// `None` for a call that the client executes.
    pub(super) approval: Option<ApprovalId>,
    pub(super) is_provider_executed: bool,
}

/// An answer to a call: whether it is approved, or whether the client has executed it.
pub(super) type Answer = (SeenCall, bool);

impl SeenCall {
    pub(super) fn of(message: &UiMessage, part: &ToolPart) -> Option<Self> {
        let approval = part.approval_id().cloned();
        let is_answerable = approval.is_some() || part.tool_call_id.starts_with('c');
        is_answerable.then(|| SeenCall {
            message: message.id.clone(),
            call: part.tool_call_id.to_string(),
            approval,
            is_provider_executed: part.provider_executed == Some(true),
        })
    }
}

pub(super) fn new_message(number: u32) -> Goal {
    post(&format!(r#"{{"id":"c0","messages":[{}]}}"#, user(&format!("u{number}"), number)))
}

/// `is_named` is whether the client says that it is an edit.
pub(super) fn edit(message: &str, number: u32, is_named: bool) -> Goal {
    let message_json = user(message, number);
    let id = if is_named { format!(r#""messageId":"{message}","#) } else { String::new() };
    post(&format!(r#"{{"id":"c0",{id}"message":{message_json}}}"#))
}

/// `question` is the message that the client posts.
pub(super) fn regenerate(answer: Option<&str>, question: Option<&UiMessage>) -> Goal {
    let id = answer.map(|id| format!(r#""messageId":"{id}","#)).unwrap_or_default();
    let posted = question.map(|message| serde_json::to_string(message).unwrap());
    let posted = posted.map(|message| format!(r#""messages":[{message}],"#)).unwrap_or_default();
    post(&format!(r#"{{"id":"c0",{id}{posted}"trigger":"regenerate-message"}}"#))
}

pub(super) fn answers(answers: &[Answer]) -> Goal {
    let message = answered_message(answers);
    post(&format!(r#"{{"id":"c0","messages":[{message}]}}"#))
}

/// Answers that arrive together with a new message.
pub(super) fn answers_and_message(answers: &[Answer], number: u32) -> Goal {
    let message = answered_message(answers);
    let next = user(&format!("u{number}"), number);
    post(&format!(r#"{{"id":"c0","messages":[{message},{next}]}}"#))
}

/// The same answers from another screen.
pub(super) fn decisions(answers: &[Answer]) -> Goal {
    let message = UiMessage::parse(&answered_message(answers)).unwrap();
    let plan = Box::new(ResumePlan::new(std::slice::from_ref(&message), Some(&message)));
    Goal::Answer { message_id: message.id, plan, posted: None }
}

/// Returns the result of a call whose output the client has sent.
pub(super) fn outcome_of(output: &UnverifiedToolOutput) -> DeferredOutcome {
    match &output.result {
        ClientToolResult::Output(output) => DeferredOutcome::Output { output: output.clone() },
        ClientToolResult::ErrorText(error_text) => {
            DeferredOutcome::OutputError { error_text: error_text.clone() }
        }
    }
}

fn answered_message(answers: &[Answer]) -> String {
    let parts: Vec<String> = answers.iter().map(answered_part).collect();
    let id = &answers[0].0.message;
    let parts = parts.join(",");
    format!(r#"{{"id":"{id}","role":"assistant","parts":[{parts}]}}"#)
}

fn answered_part((seen, is_positive): &Answer) -> String {
    let SeenCall { call, approval, is_provider_executed, .. } = seen;
    let answer = match approval {
        Some(approval) => format!(
            r#""state":"approval-responded","providerExecuted":{is_provider_executed},"approval":{{"id":"{approval}","approved":{is_positive}}}"#
        ),
        None if *is_positive => r#""state":"output-available","output":"done""#.to_owned(),
        None => r#""state":"output-error","errorText":"failed""#.to_owned(),
    };
    format!(r#"{{"type":"tool-act","toolCallId":"{call}","input":{{}},{answer}}}"#)
}

fn user(id: &str, number: u32) -> String {
    format!(r#"{{"id":"{id}","role":"user","parts":[{{"type":"text","text":"{number}"}}]}}"#)
}

fn post(body: &str) -> Goal {
    let request = ChatRequest::parse(body.as_bytes(), &Limits::default());
    Goal::of(Arc::new(request.unwrap_or_else(|error| panic!("{error}: {body}"))))
}
