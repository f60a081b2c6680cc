//! One run: what was answered is redeemed, the agent goes on, and what it says is kept.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use tokio::sync::{mpsc, watch};

use super::{ChatError, Chats, Live, LiveKey, Said, Turn};
use crate::approval::{DeferredOutcome, DeferredToolResult, Principal, ResumePlan};
use crate::approvals::{DecisionsOnMessage, Resolved};
use crate::body::{UiMessageStream, fresh_message_id};
use crate::chunk::FinishReason;
use crate::event::{AgentEvent, Data};
use crate::history::{Chat, Recorder};
use crate::id::{ApprovalId, MessageId};
use crate::message::{Role, UiMessage};
use crate::reducer::compact;
use crate::request::ChatRequest;
use crate::stream::{BoxError, EventItem, MASKED_ERROR, words_of};
use crate::translator::Translator;

/// One run, before it begins.
pub(super) struct Run {
    chats: Chats,
    /// Who decides.
    principal: Principal,
    chat: Chat,
    /// The message that the server goes on with, or begins.
    message_id: MessageId,
    /// How many parts of it the client holds.
    shown: usize,
    plan: ResumePlan,
    /// Whether the person wrote something new, or wants a new answer.
    has_question: bool,
    request: Option<Arc<ChatRequest>>,
    reader: Option<mpsc::Sender<Event>>,
}

type Event = Result<AgentEvent, BoxError>;

impl Run {
    pub(super) fn of_request(
        chats: &Chats,
        principal: Principal,
        chat: Chat,
        continued: Option<MessageId>,
        request: ChatRequest,
    ) -> Self {
        Run {
            chats: chats.clone(),
            principal,
            chat,
            message_id: continued.unwrap_or_else(fresh_message_id),
            shown: request.continued_as_sent().map_or(0, |message| message.parts.len()),
            plan: ResumePlan::new(request.messages(), request.continued()),
            has_question: request.continued().is_none(),
            request: Some(Arc::new(request)),
            reader: None,
        }
    }

    pub(super) fn of_decisions(
        chats: &Chats,
        principal: Principal,
        chat: Chat,
        decisions: &DecisionsOnMessage,
    ) -> Self {
        Run {
            chats: chats.clone(),
            principal,
            chat,
            message_id: decisions.message_id.clone(),
            shown: usize::MAX,
            plan: decisions.plan(),
            has_question: false,
            request: None,
            reader: None,
        }
    }

    /// Begins the run on a task of its own; the response shows it.
    pub(super) fn begin(mut self) -> UiMessageStream {
        let held = self.request.as_ref().and_then(|request| request.continued_as_sent());
        let translator = match held {
            Some(message) => Translator::continuing(message),
            None => Translator::new(self.message_id.clone()),
        };
        let (reader, events) = mpsc::channel(EVENTS_AHEAD);
        self.reader = Some(reader);
        tokio::spawn(async move {
            if let Err(error) = self.go().await {
                tracing::error!(%error, "a run could not begin");
                self.say(Err(error.into())).await;
            }
        });
        UiMessageStream::with_translator(translator, Shown(events))
    }

    /// Takes decisions, says which of them count, and lets the run go on on a task of its own.
    pub(super) async fn decide(mut self) -> Result<Vec<ApprovalId>, ChatError> {
        let answers: Vec<(ApprovalId, bool)> =
            self.plan.approvals().map(|said| (said.approval_id.clone(), said.approved)).collect();
        let resolved = self.resolve().await?;
        let results = resolved.results().results();
        let counts = |(id, approved): &(ApprovalId, bool)| {
            let result = results.iter().find(|result| result.approval_id.as_ref() == Some(id));
            result.is_some_and(|result| result.is_final && result.outcome.agrees_with(*approved))
        };
        let counting = answers.into_iter().filter(counts).map(|(id, _)| id).collect();
        tokio::spawn(async move {
            if let Err(error) = self.go_on(resolved).await {
                tracing::error!(%error, "a run that was decided on elsewhere could not go on");
            }
        });
        Ok(counting)
    }

    async fn go(&mut self) -> Result<(), ChatError> {
        let resolved = self.resolve().await?;
        self.go_on(resolved).await
    }

    async fn resolve(&self) -> Result<Resolved, ChatError> {
        let approvals = self.chats.approvals().of_chat(&self.principal, &self.chat.id);
        let left_to_client = &self.chat.left_to_client;
        let approvals = approvals.in_chat_of(&self.chat.owner);
        Ok(approvals.resolve(self.plan.clone(), left_to_client).await?)
    }

    async fn go_on(&mut self, mut resolved: Resolved) -> Result<(), ChatError> {
        let deferred = resolved.results().clone();
        let is_retry = !self.has_question
            && deferred.results().iter().any(|result| result.is_final)
            && deferred.results().iter().all(|result| self.was_heard(result));
        let live = (!is_retry).then(|| self.register());
        let mut settled = Vec::new();
        while let Some(result) = resolved.next().await {
            if !is_retry {
                let written = self.chats.change(&self.chat, |chat| chat.settle(&result)).await;
                self.chat = written?;
            }
            self.tell(&resolved, &result).await;
            settled.push(result);
        }
        if is_retry {
            return self.replay(&settled).await;
        }
        if !deferred.superseded().is_empty() {
            self.chat = self.chats.change(&self.chat, |chat| chat.supersede(&deferred)).await?;
        }
        if !self.has_question && !deferred.pending().is_empty() {
            self.say(Ok(AgentEvent::finish(FinishReason::ToolCalls))).await;
            return Ok(());
        }
        let turn = Turn {
            principal: self.chat.owner.clone(),
            chat: self.chat.clone(),
            message_id: self.message_id.clone(),
            deferred: deferred.with_results(settled),
            approvals: self.chats.approvals().of_chat(&self.chat.owner, &self.chat.id),
            request: self.request.clone(),
        };
        let said = self.chats.0.agent.respond(turn);
        let stop = live.as_ref().map(|live| live.sender.subscribe());
        self.listen(said, stop).await
    }

    /// Whether the server knew of this result before the request. A refusal is news in any case.
    fn was_heard(&self, result: &DeferredToolResult) -> bool {
        match result.outcome {
            DeferredOutcome::Refused => false,
            DeferredOutcome::Ran { .. }
            | DeferredOutcome::Running { .. }
            | DeferredOutcome::Forwarded
            | DeferredOutcome::OutcomeUnknown => true,
            _ => self.chat.has_result(result),
        }
    }

    /// Tells the client what became of a call of the message that it goes on with.
    async fn tell(&self, resolved: &Resolved, result: &DeferredToolResult) {
        let continued = self.request.as_ref().and_then(|request| request.continued());
        if continued.map(|message| &message.id) != result.message_id.as_ref() {
            return;
        }
        if let Some(event) = AgentEvent::of_deferred(result) {
            self.say(Ok(event)).await;
        }
        if let Some(descriptor) = resolved.descriptor(result) {
            self.say(Ok(AgentEvent::Data(Box::new(Data {
                name: "approval".into(),
                id: Some(result.tool_call_id.to_string().into()),
                data: descriptor,
                transient: false,
            }))))
            .await;
        }
    }

    /// Passes on what the agent says, and keeps it.
    async fn listen(
        &mut self,
        mut said: Said,
        mut stop: Option<watch::Receiver<Live>>,
    ) -> Result<(), ChatError> {
        let mut recorder = match self.chat.message(&self.message_id) {
            Some(message) => Recorder::continuing(message.clone()),
            None => Recorder::new(self.message_id.clone()),
        };
        let mut panicked = false;
        loop {
            let stopped = async {
                match &mut stop {
                    Some(stop) => drop(stop.wait_for(|live| *live == Live::IsToStop).await),
                    None => std::future::pending().await,
                }
            };
            let next = poll_fn(|cx| {
                let polled = catch_unwind(AssertUnwindSafe(|| said.as_mut().poll_next(cx)));
                polled.unwrap_or_else(|panic| {
                    panicked = true;
                    Poll::Ready(Some(Err(words_of(&*panic).into())))
                })
            });
            let event = tokio::select! {
                biased;
                () = stopped => Some(Ok(AgentEvent::Abort { reason: None })),
                event = next => event,
            };
            match &event {
                Some(Ok(event)) => recorder.handle_event(event),
                Some(Err(_)) => recorder.handle_event(&AgentEvent::error(MASKED_ERROR)),
                None => break,
            }
            let is_over = event.as_ref().is_some_and(is_last);
            if let Some(event) = event {
                self.say(event).await;
            }
            if is_over || panicked {
                break;
            }
        }
        let (message, left_to_client) = recorder.finish();
        self.chats
            .change(&self.chat, |chat| {
                chat.left_to_client.extend(left_to_client.iter().cloned());
                if let Some(message) = message.clone() {
                    chat.put(message);
                }
            })
            .await?;
        Ok(())
    }

    /// Answers a request that was answered before with what came of it then.
    async fn replay(&self, settled: &[DeferredToolResult]) -> Result<(), ChatError> {
        self.others_are_over().await;
        let kept = self.chats.0.store.load(self.chat.owner.tenant(), &self.chat.id).await?;
        if let Some(kept) = &kept {
            // What the provider made of a yes came with the run that told it, not with the ledger.
            let forwarded = settled
                .iter()
                .filter(|result| result.is_final && result.outcome == DeferredOutcome::Forwarded);
            for said in forwarded.filter_map(|result| kept.chat.said_of(result)) {
                self.say(Ok(said)).await;
            }
        }
        let message = kept.as_ref().and_then(|kept| kept.chat.message(&self.message_id));
        let rest = message.and_then(|message| message.parts.get(self.shown..));
        if let Some(rest) = rest.filter(|_| settled.iter().any(|result| result.is_final)) {
            let tail = UiMessage::new(self.message_id.clone(), Role::Assistant, rest.to_vec());
            for chunk in compact(&tail).unwrap_or_default() {
                self.say(Ok(AgentEvent::Chunk(Box::new(chunk)))).await;
            }
        }
        self.say(Ok(AgentEvent::finish(FinishReason::Stop))).await;
        Ok(())
    }

    /// Waits until no other run of this chat is under way here.
    async fn others_are_over(&self) {
        let others: Vec<watch::Receiver<Live>> = {
            let live = self.chats.live();
            live.get(&self.key()).into_iter().flatten().map(watch::Sender::subscribe).collect()
        };
        for mut other in others {
            while other.changed().await.is_ok() {}
        }
    }

    /// Says it to whoever reads; a run goes on without.
    async fn say(&self, event: Event) {
        if let Some(reader) = &self.reader {
            let _ = reader.send(event).await;
        }
    }

    fn key(&self) -> LiveKey {
        (self.chat.owner.tenant().map(Into::into), self.chat.id.clone())
    }

    fn register(&self) -> Registered {
        let (sender, _) = watch::channel(Live::Runs);
        self.chats.live().entry(self.key()).or_default().push(sender.clone());
        Registered { chats: self.chats.clone(), key: self.key(), sender }
    }
}

/// A run that others can stop and wait for, as long as this is kept.
struct Registered {
    chats: Chats,
    key: LiveKey,
    sender: watch::Sender<Live>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut live = self.chats.live();
        if let Some(runs) = live.get_mut(&self.key) {
            runs.retain(|run| !run.same_channel(&self.sender));
            if runs.is_empty() {
                live.remove(&self.key);
            }
        }
    }
}

/// Whether nothing can follow.
fn is_last(event: &Event) -> bool {
    matches!(
        event,
        Err(_)
            | Ok(AgentEvent::Finish { .. } | AgentEvent::Abort { .. } | AgentEvent::Error { .. })
    )
}

/// The events of a stream of whatever yields them.
pub(super) struct Events<S>(pub(super) Pin<Box<S>>);

impl<S: Stream<Item: EventItem>> Stream for Events<S> {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let item = ready!(self.0.as_mut().poll_next(cx));
        Poll::Ready(item.map(EventItem::into_event))
    }
}

/// A run as its reader sees it.
struct Shown(mpsc::Receiver<Event>);

impl Stream for Shown {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.0.poll_recv(cx)
    }
}

/// How far a run may be ahead of its reader, in events.
const EVENTS_AHEAD: usize = 64;
