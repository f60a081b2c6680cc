//! [`ChatTurn`]: the inputs of a turn, and what it does with them.

use std::collections::VecDeque;

use super::io::{Action, Effect, EndedMessage, Input, Request, Response};
use super::running::{Beginning, Next, OwnRun, RunLimits};
use crate::approval::{PendingToolCall, Principal, ResumePlan};
use crate::chat::conversation::{Chat, HistoryImport, LiveRun, PostedHistory, ReceivedResult};
use crate::chat::log::{
    AppendResult, BeginResult, Fence, LogEntry, RunState, TakeCondition, TakeRefusal, TakeResult,
};
use crate::chat::run_log::{LogClient, LogWriter};
use crate::chunk::Version;
use crate::id::{ApprovalId, ChatId, MessageId, RunId};
use crate::limits::ChatLimits;
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
    /// The version of the client that sent the request.
    pub(crate) version: Version,
    /// Whether that client can answer approval requests.
    pub(crate) has_approvals: bool,
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
    /// The conversation has changed since it was loaded.
    pub(super) has_changed: bool,
    /// For a third of a lease the store has refused to begin a run.
    pub(super) was_refused: bool,
    /// The old run, taken by this turn.
    pub(super) held: Option<Held>,
    /// A fence of a run that is newer than the one in the chat.
    pub(super) newer_fence: Option<(RunId, Fence)>,
    /// What the ledger returned for the open calls of the conversation.
    pub(super) closed: Option<ClosedCalls>,
    pub(super) redemption: Redemption,
    /// The approval requests that the request answers.
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
    Ask(Box<ChatRequest>),
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
    Request(Box<ChatRequest>),
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
pub(super) struct Held {
    pub(super) run: RunId,
    pub(super) fence: Fence,
    pub(super) entries: Vec<LogEntry>,
    /// Whether the log accepts appends of this turn. It does not if it has ended or was removed.
    pub(super) is_open: bool,
    /// The entries with which the log ends, once the message is kept.
    pub(super) end: Option<Vec<LogEntry>>,
    /// The message of the run.
    pub(super) message_id: Option<MessageId>,
}

impl Held {
    pub(super) fn append(&self, entries: Vec<LogEntry>, end: bool) -> Effect {
        let (run, fence) = (self.run.clone(), self.fence);
        Effect::Append { run, fence, position: self.length(), entries: entries.into(), end }
    }

    /// Returns the end of a log whose message was saved by another turn.
    pub(super) fn plain_end(&self) -> Vec<LogEntry> {
        LogWriter::plain_end(&self.run, self.length())
    }

    pub(super) fn length(&self) -> u64 {
        self.entries.len().try_into().unwrap_or(u64::MAX)
    }
}

/// The version of the conversation with which the turn works.
#[derive(Debug, Clone)]
pub(super) struct Loaded {
    pub(super) chat: Box<Chat>,
    pub(super) revision: Option<u64>,
}

#[derive(Debug)]
pub(super) enum State {
    Loading,
    /// Finds out whether the lease of the live run has passed, before this turn reads the run.
    Probing(LiveRun, Box<Chat>),
    Taking(RunId, Fence, TakeCondition),
    /// Reads the log of the run that this turn has taken.
    Reading,
    /// Another turn has taken the run first.
    TakenElsewhere(RunId),
    /// The ledger closes the open calls.
    Closing(Loaded, Vec<PendingToolCall>),
    /// Appends to the old log the results that it lacks.
    Completing(Vec<LogEntry>),
    Beginning(Loaded, RunId),
    /// The user has too many live runs. Perhaps another turn answers the same request.
    Crowded,
    Saving(Box<Chat>, Then),
    /// Appends the end of the old log.
    EndingOld(Vec<LogEntry>, Then, Option<Box<Chat>>),
    /// The open approval requests are revoked. Then the conversation with this revision is deleted.
    Revoking(Option<u64>),
    Deleting,
    /// Waits for the results of the answered calls.
    AwaitingResults,
    /// Reads the log of an ended run, to find out whether the store still holds it.
    Finding(RunId),
    Running(Box<OwnRun>),
    Following(RunId),
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
        let (mut redemption, mut after) = (Redemption::NONE, None);
        let goal = match request {
            Request::Post(request) => match request.continued_message() {
                Some(continued) => {
                    let plan = ResumePlan::new(request.messages(), Some(continued));
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
            Request::Follow { after: run } => {
                after = run;
                Goal::Follow
            }
        };
        let answered = match &redemption {
            Redemption::NotStarted(plan) => {
                plan.unverified_responses().map(|answer| answer.approval_id.clone()).collect()
            }
            Redemption::Started(_) => Vec::new(),
        };
        let mut turn = ChatTurn {
            settings,
            goal,
            state: State::Over,
            actions: VecDeque::new(),
            begun_runs: 0,
            begun: None,
            was_named: false,
            has_changed: false,
            was_refused: false,
            held: None,
            newer_fence: None,
            closed: None,
            redemption,
            answered,
            unsaved: Vec::new(),
            shown: Vec::new(),
            has_responded: false,
        };
        match after {
            Some(run) => turn.find(run),
            None => turn.load(),
        }
        turn
    }

    /// Returns the next action. After [`Action::End`] it returns the same action again.
    pub(crate) fn poll(&mut self) -> Action {
        if self.actions.is_empty()
            && let State::Running(own) = &mut self.state
        {
            own.advance(&mut self.actions);
        }
        let idle = if matches!(self.state, State::Over) { Action::End } else { Action::Wait };
        self.actions.pop_front().unwrap_or(idle)
    }

    /// Returns the run whose state [`Input::Tick`] reports.
    pub(crate) fn watched_run(&self) -> Option<&RunId> {
        match &self.state {
            State::Following(run) | State::TakenElsewhere(run) => Some(run),
            State::Running(own) => Some(&own.live().run),
            _ => None,
        }
    }

    /// Returns whether the agent may request approvals.
    pub(crate) fn has_approvals(&self) -> bool {
        self.settings.has_approvals
    }

    pub(super) fn client(&self) -> LogClient {
        LogClient { version: self.settings.version, has_approvals: self.settings.has_approvals }
    }

    /// Returns the run for whose next change this turn waits.
    pub(crate) fn awaited_run(&self) -> Option<&RunId> {
        match &self.state {
            State::TakenElsewhere(run) => Some(run),
            _ => None,
        }
    }

    /// Returns whether the driver may poll the stream of the agent: not while too much of what the
    /// agent has emitted is not in the log.
    pub(crate) fn accepts_events(&self) -> bool {
        matches!(&self.state, State::Running(own) if own.accepts_events())
    }

    /// Handles an input. A late reply to an effect of an earlier state is ignored.
    pub(crate) fn handle(&mut self, input: Input) {
        self.has_changed |= matches!(input, Input::ChatChanged);
        if matches!(input, Input::Redeemed | Input::NotRedeemed) {
            self.redemption.end();
        }
        match (std::mem::replace(&mut self.state, State::Over), input) {
            (State::Running(own), Input::Redeemed) if self.redemption.is_running() => {
                self.state = State::Running(own);
            }
            (State::Running(mut own), input) => {
                let next = own.handle(input, &mut self.actions);
                self.run_on(own, next);
            }
            (State::Over, Input::Failed) => {}
            (state, Input::Failed) => self.fail(state),
            (state, Input::CallSettled(result)) => {
                self.shown.push((*result).clone());
                self.unsaved.push(*result);
                match state {
                    State::Over | State::Following(_) | State::AwaitingResults => {
                        self.settle_rest();
                    }
                    state => self.state = state,
                }
            }
            (State::Following(_) | State::AwaitingResults, Input::Redeemed) => self.settle_rest(),
            (state, Input::NotRedeemed) => {
                self.respond(Response::Failed);
                match state {
                    State::Following(_) | State::AwaitingResults => self.settle_rest(),
                    state => self.state = state,
                }
            }
            (State::Loading, Input::Loaded(loaded)) => self.loaded(loaded),
            (State::Probing(live, chat), Input::Taken(taken)) => self.probed(live, chat, taken),
            (State::Closing(loaded, calls), Input::CallsClosed(results)) => {
                self.closed = Some(ClosedCalls { calls, results, has_failed: false });
                self.decide(loaded);
            }
            (State::Closing(loaded, calls), Input::CallsNotClosed) => {
                let results = Vec::new();
                self.closed = Some(ClosedCalls { calls, results, has_failed: true });
                self.decide(loaded);
            }
            (State::Taking(run, fence, condition), Input::Taken(taken)) => {
                self.taken(run, fence, condition, taken);
            }
            (State::Reading, Input::Log(entries)) => {
                if let Some(held) = &mut self.held {
                    held.is_open &= entries.is_some();
                    held.entries = entries.unwrap_or_default();
                }
                self.load();
            }
            (State::Finding(run), Input::Log(entries)) => match entries {
                Some(_) => {
                    self.respond(Response::Rest(run.clone()));
                    self.state = State::Following(run);
                }
                None => self.respond(Response::Nothing),
            },
            (State::TakenElsewhere(run), Input::Tick(state)) => match state {
                Some((RunState::Leased, _)) => self.state = State::TakenElsewhere(run),
                Some((RunState::LeasePassed, fence)) => {
                    self.newer_fence = Some((run, fence));
                    self.load();
                }
                Some((RunState::Ended, _)) | None => self.load(),
            },
            (State::Following(run), Input::Tick(state)) => match state {
                Some((RunState::Leased, _)) => self.state = State::Following(run),
                Some((RunState::LeasePassed, fence)) => {
                    self.goal = Goal::Mend(run.clone());
                    self.begun = None;
                    self.take(run, fence, TakeCondition::LeasePassed);
                }
                Some((RunState::Ended, _)) | None => self.settle_rest(),
            },
            (State::Completing(entries), Input::Appended(appended)) => match appended {
                None => self.complete_old(entries),
                Some(AppendResult::Appended(_)) => {
                    self.held.iter_mut().for_each(|held| held.entries.extend(entries.clone()));
                    self.load();
                }
                Some(AppendResult::Refused(_)) => {
                    self.held = None;
                    self.load();
                }
            },
            (State::Beginning(loaded, run), Input::Begun(begun)) => match begun {
                None => self.begin(loaded, run),
                Some(BeginResult::Begun(fence)) => {
                    self.begun = Some((run, fence));
                    self.decide(loaded);
                }
                Some(BeginResult::Exists) => self.begin_new(loaded),
                Some(BeginResult::TooManyRuns) if self.has_changed => self.load(),
                Some(BeginResult::TooManyRuns) if !self.was_refused => {
                    self.state = State::Crowded;
                }
                Some(BeginResult::TooManyRuns) => {
                    self.respond(Response::TooManyRuns);
                    self.finish(Then::Stored(None), None);
                }
            },
            (State::Crowded, Input::ChatChanged) => self.load(),
            (State::Crowded, Input::Tick(_)) => {
                self.was_refused = true;
                self.load();
            }
            (State::Saving(chat, then), Input::Saved(true)) => self.finish(then, Some(chat)),
            (State::Saving(..), Input::Saved(false)) => {
                self.was_named = false;
                self.load();
            }
            (State::Saving(..), Input::SaveUnknown) => self.load(),
            (State::Revoking(Some(revision)), Input::Revoked) => {
                self.start(Effect::Delete(revision));
                self.state = State::Deleting;
            }
            (State::Revoking(None), Input::Revoked) => self.finish(Then::Stored(None), None),
            // The agent may have requested approvals before it was stopped.
            (State::Deleting, Input::Deleted(true)) => self.revoke(None),
            (State::Deleting, Input::Deleted(false)) => self.load(),
            (State::EndingOld(entries, then, chat), Input::Appended(None)) => {
                self.append_end(entries, then, chat);
            }
            (State::EndingOld(_, then, chat), Input::Appended(Some(_))) => {
                self.held = None;
                self.proceed(then, chat);
            }
            (state, _) => self.state = state,
        }
    }

    pub(super) fn start(&mut self, effect: Effect) {
        self.actions.push_back(Action::Start(effect));
    }

    pub(super) fn respond(&mut self, response: Response) {
        if !std::mem::replace(&mut self.has_responded, true) {
            self.actions.push_back(Action::Respond(response));
        }
    }

    pub(super) fn load(&mut self) {
        // A call that a new message has closed stays closed.
        self.closed = self.closed.take().filter(|_| matches!(self.goal, Goal::Ask(_)));
        self.has_changed = false;
        self.start(Effect::Load);
        self.state = State::Loading;
    }

    pub(super) fn find(&mut self, run: RunId) {
        self.start(Effect::Find(run.clone()));
        self.state = State::Finding(run);
    }

    pub(super) fn loaded(&mut self, loaded: Option<(Box<Chat>, u64)>) {
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
            (None, _) => return self.settle_without_chat(),
        };
        self.decide(loaded);
    }

    /// The store does not hold the conversation. The answers are redeemed all the same.
    fn settle_without_chat(&mut self) {
        self.respond(Response::Nothing);
        self.unsaved.clear();
        if let Redemption::NotStarted(_) = self.redemption {
            let chat =
                Box::new(Chat::new(self.settings.chat_id.clone(), self.settings.owner.clone()));
            self.redeem(&Loaded { chat, revision: None });
        }
        self.finish(Then::Stored(None), None);
    }

    /// Reads the live run, unless its lease has passed. Then this turn takes it.
    pub(super) fn join(&mut self, live: LiveRun, chat: Box<Chat>) {
        let (run, fence, condition) = (live.run.clone(), live.fence, TakeCondition::LeasePassed);
        self.start(Effect::Take { run, fence, condition });
        self.state = State::Probing(live, chat);
    }

    fn probed(&mut self, live: LiveRun, chat: Box<Chat>, taken: Option<TakeResult>) {
        match taken {
            None => self.join(live, chat),
            // The run is live, or another turn has taken it, and its log will end.
            Some(TakeResult::Refused(TakeRefusal::LeaseRenewed | TakeRefusal::OtherFence(_))) => {
                self.finish(Then::Join(live), Some(chat));
            }
            taken => {
                if let Goal::Follow = self.goal {
                    self.goal = Goal::Mend(live.run.clone());
                }
                self.taken(live.run, live.fence, TakeCondition::LeasePassed, taken);
            }
        }
    }

    pub(super) fn begin(&mut self, loaded: Loaded, run: RunId) {
        self.start(Effect::Begin(run.clone()));
        self.state = State::Beginning(loaded, run);
    }

    pub(super) fn take(&mut self, run: RunId, fence: Fence, condition: TakeCondition) {
        self.start(Effect::Take { run: run.clone(), fence, condition });
        self.state = State::Taking(run, fence, condition);
    }

    pub(super) fn taken(
        &mut self,
        run: RunId,
        fence: Fence,
        condition: TakeCondition,
        taken: Option<TakeResult>,
    ) {
        let is_mending = matches!(self.goal, Goal::Mend(_));
        let (fence, is_open) = match taken {
            None => return self.take(run, fence, condition),
            Some(TakeResult::Taken(fence)) => (fence, true),
            // The chat may still name a run whose log has ended or was removed, for example if the
            // store of runs has lost it.
            Some(TakeResult::Refused(TakeRefusal::Ended | TakeRefusal::NotFound)) => (fence, false),
            Some(TakeResult::Refused(_)) if is_mending => {
                self.state = State::Following(run);
                return;
            }
            Some(TakeResult::Refused(_)) => {
                self.state = State::TakenElsewhere(run);
                return;
            }
        };
        self.start(Effect::Read(run.clone()));
        let (entries, end, message_id) = (Vec::new(), None, None);
        self.held = Some(Held { run, fence, entries, is_open, end, message_id });
        self.state = State::Reading;
    }

    pub(super) fn complete_old(&mut self, entries: Vec<LogEntry>) {
        let Some(held) = &self.held else { return self.load() };
        let append = held.append(entries.clone(), false);
        self.start(append);
        self.state = State::Completing(entries);
    }

    /// Saves the next version of a loaded conversation.
    pub(super) fn save(&mut self, loaded: &Loaded, next: Chat, then: Then) {
        let (chat, revision) = (Box::new(next), loaded.revision);
        let unchanged = revision.map_or(0, |_| chat.messages.shared_prefix(&loaded.chat.messages));
        let ended = self.held.as_ref().filter(|held| held.end.is_some());
        let ended = ended.and_then(|held| held.message_id.clone());
        let ended = ended.map(|id| EndedMessage { id, requested: Vec::new() });
        self.start(Effect::Save { chat: chat.clone(), unchanged, revision, ended });
        self.state = State::Saving(chat, then);
    }

    /// Ends the old log, if this turn holds one, and then does what follows. `chat` is the saved
    /// conversation.
    pub(super) fn finish(&mut self, then: Then, chat: Option<Box<Chat>>) {
        if matches!(then, Then::Load) {
            return self.load();
        }
        if !matches!(then, Then::Run(_))
            && let Some((run, fence)) = self.begun.take()
        {
            self.start(Effect::Release { run, fence });
        }
        match self.held.as_ref().filter(|held| held.is_open) {
            Some(held) => {
                let entries = held.end.clone().unwrap_or_else(|| held.plain_end());
                self.append_end(entries, then, chat);
            }
            None => self.proceed(then, chat),
        }
    }

    pub(super) fn append_end(
        &mut self,
        entries: Vec<LogEntry>,
        then: Then,
        chat: Option<Box<Chat>>,
    ) {
        let Some(held) = &self.held else { return self.proceed(then, chat) };
        let append = held.append(entries.clone(), true);
        self.start(append);
        self.state = State::EndingOld(entries, then, chat);
    }

    pub(super) fn proceed(&mut self, then: Then, chat: Option<Box<Chat>>) {
        match (then, chat) {
            (Then::Run(live), Some(chat)) => self.begin_run(live, &chat),
            (Then::Run(_) | Then::Load, _) => self.load(),
            (Then::Join(live), chat) => {
                self.respond_join(&live, chat.as_deref());
                self.state = State::Following(live.run);
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
        let begun = chat.and_then(|chat| chat.messages.shared_by_id(&live.message_id));
        let LiveRun { run, message_id, .. } = live.clone();
        let shown = self.shown.clone();
        self.respond(Response::Join { run, message_id, begun, shown });
    }

    /// Starts the run that the saved conversation names.
    pub(super) fn begin_run(&mut self, live: LiveRun, chat: &Chat) {
        self.respond_join(&live, Some(chat));
        let shown = std::mem::take(&mut self.shown);
        if let Redemption::NotStarted(_) = self.redemption {
            self.redeem(&Loaded { chat: Box::new(chat.clone()), revision: None });
        }
        let is_redeeming = self.redemption.is_running();
        let closed = self.closed.take();
        let has_failed = closed.as_ref().is_some_and(|closed| closed.has_failed);
        let closed = closed.into_iter().flat_map(|closed| closed.results);
        let (recorded, not_recorded): (Vec<_>, Vec<_>) =
            closed.partition(|closed| chat.is_known(&closed.result));
        let not_recorded = not_recorded.into_iter().map(|closed| closed.result).collect();
        // The message that the client continues is gone. The response is a new message.
        let is_new = chat.message(&live.message_id).is_none();
        let replies = self.replies(chat, &live.message_id);
        let has_reply = shown.iter().any(|shown| replies.has_to_follow(shown));
        let has_to_call = is_redeeming && is_new || has_reply;
        let beginning = Beginning { is_redeeming, has_to_call, replies, not_recorded, recorded };
        let limits = RunLimits {
            max_bytes: self.settings.limits.max_log_bytes(),
            max_unread: self.settings.limits.max_unread_time(),
            client: self.client(),
        };
        let held = match &self.goal {
            Goal::Settle(AnsweredBy::Request(request)) => request.unsanitized_continued_message(),
            _ => None,
        };
        let mut own = OwnRun::begin(live, chat, held, limits, beginning);
        if has_failed {
            own.handle(Input::NotRedeemed, &mut self.actions);
        }
        // The response shows them to the page that sent the answers.
        own.add_not_recorded(shown.into_iter().map(|shown| shown.result));
        own.start();
        self.state = State::Running(own);
    }

    pub(super) fn run_on(&mut self, own: Box<OwnRun>, next: Next) {
        match next {
            Next::Run => self.state = State::Running(own),
            Next::Ended => {
                self.redemption = Redemption::NONE;
                self.begun = None;
                self.state = State::Over;
                if own.leaves_unread() {
                    self.goal = Goal::Settle(AnsweredBy::Decisions(own.live().message_id.clone()));
                    self.load();
                }
            }
            // The run was taken: the agent stops, and this turn only reads from here on.
            Next::Taken => {
                self.unsaved.extend(own.results().iter().cloned());
                self.begun = None;
                self.start_following(own.live().run.clone());
                self.start(Effect::RevokeUnshown(own.ended_message()));
            }
        }
    }

    pub(super) fn start_following(&mut self, run: RunId) {
        self.actions.push_back(Action::StopAgent);
        match self.unsaved.is_empty() {
            true => self.state = State::Following(run),
            false => self.settle_rest(),
        }
    }

    pub(super) fn redeem(&mut self, loaded: &Loaded) {
        let redemption = std::mem::replace(&mut self.redemption, Redemption::NONE);
        match redemption {
            Redemption::NotStarted(plan) => {
                self.start(Effect::Redeem { plan, chat: loaded.chat.clone() });
                self.redemption.start();
            }
            redemption => self.redemption = redemption,
        }
    }

    /// Saves the results that this turn has redeemed and not saved, and waits for the rest.
    pub(super) fn settle_rest(&mut self) {
        if self.unsaved.is_empty() && !self.redemption.is_running() {
            match self.has_responded {
                true => self.state = State::Over,
                false => self.load(),
            }
            return;
        }
        if !matches!(self.goal, Goal::Settle(_)) {
            self.goal = Goal::Settle(AnsweredBy::Decisions(self.settings.message_id.clone()));
        }
        match self.unsaved.is_empty() {
            true => self.state = State::AwaitingResults,
            false => self.load(),
        }
    }

    pub(super) fn fail(&mut self, state: State) {
        if let State::Following(run) = state {
            // The log is still read. Another turn stores its message.
            self.state = State::Following(run);
            return;
        }
        self.redemption = Redemption::NONE;
        self.unsaved.clear();
        self.respond(Response::Failed);
    }
}
