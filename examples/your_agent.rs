//! Your own agent behind `useChat`: return its events, and tell the approvals about its tools. Run
//! `cargo run --example your_agent`, then post to it as `useChat` does.

use std::error::Error;
use std::future::ready;
use std::sync::{Mutex, PoisonError};

use async_stream::try_stream;
use axum::Router;
use futures::Stream;
use tokio::net::TcpListener;
use ui_message_stream::approval::{
    Approvals, ApprovedCall, DefinitionDigest, ToolInfo, ToolOutcome, Toolbox,
};
use ui_message_stream::axum::{LocalAddress, approval_routes, chat_routes, without_authentication};
use ui_message_stream::chat::{ChatServer, Turn};
use ui_message_stream::event::ToolCall;
use ui_message_stream::{AgentEvent, BoxFuture, Json};

type BoxError = Box<dyn Error + Send + Sync>;

/// The files that the tools act on.
#[derive(Debug)]
struct Files(Mutex<Vec<String>>);

impl Toolbox for Files {
    fn tool(&self, name: &str) -> Option<ToolInfo> {
        let definition = DefinitionDigest::new(name, "Deletes a file.", &Json::null());
        (name == "delete_file").then(|| ToolInfo::new(definition))
    }

    /// Called again when the user responds, which may be an hour later.
    fn permits<'a>(&'a self, call: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(ready(call.input.decode::<String>().is_ok()))
    }

    fn run(&self, call: ApprovedCall) -> BoxFuture<'static, ToolOutcome> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = files.len();
        files.retain(|file| call.input.decode().ok().as_ref() != Some(file));
        let output = if files.len() < before { "deleted" } else { "it was not there" };
        Box::pin(ready(ToolOutcome::Output(Json::string(output))))
    }
}

/// Your agent: requests approval, and continues when the user has responded.
fn respond(turn: Turn) -> impl Stream<Item = Result<AgentEvent, BoxError>> {
    try_stream! {
        if turn.deferred.results().is_empty() {
            let (tool, input) = ("delete_file", Json::string("notes.txt"));
            let call = ToolCall::new(format!("call_{}", uuid::Uuid::new_v4().simple()), tool);
            let id = call.id.clone();
            yield AgentEvent::text("I would delete notes.txt.");
            yield AgentEvent::tool_input(call, input.clone());
            let request = turn.approvals.request_approval(&turn.message_id, &id, tool, &input, None).await?;
            yield request.event(id);
        } else {
            // The result of the call is already in the message: see `turn.chat`.
            yield AgentEvent::text("As you wish.");
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    tracing_subscriber::fmt().init();
    let files = Files(Mutex::new(vec!["notes.txt".to_owned()]));
    let chats = ChatServer::new(respond, Approvals::new(files));
    let app = Router::new()
        .nest("/api/chat", chat_routes(chats.clone()))
        .nest("/api/approvals", approval_routes(chats))
        // For one user on one machine. With more users, your authentication stands here.
        .layer(without_authentication());
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("useChat can post to http://{}/api/chat", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<LocalAddress>()).await?;
    Ok(())
}
