//! One run: what was answered is redeemed, the agent goes on, and what it says is kept.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use tokio::sync::{mpsc, watch};

use super::{ChatError, Chats, Live, LiveKey, Said, Turn};
use crate::approval::{
    DeferredOutcome, DeferredToolResult, DeferredToolResults, OpenCall, Principal, ResumePlan,
};
use crate::approvals::{DecisionsOnMessage, Resolved};
use crate::body::{UiMessageStream, fresh_message_id};
use crate::chunk::FinishReason;
use crate::event::{AgentEvent, Data};
use crate::history::{Chat, Recorder};
use crate::id::{ApprovalId, MessageId};
use crate::message::{Part, Role, ToolPart, UiMessage};
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
    /// How many parts of it the client holds, counting [content](is_content).
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
            shown: request
                .continued_as_sent()
                .map_or(0, |message| message.parts.iter().filter(|part| is_content(part)).count()),
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
        let live = self.register();
        let resolved = self.resolve().await?;
        let results = resolved.results().results();
        let counts = |(id, approved): &(ApprovalId, bool)| {
            let result = results.iter().find(|result| result.approval_id.as_ref() == Some(id));
            result.is_some_and(|result| result.is_final && result.outcome.agrees_with(*approved))
        };
        let counting = answers.into_iter().filter(counts).map(|(id, _)| id).collect();
        tokio::spawn(async move {
            if let Err(error) = self.go_on(resolved, live).await {
                tracing::error!(%error, "a run that was decided on elsewhere could not go on");
            }
        });
        Ok(counting)
    }

    async fn go(&mut self) -> Result<(), ChatError> {
        let live = self.register();
        let resolved = self.resolve().await?;
        self.go_on(resolved, live).await
    }

    async fn resolve(&self) -> Result<Resolved, ChatError> {
        let approvals = self.chats.approvals().of_chat(&self.principal, &self.chat.id);
        let left_to_client = &self.chat.left_to_client;
        let approvals = approvals.in_chat_of(&self.chat.owner);
        Ok(approvals.resolve(self.plan.clone(), left_to_client).await?)
    }

    /// Of several runs that answer the calls of a message, one goes on: the one that writes the last
    /// result which the history lacks. The others show what it says.
    async fn go_on(&mut self, mut resolved: Resolved, live: Registered) -> Result<(), ChatError> {
        if self.request.is_none() && self.chat.message(&self.message_id).is_none() {
            // The run that asked is still on its way to keep the message.
            self.are_over(self.begun_before(&live)).await;
        }
        let deferred = resolved.results().clone();
        let mut settled = Vec::new();
        let mut completes = false;
        while let Some(result) = resolved.next().await {
            if result.is_final {
                let descriptor = resolved.descriptor(&result);
                let others_run = self.do_others_run(&live);
                let change = |chat: &mut Chat| {
                    let waits = |chat: &Chat| self.is_waiting(chat, &deferred, others_run);
                    let was_complete = !waits(chat) && have_results(chat, &deferred, is_news);
                    chat.settle(&result, descriptor.as_ref());
                    !was_complete && !waits(chat) && have_results(chat, &deferred, |_| false)
                };
                let (chat, last) = self.chats.change(&self.chat, change).await?;
                self.chat = chat;
                completes |= last;
            }
            self.tell(&resolved, &result).await;
            settled.push(result);
        }
        if !deferred.superseded().is_empty() {
            let supersede = |chat: &mut Chat| chat.supersede(&deferred);
            (self.chat, ()) = self.chats.change(&self.chat, supersede).await?;
        }
        if !self.has_question {
            if !completes && self.is_waiting(&self.chat, &deferred, self.do_others_run(&live)) {
                self.say(Ok(AgentEvent::finish(FinishReason::ToolCalls))).await;
                return Ok(());
            }
            let is_refused = settled
                .iter()
                .any(|result| !result.is_final || result.outcome == DeferredOutcome::Refused);
            let was_answered_before = match settled.is_empty() {
                true => self.rest_of(&self.chat).is_some(),
                false => !completes && !is_refused,
            };
            if was_answered_before {
                drop(live);
                return self.replay().await;
            }
        }
        if self.request.is_none() && !self.is_next(&live).await? {
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
        self.listen(said, &live).await
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

    /// Passes on what the agent says, and keeps it: a question and the end only once they are kept,
    /// for what a client was told it may answer.
    async fn listen(&mut self, mut said: Said, live: &Registered) -> Result<(), ChatError> {
        let mut begun = self.chat.message(&self.message_id).cloned();
        let mut recorder = match &begun {
            Some(message) => Recorder::continuing(message.clone()),
            None => Recorder::new(self.message_id.clone()),
        };
        let mut stop = live.sender.subscribe();
        let mut asked = Vec::new();
        let mut panicked = false;
        let last = loop {
            let stopped = async { drop(stop.wait_for(|live| *live == Live::IsToStop).await) };
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
                None => break None,
            }
            if let Some(Ok(AgentEvent::ApprovalRequested { approval_id, .. })) = &event {
                asked.push(approval_id.clone());
                begun = self.keep(Some(recorder.message().clone()), begun, &[]).await?;
            }
            if event.as_ref().is_some_and(is_last) || panicked {
                break event;
            }
            if let Some(event) = event {
                self.say(event).await;
            }
        };
        let (message, left_to_client) = recorder.finish();
        if let Some(message) = &message {
            asked.retain(|id| !message.tool_parts().any(|part| part.approval_id() == Some(id)));
        }
        self.keep(message, begun, &left_to_client).await?;
        self.take_back(&asked).await?;
        if let Some(last) = last {
            self.say(last).await;
        }
        Ok(())
    }

    /// Keeps a message that was written since `begun`, and gives it back to be gone on with.
    async fn keep(
        &self,
        message: Option<UiMessage>,
        begun: Option<UiMessage>,
        left_to_client: &[OpenCall],
    ) -> Result<Option<UiMessage>, ChatError> {
        let keep = |chat: &mut Chat| {
            chat.left_to_client.extend(left_to_client.iter().cloned());
            if let Some(message) = &message {
                chat.put(message.clone(), begun.as_ref());
            }
        };
        self.chats.change(&self.chat, keep).await?;
        Ok(message)
    }

    /// Takes back questions that nobody was shown: the translator could not mean them.
    async fn take_back(&self, unshown: &[ApprovalId]) -> Result<(), ChatError> {
        if unshown.is_empty() {
            return Ok(());
        }
        let approvals = self.chats.approvals();
        for waiting in approvals.of_chat(&self.chat.owner, &self.chat.id).pending().await? {
            if unshown.contains(&waiting.approval_id) {
                approvals.revoke(waiting.record.id).await?;
            }
        }
        Ok(())
    }

    /// Answers a request that was answered before with what came of it then.
    async fn replay(&self) -> Result<(), ChatError> {
        self.are_over(self.all()).await;
        let kept = self.chats.0.store.load(self.chat.owner.tenant(), &self.chat.id).await?;
        if let Some(tail) = kept.and_then(|kept| self.rest_of(&kept.chat)) {
            for chunk in compact(&tail).unwrap_or_default() {
                self.say(Ok(AgentEvent::Chunk(Box::new(chunk)))).await;
            }
        }
        Ok(())
    }

    /// What of the message the client does not hold, if it lacks something.
    fn rest_of(&self, chat: &Chat) -> Option<UiMessage> {
        let parts = &chat.message(&self.message_id)?.parts;
        let content = parts.iter().enumerate().filter(|(_, part)| is_content(part));
        let (lacking, _) = content.skip(self.shown).next()?;
        let with_its_step = lacking.checked_sub(1).filter(|&at| is_step_start(&parts[at]));
        let rest = parts[with_its_step.unwrap_or(lacking)..].to_vec();
        Some(UiMessage::new(self.message_id.clone(), Role::Assistant, rest))
    }

    /// Waits for the turn of a decision that came from elsewhere. It has none if the chat went on
    /// meanwhile: the person wrote, or the run that asked has asked for more.
    async fn is_next(&mut self, live: &Registered) -> Result<bool, ChatError> {
        self.are_over(self.begun_before(live)).await;
        if let Some(kept) = self.chats.0.store.load(self.chat.owner.tenant(), &self.chat.id).await?
        {
            self.chat = kept.chat;
        }
        let Some(message) = self.chat.message(&self.message_id) else { return Ok(true) };
        let is_last = self.chat.messages.last().is_some_and(|last| last.id == message.id);
        Ok(is_last && message.tool_parts().all(ToolPart::is_settled))
    }

    /// Whether the message holds calls that have no result yet, and will get one: from the person,
    /// the client, or another run here.
    fn is_waiting(&self, chat: &Chat, deferred: &DeferredToolResults, others_run: bool) -> bool {
        let is_open = |call: &OpenCall| {
            chat.has_result(call.approval_id.as_ref(), &call.tool_call_id) != Some(true)
        };
        let message = chat.message(&self.message_id).filter(|_| others_run);
        deferred.pending().iter().any(is_open)
            || message.is_some_and(|message| !message.tool_parts().all(ToolPart::is_settled))
    }

    fn do_others_run(&self, live: &Registered) -> bool {
        let runs = self.chats.live();
        let mut runs = runs.get(&self.key()).into_iter().flatten();
        runs.any(|run| !run.same_channel(&live.sender))
    }

    /// The runs of this chat here that were begun before this one. A run that is registered waits for
    /// none but these, so that no two wait for each other.
    fn begun_before(&self, live: &Registered) -> Vec<watch::Receiver<Live>> {
        let runs = self.chats.live();
        let runs = runs.get(&self.key()).into_iter().flatten();
        let before = runs.take_while(|run| !run.same_channel(&live.sender));
        before.map(watch::Sender::subscribe).collect()
    }

    /// The runs of this chat here.
    fn all(&self) -> Vec<watch::Receiver<Live>> {
        let runs = self.chats.live();
        runs.get(&self.key()).into_iter().flatten().map(watch::Sender::subscribe).collect()
    }

    /// Waits until these runs are over.
    async fn are_over(&self, runs: Vec<watch::Receiver<Live>>) {
        for mut run in runs {
            while run.changed().await.is_ok() {}
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

/// Whether the calls that were answered have their results. Of one that the history does not hold,
/// `lacks_result` says.
fn have_results(
    chat: &Chat,
    deferred: &DeferredToolResults,
    lacks_result: impl Fn(&DeferredToolResult) -> bool,
) -> bool {
    let mut answered = deferred.results().iter().filter(|result| result.is_final);
    answered.all(|result| {
        let found = match result.outcome {
            // The provider gives the result.
            DeferredOutcome::ForProvider { approved: true, .. } => None,
            _ => chat.has_result(result.approval_id.as_ref(), &result.tool_call_id),
        };
        found.unwrap_or_else(|| !lacks_result(result))
    })
}

/// Whether an earlier request cannot have brought this result.
fn is_news(result: &DeferredToolResult) -> bool {
    !matches!(
        result.outcome,
        DeferredOutcome::Ran { .. }
            | DeferredOutcome::Running { .. }
            | DeferredOutcome::OutcomeUnknown
    )
}

/// Whether a part says something. What only ends a response, the client holds and the server may
/// not.
fn is_content(part: &Part) -> bool {
    match part {
        Part::Data(data) => &*data.name != "run-end",
        part => !is_step_start(part),
    }
}

fn is_step_start(part: &Part) -> bool {
    matches!(part, Part::StepStart { .. })
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
