//! A chat on hyper, without a framework. Run `cargo run -p integrations --bin hyper_server`, then
//! post to it as `useChat` does.

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use ui_message_stream::policy::ChatPolicy;
use ui_message_stream::{AgentEvent, ChatRequest, UiMessageStream};

type Body = Either<UiMessageStream, Full<Bytes>>;

async fn chat(policy: &ChatPolicy, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    // Before anything else: a page of another site may have made the browser send this.
    if let Err(error) = policy.check(&head) {
        return text(error.status(), error.to_string());
    }
    if head.uri.path() != "/api/chat" || head.method != Method::POST {
        return text(StatusCode::NOT_FOUND, "there is no such route".to_owned());
    }
    // This chat is the same for everybody. One with users authenticates here.
    let Ok(body) = Limited::new(body, policy.limits().max_bytes()).collect().await else {
        return text(StatusCode::PAYLOAD_TOO_LARGE, "the request body is too large".to_owned());
    };
    let chat = match ChatRequest::parse(&body.to_bytes(), policy.limits()) {
        Ok(chat) => chat,
        Err(error) => return text(StatusCode::BAD_REQUEST, error.to_string()),
    };
    let events = stream::iter([AgentEvent::text("Hello")]);
    UiMessageStream::reply(&chat, events).into_http_response().map(Either::Left)
}

fn text(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(Either::Right(Full::from(text)));
    *response.status_mut() = status;
    response
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let port = std::env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("useChat can post to http://{}/api/chat", listener.local_addr()?);
    let policy = Arc::new(ChatPolicy::default());
    loop {
        let (connection, _) = listener.accept().await?;
        let policy = Arc::clone(&policy);
        tokio::spawn(async move {
            let service =
                service_fn(async |request| Ok::<_, Infallible>(chat(&policy, request).await));
            let served = http1::Builder::new().serve_connection(TokioIo::new(connection), service);
            if let Err(error) = served.await {
                eprintln!("{error}");
            }
        });
    }
}
