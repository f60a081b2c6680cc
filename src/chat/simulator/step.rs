//! [`Step`]: a step of one turn. It does what the driver of the server does, in a random order.

use super::agent;
use super::driver::{Errand, Task};
use super::effects::Effects;
use super::ledger::LEASE;
use super::random::Random;
use super::world::{World, short};
use crate::chat::conversation::LiveRun;
use crate::chat::log::AppendResult;
use crate::chat::turn::machine::{Action, AgentCall, Effect, Input, Response};
use crate::event::AgentEvent;

/// A step of one turn.
pub(super) struct Step<'a> {
    pub(super) world: &'a mut World,
    pub(super) random: &'a mut Random,
    /// The index of the turn.
    pub(super) at: usize,
}

impl Step<'_> {
    /// Does one step of a driver. Returns `false` if it has nothing to do.
    pub(super) fn run(&mut self) -> bool {
        let rests = &mut self.world.drivers[self.at].rests;
        if *rests > 0 {
            *rests -= 1;
            return false;
        }
        if self.random.one_in(200) {
            self.world.drivers[self.at].rests = self.random.below(60);
        }
        loop {
            match self.world.drivers[self.at].turn.poll() {
                Action::Wait => break,
                Action::End => {
                    self.end_turn();
                    return true;
                }
                action => self.start(action),
            }
        }
        let driver = &self.world.drivers[self.at];
        if driver.agent.is_some() && driver.turn.own_run().is_none() {
            self.world.violated("an agent goes on after its run".into());
            return true;
        }
        let has_event = driver.agent.is_some() && driver.turn.accepts_events();
        let ready = driver.errands.len();
        if ready == 0 && !has_event || self.random.one_in(8) {
            return self.tick();
        }
        if has_event && (ready == 0 || self.random.one_in(2)) {
            self.hear();
            return true;
        }
        let chosen = self.random.below(ready);
        let errand = self.world.drivers[self.at].errands.remove(chosen);
        self.run_errand(errand);
        true
    }

    fn end_turn(&mut self) {
        let driver = self.world.drivers.swap_remove(self.at);
        if let Some(reader) = driver.mends_for {
            self.world.readers.has_mended(reader, driver.has_failed, self.world.now);
        }
        self.world.check_driver(&driver);
        self.world.leave_calls(driver);
    }

    /// Passes the next event of the agent to the turn. The agent records its approval requests in
    /// the ledger before it emits them.
    fn hear(&mut self) {
        let driver = &mut self.world.drivers[self.at];
        let events = driver.agent.as_mut();
        let event = events.and_then(|events| (!events.is_empty()).then(|| events.remove(0)));
        if let Some(AgentEvent::ApprovalRequested { tool_call_id, approval_id, .. }) = &event
            && let Some(live) = driver.turn.own_run()
        {
            let lapses = self.random.below(8) > 0;
            self.world.ledger.ask(approval_id, &live.message_id, tool_call_id, lapses);
        }
        if event.is_none() {
            driver.agent = None;
        }
        if let Some(AgentEvent::Error { .. }) = &event {
            self.ask_in_vain();
        }
        self.deliver(event.map_or(Input::AgentEnded, Input::Agent));
    }

    /// The agent fails after it has recorded a request that it does not emit.
    fn ask_in_vain(&mut self) {
        let live = self.world.drivers[self.at].turn.own_run();
        let Some(LiveRun { run, fence, message_id, .. }) = live.cloned() else { return };
        let is_taken = self.world.state(&run).is_none_or(|state| state.1 != fence);
        // The holder of a run that was taken does not know of the request.
        if !is_taken && self.random.one_in(2) {
            let number = self.world.fresh();
            let (id, call) = (format!("ap{number}").into(), format!("s{number}").into());
            self.world.ledger.ask(&id, &message_id, &call, true);
        }
    }

    fn start(&mut self, action: Action) {
        self.trace("asks", &action);
        let driver = &mut self.world.drivers[self.at];
        match action {
            Action::Start(Effect::CallAgent(call)) => self.call_agent(*call),
            Action::Spawn(effect) => {
                let server = driver.server;
                self.world.tasks.push((server, Task::Do(effect)));
            }
            Action::Start(effect) => {
                if matches!(effect, Effect::Claim { .. }) {
                    self.world.check_fence(self.at);
                }
                self.world.drivers[self.at].errands.push(Errand::Do(effect));
            }
            Action::StopAgent => driver.agent = None,
            Action::Respond(response) => self.respond(response),
            Action::LeaveRun | Action::Report(_) | Action::ReportLimit(..) => {}
            Action::Wait | Action::End => {}
        }
    }

    fn respond(&mut self, response: Response) {
        let driver = &mut self.world.drivers[self.at];
        driver.responses += 1;
        driver.has_failed = matches!(response, Response::Failed | Response::TooManyRuns);
        let (server, has_reader) = (driver.server, driver.mends_for.is_none());
        if !driver.has_failed {
            self.world.counts.outputs += driver.outputs.len() as u64;
            self.world.answered_outputs.append(&mut driver.outputs);
        }
        match response {
            Response::Join { run, message_id, begun, .. } => {
                self.world.counts.joined += 1;
                self.world.check_join(&run, &message_id, begun.as_deref());
                if has_reader {
                    self.world.readers.attach(run, server, Vec::new());
                }
            }
            Response::Stored { .. } => self.world.counts.stored += 1,
            Response::Failed => self.world.counts.failed += 1,
            Response::Refused(_) => self.world.counts.unnamed_edits += 1,
            _ => self.world.counts.refused += 1,
        }
    }

    fn call_agent(&mut self, call: AgentCall) {
        self.world.check_fence(self.at);
        self.world.check_call(&call);
        self.world.counts.sent += call.sent.len() as u64;
        call.sent.iter().flat_map(|sent| &sent.approval_id).for_each(|id| self.world.effect(id));
        let run = call.chat.live_run().map(|live| live.run.clone());
        let events = agent::answer(&mut || self.world.fresh(), self.random, call.sent);
        let driver = &mut self.world.drivers[self.at];
        driver.calls.extend(run);
        driver.agent = Some(events);
    }

    pub(super) fn deliver(&mut self, input: Input) {
        self.trace("gets", &input);
        let driver = &mut self.world.drivers[self.at];
        if let Input::Appended(AppendResult::Refused(_)) = &input {
            driver.is_refused = true;
        }
        driver.turn.handle(input);
    }

    fn trace(&self, verb: &str, what: &impl std::fmt::Debug) {
        if self.world.trace {
            let number = self.world.drivers[self.at].number;
            println!("{:5} turn {number} {verb} {}", self.world.now, short(what));
        }
    }

    fn tick(&mut self) -> bool {
        let driver = &mut self.world.drivers[self.at];
        if self.world.now < driver.ticked + LEASE / 3 {
            return false;
        }
        driver.ticked = self.world.now;
        self.deliver(Input::Tick);
        true
    }

    fn run_errand(&mut self, errand: Errand) {
        match errand {
            Errand::Reply(input) => self.deliver(input),
            Errand::Answer { approval, is_approved, redemption } => {
                self.answer(approval, is_approved, redemption);
            }
            Errand::Await { approval, is_approved, redemption } => {
                self.ask_again(approval, is_approved, redemption);
            }
            Errand::Execute { approval, redemption } => {
                self.world.effect(&approval);
                let result = self.world.ledger.execute(&approval, self.world.now).map(Box::new);
                self.world.drivers[self.at].errands.push(Errand::Settle { result, redemption });
            }
            Errand::Settle { result, redemption } => {
                result.into_iter().for_each(|it| self.deliver(Input::CallSettled(it)));
                self.end_call(redemption);
            }
            Errand::Do(Effect::Redeem { plan, chat }) => {
                if self.redeem(&plan, &chat, None).is_err() {
                    self.deliver(Input::NotRedeemed);
                }
            }
            Errand::Do(Effect::CloseOpenCalls { open, plan, chat }) => {
                if self.redeem(&plan, &chat, Some(open)).is_err() {
                    self.deliver(Input::CallsNotClosed);
                    self.deliver(Input::Redeemed);
                }
            }
            Errand::Do(effect) => {
                let Step { world, random, at } = self;
                Effects { world, random, at: *at }.perform(effect);
            }
        }
    }
}
