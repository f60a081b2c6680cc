//! [`Reader`]: the clients that read logs, each through a server.

use super::simulation::Simulation;
use super::world::World;
use crate::chat::log::{LogEntry, RunState};
use crate::chat::turn::machine::Request;
use crate::id::RunId;

/// A client that reads a log through a server.
pub(super) struct Reader {
    pub(super) run: RunId,
    /// `None` if the reader is not connected, or has read the end.
    pub(super) server: Option<usize>,
    pub(super) entries: Vec<LogEntry>,
    /// Whether a turn mends the conversation for this reader.
    is_mending: bool,
    /// When the reader may have the conversation mended again.
    rests_until: u64,
}

impl World {
    /// A new response reads a log.
    pub(super) fn attach(&mut self, run: RunId, server: usize, entries: Vec<LogEntry>) {
        let server = Some(server);
        self.readers.push(Reader { run, server, entries, is_mending: false, rests_until: 0 });
    }

    pub(super) fn is_read(&self) -> bool {
        self.readers.iter().any(|reader| reader.server.is_some())
    }

    /// A turn that mends the conversation for a reader has ended. If it has failed, the response that
    /// reads ends.
    pub(super) fn has_mended(&mut self, reader: usize, has_failed: bool) {
        let now = self.now;
        let reader = &mut self.readers[reader];
        (reader.is_mending, reader.rests_until) = (false, now + TICK);
        if has_failed {
            reader.server = None;
        }
    }

    /// The readers of a server lose it. Returns them.
    pub(super) fn disconnect(&mut self, server: usize) -> Vec<usize> {
        let readers = self.readers.iter_mut().enumerate();
        let lost = readers.filter(|(_, reader)| reader.server == Some(server));
        let lost = lost.map(|(at, reader)| {
            (reader.server, reader.is_mending) = (None, false);
            at
        });
        lost.collect()
    }
}

impl Simulation {
    /// All readers read some of what is new.
    pub(super) fn read(&mut self) {
        for at in 0..self.world.readers.len() {
            if self.world.readers[at].server.is_some() {
                self.read_on(at);
            }
        }
    }

    fn read_on(&mut self, at: usize) {
        let Simulation { world, random, .. } = self;
        let (reader, now) = (&world.readers[at], world.now);
        let position = reader.entries.len();
        let Some(page) = world.read(&reader.run, position as u64, true) else {
            // The store has removed the log.
            world.readers[at].server = None;
            return;
        };
        let may_mend = !reader.is_mending && reader.rests_until <= now;
        let more = random.below(page.entries.len() + 1);
        let is_read = more == page.entries.len();
        let run = reader.run.clone();
        world.readers[at].entries.extend(page.entries.into_iter().take(more));
        world.check_reader(at);
        if page.state == RunState::Ended && is_read {
            self.world.readers[at].server = None;
        } else if page.state == RunState::LeasePassed && may_mend {
            let reader = &mut self.world.readers[at];
            reader.is_mending = true;
            let server = reader.server.unwrap_or_default();
            self.post_at(server, Some(at), Request::Mend { run, fence: page.fence });
        }
    }

    /// Some readers that lost their server continue at the other one.
    pub(super) fn reconnect(&mut self, lost: Vec<usize>, server: usize) {
        for at in lost {
            let Simulation { world, random, .. } = self;
            if random.one_in(2) && world.state(&world.readers[at].run).is_some() {
                world.readers[at].server = Some(1 - server);
                world.counts.reconnected += 1;
            }
        }
    }

    /// A client continues to read a log that it has read in part, perhaps one that has ended.
    pub(super) fn resume(&mut self) {
        let Simulation { world, random, .. } = self;
        let Some(named) = random.choose(&world.named) else { return };
        let run = named.live.run.clone();
        if let Some(entries) = world.stored_log(&run) {
            let position = random.below(entries.len() + 1);
            world.attach(run, random.below(2), entries[..position].to_vec());
        }
    }
}

/// How long a reader waits before it has the conversation mended again.
const TICK: u64 = 15;
