//! [`Simulation`]: what users, clients, networks and failing machines do to a [`World`].

use std::time::Duration;

use super::driver::Driver;
use super::ledger::LEASE;
use super::random::Random;
use super::step::Step;
use super::users::{self, Answer};
use super::world::{World, short, shows};
use crate::approval::Principal;
use crate::chat::conversation::{HistoryImport, PostedHistory};
use crate::chat::run_log::LogClient;
use crate::chat::turn::machine::{ChatTurn, Request, TurnSettings};
use crate::chunk::Version;
use crate::id::ApprovalId;
use crate::limits::ChatLimits;
use crate::message::Role;

/// One interleaving.
pub(super) struct Simulation {
    pub(super) world: World,
    pub(super) random: Random,
    posted: Vec<Request>,
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
            limits = limits.with_max_log_bytes(250 + random.below(2000));
        }
        if random.one_in(8) {
            limits = limits.with_max_user_runs(1 + random.below(2));
        }
        if random.one_in(8) {
            let unread = Duration::from_millis(10 + random.below(100) as u64);
            limits = limits.with_max_unread_time(unread);
        }
        let world = World {
            limits,
            ledger_fails: random.one_in(4),
            gives_up: random.one_in(4),
            trace,
            ..World::default()
        };
        let mut simulation = Simulation { world, random, posted: Vec::new(), is_talkative };
        simulation.run();
        if simulation.world.violations.is_empty() {
            simulation.repair();
        }
        if simulation.world.violations.is_empty() {
            simulation.world.check_end();
        }
        simulation.world
    }

    fn run(&mut self) {
        let mut left = 3 + self.random.below(12);
        let pace = 2 + self.random.below(120);
        while left > 0 {
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
    }

    /// Lets the turns and the readers come to their ends.
    fn finish(&mut self) {
        while self.world.violations.is_empty() {
            let world = &self.world;
            if !world.drivers.is_empty() || !world.tasks.is_empty() || world.readers.are_connected()
            {
                self.go_on();
            } else if world.live().is_some() {
                // A crash left a run without readers. The next reader mends the conversation.
                self.post(Request::Follow);
            } else {
                return;
            }
        }
    }

    fn go_on(&mut self) {
        let Simulation { world, random, .. } = self;
        let drivers = world.drivers.len();
        let has_moved = match random.below((drivers + world.tasks.len()).max(1)) {
            at if at < drivers => Step { world, random, at }.run(),
            _ if world.tasks.is_empty() => {
                world.pass(LEASE / 10);
                false
            }
            at => {
                let (_, task) = world.tasks.swap_remove(at - drivers);
                world.run_task(task);
                true
            }
        };
        if !has_moved || self.random.one_in(4) {
            self.world.pass(1);
        }
        if self.random.one_in(4) {
            self.read();
        }
        self.world.counts.steps += 1;
        self.world.ledger.step = self.world.counts.steps;
        if self.world.counts.steps > 40_000 && self.world.violations.is_empty() {
            let turns: Vec<_> = self.world.drivers.iter().map(|it| &it.turn).collect();
            let stuck = format!("the turns do not end: {turns:?}");
            self.world.violated(stuck.chars().take(600).collect());
        }
    }

    /// After a crash, a failure or an error, users send their answers again. Then nothing may be lost.
    fn repair(&mut self) {
        (self.world.ledger_fails, self.world.gives_up) = (false, false);
        self.world.limits = ChatLimits::default();
        if !self.world.counts.has_failed() && self.world.counts.interrupted == 0 {
            return;
        }
        self.world.counts.repaired += 1;
        for _ in 0..3 {
            self.world.pass(LEASE * 2);
            let lost = self.world.seen_calls().into_iter().filter(|seen| self.world.is_lost(seen));
            let lost: Vec<Answer> = lost.map(|seen| (seen, true)).collect();
            let Some((first, _)) = lost.first().cloned() else {
                // The model reads with the next message what is left.
                if self.world.stored().is_some_and(|chat| chat.message_to_continue().is_some()) {
                    let number = self.world.fresh();
                    self.post(users::new_message(number));
                    self.finish();
                }
                return;
            };
            let is_same = |answer: &Answer| answer.0.message == first.message;
            let answers: Vec<Answer> = lost.into_iter().filter(is_same).collect();
            self.post(users::answers(&answers));
            self.finish();
        }
    }

    /// A request arrives at one of the servers.
    fn post(&mut self, request: Request) {
        let server = self.random.below(2);
        self.post_at(server, None, request);
    }

    pub(super) fn post_at(&mut self, server: usize, mends_for: Option<usize>, request: Request) {
        let world = &mut self.world;
        let number = world.fresh();
        if world.trace {
            println!("{:5} turn {number} begins: {}", world.now, short(&request));
        }
        let settings = TurnSettings {
            owner: Principal::new("ada"),
            posted_history: PostedHistory::Keep,
            limits: world.limits.clone(),
            client: LogClient { version: Version::default(), has_approvals: true },
            history_import: HistoryImport::Texts,
            chat_id: "c".into(),
            message_id: format!("a{number}").into(),
            run_id: format!("r{number}").into(),
        };
        let driver = Driver {
            number,
            server,
            outputs: users::outputs_in(&request),
            turn: ChatTurn::new(request.clone(), settings),
            request,
            errands: Vec::new(),
            rests: 0,
            agent: None,
            responses: 0,
            has_failed: false,
            redemptions: Vec::new(),
            refused: None,
            is_refused: false,
            ticked: world.now,
            began: world.counts.steps,
            mends_for,
            followed: followed_requests(world),
            calls: Vec::new(),
        };
        world.drivers.push(driver);
        world.counts.turns += 1;
    }

    /// Does what a user, a network or a failing machine does.
    fn act(&mut self) {
        let action = match self.random.below(18) {
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
                if let Some(request) = self.random.choose(&self.posted).cloned() {
                    self.post(request);
                }
            }
            5 => self.regenerate(),
            6 => self.edit(),
            7..=12 => self.answer(),
            13 if self.random.one_in(2) => self.post(Request::Stop),
            13 if self.random.one_in(3) => self.post(Request::Delete),
            13 => self.post(Request::Follow),
            14 if self.random.one_in(2) => self.world.pass(LEASE * 2),
            15 if self.random.one_in(2) => self.crash(),
            16 if self.random.one_in(3) => self.resume(),
            // The store removes logs 10 minutes after their end, and 7 days after their run was lost.
            17 if self.random.one_in(8) => {
                self.world.counts.long_jumps += 1;
                let time = if self.random.one_in(2) { 11 * 60_000 } else { 8 * 24 * 60 * 60_000 };
                self.world.pass(time);
            }
            _ => {}
        }
    }

    /// A client sends a request, perhaps twice at the same time.
    fn post_new(&mut self, request: Request) {
        self.posted.push(request.clone());
        if self.random.one_in(8) {
            self.post(request.clone());
        }
        self.post(request);
    }

    fn regenerate(&mut self) {
        let mut questions = self.world.stored().into_iter().flat_map(|chat| chat.messages.iter());
        let question = questions.rfind(|message| message.role == Role::User).cloned();
        let Some(question) = question else { return };
        let answer = match self.random.below(3) {
            0 => self.world.live().map(|live| live.message_id.to_string()),
            1 => self.world.ids_of(Role::Assistant).pop(),
            _ => None,
        };
        let posted = if self.random.one_in(3) { None } else { Some(&question) };
        self.post_new(users::regenerate(answer.as_deref(), posted));
    }

    fn edit(&mut self) {
        let users = self.world.ids_of(Role::User);
        let Some(edited) = self.random.choose(&users) else { return };
        let number = self.world.fresh();
        let is_named = !self.random.one_in(4);
        self.post_new(users::edit(edited, number, is_named));
    }

    /// A user answers what the history or a log shows.
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
        let mut answers = vec![(first.clone(), self.random.below(4) > 0)];
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
            if !random.one_in(4) {
                world.hand_over(server);
            }
            world.drivers.retain(|driver| driver.server != server);
            world.tasks.retain(|(of, _)| *of != server);
            let lost = world.readers.disconnect(server);
            self.reconnect(lost, server);
        } else if !world.drivers.is_empty() {
            let driver = world.drivers.swap_remove(random.below(world.drivers.len()));
            if let Some(reader) = driver.mends_for {
                world.readers.has_mended(reader, true, world.now);
            }
            world.leave_calls(driver);
        }
    }
}

/// Returns the open requests that a message of the user follows, and those that an edit has removed.
/// They must not be approved.
fn followed_requests(world: &World) -> Vec<ApprovalId> {
    let Some(chat) = world.stored() else { return world.removed.clone() };
    let asked = world.ledger.asked().filter(|(id, approval)| {
        let mut messages = chat.messages.iter().filter(|it| chat.is_followed_by_user(&it.id));
        approval.lapses && messages.any(|message| shows(message, id))
    });
    asked.map(|(id, _)| id.clone()).chain(world.removed.iter().cloned()).collect()
}
