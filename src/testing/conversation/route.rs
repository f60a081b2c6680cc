//! What a conversation talks to: a handler, called without a socket.

use std::fmt;
use std::pin::Pin;
use std::rc::Rc;

use http::header::CONTENT_TYPE;
use http::{Request, Response, StatusCode};
use http_body::Body;

use crate::id::ChatId;
use crate::request::{ChatRequest, Limits};
use crate::stream::BoxError;
use crate::testing::collect::ReadBody;

/// A handler, whatever its type: a request in, what it answered out.
pub(super) struct Route<'h> {
    post: Handler<'h, String>,
    /// How a live response is rejoined.
    reconnect: Option<Handler<'h, ChatId>>,
}

/// Takes a request, and how many chunks of the answer are read before the client hangs up.
type Handler<'h, R> = Box<dyn Fn(R, Option<usize>) -> BoxFuture<'h, Reply> + 'h>;

type BoxFuture<'h, T> = Pin<Box<dyn Future<Output = T> + 'h>>;

/// What a handler answered.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) body: ReadBody,
}

impl Reply {
    async fn of<B>(status: StatusCode, body: B, most: Option<usize>) -> Self
    where
        B: Body<Error: Into<BoxError>>,
    {
        Reply { status, body: ReadBody::of(body, most).await }
    }
}

impl<'h> Route<'h> {
    pub(super) fn handler<H, B>(handler: H) -> Self
    where
        H: AsyncFn(ChatRequest) -> B + 'h,
        B: Body<Error: Into<BoxError>> + 'h,
    {
        let handler = Rc::new(handler);
        let post = move |body: String, most| -> BoxFuture<'h, Reply> {
            let handler = Rc::clone(&handler);
            Box::pin(async move {
                match ChatRequest::parse(body.as_bytes(), &Limits::default()) {
                    Ok(chat) => Reply::of(StatusCode::OK, handler(chat).await, most).await,
                    Err(error) => Reply::of(StatusCode::BAD_REQUEST, error.to_string(), None).await,
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
        self.reconnect = Some(Box::new(move |id, most| {
            let handler = Rc::clone(&handler);
            Box::pin(async move {
                match handler(id).await {
                    Some(body) => Reply::of(StatusCode::OK, body, most).await,
                    None => Reply::of(StatusCode::NO_CONTENT, String::new(), None).await,
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
        let answer = move |request: Request<String>, most| -> BoxFuture<'h, Reply> {
            let handler = Rc::clone(&handler);
            Box::pin(async move {
                let response = handler(request).await;
                let response = response.unwrap_or_else(|error| panic!("the route: {error:?}"));
                Reply::of(response.status(), response.into_body(), most).await
            })
        };
        let answer = Rc::new(answer);
        let built = |uri: &str, request: http::Result<Request<String>>| {
            request.unwrap_or_else(|error| panic!("{uri:?} is no URI: {error}"))
        };
        let post = {
            let (answer, uri) = (Rc::clone(&answer), uri.to_owned());
            move |body: String, most| {
                let request = Request::post(&uri).header(CONTENT_TYPE, "application/json");
                answer(built(&uri, request.body(body)), most)
            }
        };
        let uri = uri.to_owned();
        let reconnect = move |id: ChatId, most| {
            let uri = stream_uri(&uri, &id);
            answer(built(&uri, Request::get(&uri).body(String::new())), most)
        };
        Route { post: Box::new(post), reconnect: Some(Box::new(reconnect)) }
    }

    pub(super) async fn post(&self, body: String, most: Option<usize>) -> Reply {
        (self.post)(body, most).await
    }

    pub(super) async fn reconnect(&self, id: ChatId, most: Option<usize>) -> Reply {
        let reconnect = self.reconnect.as_ref();
        let reconnect =
            reconnect.expect("a handler alone rejoins nothing: `with_reconnect` says how");
        reconnect(id, most).await
    }
}

/// `{api}/{encodeURIComponent(chat id)}/stream`, before the query.
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
