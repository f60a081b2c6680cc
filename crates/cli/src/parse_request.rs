//! The command `parse-request`: prints what a chat request asks for and what was decided in it.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use ui_message_stream::ChatRequest;
use ui_message_stream::approval::{
    ResumePlan, UnverifiedApprovalRequest, UnverifiedApprovalResponse, UnverifiedToolOutput,
};
use ui_message_stream::id::{ChatId, MessageId};
use ui_message_stream::request::Limits;

use crate::CliError;
use crate::input::read_all;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A file with the body of a POST; standard input if there is none, or `-`.
    file: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, CliError> {
    let body = read_all(arguments.file.as_deref())?;
    let chat = match ChatRequest::parse(&body, &Limits::default()) {
        Ok(chat) => chat,
        Err(error) => {
            eprintln!("{error}");
            return Ok(ExitCode::from(1));
        }
    };
    let plan = ResumePlan::new(chat.messages(), chat.continued_message());
    let pending = plan.superseded().iter().chain(plan.pending());
    let parsed = Parsed {
        chat_id: chat.id(),
        trigger: chat.trigger().as_str(),
        message_id: chat.message_id(),
        approvals: plan.unverified_responses().collect(),
        tool_outputs: plan.unverified_outputs().collect(),
        pending: pending.collect(),
    };
    writeln!(io::stdout(), "{}", serde_json::to_string(&parsed)?)?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Parsed<'a> {
    chat_id: &'a ChatId,
    trigger: &'a str,
    message_id: Option<&'a MessageId>,
    approvals: Vec<&'a UnverifiedApprovalResponse>,
    tool_outputs: Vec<&'a UnverifiedToolOutput>,
    /// Includes the approval requests after which the user sent another message: they have no
    /// response either.
    pending: Vec<&'a UnverifiedApprovalRequest>,
}
