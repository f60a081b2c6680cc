//! A chat on actix-web. Run `cargo run -p integrations --bin actix_server`, then post to it as
//! `useChat` does.

use std::error::Error;

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::error::{ErrorBadRequest, InternalError};
use actix_web::http::StatusCode;
use actix_web::middleware::{Next, from_fn};
use actix_web::web::{Bytes, Data, PayloadConfig, post};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer};
use futures::stream;
use http::request::Parts;
use ui_message_stream::policy::ChatPolicy;
use ui_message_stream::response::headers;
use ui_message_stream::{AgentEvent, ChatRequest, UiMessageStream};

/// Answers no request that the policy does not allow: a page of another site may have made the
/// browser send it.
async fn guard(
    policy: Data<ChatPolicy>,
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    let head = head(request.request()).map_err(ErrorBadRequest)?;
    policy.check(&head).map_err(|error| {
        let status = StatusCode::from_u16(error.status().as_u16());
        InternalError::new(error, status.unwrap_or(StatusCode::FORBIDDEN))
    })?;
    next.call(request).await
}

/// Returns the head of a request in the types of `http` 1. actix-web uses those of `http` 0.2.
fn head(request: &HttpRequest) -> http::Result<Parts> {
    let head =
        http::Request::builder().method(request.method().as_str()).uri(request.uri().to_string());
    let with_headers = request
        .headers()
        .iter()
        .fold(head, |head, (name, value)| head.header(name.as_str(), value.as_bytes()));
    Ok(with_headers.body(())?.into_parts().0)
}

async fn chat(policy: Data<ChatPolicy>, body: Bytes) -> actix_web::Result<HttpResponse> {
    // This chat is the same for everybody. One with users authenticates before it.
    let chat = ChatRequest::parse(&body, policy.limits()).map_err(ErrorBadRequest)?;
    let mut response = HttpResponse::Ok();
    for (name, value) in &headers() {
        response.insert_header((name.as_str(), value.as_bytes()));
    }
    let events = stream::iter([AgentEvent::text("Hello")]);
    Ok(response.streaming(UiMessageStream::reply(&chat, events)))
}

#[actix_web::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let port = std::env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let policy = Data::new(ChatPolicy::default());
    let server = HttpServer::new(move || {
        App::new()
            .app_data(PayloadConfig::new(policy.limits().max_bytes()))
            .app_data(policy.clone())
            .route("/api/chat", post().to(chat))
            .wrap(from_fn(guard))
    })
    .bind(("127.0.0.1", port))?;
    for address in server.addrs() {
        println!("useChat can post to http://{address}/api/chat");
    }
    Ok(server.run().await?)
}
