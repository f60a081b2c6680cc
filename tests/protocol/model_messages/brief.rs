//! Model messages in few words, for people to read in a test.

use ui_message_stream::model::{
    AssistantContent, FileSource, ModelMessage, ToolCallContent, ToolContent, ToolResult,
    ToolResultContent, UserContent,
};

/// One line a message: its role, and what it holds.
pub(crate) fn brief(messages: &[ModelMessage]) -> Vec<String> {
    messages.iter().map(line).collect()
}

fn line(message: &ModelMessage) -> String {
    let (role, content): (_, Vec<String>) = match message {
        ModelMessage::System { text } => ("system", vec![format!("{text:?}")]),
        ModelMessage::User { content } => ("user", content.iter().map(of_user).collect()),
        ModelMessage::Assistant { content } => {
            ("assistant", content.iter().map(of_assistant).collect())
        }
        ModelMessage::Tool { content } => ("tool", content.iter().map(of_tool).collect()),
    };
    format!("{role}: {}", content.join(", "))
}

fn of_user(content: &UserContent) -> String {
    match content {
        UserContent::Text(text) => format!("{:?}", text.text),
        UserContent::File(file) => of_source(&file.source),
    }
}

fn of_assistant(content: &AssistantContent) -> String {
    match content {
        AssistantContent::Text(text) => format!("{:?}", text.text),
        AssistantContent::Reasoning(reasoning) => format!("thinks {:?}", reasoning.text),
        AssistantContent::File(file) => of_source(&file.source),
        AssistantContent::ToolCall(call) => of_call(call),
        AssistantContent::ToolResult(result) => of_result(result),
    }
}

fn of_tool(content: &ToolContent) -> String {
    match content {
        ToolContent::Result(result) => of_result(result),
        ToolContent::ProviderApproval(answer) => {
            let yes = if answer.approved { "yes" } else { "no" };
            let reason = answer.reason.as_deref().unwrap_or("no reason");
            format!("{} to the provider: {yes}: {reason}", answer.tool_call_id)
        }
    }
}

fn of_call(call: &ToolCallContent) -> String {
    format!("{} calls {} {}", call.tool_call_id, call.tool_name, call.input)
}

fn of_result(result: &ToolResultContent) -> String {
    let became = match &result.result {
        ToolResult::Output(output) => format!("= {output}"),
        ToolResult::Error(error) => format!("failed: {error}"),
        ToolResult::Denied { reason: Some(reason) } => format!("denied: {reason}"),
        ToolResult::Denied { reason: None } => "denied".to_owned(),
        ToolResult::NotExecuted { why } => format!("not executed: {why:?}"),
        ToolResult::OutcomeUnknown { so_far: Some(output) } => format!("unknown, so far {output}"),
        ToolResult::OutcomeUnknown { so_far: None } => "unknown".to_owned(),
    };
    format!("{} {became}", result.tool_call_id)
}

fn of_source(source: &FileSource) -> String {
    match source {
        FileSource::Url(url) => format!("file at {url}"),
        FileSource::Base64(base64) => format!("file {base64}"),
    }
}
