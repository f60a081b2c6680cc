//! Model messages in a short notation that is easy to read in a test.

use ui_message_stream::model::{
    AssistantContent, FileSource, ModelMessage, ToolCallContent, ToolContent, ToolResult,
    ToolResultContent, UserContent,
};

/// One line for each message: its role and its contents.
pub(crate) fn brief(messages: &[ModelMessage]) -> Vec<String> {
    messages.iter().map(line).collect()
}

fn line(message: &ModelMessage) -> String {
    let (role, content): (_, Vec<String>) = match message {
        ModelMessage::System { text } => ("system", vec![format!("{text:?}")]),
        ModelMessage::User { content } => ("user", content.iter().map(user_text).collect()),
        ModelMessage::Assistant { content } => {
            ("assistant", content.iter().map(assistant_text).collect())
        }
        ModelMessage::Tool { content } => ("tool", content.iter().map(tool_text).collect()),
    };
    format!("{role}: {}", content.join(", "))
}

fn user_text(content: &UserContent) -> String {
    match content {
        UserContent::Text(text) => format!("{:?}", text.text),
        UserContent::File(file) => source_text(&file.source),
    }
}

fn assistant_text(content: &AssistantContent) -> String {
    match content {
        AssistantContent::Text(text) => format!("{:?}", text.text),
        AssistantContent::Reasoning(reasoning) => format!("thinks {:?}", reasoning.text),
        AssistantContent::File(file) => source_text(&file.source),
        AssistantContent::ToolCall(call) => call_text(call),
        AssistantContent::ToolResult(result) => result_text(result),
    }
}

fn tool_text(content: &ToolContent) -> String {
    match content {
        ToolContent::Result(result) => result_text(result),
        ToolContent::ProviderApproval(answer) => {
            let yes = if answer.approved { "yes" } else { "no" };
            let reason = answer.reason.as_deref().unwrap_or("no reason");
            format!("{} to the provider: {yes}: {reason}", answer.tool_call_id)
        }
    }
}

fn call_text(call: &ToolCallContent) -> String {
    format!("{} calls {} {}", call.tool_call_id, call.tool_name, call.input)
}

fn result_text(result: &ToolResultContent) -> String {
    let became = match &result.result {
        ToolResult::Output(output) => format!("= {output}"),
        ToolResult::Error(error) => format!("failed: {error}"),
        ToolResult::Denied { reason: Some(reason) } => format!("denied: {reason}"),
        ToolResult::Denied { reason: None } => "denied".to_owned(),
        ToolResult::Executing => "runs".to_owned(),
        ToolResult::NotExecuted { why } => format!("not executed: {why:?}"),
        ToolResult::OutcomeUnknown { so_far: Some(output) } => format!("unknown, so far {output}"),
        ToolResult::OutcomeUnknown { so_far: None } => "unknown".to_owned(),
    };
    format!("{} {became}", result.tool_call_id)
}

fn source_text(source: &FileSource) -> String {
    match source {
        FileSource::Url(url) => format!("file at {url}"),
        FileSource::Base64(base64) => format!("file {base64}"),
    }
}
