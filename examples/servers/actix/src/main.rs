//! The chat of `examples/adapter.rs` on actix-web. It has no authentication, so it listens only on its
//! own machine. Run `cargo run -p chat-actix` in `examples/servers`, then post to it as `useChat` does.
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::error::{ErrorBadRequest, InternalError};
use actix_web::middleware::{Next, from_fn};
use actix_web::web::{Bytes, Data, PayloadConfig, get, post};
use actix_web::{App, Error, HttpResponse, HttpServer, Result, body::BoxBody, http::StatusCode};
use example_agent::{approvals, delete_file, effects, respond, status_of, status_of_refusal};
use ui_message_stream::approval::{Approvals, Principal};
use ui_message_stream::policy::ChatPolicy;
use ui_message_stream::{ChatRequest, UiMessageStream, response::headers};

/// Rejects every request that the policy does not allow: a page of another site may have made the
/// browser send it. The policy takes the types of `http` 1, actix-web has those of `http` 0.2.
async fn guard(request: ServiceRequest, next: Next<BoxBody>) -> Result<ServiceResponse> {
    let head = http::Request::builder().method(request.method().as_str());
    let mut head = head.uri(request.uri().to_string());
    for (name, value) in request.headers() {
        head = head.header(name.as_str(), value.as_bytes());
    }
    let (head, ()) = head.body(()).map_err(ErrorBadRequest)?.into_parts();
    ChatPolicy::default().check(&head).map_err(|error| rejection(error.status(), error))?;
    next.call(request).await
}

fn rejection(status: http::StatusCode, error: impl std::error::Error + 'static) -> Error {
    let status = StatusCode::from_u16(status.as_u16()).unwrap_or(StatusCode::FORBIDDEN);
    InternalError::new(error, status).into()
}

async fn chat(approvals: Data<Approvals>, body: Bytes) -> Result<HttpResponse> {
    let chat = ChatRequest::parse(&body, ChatPolicy::default().limits());
    let chat = chat.map_err(|error| rejection(status_of(&error), error))?;
    // A chat with users identifies the user here.
    let user = Principal::anonymous();
    let running = approvals.run(&user, &chat, |call, _| delete_file(call)).await;
    let running = running.map_err(|error| rejection(status_of_refusal(&error), error))?;
    let events = respond(approvals.as_ref().clone(), user, chat.clone(), running);
    let mut response = HttpResponse::Ok();
    for (name, value) in &headers() {
        response.insert_header((name.as_str(), value.as_bytes()));
    }
    Ok(response.streaming(UiMessageStream::reply(&chat, events)))
}

#[actix_web::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().init();
    let address = format!("127.0.0.1:{}", std::env::var("PORT").unwrap_or("3000".to_owned()));
    let approvals = Data::new(approvals());
    let max_bytes = PayloadConfig::new(ChatPolicy::default().limits().max_bytes());
    let server = HttpServer::new(move || {
        let app = App::new().app_data(approvals.clone()).app_data(max_bytes.clone());
        let app = app.route("/effects", get().to(async || effects().to_string()));
        // Nothing is written that a page could rejoin: `useChat` with `resume: true` asks for it.
        let app = app.route("/api/chat/{id}/stream", get().to(HttpResponse::NoContent));
        app.route("/api/chat", post().to(chat)).wrap(from_fn(guard))
    });
    let server = server.bind(address)?;
    println!("useChat can post to http://{}/api/chat", server.addrs()[0]);
    Ok(server.run().await?)
}
