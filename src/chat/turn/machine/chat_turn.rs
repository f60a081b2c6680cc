//! [`ChatTurn`]: the inputs of a turn, and what it does with them.

use std::collections::VecDeque;
use std::sync::Arc;

use super::io::{Action, Effect, EndedMessage, Input, Request, Response};
use super::running::{Beginning, EndCause, OwnRun, RunLimits};
use crate::approval::{PendingToolCall, Principal, ResumePlan};
use crate::chat::conversation::{
    Chat, HistoryImport, LiveRun, LostRun, PostedHistory, ReceivedResult,
};
use crate::chat::log::{AppendResult, BeginResult, Fence, LogEntry, TakeCondition};
use crate::chat::run_log::LogClient;
use crate::id::{ApprovalId, ChatId, MessageId, RunId};
use crate::limits::{ChatLimitError, ChatLimits};
use crate::message::UiMessage;
use crate::request::ChatRequest;

/// The settings of a turn, and the ids that it may use.
#[derive(Debug, Clone)]
pub(crate) struct TurnSettings {
    /// The owner of the conversation.
    pub(crate) owner: Principal,
    pub(crate) chat_id: ChatId,
    pub(crate) posted_history: PostedHistory,
    pub(crate) limits: ChatLimits,
    pub(crate) history_import: HistoryImport,
    /// The client that sent the request.
    pub(crate) client: LogClient,
    /// The id of the message, if the turn begins one.
    pub(crate) message_id: MessageId,
    /// The id of the first run that the turn begins. It is random. The ids of further runs begin
    /// with it.
    pub(crate) run_id: RunId,
}

/// A request to a conversation, as a state machine.
#[derive(Debug)]
pub(crate) struct ChatTurn {
    pub(super) settings: TurnSettings,
    pub(super) goal: Goal,
    pub(super) state: State,
    pub(super) actions: VecDeque<Action>,
    /// The number of runs that the turn has begun.
    pub(super) begun_runs: u32,
    /// The new run. The chat does not name it yet, or is about to.
    pub(super) begun: Option<(RunId, Fence)>,
    /// A save that names the new run was started.
    pub(super) was_named: bool,
    /// How often the store has refused to begin a run.
    pub(super) refused_runs: u32,
    /// The old run, taken by this turn.
    pub(super) taken: Option<TakenRun>,
    /// A lost run that this turn was to join, and whose log it has completed instead.
    pub(super) ended: Option<LiveRun>,
    /// What the ledger returned for the open calls of the conversation.
    pub(super) closed: Option<ClosedCalls>,
    pub(super) redemption: Redemption,
    /// The approval requests that the page answers, which the request continues. A decision from
    /// elsewhere has no page that waits for a reply.
    pub(super) answered: Vec<ApprovalId>,
    /// Results that this turn has redeemed and that it may have to save.
    pub(super) unsaved: Vec<ReceivedResult>,
    /// The results of the answers of this request that no run has shown.
    pub(super) shown: Vec<ReceivedResult>,
    pub(super) has_responded: bool,
}

#[derive(Debug)]
pub(super) enum Goal {
    /// Answer a new message, an edit or a regeneration.
    Ask(Arc<ChatRequest>),
    /// Settle the calls that the user or the client has answered.
    Settle(AnsweredBy),
    /// Stop this run, or the one that is live when the conversation is loaded.
    Stop(Option<RunId>),
    Follow,
    Delete,
    /// Store what a run has written, and end the run, because its lease has passed.
    Mend(RunId),
}

#[derive(Debug)]
pub(super) enum AnsweredBy {
    Request(Arc<ChatRequest>),
    Decisions(MessageId),
}

#[derive(Debug)]
pub(super) enum Redemption {
    NotStarted(Box<ResumePlan>),
    /// How many redemptions have not ended.
    Started(u32),
}

impl Redemption {
    const NONE: Self = Redemption::Started(0);

    pub(super) fn start(&mut self) {
        let running = if let Redemption::Started(running) = self { *running } else { 0 };
        *self = Redemption::Started(running + 1);
    }

    fn end(&mut self) {
        if let Redemption::Started(running) = self {
            *running = running.saturating_sub(1);
        }
    }

    pub(super) fn is_running(&self) -> bool {
        !matches!(self, Redemption::Started(0) | Redemption::NotStarted(_))
    }
}

/// Calls that the ledger has closed, or of which it has been asked.
#[derive(Debug)]
pub(super) struct ClosedCalls {
    pub(super) calls: Vec<PendingToolCall>,
    pub(super) results: Vec<ReceivedResult>,
    /// The ledger has failed. The new message is stored, and the model is not called.
    pub(super) has_failed: bool,
}

/// A run that this turn has taken.
#[derive(Debug)]
pub(super) struct TakenRun {
    pub(super) run: RunId,
    pub(super) fence: Fence,
    pub(super) entries: Vec<LogEntry>,
    /// Whether the log accepts appends of this turn. It does not if it has ended or was removed.
    pub(super) is_open: bool,
    /// The entries with which the log ends, if not with the end of its last model call.
    pub(super) end: Option<Vec<LogEntry>>,
    /// The run, once its log is complete. It keeps the whole log.
    pub(super) closed: Option<LiveRun>,
    /// The run was taken because its lease had passed, or its log was gone.
    pub(super) is_lost: bool,
    /// The store does not hold the log any more.
    pub(super) is_gone: bool,
    /// Set if the run was lost and the next run of this turn resumes it.
    pub(super) resumed: Option<LostRun>,
}

/// The version of the conversation with which the turn works.
#[derive(Debug, Clone)]
pub(super) struct Loaded {
    pub(super) chat: Box<Chat>,
    pub(super) revision: Option<u64>,
}

/// A live run that the turn is about to join, and the conversation that names it.
pub(super) type Joined = (LiveRun, Box<Chat>);

#[derive(Debug)]
pub(super) enum State {
    Loading,
    /// Takes a run. If the turn is about to join it, only if its lease has passed.
    Taking(RunId, Fence, Option<Joined>),
    /// Reads the log of the run that this turn has taken.
    Reading,
    /// Another turn is about to change the conversation: it has taken the run first, and is ending it,
    /// or it may have begun the run that answers the same request.
    Waiting,
    /// The ledger closes the open calls.
    Closing(Loaded, Vec<PendingToolCall>),
    /// Appends to the old log the results that it lacks.
    Completing(Vec<LogEntry>),
    Beginning(Loaded, RunId),
    Saving(Box<Chat>, Then),
    /// Appends the end of the old log.
    EndingOld(Then, Option<Box<Chat>>),
    /// The open approval requests are revoked. Then the conversation with this revision is deleted.
    Revoking(Option<u64>),
    Deleting,
    /// Waits for the results of the answered calls.
    AwaitingResults,
    Running(Box<OwnRun>),
    Over,
}

/// What follows a save.
#[derive(Debug, Clone)]
pub(super) enum Then {
    Run(LiveRun),
    Join(LiveRun),
    Stored(Option<MessageId>),
    Load,
}

impl ChatTurn {
    pub(crate) fn new(request: Request, settings: TurnSettings) -> Self {
        let (mut redemption, mut answered, mut lost) = (Redemption::NONE, Vec::new(), None);
        let goal = match request {
            Request::Post(request) => match request.continued_message() {
                Some(continued) => {
                    let plan = ResumePlan::new(request.messages(), Some(continued));
                    let answers = plan.unverified_responses();
                    answered.extend(answers.map(|answer| answer.approval_id.clone()));
                    redemption = Redemption::NotStarted(Box::new(plan));
                    Goal::Settle(AnsweredBy::Request(request))
                }
                None => Goal::Ask(request),
            },
            Request::Decisions { message_id, plan } => {
                redemption = Redemption::NotStarted(plan);
                Goal::Settle(AnsweredBy::Decisions(message_id))
            }
            Request::Stop => Goal::Stop(None),
            Request::Delete => Goal::Delete,
            Request::Follow => Goal::Follow,
            Request::Mend { run, fence } => {
                lost = Some(fence);
                Goal::Mend(run)
            }
        };
        let mut turn = ChatTurn {
            settings,
            goal,
            state: State::Over,
            actions: VecDeque::new(),
            begun_runs: 0,
            begun: None,
            was_named: false,
            refused_runs: 0,
            taken: None,
            ended: None,
            closed: None,
            redemption,
            answered,
            unsaved: Vec::new(),
            shown: Vec::new(),
            has_responded: false,
        };
        match (&turn.goal, lost) {
            (Goal::Mend(run), Some(fence)) => {
                turn.take(run.clone(), fence, TakeCondition::LeasePassed, None);
            }
            _ => turn.load(),
        }
        turn
    }

    /// Returns the next action. After [`Action::End`] it returns the same action again.
    pub(crate) fn poll(&mut self) -> Action {
        if self.actions.is_empty()
            && let State::Running(own) = &mut self.state
        {
            // Most actions are appends, for which the queue is not needed.
            if let Some(append) = own.next_append() {
                return append;
            }
            own.advance(&mut self.actions);
        }
        let idle = if matches!(self.state, State::Over) { Action::End } else { Action::Wait };
        self.actions.pop_front().unwrap_or(idle)
    }

    fn own(&self) -> Option<&OwnRun> {
        if let State::Running(own) = &self.state { Some(own) } else { None }
    }

    /// Returns whether a save is under way that the turn can do without.
    pub(crate) fn is_keeping_step(&self) -> bool {
        self.own().is_some_and(OwnRun::is_keeping_step)
    }

    /// Returns the run of this turn, while the turn is its holder.
    pub(crate) fn own_run(&self) -> Option<&LiveRun> {
        self.own().map(|own| &own.live)
    }

    pub(crate) fn client(&self) -> LogClient {
        self.settings.client
    }

    /// Returns the message that the request continues, as the client posted it.
    pub(super) fn posted_message(&self) -> Option<&UiMessage> {
        match &self.goal {
            Goal::Settle(AnsweredBy::Request(request)) => request.unsanitized_continued_message(),
            _ => None,
        }
    }

    /// Returns whether the driver may poll the stream of the agent: not while too much of what the
    /// agent has emitted is not in the log.
    pub(crate) fn accepts_events(&self) -> bool {
        self.own().is_some_and(OwnRun::accepts_events)
    }

    /// Handles an input. A late reply to an effect of an earlier state is ignored.
    #[inline]
    pub(crate) fn handle(&mut self, input: Input) {
        match input {
            // Most inputs are events. They do not change the state of the turn.
            Input::Agent(event) => {
                if let State::Running(own) = &mut self.state {
                    own.handle_event(&event, &mut self.actions);
                }
            }
            input => self.handle_result(input),
        }
    }

    fn handle_result(&mut self, input: Input) {
        if matches!(input, Input::Redeemed | Input::NotRedeemed) {
            self.redemption.end();
        }
        if let State::Running(own) = &mut self.state {
            let is_redeeming = matches!(input, Input::Redeemed) && self.redemption.is_running();
            if !is_redeeming && let Some(cause) = own.handle(input, &mut self.actions) {
                self.leave_run(cause);
            }
            return;
        }
        match (std::mem::replace(&mut self.state, State::Over), input) {
            (_, Input::Failed) => self.give_up(Response::Failed),
            (state, Input::CallSettled(result)) => {
                self.shown.push((*result).clone());
                self.unsaved.push(*result);
                self.redeemed(state);
            }
            (state, Input::NotRedeemed) => {
                self.respond(Response::Failed);
                self.redeemed(state);
            }
            (state, Input::Redeemed) => self.redeemed(state),
            (state, input) => self.handle_reply(state, input),
        }
    }

    /// Handles the reply to an effect, and hints.
    fn handle_reply(&mut self, state: State, input: Input) {
        match (state, input) {
            (State::Loading, Input::Loaded(loaded)) => self.loaded(loaded),
            (State::Taking(run, fence, joined), Input::Taken(result)) => {
                self.handle_taken(run, fence, joined, result);
            }
            (State::Reading, Input::Log(entries)) => {
                if let Some(taken) = &mut self.taken {
                    taken.is_gone = entries.is_none();
                    taken.is_open &= !taken.is_gone;
                    taken.entries = entries.unwrap_or_default();
                }
                self.load();
            }
            (State::Waiting, Input::Tick | Input::ChatChanged) => self.load(),
            (State::Closing(loaded, calls), Input::CallsClosed(results)) => {
                self.closed = Some(ClosedCalls { calls, results, has_failed: false });
                self.decide(loaded);
            }
            (State::Closing(loaded, calls), Input::CallsNotClosed) => {
                self.closed = Some(ClosedCalls { calls, results: Vec::new(), has_failed: true });
                self.decide(loaded);
            }
            (State::Completing(entries), Input::Appended(result)) => {
                match (result, &mut self.taken) {
                    (AppendResult::Appended(_), Some(taken)) => taken.entries.extend(entries),
                    _ => self.taken = None,
                }
                self.load();
            }
            (State::Beginning(loaded, run), Input::Begun(result)) => match result {
                BeginResult::Begun(fence) => {
                    self.begun = Some((run, fence));
                    self.decide(loaded);
                }
                BeginResult::Exists => self.begin(loaded),
                BeginResult::TooManyRuns => {
                    self.refused_runs += 1;
                    match self.refused_runs {
                        // Another turn of the same request may have begun its run.
                        1 => self.state = State::Waiting,
                        _ => self.decide(loaded),
                    }
                }
            },
            (State::Saving(chat, then), Input::Saved(true)) => self.finish(then, Some(chat)),
            (State::Saving(..), Input::Saved(false)) => {
                self.was_named = false;
                self.load();
            }
            (State::Saving(..), Input::SaveUnknown) => self.load(),
            (State::Saving(..), Input::TooManyChats) => {
                self.was_named = false;
                let limit = self.settings.limits.max_user_chats();
                self.give_up(Response::Limit(ChatLimitError::TooManyChats { limit }));
            }
            (State::Revoking(Some(revision)), Input::Revoked) => {
                self.start(Effect::Delete(revision));
                self.state = State::Deleting;
            }
            (State::Revoking(None), Input::Revoked) => self.finish(Then::Stored(None), None),
            // An agent may have requested approvals before it was stopped.
            (State::Deleting, Input::Deleted(true)) => self.revoke(None),
            (State::Deleting, Input::Deleted(false)) => self.load(),
            (State::EndingOld(then, chat), Input::Appended(_)) => {
                self.taken = None;
                self.proceed(then, chat);
            }
            (state, _) => self.state = state,
        }
    }

    /// Leaves the state [`Running`](State::Running).
    fn leave_run(&mut self, cause: EndCause) {
        let State::Running(own) = std::mem::replace(&mut self.state, State::Over) else { return };
        match cause {
            // An approved call can outlive a run that had to end. Its result is saved in the chat.
            EndCause::Ended => self.unsaved.extend(own.results_after_the_log()),
            // This turn only saves the results that it redeems from here on.
            EndCause::Taken => {
                self.unsaved.extend(own.results.iter().cloned());
                self.spawn(Effect::RevokeUnshown(own.ended_message()));
            }
        }
        self.begun = None;
        self.actions.push_back(Action::LeaveRun);
        self.goal = Goal::Settle(AnsweredBy::Decisions(own.live.message_id.clone()));
        if own.leaves_unread { self.load() } else { self.settle_rest() }
    }

    /// Handles that something was redeemed.
    fn redeemed(&mut self, state: State) {
        self.state = state;
        if let State::Over | State::AwaitingResults = self.state {
            self.settle_rest();
        }
    }

    pub(super) fn start(&mut self, effect: Effect) {
        self.actions.push_back(Action::Start(effect));
    }

    pub(super) fn spawn(&mut self, effect: Effect) {
        self.actions.push_back(Action::Spawn(effect));
    }

    pub(super) fn respond(&mut self, response: Response) {
        if !std::mem::replace(&mut self.has_responded, true) {
            self.actions.push_back(Action::Respond(response));
        }
    }

    pub(super) fn load(&mut self) {
        // A call that a new message has closed stays closed.
        self.closed = self.closed.take().filter(|_| matches!(self.goal, Goal::Ask(_)));
        self.start(Effect::Load);
        self.state = State::Loading;
    }

    fn loaded(&mut self, loaded: Option<(Box<Chat>, u64)>) {
        let (owner, import) = (self.settings.owner.clone(), self.settings.history_import);
        let loaded = match (loaded, &self.goal) {
            (Some((chat, revision)), _) => Loaded { chat, revision: Some(revision) },
            // After its response a request does not create the conversation: the user may have
            // deleted it.
            (None, Goal::Ask(request) | Goal::Settle(AnsweredBy::Request(request)))
                if !self.has_responded =>
            {
                let chat = Box::new(Chat::from_client_history(request, owner, import));
                Loaded { chat, revision: None }
            }
            // A deletion that was interrupted may have left approval requests.
            (None, Goal::Delete) => return self.revoke(None),
            // The store does not hold the conversation. The answers are redeemed all the same.
            (None, _) => {
                self.unsaved.clear();
                let chat = Box::new(Chat::new(self.settings.chat_id.clone(), owner));
                self.redeem(&Loaded { chat, revision: None });
                return self.finish(Then::Stored(None), None);
            }
        };
        self.decide(loaded);
    }

    /// Saves the next version of a loaded conversation.
    pub(super) fn save(&mut self, loaded: &Loaded, next: Chat, then: Then) {
        let (chat, revision) = (Box::new(next), loaded.revision);
        let unchanged = revision.map_or(0, |_| chat.messages.shared_prefix(&loaded.chat.messages));
        let is_live = |run: &RunId| chat.live_run().is_some_and(|live| live.run == *run);
        // The end may be that of an earlier attempt, if the chat has changed since.
        let ended = self.taken.as_ref().and_then(|taken| taken.closed.as_ref());
        let ended = ended.filter(|closed| !is_live(&closed.run));
        let ended = ended.map(|closed| closed.message_id.clone());
        let ended = ended.map(|id| EndedMessage { id, requested: Vec::new() });
        let is_begun = revision.is_none();
        self.start(Effect::Save { chat: chat.clone(), unchanged, revision, is_begun, ended });
        self.state = State::Saving(chat, then);
    }

    /// Ends the old log, if this turn has taken one, and then does what follows. `chat` is the saved
    /// conversation.
    pub(super) fn finish(&mut self, then: Then, chat: Option<Box<Chat>>) {
        if matches!(then, Then::Load) {
            return self.load();
        }
        if !matches!(then, Then::Run(_)) {
            self.release_begun();
        }
        match self.taken.as_ref().filter(|taken| taken.is_open) {
            Some(taken) => {
                let entries = taken.end.clone().unwrap_or_else(|| taken.end_of_saved());
                self.append_end(entries, then, chat);
            }
            None => self.proceed(then, chat),
        }
    }

    /// Ends the log of a run that this turn does not need.
    fn release_begun(&mut self) {
        if let Some((run, fence)) = self.begun.take() {
            let entries = Vec::new().into();
            self.spawn(Effect::Append { run, fence, position: 0, entries, end: true });
        }
    }

    fn proceed(&mut self, then: Then, chat: Option<Box<Chat>>) {
        match (then, chat) {
            (Then::Run(live), Some(chat)) => self.begin_run(live, &chat),
            (Then::Run(_) | Then::Load, _) => self.load(),
            (Then::Join(live), chat) => {
                self.respond_join(&live, chat.as_deref());
                self.settle_rest();
            }
            (Then::Stored(message_id), _) => {
                let shown = self.shown.clone();
                self.respond(match message_id {
                    Some(message_id) => Response::Stored { message_id, shown },
                    None => Response::Nothing,
                });
                self.settle_rest();
            }
        }
    }

    fn respond_join(&mut self, live: &LiveRun, chat: Option<&Chat>) {
        let begun = chat.and_then(|chat| chat.message_before_run(live));
        let LiveRun { run, message_id, .. } = live.clone();
        self.respond(Response::Join { run, message_id, begun, shown: self.shown.clone() });
    }

    /// Starts the run that the saved conversation names.
    fn begin_run(&mut self, live: LiveRun, chat: &Chat) {
        self.respond_join(&live, Some(chat));
        let shown = std::mem::take(&mut self.shown);
        self.redeem(&Loaded { chat: Box::new(chat.clone()), revision: None });
        let is_redeeming = self.redemption.is_running();
        let closed = self.closed.take().map(|closed| (closed.results, closed.has_failed));
        let (closed, has_failed) = closed.unwrap_or_default();
        // The message that the client continues is gone. The response is a new message.
        let is_new = chat.message(&live.message_id).is_none();
        let replies = self.replies(chat, &live.message_id);
        let has_reply = shown.iter().any(|shown| replies.has_to_follow(shown));
        let has_to_call = is_redeeming && is_new || has_reply;
        let beginning = Beginning { has_to_call, replies, closed };
        let limits = RunLimits {
            max_bytes: self.settings.limits.max_log_bytes(),
            max_unread: self.settings.limits.max_unread_time(),
            client: self.client(),
        };
        // A page whose message was replaced gets the whole message that is continued now, and so does
        // one that resumes the run of another page.
        let continued = [Some(&live.message_id), live.only_for.as_ref()];
        let posted = self.posted_message().filter(|posted| continued.contains(&Some(&posted.id)));
        let mut own = OwnRun::begin(live, chat, posted, limits, beginning);
        if has_failed {
            own.handle(Input::NotRedeemed, &mut self.actions);
        }
        // The response shows them to the page that sent the answers.
        own.not_recorded.extend(shown.into_iter().map(|shown| shown.result));
        // Calls that run although a new message came with their approval.
        let unsaved = std::mem::take(&mut self.unsaved).into_iter();
        unsaved.filter(|result| chat.lacks(result)).for_each(|result| own.receive(result));
        if !is_redeeming {
            own.start();
        }
        self.state = State::Running(own);
    }

    /// Starts to redeem the answers, if that was not done.
    pub(super) fn redeem(&mut self, loaded: &Loaded) {
        match std::mem::replace(&mut self.redemption, Redemption::NONE) {
            Redemption::NotStarted(plan) => {
                self.start(Effect::Redeem { plan, chat: loaded.chat.clone() });
                self.redemption.start();
            }
            redemption => self.redemption = redemption,
        }
    }

    /// Saves the results that this turn has redeemed and not saved, and waits for the rest.
    fn settle_rest(&mut self) {
        // The ledger has closed calls for a request that changes nothing.
        let closed = self.closed.take().into_iter().flat_map(|closed| closed.results);
        self.unsaved.extend(closed);
        if self.unsaved.is_empty() && !self.redemption.is_running() {
            if !self.has_responded {
                return self.load();
            }
            self.release_begun();
            return self.state = State::Over;
        }
        if !matches!(self.goal, Goal::Settle(_)) {
            self.goal = Goal::Settle(AnsweredBy::Decisions(self.settings.message_id.clone()));
        }
        match self.unsaved.is_empty() {
            true => self.state = State::AwaitingResults,
            false => self.load(),
        }
    }

    /// Ends the turn. The lease of a run that it has taken passes, and another turn takes that run.
    fn give_up(&mut self, response: Response) {
        self.redemption = Redemption::NONE;
        self.unsaved.clear();
        // The conversation may name it, and then its lease passes.
        if !self.was_named {
            self.release_begun();
        }
        self.respond(response);
    }
}
