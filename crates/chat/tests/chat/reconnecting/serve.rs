//! A chat server behind `serve`: many readers at once, its shutdown, and the connections of one user. The
//! clients are plain sockets.

use std::net::SocketAddr;

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use chat_test_support::answers::server_of;
use futures::{StreamExt, stream};
use serde_json::json;
use test_support::external_processes::number;
use test_support::requests::user_message;
use test_support::sockets::{post_head, read_to_end, read_until};
use test_support::{patience, within_patience};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use ui_message_stream::AgentEvent;
use ui_message_stream::approval::Principal;
use ui_message_stream::axum::{LocalAddress, serve, without_authentication};
use ui_message_stream_chat::Turn;
use ui_message_stream_chat::axum::chat_routes;

/// The authentication: a header names the user.
async fn sign_in(mut request: Request, next: Next) -> Response {
    let user = request.headers()["x-user"].to_str().unwrap().to_owned();
    request.extensions_mut().insert(Principal::new(user));
    next.run(request).await
}

/// Sends a message of a user in a chat.
async fn post_as(user: &str, chat: &str, address: SocketAddr) -> TcpStream {
    let body = json!({"id": chat, "messages": [user_message("m", "Go on")]}).to_string();
    let head = post_head("/", body.len()).replace("\r\n\r\n", "");
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!("{head}\r\nX-User: {user}\r\n\r\n{body}");
    socket.write_all(request.as_bytes()).await.unwrap();
    socket
}

/// With `OPEN_STREAMS=4000` it needs 8 000 file descriptors.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_answers_at_once_are_each_complete_also_if_the_server_stops_meanwhile() {
    let streams = number("OPEN_STREAMS", 200);
    let gate = watch::Sender::new(false);
    let of_agent = gate.clone();
    let agent = move |_: Turn| {
        let mut gate = of_agent.subscribe();
        let last = async move {
            gate.wait_for(|is_open| *is_open).await.unwrap();
            AgentEvent::text("last")
        };
        stream::iter([AgentEvent::text("first ")]).chain(stream::once(last))
    };
    let chats = server_of(agent);
    // Each chat has a user of its own.
    let app = chat_routes(chats.clone()).layer(from_fn(sign_in));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = serve(listener, app)
        .with_max_connections(streams + 1)
        .with_graceful_shutdown(async { drop(stopped.await) });
    let server = tokio::spawn(async { server.await });

    let mut clients = Vec::new();
    for user in 0..streams {
        let user = user.to_string();
        clients.push(post_as(&user, &user, address).await);
    }
    for client in &mut clients {
        read_until(client, "first ").await;
    }
    assert_eq!(chats.run_counts().live, streams as u64);
    drop(stop);
    let shut_down = chats.shut_down(patience());
    let read = async {
        gate.send_replace(true);
        for mut client in clients {
            let rest = read_to_end(&mut client).await;
            assert!(rest.contains("last") && rest.contains("[DONE]"), "{rest}");
        }
    };
    assert_eq!(tokio::join!(shut_down, read).0, 0);
    within_patience(server).await.unwrap();
}

#[tokio::test]
async fn a_server_that_stops_answers_503_on_new_connections_until_its_last_run_has_ended() {
    for is_of_axum in [false, true] {
        let gate = watch::Sender::new(false);
        let of_agent = gate.clone();
        let agent = move |_: Turn| {
            let mut gate = of_agent.subscribe();
            stream::once(async move {
                gate.wait_for(|is_open| *is_open).await.unwrap();
                AgentEvent::text("last")
            })
        };
        let chats = server_of(agent);
        let app = chat_routes(chats.clone()).layer(without_authentication());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sigterm, received) = oneshot::channel::<()>();
        let (begun, has_begun) = oneshot::channel();
        // As in docs/operations.md.
        let stop = async move {
            drop(received.await);
            let shut_down = chats.shut_down(patience());
            begun.send(()).unwrap();
            shut_down.await;
        };
        let server = tokio::spawn(async move {
            match is_of_axum {
                true => {
                    let app = app.into_make_service_with_connect_info::<LocalAddress>();
                    axum::serve(listener, app).with_graceful_shutdown(stop).await.unwrap();
                }
                false => serve(listener, app).with_graceful_shutdown(stop).await,
            }
        });
        let send = async || post_as("ada", "c", address).await;
        let mut reader = send().await;
        read_until(&mut reader, "\"start\"").await;
        sigterm.send(()).unwrap();
        has_begun.await.unwrap();
        for _ in 0..18 {
            let mut refused = send().await;
            read_until(&mut refused, "HTTP/1.1 503 ").await;
        }
        gate.send_replace(true);
        let rest = read_to_end(&mut reader).await;
        assert!(rest.contains("last") && rest.contains("[DONE]"), "{rest}");
        within_patience(server).await.unwrap();
    }
}

#[tokio::test]
async fn a_user_who_opens_as_many_streams_as_there_are_connections_does_not_keep_others_out() {
    let agent = |_: Turn| stream::iter([AgentEvent::text("first ")]).chain(stream::pending());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = chat_routes(server_of(agent)).layer(from_fn(sign_in));
    let server = serve(listener, app).with_max_connections(MAX_CONNECTIONS);
    let server = tokio::spawn(async { server.await });

    const MAX_CONNECTIONS: usize = 70;
    let read = async |user: &str, expected: &str| {
        let mut socket = post_as(user, "c", address).await;
        read_until(&mut socket, expected).await;
        socket
    };
    let mut open = Vec::new();
    for stream in 0..MAX_CONNECTIONS {
        // The 65th has a complete response, so its connection can be closed.
        let expected = if stream < 64 { "first " } else { "429 Too Many Requests" };
        open.push(read("ada", expected).await);
    }
    open.push(read("bob", "first ").await);
    server.abort();
}
