//! [`ChatStream`]: the response of a chat server, which reads the log of a run.

use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use futures_util::{StreamExt, stream};
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep};

use super::conversation::ReceivedResult;
use super::log::{LogEntry, ReadLog, RunKey, RunState};
use super::run_log::{content_parts, is_content};
use super::store::RunStore;
use crate::chunk::{Chunk, Version};
use crate::event::{AgentEvent, Data};
use crate::json::Json;
use crate::message::{DataPart, Part, Role, ToolPart, ToolState, UiMessage};
use crate::reducer::compact;
use crate::response::{BodyError, headers};
use crate::sse::{DONE, Encoder, KEEP_ALIVE};
use crate::translator::Translator;

/// The response of a [`ChatServer`](super::ChatServer): the frames of a run as they are written, or
/// a stored message.
///
/// `ChatStream` implements [`http_body::Body`] for every server built on hyper, `Stream` of bytes for
/// other servers, and `IntoResponse` with the `axum` feature. Send
/// [`headers`](crate::response::headers) with it;
/// [`into_http_response`](Self::into_http_response) and axum add them.
///
/// Any number of responses read the same run, and none of them delays it. The run continues if a
/// response is dropped. Each frame of a run has an `id:`, from which
/// [`resume_stream`](super::ChatServer::resume_stream) continues. A comment every 15 seconds keeps an
/// idle connection open.
///
/// # Panics
/// Polling outside of a tokio runtime panics.
#[must_use = "a response does nothing until it is read"]
pub struct ChatStream(Pin<Box<dyn Stream<Item = Bytes> + Send>>);

impl ChatStream {
    /// Creates a stream of frames that exist already.
    pub(super) fn of_frames(frames: Vec<Bytes>) -> Self {
        ChatStream(stream::iter(frames).boxed())
    }

    pub(super) fn of_log(reader: LogReader) -> Self {
        let pages = stream::unfold(reader, async |mut reader| {
            let page = reader.next_page().await?;
            Some((page, reader))
        });
        ChatStream(pages.boxed())
    }

    /// Converts the body to an HTTP response with its status and headers.
    pub fn into_http_response(self) -> http::Response<Self> {
        let mut response = http::Response::new(self);
        *response.headers_mut() = headers();
        response
    }
}

impl Body for ChatStream {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.0.poll_next_unpin(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

impl Stream for ChatStream {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.0.poll_next_unpin(cx).map(|bytes| bytes.map(Ok))
    }
}

impl fmt::Debug for ChatStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatStream").finish_non_exhaustive()
    }
}

/// A reader of the log of a run.
pub(super) struct LogReader {
    runs: Arc<dyn RunStore>,
    key: RunKey,
    /// The number of entries that were read.
    position: u64,
    /// The frames before those of the log.
    front: Option<Bytes>,
    max_stalled: Duration,
    /// When the last page was returned.
    returned: Option<Instant>,
    tick: Option<Pin<Box<Sleep>>>,
    /// How many ticks have passed since the last frame.
    idle_ticks: u32,
    /// How many reads have failed in a row.
    failures: u32,
    has_begun: bool,
    has_ended: bool,
}

impl LogReader {
    /// Creates a reader that begins behind this number of entries.
    pub(super) fn new(
        runs: &Arc<dyn RunStore>,
        key: RunKey,
        position: u64,
        max_stalled: Duration,
    ) -> Self {
        LogReader {
            runs: Arc::clone(runs),
            key,
            position,
            front: None,
            max_stalled,
            returned: None,
            tick: None,
            idle_ticks: 0,
            failures: 0,
            has_begun: position > 0,
            has_ended: false,
        }
    }

    /// Returns these frames first. They replace the first frame of the log, and have no `id:`.
    pub(super) fn with_front(mut self, front: Bytes) -> Self {
        self.front = Some(front);
        self.position = 1;
        self
    }

    /// Returns the next frames, or a comment if there are none for a while. Returns `None` at the end
    /// of the log, or if the client has read nothing for too long.
    async fn next_page(&mut self) -> Option<Bytes> {
        if self.has_ended || self.returned.is_some_and(|at| at.elapsed() >= self.max_stalled) {
            return None;
        }
        let page = self.read_page().await;
        self.returned = Some(Instant::now());
        page
    }

    async fn read_page(&mut self) -> Option<Bytes> {
        loop {
            // The first frame is sent alone, before slow work begins.
            let max_bytes = if self.has_begun { MAX_PAGE_BYTES } else { 0 };
            let (key, after) = (&self.key, self.position);
            let page =
                match self.runs.read(ReadLog { key, after, max_bytes, is_reader: true }).await {
                    Ok(page) => page?,
                    Err(error) if self.failures < MAX_FAILURES => {
                        tracing::warn!(%error, "the log of a run cannot be read");
                        self.failures += 1;
                        sleep(TICK).await;
                        continue;
                    }
                    Err(_) => return None,
                };
            self.failures = 0;
            self.has_begun = true;
            self.position += u64::try_from(page.entries.len()).unwrap_or(0);
            self.has_ended = page.state == RunState::Ended && self.position >= page.length;
            let frames = joined(self.front.take(), &page.entries);
            if frames.is_some() || self.has_ended {
                self.idle_ticks = 0;
                return frames;
            }
            if page.entries.is_empty() && self.waits_in_vain().await {
                return Some(Bytes::from_static(KEEP_ALIVE));
            }
        }
    }

    /// Waits for the log to change, at most until the next tick. Returns whether nothing was sent
    /// for so long that the client needs a sign of life.
    async fn waits_in_vain(&mut self) -> bool {
        let tick = self.tick.get_or_insert_with(|| Box::pin(sleep(TICK)));
        tokio::select! {
            biased;
            () = self.runs.changed(&self.key, self.position) => return false,
            () = tick.as_mut() => {}
        }
        tick.set(sleep(TICK));
        self.idle_ticks = (self.idle_ticks + 1) % KEEP_ALIVE_TICKS;
        self.idle_ticks == 0
    }
}

/// Returns the frames of a page as one buffer.
fn joined(front: Option<Bytes>, entries: &[LogEntry]) -> Option<Bytes> {
    let frames = entries.iter().filter_map(|entry| match entry {
        LogEntry::Frame(bytes) => Some(bytes),
        LogEntry::Note(_) => None,
    });
    let mut frames = front.iter().chain(frames);
    let first = frames.next()?;
    let Some(second) = frames.next() else { return Some(first.clone()) };
    let length = entries.iter().map(|entry| entry.bytes().len()).sum::<usize>();
    let mut all = BytesMut::with_capacity(first.len() + length);
    all.extend_from_slice(first);
    all.extend_from_slice(second);
    frames.for_each(|frame| all.extend_from_slice(frame));
    Some(all.freeze())
}

/// Returns the frames that give a message to a client which holds `held` of it, from `start` to
/// `[DONE]`. The first one is alone.
pub(super) fn whole_response(
    held: Option<(&UiMessage, &[ReceivedResult])>,
    message: &UiMessage,
    version: Version,
) -> Vec<Bytes> {
    let mut translator = translator_for(held, message, version);
    let (mut first, mut rest, mut encoder) = (Vec::new(), Vec::new(), Encoder::default());
    translator.start(&mut |chunk| encoder.encode(&chunk, &mut first));
    let mut out = |chunk: Chunk<'_>| replay(message, chunk, &mut encoder, &mut rest);
    for event in catch_up(held, message) {
        let _ = translator.handle_event(&event, &mut out);
    }
    translator.finish(&mut out);
    rest.extend_from_slice(DONE);
    vec![first.into(), rest.into()]
}

/// Returns the frames that begin the response of a run which continues this message, for a client
/// that holds `held` of it. Returns `None` if it lacks nothing.
pub(super) fn front(
    held: Option<(&UiMessage, &[ReceivedResult])>,
    message: &UiMessage,
    version: Version,
) -> Option<Bytes> {
    let mut events = catch_up(held, message);
    if events.is_empty() {
        return None;
    }
    events.push(AgentEvent::StepFinish);
    let mut translator = translator_for(held, message, version);
    let (mut frames, mut encoder) = (Vec::new(), Encoder::default());
    let mut out = |chunk: Chunk<'_>| replay(message, chunk, &mut encoder, &mut frames);
    translator.start(&mut out);
    for event in events {
        let _ = translator.handle_event(&event, &mut out);
    }
    Some(frames.into())
}

/// Writes a chunk of a message that exists already. A client executes a call of its own when it reads
/// `tool-input-available`, so the input of a call that has a result is written as a streamed one.
fn replay(message: &UiMessage, chunk: Chunk<'_>, encoder: &mut Encoder, out: &mut Vec<u8>) {
    let was_approved = |id: &str| {
        let is_approval = |part: &Part| match part {
            Part::Data(data) => &*data.name == "approval" && data.id.as_deref() == Some(id),
            _ => false,
        };
        message.parts.iter().any(is_approval)
    };
    let is_settled = |id: &str| {
        let is_it = |part: &ToolPart| {
            part.tool_call_id.as_str() == id
                && part.is_settled()
                && part.approval_id().is_none()
                && part.provider_executed != Some(true)
        };
        message.tool_parts().any(is_it) && !was_approved(id)
    };
    match chunk {
        Chunk::ToolInputAvailable {
            tool_call_id,
            tool_name,
            input: Some(input),
            provider_executed,
            provider_metadata,
            tool_metadata,
            dynamic,
            title,
        } if is_settled(&tool_call_id) => {
            let start = Chunk::ToolInputStart {
                tool_call_id: Cow::Borrowed(&tool_call_id),
                tool_name,
                input_encoding: None,
                provider_executed,
                provider_metadata,
                tool_metadata,
                dynamic,
                title,
            };
            encoder.encode(&start, out);
            let input_text_delta = Cow::Borrowed(input.as_str());
            let tool_call_id = Cow::Borrowed(&*tool_call_id);
            encoder.encode(&Chunk::ToolInputDelta { tool_call_id, input_text_delta }, out);
        }
        chunk => encoder.encode(&chunk, out),
    }
}

fn translator_for(
    held: Option<(&UiMessage, &[ReceivedResult])>,
    message: &UiMessage,
    version: Version,
) -> Translator {
    let translator = match held {
        Some((held, _)) => Translator::continuing(held),
        None => Translator::new(message.id.clone()),
    };
    translator.with_version(version)
}

/// Returns the events that make `held` of a client the whole message: the results of its calls, new
/// data, and the parts that it lacks. Of a call that the client has answered, only the result in the
/// list is shown: it can differ from the stored one, for example if a denial was too late.
fn catch_up(held: Option<(&UiMessage, &[ReceivedResult])>, message: &UiMessage) -> Vec<AgentEvent> {
    let to_event = |chunk| AgentEvent::Chunk(Box::new(chunk));
    let Some((held, shown)) = held else {
        return chunks_of(message).into_iter().map(to_event).collect();
    };
    let mut events: Vec<AgentEvent> = shown.iter().flat_map(ReceivedResult::events).collect();
    for part in &message.parts {
        match part {
            Part::Tool(part) if part.is_settled() => {
                let is_it = |held: &&ToolPart| {
                    let is_shown = shown.iter().any(|shown| {
                        shown.result.approval_id.as_ref() == held.approval_id()
                            && shown.shows_outcome()
                    });
                    held.tool_call_id == part.tool_call_id && !held.is_settled() && !is_shown
                };
                if held.tool_parts().any(|held| is_it(&held)) {
                    events.extend(events_of_result(part));
                }
            }
            Part::Data(part) if part.id.is_some() => {
                let is_other = |held: &Part| match held {
                    Part::Data(held) => {
                        held.name == part.name
                            && held.id == part.id
                            && !is_same_json(held.data.as_ref(), part.data.as_ref())
                    }
                    _ => false,
                };
                if held.parts.iter().any(is_other) {
                    events.extend(data_event(part));
                }
            }
            _ => {}
        }
    }
    let rest = rest_of(message, held);
    events.extend(rest.iter().flat_map(chunks_of).map(to_event));
    events
}

/// Returns the events that show the result of a call.
fn events_of_result(part: &ToolPart) -> Vec<AgentEvent> {
    let id = part.tool_call_id.clone();
    let (approval, event) = match &part.state {
        ToolState::OutputAvailable { output, approval, .. } => {
            let output = output.clone().unwrap_or_else(Json::null);
            (approval, AgentEvent::tool_output(id.clone(), output))
        }
        ToolState::OutputError { error_text, approval, .. } => {
            (approval, AgentEvent::tool_failed(id.clone(), error_text.clone()))
        }
        ToolState::OutputDenied { .. } => return vec![AgentEvent::ToolDenied { tool_call_id: id }],
        _ => return Vec::new(),
    };
    let is_approved = approval.as_ref().is_some_and(|approval| approval.approved == Some(true));
    // The client may hold a denial that arrived after the approval.
    let overruled = is_approved.then_some(AgentEvent::DenialOverruled { tool_call_id: id });
    overruled.into_iter().chain([event]).collect()
}

/// Whether two values are the same. A client may write them in another way.
fn is_same_json(one: Option<&Json>, other: Option<&Json>) -> bool {
    let value = |json: Option<&Json>| json.and_then(|json| json.decode::<serde_json::Value>().ok());
    one == other || value(one) == value(other)
}

fn data_event(part: &DataPart) -> Option<AgentEvent> {
    let id = part.id.as_ref().map(|id| id.to_string().into());
    let (name, data) = (part.name.to_string().into(), part.data.clone()?);
    let data = Data { name, id, data, transient: false };
    Some(AgentEvent::Data(Box::new(data)))
}

/// Returns the parts of a message that the client does not hold, with the step start before them.
/// Returns `None` if the client holds them all.
fn rest_of(message: &UiMessage, held: &UiMessage) -> Option<UiMessage> {
    let shown = content_parts(held);
    let parts = &message.parts;
    let mut content = parts.iter().enumerate().filter(|(_, part)| is_content(part));
    let (lacking, _) = content.nth(shown)?;
    let is_step_start = |at: &usize| matches!(parts[*at], Part::StepStart { .. });
    let with_its_step = lacking.checked_sub(1).filter(is_step_start);
    let rest = parts[with_its_step.unwrap_or(lacking)..].to_vec();
    Some(UiMessage::new(message.id.clone(), Role::Assistant, rest))
}

/// Returns the chunks that rebuild a message, without the ids that the model gave to its calls.
fn chunks_of(message: &UiMessage) -> Vec<Chunk<'static>> {
    let without_ids = message.without_model_ids();
    let message = without_ids.as_ref().unwrap_or(message);
    // Some fields cannot be streamed.
    let parts = || UiMessage::new(message.id.clone(), message.role, message.parts.clone());
    let chunks = compact(message).or_else(|_| compact(&parts()));
    chunks.or_else(|_| compact(&without_decisions(parts()))).unwrap_or_default()
}

/// Removes the decisions of the user, for which there are no chunks. The result of a call shows what
/// was decided, and so does the `data-approval` part.
fn without_decisions(mut message: UiMessage) -> UiMessage {
    for part in &mut message.parts {
        let Part::Tool(part) = part else { continue };
        match &mut part.state {
            ToolState::OutputAvailable { approval, .. }
            | ToolState::OutputError { approval, .. } => *approval = None,
            ToolState::OutputDenied { approval: Some(approval), .. } => {
                (approval.approved, approval.reason) = (None, None);
            }
            ToolState::ApprovalResponded { input, .. } => {
                part.state = ToolState::InputAvailable { input: input.take() };
            }
            _ => {}
        }
    }
    message
}

/// The maximum number of bytes that are read from a log at once.
const MAX_PAGE_BYTES: usize = 64 << 10;

/// How long a reader waits for a hint before it reads the log again.
const TICK: Duration = Duration::from_secs(1);

/// How many ticks without a frame are followed by a comment.
const KEEP_ALIVE_TICKS: u32 = 15;

/// How many reads may fail in a row.
const MAX_FAILURES: u32 = 30;
