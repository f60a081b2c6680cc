//! [`Driver`]: performs the effects of a turn, and waits for their results, for events of the agent,
//! and for hints. It makes no decision about the protocol.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::oneshot;
use tokio::task::consume_budget;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::effects::{Effects, Outcome, Stores};
use super::log::decision::{Goal, Response, TurnSettings};
use super::log::entry::Entry;
use super::log::turn::LogTurn;
use super::log::turn_io::{Action, CallAgent, Effect, EffectId, Input, Reply, RunLimit};
use super::tail::TailWriter;
use crate::agent::Turn;
use crate::agent::events::AgentEvents;
use crate::error::ChatError;
use crate::hints::ChatHints;
use crate::inner::Inner;
use crate::log::client::Client;
use crate::metrics::{count_refused_append, count_store_failure};
use crate::redeem::{Redeemed, not_stored};
use crate::run_counts::CountedRun;
use crate::shutdown::Counted;
use crate::started_turn::{AcceptedResult, StartedTurn};
use crate::store::{AppendResult, ChatStoreError, Epoch, LogHead, LogKey, system_time};
use ui_message_stream::approval::{DeferredToolResults, Principal, RunningCalls};
use ui_message_stream::id::{ChatId, MessageId, RunId, log_causes};
use ui_message_stream::request::ChatRequest;
use ui_message_stream::retry::{MAX_FAILURES, MAX_FAILURES_BEFORE_RESPONSE, Retries};

/// A turn with everything that it waits for.
pub(crate) struct Driver {
    turn: LogTurn,
    effects: Effects,
    client: Client,
    posted: Option<Arc<ChatRequest>>,
    running: FuturesUnordered<BoxFuture<'static, Outcome>>,
    agent: Option<AgentEvents>,
    hints: ChatHints,
    /// Wakes the turn when it appends the frames that wait.
    timer: Option<Pin<Box<Sleep>>>,
    /// The number of entries that the turn knows, for [`Driver::watch`].
    known_length: Arc<AtomicU64>,
    response: Option<oneshot::Sender<TurnResult>>,
    accepted: Option<oneshot::Sender<AcceptedResult>>,
    /// The results of the last redemption, for the agent.
    deferred: DeferredToolResults,
    failure: Option<ChatError>,
    /// The writes that have failed since the log had this length.
    failed_writes: (u64, Retries),
    /// The calls that are executed, while the log has to take what they have shown.
    waiting_calls: Option<Box<RunningCalls>>,
    /// The run of this turn, and what its readers are shown.
    run: Option<(CountedRun, TailWriter)>,
    /// The server is shut down.
    is_closing: bool,
    /// The server waits for this turn when it is shut down. `None` after the last append.
    counted: Option<Counted>,
}

/// A request to a chat, with its user.
pub(crate) struct TurnRequest {
    /// Who sends the request, and decides on approvals.
    pub(crate) principal: Principal,
    /// The owner of the chat.
    pub(crate) owner: Principal,
    pub(crate) chat_id: ChatId,
    /// The client for which a run of this turn is written.
    pub(crate) client: Client,
    pub(crate) goal: Goal,
    pub(crate) posted: Option<Arc<ChatRequest>>,
}

impl TurnRequest {
    /// Creates a request of the owner of a chat that nothing was posted with.
    pub(crate) fn of_owner(key: LogKey, client: Client, goal: Goal) -> Self {
        let LogKey { owner, chat: chat_id } = key;
        TurnRequest { principal: owner.clone(), owner, chat_id, client, goal, posted: None }
    }
}

/// A lost run is being ended by this server. Dropped when that is over, also after a panic.
struct Mending(Arc<Mutex<BTreeSet<LogKey>>>, LogKey);

impl Mending {
    /// Returns `None` if it is being ended already.
    fn begin(list: &Arc<Mutex<BTreeSet<LogKey>>>, key: &LogKey) -> Option<Self> {
        let is_new = list.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone());
        is_new.then(|| Mending(Arc::clone(list), key.clone()))
    }
}

impl Drop for Mending {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

type TurnResult = Result<Response, ChatError>;

impl Driver {
    /// Starts a turn on a task of its own. A server that is shutting down starts only turns that begin
    /// no run.
    pub(crate) fn start(
        chats: &Arc<Inner>,
        request: TurnRequest,
    ) -> Result<StartedTurn<Response>, ChatError> {
        let TurnRequest { principal, owner, chat_id, client, goal, posted } = request;
        let may_begin_run = !matches!(goal, Goal::Stop | Goal::Delete);
        let counted = chats.shutdown.count_turn(may_begin_run).ok_or(ChatError::ShuttingDown)?;
        let (respond, response) = oneshot::channel();
        let (accept, accepted) = oneshot::channel();
        let random = fresh_id();
        let settings = TurnSettings {
            owner: owner.clone(),
            chat_id: chat_id.clone(),
            posted_history: chats.posted_history,
            limits: chats.limits.clone(),
            history_import: chats.history_import,
            lease: chats.run_lease,
            append_interval: chats.ticks.interval,
            message_id: MessageId::new(format!("msg_{}", fresh_id().simple())),
            run_id: RunId::new(format!("run_{}", random.simple())),
            epoch: Epoch::of_time(system_time(), random.as_u64_pair().1),
        };
        let key = LogKey { owner, chat: chat_id };
        let hints = chats.hints.subscribe(&key);
        let mut driver = Driver {
            turn: LogTurn::new(goal, settings, client, chats.folds.of(&key)),
            effects: Effects::new(chats, principal, key),
            client,
            hints,
            timer: None,
            known_length: Arc::default(),
            posted,
            running: FuturesUnordered::new(),
            agent: None,
            response: Some(respond),
            accepted: Some(accept),
            deferred: DeferredToolResults::default(),
            failure: None,
            failed_writes: (0, Retries::default()),
            waiting_calls: None,
            run: None,
            is_closing: false,
            counted: Some(counted),
        };
        driver.running.push(driver.hint());
        driver.running.push(driver.tick());
        driver.running.push(chats.shutdown.closed().map(|()| Outcome::ServerClosed).boxed());
        let span = tracing::info_span!("chat_turn", run_id = Empty);
        let task = tokio::spawn(poll_fn(move |cx| driver.poll(cx)).instrument(span));
        Ok(StartedTurn::new(response, accepted, task))
    }

    /// Has a lost run ended or resumed, or what the ledger knows stored, as this goal says. One turn of a server
    /// is enough: while there is one, this waits for a moment and returns `false`.
    ///
    /// # Errors
    /// The turn has failed, which it has logged.
    pub(crate) async fn mend(
        chats: Arc<Inner>,
        key: LogKey,
        client: Client,
        goal: Goal,
    ) -> Result<bool, ChatError> {
        let Some(_mending) = Mending::begin(&chats.mending, &key) else {
            sleep(QUIET).await;
            return Ok(false);
        };
        let request = TurnRequest::of_owner(key, client, goal);
        Self::start(&chats, request)?.response().await.map(|_| true)
    }

    /// Has the live run of this log ended or resumed if it is lost, and does not wait for it.
    pub(crate) fn mend_lost(chats: &Arc<Inner>, key: &LogKey, head: &LogHead) {
        let Some(run) = head.live_run.clone().filter(|_| head.is_lost) else { return };
        let client = chats.clients.any_client();
        // The next one who loads the chat tries again.
        tokio::spawn(Self::mend(Arc::clone(chats), key.clone(), client, Goal::Mend(run)).map(drop));
    }

    /// Stores what the ledger knows about the open calls of this log, and does not wait for it.
    pub(crate) fn settle_calls(chats: &Arc<Inner>, key: LogKey) {
        let client = chats.clients.any_client();
        let goal = Goal::Settle { has_expired: false };
        // The next one who loads the chat tries again.
        tokio::spawn(Self::mend(Arc::clone(chats), key, client, goal).map(drop));
    }

    /// Performs the actions of the turn until it has to wait, or has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Whether the agent has no event: it is not polled again before the task is.
        let mut is_agent_pending = false;
        let ticks = self.effects.stores().chats.ticks;
        let mut now = ticks.now();
        while self.counted.is_some() {
            match self.turn.poll(now) {
                Action::Start(_, Effect::CallAgent(call)) => {
                    self.call_agent(*call);
                    is_agent_pending = false;
                }
                Action::Start(
                    id,
                    effect @ (Effect::RevokeUnshown | Effect::PutSnapshot { .. }),
                ) => {
                    self.spawn(id, effect);
                }
                Action::Start(id, effect) if self.turn.is_over() => {
                    self.append_detached(id, effect)
                }
                Action::Start(id, effect) => {
                    let mut effect = self.start_effect(id, effect);
                    // A store in memory answers at once.
                    match (&mut effect).now_or_never() {
                        Some(outcome) => self.settle(outcome),
                        None => self.running.push(effect),
                    }
                }
                Action::Respond(response) => self.respond(response),
                Action::StopAgent => self.agent = None,
                Action::HoldRun { epoch, position } => {
                    let Stores { chats, key, .. } = self.effects.stores();
                    self.run = Some((
                        chats.run_counters.count_live(),
                        chats.tails.begin(key, epoch, position),
                    ));
                    self.running.push(self.watch());
                    self.running.extend(self.hurry());
                }
                Action::Show { epoch, first, entries } => {
                    if let Some((_, tail)) = &self.run {
                        tail.push(epoch, first, entries);
                    }
                }
                Action::ShowText { epoch, position, frames } => {
                    if let Some((_, tail)) = &self.run {
                        tail.set_ahead(epoch, position, frames);
                    }
                }
                Action::LeaveRun => {
                    self.run = None;
                }
                Action::EndedOther { run, was_lost } => {
                    self.effects.stores().chats.run_counters.count_ended(was_lost);
                    let run_id = run.as_str();
                    if was_lost {
                        tracing::warn!(run_id, "a run has ended whose server was lost")
                    } else {
                        tracing::info!(run_id, "a run has ended for a newer request")
                    }
                    // The turn knows no frames of the run that it has ended.
                    tokio::spawn(self.effects.store_snapshot(MAX_FAILURES));
                }
                Action::ReportLimit(run, limit) => self.report_limit(&run, limit),
                Action::Report(cause) => tracing::warn!(%cause, "dropped an agent event"),
                Action::RefuseLog(error) => {
                    let error = ChatStoreError::new(error);
                    tracing::error!(error = log_causes(&error), "a chat cannot be read");
                    self.failure = Some(error.into());
                }
                // A turn that holds no run ends with its server.
                Action::Wait { .. }
                    if self.is_closing && self.run.is_none() && !self.turn.is_appending() =>
                {
                    break;
                }
                Action::Wait { until } => {
                    // Other tasks get their turn also if the agent always has an event.
                    ready!(std::pin::pin!(consume_budget()).poll(cx));
                    match self.running.poll_next_unpin(cx) {
                        Poll::Ready(Some(outcome)) => self.settle(outcome),
                        _ if !is_agent_pending && self.pass_events(&mut is_agent_pending, cx) => {}
                        _ => match until {
                            Some(until) => ready!(self.poll_timer(ticks.at(until), cx)),
                            None => return Poll::Pending,
                        },
                    }
                    now = ticks.now();
                }
                Action::End => {
                    let Stores { chats, key, .. } = self.effects.stores();
                    chats.folds.set(key, self.turn.take_view());
                    break;
                }
            }
        }
        Poll::Ready(())
    }

    /// Waits until this time.
    fn poll_timer(&mut self, until: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if timer.deadline() != until {
            timer.as_mut().reset(until);
        }
        timer.as_mut().poll(cx)
    }

    /// Starts an effect. Before another turn of this server loses its run, the text is stored that readers were shown.
    fn start_effect(&self, id: EffectId, effect: Effect) -> BoxFuture<'static, Outcome> {
        let Stores { chats, key, .. } = self.effects.stores();
        let ends_other = match &effect {
            Effect::Append(append) if self.run.is_none() && !append.only_lost => {
                append.entries.iter().any(Entry::ends_run)
            }
            _ => false,
        };
        let effect = self.effects.start(id, effect, self.max_failures());
        match ends_other.then(|| chats.tails.of(key)).flatten() {
            // After this time the run is ended without the text.
            Some(tail) => {
                timeout(MAX_FLUSH, async move { tail.flush().await }).then(|_| effect).boxed()
            }
            None => effect,
        }
    }

    /// Logs why the run ends.
    fn report_limit(&self, run_id: &RunId, limit: RunLimit) {
        let limits = &self.effects.stores().chats.limits;
        let (limit, value) = match limit {
            RunLimit::LogBytes => ("max_log_bytes", limits.max_log_bytes().to_string()),
            RunLimit::UnreadTime => ("max_unread_time", format!("{:?}", limits.max_unread_time())),
            RunLimit::UserRuns => ("max_user_runs", limits.max_user_runs().to_string()),
        };
        tracing::warn!(run_id = run_id.as_str(), limit, %value, "a run ends because of a limit");
    }

    /// Waits until another turn of this process has changed the chat.
    fn hint(&self) -> BoxFuture<'static, Outcome> {
        self.hints.changed().map(|()| Outcome::Input(Input::Changed)).boxed()
    }

    /// Waits until another server has appended to the log of a run that is quiet: while it is not, the next
    /// append finds that out.
    fn watch(&self) -> BoxFuture<'static, Outcome> {
        let effects = self.effects.clone();
        let known = Arc::clone(&self.known_length);
        async move {
            let Stores { logs, key, .. } = effects.stores();
            loop {
                let length = known.load(Ordering::Relaxed);
                sleep(QUIET).await;
                if length != known.load(Ordering::Relaxed) {
                    continue;
                }
                logs.changed(key, length).await;
                // Its own appends are followed by their replies.
                sleep(QUIET).await;
                if length == known.load(Ordering::Relaxed) {
                    return Outcome::OtherAppended;
                }
            }
        }
        .boxed()
    }

    /// Waits until another turn of this server is about to end the run.
    fn hurry(&self) -> Option<BoxFuture<'static, Outcome>> {
        let interval = self.effects.stores().chats.ticks.interval;
        let (_, tail) = self.run.as_ref().filter(|_| !interval.is_zero())?;
        Some(tail.hurried().map(|()| Outcome::Input(Input::Hurry)).boxed())
    }

    /// Waits for a third of a lease.
    fn tick(&self) -> BoxFuture<'static, Outcome> {
        let lease = self.effects.stores().chats.run_lease;
        sleep(lease / 3).map(|()| Outcome::Input(Input::Tick)).boxed()
    }

    /// Returns how often an operation may fail in a row.
    fn max_failures(&self) -> u32 {
        if self.response.is_some() { MAX_FAILURES_BEFORE_RESPONSE } else { MAX_FAILURES }
    }

    /// Performs an effect without a reply on a task of its own: the turn may end before it.
    fn spawn(&self, id: EffectId, effect: Effect) {
        // A server that is shut down waits for it, as for a turn.
        let counted = self.effects.stores().chats.shutdown.count_turn(false);
        let effect = self.effects.start(id, effect, MAX_FAILURES);
        let task = async move {
            match effect.await {
                Outcome::Failed(error) | Outcome::Unknown(_, error) => {
                    let error = log_causes(&error);
                    tracing::warn!(error, "a chat is not tidied up after a turn");
                }
                _ => {}
            }
            drop(counted);
        };
        tokio::spawn(task.in_current_span());
    }

    fn fail(&mut self, failure: ChatError) {
        tracing::error!(error = log_causes(&failure), "a turn has failed");
        self.failure = Some(failure);
        self.turn.handle(Input::Failed);
    }

    fn settle(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Input(input) => self.pass(input),
            Outcome::Unknown(id, failure) => {
                count_store_failure("append");
                let length = self.turn.known_length();
                let max_failures = self.max_failures();
                if self.failed_writes.0 != length {
                    // An append without a reply may have been executed.
                    self.failed_writes = (length, Retries::default());
                }
                let Some(pause) = self.failed_writes.1.fail(max_failures) else {
                    return self.fail(failure);
                };
                tracing::warn!(error = log_causes(&failure), "a chat may not have been written");
                let reply = Outcome::Input(Input::Reply(id, Reply::Unknown));
                self.running.push(sleep(pause).map(|()| reply).boxed());
            }
            Outcome::LedgerFailed(id, failure) => {
                tracing::error!(error = log_causes(&failure), "the ledger has failed in a turn");
                self.failure = Some(failure);
                self.turn.handle(Input::Reply(id, Reply::LedgerFailed));
            }
            Outcome::Failed(failure) => self.fail(failure),
            Outcome::AnswersStored(closing, redeemed) => self.redeeming(closing, *redeemed),
            Outcome::Result(result, calls) => {
                self.turn.handle(Input::Settled(result));
                self.running.push(Effects::next_update(calls));
            }
            Outcome::Progress(event, calls) => {
                self.turn.handle(Input::Progress(event));
                self.waiting_calls = Some(calls);
            }
            Outcome::CallsEnded => self.turn.handle(Input::Redeemed(true)),
            Outcome::NotRedeemed(failure) => {
                let error = log_causes(&failure);
                tracing::error!(error, "the answers of a turn could not be redeemed");
                match self.accepted.take().filter(|_| self.response.is_none()) {
                    // The caller may have been dropped.
                    Some(sender) => drop(sender.send(Err(failure))),
                    None => self.failure = Some(failure),
                }
                self.turn.handle(Input::Redeemed(false));
            }
            Outcome::OtherAppended if self.run.is_some() => {
                self.turn.handle(Input::Changed);
                self.running.push(self.watch());
            }
            Outcome::OtherAppended => {}
            Outcome::ServerClosed => self.hand_over(),
        }
        if self.is_closing {
            // The turn may have begun a run since.
            self.turn.handle(Input::HandOver);
        }
        if let Some(calls) = self.waiting_calls.take_if(|_| self.turn.accepts_progress()) {
            self.running.push(Effects::next_update(calls));
        }
        self.known_length.store(self.turn.known_length(), Ordering::Relaxed);
    }

    fn redeeming(&mut self, closing: Option<EffectId>, redeemed: Redeemed) {
        let Redeemed { known, accepted, deferred, asked_again, executing, progress, calls } =
            redeemed;
        let is_incomplete = accepted.is_incomplete;
        if is_incomplete && closing.is_none() && self.response.is_some() {
            self.failure = Some(not_stored().into());
        }
        if let Some(sender) = self.accepted.take() {
            // The caller may have been dropped.
            let _ = sender.send(Ok(accepted));
        }
        self.deferred = deferred;
        match closing {
            // The results of calls that are being executed are found in the ledger later.
            Some(id) => self.turn.handle(Input::Reply(id, Reply::Calls(known))),
            None => {
                for result in known {
                    self.turn.handle(Input::Settled(Box::new(result)));
                }
                self.turn.handle(Input::Accepted { is_incomplete, executing });
                self.turn.handle(Input::AskedAgain(asked_again));
                for event in progress {
                    self.turn.handle(Input::Progress(Box::new(event)));
                }
                self.running.push(Effects::next_update(calls));
            }
        }
    }

    /// Lets another server continue the run of this turn at once. The append that is under way comes first.
    fn hand_over(&mut self) {
        self.is_closing = true;
        self.agent = None;
        self.turn.handle(Input::HandOver);
    }

    /// Performs the last append of a turn on a task of its own, for which the server waits.
    fn append_detached(&mut self, id: EffectId, effect: Effect) {
        let counted = self.counted.take();
        let effects = self.effects.clone();
        let task = async move {
            let mut retries = Retries::default();
            while let Outcome::Unknown(_, error) =
                effects.start(id, effect.clone(), MAX_FAILURES).await
            {
                if let Err(error) = retries.pause(MAX_FAILURES, error, "hand a run over").await {
                    let error = log_causes(&error);
                    tracing::warn!(error, "a run waits until its lease has passed");
                    break;
                }
            }
            drop(counted);
        };
        tokio::spawn(task.in_current_span());
    }

    /// Passes an input to the turn.
    fn pass(&mut self, input: Input) {
        match &input {
            Input::Changed => self.running.push(self.hint()),
            Input::Tick => self.running.push(self.tick()),
            Input::Reply(_, Reply::Appended(result)) => {
                self.failed_writes.1 = Retries::default();
                if let Some(reason) = refusal(result) {
                    count_refused_append(reason);
                }
            }
            _ => {}
        }
        self.turn.handle(input);
        if self.turn.take_has_changed() {
            self.hints.notify_others();
        }
    }

    fn respond(&mut self, response: Response) {
        let Some(sender) = self.response.take() else { return };
        let chats = &self.effects.stores().chats;
        if let Response::TooManyRuns = response {
            chats.run_counters.count_refused();
            let value = chats.limits.max_user_runs();
            tracing::warn!(limit = "max_user_runs", value, "a run was refused because of a limit");
        }
        if let (Response::UnknownCalls(_), Goal::Answer { plan, posted: Some(_), .. }) =
            (&response, &self.turn.goal)
        {
            self.effects.stores().audit_unknown_calls(plan);
        }
        let response = match (response, self.failure.take()) {
            (Response::Failed, Some(failure)) => Err(failure),
            (response, _) => Ok(response),
        };
        // The caller may have been dropped.
        let _ = sender.send(response);
    }

    fn call_agent(&mut self, call: CallAgent) {
        let chats = &self.effects.stores().chats;
        if let Some(request) = &self.posted {
            chats.warn_of_kept(&call.chat, request);
        }
        Span::current().record("run_id", call.run.as_str());
        let deferred = self.deferred.clone();
        let posted = self.posted.clone();
        let has_approvals = self.client.answers_approvals();
        let turn = Turn::of_run(call, deferred, posted, &chats.approvals, has_approvals);
        let revoke = (!has_approvals).then(|| self.effects.revoker());
        self.agent = Some(AgentEvents::new(&chats.agent, turn, revoke));
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

/// Returns why a store has refused an append.
fn refusal(result: &AppendResult) -> Option<&'static str> {
    match result {
        AppendResult::Appended { .. } => None,
        AppendResult::Conflict => Some("conflict"),
        AppendResult::TooManyChats => Some("chats"),
        AppendResult::TooManyRuns => Some("runs"),
    }
}

#[expect(clippy::disallowed_methods, reason = "the glue hands the core its fresh ids")]
fn fresh_id() -> uuid::Uuid {
    uuid::Uuid::new_v4()
}

/// How many events of the agent are read at once.
const EVENTS_AT_ONCE: usize = 64;

/// How long the end of a run waits for the text that readers of this server were shown.
const MAX_FLUSH: Duration = Duration::from_millis(50);

/// A run to which nothing was appended for this time is quiet.
const QUIET: Duration = Duration::from_millis(250);
