//! The decisions of a turn about a loaded conversation.

use super::chat_turn::{AnsweredBy, ChatTurn, Goal, Held, Loaded, Redemption, State, Then};
use super::io::{Effect, Response};
use super::running::Replies;
use crate::approval::{PendingToolCall, ResumePlan};
use crate::chat::conversation::{Chat, LiveRun, ReceivedResult, RequestEffect};
use crate::chat::log::TakeCondition;
use crate::chat::run_log::{LogWriter, content_parts};
use crate::id::{MessageId, ToolCallId};
use crate::limits::ChatLimitError;
use crate::message::{Role, UiMessage};
use crate::request::ChatRequest;

impl ChatTurn {
    /// The one place that decides about a loaded conversation. It is called again whenever the
    /// conversation, the ledger or the old log has brought something new.
    pub(super) fn decide(&mut self, loaded: Loaded) {
        let live = loaded.chat.live_run().cloned();
        if let (Some(live), Some((run, fence))) = (&live, &self.begun)
            && (&live.run, live.fence) == (run, *fence)
        {
            // The save arrived, its reply did not.
            return self.finish(Then::Run(live.clone()), Some(loaded.chat));
        }
        if std::mem::take(&mut self.was_named) {
            // The save may have arrived, and the run may be over: its id is not used twice.
            self.begun = None;
        }
        let named = live.as_ref().map(|live| &live.run);
        if let Some(held) =
            self.held.as_ref().filter(|held| held.is_open && Some(&held.run) != named)
        {
            // Another turn has saved the message of this run. Its log has no other holder.
            return self.append_end(held.plain_end(), Then::Load, None);
        }
        match &mut self.goal {
            Goal::Ask(_) => self.decide_question(loaded, live),
            Goal::Settle(_) => self.decide_answers(loaded, live),
            Goal::Stop(run) => match live {
                Some(live) if run.as_ref().is_none_or(|run| *run == live.run) => {
                    *run = Some(live.run.clone());
                    self.close_run(loaded, Some(live));
                }
                _ => {
                    self.respond(Response::Nothing);
                    self.finish(Then::Stored(None), None);
                }
            },
            Goal::Follow => match live {
                Some(live) => self.join(live, loaded.chat),
                None => {
                    self.respond(Response::Nothing);
                    self.finish(Then::Stored(None), None);
                }
            },
            Goal::Delete => self.decide_deletion(&loaded, live),
            Goal::Mend(run) => match live {
                Some(live) if live.run == *run => self.close_run(loaded, Some(live)),
                _ => self.finish(Then::Stored(None), None),
            },
        }
    }

    pub(super) fn decide_question(&mut self, loaded: Loaded, live: Option<LiveRun>) {
        let Goal::Ask(request) = &self.goal else { return };
        let mut asked = (*loaded.chat).clone();
        let effect = asked.apply_request(request, self.settings.posted_history);
        if effect == RequestEffect::NewResponse
            && let Err(limit) = self.check_limits(request, &asked)
        {
            self.respond(Response::Limit(limit));
            return self.save_closed(loaded);
        }
        match (effect, live) {
            (RequestEffect::Answered(id) | RequestEffect::AwaitsResponse(id), Some(live))
                if live.message_id == id && !self.holds(&live) =>
            {
                self.join(live, loaded.chat);
            }
            // The run that wrote it is lost.
            (RequestEffect::Answered(_) | RequestEffect::AwaitsResponse(_), Some(live))
                if self.holds(&live) =>
            {
                self.close_run(loaded, Some(live));
            }
            (RequestEffect::Answered(id), _) => self.finish(Then::Stored(Some(id)), None),
            (RequestEffect::NotAnswered, _) => {
                self.respond(Response::AlreadyReceived);
                self.finish(Then::Stored(None), None);
            }
            (_, live) => self.close_run(loaded, live),
        }
    }

    pub(super) fn decide_answers(&mut self, loaded: Loaded, live: Option<LiveRun>) {
        let Goal::Settle(answered_by) = &self.goal else { return };
        let chat = &loaded.chat;
        self.unsaved.retain(|result| chat.lacks(result));
        let mut next = (**chat).clone();
        if let Some(live) = live {
            if !self.unsaved.is_empty() {
                self.unsaved.iter().for_each(|result| next.receive_result(result));
                return self.save(&loaded, next, Then::Load);
            }
            self.redeem(&loaded);
            return match self.redemption.is_running() {
                true => self.state = State::AwaitingResults,
                false if self.holds(&live) => self.close_run(loaded, Some(live)),
                false => self.join(live, loaded.chat),
            };
        }
        let effect = match answered_by {
            AnsweredBy::Decisions(id) if chat.message(id).is_some() => {
                RequestEffect::Continues(id.clone())
            }
            AnsweredBy::Decisions(_) => RequestEffect::NotAnswered,
            AnsweredBy::Request(request) => {
                if matches!(self.redemption, Redemption::NotStarted(_))
                    && let Err(limit) = self.check_limits(request, chat)
                {
                    return self.respond(Response::Limit(limit));
                }
                next.apply_request(request, self.settings.posted_history)
            }
        };
        let message_id = match effect {
            // An old page has sent its last message again. There is nothing to respond to.
            RequestEffect::NewResponse if !self.has_answers(chat) && ends_with_response(chat) => {
                self.respond(Response::AlreadyReceived);
                return self.finish(Then::Stored(None), None);
            }
            RequestEffect::Continues(id) | RequestEffect::Answered(id) => Some(id),
            RequestEffect::NewResponse => None,
            RequestEffect::AwaitsResponse(_) | RequestEffect::NotAnswered => {
                // No message waits for these answers. They are redeemed all the same.
                self.respond(Response::AlreadyReceived);
                self.redeem(&loaded);
                None
            }
        };
        if let Redemption::NotStarted(plan) = &self.redemption {
            if let Some(id) = message_id.as_ref().filter(|_| !chat.has_results_of(plan)) {
                // A page that is opened again must not execute the calls again.
                next.record_client_outputs(plan);
                return self.name_run(loaded, next, id.clone());
            }
            if message_id.is_none() {
                return self.name_run(loaded, next, self.settings.message_id.clone());
            }
            // The answers are known. They are redeemed to find out whether they are the same.
            self.redeem(&loaded);
        }
        self.unsaved.iter().for_each(|result| next.record_received(result));
        let is_page = matches!(self.goal, Goal::Settle(AnsweredBy::Request(_)));
        let replies = message_id.as_ref().map(|id| self.replies(chat, id)).unwrap_or_default();
        let has_to_call = is_page
            && !self.has_responded
            && self.shown.iter().any(|shown| replies.has_to_follow(shown));
        match next.message_to_continue().cloned().or(message_id.clone().filter(|_| has_to_call)) {
            Some(id) => self.name_run(loaded, next, id),
            None if next != **chat => self.save(&loaded, next, Then::Load),
            None if self.redemption.is_running() => self.state = State::AwaitingResults,
            None => self.finish(Then::Stored(message_id), None),
        }
    }

    /// Whether the request answers a call. The answers were not redeemed yet.
    fn has_answers(&self, chat: &Chat) -> bool {
        let Redemption::NotStarted(plan) = &self.redemption else { return true };
        let is_of_client =
            |id: &ToolCallId| chat.client_executed.iter().any(|call| call.tool_call_id == *id);
        plan.unverified_responses().next().is_some()
            || plan.unverified_outputs().any(|output| is_of_client(&output.tool_call_id))
    }

    /// Returns to which answers the model has to reply, if the response continues this message.
    pub(super) fn replies(&self, chat: &Chat, message_id: &MessageId) -> Replies {
        let held = match &self.goal {
            Goal::Settle(AnsweredBy::Request(request)) => request.unsanitized_continued_message(),
            _ => None,
        };
        let lacks_parts = |held: &UiMessage| {
            chat.message(message_id).is_some_and(|stored| {
                held.id != *message_id || content_parts(held) < content_parts(stored)
            })
        };
        Replies { answered: self.answered.clone(), is_repeated: held.is_some_and(lacks_parts) }
    }

    /// Checks whether what the client adds to the conversation fits.
    fn check_limits(&self, request: &ChatRequest, chat: &Chat) -> Result<(), ChatLimitError> {
        let outputs = chat.bytes_of_new_outputs(request.messages());
        let messages = request.new_user_message().map(|_| chat.messages.len());
        match (messages, outputs) {
            (None, 0) => Ok(()),
            (messages, outputs) => {
                self.settings.limits.check_chat(messages.unwrap_or(0), chat.bytes() + outputs)
            }
        }
    }

    /// Whether this turn has taken the live run.
    fn holds(&self, live: &LiveRun) -> bool {
        self.held.as_ref().is_some_and(|held| held.run == live.run)
    }

    /// Takes the live run, completes its log, keeps its message, and then does what the goal says.
    pub(super) fn close_run(&mut self, loaded: Loaded, live: Option<LiveRun>) {
        let Some(live) = live else { return self.close_conversation(loaded) };
        let client = self.client();
        let Some(held) = self.hold(&live) else { return };
        let (fence, is_open) = (held.fence, held.is_open);
        let mut writer = LogWriter::of_taken(&loaded.chat, &live, &held.entries, client);
        for result in loaded.chat.new_results() {
            if !writer.record().has_result_of(result) {
                writer.result(result);
            }
        }
        let mut next = writer.record().keep_in(&loaded.chat);
        next.end_live_run();
        let Some(closed) = self.close_calls(&loaded, &next) else { return };
        let (of_run, others): (Vec<_>, Vec<_>) = closed
            .into_iter()
            .filter(|result| next.lacks(result))
            .partition(|result| next.is_call_of(result, &live.message_id));
        of_run.iter().for_each(|result| writer.result(result));
        writer.abort();
        let missing = writer.take_queue();
        if is_open && !missing.is_empty() {
            if live.fence == fence {
                return self.complete_old(missing);
            }
            // The old holder can still save the end of its run. Its save must fail before the old
            // log gets entries that its save would lack.
            let mut fenced = (*loaded.chat).clone();
            fenced.set_live_fence(fence);
            return self.save(&loaded, fenced, Then::Load);
        }
        writer.last_frames();
        if let Some(held) = &mut self.held {
            held.end = Some(writer.take_queue());
            held.message_id = Some(live.message_id.clone());
        }
        next = writer.record().keep_in(&loaded.chat);
        next.end_live_run();
        others.iter().for_each(|result| next.record_received(result));
        self.name_next(loaded, next);
    }

    /// Returns the live run if this turn has taken it. Otherwise takes it, or waits for the turn that
    /// took it later.
    fn hold(&mut self, live: &LiveRun) -> Option<&mut Held> {
        match self.held.as_ref().filter(|held| held.run == live.run) {
            Some(held) if held.is_open && held.fence < live.fence => {
                // Another turn took the run from this one and said so in the chat.
                self.held = None;
                self.state = State::TakenElsewhere(live.run.clone());
                None
            }
            Some(_) => self.held.as_mut(),
            None => {
                self.take_live(live.clone());
                None
            }
        }
    }

    /// Takes the live run, revokes the open approval requests, and deletes the conversation. The log
    /// ends after that.
    fn decide_deletion(&mut self, loaded: &Loaded, live: Option<LiveRun>) {
        let client = self.client();
        if let Some(live) = live {
            let Some(held) = self.hold(&live) else { return };
            let mut writer = LogWriter::of_taken(&loaded.chat, &live, &held.entries, client);
            writer.abort();
            writer.last_frames();
            held.end = Some(writer.take_queue());
        }
        self.revoke(loaded.revision);
    }

    /// Revokes the open approval requests, and then deletes the conversation with this revision.
    pub(super) fn revoke(&mut self, revision: Option<u64>) {
        self.start(Effect::RevokePending);
        self.state = State::Revoking(revision);
    }

    /// As [`close_run`](Self::close_run), without a live run.
    pub(super) fn close_conversation(&mut self, loaded: Loaded) {
        let mut next = (*loaded.chat).clone();
        let Some(closed) = self.close_calls(&loaded, &next) else { return };
        closed.iter().for_each(|result| next.record_received(result));
        self.name_next(loaded, next);
    }

    pub(super) fn take_live(&mut self, live: LiveRun) {
        let newer = self.newer_fence.as_ref().filter(|(run, _)| *run == live.run);
        let fence = newer.map_or(live.fence, |(_, fence)| live.fence.max(*fence));
        let condition = match self.goal {
            Goal::Mend(_) => TakeCondition::LeasePassed,
            _ => TakeCondition::Any,
        };
        self.take(live.run, fence, condition);
    }

    /// Returns what the ledger says about the calls that are open. Returns `None` and asks it, if
    /// that was not done for this version of the conversation.
    pub(super) fn close_calls(
        &mut self,
        loaded: &Loaded,
        next: &Chat,
    ) -> Option<Vec<ReceivedResult>> {
        let mut open: Vec<PendingToolCall> = next.undecided_calls();
        open.extend(next.client_executed.iter().cloned());
        if let Some(closed) = &self.closed
            && (closed.has_failed || open.iter().all(|call| closed.calls.contains(call)))
        {
            return Some(closed.results.clone());
        }
        let calls = open.clone();
        let effect = match &self.goal {
            Goal::Ask(request) => {
                let plan = Box::new(ResumePlan::new(request.messages(), None));
                let mut chat = Box::new(next.clone());
                let _ = chat.apply_request(request, self.settings.posted_history);
                self.redemption.start();
                Effect::CloseOpenCalls { open, plan, chat }
            }
            Goal::Mend(_) | Goal::Settle(_) if !open.is_empty() => Effect::FindDecided(open),
            _ => return Some(Vec::new()),
        };
        self.start(effect);
        self.state = State::Closing(loaded.clone(), calls);
        None
    }

    /// The old run is closed in `next`. Names the run that the goal needs, and saves.
    pub(super) fn name_next(&mut self, loaded: Loaded, mut next: Chat) {
        match &self.goal {
            Goal::Ask(request) => {
                let effect = next.apply_request(request, self.settings.posted_history);
                match effect {
                    RequestEffect::Answered(id) | RequestEffect::AwaitsResponse(id) => {
                        // The run that answered it was taken.
                        return self.save(&loaded, next, Then::Stored(Some(id)));
                    }
                    // The run that was to answer it is lost, and has written nothing.
                    RequestEffect::NotAnswered
                        if self.held.is_some()
                            && next.messages.last().is_some_and(|it| it.role == Role::User) => {}
                    RequestEffect::NotAnswered => {
                        self.respond(Response::AlreadyReceived);
                        return self.save(&loaded, next, Then::Stored(None));
                    }
                    RequestEffect::NewResponse | RequestEffect::Continues(_) => {}
                }
                if let Err(limit) = self.check_limits(request, &next) {
                    self.respond(Response::Limit(limit));
                    return self.save_closed(loaded);
                }
                let id = self.settings.message_id.clone();
                self.name_run(loaded, next, id);
            }
            Goal::Mend(_) => match next.message_to_continue().cloned() {
                Some(id) => self.name_run(loaded, next, id),
                None => self.save(&loaded, next, Then::Stored(None)),
            },
            Goal::Settle(_) => self.save(&loaded, next, Then::Load),
            _ => {
                next.set_stopped();
                self.save(&loaded, next, Then::Stored(None));
            }
        }
    }

    /// The request is refused, and the old run is taken. Saves what the old run has written.
    pub(super) fn save_closed(&mut self, loaded: Loaded) {
        match loaded.chat.live_run() {
            Some(_) => {
                self.goal = Goal::Stop(None);
                self.decide(loaded);
            }
            None => self.finish(Then::Stored(None), None),
        }
    }

    /// Saves the conversation with a new run that writes this message.
    pub(super) fn name_run(&mut self, loaded: Loaded, mut next: Chat, message_id: MessageId) {
        let Some((run, fence)) = self.begun.clone() else { return self.begin_new(loaded) };
        let live = LiveRun { run, fence, message_id };
        next.set_live_run(live.clone());
        self.was_named = true;
        self.save(&loaded, next, Then::Run(live));
    }

    pub(super) fn begin_new(&mut self, loaded: Loaded) {
        let first = &self.settings.run_id;
        let run = match self.begun_runs {
            0 => first.clone(),
            number => format!("{first}-{number}").into(),
        };
        self.begun_runs += 1;
        self.begin(loaded, run);
    }
}

fn ends_with_response(chat: &Chat) -> bool {
    chat.messages.last().is_some_and(|last| last.role == Role::Assistant)
}
