//! The chat of `examples/adapter.rs` on hyper, without a framework. It has no authentication, so it
//! listens only on its own machine. Run `cargo run -p chat-hyper` in `examples/servers`, then post to
//! it as `useChat` does.
use example_agent::{approvals, delete_file, effects, respond, status_of, status_of_refusal};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use ui_message_stream::approval::{Approvals, Principal};
use ui_message_stream::policy::ChatPolicy;
use ui_message_stream::{BoxError, ChatRequest, UiMessageStream};

type Answer = Response<Either<UiMessageStream, Full<Bytes>>>;
type Rejection = (StatusCode, BoxError);

async fn route(approvals: Approvals, request: Request<Incoming>) -> Result<Answer, Rejection> {
    let (policy, (head, body)) = (ChatPolicy::default(), request.into_parts());
    // Before anything else: a page of another site may have made the browser send this.
    policy.check(&head).map_err(|error| (error.status(), error.into()))?;
    match (head.method.as_str(), head.uri.path()) {
        ("POST", "/api/chat") => {}
        ("GET", "/effects") => return Ok(text(StatusCode::OK, effects().to_string())),
        // Nothing is written that a page could rejoin: `useChat` with `resume: true` asks for it.
        ("GET", path) if path.ends_with("/stream") => {
            return Ok(text(StatusCode::NO_CONTENT, String::new()));
        }
        _ => return Err((StatusCode::NOT_FOUND, "there is no such route".into())),
    }
    let body = Limited::new(body, policy.limits().max_bytes()).collect().await;
    let body = body.map_err(|error| (StatusCode::PAYLOAD_TOO_LARGE, error))?.to_bytes();
    let chat = ChatRequest::parse(&body, policy.limits());
    let chat = chat.map_err(|error| (status_of(&error), error.into()))?;
    // A chat with users identifies the user here.
    let user = Principal::anonymous();
    let running = approvals.run(&user, &chat, |call, _| delete_file(call)).await;
    let running = running.map_err(|error| (status_of_refusal(&error), error.into()))?;
    let events = respond(approvals, user, chat.clone(), running);
    Ok(UiMessageStream::reply(&chat, events).into_http_response().map(Either::Left))
}

fn text(status: StatusCode, text: String) -> Answer {
    let mut response = Response::new(Either::Right(Full::from(text)));
    *response.status_mut() = status;
    response
}

async fn answer(approvals: Approvals, request: Request<Incoming>) -> hyper::Result<Answer> {
    let rejected = |(status, error): Rejection| text(status, error.to_string());
    Ok(route(approvals, request).await.unwrap_or_else(rejected))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().init();
    let address = format!("127.0.0.1:{}", std::env::var("PORT").unwrap_or("3000".to_owned()));
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("useChat can post to http://{}/api/chat", listener.local_addr()?);
    let approvals = approvals();
    loop {
        let connection = TokioIo::new(listener.accept().await?.0);
        let approvals = approvals.clone();
        let service = service_fn(move |request| answer(approvals.clone(), request));
        tokio::spawn(http1::Builder::new().serve_connection(connection, service));
    }
}
