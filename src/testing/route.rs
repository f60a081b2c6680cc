//! The handler or service that a [`Conversation`](super::Conversation) or a
//! [`Recording`](super::Recording) talks to, called without a socket.

use std::fmt;
use std::rc::Rc;

use futures_core::future::LocalBoxFuture;
use http::header::CONTENT_TYPE;
use http::{Request, Response, StatusCode};
use http_body::Body;

use crate::boxed::BoxError;
use crate::id::ChatId;
use crate::request::{ChatRequest, Limits};
use crate::testing::collect::ReadBody;

/// A type-erased handler: takes a request and returns the reply.
pub(super) struct Route<'h> {
    post: Handler<'h, String>,
    /// Reconnects to a live response.
    reconnect: Option<Handler<'h, ChatId>>,
}

/// A handler. Takes a request, and after how many chunks of the response the client disconnects.
type Handler<'h, R> = Box<dyn Fn(R, Option<usize>) -> LocalBoxFuture<'h, Reply> + 'h>;

/// The reply of a handler.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) body: ReadBody,
}

impl Reply {
    async fn read<B>(status: StatusCode, body: B, max_chunks: Option<usize>) -> Self
    where
        B: Body<Error: Into<BoxError>>,
    {
        Reply { status, body: ReadBody::read(body, max_chunks).await }
    }
}

impl<'h> Route<'h> {
    pub(super) fn handler<H, B>(handler: H) -> Self
    where
        H: AsyncFn(ChatRequest) -> B + 'h,
        B: Body<Error: Into<BoxError>> + 'h,
    {
        let handler = Rc::new(handler);
        let post = move |body: String, max_chunks| -> LocalBoxFuture<'h, Reply> {
            let handler = Rc::clone(&handler);
            Box::pin(async move {
                match ChatRequest::parse(body.as_bytes(), &Limits::default()) {
                    Ok(chat) => Reply::read(StatusCode::OK, handler(chat).await, max_chunks).await,
                    Err(error) => {
                        Reply::read(StatusCode::BAD_REQUEST, error.to_string(), None).await
                    }
                }
            })
        };
        Route { post: Box::new(post), reconnect: None }
    }

    pub(super) fn with_reconnect<H, B>(mut self, handler: H) -> Self
    where
        H: AsyncFn(ChatId) -> Option<B> + 'h,
        B: Body<Error: Into<BoxError>> + 'h,
    {
        let handler = Rc::new(handler);
        self.reconnect = Some(Box::new(move |id, max_chunks| {
            let handler = Rc::clone(&handler);
            Box::pin(async move {
                match handler(id).await {
                    Some(body) => Reply::read(StatusCode::OK, body, max_chunks).await,
                    None => Reply::read(StatusCode::NO_CONTENT, String::new(), None).await,
                }
            })
        }));
        self
    }

    pub(super) fn http<H, B, E>(uri: &str, handler: H) -> Self
    where
        H: AsyncFn(Request<String>) -> Result<Response<B>, E> + 'h,
        B: Body<Error: Into<BoxError>> + 'h,
        E: fmt::Debug + 'h,
    {
        let handler = Rc::new(handler);
        let call = move |request: Request<String>, max_chunks| -> LocalBoxFuture<'h, Reply> {
            let handler = Rc::clone(&handler);
            Box::pin(async move {
                let response = handler(request).await;
                let response = response.unwrap_or_else(|error| panic!("the route: {error:?}"));
                Reply::read(response.status(), response.into_body(), max_chunks).await
            })
        };
        let call = Rc::new(call);
        let checked = |uri: &str, request: http::Result<Request<String>>| {
            request.unwrap_or_else(|error| panic!("{uri:?} is no URI: {error}"))
        };
        let post = {
            let call = Rc::clone(&call);
            let uri = uri.to_owned();
            move |body: String, max_chunks| {
                let request = Request::post(&uri).header(CONTENT_TYPE, "application/json");
                call(checked(&uri, request.body(body)), max_chunks)
            }
        };
        let uri = uri.to_owned();
        let reconnect = move |id: ChatId, max_chunks| {
            let uri = stream_uri(&uri, &id);
            call(checked(&uri, Request::get(&uri).body(String::new())), max_chunks)
        };
        Route { post: Box::new(post), reconnect: Some(Box::new(reconnect)) }
    }

    pub(super) async fn post(&self, body: String, max_chunks: Option<usize>) -> Reply {
        (self.post)(body, max_chunks).await
    }

    pub(super) async fn reconnect(&self, id: ChatId, max_chunks: Option<usize>) -> Reply {
        let reconnect = self.reconnect.as_ref();
        let reconnect =
            reconnect.expect("a handler alone rejoins nothing: `with_reconnect` says how");
        reconnect(id, max_chunks).await
    }
}

/// Returns `{api}/{encodeURIComponent(chat id)}/stream`, followed by the query of `api`.
fn stream_uri(api: &str, id: &ChatId) -> String {
    let (path, query) = api.split_at(api.find(['?', '#']).unwrap_or(api.len()));
    let mut uri = format!("{}/", path.strip_suffix('/').unwrap_or(path));
    for byte in id.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.!~*'()".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            uri.push_str(&format!("%{byte:02X}"));
        }
    }
    uri + "/stream" + query
}
