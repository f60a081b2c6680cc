//! [`Answer`]: a provider's answer as it comes in, bytes to model events.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use http_body::Body as _;
use reqwest::Body;
use serde_json::Value;

use crate::endpoint::Endpoint;
use crate::error::ProviderError;
use ui_message_stream::run::ModelEvent;
use ui_message_stream::sse::Decoder;
use ui_message_stream::stream::BoxError;

/// What one kind of answer says, event by event.
pub(super) trait Read: Send + Unpin + 'static {
    /// Takes in the data of an event.
    fn read(&mut self, data: &str, said: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError>;

    /// There are no more events.
    fn end(&mut self, said: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError>;
}

/// A provider's answer. Dropped, it closes the connection, and the provider stops.
pub(super) struct Answer<R> {
    endpoint: Endpoint,
    state: State,
    read: R,
    said: VecDeque<ModelEvent>,
}

enum State {
    Asked(Pin<Box<dyn Future<Output = Result<Body, ProviderError>> + Send>>),
    /// With what came so far, until an event did: it may be no stream.
    Comes(Body, Decoder, Option<Vec<u8>>),
    Failed(ProviderError),
    Over,
}

impl<R: Read> Answer<R> {
    /// Asks, once this is polled; and if that is refused, once more with the other body.
    pub(super) fn to(
        endpoint: &Endpoint,
        path: &'static [&'static str],
        body: Value,
        otherwise: Option<Otherwise>,
        read: R,
    ) -> Self {
        let state = State::Asked(Box::pin(ask(endpoint.clone(), path, body, otherwise)));
        Answer { endpoint: endpoint.clone(), state, read, said: VecDeque::new() }
    }

    /// Takes in what is there; `false` once nothing more comes.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, ProviderError>> {
        match &mut self.state {
            State::Asked(asked) => {
                let body = ready!(asked.as_mut().poll(cx))?;
                self.state = State::Comes(body, Decoder::default(), Some(Vec::new()));
            }
            State::Comes(body, decoder, plain) => {
                let mut is_done = false;
                match ready!(Pin::new(body).poll_frame(cx)) {
                    Some(Ok(frame)) => {
                        if let Ok(bytes) = frame.into_data() {
                            decoder.push(&bytes);
                            if let Some(plain) =
                                plain.as_mut().filter(|plain| plain.len() < LONGEST_ERROR)
                            {
                                plain.extend_from_slice(&bytes);
                            }
                        }
                        if decoder.pending_bytes() > LONGEST_EVENT {
                            return Poll::Ready(Err(ProviderError::not_understood(
                                "an endless event",
                            )));
                        }
                        while let Some(event) = decoder.poll() {
                            *plain = None;
                            if event.data.trim() == "[DONE]" {
                                is_done = true;
                                break;
                            }
                            if !event.data.trim().is_empty() {
                                self.read.read(&event.data, &mut self.said)?;
                            }
                        }
                        if !is_done {
                            return Poll::Ready(Ok(true));
                        }
                    }
                    Some(Err(error)) => return Poll::Ready(Err(self.endpoint.unreachable(error))),
                    None => {
                        if let Some(error) = plain.as_deref().and_then(error_in) {
                            return Poll::Ready(Err(error));
                        }
                    }
                }
                self.state = State::Over;
                self.read.end(&mut self.said)?;
            }
            State::Failed(_) | State::Over => return Poll::Ready(Ok(false)),
        }
        Poll::Ready(Ok(true))
    }
}

/// A request that may be answered where another one was refused.
pub(super) struct Otherwise {
    /// Whether it may be where the other one was refused like this.
    pub(super) may_help: fn(&ProviderError) -> bool,
    pub(super) body: Box<dyn FnOnce() -> Value + Send>,
}

async fn ask(
    endpoint: Endpoint,
    path: &[&str],
    body: Value,
    otherwise: Option<Otherwise>,
) -> Result<Body, ProviderError> {
    let runs_tools = runs_tools(&body);
    match (endpoint.post(path, &body, runs_tools).await, otherwise) {
        (Err(error), Some(otherwise)) if (otherwise.may_help)(&error) => {
            let other = (otherwise.body)();
            if other == body {
                return Err(error);
            }
            tracing::warn!(%error, "the provider refused, and is asked in another way");
            endpoint.post(path, &other, runs_tools).await
        }
        (answer, _) => answer,
    }
}

/// Whether the provider may run something because of this request.
fn runs_tools(body: &Value) -> bool {
    let any = |list: &str, is_it: fn(&Value) -> bool| {
        body.get(list).and_then(Value::as_array).is_some_and(|list| list.iter().any(is_it))
    };
    any("tools", |tool| tool["type"] != "function") || any("input", |item| item["approve"] == true)
}

/// The error that an answer is which says that it is none.
fn error_in(plain: &[u8]) -> Option<ProviderError> {
    let said: Value = serde_json::from_slice(plain).ok()?;
    said.get("error").filter(|error| !error.is_null()).map(ProviderError::reported)
}

impl<R: Read> Stream for Answer<R> {
    type Item = Result<ModelEvent, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(event) = this.said.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            match ready!(this.poll_more(cx)) {
                Ok(true) => {}
                Ok(false) => {
                    let State::Failed(error) = std::mem::replace(&mut this.state, State::Over)
                    else {
                        return Poll::Ready(None);
                    };
                    let error = error.cleaned(|said| this.endpoint.without_secrets(said));
                    return Poll::Ready(Some(Err(error.into())));
                }
                // What was said before it is said first.
                Err(error) => this.state = State::Failed(error),
            }
        }
    }
}

/// In bytes, where it came instead of a stream.
const LONGEST_ERROR: usize = 64 * 1024;

/// In bytes. A picture that a model makes comes in one event.
const LONGEST_EVENT: usize = 64 * 1024 * 1024;
