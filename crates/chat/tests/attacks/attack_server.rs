//! A server of hosts: a new host for each recipe that the player plays, and the server-side steps
//! of the recipe.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use chat_test_support::test_server::{Host, Line};
use serde::Deserialize;
use serde_json::{Value, json};
use tower::ServiceExt;

/// Listens until the runtime is dropped.
pub(crate) struct Server {
    pub(crate) url: String,
}

type Hosts = Arc<Mutex<Vec<Host>>>;

impl Server {
    pub(crate) async fn start() -> Self {
        let routes = Router::new()
            .route("/hosts", post(open_host))
            .route("/hosts/{host}/server", post(apply_step))
            .route("/hosts/{host}/log", get(read_log))
            .route("/hosts/{host}/{*path}", any(forward))
            // A recipe may hold a text of a megabyte. The limits of the hosts apply instead.
            .layer(DefaultBodyLimit::disable())
            .with_state(Hosts::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async { axum::serve(listener, routes).await });
        Server { url }
    }
}

#[derive(Deserialize)]
struct NewHost {
    model: Vec<Line>,
}

async fn open_host(State(hosts): State<Hosts>, Json(new_host): Json<NewHost>) -> Json<Value> {
    let mut hosts = hosts.lock().unwrap();
    hosts.push(Host::scripted(new_host.model));
    Json(json!({"host": hosts.len() - 1}))
}

/// A step of a recipe that happens at the server.
#[derive(Deserialize)]
#[serde(tag = "server", rename_all = "snake_case")]
enum Step {
    AdvanceClock { ms: u64 },
    LoseChats {},
    Forbid { tool: String },
    RemoveTool { tool: String },
    RedefineTool { description: Option<String>, path_starts_with: Option<String> },
    ToolReturns { tool: String, output: String },
    ToolFails { tool: String, error: String },
    ModelFails { error: String },
}

async fn apply_step(State(hosts): State<Hosts>, Path(host): Path<usize>, Json(step): Json<Step>) {
    let host = host_of(&hosts, host);
    match step {
        Step::AdvanceClock { ms } => host.wait(Duration::from_millis(ms)),
        Step::LoseChats {} => host.lose_chats(),
        Step::Forbid { tool } => host.tools.forbid(&tool),
        Step::RemoveTool { tool } => host.tools.remove(&tool),
        Step::RedefineTool { description, path_starts_with } => {
            host.tools.redefine(description, path_starts_with);
        }
        Step::ToolReturns { tool, output } => host.tools.set_output(&tool, &output),
        Step::ToolFails { tool, error } => host.tools.set_failure(&tool, &error),
        Step::ModelFails { error } => host.model.set_failure(&error),
    }
}

async fn read_log(State(hosts): State<Hosts>, Path(host): Path<usize>) -> Json<Value> {
    let host = host_of(&hosts, host);
    Json(json!({"effects": host.tools.effects(), "prompts": host.model.prompts()}))
}

/// Forwards a request to a host.
async fn forward(
    State(hosts): State<Hosts>,
    Path((host, path)): Path<(usize, String)>,
    mut request: Request,
) -> Response {
    let Ok(uri) = Uri::try_from(format!("/{path}")) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    *request.uri_mut() = uri;
    let routes = host_of(&hosts, host).routes;
    routes.oneshot(request).await.unwrap()
}

fn host_of(hosts: &Hosts, host: usize) -> Host {
    hosts.lock().unwrap()[host].clone()
}
