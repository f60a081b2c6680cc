//! The agent of `examples/adapter.rs`, and the statuses of its rejections, shared by the same chat on
//! actix-web, hyper and poem.

use std::env;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use async_stream::try_stream;
use futures_core::Stream;
use http::StatusCode;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::sleep;
use ui_message_stream::approval::store::RedeemError;
use ui_message_stream::approval::{Approvals, ApprovedCall, Principal, RunningCalls, ToolList};
use ui_message_stream::event::ToolCall;
use ui_message_stream::model::ToolResult;
use ui_message_stream::request::ParseRequestError;
use ui_message_stream::{AgentEvent, BoxError, ChatRequest, Json};

static EFFECTS: AtomicUsize = AtomicUsize::new(0);

/// Returns the approvals, with the tools of the agent.
pub fn approvals() -> Approvals {
    let tools = ToolList::new().tool("delete_file", "Deletes a file.", &Json::no_schema());
    Approvals::new(tools.client_executed("get_location"))
}

/// Returns how often `delete_file` ran.
pub fn effects() -> usize {
    EFFECTS.load(SeqCst)
}

/// Returns the status of the response to a body that is not a chat request. It is the one of the
/// extractor for axum.
pub fn status_of(error: &ParseRequestError) -> StatusCode {
    if error.is_limit() { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST }
}

/// Returns the status of the response if the decisions in a request are not redeemed. It is the one of
/// `ChatRejection` for axum.
pub fn status_of_refusal(error: &RedeemError) -> StatusCode {
    match error {
        RedeemError::Input(_) => StatusCode::BAD_REQUEST,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Executes the approved call: once, and to its end even if the client disconnects.
///
/// It takes 400 ms, or until the server at the address in `TOOL_GATE` closes the connection. With
/// that address, a test can read the response while the tool runs.
pub async fn delete_file(call: ApprovedCall) -> Json {
    EFFECTS.fetch_add(1, SeqCst);
    match env::var("TOOL_GATE") {
        Ok(address) => wait_for_gate(&address).await,
        Err(_) => sleep(Duration::from_millis(400)).await,
    }
    call.input
}

async fn wait_for_gate(address: &str) {
    if let Ok(mut gate) = TcpStream::connect(address).await {
        // The end of the connection is what counts, also if it is an error.
        let _ = gate.read(&mut [0]).await;
    }
}

/// The agent. First it continues what an earlier turn left open.
pub fn respond(
    approvals: Approvals,
    user: Principal,
    chat: ChatRequest,
    mut running: RunningCalls,
) -> impl Stream<Item = Result<AgentEvent, BoxError>> + Send {
    try_stream! {
        for output in running.unverified_outputs() {
            yield AgentEvent::text(format!("Your browser says: {:?}. ", output.result));
        }
        while let Some(event) = running.next_event().await {
            yield event;
        }
        let results = running.into_results();
        for result in results.results().iter().filter(|_| results.pending().is_empty()) {
            yield AgentEvent::text(ToolResult::from(&result.outcome).text().into_owned());
        }
        if chat.messages().len() == 1 {
            let call = ToolCall::new("call_1", "delete_file");
            let input = Json::parse(r#"{"path": "notes.txt"}"#)?;
            yield AgentEvent::tool_input(call.clone(), input.clone());
            yield approvals.for_chat(&user, chat.id()).request_approval_of(&call, &input).await;
        }
        if chat.new_user_message().is_some_and(|message| message.text().contains("where")) {
            let call = ToolCall::new(format!("call_{}", chat.messages().len() + 1), "get_location");
            yield AgentEvent::tool_input(call.client_executed(), Json::parse("{}")?);
        }
    }
}
