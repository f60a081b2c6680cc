//! The chat of `examples/adapter.rs` on poem. It has no authentication, so it listens only on its own
//! machine. Run `cargo run -p chat-poem` in `examples/servers`, then post to it as `useChat` does.
use example_agent::{approvals, delete_file, effects, respond, status_of, status_of_refusal};
use poem::listener::TcpAcceptor;
use poem::web::Data;
use poem::{Body, EndpointExt, Request, Response, Result, Route, Server, get, handler, http, post};
use ui_message_stream::approval::{Approvals, Principal};
use ui_message_stream::policy::ChatPolicy;
use ui_message_stream::{ChatRequest, UiMessageStream, response::headers};

/// Rejects every request that the policy does not allow: a page of another site may have made the
/// browser send it.
async fn guard(request: Request) -> Result<Request> {
    let (mut head, ()) = http::Request::new(()).into_parts();
    head.method = request.method().clone();
    head.uri = request.uri().clone();
    head.headers = request.headers().clone();
    let checked = ChatPolicy::default().check(&head);
    checked.map(|()| request).map_err(|error| {
        let status = error.status();
        poem::Error::new(error, status)
    })
}

#[handler]
async fn chat(Data(approvals): Data<&Approvals>, body: Body) -> Result<Response> {
    let policy = ChatPolicy::default();
    let body = body.into_bytes_limit(policy.limits().max_bytes()).await?;
    let chat = ChatRequest::parse(&body, policy.limits()).map_err(|error| {
        let status = status_of(&error);
        poem::Error::new(error, status)
    })?;
    // A chat with users identifies the user here.
    let user = Principal::anonymous();
    let running = approvals.run(&user, &chat, |call, _| delete_file(call)).await;
    let running = running.map_err(|error| {
        let status = status_of_refusal(&error);
        poem::Error::new(error, status)
    })?;
    let events = respond(approvals.clone(), user, chat.clone(), running);
    let body = Body::from_bytes_stream(UiMessageStream::reply(&chat, events));
    let mut response = Response::from(body);
    *response.headers_mut() = headers();
    Ok(response)
}

/// Nothing is written that a page could rejoin: `useChat` with `resume: true` asks for it.
#[handler]
fn rejoin() -> http::StatusCode {
    http::StatusCode::NO_CONTENT
}

#[handler]
fn count() -> String {
    effects().to_string()
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().init();
    let address = format!("127.0.0.1:{}", std::env::var("PORT").unwrap_or("3000".to_owned()));
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("useChat can post to http://{}/api/chat", listener.local_addr()?);
    let app = Route::new().at("/api/chat", post(chat)).at("/effects", get(count));
    let app = app.at("/api/chat/:id/stream", get(rejoin));
    let app = app.data(approvals()).before(guard);
    Ok(Server::new_with_acceptor(TcpAcceptor::from_tokio(listener)?).run(app).await?)
}
