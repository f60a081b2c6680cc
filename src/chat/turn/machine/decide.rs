//! The decisions of a turn about a loaded conversation.

use super::chat_turn::{
    AnsweredBy, ChatTurn, Goal, Joined, Loaded, Redemption, State, TakenRun, Then,
};
use super::io::{Effect, Response};
use super::running::Replies;
use crate::approval::{PendingToolCall, ResumePlan};
use crate::chat::conversation::{Chat, LiveRun, LostRun, ReceivedResult, RequestEffect};
use crate::chat::log::{Fence, LogEntry, TakeCondition, TakeRefusal, TakeResult};
use crate::chat::run_log::{LogWriter, RunRecord, TakenEnd, content_parts};
use crate::id::{MessageId, RunId, ToolCallId};
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
        if let Some(taken) =
            self.taken.as_ref().filter(|taken| taken.is_open && Some(&taken.run) != named)
        {
            // Another turn has saved the message of this run. Its log has no other holder.
            let end = match &live {
                Some(LiveRun { run, resumes: Some(lost), .. }) if lost.run == taken.run => {
                    LogWriter::resumed_by(run)
                }
                _ => taken.end_of_saved(),
            };
            return self.append_end(end, Then::Load, None);
        }
        match (&self.goal, live) {
            (Goal::Ask(_), live) => self.decide_question(loaded, live),
            (Goal::Settle(_), Some(live)) => self.decide_answers_in_run(loaded, live),
            (Goal::Settle(_), None) => self.decide_answers(loaded),
            (Goal::Stop(run), Some(live)) if run.as_ref().is_none_or(|run| live.is_of(run)) => {
                self.goal = Goal::Stop(Some(live.run.clone()));
                self.close_run(loaded, live);
            }
            (Goal::Follow, Some(live)) => self.join(live, loaded.chat),
            (Goal::Delete, live) => self.decide_deletion(&loaded, live),
            (Goal::Mend(run), Some(live)) if *run == live.run => self.close_run(loaded, live),
            (Goal::Stop(_) | Goal::Follow | Goal::Mend(_), _) => {
                self.finish(Then::Stored(None), None);
            }
        }
    }

    fn decide_question(&mut self, loaded: Loaded, live: Option<LiveRun>) {
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
                if live.message_id == id && !self.has_taken(&live) =>
            {
                self.join(live, loaded.chat);
            }
            // The run that wrote it is lost.
            (
                RequestEffect::Answered(_)
                | RequestEffect::AwaitsResponse(_)
                | RequestEffect::Refused(_),
                Some(live),
            ) if self.has_taken(&live) => {
                self.close_run(loaded, live);
            }
            (RequestEffect::Answered(id), _) => {
                self.finish(self.stored(Some(id)), Some(loaded.chat));
            }
            (RequestEffect::NotAnswered, _) => {
                self.respond(Response::AlreadyReceived);
                self.finish(Then::Stored(None), None);
            }
            (RequestEffect::Refused(conflict), _) => {
                self.respond(Response::Refused(conflict));
                self.finish(Then::Stored(None), None);
            }
            (_, Some(live)) => self.close_run(loaded, live),
            (_, None) => self.close_conversation(loaded),
        }
    }

    /// Passes the results of the answers to the live run, and joins it.
    fn decide_answers_in_run(&mut self, loaded: Loaded, live: LiveRun) {
        self.unsaved.retain(|result| loaded.chat.lacks(result));
        if !self.unsaved.is_empty() {
            let mut next = (*loaded.chat).clone();
            self.unsaved.iter().for_each(|result| next.receive_result(result));
            return self.save(&loaded, next, Then::Load);
        }
        self.redeem(&loaded);
        let is_running = self.redemption.is_running();
        if self.has_taken(&live) {
            self.close_run(loaded, live);
        } else if is_running {
            self.state = State::AwaitingResults;
        } else if self.has_responded {
            self.finish(Then::Stored(None), None);
        } else {
            self.join(live, loaded.chat);
        }
    }

    fn decide_answers(&mut self, loaded: Loaded) {
        self.unsaved.retain(|result| loaded.chat.lacks(result));
        let mut next = (*loaded.chat).clone();
        let message_id = match self.effect_of_answers(&mut next) {
            Err(limit) => {
                self.respond(Response::Limit(limit));
                return self.finish(Then::Stored(None), None);
            }
            // An old page has sent its last message again. There is nothing to respond to.
            Ok(RequestEffect::NewResponse)
                if !self.has_answers(&loaded.chat) && loaded.chat.ends_with(Role::Assistant) =>
            {
                self.respond(Response::AlreadyReceived);
                return self.finish(Then::Stored(None), None);
            }
            Ok(RequestEffect::Continues(id)) => Some(id),
            Ok(RequestEffect::Answered(id)) => {
                // The answered message was removed. A run would write another message, whose readers
                // do not hold these calls.
                self.redeem(&loaded);
                Some(id)
            }
            Ok(RequestEffect::NewResponse) => None,
            Ok(
                RequestEffect::AwaitsResponse(_)
                | RequestEffect::NotAnswered
                | RequestEffect::Refused(_),
            ) => {
                // No message waits for these answers. They are redeemed all the same.
                self.respond(Response::AlreadyReceived);
                self.redeem(&loaded);
                None
            }
        };
        if let Redemption::NotStarted(plan) = &self.redemption {
            if let Some(id) = message_id.as_ref().filter(|_| !loaded.chat.has_results_of(plan)) {
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
        self.continue_message(loaded, next, message_id);
    }

    /// Returns the effect of the answers on a conversation without a run.
    fn effect_of_answers(&self, next: &mut Chat) -> Result<RequestEffect, ChatLimitError> {
        match &self.goal {
            Goal::Settle(AnsweredBy::Request(request)) => {
                if matches!(self.redemption, Redemption::NotStarted(_)) {
                    self.check_limits(request, next)?;
                }
                Ok(next.apply_request(request, self.settings.posted_history))
            }
            Goal::Settle(AnsweredBy::Decisions(id)) if next.message(id).is_some() => {
                Ok(RequestEffect::Continues(id.clone()))
            }
            _ => Ok(RequestEffect::NotAnswered),
        }
    }

    /// Records the results of the answers, and continues the message if the model has to reply.
    fn continue_message(&mut self, loaded: Loaded, mut next: Chat, message_id: Option<MessageId>) {
        let chat = &loaded.chat;
        self.unsaved.iter().for_each(|result| next.record_received(result));
        let replies = message_id.as_ref().map(|id| self.replies(chat, id)).unwrap_or_default();
        let mut shown = self.shown.iter();
        let has_to_call = !self.has_responded && shown.any(|shown| replies.has_to_follow(shown));
        match next.message_to_continue().cloned().or(message_id.clone().filter(|_| has_to_call)) {
            Some(id) => self.name_run(loaded, next, id),
            None if next != **chat => self.save(&loaded, next, Then::Load),
            None if self.redemption.is_running() => self.state = State::AwaitingResults,
            None => self.finish(self.stored(message_id), Some(loaded.chat)),
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
        let lacks_parts = |posted: &UiMessage| {
            chat.message(message_id).is_some_and(|stored| {
                posted.id != *message_id || content_parts(posted) < content_parts(stored)
            })
        };
        let is_repeated = self.posted_message().is_some_and(lacks_parts);
        Replies { answered: self.answered.clone(), is_repeated }
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
    fn has_taken(&self, live: &LiveRun) -> bool {
        self.taken.as_ref().is_some_and(|taken| taken.run == live.run)
    }

    /// Returns the lost run that the next run of this turn resumes.
    fn resumed_run(&self) -> Option<&LiveRun> {
        self.taken.as_ref().filter(|taken| taken.resumed.is_some())?.closed.as_ref()
    }

    /// The old run is closed in `next`. Names the run that the goal needs, and saves.
    pub(super) fn name_next(&mut self, loaded: Loaded, mut next: Chat) {
        if let Some(id) = self.resumed_run().map(|lost| lost.message_id.clone()) {
            return self.name_run(loaded, next, id);
        }
        match &self.goal {
            Goal::Ask(request) => {
                let effect = next.apply_request(request, self.settings.posted_history);
                if self.removes_unclosed(&next) {
                    // Nothing would show later that an approval of such a call comes too late.
                    self.respond(Response::Failed);
                    return self.save_closed(loaded);
                }
                match effect {
                    RequestEffect::Answered(id) | RequestEffect::AwaitsResponse(id) => {
                        // The run that answered it was taken.
                        return match next.message_to_continue().cloned() {
                            Some(unread) => self.name_run(loaded, next, unread),
                            None => {
                                let then = self.stored(Some(id));
                                self.save(&loaded, next, then);
                            }
                        };
                    }
                    RequestEffect::NotAnswered if self.unanswered_by_taken(&next).is_none() => {
                        self.respond(Response::AlreadyReceived);
                        return self.save(&loaded, next, Then::Stored(None));
                    }
                    RequestEffect::Refused(conflict) => {
                        self.respond(Response::Refused(conflict));
                        return self.save(&loaded, next, Then::Stored(None));
                    }
                    RequestEffect::NotAnswered
                    | RequestEffect::NewResponse
                    | RequestEffect::Continues(_) => {}
                }
                if let Err(limit) = self.check_limits(request, &next) {
                    self.respond(Response::Limit(limit));
                    return self.save_closed(loaded);
                }
                let id = self.settings.message_id.clone();
                self.name_run(loaded, next, id);
            }
            Goal::Mend(_) => self.save(&loaded, next, Then::Stored(None)),
            Goal::Settle(_) => self.save(&loaded, next, Then::Load),
            Goal::Stop(_) | Goal::Follow | Goal::Delete => {
                next.set_stopped();
                self.save(&loaded, next, Then::Stored(None));
            }
        }
    }

    /// Returns the id of the message with which the taken run was to answer the last message, if it
    /// has written nothing.
    fn unanswered_by_taken(&self, next: &Chat) -> Option<MessageId> {
        let id = &self.taken.as_ref()?.closed.as_ref()?.message_id;
        (next.ends_with(Role::User) && next.message(id).is_none()).then(|| id.clone())
    }

    /// Returns the response that is this stored message. If this turn has completed its log, the log is
    /// the response: the message alone does not show how it has ended.
    fn stored(&self, message_id: Option<MessageId>) -> Then {
        match &self.ended {
            Some(ended) if message_id.as_ref() == Some(&ended.message_id) => {
                Then::Join(ended.clone())
            }
            _ => Then::Stored(message_id),
        }
    }

    /// The request is refused, and the old run is taken. Saves what the old run has written.
    fn save_closed(&mut self, loaded: Loaded) {
        match loaded.chat.live_run() {
            Some(_) => {
                self.goal = Goal::Stop(None);
                self.decide(loaded);
            }
            None => self.finish(Then::Stored(None), None),
        }
    }

    /// Saves the conversation with a new run that writes this message.
    fn name_run(&mut self, loaded: Loaded, mut next: Chat, message_id: MessageId) {
        match self.begun.clone() {
            Some((run, fence)) => {
                let mut resumes = None;
                if let Some(taken) = self.taken.as_mut().filter(|taken| taken.resumed.is_some()) {
                    resumes = taken.resumed.clone();
                    taken.end = Some(LogWriter::resumed_by(&run));
                }
                let only_for = self.unknown_posted_message(&next, &message_id);
                let live = LiveRun { run, fence, message_id, kept: None, resumes, only_for };
                next.set_live_run(live.clone());
                self.was_named = true;
                self.save(&loaded, next, Then::Run(live));
            }
            None if self.refused_runs > 1 => self.save_without_run(loaded, next),
            None => self.begin(loaded),
        }
    }

    /// Returns the id of the posted message that a run continues, if the conversation lacks the message
    /// or some of its calls.
    fn unknown_posted_message(&self, next: &Chat, id: &MessageId) -> Option<MessageId> {
        let (posted, stored) = (self.posted_message()?, next.message(id));
        let is_other = |lost: &LiveRun| lost.only_for.as_ref() != Some(&posted.id);
        if (stored.is_some() || self.resumed_run().is_some_and(is_other)) && posted.id != *id {
            return None;
        }
        let known = stored.into_iter().flat_map(UiMessage::tool_parts);
        let known: Vec<_> = known.map(|part| &part.tool_call_id).collect();
        let mut calls = posted.tool_parts().map(|part| &part.tool_call_id);
        let is_unknown = posted.id != *id || calls.any(|call| !known.contains(&call));
        is_unknown.then(|| posted.id.clone())
    }

    /// Returns whether the client holds what the log of this run continues.
    fn can_read(&self, live: &LiveRun) -> bool {
        let posted = self.posted_message().map(|posted| &posted.id);
        live.only_for.is_none() || live.only_for.as_ref() == posted
    }

    /// The user has too many live runs. `next` is the conversation that the new run was to continue.
    fn save_without_run(&mut self, loaded: Loaded, next: Chat) {
        self.respond(Response::TooManyRuns);
        let is_unredeemed = matches!(self.redemption, Redemption::NotStarted(_));
        match self.goal {
            // The client sends the message again.
            Goal::Ask(_) => self.save_closed(loaded),
            _ if is_unredeemed || next == *loaded.chat => self.finish(Then::Stored(None), None),
            _ => self.save(&loaded, next, Then::Stored(None)),
        }
    }

    /// Begins a run.
    pub(super) fn begin(&mut self, loaded: Loaded) {
        let first = &self.settings.run_id;
        let run = match self.begun_runs {
            0 => first.clone(),
            number => format!("{first}-{number}").into(),
        };
        self.begun_runs += 1;
        self.start(Effect::Begin(run.clone()));
        self.state = State::Beginning(loaded, run);
    }

    /// Joins the live run, unless its lease has passed. Then this turn takes it.
    pub(super) fn join(&mut self, live: LiveRun, chat: Box<Chat>) {
        let (run, fence) = (live.run.clone(), live.fence);
        self.take(run, fence, TakeCondition::LeasePassed, Some((live, chat)));
    }

    pub(super) fn take(
        &mut self,
        run: RunId,
        fence: Fence,
        condition: TakeCondition,
        joined: Option<Joined>,
    ) {
        let waits = joined.is_some();
        self.start(Effect::Take { run: run.clone(), fence, condition, waits });
        self.state = State::Taking(run, fence, joined);
    }

    fn take_live(&mut self, live: LiveRun) {
        // A run that was taken is being ended, if the turn that took it is alive.
        let is_being_ended = live.fence > Fence::FIRST || matches!(self.goal, Goal::Mend(_));
        let condition =
            if is_being_ended { TakeCondition::LeasePassed } else { TakeCondition::Any };
        self.take(live.run, live.fence, condition, None);
    }

    pub(super) fn handle_taken(
        &mut self,
        run: RunId,
        fence: Fence,
        joined: Option<Joined>,
        result: TakeResult,
    ) {
        // A turn that joins or mends a run takes it only if its lease has passed.
        let is_lost = joined.is_some() || matches!(self.goal, Goal::Mend(_));
        let (fence, is_open) = match (result, joined) {
            (TakeResult::Taken(fence), _) => (fence, true),
            // The chat may still name a run whose log has ended or was removed, for example if the
            // store of runs has lost it.
            (TakeResult::Refused(TakeRefusal::Ended | TakeRefusal::NotFound), _) => (fence, false),
            // The turn that has taken it may be lost.
            (TakeResult::Refused(TakeRefusal::OtherFence(newest)), joined) => {
                return self.take(run, newest, TakeCondition::LeasePassed, joined);
            }
            // The run is live, or another turn has taken it, and its log will end. Or this server is
            // shutting down, and does not take it.
            (TakeResult::Refused(TakeRefusal::LeaseRenewed), joined) => {
                return match (&self.goal, joined) {
                    (_, Some((live, chat))) if self.can_read(&live) => {
                        self.finish(Then::Join(live), Some(chat));
                    }
                    (Goal::Follow | Goal::Mend(_), _) => self.finish(Then::Stored(None), None),
                    // The response to a reader is the stored message, once the run has ended.
                    _ => self.state = State::Waiting,
                };
            }
        };
        if let Goal::Follow = self.goal {
            self.goal = Goal::Mend(run.clone());
        }
        self.start(Effect::Read(run.clone()));
        self.taken = Some(TakenRun {
            run,
            fence,
            entries: Vec::new(),
            is_open,
            end: None,
            closed: None,
            is_lost,
            is_gone: false,
            resumed: None,
        });
        self.state = State::Reading;
    }

    /// Takes the live run, completes its log, keeps its message, and then does what the goal says.
    pub(super) fn close_run(&mut self, loaded: Loaded, live: LiveRun) {
        let client = self.client();
        let Some(taken) = self.taken_run(&live) else { return };
        let (fence, is_open, is_unbegun) = (taken.fence, taken.is_open, taken.entries.is_empty());
        let mut writer = LogWriter::of_taken(&loaded.chat, &live, &taken.entries, client);
        if let Some(lost) = live.resumes.clone().filter(|_| is_unbegun) {
            // The turn that has named this run may have been lost before it ended the other log.
            let (entries, position) = (LogWriter::resumed_by(&live.run).into(), lost.entries);
            let LostRun { run, fence, .. } = lost;
            self.spawn(Effect::Append { run, fence, position, entries, end: true });
        }
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
        let end = self.end_of_taken(&live, &loaded.chat, writer.record());
        writer.end_taken(end);
        let missing: Vec<_> = writer.take_queue();
        if is_open && !missing.is_empty() {
            if live.fence == fence {
                self.append_old(missing.clone(), false);
                return self.state = State::Completing(missing);
            }
            // The old holder can still save the end of its run. Its save must fail before the old
            // log gets entries that its save would lack.
            let mut fenced = (*loaded.chat).clone();
            fenced.set_live_fence(fence);
            return self.save(&loaded, fenced, Then::Load);
        }
        next = writer.record().keep_in(&loaded.chat);
        next.end_live_run();
        if let Some(taken) = &mut self.taken {
            let (run, entries) = (live.run.clone(), taken.length());
            let lost = LostRun { run, fence, entries, losses: losses_of(&live) };
            taken.resumed = (end == TakenEnd::Resumed).then_some(lost);
            taken.end = None;
            let kept = Some(writer.record().kept(entries));
            taken.closed = Some(LiveRun { kept, ..live });
            self.ended = taken.closed.clone().filter(|_| taken.is_lost && is_open);
        }
        others.iter().for_each(|result| next.record_received(result));
        self.name_next(loaded, next);
    }

    /// Returns how the message of the live run ends, which this turn has taken.
    fn end_of_taken(&self, live: &LiveRun, chat: &Chat, record: &RunRecord) -> TakenEnd {
        let Some(taken) = self.taken.as_ref().filter(|taken| taken.is_lost) else {
            return TakenEnd::Aborted;
        };
        let kept = live.kept.map_or(0, |kept| kept.entries);
        let is_shortened = taken.is_gone || taken.length() < kept;
        let may_resume = losses_of(live) <= MAX_LOSSES && self.refused_runs < 2;
        match TakenEnd::of_lost(record, chat, is_shortened) {
            TakenEnd::Resumed if !may_resume => TakenEnd::Interrupted,
            end => end,
        }
    }

    /// Returns the live run if this turn has taken it. Otherwise takes it, or waits for the turn that
    /// took it later.
    fn taken_run(&mut self, live: &LiveRun) -> Option<&mut TakenRun> {
        match self.taken.as_ref().filter(|taken| taken.run == live.run) {
            Some(taken) if taken.is_open && taken.fence < live.fence => {
                // Another turn took the run from this one and said so in the chat.
                self.taken = None;
                self.state = State::Waiting;
                None
            }
            Some(_) => self.taken.as_mut(),
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
            let Some(taken) = self.taken_run(&live) else { return };
            let mut writer = LogWriter::of_taken(&loaded.chat, &live, &taken.entries, client);
            writer.end_taken(TakenEnd::Aborted);
            let missing: Vec<_> = writer.take_queue();
            let all = [taken.entries.as_slice(), missing.as_slice()].concat();
            let end = LogWriter::end_of_saved(&live.run, &all);
            taken.end = Some([missing, end].concat());
        }
        self.revoke(loaded.revision);
    }

    /// Revokes the open approval requests, and then deletes the conversation with this revision.
    pub(super) fn revoke(&mut self, revision: Option<u64>) {
        self.start(Effect::RevokePending(revision));
        self.state = State::Revoking(revision);
    }

    fn append_old(&mut self, entries: Vec<LogEntry>, end: bool) {
        if let Some(taken) = &self.taken {
            let append = taken.append(entries, end);
            self.start(append);
        }
    }

    pub(super) fn append_end(
        &mut self,
        entries: Vec<LogEntry>,
        then: Then,
        chat: Option<Box<Chat>>,
    ) {
        self.append_old(entries, true);
        self.state = State::EndingOld(then, chat);
    }

    /// As [`close_run`](Self::close_run), without a live run.
    pub(super) fn close_conversation(&mut self, loaded: Loaded) {
        let mut next = (*loaded.chat).clone();
        let Some(closed) = self.close_calls(&loaded, &next) else { return };
        closed.iter().for_each(|result| next.record_received(result));
        self.name_next(loaded, next);
    }

    /// Returns what the ledger says about the calls that are open. Returns `None` and asks it, if
    /// that was not done for this version of the conversation.
    fn close_calls(&mut self, loaded: &Loaded, next: &Chat) -> Option<Vec<ReceivedResult>> {
        let mut open: Vec<PendingToolCall> = next.undecided_calls();
        open.extend(next.client_executed.iter().cloned());
        if let Some(closed) = &self.closed
            && open.iter().all(|call| closed.calls.contains(call))
        {
            return Some(closed.results.clone());
        }
        let calls = open.clone();
        let effect = match self.with_new_message(next) {
            Some((plan, chat)) => {
                self.redemption.start();
                Effect::CloseOpenCalls { open, plan, chat }
            }
            None if open.is_empty() => return Some(Vec::new()),
            None if matches!(self.goal, Goal::Stop(_) | Goal::Follow | Goal::Delete) => {
                return Some(Vec::new());
            }
            None => Effect::FindDecided(open),
        };
        self.start(effect);
        self.state = State::Closing(loaded.clone(), calls);
        None
    }

    /// Whether the request removes calls that the ledger could not close.
    fn removes_unclosed(&self, next: &Chat) -> bool {
        let kept = next.undecided_calls();
        self.closed.as_ref().is_some_and(|closed| {
            let mut asked = closed.calls.iter().filter(|call| call.approval_id.is_some());
            closed.has_failed && asked.any(|call| !kept.contains(call))
        })
    }

    /// Returns the answers that came with the new message of the request, and the conversation with
    /// that message. Returns `None` if there is none, or if it was delivered before: then its response
    /// stays as it is.
    fn with_new_message(&self, chat: &Chat) -> Option<(Box<ResumePlan>, Box<Chat>)> {
        let Goal::Ask(request) = &self.goal else { return None };
        let mut chat = Box::new(chat.clone());
        match chat.apply_request(request, self.settings.posted_history) {
            RequestEffect::Answered(_)
            | RequestEffect::AwaitsResponse(_)
            | RequestEffect::Refused(_) => None,
            _ => Some((Box::new(ResumePlan::new(request.messages(), None)), chat)),
        }
    }
}

/// Returns how many runs in a row are lost, if this one is.
fn losses_of(live: &LiveRun) -> u32 {
    live.resumes.as_ref().map_or(0, |lost| lost.losses).saturating_add(1)
}

impl TakenRun {
    fn append(&self, entries: Vec<LogEntry>, end: bool) -> Effect {
        let (run, fence) = (self.run.clone(), self.fence);
        Effect::Append { run, fence, position: self.length(), entries: entries.into(), end }
    }

    /// Returns the end of the log, if its message is saved.
    pub(super) fn end_of_saved(&self) -> Vec<LogEntry> {
        LogWriter::end_of_saved(&self.run, &self.entries)
    }

    fn length(&self) -> u64 {
        self.entries.len().try_into().unwrap_or(u64::MAX)
    }
}

/// How many lost runs in a row are resumed without a request.
const MAX_LOSSES: u32 = 2;
