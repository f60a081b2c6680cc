//! Your own agent behind `useChat`: it returns events, and the approvals know its tools. Run
//! `cargo run --example your_agent`, then post to it as `useChat` does.
//!
//! Besides `ui-message-stream` the program needs `anyhow`, `async-stream`, `axum`, `futures`, `serde` with `derive`,
//! `serde_json`, `tokio` with the features `macros`, `net` and `rt-multi-thread`, `tracing-subscriber`, and `uuid` with
//! `v4`.

use std::error::Error;
use std::future::ready;
use std::sync::{Mutex, PoisonError};

use async_stream::try_stream;
use axum::Router;
use futures::Stream;
use tokio::net::TcpListener;
use ui_message_stream::approval::{
    Approvals, ApprovedCall, DeferredOutcome, DefinitionDigest, Progress, ToolInfo, ToolOutcome,
    Toolbox,
};
use ui_message_stream::axum::{LocalAddress, without_authentication};
use ui_message_stream::event::ToolCall;
use ui_message_stream::message::{Part, Role};
use ui_message_stream::{AgentEvent, BoxFuture, Json, UiMessage};
use ui_message_stream_chat::axum::{approval_routes, chat_routes};
use ui_message_stream_chat::{ChatServer, Turn};

type BoxError = Box<dyn Error + Send + Sync>;

/// The files that the tools act on.
#[derive(Debug)]
struct Files(Mutex<Vec<String>>);

/// The input of the tool.
#[derive(serde::Deserialize)]
struct Deletion {
    path: String,
}

impl Toolbox for Files {
    fn tool(&self, name: &str) -> Option<ToolInfo> {
        let definition = DefinitionDigest::new(name, "Deletes a file.", &Json::no_schema());
        (name == "delete_file").then(|| ToolInfo::new(definition))
    }

    /// Called again when the user responds, which may be an hour later.
    fn permits<'a>(&'a self, call: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(ready(call.input.decode::<Deletion>().is_ok()))
    }

    fn run(&self, call: ApprovedCall, _: Progress) -> BoxFuture<'static, ToolOutcome> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = files.len();
        let deletion = call.input.decode::<Deletion>().ok();
        files.retain(|file| deletion.as_ref().is_none_or(|deletion| deletion.path != *file));
        let output = if files.len() < before { "deleted" } else { "it was not there" };
        Box::pin(ready(ToolOutcome::Output(Json::string(output))))
    }
}

/// Your agent: requests approval to delete a file, and continues when the user has responded.
fn respond(turn: Turn) -> impl Stream<Item = Result<AgentEvent, BoxError>> {
    try_stream! {
        let last = turn.chat.messages.last();
        match last.filter(|message| message.role == Role::User).map(text) {
            Some(text) => match text.strip_prefix("delete ") {
                Some(file) => {
                    let id = format!("call_{}", uuid::Uuid::new_v4().simple());
                    let call = ToolCall::new(id, "delete_file");
                    // An object: some pages show nothing of any other input.
                    let input = Json::try_from(serde_json::json!({ "path": file }))?;
                    yield AgentEvent::text(format!("I would delete {file}."));
                    yield AgentEvent::tool_input(call.clone(), input.clone());
                    yield turn.approvals.request_approval_of(&call, &input).await;
                }
                None => yield AgentEvent::text(r#"Write "delete notes.txt"."#),
            },
            // The user has responded. The result of the call is already in the message.
            None => for result in turn.deferred.results() {
                yield AgentEvent::text(match &result.outcome {
                    DeferredOutcome::Executed { outcome: ToolOutcome::Output(output) } => {
                        format!("The result is {output}.")
                    }
                    DeferredOutcome::Denied { reason } => {
                        format!("I keep the file. {}", reason.as_deref().unwrap_or_default())
                    }
                    _ => "The file may still be there.".to_owned(),
                });
            },
        }
    }
}

fn text(message: &UiMessage) -> String {
    let texts = message.parts.iter().filter_map(|part| match part {
        Part::Text(part) => Some(&*part.text),
        _ => None,
    });
    texts.collect()
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
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
