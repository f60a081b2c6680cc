//! The recorded conversations of `fixtures/` over HTTP, with the real client: responses are cut at
//! frames and at random bytes, and continued by `Last-Event-ID` and by replay. The message of the
//! client is as if the response had never been cut. `cut-conversations.mjs` has the cases.
//!
//! `CUT_FRAMES=all CUT_BYTES=1000 CUT_REPLAYS=1000 cargo test --test client
//! cut_conversations` cuts at every frame and at 1 000 random bytes, and replays 1 000 times.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Path;
use axum::response::Json;
use axum::routing::{get, post};
use chat_test_support::recorded_conversations::{Permits, Recording, recorded_agent, recordings};
use test_support::external_processes::{node_project, run_node};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use ui_message_stream::approval::{Approvals, EmptyToolbox};
use ui_message_stream::axum::without_authentication;
use ui_message_stream_chat::ChatLimits;
use ui_message_stream_chat::ChatServer;
use ui_message_stream_chat::axum::chat_routes;

/// The permits of the agents that have to wait, by the key that the page has chosen.
type Held = Arc<Mutex<HashMap<String, Permits>>>;

/// Returns the permits for a user's text: the name of a recording, after `hold KEY EVENTS ` if the
/// agent says only so many events until it is released.
fn permits(held: &Held, text: &str) -> (Permits, String) {
    let Some(rest) = text.strip_prefix("hold ") else {
        return (Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)), text.to_owned());
    };
    let [key, events, name] = rest.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
    let new = || Arc::new(Semaphore::new(events.parse().unwrap()));
    let permits = Arc::clone(held.lock().unwrap().entry(key.to_owned()).or_insert_with(new));
    (permits, name.to_owned())
}

async fn serve(listener: TcpListener, recordings: Arc<Vec<Recording>>) {
    let held = Held::default();
    let names: Vec<_> = recordings
        .iter()
        .map(|it| (it.name.clone(), it.live_events(), it.continued.is_some()))
        .collect();
    let of_agent = Arc::clone(&held);
    let agent = recorded_agent(recordings, move |text| permits(&of_agent, text));
    let limits = ChatLimits::default().with_max_user_chats(usize::MAX).with_max_user_runs(1_000);
    let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox)).with_limits(limits);
    let release = async move |Path(key): Path<String>| {
        let permits = held.lock().unwrap().remove(&key);
        permits.expect("a held agent").add_permits(Semaphore::MAX_PERMITS / 2);
    };
    let routes = Router::new()
        .route("/recordings", get(async move || Json(names)))
        .route("/release/{key}", post(release))
        .nest("/api/chat", chat_routes(chats))
        .layer(without_authentication());
    axum::serve(listener, routes).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_real_client_shows_a_response_that_was_cut_as_if_it_was_not() {
    let Some(client) = node_project("tests/client") else { return };
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(serve(listener, Arc::new(recordings())));
    let number =
        |name: &str, otherwise: &str| std::env::var(name).unwrap_or_else(|_| otherwise.to_owned());
    let cuts = [
        ["--frames", &number("CUT_FRAMES", "300")],
        ["--bytes", &number("CUT_BYTES", "100")],
        ["--replays", &number("CUT_REPLAYS", "100")],
    ]
    .concat()
    .into_iter()
    .map(str::to_owned)
    .collect::<Vec<_>>();
    let printed = tokio::task::spawn_blocking(move || {
        let arguments =
            ["cut-conversations.mjs", &url].into_iter().chain(cuts.iter().map(|it| &**it));
        run_node(&client, &arguments.collect::<Vec<_>>())
    });
    let printed = printed.await.unwrap();
    assert!(printed.ends_with(" 0 failed\n"), "{printed}");
}
