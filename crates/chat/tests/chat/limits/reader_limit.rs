//! A user reads at most 64 responses at once, unless the host sets another number.

use axum::body::BodyDataStream;
use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::Router;
use chat_test_support::answers::{self, server_of};
use chat_test_support::test_server::PRINCIPAL_HEADER;
use futures::{StreamExt, stream};
use serde_json::json;
use test_support::requests::user_message;
use ui_message_stream::AgentEvent;
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::axum::chat_routes;
use ui_message_stream_chat::{ChatServer, Turn};

fn routes() -> (Router, ChatServer) {
    let agent = |_: Turn| stream::iter([AgentEvent::text("Hi")]).chain(stream::pending());
    let chats = server_of(agent);
    let authenticate = async |mut request: Request, next: Next| {
        let user = request.headers()[PRINCIPAL_HEADER].to_str().unwrap().to_owned();
        request.extensions_mut().insert(Principal::new(user));
        next.run(request).await
    };
    (chat_routes(chats.clone()).layer(from_fn(authenticate)), chats)
}

async fn send(routes: &Router, user: &str, request: (Method, &str, &str, &str)) -> Response {
    let (method, path, (header, value), body) = match request {
        (method, path, "json", body) => (method, path, ("accept", "application/json"), body),
        (method, path, "", body) => (method, path, ("accept", "*/*"), body),
        (method, path, id, body) => (method, path, ("last-event-id", id), body),
    };
    let headers = [(PRINCIPAL_HEADER, user), (header, value)];
    answers::send(routes, method, path, &headers, body.to_owned()).await
}

/// Returns the body of a response after its first frame.
async fn read_one(response: Response) -> (String, BodyDataStream) {
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = response.into_body().into_data_stream();
    let frame = body.next().await.unwrap().unwrap();
    (String::from_utf8(frame.to_vec()).unwrap(), body)
}

fn message(id: &str) -> String {
    message_with(id, "hello")
}

fn message_with(id: &str, text: &str) -> String {
    json!({"id": "c", "messages": [user_message(id, text)]}).to_string()
}

#[tokio::test(start_paused = true)]
async fn a_user_with_64_readers_gets_429_and_no_effect_until_one_ends() {
    let (routes, chats) = routes();
    let (post, get) = (Method::POST, Method::GET);
    let (first, message) = (message("m1"), message("m2"));
    let (frame, begun) =
        read_one(send(&routes, "ada", (post.clone(), "/", "", &first)).await).await;
    let id = frame.strip_prefix("id: ").unwrap().lines().next().unwrap().to_owned();
    let mut readers = vec![begun];
    for _ in 0..63 {
        let stream = send(&routes, "ada", (get.clone(), "/c/stream", "", "")).await;
        readers.push(read_one(stream).await.1);
    }
    for request in [
        (post.clone(), "/", "", &*message),
        (post.clone(), "/", "json", &*message),
        (post.clone(), "/", "", &*first),
        (get.clone(), "/c/stream", "", ""),
        (get.clone(), "/c/stream", &*id, ""),
        (get.clone(), "/?events", "", ""),
    ] {
        let refused = send(&routes, "ada", request.clone()).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS, "{request:?}");
        assert_eq!(refused.headers()[header::RETRY_AFTER], "1");
    }
    let ada = Principal::new("ada");
    let chat = chats.chat(&ada, &"c".into()).await.unwrap();
    assert_eq!(chat.messages.iter().filter(|message| message.id.as_str() == "m2").count(), 0);

    // Another user has readers of its own, and this one may still read and stop its chat.
    drop(read_one(send(&routes, "bob", (post.clone(), "/", "", &message)).await).await);
    for path in ["/", "/c"] {
        let status = send(&routes, "ada", (get.clone(), path, "", "")).await.status();
        assert_eq!(status, StatusCode::OK);
    }
    // A client disconnects.
    drop(readers.pop());
    readers.push(read_one(send(&routes, "ada", (get.clone(), "/c/stream", &id, "")).await).await.1);
    let refused = send(&routes, "ada", (get.clone(), "/c/stream", "", "")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);

    let stopped = send(&routes, "ada", (Method::DELETE, "/c/stream", "", "")).await;
    assert_eq!(stopped.status(), StatusCode::NO_CONTENT);
    // The responses have ended, although the bodies exist until they are read.
    for mut reader in readers {
        while reader.next().await.is_some() {}
    }
    drop(read_one(send(&routes, "ada", (post, "/", "", &message)).await).await);
}

#[tokio::test(start_paused = true)]
async fn a_large_page_of_a_chat_is_a_response_that_is_read() {
    let (routes, _) = routes();
    let message = message_with("m1", &"hello ".repeat(10_000));
    drop(read_one(send(&routes, "ada", (Method::POST, "/", "", &message)).await).await);
    let get = async || send(&routes, "ada", (Method::GET, "/c", "", "")).await;
    let mut readers = Vec::new();
    for _ in 0..64 {
        readers.push(read_one(get().await).await.1);
    }
    let refused = get().await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()[header::RETRY_AFTER], "1");
    drop(readers.pop());
    let page = get().await.into_body().into_data_stream();
    let bytes = page.fold(0, async |sum, piece| sum + piece.unwrap().len()).await;
    assert!(bytes > 60_000, "{bytes} bytes");
}
