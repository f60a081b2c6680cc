//! Approvals in Chromium, on a stock page with `useChat` of v6 and v7 and on the pages of `packages/client`: a changed
//! input, a second user who decides, the progress of an approved tool, a tool of the page, and an agent inside a call.
//! And what `packages/client` does besides. `stock-page.mjs` and `stored-chat.mjs` of `tests/browser` have the cases.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::header;
use axum::middleware::{Next, from_fn};
use axum::response::{Html, Json, Response};
use axum::routing::{get, post};
use futures::{StreamExt, stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use test_support::external_processes::{DataFolder, browser_scripts, node_project, run_node};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tower::ServiceExt;
use ui_message_stream::approval::store::InMemoryLedger;
use ui_message_stream::approval::{Approvals, KeyRing, Principal};
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::model::{
    Model, ModelEvent, ModelMessage, ModelRequest, ModelStream, ToolContent, ToolResultContent,
    UserContent,
};
use ui_message_stream::policy::AI_SDK_VERSION;
use ui_message_stream_agent::{Agent, Tool, ToolContext, ToolError};
use ui_message_stream_chat::axum::{approval_routes, chat_routes};
use ui_message_stream_chat::store::InMemoryLogStore;
use ui_message_stream_chat::{ChatServer, PostedHistory};

/// What waits in each chat until the test lets it go on: a tool, or an answer.
#[derive(Debug, Clone, Default)]
struct Gates(Arc<Mutex<HashMap<String, Arc<Semaphore>>>>);

impl Gates {
    fn of(&self, chat: &str) -> Arc<Semaphore> {
        let mut gates = self.0.lock().unwrap();
        gates.entry(chat.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(0))).clone()
    }

    async fn pass(&self, chat: &str) {
        self.of(chat).acquire().await.unwrap().forget();
    }
}

/// A model that makes the calls for which the user asks, and then repeats their results.
#[derive(Debug, Clone, Default)]
struct Scripted {
    calls: Arc<AtomicUsize>,
    gates: Gates,
}

impl Model for Scripted {
    fn call(&self, request: ModelRequest) -> ModelStream {
        if let Some(ModelMessage::User { content }) = request.messages.last()
            && let Some(UserContent::Text(text)) = content.last()
            && let Some(answer) = self.text_of(&text.text)
        {
            return answer;
        }
        let answer = match request.messages.last() {
            Some(ModelMessage::User { content }) => self.calls(content),
            Some(ModelMessage::Tool { content }) => vec![
                ModelEvent::Event(AgentEvent::text(results(content))),
                ModelEvent::Finished(FinishReason::Stop),
            ],
            other => panic!("{other:?}"),
        };
        Box::pin(stream::iter(answer.into_iter().map(Ok)))
    }
}

impl Scripted {
    /// Answers a message with a text, if it asks for one: a short one, one that waits in the middle, or one that fails.
    fn text_of(&self, message: &str) -> Option<ModelStream> {
        let text = |text: String| Ok(ModelEvent::Event(AgentEvent::text(text)));
        let end = Ok(ModelEvent::Finished(FinishReason::Stop));
        if let Some(said) = message.strip_prefix("Say ") {
            return Some(Box::pin(stream::iter([text(said.to_owned()), end])));
        }
        if message == "Fail" {
            let begin = (1..=3).map(move |number| text(format!("{number} ")));
            let failure = Err("the model is away".into());
            return Some(Box::pin(stream::iter(begin.chain([failure]))));
        }
        let (compacts, chat) = match message.strip_prefix("Compact and count in ") {
            Some(chat) => (true, chat.to_owned()),
            None => (false, message.strip_prefix("Count in ")?.to_owned()),
        };
        let custom = r#"{"type":"custom","kind":"scripted.compaction"}"#;
        let custom = AgentEvent::Chunk(serde_json::from_str(custom).unwrap());
        let begin = compacts.then_some(Ok(ModelEvent::Event(custom)));
        let gates = self.gates.clone();
        let numbers = stream::iter(1..=20).then(move |number: i32| {
            let (gates, chat) = (gates.clone(), chat.clone());
            async move {
                tokio::time::sleep(Duration::from_millis(30)).await;
                if number == 11 {
                    gates.pass(&chat).await;
                }
                text(format!("{number} "))
            }
        });
        Some(Box::pin(stream::iter(begin).chain(numbers).chain(stream::iter([end]))))
    }

    fn calls(&self, content: &[UserContent]) -> Vec<ModelEvent> {
        // The end of the answer before may be told first.
        let Some(UserContent::Text(text)) = content.last() else { panic!("{content:?}") };
        let calls = match text.text.as_str() {
            "Pay the bakery" => vec![("transfer", json!({"to": "bakery", "amount": 900}))],
            "Pay twice" => vec![
                ("transfer", json!({"to": "bakery", "amount": 900})),
                ("transfer", json!({"to": "butcher", "amount": 800})),
            ],
            "Order a desk" => vec![("order", json!({"item": "desk"}))],
            "Build" => vec![("build", json!({"target": "site"}))],
            "Where am I?" => vec![("locate", json!({"precise": true}))],
            "Where is the gold?" => {
                vec![("vault", json!({"path": "gold"})), ("locate", json!({"precise": true}))]
            }
            "Pay where I am" => vec![
                ("transfer", json!({"to": "bakery", "amount": 900})),
                ("locate", json!({"precise": true})),
            ],
            "Tidy up" => vec![("janitor", json!({"task": "Delete the logs"}))],
            // The janitor reads this.
            "Delete the logs" => {
                ["a.log", "b.log"].map(|path| ("delete", json!({"path": path}))).to_vec()
            }
            other => panic!("{other}"),
        };
        let calls = calls.into_iter().map(|(tool, input)| {
            let number = self.calls.fetch_add(1, Ordering::Relaxed);
            let call = ToolCall::new(format!("call_{number}"), tool);
            ModelEvent::ToolCall(Box::new(call), input.to_string())
        });
        calls.chain([ModelEvent::Finished(FinishReason::ToolCalls)]).collect()
    }
}

fn results(content: &[ToolContent]) -> String {
    let texts = content.iter().filter_map(|content| match content {
        ToolContent::Result(ToolResultContent { result, .. }) => Some(result.text().into_owned()),
        _ => None,
    });
    format!("I read: {}", texts.collect::<Vec<_>>().join(", "))
}

/// Sends money.
#[derive(Deserialize, Serialize, JsonSchema)]
struct Transfer {
    to: String,
    amount: u32,
}

/// Orders an item.
#[derive(Deserialize, JsonSchema)]
struct Order {
    item: String,
}

/// Builds a target.
#[derive(Deserialize, JsonSchema)]
struct Build {
    target: String,
}

/// Deletes a file.
#[derive(Deserialize, JsonSchema)]
struct Delete {
    path: String,
}

/// What outlives a server: what the tools have done in each chat, and the stores.
#[derive(Clone)]
struct World {
    effects: Arc<Mutex<Vec<(String, String)>>>,
    model: Scripted,
    ledger: Arc<InMemoryLedger>,
    logs: Arc<InMemoryLogStore>,
}

impl World {
    fn did(&self, context: &ToolContext, effect: String) -> String {
        self.effects.lock().unwrap().push((context.chat_id.to_string(), effect.clone()));
        effect
    }

    fn agent(&self) -> Agent {
        let world = self.clone();
        let transfer = Tool::new("transfer", move |Transfer { to, amount }, context| {
            let done = world.did(&context, format!("sent {amount} to {to}"));
            async move { Ok::<_, ToolError>(done) }
        });
        let world = self.clone();
        let order = Tool::new("order", move |Order { item }, context: ToolContext| {
            let world = world.clone();
            async move {
                world.model.gates.pass(context.chat_id.as_str()).await;
                Ok::<_, ToolError>(world.did(&context, format!("ordered a {item}")))
            }
        });
        let world = self.clone();
        let build = Tool::new("build", move |Build { target }, context: ToolContext| {
            let world = world.clone();
            async move {
                world.did(&context, format!("began {target}"));
                context.emit_preliminary("compiling").await.unwrap();
                context.emit_data_with_id("progress", "p", "1 of 2 files").await.unwrap();
                world.model.gates.pass(context.chat_id.as_str()).await;
                context.emit_data_with_id("progress", "p", "2 of 2 files").await.unwrap();
                Ok::<_, ToolError>(world.did(&context, format!("built {target}")))
            }
        });
        let world = self.clone();
        let delete = Tool::new("delete", move |Delete { path }, context| {
            let done = world.did(&context, format!("deleted {path}"));
            async move { Ok::<_, ToolError>(done) }
        });
        let janitor = Agent::new(self.model.clone()).tool(delete.needs_approval());
        let vault = Tool::new("vault", async |_: Delete| Ok::<_, ToolError>("gold"));
        Agent::new(self.model.clone())
            .tool(transfer.needs_approval().editable_fields(["amount"]))
            .tool(order.needs_approval().decided_by_others())
            .tool(build.needs_approval())
            .tool(vault.authorize(|_, _| false))
            .tool(janitor.as_tool("janitor", "Tidies up."))
            .with_client_tools()
    }

    /// A server without any state of its own, as it is after a start.
    fn server(&self) -> Router {
        let agent = self.agent();
        let is_buyer = |principal: &Principal| principal.id() == Some("buyer");
        let approvals = Approvals::new(agent.clone())
            .with_keys(KeyRing::new(1, &test_support::secret(7)).unwrap())
            .with_ledger(self.ledger.clone())
            .with_audiences(
                |record| match &*record.tool_name {
                    "order" => vec!["purchasing".into()],
                    _ => Vec::new(),
                },
                move |principal| match is_buyer(principal) {
                    true => vec!["purchasing".into()],
                    false => Vec::new(),
                },
            )
            .authorize_decision(move |principal, record| match &*record.tool_name {
                "order" => is_buyer(principal) && principal.tenant() == record.requester.tenant(),
                _ => *principal == record.requester,
            });
        let chats = ChatServer::new(agent, approvals)
            .with_store(self.logs.clone())
            .with_version_from(AI_SDK_VERSION)
            // A page that posts its last message alone must not remove the others.
            .with_posted_history(PostedHistory::Truncate);
        Router::new()
            .nest("/api/chat", chat_routes(chats.clone()))
            .nest("/api/approvals", approval_routes(chats))
            .layer(from_fn(authenticate))
    }
}

/// The cookie `user` is `<tenant>.<user>`.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let cookie = request.headers().get(header::COOKIE).and_then(|cookie| cookie.to_str().ok());
    let user = cookie.and_then(|cookie| cookie.strip_prefix("user=")?.split_once('.'));
    if let Some((tenant, user)) = user {
        let principal = Principal::new(user).with_tenant(tenant);
        request.extensions_mut().insert(principal);
    }
    next.run(request).await
}

/// Serves the pages in a folder, a chat server that can be replaced by another one with the same stores, and what the
/// tools have done.
async fn serve(listener: TcpListener, pages: PathBuf) {
    let world = World {
        effects: Arc::default(),
        model: Scripted::default(),
        ledger: Arc::default(),
        logs: Arc::default(),
    };
    let server = Arc::new(Mutex::new(world.server()));
    let (running, restarted) = (server.clone(), world.clone());
    let page = async move |Path(version): Path<String>| {
        Html(std::fs::read_to_string(pages.join(version + ".html")).unwrap())
    };
    let effects = async |State(world): State<World>, Path(chat): Path<String>| {
        let effects = world.effects.lock().unwrap();
        let of_chat = effects.iter().filter(|(in_chat, _)| *in_chat == chat);
        Json(Value::from_iter(of_chat.map(|(_, effect)| effect.as_str())))
    };
    let routes = Router::new()
        .route("/page/{version}", get(page))
        .route("/effects/{chat}", get(effects))
        .route(
            "/gate/{chat}",
            post(async |State(world): State<World>, Path(chat): Path<String>| {
                world.model.gates.of(&chat).add_permits(1);
            }),
        )
        .route("/restart", post(async move || *server.lock().unwrap() = restarted.server()))
        .fallback(async move |request: Request| {
            let server = running.lock().unwrap().clone();
            server.oneshot(request).await
        })
        .with_state(world);
    axum::serve(listener, routes).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stock_page_shows_what_approved_tools_have_done() {
    let Some(browser) = browser_scripts() else { return };
    let Some(client) = node_project("tests/client") else { return };
    let (Some(_), Some(stored)) =
        (node_project("packages/client"), node_project("packages/client/pages"))
    else {
        return;
    };
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let pages = DataFolder::new();
    tokio::spawn(serve(listener, pages.path().to_owned()));
    let printed = tokio::task::spawn_blocking(move || {
        let folder = pages.path().to_str().unwrap();
        run_node(&client, &["stock-page.mjs", folder]);
        run_node(&stored, &["build.mjs", folder]);
        let screenshots = std::env::var("SCREENSHOTS");
        ["stock-page.mjs", "stored-chat.mjs"].map(|script| {
            let mut arguments = vec![script, &url];
            if let Ok(folder) = &screenshots {
                arguments.extend(["--screenshots", folder]);
            }
            run_node(&browser, &arguments)
        })
    });
    for printed in printed.await.unwrap() {
        assert!(printed.ends_with(" 0 failed\n"), "{printed}");
    }
}
