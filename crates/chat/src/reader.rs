//! [`LogReader`]: reads a run in the log of a chat, and has the chat mended if the run is lost.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, OptionFuture};
use futures_util::{FutureExt, TryFutureExt};
use tokio::time::{Instant, Sleep, sleep};

use super::driver::Driver;
use super::loads::LoadTurn;
use super::log::decision::Goal;
use super::log::entry::{Entry, OtherEntry, frame_of};
use super::log::event_id::{EventId, FoundPlace, PlaceSearch, each};
use super::log::held_position::{HeldPosition, content_parts, position_of};
use super::log::open_chunks::each_chunk;
use super::log::replay::front;
use super::log::run_frames::{Next, RunFrames};
use super::log::writer::encoded;
use super::tail::{Found, Tail};
use crate::complete::ResponseEnd;
use crate::error::ChatError;
use crate::inner::Inner;
use crate::log::client::Client;
use crate::readers::Reader;
use crate::shutdown::Counted;
use crate::store::{
    ChatStoreError, Epoch, LoadLog, LogKey, LogPage, LogStore, ReadLogEntries, StoredEntry,
};
use crate::stream::KEEP_ALIVE_INTERVAL;
use ui_message_stream::chunk::Chunk;
use ui_message_stream::id::{MessageId, RunId, log_causes};
use ui_message_stream::message::UiMessage;
use ui_message_stream::response::BodyError;
use ui_message_stream::retry::{MAX_FAILING, MAX_FAILURES_BEFORE_RESPONSE, repeat};
use ui_message_stream::sse::{DONE, KEEP_ALIVE};

/// A reader of a run.
pub(crate) struct LogReader {
    chats: Arc<Inner>,
    logs: Arc<dyn LogStore>,
    key: LogKey,
    epoch: Epoch,
    /// The client that reads.
    client: Client,
    frames: RunFrames,
    /// The position of the next entry.
    position: u64,
    /// The frames before those of the log.
    front: Option<Box<dyn Iterator<Item = Bytes> + Send>>,
    /// The first piece was returned, and nothing follows it for a moment.
    pauses: bool,
    /// When the last page was returned, or the first one was asked for.
    returned: Option<Instant>,
    tick: Option<Pin<Box<Sleep>>>,
    /// When the first of the reads failed that have failed in a row.
    failing_since: Option<Instant>,
    /// Has the chat mended, because the lease of the run has passed and is not renewed.
    mending: Option<BoxFuture<'static, Result<(), ChatError>>>,
    /// The entries that a turn of this server appends to the log.
    tail: Option<Arc<Tail>>,
    /// How many bytes the tail had ahead of the store, if the reader reads them.
    seen_ahead: usize,
    /// The reader reads only what the store has.
    is_exact: bool,
    /// When the store was read. It has to know that the run is read.
    asked: Option<Instant>,
    /// The last read has returned the newest entry.
    has_read_all: bool,
    has_ended: bool,
    /// The user reads this response.
    reader: Reader,
    /// The server waits for this response when it is shut down.
    _counted: Counted,
}

impl LogReader {
    /// Creates a reader of what follows this place, or of a whole run.
    pub(crate) fn new(
        chats: &Arc<Inner>,
        reader: Reader,
        key: LogKey,
        client: Client,
        place: EventId,
    ) -> Self {
        LogReader {
            reader,
            _counted: chats.shutdown.count_response(),
            chats: Arc::clone(chats),
            logs: Arc::clone(&chats.logs),
            key,
            epoch: place.epoch,
            client,
            frames: RunFrames::new(place, client.version()),
            position: place.position,
            front: None,
            pauses: false,
            returned: None,
            tick: None,
            failing_since: None,
            mending: None,
            tail: None,
            seen_ahead: 0,
            is_exact: false,
            asked: None,
            has_read_all: false,
            has_ended: false,
        }
    }

    /// Lets this reader continue a response. Returns it with the message that its run writes, or `None` if the
    /// log does not hold what follows.
    pub(crate) async fn continued(
        mut self,
        place: EventId,
    ) -> Result<Option<(Self, MessageId)>, ChatError> {
        let mut search = PlaceSearch::new(place);
        let turn = self.chats.loads.turn(&self.key.owner).await;
        self.each_of_run(None, false, |_, entry| search.push(&entry)).await?;
        drop(turn);
        let Some(FoundPlace { place, message_id, has_ended }) = search.found() else {
            return Ok(None);
        };
        self.frames.set_message(message_id.clone());
        self.frames.set_place(place);
        (self.position, self.has_ended) = (place.position, has_ended);
        Ok(Some((self, message_id)))
    }

    /// Lets this reader of a whole run begin where a client stands that has posted this message. The run
    /// continues the message `begun`, which has the results before the position `length`.
    pub(crate) async fn of_message(
        mut self,
        message_id: MessageId,
        begun: Option<&UiMessage>,
        length: u64,
        posted: Option<&UiMessage>,
    ) -> Result<Self, ChatError> {
        self.frames.set_message(message_id);
        let parts_before = begun.map_or(0, content_parts);
        if let Some(posted) = posted.filter(|posted| content_parts(posted) > parts_before) {
            // The client may have read a part of this run.
            let _turn = self.chats.loads.turn(&self.key.owner).await;
            let entries = self.entries_of_run(None).await?;
            let entries = (self.frames.begin()..).zip(&entries);
            let frames = entries.flat_map(|(position, entry)| frames_of(position, entry));
            let (places, frames): (Vec<_>, Vec<_>) = frames.unzip();
            if let Some(HeldPosition { read, again }) = position_of(begun, &frames, posted) {
                if let Some((position, frames)) =
                    read.checked_sub(1).and_then(|last| places.get(last))
                {
                    self.position = *position;
                    self.frames.skip(*frames);
                }
                self.front = Some(Box::new(self.reader.clone().pieces(again)?));
                return Ok(self);
            }
        }
        if let Some(begun) = begun
            && let Some(front) = front(posted, begun, self.client)
        {
            // These frames replace the first frame of the run, and have no `id:`.
            self.front = Some(Box::new(self.reader.clone().pieces(front)?));
            self.frames.set_results_before(length, begun);
            self.position += 1;
        }
        Ok(self)
    }

    /// Reads the entries of the run, up to this position.
    async fn entries_of_run(&mut self, end: Option<u64>) -> Result<Vec<Entry>, ChatStoreError> {
        let mut entries = Vec::new();
        let push = |_, entry| {
            entries.push(entry);
            true
        };
        self.each_of_run(end, true, push).await?;
        Ok(entries)
    }

    /// Calls `each` with the entries from the begin of the run on, up to this position, while it returns `true`.
    /// Returns the position of the next entry.
    async fn each_of_run(
        &mut self,
        end: Option<u64>,
        is_reader: bool,
        mut each: impl FnMut(u64, Entry) -> bool,
    ) -> Result<u64, ChatStoreError> {
        let key = &self.key;
        let epoch = self.epoch;
        let mut position = self.frames.begin();
        loop {
            let max_bytes = MAX_READ_BYTES;
            let read = ReadLogEntries { key, epoch, position, max_bytes, is_reader };
            let read = || self.logs.read(read);
            let page = repeat("read a log", MAX_FAILURES_BEFORE_RESPONSE, read).await?;
            let Some(page) = page else { return Ok(position) };
            let end = end.unwrap_or(page.head.length).min(page.head.length);
            let is_empty = page.entries.is_empty();
            // Another run may follow.
            for (stored, _) in page.entries.iter().zip(position..end) {
                if !each(position, Entry::read(stored).map_err(ChatStoreError::new)?) {
                    return Ok(position);
                }
                position += 1;
            }
            if is_empty || position >= end {
                return Ok(position);
            }
        }
    }

    /// Reads the run to its end.
    ///
    /// # Errors
    /// The rest of the log cannot be read now, or the server is shut down before the run has ended.
    pub(crate) async fn run_end(mut self) -> Result<ResponseEnd, ChatError> {
        let mut end = None;
        self.is_exact = true;
        while let Some(frames) = self.next_page().await {
            each_chunk(&frames.map_err(ChatStoreError::new)?, |chunk| {
                end = end.take().or_else(|| ResponseEnd::of_chunk(chunk));
            });
        }
        let mut end = end.ok_or(ChatError::ShuttingDown)?;
        if end.lacks_reason() {
            end.reason = self.frames.reason();
        }
        Ok(end)
    }

    /// Returns the next page of a response. If the first one is long, its first frame is returned alone: a proxy that
    /// decides by the first piece whether it compresses a response would hold back a longer one.
    ///
    /// # Errors
    /// As of [`next_page`](Self::next_page).
    pub(crate) async fn next_piece(&mut self) -> Option<Result<Bytes, BodyError>> {
        let is_first = self.returned.is_none();
        let mut page = self.next_page().await;
        if is_first
            && !self.has_ended
            && let Some(Ok(first)) = &mut page
            && first.len() > MAX_FIRST_BYTES
        {
            let rest = first.split_off(first_len(first));
            let front = self.front.take().into_iter().flatten();
            self.front = Some(Box::new(std::iter::once(rest).chain(front)));
            self.pauses = true;
        }
        page
    }

    /// Returns the next frames, or a comment if there are none for a while. Returns `None` at the end
    /// of the run, if the client has read nothing for too long, or if the server is shut down.
    ///
    /// # Errors
    /// The rest of the log cannot be read now. The reader has ended.
    pub(crate) async fn next_page(&mut self) -> Option<Result<Bytes, BodyError>> {
        let max_stalled = self.chats.limits.max_stalled_time();
        if self.has_ended {
            return None;
        }
        if self.returned.get_or_insert_with(Instant::now).elapsed() >= max_stalled {
            tracing::info!(
                chat_id = self.key.chat.as_str(),
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

    async fn read_page(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            if self.front.is_none() && std::mem::take(&mut self.has_read_all) {
                self.wait().await.map_err(|_| BodyError::CutOff)?;
            }
            if self.chats.shutdown.is_closed() {
                return Ok(None);
            }
            if std::mem::take(&mut self.pauses) {
                sleep(PAUSE).await;
            }
            if let Some(front) = &mut self.front {
                if let Some(piece) = front.next() {
                    return Ok(Some(piece));
                }
                self.front = None;
                continue;
            }
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
        self.seen_ahead = if self.is_exact { usize::MAX } else { 0 };
        if self.asked.is_none_or(|at| at.elapsed() >= MAX_UNASKED) {
            return self.read_stored_frames().await;
        }
        if let Some(tail) = self.tail.clone() {
            let mut frames = Vec::new();
            let mut next = Next::More;
            let found = tail.read(self.epoch, self.position, |position, entry| {
                next = self.frames.push(position, entry, &mut frames);
                self.position = position + 1;
                next == Next::More && frames.len() < MAX_PAGE_BYTES
            });
            match found {
                Found::Entries => return self.page_of(frames, next).await,
                Found::Nothing => {
                    self.has_read_all = true;
                    if !self.is_exact {
                        let ahead = tail.ahead(self.epoch, self.position);
                        self.seen_ahead = ahead.len();
                        self.frames.push_ahead(self.position, &ahead, &mut frames);
                    }
                    return Ok((!frames.is_empty()).then(|| frames.into()));
                }
                Found::Elsewhere => {}
            }
        }
        let hinted = self.logs.hinted_entries(&self.key, self.epoch, self.position);
        if hinted.is_empty() {
            return self.read_stored_frames().await;
        }
        let (frames, next) = self.push_entries(&hinted)?;
        self.has_read_all = next == Next::More;
        self.page_of(frames, next).await
    }

    async fn read_stored_frames(&mut self) -> Result<Option<Bytes>, BodyError> {
        let page = match self.read().await {
            Ok(Some(page)) => page,
            Ok(None) => return self.of_lost_log().await,
            Err(_) if self.failing_since.is_some_and(|at| at.elapsed() < MAX_FAILING) => {
                sleep(TICK).await;
                return Ok(None);
            }
            Err(_) => return Err(BodyError::CutOff),
        };
        self.asked = Some(Instant::now());
        let (frames, next) = self.push_entries(&page.entries)?;
        if next != Next::More {
            return self.page_of(frames, next).await;
        }
        self.has_read_all = self.position >= page.head.length;
        if let Some(run) = page.head.live_run.filter(|_| page.head.is_lost)
            && self.mending.is_none()
        {
            self.mending = Some(self.mend(run));
        }
        self.page_of(frames, Next::More).await
    }

    /// Returns the frames of the next entries, which the tail did not have, up to the end of the run, and what follows
    /// them.
    fn push_entries(&mut self, entries: &[StoredEntry]) -> Result<(Vec<u8>, Next), BodyError> {
        // This server may have begun a run since.
        self.tail = self.chats.tails.of(&self.key);
        let bytes = entries.iter().map(|entry| entry.bytes.len());
        // Each frame gets an `id:`.
        let mut frames = Vec::with_capacity(bytes.sum::<usize>() * 3 / 2);
        for stored in entries {
            let entry = Entry::read(stored).map_err(|error| {
                tracing::error!(error = log_causes(&error), "a chat cannot be read");
                BodyError::CutOff
            })?;
            let next = self.frames.push(self.position, &entry, &mut frames);
            self.position += 1;
            if next != Next::More {
                return Ok((frames, next));
            }
        }
        Ok((frames, Next::More))
    }

    /// Returns the page of these frames, which `next` follows.
    async fn page_of(
        &mut self,
        mut frames: Vec<u8>,
        next: Next,
    ) -> Result<Option<Bytes>, BodyError> {
        if next == Next::Lost {
            // The client asks again, and learns that it has to load the chat.
            return Err(BodyError::CutOff);
        }
        if next == Next::CutOff {
            if !frames.is_empty() {
                // They are sent before slow work begins, and the end of the run is read again.
                self.position -= 1;
                return Ok(Some(frames.into()));
            }
            // A Stop wakes all readers of a user at once.
            let turn = self.chats.loads.turn(&self.key.owner).await;
            let entries = self.entries_of_run(Some(self.position)).await;
            // Without the entries it is not known which chunks are open.
            let entries = entries.ok().filter(|entries| !entries.is_empty());
            let entries = entries.ok_or(BodyError::CutOff)?;
            let begun = self.continued_message(&turn).await.map_err(|_| BodyError::CutOff)?;
            self.frames.end(self.position - 1, begun, &entries, &mut frames);
        }
        self.has_ended |= next != Next::More;
        Ok((!frames.is_empty()).then(|| frames.into()))
    }

    /// Loads the message that the run has continued, if no run has ended since.
    async fn continued_message(
        &mut self,
        turn: &LoadTurn,
    ) -> Result<Option<UiMessage>, ChatStoreError> {
        let load = || self.chats.load_state_in(&self.key, turn).boxed();
        let view = repeat("load a chat", MAX_FAILURES_BEFORE_RESPONSE, load).await?;
        let Some(view) = view.filter(|view| view.head.epoch == self.epoch) else { return Ok(None) };
        let begun = view.state.continued_by(self.frames.begin());
        // The other readers of the run need it as well.
        self.chats.folds.set(&self.key, Some(view));
        Ok(begun)
    }

    /// The log does not hold what follows: it was deleted with its run, or this reader is too late.
    async fn of_lost_log(&mut self) -> Result<Option<Bytes>, BodyError> {
        let load = LoadLog { key: &self.key, has_frames: false, has_messages: false };
        let log = self.logs.load(load).await.map_err(|_| BodyError::CutOff)?;
        if log.is_some_and(|log| log.head.epoch == self.epoch) {
            return Err(BodyError::CutOff);
        }
        self.has_ended = true;
        let frames = [encoded(&Chunk::Abort { reason: None }).as_bytes(), DONE].concat();
        Ok(Some(frames.into()))
    }

    /// Returns whether nothing was returned for so long that a comment has to keep the connection open.
    fn is_idle(&self) -> bool {
        self.returned.is_some_and(|at| at.elapsed() >= KEEP_ALIVE_INTERVAL)
    }

    /// Reads the next entries. Returns `None` if the log does not hold them.
    async fn read(&mut self) -> Result<Option<LogPage>, ChatStoreError> {
        let key = &self.key;
        let epoch = self.epoch;
        let position = self.position;
        let max_bytes = MAX_PAGE_BYTES;
        let read = ReadLogEntries { key, epoch, position, max_bytes, is_reader: true };
        let page = tokio::select! {
            biased;
            page = self.logs.read(read) => page,
            // The timer is created only if the store has no page yet.
            () = async { sleep(MAX_READ_TIME).await } => Err(ChatStoreError::new("no reply")),
        };
        match page {
            Ok(page) => {
                self.failing_since = None;
                Ok(page)
            }
            Err(error) => {
                tracing::warn!(error = log_causes(&error), "the log of a run cannot be read");
                self.failing_since.get_or_insert_with(Instant::now);
                Err(error)
            }
        }
    }

    /// Starts a turn that ends or resumes a lost run, unless its lease is renewed.
    fn mend(&self, run: RunId) -> BoxFuture<'static, Result<(), ChatError>> {
        let chats = Arc::clone(&self.chats);
        let key = self.key.clone();
        let client = chats.clients.any_client();
        Driver::mend(chats, key, client, Goal::Mend(run)).map_ok(drop).boxed()
    }

    /// Waits for the log to change, at most for a tick, which begins with the last page or the last tick.
    ///
    /// # Errors
    /// The run is lost, and the chat cannot be mended now.
    async fn wait(&mut self) -> Result<(), ChatError> {
        let tick = self.tick.get_or_insert_with(|| Box::pin(sleep(TICK)));
        loop {
            let mending = OptionFuture::from(self.mending.as_mut());
            tokio::select! {
                biased;
                // First, because a store may give wrong hints without end.
                Some(mended) = mending => {
                    self.mending = None;
                    if let Err(ChatError::ShuttingDown) = mended {
                        // Its holder may still renew the lease.
                        sleep(TICK).await;
                        return Ok(());
                    }
                    return mended;
                }
                () = async {
                    match &self.tail {
                        Some(tail) if tail.reaches(self.epoch, self.position) => {
                            tail.changed(self.epoch, self.position, self.seen_ahead).await;
                        }
                        _ => self.logs.changed(&self.key, self.position).await,
                    }
                } => return Ok(()),
                () = tick.as_mut() => {}
            }
            let idle = self.returned.map_or(TICK, |at| at.elapsed());
            if idle >= TICK {
                tick.set(sleep(TICK));
                // The store knows whether the run is lost.
                self.asked = None;
                return Ok(());
            }
            // A page does not move the timer, which may fire too early after it.
            tick.set(sleep(TICK - idle));
        }
    }
}

/// Returns the length of the first frame, or of as much of it as a first piece may have.
fn first_len(page: &[u8]) -> usize {
    let most = &page[..page.len().min(MAX_FIRST_BYTES)];
    most.windows(2).position(|two| two == b"\n\n").map_or(most.len(), |at| at + 2)
}

/// Returns what a client reads of an entry, to find out where it stands. Each frame has the place after it:
/// a position, and how many frames of the entry there were read.
fn frames_of(position: u64, entry: &Entry) -> Vec<((u64, usize), Bytes)> {
    let after = (position + 1, 0);
    let chunks = match entry.other() {
        Some(OtherEntry::Result { chunks, .. }) => chunks,
        Some(OtherEntry::Refused { chunks, .. }) => &chunks[..],
        _ => &[],
    };
    // The client reads all of them, or other ones.
    if !chunks.is_empty() {
        let frames = chunks.iter().map(|chunk| frame_of(chunk));
        return vec![(after, frames.collect::<String>().into())];
    }
    let bytes = entry.frames();
    let frames = each(&bytes).map(|(number, frame, is_last)| {
        let place = if is_last { after } else { (position, number) };
        (place, Bytes::copy_from_slice(frame))
    });
    let frames: Vec<_> = frames.collect();
    if frames.is_empty() { vec![(after, Bytes::new())] } else { frames }
}

/// The maximum number of bytes of the first piece. Caddy 2.6.2, of Debian 12, compresses with `encode` a
/// response whose first piece is longer, and then sends nothing until its buffer is full. From 2.6.3 on it obeys
/// `no-transform`.
const MAX_FIRST_BYTES: usize = 511;

/// How long nothing follows the first piece. A proxy that has both in its buffer reads them as one.
const PAUSE: Duration = Duration::from_millis(20);

/// The maximum number of bytes that are read from a log at once. hyper holds up to 16 pages until it
/// has written them; with larger pages, so much memory is freed at once that the allocator returns it
/// to the system each time.
const MAX_PAGE_BYTES: usize = 8 << 10;

/// How much is read at once of a run that is read again.
const MAX_READ_BYTES: usize = 1 << 20;

/// How long a reader reads only what this server appends, and what comes with hints, before it reads the store
/// again.
const MAX_UNASKED: Duration = Duration::from_secs(5);

/// How long a reader waits for a hint before it reads the log again.
const TICK: Duration = Duration::from_secs(1);

/// How long a reader waits for a page of a log. Then the read has failed, and is repeated.
const MAX_READ_TIME: Duration = Duration::from_secs(5);
