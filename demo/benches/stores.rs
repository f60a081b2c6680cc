//! What a store costs an answer of words that come at a pace, beside the same in memory. Both run at the
//! same time.
//!
//! The time of an answer of 1 000 words, 50 a second, with a Redis whose bytes arrive 25 ms later; and
//! with a Redis that is 12.5 ms away, so that a reply takes 25 ms:
//!   cargo bench -p demo --bench stores -- redis
//!
//! The CPU time of two server processes, of which each streams 300 such answers (or as many as `STREAMS`
//! says) of 500 words over HTTP, which begin within a second. One stores them in SQLite:
//!   cargo bench -p demo --bench stores -- sqlite

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use async_stream::stream;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use serde_json::json;
use test_support::external_processes::fault_proxy::FaultProxy;
use test_support::external_processes::redis_server::RedisServer;
use test_support::external_processes::{Example, number};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};
use ui_message_stream::AgentEvent;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream::axum::serve;
use ui_message_stream_chat::axum::chat_routes;
use ui_message_stream_chat::{ChatServer, Turn};
use ui_message_stream_redis::RedisStore;
use ui_message_stream_sqlite::SqliteStore;

const PACE: Duration = Duration::from_millis(20);

#[tokio::main]
async fn main() {
    if let Ok(store) = std::env::var(ROLE) {
        return serve_from(&store).await;
    }
    let is_asked = |name: &str| std::env::args().any(|argument| argument == name);
    let all = !is_asked("redis") && !is_asked("sqlite");
    if all || is_asked("redis") {
        measure_redis(Duration::from_millis(25)).await;
        measure_redis(Duration::from_micros(12_500)).await;
    }
    if all || is_asked("sqlite") {
        measure_sqlite().await;
    }
}

/// Prints the times of an answer in memory, and in a Redis whose bytes arrive later by `delay`.
async fn measure_redis(delay: Duration) {
    let Some(redis) = RedisServer::start() else { return };
    let proxy = FaultProxy::before_redis(&redis);
    let store = Arc::new(RedisStore::connect(&proxy.url).await.expect("a Redis"));
    proxy.delay(delay);
    let words = 1_000;
    let stored = chats(words).with_store(store);
    let in_memory = start(chats(words)).await;
    let in_redis = start(stored).await;
    let (in_memory, in_redis) = tokio::join!(answer(&in_memory, 0), answer(&in_redis, 0));
    let ratio = in_redis.as_secs_f64() / in_memory.as_secs_f64();
    println!(
        "{words} words at 50 a second: {in_memory:.2?} in memory, {in_redis:.2?} with Redis, {delay:?} \
         in each direction: {ratio:.3} x"
    );
}

/// Prints the CPU times of two processes that stream the same answers.
async fn measure_sqlite() {
    let program = std::env::current_exe().expect("this program");
    let server = |store: &str| Example::run(&program, &[(ROLE, store.to_owned())]);
    let memory = server("memory");
    let sqlite = server("sqlite");
    let before = (memory.cpu_time(), sqlite.cpu_time());
    let streams = number("STREAMS", 300);
    let mut answers = tokio::task::JoinSet::new();
    for user in 0..streams {
        for server in [&memory, &sqlite] {
            let address = server.url.trim_start_matches("http://").to_owned();
            answers.spawn(async move {
                sleep(Duration::from_secs(1) * user as u32 / streams as u32).await;
                answer(&address, user).await
            });
        }
    }
    let times = answers.join_all().await;
    let longest = times.iter().max().expect("answers");
    let in_memory = memory.cpu_time() - before.0;
    let in_sqlite = sqlite.cpu_time() - before.1;
    let ratio = in_sqlite.as_secs_f64() / in_memory.as_secs_f64();
    println!(
        "{streams} answers of {WORDS} words at 50 a second: {in_memory:.2?} of CPU in memory, \
         {in_sqlite:.2?} with SQLite: {ratio:.2} x; the longest took {longest:.1?}"
    );
}

const WORDS: usize = 500;

/// Serves chats as another process, and prints the URL.
async fn serve_from(store: &str) {
    let chats = match store {
        "sqlite" => {
            let file = std::env::var("UIMS_DATA").expect("a file");
            let store = Arc::new(SqliteStore::open(file).await.expect("a file"));
            chats(WORDS).with_store(store)
        }
        _ => chats(WORDS),
    };
    println!("http://{}", start(chats).await);
    std::future::pending().await
}

fn chats(words: usize) -> ChatServer {
    let agent = move |_: Turn| {
        stream! {
            for _ in 0..words {
                sleep(PACE).await;
                yield AgentEvent::text("word ");
            }
        }
    };
    ChatServer::new(agent, Approvals::new(EmptyToolbox))
}

/// Serves chats, and returns the address. The user is the one that the header says.
async fn start(chats: ChatServer) -> String {
    let sign_in = async |mut request: Request, next: Next| {
        let user = request.headers()["x-user"].to_str().expect("a name").to_owned();
        request.extensions_mut().insert(Principal::new(user));
        next.run(request).await
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let app = chat_routes(chats).layer(from_fn(sign_in));
    tokio::spawn(async { serve(listener, app).await });
    address
}

/// Reads a whole answer, and returns its time.
async fn answer(address: &str, user: usize) -> Duration {
    let parts = json!([{"type": "text", "text": "Go on"}]);
    let message = json!({"id": "m", "role": "user", "parts": parts});
    let body = json!({"id": user.to_string(), "message": message}).to_string();
    let begun = Instant::now();
    let mut connection = TcpStream::connect(address).await.expect("a server");
    let head = format!(
        "POST / HTTP/1.0\r\nHost: {address}\r\nX-User: {user}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    connection.write_all(format!("{head}{body}").as_bytes()).await.expect("a server");
    let mut response = String::new();
    connection.read_to_string(&mut response).await.expect("a response");
    assert!(response.contains("[DONE]"), "{response}");
    begun.elapsed()
}

/// The variable that makes this program a server.
const ROLE: &str = "SERVE_FROM";
