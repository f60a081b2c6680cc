//! How clients read logs, and continue after a failure.

use super::simulation::Simulation;
use crate::chat::log::RunState;
use crate::chat::run_log::resumed_by;
use crate::chat::turn::machine::Request;

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
        let position = reader.skipped + reader.entries.len();
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
            let reader = &mut world.readers[at];
            match reader.entries.last().and_then(resumed_by) {
                Some(next) => {
                    reader.follow(next);
                    world.counts.followed += 1;
                }
                None => (reader.server, reader.has_ended) = (None, true),
            }
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
            let server = random.below(2);
            world.readers.attach(run, server, entries[..position].to_vec());
        }
    }
}
