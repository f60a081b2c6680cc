//! An agent of your own behind `useChat`, with approvals. It has no authentication, so it answers
//! only its own machine. Run `cargo run --example adapter`, then post to it as `useChat` does.
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use async_stream::try_stream;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{Router, get, post};
use ui_message_stream::approval::{Approvals, ApprovedCall, Principal, RunningCalls, ToolList};
use ui_message_stream::axum::{ChatRejection, LocalAddress, without_authentication};
use ui_message_stream::event::ToolCall;
use ui_message_stream::model::ToolResult;
use ui_message_stream::{AgentEvent, BoxError, ChatRequest, Json, UiMessageStream};

type Reply = Result<UiMessageStream, ChatRejection>;
static EFFECTS: AtomicUsize = AtomicUsize::new(0);

/// Runs only if the user approved this call: once, and to its end even if the client disconnects.
async fn delete_file(call: ApprovedCall) -> Json {
    EFFECTS.fetch_add(1, SeqCst);
    tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    call.input
}

/// Your agent. First it continues what an earlier turn left open.
fn respond(
    (approvals, user, chat): (Approvals, Principal, ChatRequest),
    mut running: RunningCalls,
) -> impl futures::Stream<Item = Result<AgentEvent, BoxError>> {
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

async fn chat(State(approvals): State<Approvals>, user: Principal, chat: ChatRequest) -> Reply {
    // What the user approved runs from now on, even if the client disconnects before it reads.
    let running = approvals.run(&user, &chat, |call, _| delete_file(call)).await?;
    Ok(UiMessageStream::reply(&chat.clone(), respond((approvals, user, chat), running)))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().init();
    let tools = ToolList::new().tool("delete_file", "Deletes a file.", &Json::no_schema());
    let app = Router::new().route("/api/chat", post(chat)).layer(without_authentication());
    // Nothing is written that a page could rejoin: `useChat` with `resume: true` asks for it.
    let app = app.route("/api/chat/{id}/stream", get(async || StatusCode::NO_CONTENT));
    let app = app.with_state(Approvals::new(tools.client_executed("get_location")));
    let app = app.route("/effects", get(async || EFFECTS.load(SeqCst).to_string()));
    let address = format!("127.0.0.1:{}", std::env::var("PORT").unwrap_or("3000".to_owned()));
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("useChat can post to http://{}/api/chat", listener.local_addr()?);
    Ok(axum::serve(listener, app.into_make_service_with_connect_info::<LocalAddress>()).await?)
}
