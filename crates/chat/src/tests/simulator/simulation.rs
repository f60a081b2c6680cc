//! [`Simulation`]: what users, clients, networks and failing machines do to a [`World`].

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::effects::Step;
use super::ledger::LEASE;
use super::random::Random;
use super::users::{self, Answer};
use super::world::{Driver, MAX_CHATS, World};
use crate::ChatLimits;
use crate::conversation::{HistoryImport, PostedHistory};
use crate::log::client::Client;
use crate::log::decision::{Goal, TurnSettings};
use crate::log::turn::LogTurn;
use crate::log::turn_io::{Action, Input};
use crate::store::{Epoch, InMemoryLogStore, LogStore};
use ui_message_stream::approval::UnixMillis;
use ui_message_stream::chunk::Version;
use ui_message_stream::message::Role;

/// One interleaving.
pub(super) struct Simulation {
    /// The chat in which something happens now.
    pub(super) world: World,
    /// The other chats of the user.
    others: Vec<World>,
    pub(super) random: Random,
    /// Whether the user mostly sends messages.
    is_talkative: bool,
}

impl Simulation {
    /// Simulates the interleaving of this seed, up to its end or to the first violation.
    pub(super) fn run_seed(seed: u64, trace: bool) -> World {
        let mut random = Random(seed);
        let is_talkative = random.one_in(2);
        let mut limits = ChatLimits::default();
        if random.one_in(8) {
            limits =
                limits.with_max_unread_time(Duration::from_millis(10 + random.below(100) as u64));
        }
        if random.one_in(8) {
            limits = limits.with_max_log_bytes(150 + random.below(1000));
        }
        if random.one_in(6) {
            limits = limits.with_max_user_runs(1);
        }
        let ledger_fails = random.one_in(4);
        let store = Arc::new(InMemoryLogStore::with_test_clock(UnixMillis(0)));
        let chats = if random.one_in(3) { 1 + random.below(MAX_CHATS) } else { 1 };
        let millis = if random.one_in(3) { 0 } else { 1 + random.below(60) as u64 };
        let append_interval = Duration::from_millis(millis);
        let mut worlds = (0..chats).map(|chat| World {
            append_interval,
            ..World::new(&store, chat, limits.clone(), ledger_fails, trace)
        });
        let world = worlds.next().unwrap();
        let mut simulation = Simulation { world, others: worlds.collect(), random, is_talkative };
        simulation.run();
        let Simulation { mut world, others, .. } = simulation;
        for other in others {
            world.counts.add(&other.counts);
            world.violations.extend(other.violations);
        }
        world
    }

    /// Something happens in another chat of the user.
    fn turn_to(&mut self, chat: usize) {
        let now = self.world.now;
        std::mem::swap(&mut self.world, &mut self.others[chat]);
        self.world.now = now;
    }

    fn run(&mut self) {
        let mut left = 3 + self.random.below(12);
        let pace = 2 + self.random.below(120);
        while left > 0 {
            if !self.others.is_empty() && self.random.one_in(4) {
                let chat = self.random.below(self.others.len());
                self.turn_to(chat);
            }
            if self.world.drivers.is_empty() || self.random.one_in(pace) {
                // Some requests arrive at the same time.
                loop {
                    left -= 1;
                    self.act();
                    if left == 0 || !self.random.one_in(3) {
                        break;
                    }
                }
            } else {
                self.go_on();
            }
            if !self.world.violations.is_empty() {
                return;
            }
        }
        self.finish();
        for chat in 0..self.others.len() {
            self.turn_to(chat);
            self.finish();
        }
    }

    /// Lets the turns and the readers of a chat come to their ends.
    fn finish(&mut self) {
        let mut is_loaded = false;
        while self.world.violations.is_empty() {
            let world = &self.world;
            let has_work = !world.drivers.is_empty()
                || !world.tasks.is_empty()
                || !world.late.is_empty()
                || world.readers.iter().any(|reader| reader.server.is_some());
            if has_work {
                self.go_on();
            } else if world.load_is_live() {
                // A crash left a run without readers. The next reader mends the chat.
                self.post(Goal::Follow);
            } else if !is_loaded && world.unstored_decisions().next().is_some() {
                is_loaded = true;
                self.post(Goal::Settle { has_expired: false });
            } else {
                return self.world.check_end();
            }
        }
    }

    fn go_on(&mut self) {
        let Simulation { world, random, .. } = self;
        let drivers = world.drivers.len();
        let tasks = world.tasks.len();
        let late = world.late.len();
        let has_moved = match random.below((drivers + tasks + late).max(1)) {
            at if at < drivers => Step { world, random, at }.run(),
            at if at < drivers + tasks => {
                let (_, approval) = world.tasks.swap_remove(at - drivers);
                world.run_task(&approval);
                true
            }
            at if at < drivers + tasks + late => {
                let effect = world.late.swap_remove(at - drivers - tasks);
                world.execute_late(effect);
                true
            }
            _ => {
                world.pass(LEASE / 10);
                false
            }
        };
        if !has_moved || self.random.one_in(4) {
            self.world.pass(1);
        }
        if self.random.one_in(4) {
            self.read();
            if self.random.one_in(4) {
                // Some clients do not come back.
                let Simulation { world, random, .. } = self;
                let server = random.below(2);
                world.reconnect(None, || (!random.one_in(8)).then_some(server));
            }
        }
        self.world.counts.steps += 1;
        self.world.ledger.step = self.world.counts.steps;
        if self.world.counts.steps > 40_000 && self.world.violations.is_empty() {
            let turns: Vec<_> = self.world.drivers.iter().map(|driver| &driver.turn).collect();
            let stuck = format!("the turns do not end: {turns:?}");
            self.world.violated(stuck.chars().take(600).collect());
        }
    }

    /// All readers read some of what is new.
    fn read(&mut self) {
        for at in 0..self.world.readers.len() {
            let Some(server) = self.world.readers[at].server else { continue };
            let most = if self.random.one_in(2) { usize::MAX } else { self.random.below(4) };
            if let Some(run) = self.world.read_on(at, most) {
                self.world.counts.mended += 1;
                let number = self.post_at(server, Goal::Mend(run));
                self.world.readers[at].mender = Some(number);
            }
        }
    }

    /// A request arrives at one of the servers.
    fn post(&mut self, goal: Goal) {
        let server = self.random.below(2);
        self.post_at(server, goal);
    }

    fn post_at(&mut self, server: usize, goal: Goal) -> u32 {
        let world = &mut self.world;
        let number = world.fresh();
        if world.trace {
            let goal: String = format!("{goal:?}").chars().take(700).collect();
            println!("{:5} turn {number} begins: {goal}", world.now);
        }
        let settings = TurnSettings {
            owner: world.key.owner.clone(),
            chat_id: world.key.chat.clone(),
            posted_history: PostedHistory::Keep,
            history_import: HistoryImport::Texts,
            limits: world.limits.clone(),
            lease: Duration::from_millis(LEASE),
            append_interval: world.append_interval,
            message_id: format!("a{number}").into(),
            run_id: format!("r{number}").into(),
            epoch: Epoch(u64::from(number) << 32),
        };
        // Some clients know no approvals, and some read more than others.
        let version = match self.random.below(12) {
            0 => Version::V5,
            1..=3 => Version::V6Patch(326),
            _ => Version::default(),
        };
        let client = Client::of_version(version);
        let world = &mut self.world;
        let known = world.folds[server].of(&world.key);
        let driver = Driver {
            number,
            server,
            turn: LogTurn::new(goal, settings, client, known),
            client,
            effects: Vec::new(),
            tools: Vec::new(),
            awaited: Vec::new(),
            is_redeeming: false,
            unstored: Vec::new(),
            agent: None,
            tail: None,
            shown_run: None,
            ahead_since: 0,
            responses: 0,
            ticked: world.now,
            rests: 0,
            followed: world.followed_requests(),
        };
        world.drivers.push(driver);
        world.counts.turns += 1;
        number
    }

    /// Does what a user, a network or a failing machine does.
    fn act(&mut self) {
        let action = match self.random.below(20) {
            // A user with open questions mostly answers them.
            0..=6 if !self.is_talkative && self.random.below(3) > 0 => 7,
            action => action,
        };
        match action {
            0..=2 => {
                let number = self.world.fresh();
                self.post_new(users::new_message(number));
            }
            3..=4 => {
                if let Some(goal) = self.random.choose(&self.world.posted).cloned() {
                    self.post(goal);
                }
            }
            5 => self.regenerate(),
            6 => self.edit(),
            7..=12 => self.answer(),
            13 if self.random.one_in(2) => self.post(Goal::Stop),
            13 if self.random.one_in(3) => self.post(Goal::Delete),
            13 if self.random.one_in(2) => self.post(Goal::Follow),
            13 => {
                let has_expired = self.random.one_in(2);
                self.post(Goal::Settle { has_expired });
            }
            14 if self.random.one_in(2) => self.world.pass(LEASE * 2),
            15 if self.random.one_in(2) => self.crash(),
            16 if self.random.one_in(4) => {
                let time = if self.random.one_in(2) { 11 * 60_000 } else { 8 * 24 * 60 * 60_000 };
                self.world.pass(time);
            }
            17 => {
                self.world.counts.trimmed += 1;
                LogStore::sweep(&*self.world.store).now_or_never().unwrap().unwrap();
            }
            18 if !self.world.drivers.is_empty() => {
                let at = self.random.below(self.world.drivers.len());
                self.world.drivers[at].rests = self.random.below(100);
            }
            _ => {}
        }
    }

    /// A client sends a request, perhaps twice at the same time.
    fn post_new(&mut self, goal: Goal) {
        self.world.posted.push(goal.clone());
        if self.random.one_in(8) {
            self.post(goal.clone());
        }
        self.post(goal);
    }

    fn ids_of(&self, role: Role) -> Vec<String> {
        let messages = self.world.chat().into_iter().flat_map(|chat| chat.messages.iter());
        let messages = messages.filter(|message| message.role == role);
        messages.map(|message| message.id.to_string()).collect()
    }

    fn regenerate(&mut self) {
        let mut questions = self.world.chat().into_iter().flat_map(|chat| chat.messages.iter());
        let question = questions.rfind(|message| message.role == Role::User).cloned();
        drop(questions);
        let Some(question) = question else { return };
        let answer = match self.random.below(3) {
            0..=1 => self.ids_of(Role::Assistant).pop(),
            _ => None,
        };
        let posted = if self.random.one_in(3) { None } else { Some(&question) };
        self.post_new(users::regenerate(answer.as_deref(), posted));
    }

    fn edit(&mut self) {
        let users = self.ids_of(Role::User);
        let Some(edited) = self.random.choose(&users) else { return };
        let number = self.world.fresh();
        let is_named = !self.random.one_in(4);
        self.post_new(users::edit(edited, number, is_named));
    }

    /// A user answers what a chat shows.
    fn answer(&mut self) {
        let mut seen = self.world.seen_calls();
        let number = self.world.fresh();
        // Mostly what is still open.
        if self.random.below(4) > 0 && seen.iter().any(|seen| self.world.is_open(seen)) {
            seen.retain(|seen| self.world.is_open(seen));
        }
        let Some(first) = self.random.choose(&seen) else {
            return self.post_new(users::new_message(number));
        };
        let mut answers: Vec<Answer> = vec![(first.clone(), self.random.below(4) > 0)];
        for other in &seen {
            if other.message == first.message && other.call != first.call && self.random.one_in(2) {
                answers.push((other.clone(), self.random.below(4) > 0));
            }
        }
        let request = match self.random.below(8) {
            0..=1 if answers.iter().all(|(seen, _)| seen.approval.is_some()) => {
                users::decisions(&answers)
            }
            2 => users::answers_and_message(&answers, number),
            _ => users::answers(&answers),
        };
        self.post_new(request);
    }

    /// A server is shut down or crashes, or one turn panics.
    fn crash(&mut self) {
        self.world.counts.crashes += 1;
        let Simulation { world, random, .. } = self;
        if random.one_in(2) {
            let server = random.below(2);
            let now = world.server_time();
            if !random.one_in(4) {
                for driver in world.drivers.iter_mut().filter(|driver| driver.server == server) {
                    world.counts.handed_over += u64::from(driver.turn.own_run().is_some());
                    driver.turn.handle(Input::HandOver);
                    loop {
                        match driver.turn.poll(now) {
                            Action::Start(id, effect) => driver.effects.push((id, effect)),
                            Action::Wait { .. } | Action::End => break,
                            _ => {}
                        }
                    }
                }
            }
            let drivers = std::mem::take(&mut world.drivers);
            let (lost, kept): (Vec<_>, Vec<_>) =
                drivers.into_iter().partition(|driver| driver.server == server);
            world.drivers = kept;
            lost.into_iter().for_each(|driver| world.leave(driver, false));
            world.tasks.retain(|(of, _)| *of != server);
            // Some clients continue at the other server.
            world.reconnect(Some(server), || random.one_in(2).then_some(1 - server));
        } else if !world.drivers.is_empty() {
            let at = random.below(world.drivers.len());
            let driver = world.drivers.swap_remove(at);
            world.leave(driver, false);
        }
    }
}
