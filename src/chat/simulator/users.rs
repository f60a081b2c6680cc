//! What users and clients post.

use std::sync::Arc;

use crate::approval::ResumePlan;
use crate::chat::turn::machine::Request;
use crate::id::MessageId;
use crate::message::UiMessage;
use crate::request::{ChatRequest, Limits};

/// A call that a user has seen, and may answer.
#[derive(Clone, Debug)]
pub(super) struct SeenCall {
    pub(super) message: MessageId,
    pub(super) call: String,
    pub(super) approval: String,
    pub(super) is_provider_executed: bool,
}

pub(super) fn new_message(number: u32) -> Request {
    post(&format!(r#"{{"id":"c","messages":[{}]}}"#, user(&format!("u{number}"), number)))
}

pub(super) fn edit(message: &str, number: u32) -> Request {
    let message_json = user(message, number);
    post(&format!(r#"{{"id":"c","messageId":"{message}","messages":[{message_json}]}}"#))
}

pub(super) fn regenerate(answer: Option<&str>, question: &str) -> Request {
    let id = answer.map(|id| format!(r#""messageId":"{id}","#)).unwrap_or_default();
    let question = user(question, 0);
    post(&format!(r#"{{"id":"c",{id}"trigger":"regenerate-message","messages":[{question}]}}"#))
}

pub(super) fn answers(answers: &[(SeenCall, bool)]) -> Request {
    let message = answered_message(answers);
    post(&format!(r#"{{"id":"c","messages":[{message}]}}"#))
}

/// The same answers from another screen.
pub(super) fn decisions(answers: &[(SeenCall, bool)]) -> Request {
    let message = UiMessage::parse(&answered_message(answers)).unwrap();
    let plan = Box::new(ResumePlan::new(std::slice::from_ref(&message), Some(&message)));
    Request::Decisions { message_id: message.id, plan }
}

fn answered_message(answers: &[(SeenCall, bool)]) -> String {
    let parts: Vec<String> = answers
        .iter()
        .map(|(seen, approved)| {
            let SeenCall { call, approval, is_provider_executed, .. } = seen;
            format!(
                r#"{{"type":"tool-act","toolCallId":"{call}","state":"approval-responded","input":{{}},"providerExecuted":{is_provider_executed},"approval":{{"id":"{approval}","approved":{approved}}}}}"#
            )
        })
        .collect();
    let (id, parts) = (&answers[0].0.message, parts.join(","));
    format!(r#"{{"id":"{id}","role":"assistant","parts":[{parts}]}}"#)
}

fn user(id: &str, number: u32) -> String {
    format!(r#"{{"id":"{id}","role":"user","parts":[{{"type":"text","text":"{number}"}}]}}"#)
}

fn post(body: &str) -> Request {
    let request = ChatRequest::parse(body.as_bytes(), &Limits::default());
    Request::Post(Arc::new(request.unwrap_or_else(|error| panic!("{error}: {body}"))))
}
