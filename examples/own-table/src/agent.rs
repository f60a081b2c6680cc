//! The agent, which asks before it deletes a file.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use async_stream::try_stream;
use futures_core::Stream;
use ui_message_stream::approval::{Approvals, ApprovedCall, RunningCalls, ToolList};
use ui_message_stream::event::ToolCall;
use ui_message_stream::message::Role;
use ui_message_stream::model::ToolResult;
use ui_message_stream::{AgentEvent, BoxError, Json, UiMessage};

use crate::ChatKey;

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
    key: ChatKey,
    messages: Vec<UiMessage>,
    mut running: RunningCalls,
) -> impl Stream<Item = Result<AgentEvent, BoxError>> {
    try_stream! {
        while let Some(event) = running.next_event().await {
            yield event;
        }
        let results = running.into_results();
        if !results.pending().is_empty() {
            return;
        }
        for result in results.results() {
            yield AgentEvent::text(ToolResult::from(&result.outcome).text().into_owned());
        }
        let Some(question) = messages.last().filter(|message| message.role == Role::User) else {
            return;
        };
        if question.text().contains("delete") {
            let call = ToolCall::new(format!("call_{}", messages.len()), "delete_file");
            let input = Json::parse(r#"{"path": "notes.txt"}"#)?;
            yield AgentEvent::tool_input(call.clone(), input.clone());
            let chat = approvals.for_chat(&key.user, &key.chat);
            yield chat.request_approval_of(&call, &input).await;
        } else {
            yield AgentEvent::text(format!("You say: {}", question.text()));
        }
    }
}
