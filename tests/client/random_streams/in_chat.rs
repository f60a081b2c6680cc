//! [`InChat`]: a case as the response to a POST of `Chat`, or as a stream that it resumes.

use serde_json::{Value, json};
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::reducer::ResetOn;

use super::case::Case;
use super::compare::{Verdict, canonical};

/// A case as `Chat` receives it.
pub(crate) struct InChat {
    case: Case,
    /// The message that the client shows before.
    message: Option<String>,
    resumes: bool,
}

/// The message that `Chat` starts if there is none to continue.
const NEW: &str = r#"{"id":"client-1","role":"assistant","parts":[]}"#;

impl InChat {
    /// Half of the cases are resumed.
    pub(crate) fn of(case: &Case) -> Self {
        let resumes = case.chunks.len().is_multiple_of(2);
        // A resumed stream continues the message only if the input of a tool was cut off. Otherwise
        // it starts a new one.
        let is_cut_off = |message: &&String| {
            let message: Value = serde_json::from_str(message).unwrap();
            message["parts"].as_array().unwrap().iter().any(|part| {
                let kind = part["type"].as_str().unwrap();
                let is_tool = kind == "dynamic-tool" || kind.starts_with("tool-");
                is_tool && part["state"] == "input-streaming"
            })
        };
        let continued = case.message.as_ref().filter(|message| !resumes || is_cut_off(message));
        let first_message = continued.map_or(NEW, String::as_str).to_owned();
        InChat {
            message: case.message.clone(),
            case: Case {
                message: Some(first_message),
                chunks: case.chunks.clone(),
                reads_on: false,
                client: case.client,
            },
            resumes,
        }
    }

    pub(crate) fn question(&self) -> Value {
        let mut question = self.case.question(&[]);
        question["resumes"] = self.resumes.into();
        question["message"] = match &self.message {
            Some(message) => serde_json::from_str(message).unwrap(),
            None => Value::Null,
        };
        question
    }

    /// The differences from the message that `Chat` has at the end.
    pub(crate) fn faults(&self, answer: &Value) -> Vec<String> {
        let reset_on = if self.resumes { ResetOn::FirstStart } else { ResetOn::Never };
        let (mut reducer, refused) = self.case.reduce(reset_on);
        let message = canonical(&serde_json::to_string(reducer.message()).unwrap());
        let here = Verdict {
            refused,
            error_text: reducer.error_text().map(str::to_owned),
            shown: message.clone(),
            message,
        };
        let mut faults = here.differences(&Verdict::of(answer));
        let reason = json!(reducer.finish_reason().map(FinishReason::as_str));
        if reason != answer["finishReason"] {
            faults.push(format!("finish reason: here {reason}, client {}", answer["finishReason"]));
        }
        let for_chat = |fault: &String| format!("Chat (resumes: {}): {fault}", self.resumes);
        faults.iter().map(for_chat).collect()
    }
}
