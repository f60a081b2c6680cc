//! [`Exchanges`]: the requests of a connection and their responses.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::axum::Router;
use ::axum::body::Body;
use ::axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::future::FutureExt;
use http::header::CONNECTION;
use http::{Request, Response, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tokio::time::{Sleep, sleep};

use super::connections::{Connection, RequestState};
use crate::axum::without_authentication::LocalAddress;
use crate::boxed::BoxError;

/// Responds to the requests of a connection.
#[derive(Clone)]
pub(super) struct Exchanges {
    pub(super) app: Router,
    pub(super) local_address: LocalAddress,
    pub(super) connection: Arc<Connection>,
    pub(super) body_timeout: Duration,
}

impl Exchanges {
    pub(super) async fn respond(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, Infallible> {
        let state = Arc::new(RequestState::default());
        self.connection.set_request(Some(Arc::clone(&state)));
        let current = CurrentRequest(self.connection);
        let (mut head, body) = request.into_parts();
        head.extensions.insert(self.local_address);
        let body = RequestBody::new(body, Arc::clone(&state), self.body_timeout);
        let request = Request::from_parts(head, Body::new(body));
        let mut response = TowerToHyperService::new(self.app).call(request).await?;
        // A body that is too long is refused for its length, also if it was not read to its end.
        let is_refused =
            !response.status().is_success() && response.status() != StatusCode::PAYLOAD_TOO_LARGE;
        if state.has_timed_out() && is_refused {
            let seconds = self.body_timeout.as_secs_f64();
            let text = format!(
                "the request body did not arrive in {seconds} seconds; `Serve::with_body_timeout` \
                 allows more"
            );
            let close = [(CONNECTION, "close")];
            response = (StatusCode::REQUEST_TIMEOUT, close, text).into_response();
        }
        state.complete();
        Ok(response.map(|body| ResponseBody { body, _current: current }))
    }
}

/// The current request of a connection, until it is dropped.
struct CurrentRequest(Arc<Connection>);

impl Drop for CurrentRequest {
    fn drop(&mut self) {
        self.0.set_request(None);
    }
}

/// The body of a request, which fails if it does not arrive in time.
struct RequestBody {
    body: Incoming,
    state: Arc<RequestState>,
    timeout: Pin<Box<Sleep>>,
}

impl RequestBody {
    fn new(body: Incoming, state: Arc<RequestState>, timeout: Duration) -> Self {
        let body = RequestBody { body, state, timeout: Box::pin(sleep(timeout)) };
        body.complete_at_end();
        body
    }

    fn complete_at_end(&self) {
        if self.body.is_end_stream() {
            self.state.complete();
        }
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            return self.timeout.poll_unpin(cx).map(|()| {
                self.state.time_out();
                Some(Err("the request body did not arrive in time".into()))
            });
        };
        match frame {
            Some(_) => self.complete_at_end(),
            None => self.state.complete(),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a response. The request is the current one of its connection until this body is
/// dropped.
pub(super) struct ResponseBody {
    body: Body,
    _current: CurrentRequest,
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = ::axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
