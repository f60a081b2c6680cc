//! [`Driver`]: performs the effects of a turn, and waits for their results, for events of the agent,
//! and for hints. It makes no decision about the protocol.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::oneshot;
use tokio::task::consume_budget;
use tokio::time::{Instant, sleep};
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::effects::{Effects, Outcome, fresh_id};
use super::machine::{
    Action, AgentCall, ChatTurn, Effect, Input, Request, Response, RunLimit, TurnSettings,
};
use crate::approval::{DeferredToolResults, Principal};
use crate::chat::agent::Turn;
use crate::chat::agent::events::AgentEvents;
use crate::chat::client::Client;
use crate::chat::conversation::LiveRun;
use crate::chat::error::ChatError;
use crate::chat::hints::ChatHints;
use crate::chat::inner::Inner;
use crate::chat::redeem::Redeemed;
use crate::chat::run_counts::CountedRun;
use crate::chat::run_log::LogClient;
use crate::chat::shutdown::Counted;
use crate::chat::started_turn::{AcceptedResult, StartedTurn};
use crate::chat::store::{ChatStoreError, SaveResult, VersionedChat};
use crate::id::{ChatId, MessageId, RunId};
use crate::request::ChatRequest;
use crate::retry::{MAX_FAILURES, MAX_FAILURES_BEFORE_RESPONSE, RETRY_INTERVAL, Retries};

/// A turn with everything that it waits for.
pub(in crate::chat) struct Driver {
    turn: ChatTurn,
    effects: Effects,
    posted: Option<Arc<ChatRequest>>,
    running: FuturesUnordered<BoxFuture<'static, Outcome>>,
    agent: Option<AgentEvents>,
    hints: ChatHints,
    response: Option<oneshot::Sender<TurnResult>>,
    accepted: Option<oneshot::Sender<AcceptedResult>>,
    /// The results of the last redemption, for the agent.
    deferred: DeferredToolResults,
    failure: Option<ChatError>,
    /// The saves that have failed since the last one that had a reply, shortly after each other.
    failed_saves: Retries,
    conflicts: u32,
    /// The run that this turn has begun last, until the turn leaves it.
    run: Option<CountedRun>,
    /// The server waits for this turn when it is shut down. If its time is up, this is `None`, and the
    /// turn stops.
    counted: Option<Counted>,
}

/// A request to a conversation, with its user.
pub(in crate::chat) struct TurnRequest {
    /// Who sends the request, and decides on approvals.
    pub(in crate::chat) principal: Principal,
    /// The owner of the conversation.
    pub(in crate::chat) owner: Principal,
    pub(in crate::chat) chat_id: ChatId,
    /// The client for which a run of this turn is written.
    pub(in crate::chat) client: Client,
    pub(in crate::chat) request: Request,
}

type TurnResult = Result<Response, ChatError>;

impl Driver {
    /// Starts a turn on a task of its own. A server that is shutting down starts only turns that begin
    /// no run.
    pub(in crate::chat) fn start(
        chats: &Arc<Inner>,
        request: TurnRequest,
    ) -> Result<StartedTurn<Response>, ChatError> {
        let TurnRequest { principal, owner, chat_id, client, request } = request;
        let may_begin_run = !matches!(request, Request::Stop | Request::Delete);
        let counted = chats.shutdown.count_turn(may_begin_run).ok_or(ChatError::ShuttingDown)?;
        let (respond, response) = oneshot::channel();
        let (accept, accepted) = oneshot::channel();
        let posted = match &request {
            Request::Post(request) => Some(Arc::clone(request)),
            _ => None,
        };
        let settings = TurnSettings {
            owner: owner.clone(),
            chat_id: chat_id.clone(),
            posted_history: chats.posted_history,
            limits: chats.limits.clone(),
            history_import: chats.history_import,
            client: LogClient {
                version: client.version(),
                has_approvals: client.answers_approvals(),
            },
            message_id: MessageId::new(format!("msg_{}", fresh_id().simple())),
            run_id: RunId::new(format!("run_{}", fresh_id().simple())),
        };
        let mut driver = Driver {
            turn: ChatTurn::new(request, settings),
            hints: chats.hints.subscribe(&owner, &chat_id),
            effects: Effects::new(chats, principal, owner, chat_id),
            posted,
            running: FuturesUnordered::new(),
            agent: None,
            response: Some(respond),
            accepted: Some(accept),
            deferred: DeferredToolResults::default(),
            failure: None,
            failed_saves: Retries::default(),
            conflicts: 0,
            run: None,
            counted: Some(counted),
        };
        driver.running.push(driver.hint());
        driver.running.push(driver.tick());
        driver.running.push(chats.shutdown.closed().map(|()| Outcome::ServerClosed).boxed());
        let span = tracing::info_span!("chat_turn", run_id = Empty, fence = Empty);
        let task = tokio::spawn(poll_fn(move |cx| driver.poll(cx)).instrument(span));
        Ok(StartedTurn::new(response, accepted, task))
    }

    /// Performs the actions of the turn until it has to wait, or has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Whether the agent has no event: it is not polled again before the task is.
        let mut is_agent_pending = false;
        while self.counted.is_some() {
            match self.turn.poll() {
                Action::Start(Effect::CallAgent(call)) => {
                    self.call_agent(*call);
                    is_agent_pending = false;
                }
                Action::Start(effect) => {
                    let mut effect = self.effects.start(effect, self.max_failures());
                    // A store in memory answers at once.
                    match (&mut effect).now_or_never() {
                        Some(outcome) => self.settle(outcome),
                        None => self.running.push(effect),
                    }
                }
                Action::Spawn(effect) => self.effects.spawn(effect, MAX_FAILURES),
                Action::Respond(response) => self.respond(response),
                Action::StopAgent => self.agent = None,
                Action::LeaveRun => self.run = None,
                Action::Report(cause) => tracing::warn!(%cause, "dropped an agent event"),
                Action::ReportLimit(run, limit) => self.report_limit(&run, limit),
                Action::Wait => {
                    // Other tasks get their turn also if the agent always has an event.
                    ready!(std::pin::pin!(consume_budget()).poll(cx));
                    match self.running.poll_next_unpin(cx) {
                        Poll::Ready(Some(outcome)) => self.settle(outcome),
                        _ if is_agent_pending => return Poll::Pending,
                        _ if self.pass_events(&mut is_agent_pending, cx) => {}
                        _ => return Poll::Pending,
                    }
                }
                Action::End => break,
            }
        }
        Poll::Ready(())
    }

    /// Logs why the run ends.
    fn report_limit(&self, run_id: &RunId, limit: RunLimit) {
        let limits = &self.effects.chats().limits;
        let (limit, value) = match limit {
            RunLimit::LogBytes => ("max_log_bytes", limits.max_log_bytes().to_string()),
            RunLimit::UnreadTime => ("max_unread_time", format!("{:?}", limits.max_unread_time())),
            RunLimit::UserRuns => ("max_user_runs", limits.max_user_runs().to_string()),
        };
        tracing::warn!(run_id = run_id.as_str(), limit, %value, "a run ends because of a limit");
    }

    /// Waits until another turn has changed the conversation.
    fn hint(&self) -> BoxFuture<'static, Outcome> {
        self.hints.changed().map(|()| Outcome::Input(Input::ChatChanged)).boxed()
    }

    /// Waits for a third of a lease.
    fn tick(&self) -> BoxFuture<'static, Outcome> {
        sleep(self.effects.chats().run_lease / 3).map(|()| Outcome::Input(Input::Tick)).boxed()
    }

    /// Returns how often an operation may fail in a row.
    fn max_failures(&self) -> u32 {
        if self.response.is_some() { MAX_FAILURES_BEFORE_RESPONSE } else { MAX_FAILURES }
    }

    fn fail(&mut self, failure: ChatError) {
        tracing::error!(error = %failure, "a turn has failed");
        self.failure = Some(failure);
        self.turn.handle(Input::Failed);
    }

    fn settle(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Loaded(stored) => {
                self.effects.set_known(stored.as_deref().cloned());
                let loaded = stored.map(|stored| (Box::new(stored.chat), stored.revision));
                self.pass(Input::Loaded(loaded));
            }
            Outcome::Saved(chat, result) => {
                if let SaveResult::Saved(revision) = result {
                    self.effects.set_known(Some(VersionedChat { chat: *chat, revision }));
                }
                self.pass(match result {
                    SaveResult::Saved(_) => Input::Saved(true),
                    SaveResult::Conflict => Input::Saved(false),
                    SaveResult::TooManyChats => Input::TooManyChats,
                });
            }
            Outcome::Input(input) => self.pass(input),
            Outcome::ServerClosed => {
                if let Some((counted, run)) = self.counted.take().zip(self.turn.own_run()) {
                    self.effects.hand_over(run, counted);
                }
            }
            Outcome::Failed(failure) => self.fail(failure),
            Outcome::SaveUnknown(failure, begun) => self.save_failed(failure, begun),
            Outcome::NotRedeemed(was_closing, failure) => self.not_redeemed(was_closing, failure),
            Outcome::NotClaimed(failure) => {
                tracing::error!(error = %failure, "approvals for a provider could not be claimed");
                self.turn.handle(Input::NotClaimed);
            }
            Outcome::Redeeming(was_closing, redeemed) => {
                let Redeemed { known, accepted, deferred, executing, calls } = redeemed;
                if let Some(sender) = self.accepted.take() {
                    // The caller may have been dropped.
                    let _ = sender.send(Ok(accepted));
                }
                self.deferred = deferred;
                match was_closing {
                    true => self.turn.handle(Input::CallsClosed(known)),
                    false => known
                        .into_iter()
                        .for_each(|result| self.turn.handle(Input::CallSettled(Box::new(result)))),
                }
                self.turn.handle(Input::CallsExecuting(executing));
                self.running.push(Effects::next_result(calls));
            }
            Outcome::Result(result, calls) => {
                self.turn.handle(Input::CallSettled(result));
                self.running.push(Effects::next_result(calls));
            }
        }
    }

    /// Lets the turn find out, after a pause, whether the conversation was saved.
    fn save_failed(&mut self, failure: ChatError, begun: Instant) {
        let pause = match self.turn.is_keeping_step() {
            true => Some(RETRY_INTERVAL),
            false => self.failed_saves.fail_since(begun, self.max_failures()),
        };
        let Some(pause) = pause else { return self.fail(failure) };
        tracing::warn!(error = %failure, "a chat may not have been saved");
        self.running.push(sleep(pause).map(|()| Outcome::Input(Input::SaveUnknown)).boxed());
    }

    /// Passes the reply to an effect to the turn.
    fn pass(&mut self, input: Input) {
        match input {
            Input::ChatChanged => self.running.push(self.hint()),
            Input::Tick => self.running.push(self.tick()),
            Input::Saved(true) | Input::Deleted(true) => self.hints.notify_others(),
            Input::Begun(begun) => self.run = self.effects.chats().run_counters.count_begun(begun),
            _ => {}
        }
        if let Input::Saved(is_saved) = input {
            self.failed_saves = Retries::default();
            self.conflicts = if is_saved { 0 } else { self.conflicts + 1 };
        }
        if self.conflicts >= MAX_CONFLICTS {
            let error = "the chat changes faster than it can be read";
            return self.fail(ChatStoreError::new(error).into());
        }
        self.turn.handle(input);
    }

    fn not_redeemed(&mut self, was_closing: bool, failure: ChatError) {
        tracing::error!(error = %failure, "the answers of a turn could not be redeemed");
        match self.accepted.take().filter(|_| self.response.is_none()) {
            // The caller may have been dropped.
            Some(sender) => drop(sender.send(Err(failure))),
            None => self.failure = Some(failure),
        }
        if was_closing {
            self.turn.handle(Input::CallsNotClosed);
        }
        self.turn.handle(if was_closing { Input::Redeemed } else { Input::NotRedeemed });
    }

    fn respond(&mut self, response: Response) {
        let Some(sender) = self.response.take() else { return };
        if let Response::TooManyRuns = response {
            let chats = self.effects.chats();
            chats.run_counters.count_refused();
            let value = chats.limits.max_user_runs();
            tracing::warn!(limit = "max_user_runs", value, "a run was refused because of a limit");
        }
        let response = match (response, self.failure.take()) {
            (Response::Failed, Some(failure)) => Err(failure),
            (response, _) => Ok(response),
        };
        // The caller may have been dropped.
        let _ = sender.send(response);
    }

    fn call_agent(&mut self, call: AgentCall) {
        let chats = self.effects.chats();
        if let Some(request) = &self.posted {
            chats.warn_of_kept(&call.chat, request);
        }
        let has_approvals = self.turn.client().has_approvals;
        if let Some(LiveRun { run, fence, .. }) = self.turn.own_run() {
            Span::current().record("run_id", run.as_str()).record("fence", fence.0);
        }
        let (deferred, posted) = (self.deferred.clone(), self.posted.clone());
        let turn = Turn::of_run(call, deferred, posted, &chats.approvals, has_approvals);
        let revoke = (!has_approvals).then(|| self.effects.revoker());
        self.agent = Some(AgentEvents::new(&*chats.agent, turn, revoke));
    }

    /// Passes the events that are ready to the turn, so that they are appended together. Returns
    /// whether there were any.
    fn pass_events(&mut self, is_agent_pending: &mut bool, cx: &mut Context<'_>) -> bool {
        let Driver { turn, agent, .. } = self;
        let mut has_passed = false;
        for _ in 0..EVENTS_AT_ONCE {
            let Some(events) = agent.as_mut().filter(|_| turn.accepts_events()) else { break };
            let polled = events.poll_next_unpin(cx);
            *is_agent_pending = polled.is_pending();
            let Poll::Ready(event) = polled else { break };
            has_passed = true;
            match event {
                Some(event) => turn.handle(Input::Agent(event)),
                None => {
                    *agent = None;
                    turn.handle(Input::AgentEnded);
                }
            }
        }
        has_passed
    }
}

/// How many events of the agent are read at once.
const EVENTS_AT_ONCE: usize = 256;

/// How many saves fail only if the store never accepts one: another writer was faster each time.
const MAX_CONFLICTS: u32 = 1000;
