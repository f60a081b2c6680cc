//! [`ResponseStream`]: reads a provider's response, from bytes to model events.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use http_body::Body as _;
use reqwest::Body;

use crate::endpoint::Endpoint;
use crate::error::ProviderError;
use crate::fields::{BROKEN_EVENT, Fields, LeftOut};
use crate::request_forms::RequestForms;
use ui_message_stream::BoxError;
use ui_message_stream::event::AgentEvent;
use ui_message_stream::model::ModelEvent;
use ui_message_stream::sse::{self, Decoder};

/// Reads the events of one kind of response.
pub(super) trait ReadEvent: Send + Unpin + 'static {
    /// Reads one event, which reports no error, and appends the model events that it produces.
    fn read(
        &mut self,
        event: &Fields<'_>,
        events: &mut VecDeque<ModelEvent>,
    ) -> Result<(), ProviderError>;

    /// Appends what was kept back. The stream has ended, or an error ends it.
    fn release(&mut self, events: &mut VecDeque<ModelEvent>);

    /// Handles the end of the stream, after [`release`](Self::release), and appends the remaining model events. `is_done` is whether the provider has
    /// announced the end, with `[DONE]`.
    fn end(
        &mut self,
        is_done: bool,
        left_out: &LeftOut,
        events: &mut VecDeque<ModelEvent>,
    ) -> Result<(), ProviderError>;
}

/// The response of a provider as a stream of model events.
///
/// Dropping the stream closes the connection, and the provider stops generating.
pub(super) struct ResponseStream<R> {
    endpoint: Endpoint,
    state: State,
    reader: R,
    left_out: LeftOut,
    /// Whether an event was understood.
    has_read: bool,
    events: VecDeque<ModelEvent>,
}

enum State {
    Requested(Pin<Box<dyn Future<Output = Result<Body, ProviderError>> + Send>>),
    /// The third field holds the bytes received before the first event, because the body may be an
    /// error instead of a stream.
    Streaming(Body, Box<Decoder>, Option<Vec<u8>>),
    Failed(ProviderError),
    Ended,
}

impl<R: ReadEvent> ResponseStream<R> {
    /// Creates the stream. The request is sent when the stream is first polled.
    pub(super) fn new(endpoint: &Endpoint, request: RequestForms, reader: R) -> Self {
        let state = State::Requested(Box::pin(request.send(endpoint.clone())));
        let endpoint = endpoint.clone();
        let left_out = LeftOut::default();
        ResponseStream {
            endpoint,
            state,
            reader,
            left_out,
            has_read: false,
            events: VecDeque::new(),
        }
    }

    /// Reads more of the response. Returns `false` if the response has ended.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, ProviderError>> {
        let ResponseStream { reader, left_out, events, has_read, .. } = self;
        match &mut self.state {
            State::Requested(response) => {
                let body = ready!(response.as_mut().poll(cx))?;
                self.state = State::Streaming(body, Box::default(), Some(Vec::new()));
            }
            State::Streaming(body, decoder, plain) => {
                let mut is_done = false;
                match ready!(Pin::new(body).poll_frame(cx)) {
                    Some(Ok(frame)) => {
                        if let Ok(bytes) = frame.into_data() {
                            decoder.push(&bytes);
                            // The whole answer of a server that does not stream, or an error.
                            let is_json = |plain: &[u8]| plain.trim_ascii_start().starts_with(b"{");
                            let has_room = |plain: &&mut Vec<u8>| {
                                let max =
                                    if is_json(plain) { MAX_EVENT_BYTES } else { MAX_ERROR_BYTES };
                                plain.len() < max
                            };
                            if let Some(plain) = plain.as_mut().filter(has_room) {
                                plain.extend_from_slice(&bytes);
                            }
                        }
                        if decoder.pending_bytes() > MAX_EVENT_BYTES {
                            return Poll::Ready(Err(ProviderError::malformed("an endless event")));
                        }
                        while let Some(event) = decoder.poll() {
                            *plain = None;
                            if event.data.trim() == "[DONE]" {
                                is_done = true;
                                break;
                            }
                            *has_read |= read_event(&event, reader, left_out, events)?;
                        }
                        if !is_done {
                            return Poll::Ready(Ok(true));
                        }
                    }
                    Some(Err(error)) => return Poll::Ready(Err(self.endpoint.unreachable(error))),
                    None => {
                        let body = plain.as_deref().and_then(|body| str::from_utf8(body).ok());
                        if let Some(Ok(whole)) =
                            body.map(|body| Fields::parse(body, "response", left_out))
                        {
                            // An error, or a server that does not stream.
                            read_object(&whole, false, reader, events)?;
                        }
                    }
                }
                self.state = State::Ended;
                reader.release(events);
                reader.end(is_done, left_out, events).map_err(|error| match left_out.any() {
                    Some(what) if error.is_truncated() && !*has_read => {
                        ProviderError::malformed(what)
                    }
                    _ => error,
                })?;
            }
            State::Failed(_) | State::Ended => return Poll::Ready(Ok(false)),
        }
        Poll::Ready(Ok(true))
    }
}

/// Reads an event of the stream. Returns whether it is understood.
///
/// Data that is no JSON object and no error is left out: some servers send comments, or the state of their queue, to keep
/// the connection open.
fn read_event(
    event: &sse::Event,
    reader: &mut impl ReadEvent,
    left_out: &LeftOut,
    events: &mut VecDeque<ModelEvent>,
) -> Result<bool, ProviderError> {
    let is_error = event.event.as_deref() == Some("error");
    let why = match Fields::parse(&event.data, "event", left_out) {
        Ok(object) => return read_object(&object, is_error, reader, events).map(|()| true),
        _ if is_error => {
            return Err(ProviderError::from_error_event(&event.data.trim().into()));
        }
        _ if event.data.trim().is_empty() => return Ok(false),
        Err(error) => error,
    };
    let is_broken = event.data.trim_start().starts_with('{');
    let place = if is_broken { BROKEN_EVENT } else { "data" };
    left_out.note(place, format_args!("{why}, in line {} of the stream", event.line));
    Ok(false)
}

fn read_object(
    object: &Fields<'_>,
    is_error: bool,
    reader: &mut impl ReadEvent,
    events: &mut VecDeque<ModelEvent>,
) -> Result<(), ProviderError> {
    match reported_error(object, is_error) {
        Some(error) => Err(error),
        None => reader.read(object, events),
    }
}

/// Returns the error that an object reports, in the form of either API: it has an `error`, or is one.
fn reported_error(object: &Fields<'_>, is_error: bool) -> Option<ProviderError> {
    let inner = object.error();
    let is_error = is_error || inner.is_some() || object.text("type").as_deref() == Some("error");
    is_error
        .then(|| ProviderError::from_error_event(&inner.unwrap_or_else(|| object.to_item().into())))
}

impl<R: ReadEvent> Stream for ResponseStream<R> {
    type Item = Result<ModelEvent, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(mut event) = this.events.pop_front() {
                // The error of a tool that the provider executed: the user and the model read it,
                // and it may repeat the address or the headers of the tool's server.
                if let ModelEvent::Event(AgentEvent::ToolFailed { error, .. }) = &mut event {
                    *error = this.endpoint.without_secrets(error).into();
                }
                return Poll::Ready(Some(Ok(event)));
            }
            match ready!(this.poll_more(cx)) {
                Ok(true) => {}
                Ok(false) => {
                    let State::Failed(error) = std::mem::replace(&mut this.state, State::Ended)
                    else {
                        return Poll::Ready(None);
                    };
                    let error = error.map_provider_text(|text| this.endpoint.without_secrets(text));
                    return Poll::Ready(Some(Err(error.into())));
                }
                // What was received before the error is returned first.
                Err(error) => {
                    this.reader.release(&mut this.events);
                    this.state = State::Failed(error);
                }
            }
        }
    }
}

/// The maximum number of bytes that are kept of a body that is not a stream.
const MAX_ERROR_BYTES: usize = 64 * 1024;

/// The maximum size of an event in bytes. A generated image arrives in one event.
const MAX_EVENT_BYTES: usize = 64 * 1024 * 1024;

#[cfg(test)]
mod tests;
