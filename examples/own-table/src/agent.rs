//! The agent, which asks before it deletes a file.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use async_stream::try_stream;
use futures_core::Stream;
use ui_message_stream::approval::{Approvals, ApprovedCall, RunningCalls, ToolList};
use ui_message_stream::event::ToolCall;
use ui_message_stream::message::Role;
use ui_message_stream::model::{ModelMessage, ToModelMessages, ToolContent};
use ui_message_stream::{AgentEvent, BoxError, Json, UiMessage};
use ui_message_stream_chat::Chat;

static EFFECTS: AtomicUsize = AtomicUsize::new(0);

/// Returns the approvals, with the tool of the agent.
pub fn approvals() -> Approvals {
    let tools = ToolList::new().tool("delete_file", "Deletes a file.", &Json::no_schema());
    Approvals::new(tools)
}

/// Returns how often `delete_file` ran.
pub fn effects() -> usize {
    EFFECTS.load(SeqCst)
}

pub(crate) async fn delete_file(call: ApprovedCall) -> Json {
    EFFECTS.fetch_add(1, SeqCst);
    call.input
}

/// The agent. First it continues what an earlier turn left open. It reads the stored messages, and not
/// those that the client posts.
pub(crate) fn respond(
    approvals: Approvals,
    chat: Chat,
    mut running: RunningCalls,
) -> impl Stream<Item = Result<AgentEvent, BoxError>> {
    try_stream! {
        while let Some(event) = running.next_event().await {
            yield event;
        }
        let approvals = approvals.for_chat(&chat.owner, &chat.id);
        // Also of the calls that this request does not hold: one may still be executed.
        let (results, open) = (running.into_results(), chat.open_approvals());
        let results = approvals.with_newest_results(results, &open).await?;
        if !results.pending().is_empty() {
            return;
        }
        // What a model reads.
        let prompt: Vec<ModelMessage> =
            ToModelMessages::new().with_deferred(&results).model_messages(&chat.messages);
        let question = chat.messages.last().filter(|message| message.role == Role::User);
        match question.map(UiMessage::text) {
            None => yield AgentEvent::text(tool_results(prompt.last())),
            Some(text) if text.contains("happened") => {
                yield AgentEvent::text(tool_results(&prompt));
            }
            Some(text) if text.contains("delete") => {
                let call = ToolCall::new(format!("call_{}", chat.messages.len()), "delete_file");
                let input = Json::parse(r#"{"path": "notes.txt"}"#)?;
                yield AgentEvent::tool_input(call.clone(), input.clone());
                yield approvals.request_approval_of(&call, &input).await;
            }
            Some(text) => yield AgentEvent::text(format!("You say: {text}")),
        }
    }
}

/// The results of the tools in these messages.
fn tool_results<'m>(messages: impl IntoIterator<Item = &'m ModelMessage>) -> String {
    let tools = messages.into_iter().filter_map(|message| match message {
        ModelMessage::Tool { content } => Some(content),
        _ => None,
    });
    let results = tools.flatten().filter_map(|content| match content {
        ToolContent::Result(result) => Some(result.result.text()),
        ToolContent::ProviderApproval(_) => None,
    });
    results.collect::<Vec<_>>().join(" ")
}
