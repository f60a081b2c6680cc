//! The demo: a chat whose tools ask for approval.
//!
//! The example `chat` serves it with a scripted model (`cargo run --example chat`). The package
//! `chat-openai` serves it with the model of a real provider (`cargo run -p chat-openai`).

mod browsers;
mod gates;
mod page;
mod scripted_model;
mod storage;
mod world;

use std::env::VarError;
use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_stream::try_stream;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::Json;
use axum::routing::get;
use axum_extra::extract::cookie::Key;
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use ui_message_stream::approval::store::FailureLog;
use ui_message_stream::approval::{ApprovalLimits, Principal};
use ui_message_stream::axum::{serve, without_authentication};
use ui_message_stream::json::JsonError;
use ui_message_stream::model::Model;
use ui_message_stream::policy::ChatPolicy;
use ui_message_stream_agent::{Agent, Tool, ToolContext};
use ui_message_stream_chat::axum::{approval_routes, chat_routes};
use ui_message_stream_chat::{
    AgentEventStream, ChatAgent, ChatLimits, ChatServer, PostedHistory, Turn,
};

pub use scripted_model::ScriptedModel;
pub use storage::Storage;
use storage::{Readiness, text_of};
use world::{DeleteFile, Deleted, Place, Report, Sent, Transfer, Weather, World, Worlds};

/// Writes the log to the standard output. The store logs when it is opened, so call this before.
pub fn init_log() {
    tracing_subscriber::fmt().init();
}

/// Serves the page, the chat and the approvals on `$HOST:$PORT` (`127.0.0.1:3000` by default). The chat
/// uses `model`; the chats and the users' worlds are in `storage`.
///
/// On SIGTERM and Ctrl-C, live responses get 20 seconds. The rest goes on after the next start.
///
/// Each browser is a user of its own, by a cookie. All clients without this cookie are one anonymous
/// user. On an address that other machines can reach (`HOST=0.0.0.0`), clients without it get status 403.
///
/// `GET /ready` is status 200 if the store can be written and the server does not stop, and otherwise 503 with
/// the reason, within a second.
///
/// # Errors
/// If `HOST` is not an IP address, if `PORT` is not a port number, if the server cannot listen there, or if a variable such as `UIMS_MAX_CHAT_BYTES`, which sets one of the [`ChatLimits`], or
/// `UIMS_LEASE_MS`, the lease of live responses and of approved tool calls, or `UIMS_APPEND_INTERVAL_MS`, how often text is
/// stored, is not a number that can be used. The error is one sentence.
pub async fn run(model: Arc<dyn Model>, storage: Storage) -> anyhow::Result<()> {
    run_now(model, storage).await.map_err(start_error)
}

async fn run_now(model: Arc<dyn Model>, storage: Storage) -> Result<(), Box<dyn Error>> {
    let at = SocketAddr::new(host(text_of("HOST")?)?, port(text_of("PORT")?)?);
    // A shorter lease cannot be renewed in time.
    let lease = time("UIMS_LEASE_MS", 100..=3_600_000)?;
    let append_interval = time("UIMS_APPEND_INTERVAL_MS", 0..=1_000)?;
    let limits = limits(|name| std::env::var(name))?;
    let listener = TcpListener::bind(at)
        .await
        .map_err(|error| format!("cannot listen on {at}: {error}; set PORT to a free port"))?;
    let address = listener.local_addr()?;
    println!("Open http://{address} and ask it to delete a file. Or, without a browser:");
    // The shell writes a new id for each call. A message with a known id gets its stored response.
    println!(
        "curl -N http://{address}/api/chat -H 'content-type: application/json' \
         -d '{{\"id\":\"'$(date +%s)'\",\"messages\":[{{\"id\":\"1\",\"role\":\"user\",\"parts\":[{{\"type\":\"text\",\"text\":\"weather\"}}]}}]}}'"
    );
    let others = if address.ip().is_loopback() {
        "All clients without its cookie are one user."
    } else {
        "From other machines, clients without its cookie are refused."
    };
    println!("Each browser is a user of its own. {others}");
    println!("{}", storage.description());

    let worlds = storage.worlds();
    let readiness = storage.readiness();
    let is_stopping = Arc::new(AtomicBool::new(false));
    let stops = Arc::clone(&is_stopping);
    let no_answers = Arc::new(FailureLog::default());
    let agent = agent(model, &worlds)?;
    let respond = with_files(agent.clone(), Arc::clone(&worlds));
    let chats = storage.chat_server(agent, respond, lease, limits.approvals);
    let chats = match append_interval {
        Some(interval) => chats.with_append_interval(interval),
        None => chats,
    };
    let chats = chats.with_limits(limits.chats);
    // The page may remove messages from its history before it sends the next one.
    let chats = chats.with_posted_history(PostedHistory::Truncate);
    let app = app(chats.clone(), worlds, storage.cookie_key())
        // For a load balancer, which is no page and no user.
        .route(
            "/ready",
            get(async move || {
                if is_stopping.load(Ordering::Relaxed) {
                    (StatusCode::SERVICE_UNAVAILABLE, "the server stops".to_owned())
                } else {
                    ready(&readiness, &no_answers).await
                }
            }),
        )
        .fallback(async || (StatusCode::NOT_FOUND, "there is no such page"));

    let stop = async move {
        let signal = stop_signal().await;
        stops.store(true, Ordering::Relaxed);
        // From before the server answers 503.
        let second = stop_signal();
        tokio::spawn(async move {
            // The user does not want to wait. The process ends as in a crash.
            let signal = second.await;
            tracing::warn!("second {signal}: the server ends at once");
            std::process::exit(1);
        });
        // The listener stays open meanwhile, and the chat answers 503: from before this is in the log.
        let log = async {
            tracing::info!("{signal}: the server stops; live responses get {GRACE:?} to end");
        };
        tokio::join!(biased; chats.shut_down(GRACE), log);
        tracing::info!("all live responses have ended or were handed over");
    };
    serve(listener, app).with_graceful_shutdown(stop).await;
    storage.close().await;
    Ok(())
}

/// Creates the routes for browsers.
fn app(chats: ChatServer, worlds: Arc<Worlds>, cookie_key: Key) -> Router {
    let welcome = from_fn_with_state(cookie_key.clone(), browsers::welcome);
    let page = |html| get(async move || page::page(html)).layer(welcome.clone());
    let app = Router::new()
        .route("/api/world", get(show).delete(reset).with_state(worlds))
        .nest("/api/chat", chat_routes(chats.clone()))
        .nest("/api/approvals", approval_routes(chats))
        // Around it, so that a browser is known on every address.
        .layer(without_authentication())
        .layer(from_fn_with_state(cookie_key, browsers::identify))
        .route("/", page(page::CHAT))
        .route("/chats", page(page::ALL_CHATS));
    page::SCRIPTS
        .into_iter()
        .fold(app, |app, (path, text)| app.route(path, get(async move || page::script(text))))
        // Only pages of this server may read the world and stop runs, not only post.
        .layer(ChatPolicy::default())
}

/// Answers whether the store can be written, within a second. The store logs its failures itself.
async fn ready(readiness: &Readiness, no_answers: &FailureLog) -> (StatusCode, String) {
    match timeout(READY_TIMEOUT, readiness.check()).await {
        Ok(Ok(())) => (StatusCode::OK, "ready".to_owned()),
        Ok(Err(error)) => (StatusCode::SERVICE_UNAVAILABLE, sentence(&*error)),
        Err(_) => {
            no_answers.log(&io::Error::other("the store gives no answer"));
            (StatusCode::SERVICE_UNAVAILABLE, "no answer".to_owned())
        }
    }
}

/// Returns a future that waits for SIGTERM or Ctrl-C from this call on.
#[cfg(unix)]
fn stop_signal() -> impl Future<Output = &'static str> + Send {
    let [terminate, interrupt] = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    async move {
        tokio::select! {
            () = received(terminate) => "SIGTERM",
            () = received(interrupt) => "Ctrl-C",
        }
    }
}

/// Waits for a signal. A signal for which there is no handler ends the process.
#[cfg(unix)]
async fn received(signal: io::Result<Signal>) {
    match signal {
        Ok(mut signal) => drop(signal.recv().await),
        Err(_) => std::future::pending().await,
    }
}

/// Waits for Ctrl-C.
#[cfg(not(unix))]
async fn stop_signal() -> &'static str {
    drop(tokio::signal::ctrl_c().await);
    "Ctrl-C"
}

/// How long live responses go on after SIGTERM. A second one ends the process at once.
const GRACE: Duration = Duration::from_secs(20);

/// How long the store may take to answer whether it can be written.
const READY_TIMEOUT: Duration = Duration::from_millis(800);

/// Answers with the user's world.
async fn show(
    State(worlds): State<Arc<Worlds>>,
    user: Principal,
) -> Result<Json<World>, StatusCode> {
    in_database(move || worlds.of(&user)).await.map(Json).map_err(no_world)
}

/// Makes the user's world as it was at first.
async fn reset(
    State(worlds): State<Arc<Worlds>>,
    user: Principal,
) -> Result<StatusCode, StatusCode> {
    in_database(move || worlds.reset(&user)).await.map_err(no_world)?;
    Ok(StatusCode::NO_CONTENT)
}

fn no_world(error: io::Error) -> StatusCode {
    tracing::error!(%error, "the user's world cannot be read or written");
    StatusCode::INTERNAL_SERVER_ERROR
}

/// Returns the limits of the chats: the defaults, unless the variables of the environment set others.
fn limits(
    variable: impl Fn(&str) -> Result<String, VarError>,
) -> Result<StoredLimits, Box<dyn Error>> {
    let mut limits = StoredLimits::default();
    for (name, set) in LIMIT_VARIABLES {
        match variable(name) {
            Ok(value) => limits = set(limits, number(name, &value)?),
            Err(VarError::NotPresent) => {}
            Err(VarError::NotUnicode(_)) => return Err(format!("{name} is not UTF-8").into()),
        }
    }
    Ok(limits)
}

/// Returns the address that `HOST` sets.
fn host(text: Option<String>) -> Result<IpAddr, String> {
    let Some(text) = text else { return Ok(Ipv4Addr::LOCALHOST.into()) };
    text.parse().map_err(|_| {
        format!("HOST is `{text}`: set an IP address, such as 0.0.0.0, or unset it for 127.0.0.1")
    })
}

/// Returns the port that `PORT` sets.
fn port(text: Option<String>) -> Result<u16, String> {
    let Some(text) = text else { return Ok(3000) };
    text.parse().map_err(|_| {
        format!("PORT is `{text}`: set a number from 0 to 65535, or unset it for port 3000")
    })
}

/// Returns the time that a variable sets, which has a number of milliseconds in this range.
fn time(variable: &str, range: RangeInclusive<u64>) -> Result<Option<Duration>, Box<dyn Error>> {
    let Some(text) = text_of(variable)? else { return Ok(None) };
    match text.parse() {
        Ok(millis) if range.contains(&millis) => Ok(Some(Duration::from_millis(millis))),
        _ => {
            let (least, most) = range.into_inner();
            Err(format!(
                "{variable} is `{text}`: set a number of milliseconds from {least} to {most}, or \
                 unset it for the default"
            )
            .into())
        }
    }
}

/// Returns the number that a variable sets.
pub(crate) fn number(variable: &str, text: &str) -> Result<usize, String> {
    text.parse()
        .map_err(|_| format!("{variable} is `{text}`: set a number, or unset it for the default"))
}

/// Returns why the demo does not start, in one sentence.
fn start_error(error: Box<dyn Error>) -> anyhow::Error {
    anyhow::Error::msg(sentence(&*error))
}

/// Returns the text of an error and of those sources that are not in it.
fn sentence(error: &(dyn Error + 'static)) -> String {
    let sources = std::iter::successors(error.source(), |error| (*error).source());
    sources.map(ToString::to_string).fold(error.to_string(), |text, source| {
        if text.contains(&source) { text } else { format!("{text}: {source}") }
    })
}

/// The limits that hold with every store.
#[derive(Debug, Default)]
struct StoredLimits {
    chats: ChatLimits,
    approvals: ApprovalLimits,
}

impl StoredLimits {
    fn of_chats(self, set: impl FnOnce(ChatLimits) -> ChatLimits) -> Self {
        StoredLimits { chats: set(self.chats), ..self }
    }

    fn of_approvals(self, set: impl FnOnce(ApprovalLimits) -> ApprovalLimits) -> Self {
        StoredLimits { approvals: set(self.approvals), ..self }
    }
}

type SetLimit = fn(StoredLimits, usize) -> StoredLimits;

/// The environment variables that set limits which hold with every store.
const LIMIT_VARIABLES: [(&str, SetLimit); 6] = [
    ("UIMS_MAX_CHAT_MESSAGES", |limits, n| {
        limits.of_chats(|limits| limits.with_max_chat_messages(n))
    }),
    ("UIMS_MAX_CHAT_BYTES", |limits, n| limits.of_chats(|limits| limits.with_max_chat_bytes(n))),
    ("UIMS_MAX_USER_CHATS", |limits, n| limits.of_chats(|limits| limits.with_max_user_chats(n))),
    ("UIMS_MAX_CHAT_APPROVALS", |limits, n| {
        limits.of_approvals(|limits| limits.with_max_chat_approvals(n))
    }),
    ("UIMS_MAX_USER_APPROVALS", |limits, n| {
        limits.of_approvals(|limits| limits.with_max_user_approvals(n))
    }),
    ("UIMS_MAX_DESCRIPTION_BYTES", |limits, n| {
        limits.of_approvals(|limits| limits.with_max_description_bytes(n))
    }),
];

/// Returns the schemas of the tools as JSON, from which the types of a page are made.
///
/// # Errors
/// Fails if a schema cannot be written as JSON.
pub fn schemas(model: Arc<dyn Model>, storage: &Storage) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(&agent(model, &storage.worlds())?.schemas())?)
}

/// Answers the turns with an agent that knows the names of the user's files.
fn with_files(agent: Agent, worlds: Arc<Worlds>) -> impl ChatAgent {
    move |turn: Turn| -> AgentEventStream {
        let agent = agent.clone();
        let worlds = Arc::clone(&worlds);
        let user = turn.principal.clone();
        Box::pin(try_stream! {
            let files = in_database(move || worlds.of(&user)).await?.files.join(", ");
            let instructions = format!("{INSTRUCTIONS} The person's files: {files}.");
            for await event in agent.with_instructions(instructions).respond(turn) {
                yield event?;
            }
        })
    }
}

const INSTRUCTIONS: &str = "You look after the person's files and money, with your tools.";

/// Creates an agent whose tools act on the world of their user.
fn agent(model: Arc<dyn Model>, worlds: &Arc<Worlds>) -> Result<Agent, JsonError> {
    let weather =
        Tool::new("get_weather", async |input: Weather| Ok::<_, JsonError>(input.report()))
            .with_title("Look up the weather")
            .with_output_type::<Report>();
    let delete = || {
        let worlds = Arc::clone(worlds);
        let delete = Tool::new("delete_file", move |input: DeleteFile, context: ToolContext| {
            let worlds = Arc::clone(&worlds);
            async move {
                input.takes_time().await;
                in_database(move || worlds.delete(&context.principal, &input)).await
            }
        });
        delete
            .with_title("Delete a file")
            .with_output_type::<Deleted>()
            .with_approval_description(|input| format!("Delete {}", input.path))
            .needs_approval()
    };
    let worlds = Arc::clone(worlds);
    let transfer = Tool::new("transfer", move |input: Transfer, context: ToolContext| {
        let worlds = Arc::clone(&worlds);
        in_database(move || worlds.send(&context.principal, &input))
    });
    let location = Tool::client_executed(
        "get_location",
        "Where the person is, if they say so.",
        ui_message_stream::Json::parse(r#"{"type":"object"}"#)?,
    );
    // An agent inside the agent. The user is asked for its deletions.
    let janitor = Agent::new(Arc::clone(&model))
        .with_instructions("You delete the files that the task names.")
        .tool(delete())
        .as_tool("janitor", "Tidies up: deletes files that are no longer needed.")
        .with_title("Ask the janitor");
    Ok(Agent::new(model)
        .with_instructions(INSTRUCTIONS)
        .tool(weather)
        .tool(delete())
        .tool(
            transfer
                .with_title("Transfer money")
                .with_output_type::<Sent>()
                .with_approval_description(|input| format!("Send {} to {}", input.amount, input.to))
                .editable_fields(["amount"])
                .check_change(|input| {
                    if input.changed.amount <= input.original.amount {
                        Ok(())
                    } else {
                        Err("amount: may be lowered, not raised".to_owned())
                    }
                })
                .needs_approval_when(|input, _| input.amount > 1_000),
        )
        .tool(location.with_title("Share your location").with_output_type::<Place>())
        .tool(janitor))
}

/// Works with the database of the worlds, which can make a thread wait.
async fn in_database<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, rusqlite::Error> + Send + 'static,
) -> io::Result<T> {
    let result = spawn_blocking(work).await.map_err(io::Error::other)?;
    result.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::header::{COOKIE, SET_COOKIE};
    use axum::http::{Request, Response};
    use rusqlite::Connection;
    use tower::ServiceExt as _;
    use ui_message_stream::axum::LocalAddress;

    use super::*;

    #[tokio::test]
    async fn where_other_machines_reach_it_a_client_needs_the_cookie_of_the_page() {
        let worlds = Arc::new(Worlds::new(Connection::open_in_memory().unwrap()).unwrap());
        let agent = agent(Arc::new(ScriptedModel), &worlds).unwrap();
        let app = app(agent.into_chat_server(), worlds, Key::generate());
        let request = async |path: &str, cookie: &str, address: [u8; 4]| -> Response<_> {
            let mut request = Request::get(path).header("host", "localhost:8080");
            if !cookie.is_empty() {
                request = request.header(COOKIE, cookie);
            }
            let mut request = request.body(Body::empty()).unwrap();
            request.extensions_mut().insert(LocalAddress(SocketAddr::from((address, 3000))));
            app.clone().oneshot(request).await.unwrap()
        };
        let others = [192, 0, 2, 1];
        let page = request("/", "", others).await;
        assert_eq!(page.status(), StatusCode::OK);
        let cookie = page.headers()[SET_COOKIE].to_str().unwrap().split(';').next().unwrap();
        assert_eq!(request("/api/chat", cookie, others).await.status(), StatusCode::OK);
        assert_eq!(request("/api/world", cookie, others).await.status(), StatusCode::OK);
        for cookie in ["", "demo-user-8080=guessed"] {
            let refused = request("/api/chat", cookie, others).await;
            assert_eq!(refused.status(), StatusCode::FORBIDDEN, "{cookie}");
            let known = request("/api/chat", cookie, [127, 0, 0, 1]).await;
            assert_eq!(known.status(), StatusCode::OK, "{cookie}");
        }
    }

    #[test]
    fn each_variable_sets_its_own_limit() {
        let values = |limits: &StoredLimits| {
            [
                ("UIMS_MAX_CHAT_MESSAGES", limits.chats.max_chat_messages()),
                ("UIMS_MAX_CHAT_BYTES", limits.chats.max_chat_bytes()),
                ("UIMS_MAX_USER_CHATS", limits.chats.max_user_chats()),
                ("UIMS_MAX_CHAT_APPROVALS", limits.approvals.max_chat_approvals()),
                ("UIMS_MAX_USER_APPROVALS", limits.approvals.max_user_approvals()),
                ("UIMS_MAX_DESCRIPTION_BYTES", limits.approvals.max_description_bytes()),
            ]
        };
        let only = |set: &str, name: &str| {
            if name == set { Ok("7".to_owned()) } else { Err(VarError::NotPresent) }
        };
        let defaults = values(&StoredLimits::default());
        for (variable, _) in defaults {
            let set = values(&limits(|name| only(variable, name)).unwrap());
            for ((name, value), (_, default)) in set.into_iter().zip(defaults) {
                let expected = if name == variable { 7 } else { default };
                assert_eq!(value, expected, "{name} with {variable}");
            }
        }
        let error = limits(|_| Ok("many".to_owned())).unwrap_err().to_string();
        assert!(error.starts_with("UIMS_MAX_CHAT_MESSAGES is `many`: set a number"), "{error}");
    }
}
