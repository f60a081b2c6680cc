//! What a conversation talks to: a handler, called without a socket.

use std::fmt;
use std::pin::Pin;
use std::rc::Rc;

use http::header::CONTENT_TYPE;
use http::{Request, Response, StatusCode};
use http_body::Body;

use crate::request::{ChatRequest, Limits};
use crate::stream::BoxError;
use crate::testing::collect::ReadBody;

/// A handler, whatever its type: the body of a request in, what it answered out.
pub(super) struct Route<'h>(Box<dyn Fn(String) -> BoxFuture<'h, Reply> + 'h>);

type BoxFuture<'h, T> = Pin<Box<dyn Future<Output = T> + 'h>>;

/// What a handler answered.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) body: ReadBody,
}

impl<'h> Route<'h> {
    pub(super) fn handler<H, B>(handler: H) -> Self
    where
        H: AsyncFn(ChatRequest) -> B + 'h,
        B: Body<Error: Into<BoxError>> + 'h,
    {
        let handler = Rc::new(handler);
        Route(Box::new(move |body| {
            let handler = Rc::clone(&handler);
            Box::pin(async move {
                match ChatRequest::parse(body.as_bytes(), &Limits::default()) {
                    Ok(chat) => {
                        let body = ReadBody::of(handler(chat).await).await;
                        Reply { status: StatusCode::OK, body }
                    }
                    Err(error) => {
                        let body = ReadBody::of(error.to_string()).await;
                        Reply { status: StatusCode::BAD_REQUEST, body }
                    }
                }
            })
        }))
    }

    pub(super) fn http<H, B, E>(uri: &str, handler: H) -> Self
    where
        H: AsyncFn(Request<String>) -> Result<Response<B>, E> + 'h,
        B: Body<Error: Into<BoxError>> + 'h,
        E: fmt::Debug + 'h,
    {
        let handler = Rc::new(handler);
        let uri = uri.to_owned();
        Route(Box::new(move |body| {
            let handler = Rc::clone(&handler);
            let request = Request::post(&uri).header(CONTENT_TYPE, "application/json").body(body);
            let request = request.unwrap_or_else(|error| panic!("{uri:?} is no URI: {error}"));
            Box::pin(async move {
                let response = handler(request).await;
                let response = response.unwrap_or_else(|error| panic!("the route: {error:?}"));
                let status = response.status();
                Reply { status, body: ReadBody::of(response.into_body()).await }
            })
        }))
    }

    pub(super) async fn post(&self, body: String) -> Reply {
        (self.0)(body).await
    }
}
