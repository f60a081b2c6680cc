//! [`Readers`]: the clients that read logs, each through a server.

use crate::chat::log::LogEntry;
use crate::id::RunId;

#[derive(Default)]
pub(super) struct Readers(Vec<Reader>);

/// A client that reads a log through a server.
pub(super) struct Reader {
    /// The run that the client reads. It may resume the run that the client has read first.
    pub(super) run: RunId,
    /// `None` if the reader is not connected, or has read the end.
    pub(super) server: Option<usize>,
    /// The number of entries of the log before those that the client has read.
    pub(super) skipped: usize,
    pub(super) entries: Vec<LogEntry>,
    /// The runs that the client has read to their ends, with what it has read.
    pub(super) before: Vec<(RunId, Vec<LogEntry>)>,
    /// Whether the client has read the end of the response.
    pub(super) has_ended: bool,
    /// Whether a turn mends the conversation for this reader.
    pub(super) is_mending: bool,
    /// When the reader may have the conversation mended again.
    pub(super) rests_until: u64,
}

impl Readers {
    /// A new response reads a log.
    pub(super) fn attach(&mut self, run: RunId, server: usize, entries: Vec<LogEntry>) {
        self.0.push(Reader {
            run,
            server: Some(server),
            skipped: 0,
            entries,
            before: Vec::new(),
            has_ended: false,
            is_mending: false,
            rests_until: 0,
        });
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Reader> {
        self.0.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn are_connected(&self) -> bool {
        self.0.iter().any(|reader| reader.server.is_some())
    }

    /// A turn that mends the conversation for a reader has ended. If it has failed, the response that
    /// reads ends.
    pub(super) fn has_mended(&mut self, at: usize, has_failed: bool, now: u64) {
        let reader = &mut self.0[at];
        (reader.is_mending, reader.rests_until) = (false, now + TICK);
        if has_failed {
            reader.server = None;
        }
    }

    /// The readers of a server lose it. Returns them.
    pub(super) fn disconnect(&mut self, server: usize) -> Vec<usize> {
        let readers = self.0.iter_mut().enumerate();
        let lost = readers.filter(|(_, reader)| reader.server == Some(server));
        let lost = lost.map(|(at, reader)| {
            (reader.server, reader.is_mending) = (None, false);
            at
        });
        lost.collect()
    }
}

impl Reader {
    /// The client goes on with the run that resumes the one that it has read. It has read the start.
    pub(super) fn follow(&mut self, next: RunId) {
        let run = std::mem::replace(&mut self.run, next);
        self.before.push((run, std::mem::take(&mut self.entries)));
        self.skipped = 1;
    }
}

impl std::ops::Index<usize> for Readers {
    type Output = Reader;

    fn index(&self, at: usize) -> &Reader {
        &self.0[at]
    }
}

impl std::ops::IndexMut<usize> for Readers {
    fn index_mut(&mut self, at: usize) -> &mut Reader {
        &mut self.0[at]
    }
}

/// How long a reader waits before it has the conversation mended again.
const TICK: u64 = 15;
