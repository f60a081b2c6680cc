//! [`Driver`]: performs the effects of a turn, and waits for their results, for events of the agent,
//! and for hints. It makes no decision about the protocol.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep};
use tracing::Instrument;

use super::Turn;
use super::agent_events::AgentEvents;
use super::effects::{After, Effects, Failure, Outcome, fresh_id};
use super::hints::ChatHints;
use super::machine::{Action, AgentCall, ChatTurn, Effect, Input, Request, Response, TurnSettings};
use crate::approval::{DeferredOutcome, DeferredToolResult, DeferredToolResults, Principal};
use crate::chat::ChatError;
use crate::chat::inner::Inner;
use crate::chat::store::{ChatStoreError, SaveResult, VersionedChat};
use crate::event::AgentEvent;
use crate::id::{ApprovalId, ChatId, MessageId, RunId};
use crate::request::ChatRequest;

/// A turn with everything that it waits for.
pub(in crate::chat) struct Driver {
    turn: ChatTurn,
    effects: Effects,
    posted: Option<Arc<ChatRequest>>,
    running: FuturesUnordered<BoxFuture<'static, Outcome>>,
    agent: Option<AgentEvents>,
    hints: ChatHints,
    tick: Pin<Box<Sleep>>,
    response: Option<oneshot::Sender<Result<Response, ChatError>>>,
    accepted: Option<oneshot::Sender<Accepted>>,
    /// The results of the last redemption, for the agent.
    deferred: DeferredToolResults,
    failure: Option<Failure>,
    /// How many loads, saves, operations on runs and claims have failed since the last one that
    /// succeeded.
    failures: [u32; 4],
    conflicts: u32,
}

/// A request to a conversation, with its user.
pub(in crate::chat) struct TurnRequest {
    /// Who sends the request, and decides on approvals.
    pub(in crate::chat) principal: Principal,
    /// The owner of the conversation.
    pub(in crate::chat) owner: Principal,
    pub(in crate::chat) chat_id: ChatId,
    pub(in crate::chat) request: Request,
}

/// A turn that runs on a task of its own. It continues if this value is dropped.
pub(in crate::chat) struct StartedTurn {
    pub(in crate::chat) response: oneshot::Receiver<Result<Response, ChatError>>,
    /// Of decisions. Closed without a value if they were not redeemed.
    pub(in crate::chat) accepted: oneshot::Receiver<Accepted>,
    pub(in crate::chat) task: JoinHandle<()>,
}

/// The approval requests whose answers the ledger has accepted, or its failure.
type Accepted = Result<Vec<(ApprovalId, bool)>, Failure>;

impl Driver {
    /// Starts a turn on a task of its own.
    pub(in crate::chat) fn start(chats: &Arc<Inner>, request: TurnRequest) -> StartedTurn {
        let TurnRequest { principal, owner, chat_id, request } = request;
        let (respond, response) = oneshot::channel();
        let (accept, accepted) = oneshot::channel();
        let is_waiting = matches!(request, Request::Decisions { .. });
        let posted = match &request {
            Request::Post(request) => Some(Arc::new((**request).clone())),
            _ => None,
        };
        let client = match &posted {
            Some(request) => chats.clients.client_of(request),
            None => chats.clients.any_client(),
        };
        let settings = TurnSettings {
            owner: owner.clone(),
            chat_id: chat_id.clone(),
            posted_history: chats.posted_history,
            limits: chats.limits.clone(),
            history_import: chats.history_import,
            version: client.version(),
            has_approvals: client.answers_approvals(),
            message_id: MessageId::new(format!("msg_{}", fresh_id().simple())),
            run_id: RunId::new(format!("run_{}", fresh_id().simple())),
        };
        let driver = Driver {
            turn: ChatTurn::new(request, settings),
            hints: chats.hints.subscribe(&owner, &chat_id),
            effects: Effects::new(chats, principal, owner, chat_id),
            posted,
            running: FuturesUnordered::new(),
            agent: None,
            tick: Box::pin(sleep(chats.run_lease / 3)),
            response: Some(respond),
            accepted: is_waiting.then_some(accept),
            deferred: DeferredToolResults::default(),
            failure: None,
            failures: [0; 4],
            conflicts: 0,
        };
        let task = tokio::spawn(driver.run().in_current_span());
        StartedTurn { response, accepted, task }
    }

    async fn run(mut self) {
        loop {
            match self.turn.poll() {
                Action::Start(Effect::CallAgent(call)) => self.call_agent(*call),
                // The turn may end before it.
                Action::Start(Effect::Release { run, fence }) => {
                    tokio::spawn(self.effects.release(run, fence));
                }
                Action::Start(Effect::RevokeUnshown(ended)) => {
                    tokio::spawn(self.effects.revoke_unshown(ended));
                }
                Action::Start(effect) => self.running.push(self.effects.start(effect)),
                Action::Respond(response) => self.respond(response),
                Action::StopAgent => self.agent = None,
                Action::Report(cause) => tracing::warn!(%cause, "dropped an agent event"),
                Action::Wait => self.wait().await,
                Action::End => return,
            }
        }
    }

    /// Waits for one input, and passes it to the turn.
    async fn wait(&mut self) {
        let Driver { turn, effects, running, agent, hints, tick, .. } = self;
        let urgent = turn.awaited_run().map(|run| effects.changed(run));
        let urgent = async {
            match urgent {
                Some(changed) => changed.await,
                None => std::future::pending().await,
            }
        };
        let accepts_events = turn.accepts_events();
        let event = async {
            match agent.as_mut().filter(|_| accepts_events) {
                Some(agent) => agent.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(outcome) = running.next() => self.settle(outcome),
            () = hints.changed() => turn.handle(Input::ChatChanged),
            () = tick.as_mut() => self.look(),
            () = urgent => self.look(),
            event = event => self.hear(event),
        }
    }

    /// Passes an event to the turn, and those that are ready as well, so that they are appended
    /// together.
    fn hear(&mut self, first: Option<AgentEvent>) {
        let (mut event, mut left) = (first, EVENTS_AT_ONCE);
        loop {
            let has_ended = event.is_none();
            self.turn.handle(event.map_or(Input::AgentEnded, Input::Agent));
            if has_ended {
                self.agent = None;
            }
            left -= 1;
            let may_read = left > 0 && self.turn.accepts_events();
            let agent = self.agent.as_mut().filter(|_| may_read);
            match agent.and_then(|agent| agent.next().now_or_never()) {
                Some(next) => event = next,
                None => return,
            }
        }
    }

    /// Looks up the state of the run that the turn watches.
    fn look(&mut self) {
        self.tick.set(sleep(self.effects.lease() / 3));
        let run = self.turn.watched_run().cloned();
        self.running.push(self.effects.look(run));
    }

    fn settle(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Loaded(stored) => {
                self.effects.set_known(stored.clone());
                let loaded = stored.map(|stored| (Box::new(stored.chat), stored.revision));
                self.settle(Outcome::Input(Input::Loaded(loaded)));
            }
            Outcome::Saved(chat, result) => {
                if let SaveResult::Saved(revision) = result {
                    self.effects.set_known(Some(VersionedChat { chat: *chat, revision }));
                }
                let is_saved = result != SaveResult::Conflict;
                self.settle(Outcome::Input(Input::Saved(is_saved)));
            }
            Outcome::Input(input) => {
                match input {
                    Input::Saved(true) | Input::Deleted(true) => self.hints.tell(),
                    Input::Saved(false) => {
                        self.conflicts += 1;
                        if self.conflicts >= MAX_CONFLICTS {
                            let error = "the chat changes faster than it can be read";
                            self.failure = Some(Failure::Chats(ChatStoreError::new(error)));
                            return self.turn.handle(Input::Failed);
                        }
                    }
                    _ => {}
                }
                match input {
                    Input::Loaded(_) => self.failures[0] = 0,
                    Input::Saved(_) => self.failures[1] = 0,
                    Input::Begun(_) | Input::Appended(_) | Input::Taken(_) => self.failures[2] = 0,
                    Input::Claimed(_) => self.failures[3] = 0,
                    _ => {}
                }
                self.turn.handle(input);
            }
            Outcome::Unknown(after, failure) => {
                let kind = match after {
                    After::LoadAgain => 0,
                    After::Input(Input::SaveUnknown) => 1,
                    After::Input(Input::Claimed(_)) => 3,
                    After::Input(_) => 2,
                };
                self.failures[kind] += 1;
                self.failure = Some(failure);
                if self.response.is_some() || self.failures[kind] >= MAX_FAILURES {
                    return self.turn.handle(Input::Failed);
                }
                let wait = BACKOFF * self.failures[kind].min(10);
                let delayed = async move {
                    sleep(wait).await;
                    Outcome::Delayed(after)
                };
                self.running.push(delayed.boxed());
            }
            Outcome::Delayed(After::Input(input)) => self.turn.handle(input),
            Outcome::Delayed(After::LoadAgain) => {
                self.running.push(self.effects.start(Effect::Load));
            }
            Outcome::NotRedeemed(was_closing, failure) => {
                tracing::error!(error = %failure, "the answers of a turn could not be redeemed");
                match self.accepted.take() {
                    // The caller may have been dropped.
                    Some(tell) => drop(tell.send(Err(failure))),
                    None => self.failure = Some(failure),
                }
                if was_closing {
                    self.turn.handle(Input::CallsNotClosed);
                }
                self.turn.handle(if was_closing { Input::Redeemed } else { Input::NotRedeemed });
            }
            Outcome::Redeeming { first, accepted, deferred, calls } => {
                if let Some(tell) = self.accepted.take() {
                    // The caller may have been dropped.
                    let _ = tell.send(Ok(accepted));
                }
                self.deferred = deferred;
                first.into_iter().for_each(|input| self.turn.handle(input));
                self.running.push(Effects::next_result(calls));
            }
            Outcome::Result(result, calls) => {
                self.turn.handle(Input::CallSettled(result));
                self.running.push(Effects::next_result(calls));
            }
        }
    }

    fn respond(&mut self, response: Response) {
        let Some(sender) = self.response.take() else { return };
        let response = match (response, self.failure.take()) {
            (Response::Failed, Some(failure)) => Err(failure.into()),
            (response, _) => Ok(response),
        };
        // The caller may have been dropped.
        let _ = sender.send(response);
    }

    fn call_agent(&mut self, call: AgentCall) {
        let AgentCall { chat, message_id, sent, not_recorded, recorded } = call;
        let mut results = sent;
        let is_new = |results: &[DeferredToolResult], other: &DeferredToolResult| {
            !results.iter().any(|result| result.approval_id == other.approval_id)
        };
        // The approvals that the provider has, or that another turn has lost.
        let mut forwarded = chat.forwarded_approvals();
        forwarded.retain(|forwarded| is_new(&results, forwarded));
        results.extend(forwarded);
        // An approval is sent only if this call has claimed it.
        results.extend(recorded.into_iter().chain(not_recorded).filter(|result| {
            !matches!(result.outcome, DeferredOutcome::ForwardToProvider { approved: true, .. })
        }));
        let Effects { chats, .. } = &self.effects;
        let approvals = chats.approvals.for_chat(&chat.owner, &chat.id);
        let approvals = approvals.in_message(message_id.clone());
        let turn = Turn {
            principal: chat.owner.clone(),
            approvals: match self.turn.has_approvals() {
                true => approvals,
                false => approvals.without_requests(),
            },
            chat: Arc::new(chat),
            message_id,
            deferred: self.deferred.clone().with_results(results),
            request: self.posted.clone(),
        };
        let revoke = (!self.turn.has_approvals()).then(|| self.effects.revoker());
        self.agent = Some(AgentEvents::new(&*chats.agent, turn, revoke));
    }
}

/// How many events of the agent are read at once.
const EVENTS_AT_ONCE: usize = 64;

/// How many failures in a row end a turn that has a response.
const MAX_FAILURES: u32 = 20;

/// How many saves fail only if the store never accepts one: another writer was faster each time.
const MAX_CONFLICTS: u32 = 1000;

/// The time after a failure, for each failure in a row.
const BACKOFF: Duration = Duration::from_millis(200);
