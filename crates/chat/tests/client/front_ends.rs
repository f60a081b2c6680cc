//! Front ends as they are installed: `useChat` of v6 and v7, and the runtime of assistant-ui stop an
//! answer and write on, regenerate and edit. `front-ends.mjs` has the cases.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_stream::try_stream;
use axum::Router;
use axum::response::Json;
use axum::routing::{get, post};
use test_support::external_processes::{node_project, run_node};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use ui_message_stream::AgentEvent;
use ui_message_stream::axum::without_authentication;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::model::{
    AssistantContent, Model, ModelEvent, ModelMessage, ModelRequest, ModelStream, UserContent,
};
use ui_message_stream_agent::Agent;
use ui_message_stream_chat::PostedHistory;
use ui_message_stream_chat::axum::chat_routes;

/// A model that remembers what it has read: a list of `role: text` for each call. It counts if the
/// user asks for it, and only the first time if the user asks it to count once. It counts to 20 if the
/// user asks for a few numbers, and waits at 10 for a permit.
#[derive(Debug, Clone)]
struct Reader {
    prompts: Arc<Mutex<Vec<Vec<String>>>>,
    permits: Arc<Semaphore>,
}

impl Model for Reader {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let read: Vec<String> = request.messages.iter().map(line).collect();
        let last = read.last().cloned().unwrap_or_default();
        let mut prompts = self.prompts.lock().unwrap();
        let is_first = !prompts.contains(&read);
        prompts.push(read);
        let number = prompts.len();
        let counts = last.contains("count") && (is_first || !last.contains("once"));
        let end = match counts {
            true => usize::MAX,
            false if last.contains("few") => 20,
            false => 0,
        };
        let permits = Arc::clone(&self.permits);
        Box::pin(try_stream! {
            for n in 1..=end {
                yield ModelEvent::Event(AgentEvent::text(format!("{n} ")));
                match (counts, n) {
                    (true, _) => tokio::time::sleep(Duration::from_millis(10)).await,
                    (false, 10) => permits.acquire().await?.forget(),
                    (false, _) => {}
                }
            }
            yield ModelEvent::Event(AgentEvent::text(format!("Answer {number}.")));
            yield ModelEvent::Finished(FinishReason::Stop);
        })
    }
}

fn line(message: &ModelMessage) -> String {
    let (role, texts): (_, Vec<&str>) = match message {
        ModelMessage::User { content } => {
            let texts = content.iter().map(|content| match content {
                UserContent::Text(text) => text.text.as_str(),
                other => panic!("{other:?}"),
            });
            ("user", texts.collect())
        }
        ModelMessage::Assistant { content } => {
            let texts = content.iter().map(|content| match content {
                AssistantContent::Text(text) => text.text.as_str(),
                other => panic!("{other:?}"),
            });
            ("assistant", texts.collect())
        }
        other => panic!("{other:?}"),
    };
    format!("{role}: {}", texts.concat())
}

/// Serves one chat server for each setting, and what the model has read.
async fn serve(listener: TcpListener) {
    let permits = Arc::new(Semaphore::new(0));
    let model = Reader { prompts: Arc::default(), permits: Arc::clone(&permits) };
    let prompts = Arc::clone(&model.prompts);
    let chats = |posted_history| {
        let chats = Agent::new(Arc::new(model.clone())).into_chat_server();
        chat_routes(chats.with_posted_history(posted_history))
    };
    let routes = Router::new()
        .route("/prompts", get(async move || Json(prompts.lock().unwrap().clone())))
        .route("/go-on", post(async move || permits.add_permits(1)))
        .nest("/keep/api/chat", chats(PostedHistory::Keep))
        .nest("/truncate/api/chat", chats(PostedHistory::Truncate))
        .layer(without_authentication());
    axum::serve(listener, routes).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_front_ends_stop_and_write_on_regenerate_and_edit() {
    let Some(client) = node_project("tests/client") else { return };
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(serve(listener));
    let printed = tokio::task::spawn_blocking(move || run_node(&client, &["front-ends.mjs", &url]));
    let printed = printed.await.unwrap();
    assert!(printed.ends_with(" 0 failed\n"), "{printed}");
}
