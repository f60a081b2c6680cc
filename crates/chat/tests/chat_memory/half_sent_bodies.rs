//! Request bodies that are half-sent hold a bounded number of bytes, and do not keep other users out.

use std::convert::Infallible;
use std::task::Poll;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use futures::{StreamExt, stream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower::ServiceExt;
use ui_message_stream::AgentEvent;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream_chat::axum::chat_routes;
use ui_message_stream_chat::{ChatServer, Turn};

use super::{ALONE, HEAP};

/// How many bytes of each body have arrived.
const SENT: usize = 1 << 20;

/// How many bytes the bodies of one user may have: an eighth of 256 MiB.
const SHARE: usize = 32 << 20;

const MESSAGE: &str = r#"{"id":"c","messages":[{"id":"u","role":"user","parts":[]}]}"#;

fn request(user: Option<&str>, body: Body) -> Request {
    let request = Request::post("/").header(header::CONTENT_TYPE, "application/json");
    let request = match user {
        Some(user) => request.header("x-user", user),
        None => request,
    };
    request.body(body).unwrap()
}

#[tokio::test(start_paused = true)]
async fn half_sent_bodies_of_one_user_are_bounded_and_another_user_is_served() {
    let _alone = ALONE.lock().await;
    let agent = |_: Turn| stream::iter([AgentEvent::text("Hi")]);
    let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox));
    let authenticate = async |mut request: Request, next: Next| {
        if let Some(user) = request.headers().get("x-user") {
            let user = Principal::new(user.to_str().unwrap());
            request.extensions_mut().insert(user);
        }
        next.run(request).await
    };
    let routes = chat_routes(chats).layer(from_fn(authenticate));

    let before = HEAP.current_usage();
    let mut half_sent = JoinSet::new();
    for _ in 0..100 {
        let routes = routes.clone();
        half_sent.spawn(async move {
            let sent = stream::once(async { Ok::<_, Infallible>(Bytes::from(vec![b' '; SENT])) });
            let body = Body::from_stream(sent.chain(stream::pending()));
            routes.oneshot(request(Some("ada"), body)).await.unwrap()
        });
    }
    // The bodies whose bytes were received first are cut off.
    for _ in 0..100 - SHARE / SENT {
        let response = timeout(Duration::from_secs(60), half_sent.join_next()).await;
        let response = response.expect("a body is cut off").unwrap().unwrap();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    }
    let held = HEAP.current_usage() - before;
    println!("half-sent bodies of one user: {held} bytes");
    assert!(held <= SHARE + (2 << 20), "{held} bytes");

    // A newer request of the same user is served, and one of another user.
    for user in ["ada", "bob"] {
        let response = routes.clone().oneshot(request(Some(user), MESSAGE.into())).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
    // The body of a request without a user is not read.
    let unread = stream::poll_fn(|_| -> Poll<Option<Result<Bytes, Infallible>>> {
        panic!("the body is read")
    });
    let response = routes.oneshot(request(None, Body::from_stream(unread))).await.unwrap();
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
}
