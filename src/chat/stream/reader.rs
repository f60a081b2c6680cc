//! [`LogReader`]: reads the log of a run, and has the conversation mended if the run is lost.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, OptionFuture};
use tokio::time::{Instant, Sleep, sleep};

use super::replay::front;
use crate::chat::client::Client;
use crate::chat::conversation::ReceivedResult;
use crate::chat::error::ChatError;
use crate::chat::inner::Inner;
use crate::chat::log::{Fence, LogEntry, LogPage, ReadLog, RunKey, RunState};
use crate::chat::readers::Reader;
use crate::chat::run_log::{content_parts, position_of, reason_of_last_call, resumed_by};
use crate::chat::shutdown::Counted;
use crate::chat::store::RunStoreError;
use crate::chat::turn::driver::{Driver, TurnRequest};
use crate::chat::turn::machine::Request;
use crate::chunk::FinishReason;
use crate::id::RunId;
use crate::message::UiMessage;
use crate::response::BodyError;
use crate::retry::{MAX_FAILING, MAX_FAILURES_BEFORE_RESPONSE, repeat};
use crate::sse::KEEP_ALIVE;

/// A reader of the log of a run.
pub(in crate::chat) struct LogReader {
    chats: Arc<Inner>,
    key: RunKey,
    /// The client for which a turn writes that mends the conversation.
    client: Client,
    /// The number of entries that were read.
    position: u64,
    /// The frames before those of the log.
    front: Option<Box<dyn Iterator<Item = Bytes> + Send>>,
    /// When the last page was returned, or the first one was asked for.
    returned: Option<Instant>,
    tick: Option<Pin<Box<Sleep>>>,
    /// When the first of the reads failed that have failed in a row.
    failing_since: Option<Instant>,
    /// Has the conversation mended, because the lease of the run has passed and is not renewed.
    mending: Option<BoxFuture<'static, Result<(), ChatError>>>,
    has_begun: bool,
    /// The last read has returned the newest entry.
    has_read_all: bool,
    has_ended: bool,
    /// The user reads this response.
    _reader: Reader,
    /// The server waits for this response when it is shut down.
    _counted: Counted,
}

impl LogReader {
    /// Creates a reader of a run of this server's user, which begins behind this number of entries.
    pub(in crate::chat) fn new(
        chats: &Arc<Inner>,
        reader: Reader,
        key: RunKey,
        position: u64,
        client: Client,
    ) -> Self {
        LogReader {
            _reader: reader,
            _counted: chats.shutdown.count_response(),
            chats: Arc::clone(chats),
            key,
            client,
            position,
            front: None,
            returned: None,
            tick: None,
            failing_since: None,
            mending: None,
            has_begun: position > 0,
            has_read_all: false,
            has_ended: false,
        }
    }

    /// Creates a reader of what follows the frame with this `id:`, which names a run and an entry of
    /// its log. Returns `None` if there is no such run, or if its log does not hold this entry.
    pub(in crate::chat) async fn after_event(
        chats: &Arc<Inner>,
        reader: Reader,
        key_of: impl FnOnce(RunId) -> RunKey,
        event_id: &str,
        client: Client,
    ) -> Result<Option<Self>, ChatError> {
        let last = event_id.rsplit_once('.');
        let last = last.and_then(|(run, at)| Some((RunId::new(run), at.parse::<u64>().ok()?)));
        let Some((run, position)) = last else { return Ok(None) };
        let key = key_of(run);
        let page = chats.runs.read(ReadLog::state(&key)).await?;
        let is_known = page.is_some_and(|page| position < page.length);
        Ok(is_known.then(|| Self::new(chats, reader, key, position + 1, client)))
    }

    /// Creates a reader of a run that continues the message `begun`. The client holds `posted`, and has
    /// to be shown results of its answers.
    pub(in crate::chat) async fn of_message(
        chats: &Arc<Inner>,
        reader: Reader,
        key: RunKey,
        begun: Option<&UiMessage>,
        posted: Option<(&UiMessage, &[ReceivedResult])>,
        client: Client,
    ) -> Result<Self, ChatError> {
        let parts_before = begun.map_or(0, content_parts);
        if let Some((posted, _)) = posted.filter(|(posted, _)| content_parts(posted) > parts_before)
        {
            // The client has read a part of this run.
            let read = || chats.runs.read(ReadLog::whole(&key));
            let page = repeat("read a log", MAX_FAILURES_BEFORE_RESPONSE, read).await?;
            let entries = page.map(|page| page.entries).unwrap_or_default();
            if let Some(position) = position_of(begun, &entries, posted) {
                return Ok(Self::new(chats, reader, key, position, client));
            }
        }
        let front = begun.and_then(|begun| front(posted, &client.shown(begun), client.version()));
        let Some(front) = front else { return Ok(Self::new(chats, reader, key, 0, client)) };
        // These frames replace the first frame of the log, and have no `id:`.
        let front = reader.clone().pieces(front)?;
        Ok(LogReader { front: Some(Box::new(front)), ..Self::new(chats, reader, key, 1, client) })
    }

    /// Returns the next frames, or a comment if there are none for a while. Returns `None` at the end
    /// of the log, if the client has read nothing for too long, or if the server is shut down.
    ///
    /// # Errors
    /// The rest of the log cannot be read now. The reader has ended.
    pub(in crate::chat) async fn next_page(&mut self) -> Option<Result<Bytes, BodyError>> {
        let max_stalled = self.chats.limits.max_stalled_time();
        if self.has_ended {
            return None;
        }
        if self.returned.get_or_insert_with(Instant::now).elapsed() >= max_stalled {
            tracing::info!(
                run_id = self.key.run.as_str(),
                limit = "max_stalled_time",
                value = ?max_stalled,
                "a response ends because of a limit: its client does not read it"
            );
            return None;
        }
        let page = self.read_page().await;
        self.returned = Some(Instant::now());
        self.has_ended |= page.is_err();
        page.transpose()
    }

    /// Returns why the model has stopped in the last call of the run, if the frames that this reader
    /// returns do not say it, and if the log can be read now.
    pub(in crate::chat) async fn reason_of_last_call(&mut self) -> Option<FinishReason> {
        let read = || self.chats.runs.read(ReadLog::whole(&self.key));
        let page = repeat("read a log", MAX_FAILURES_BEFORE_RESPONSE, read).await;
        let page = page.unwrap_or_else(|error| {
            tracing::warn!(%error, "a response does not say why its model has stopped");
            None
        });
        reason_of_last_call(&page?.entries)
    }

    async fn read_page(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            if std::mem::take(&mut self.has_read_all) {
                match self.wait().await {
                    Ok(()) => {}
                    Err(_) if self.chats.shutdown.has_begun() => return Ok(None),
                    Err(_) => return Err(BodyError::CutOff),
                }
            }
            if self.chats.shutdown.is_closed() {
                return Ok(None);
            }
            if let Some(piece) = self.front.as_mut().and_then(Iterator::next) {
                return Ok(Some(piece));
            }
            self.front = None;
            let frames = self.read_frames().await?;
            if frames.is_some() || self.has_ended {
                return Ok(frames);
            }
            if self.is_idle() {
                return Ok(Some(Bytes::from_static(KEEP_ALIVE)));
            }
        }
    }

    /// Reads the next frames. Returns `None` if there are none, or if the log cannot be read for a while.
    async fn read_frames(&mut self) -> Result<Option<Bytes>, BodyError> {
        let page = match self.read().await {
            Ok(Some(page)) => page,
            // The log is gone.
            Ok(None) => return Err(BodyError::CutOff),
            Err(_) if self.failing_since.is_some_and(|at| at.elapsed() < MAX_FAILING) => {
                sleep(TICK).await;
                return Ok(None);
            }
            Err(_) => return Err(BodyError::CutOff),
        };
        // A log without entries gets its first one, which this reader does not need.
        if self.position > page.length.max(1) {
            // The store has lost entries that were read.
            return Err(BodyError::CutOff);
        }
        self.has_begun = true;
        self.position += u64::try_from(page.entries.len()).unwrap_or(0);
        self.has_read_all = self.position >= page.length;
        self.has_ended = page.state == RunState::Ended && self.has_read_all;
        let resumed_by = page.entries.last().filter(|_| self.has_ended).and_then(resumed_by);
        if let Some(run) = resumed_by {
            // The client holds the start: a lost log has one.
            self.key.run = run;
            (self.position, self.has_read_all, self.has_ended) = (1, false, false);
        }
        if page.state == RunState::LeasePassed && self.mending.is_none() {
            self.mending = Some(self.mend(page.fence));
        }
        Ok(joined(&page.entries))
    }

    /// Returns whether nothing was returned for so long that a comment has to keep the connection open.
    fn is_idle(&self) -> bool {
        self.returned.is_some_and(|at| at.elapsed() >= KEEP_ALIVE_INTERVAL)
    }

    /// Reads the next entries. Returns `None` if there is no such run.
    async fn read(&mut self) -> Result<Option<LogPage>, RunStoreError> {
        // The first frame is sent alone, before slow work begins.
        let max_bytes = if self.has_begun { MAX_PAGE_BYTES } else { 0 };
        let (key, after) = (&self.key, self.position);
        let read = ReadLog { key, after, max_bytes, is_reader: true };
        let page = tokio::select! {
            biased;
            page = self.chats.runs.read(read) => page,
            // The timer is created only if the store has no page yet.
            () = async { sleep(MAX_READ_TIME).await } => Err(RunStoreError::new("no reply")),
        };
        match page {
            Ok(page) => {
                self.failing_since = None;
                Ok(page)
            }
            Err(error) => {
                tracing::warn!(%error, "the log of a run cannot be read");
                self.failing_since.get_or_insert_with(Instant::now);
                Err(error)
            }
        }
    }

    /// Starts a turn that stores what the run has written, and ends its log, unless the lease is renewed.
    /// The server that wrote it has failed, or its turn.
    fn mend(&self, fence: Fence) -> BoxFuture<'static, Result<(), ChatError>> {
        let (chats, key, client) = (Arc::clone(&self.chats), self.key.clone(), self.client);
        async move {
            // The next read finds another state, or that the store has failed.
            let Ok(Some(RunState::LeasePassed)) = chats.state_after_renewal(&key, 1).await else {
                return Ok(());
            };
            let RunKey { owner, chat: chat_id, run } = key;
            let (principal, request) = (owner.clone(), Request::Mend { run, fence });
            let request = TurnRequest { principal, owner, chat_id, client, request };
            Driver::start(&chats, request)?.response().await.map(drop)
        }
        .boxed()
    }

    /// Waits for the log to change, at most for a tick, which begins with the last page or the last tick.
    ///
    /// # Errors
    /// The run is lost, and the conversation cannot be mended now.
    async fn wait(&mut self) -> Result<(), ChatError> {
        let tick = self.tick.get_or_insert_with(|| Box::pin(sleep(TICK)));
        loop {
            let mending = OptionFuture::from(self.mending.as_mut());
            tokio::select! {
                biased;
                // First, because a store may give wrong hints without end.
                Some(mended) = mending => {
                    self.mending = None;
                    return mended;
                }
                () = self.chats.runs.changed(&self.key, self.position) => return Ok(()),
                () = tick.as_mut() => {}
            }
            let idle = self.returned.map_or(TICK, |at| at.elapsed());
            if idle >= TICK {
                tick.set(sleep(TICK));
                return Ok(());
            }
            // A page does not move the timer, which may fire too early after it.
            tick.set(sleep(TICK - idle));
        }
    }
}

/// Returns the frames of a page as one buffer.
fn joined(entries: &[LogEntry]) -> Option<Bytes> {
    if let [LogEntry::Frame(frame)] = entries {
        return Some(frame.clone());
    }
    let length = entries.iter().map(|entry| entry.bytes().len()).sum::<usize>();
    let mut all = BytesMut::with_capacity(length);
    for entry in entries {
        if let LogEntry::Frame(frame) = entry {
            all.extend_from_slice(frame);
        }
    }
    (!all.is_empty()).then(|| all.freeze())
}

/// The maximum number of bytes that are read from a log at once. hyper holds up to 16 pages until it
/// has written them; with larger pages, so much memory is freed at once that the allocator returns it
/// to the system each time.
const MAX_PAGE_BYTES: usize = 8 << 10;

/// How long a reader waits for a hint before it reads the log again.
const TICK: Duration = Duration::from_secs(1);

/// How long a reader waits for a page of a log. Then the read has failed, and is repeated.
const MAX_READ_TIME: Duration = Duration::from_secs(5);

/// The time without a frame that is followed by a comment.
pub(in crate::chat) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
