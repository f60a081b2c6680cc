//! What the driver of a turn does: operations of the store and of the ledger, tools, and the agent.

use futures_util::FutureExt;

use super::agent;
use super::ledger::{Answered, LEASE};
use super::random::Random;
use super::users::outcome_of;
use super::world::{Driver, World};
use crate::Chat;
use crate::conversation::ReceivedResult;
use crate::log::decision::{Append, Response};
use crate::log::entry::OtherEntry;
use crate::log::turn_io::{Action, CallAgent, Effect, EffectId, Input, Reply};
use crate::store::AppendResult;
use ui_message_stream::approval::{DeferredOutcome, PendingToolCall, ResumePlan};
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::{ApprovalId, MessageId};
use ui_message_stream::json::Json;

/// One step of the driver of a turn.
pub(super) struct Step<'a> {
    pub(super) world: &'a mut World,
    pub(super) random: &'a mut Random,
    /// The index of the turn.
    pub(super) at: usize,
}

impl Step<'_> {
    /// Does one step. Returns `false` if the driver has nothing to do.
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
            let now = self.world.server_time();
            let action = self.world.drivers[self.at].turn.poll(now);
            match action {
                Action::Wait { until } => {
                    self.world.counts.paced += u64::from(until.is_some_and(|until| until > now));
                    break;
                }
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
        let effects = driver.effects.len();
        let tools = driver.tools.len();
        let choices = effects + tools + driver.awaited.len() + usize::from(has_event);
        if choices == 0 || self.random.one_in(8) {
            return self.tick();
        }
        match self.random.below(choices) {
            at if at < effects => {
                let (id, effect) = self.world.drivers[self.at].effects.remove(at);
                self.perform(id, effect);
            }
            at if at < effects + tools => self.execute(at - effects),
            at if has_event && at == choices - 1 => self.hear(),
            at => {
                let (approval, is_approved) =
                    self.world.drivers[self.at].awaited.remove(at - effects - tools);
                self.answer(&approval, is_approved);
                self.end_redemption();
            }
        }
        true
    }

    fn trace(&self, verb: &str, what: &impl std::fmt::Debug) {
        if self.world.trace {
            let number = self.world.drivers[self.at].number;
            let what: String = format!("{what:?}").chars().take(700).collect();
            println!("{:5} turn {number} {verb} {what}", self.world.now);
        }
    }

    fn deliver(&mut self, input: Input) {
        self.trace("gets", &input);
        self.world.drivers[self.at].turn.handle(input);
    }

    fn reply(&mut self, id: EffectId, reply: Reply) {
        self.deliver(Input::Reply(id, reply));
    }

    fn tick(&mut self) -> bool {
        let world = &mut self.world;
        let at = self.at;
        if world.now < world.drivers[at].ticked + LEASE / 3 {
            return false;
        }
        world.drivers[at].ticked = world.now;
        self.deliver(Input::Tick);
        true
    }

    fn end_turn(&mut self) {
        let mut driver = self.world.drivers.swap_remove(self.at);
        let view = driver.turn.take_view();
        self.world.folds[driver.server].set(&self.world.key, view);
        if driver.responses != 1 {
            let number = driver.number;
            let responses = driver.responses;
            self.world.violated(format!("turn {number}: {responses} responses"));
        }
        // The last operations of a turn have no reply.
        for (_, effect) in &driver.effects {
            self.world.late.push(effect.clone());
        }
        self.world.leave(driver, true);
    }

    fn start(&mut self, action: Action) {
        self.trace("asks", &action);
        let driver = &mut self.world.drivers[self.at];
        match action {
            Action::Start(_, Effect::CallAgent(call)) => self.call_agent(*call),
            Action::Start(id, effect) => driver.effects.push((id, effect)),
            Action::StopAgent => driver.agent = None,
            Action::Respond(response) => self.respond(response),
            Action::Report(error) => self.world.violated(error.to_string()),
            Action::RefuseLog(error) => self.world.violated(error.to_string()),
            Action::Show { epoch, first, entries } => {
                let tail = driver.tail.as_ref().expect("a turn that shows entries holds a run");
                tail.push(epoch, first, entries.clone());
                if entries.iter().any(|entry| entry.other().is_none()) {
                    driver.ahead_since = self.world.now;
                }
                self.world.check_shown(epoch, first, &entries);
            }
            Action::ShowText { epoch, position, frames } => {
                let tail = driver.tail.as_ref().expect("a turn that shows text holds a run");
                let was_ahead = !self.world.tails[driver.server]
                    .of(&self.world.key)
                    .is_none_or(|tail| tail.ahead(epoch, position).is_empty());
                tail.set_ahead(epoch, position, frames.clone());
                if !was_ahead {
                    driver.ahead_since = self.world.now;
                }
                let since = driver.ahead_since;
                self.world.check_shown_text(&frames, since);
            }
            Action::HoldRun { epoch, position } => {
                let server = driver.server;
                let key = &self.world.key;
                let tail = self.world.tails[server].begin(key, epoch, position);
                let driver = driver_mut(self.world, self.at);
                driver.tail = Some(tail);
                driver.shown_run = driver.turn.own_run().map(|(run, _)| run.clone());
            }
            Action::LeaveRun => (driver.tail, driver.shown_run) = (None, None),
            Action::EndedOther { .. }
            | Action::ReportLimit(..)
            | Action::Wait { .. }
            | Action::End => {}
        }
    }

    fn respond(&mut self, response: Response) {
        let Step { world, at, .. } = self;
        let driver = &mut world.drivers[*at];
        driver.responses += 1;
        let server = driver.server;
        if matches!(response, Response::Join { .. } | Response::Stored(_)) {
            world.check_stored(*at);
        }
        let counts = &mut world.counts;
        match response {
            Response::Join { epoch, run, message_id, begin, .. } => {
                counts.joined += 1;
                world.attach(server, epoch, run, message_id, begin);
            }
            Response::Stored(_) => counts.stored += 1,
            Response::AlreadyReceived(_) => counts.received_before += 1,
            Response::Refused(..) => counts.unnamed_edits += 1,
            Response::UnknownCalls(_) => counts.unknown_calls += 1,
            Response::Nothing => counts.nothing += 1,
            Response::TooManyRuns => counts.too_many += 1,
            Response::Failed | Response::ShuttingDown | Response::Limit(_) => counts.failed += 1,
        }
    }

    /// Has the text stored that readers of this server were shown of a run, if the append ends it. Returns whether it is,
    /// or `None` if the append waits for it.
    fn flush(&mut self, append: &Append) -> Option<bool> {
        let Step { world, random, at } = self;
        let driver = &world.drivers[*at];
        let ended = append.entries.iter().find_map(|entry| match entry.other() {
            Some(OtherEntry::End { run, .. }) => Some(run.clone()),
            _ => None,
        });
        let server = driver.server;
        let tail = world.tails[driver.server].of(&world.key);
        let (Some(ended), Some(tail)) = (ended, tail) else { return Some(false) };
        if driver.tail.is_some() || append.only_lost {
            return Some(false);
        }
        let is_flushed = tail.flush().now_or_never().is_some();
        world.counts.hurried += u64::from(!is_flushed);
        let mut holders = world.drivers.iter_mut();
        // A turn may not know yet that its run has begun.
        let is_holder =
            |it: &&mut Driver| it.server == server && it.shown_run == Some(ended.clone());
        let Some(holder) = holders.find(is_holder) else { return Some(false) };
        holder.turn.handle(Input::Hurry);
        (is_flushed || random.one_in(8)).then_some(is_flushed)
    }

    /// Performs an effect, unless it or its reply is lost.
    fn perform(&mut self, id: EffectId, effect: Effect) {
        let mut is_flushed = false;
        if let Effect::Append(append) = &effect {
            match self.flush(append) {
                Some(flushed) => is_flushed = flushed,
                None => return self.world.drivers[self.at].effects.push((id, effect)),
            }
        }
        let is_write = matches!(effect, Effect::Append(_) | Effect::Delete { .. });
        if is_write && self.random.one_in(25) {
            self.world.counts.lost_replies += 1;
            if self.random.one_in(2) {
                self.world.counts.late_operations += 1;
                self.world.late.push(effect);
            } else {
                let is_append = matches!(effect, Effect::Append(_));
                self.world.execute_late(effect);
                if is_append && self.random.one_in(2) {
                    // The store has sent the append again.
                    return self.reply(id, Reply::Appended(AppendResult::Conflict));
                }
            }
            return self.reply(id, Reply::Unknown);
        }
        match effect {
            Effect::Load { has_frames: load } => {
                let loaded = self.world.load(load);
                self.world.check_fold(loaded.as_ref(), load);
                self.reply(id, Reply::Loaded(loaded.map(Box::new)));
            }
            Effect::ReadTail { epoch, position } => {
                let page = self.world.read(epoch, position, false);
                self.reply(id, Reply::Tail(page));
            }
            Effect::Append(append) => {
                let number = self.world.drivers[self.at].number;
                let head = self.world.load(false).map(|loaded| loaded.head);
                let last_end =
                    self.world.shadow().and_then(|shadow| shadow.state.last_end().cloned());
                let result = self.world.append(&append);
                if let AppendResult::Appended { .. } = result {
                    let is_lost = head.is_some_and(|head| head.is_lost);
                    self.world.check_ends(number, &append, is_lost);
                    self.world.count_append(number, &append, last_end);
                    let ended = append.entries.iter().filter_map(|entry| match entry.other() {
                        Some(OtherEntry::End { run, .. }) if is_flushed => Some(run.clone()),
                        _ => None,
                    });
                    self.world.flushed.extend(ended);
                }
                self.reply(id, Reply::Appended(result));
            }
            Effect::Pause | Effect::ShortPause => {
                self.world.pass(LEASE / 8);
                self.reply(id, Reply::Waited);
            }
            Effect::CloseCalls { open, removed, plan, .. } => {
                let results = self.close(&open, &removed, &plan);
                self.reply(id, results.map_or(Reply::LedgerFailed, Reply::Calls));
            }
            Effect::FindDecided(open) => {
                let results = (!self.has_fault()).then(|| self.decided(&open));
                self.reply(id, results.map_or(Reply::LedgerFailed, Reply::Calls));
            }
            Effect::Redeem { plan, chat } => self.redeem(&plan, &chat),
            Effect::ClaimForProvider { run, approvals } => {
                let now = self.world.now;
                let sent = approvals.iter().filter(|approval| {
                    let id = approval.approval_id.as_ref();
                    id.is_some_and(|id| self.world.ledger.claim(id, &run, now))
                });
                let sent: Vec<_> = sent.cloned().collect();
                let sent = (!self.has_fault()).then_some(sent);
                self.deliver(Input::Claimed { run, approvals, sent });
            }
            Effect::RevokePending(_)
            | Effect::RevokeUnshown
            | Effect::PutSnapshot { .. }
            | Effect::Delete { .. } => {
                let reply = match effect {
                    Effect::RevokePending(_) => Reply::Revoked,
                    _ => Reply::Deleted,
                };
                self.world.execute_late(effect);
                self.reply(id, reply);
            }
            Effect::CallAgent(_) => {}
        }
    }

    fn has_fault(&mut self) -> bool {
        let fails = self.world.ledger_fails && self.random.one_in(12);
        self.world.counts.ledger_faults += u64::from(fails);
        fails
    }

    fn decided(&mut self, open: &[PendingToolCall]) -> Vec<ReceivedResult> {
        let ids = open.iter().filter_map(|call| call.approval_id.as_ref());
        let ledger = &mut self.world.ledger;
        let now = self.world.now;
        ids.filter_map(|id| ledger.decided(id, now)).collect()
    }

    /// Closes the open calls because of a new message, with the denials and outputs that came with it.
    fn close(
        &mut self,
        open: &[PendingToolCall],
        removed: &[PendingToolCall],
        plan: &ResumePlan,
    ) -> Option<Vec<ReceivedResult>> {
        if self.has_fault() {
            return None;
        }
        let world = &mut self.world;
        let mut results = Vec::new();
        for call in open {
            let Some(id) = &call.approval_id else {
                let mut outputs = plan.unverified_outputs();
                let outcome = match outputs.find(|output| output.tool_call_id == call.tool_call_id)
                {
                    Some(output) => outcome_of(output),
                    None => DeferredOutcome::Superseded,
                };
                results.push(ReceivedResult::new(call.with_outcome(outcome), None));
                continue;
            };
            let mut answers = plan.unverified_responses();
            let answer = answers.find(|answer| answer.approval_id == *id);
            let is_open = world.ledger.is_asked(id);
            let received = match answer.map(|answer| answer.approved) {
                Some(false) => match world.ledger.answer(id, false, world.now) {
                    Answered::Result(received) => received.map(|result| *result),
                    _ => None,
                },
                _ if is_open && !world.ledger.lapses(id) && !removed.contains(call) => None,
                Some(true) if is_open => world.ledger.lapse(id, world.now),
                _ => world.ledger.supersede(id, world.now),
            };
            world.counts.closed += u64::from(is_open && received.is_some());
            results.extend(received);
        }
        Some(results)
    }

    /// Redeems the answers of a plan.
    fn redeem(&mut self, plan: &ResumePlan, chat: &Chat) {
        if self.has_fault() {
            return self.deliver(Input::Redeemed(false));
        }
        for output in plan.unverified_outputs() {
            let mut calls = chat.client_executed.iter();
            let call = calls.find(|call| call.tool_call_id == output.tool_call_id);
            if let Some(call) = call {
                self.world.answered_outputs.push(call.tool_call_id.to_string());
                let result = call.with_outcome(outcome_of(output));
                let result = ReceivedResult::new(result, None);
                self.deliver(Input::Settled(Box::new(result)));
            }
        }
        self.world.drivers[self.at].is_redeeming = true;
        for response in plan.unverified_responses() {
            let id = &response.approval_id;
            let mut messages = chat.messages.iter();
            let is_shown = messages.any(|message| super::world::shows(message, id));
            if !is_shown {
                continue;
            }
            let is_followed = |id: &MessageId| chat.is_followed_by_user(id);
            let ledger = &mut self.world.ledger;
            let is_late =
                ledger.is_asked(id) && response.approved && ledger.lapses_after(id, is_followed);
            match is_late {
                true => {
                    let received = ledger.lapse(id, self.world.now);
                    received
                        .into_iter()
                        .for_each(|result| self.deliver(Input::Settled(Box::new(result))));
                }
                false if self.has_fault() => self.fail_to_answer(id, response.approved),
                false => self.answer(id, response.approved),
            }
        }
        let World { drivers, ledger, .. } = &*self.world;
        let calls = drivers[self.at].tools.iter().filter_map(|(id, _)| ledger.call(id));
        let executing = calls
            .map(|call| (call.clone(), AgentEvent::approval_data(call, Json::string("approved"))));
        let executing = executing.collect();
        let is_incomplete = !self.world.drivers[self.at].unstored.is_empty();
        self.deliver(Input::Accepted { is_incomplete, executing });
        self.end_redemption();
    }

    fn answer(&mut self, id: &ApprovalId, is_approved: bool) {
        match self.world.ledger.answer(id, is_approved, self.world.now) {
            Answered::Result(result) => {
                result.into_iter().for_each(|result| self.deliver(Input::Settled(result)));
            }
            Answered::Execute => {
                let driver = &mut self.world.drivers[self.at];
                driver.tools.push((id.clone(), false));
                if driver.followed.contains(id) {
                    self.world.violated(format!("{id:?} was approved after a newer message"));
                }
            }
            Answered::Wait => {
                self.world.pass(1);
                self.world.drivers[self.at].awaited.push((id.clone(), is_approved));
            }
        }
    }

    /// The ledger does not store an answer. What the turn gets says so.
    fn fail_to_answer(&mut self, id: &ApprovalId, is_approved: bool) {
        self.world.counts.unstored_answers += 1;
        let live = self.world.shadow().and_then(|shadow| shadow.state.live());
        let live = live.map(|live| live.run.clone());
        self.world.drivers[self.at].unstored.push((live, id.clone()));
        let known = self.world.ledger.last_known(id, is_approved, self.world.now);
        if let Answered::Result(Some(result)) = known {
            self.deliver(Input::Settled(result));
        }
    }

    fn end_redemption(&mut self) {
        let driver = &mut self.world.drivers[self.at];
        if driver.is_redeeming && driver.tools.is_empty() && driver.awaited.is_empty() {
            driver.is_redeeming = false;
            let is_redeemed = driver.unstored.is_empty();
            self.deliver(Input::Redeemed(is_redeemed));
        }
    }

    /// Goes on with an approved call: what it shows, the effect, and then its record.
    fn execute(&mut self, tool: usize) {
        let (id, is_executed) = self.world.drivers[self.at].tools[tool].clone();
        if self.random.one_in(2) && self.world.drivers[self.at].turn.accepts_progress() {
            return self.show_progress(&id);
        }
        if !is_executed {
            self.world.effect(&id);
            self.world.drivers[self.at].tools[tool].1 = true;
            return;
        }
        self.world.drivers[self.at].tools.remove(tool);
        let result = self.world.ledger.execute(&id, self.world.now);
        result.into_iter().for_each(|result| self.deliver(Input::Settled(Box::new(result))));
        self.end_redemption();
    }

    fn show_progress(&mut self, id: &ApprovalId) {
        let Some(call) = self.world.ledger.call(id).cloned() else { return };
        let output = Json::string(&format!("so far {}", self.world.fresh()));
        let event = if self.random.one_in(2) {
            AgentEvent::preliminary_output(call, output)
        } else {
            self.world.counts.parts_of_calls += 1;
            AgentEvent::data("log", output)
        };
        self.deliver(Input::Progress(Box::new(event)));
    }

    fn call_agent(&mut self, call: CallAgent) {
        self.world.check_call(&call);
        self.world.counts.sent += call.sent.len() as u64;
        call.sent.iter().flat_map(|sent| &sent.approval_id).for_each(|id| self.world.effect(id));
        let Step { world, random, at } = self;
        let events = agent::answer(&mut || world.fresh(), random, call.sent);
        world.drivers[*at].agent = Some(events);
    }

    /// Passes the next event of the agent to the turn. The agent records its approval requests in the
    /// ledger before it emits them.
    fn hear(&mut self) {
        let driver = &mut self.world.drivers[self.at];
        let events = driver.agent.as_mut();
        let event = events.and_then(|events| (!events.is_empty()).then(|| events.remove(0)));
        let own = driver.turn.own_run().map(|(run, message)| (run.clone(), message.clone()));
        let epoch = driver.turn.epoch();
        if let (
            Some(AgentEvent::ApprovalRequested { tool_call_id, approval_id, .. }),
            Some((run, message_id)),
            Some(epoch),
        ) = (&event, own, epoch)
        {
            let lapses = self.random.below(8) > 0;
            self.world.ledger.ask(approval_id, &message_id, tool_call_id, lapses);
            self.world.asked_in.insert(approval_id.clone(), (epoch, run));
            if !self.world.drivers[self.at].client.answers_approvals() {
                self.world.ledger.revoke(|id, _| id == approval_id);
                self.world.counts.revoked += 1;
            }
        }
        if event.is_none() {
            driver_mut(self.world, self.at).agent = None;
        }
        self.deliver(event.map_or(Input::AgentEnded, Input::Agent));
    }
}

fn driver_mut(world: &mut World, at: usize) -> &mut super::world::Driver {
    &mut world.drivers[at]
}
