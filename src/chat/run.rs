//! One run: what was answered is redeemed, the agent goes on, and what it says is kept.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use tokio::sync::oneshot;

use super::live::{Live, LiveRun};
use super::reader::Reader;
use super::{ChatError, Chats, Said, Turn};
use crate::approval::{
    DeferredOutcome, DeferredToolResult, DeferredToolResults, OpenCall, Principal, ResumePlan,
};
use crate::approvals::{DecisionsOnMessage, Resolved};
use crate::body::{UiMessageStream, fresh_message_id};
use crate::chunk::FinishReason;
use crate::event::{AgentEvent, Data};
use crate::history::{Chat, Recorder};
use crate::id::{ApprovalId, ChatId, MessageId};
use crate::message::{Part, Role, ToolPart, UiMessage};
use crate::reducer::compact;
use crate::request::ChatRequest;
use crate::stream::{BoxError, EventItem, MASKED_ERROR, Outcome, words_of};
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
    reader: Option<Reader>,
}

pub(super) type Event = Result<AgentEvent, BoxError>;

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
        let (reader, events) = Reader::new();
        self.reader = reader;
        tokio::spawn(async move {
            if let Err(error) = self.go().await {
                tracing::error!(%error, "a run could not go on");
                self.say(Err(error)).await;
            }
        });
        UiMessageStream::with_translator(translator, events)
    }

    /// Runs to the end, with nobody reading along.
    pub(super) async fn wait(self) -> Outcome {
        let (tell, outcome) = oneshot::channel();
        let mut response = self.begin().on_finish(move |end| {
            // Who waits for it may be gone.
            let _ = tell.send(end.outcome);
        });
        while poll_fn(|cx| Pin::new(&mut response).poll_next(cx)).await.is_some() {}
        // It is told when the response has ended, however it did.
        outcome.await.unwrap_or(Outcome::Failed)
    }

    pub(super) fn chat_id(&self) -> &ChatId {
        &self.chat.id
    }

    pub(super) fn message_id(&self) -> &MessageId {
        &self.message_id
    }

    /// Takes decisions, says which of them count, and lets the run go on on a task of its own.
    pub(super) async fn decide(mut self) -> Result<Vec<(ApprovalId, bool)>, ChatError> {
        let answers: Vec<(ApprovalId, bool)> =
            self.plan.approvals().map(|said| (said.approval_id.clone(), said.approved)).collect();
        let live = self.register();
        let resolved = self.resolve().await?;
        let results = resolved.results().results();
        let counts = |(id, approved): &(ApprovalId, bool)| {
            let result = results.iter().find(|result| result.approval_id.as_ref() == Some(id));
            result.is_some_and(|result| result.is_final && result.outcome.agrees_with(*approved))
        };
        let counting = answers.into_iter().filter(counts).collect();
        tokio::spawn(async move {
            if let Err(error) = self.go_on(resolved, live).await {
                tracing::error!(%error, "a run that was decided on elsewhere could not go on");
            }
        });
        Ok(counting)
    }

    /// A panic of the host's code is an error too: the client is told, and does not take what it has
    /// for the whole.
    async fn go(&mut self) -> Result<(), BoxError> {
        let mut going = pin!(async {
            let live = self.register();
            let resolved = self.resolve().await?;
            self.go_on(resolved, live).await
        });
        poll_fn(|cx| {
            let polled = catch_unwind(AssertUnwindSafe(|| going.as_mut().poll(cx)));
            polled.map_or_else(
                |panic| Poll::Ready(Err(words_of(&*panic).into())),
                |polled| polled.map_err(BoxError::from),
            )
        })
        .await
    }

    async fn resolve(&self) -> Result<Resolved, ChatError> {
        let approvals = self.chats.approvals().of_chat(&self.principal, &self.chat.id);
        let left_to_client = &self.chat.left_to_client;
        let approvals = approvals.in_chat_of(&self.chat.owner);
        Ok(approvals.resolve(self.plan.clone(), left_to_client).await?)
    }

    /// Of several runs that answer the calls of a message, one goes on: the one that writes the last
    /// result which the history lacks. The others show what it says.
    async fn go_on(&mut self, mut resolved: Resolved, live: LiveRun) -> Result<(), ChatError> {
        if self.request.is_none() && self.chat.message(&self.message_id).is_none() {
            // The run that asked is still on its way to keep the message.
            live.earlier_are_over().await;
        }
        let deferred = resolved.results().clone();
        let mut settled = Vec::new();
        let mut completes = false;
        while let Some(result) = resolved.next().await {
            if result.is_final {
                let descriptor = resolved.descriptor(&result);
                let others_run = live.has_others();
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
        if self.has_question {
            self.close_decided(&deferred).await?;
        } else {
            if !completes && self.is_waiting(&self.chat, &deferred, live.has_others()) {
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
                return self.replay(&settled).await;
            }
        }
        if self.request.is_none() && !self.is_next(&live).await? {
            return Ok(());
        }
        let turn = Turn {
            principal: self.chat.owner.clone(),
            chat: Arc::new(self.chat.clone()),
            message_id: self.message_id.clone(),
            deferred: deferred.with_results(settled),
            approvals: self.chats.approvals().of_chat(&self.chat.owner, &self.chat.id),
            request: self.request.clone(),
        };
        let said = self.chats.0.agent.respond(turn);
        self.listen(said, &live).await
    }

    /// Writes down what became of questions that were decided while nobody could: a server may be
    /// gone between a tool's outcome and the history, and the model is not to be told that nothing
    /// ran.
    async fn close_decided(&mut self, deferred: &DeferredToolResults) -> Result<(), ChatError> {
        let mut open = self.chat.open_questions();
        open.retain(|open| {
            let id = open.approval_id.as_ref();
            !deferred.pending().iter().any(|pending| pending.approval_id.as_ref() == id)
        });
        if open.is_empty() {
            return Ok(());
        }
        let ids: Vec<ApprovalId> =
            open.iter().filter_map(|open| open.approval_id.clone()).collect();
        let approvals = self.chats.approvals().of_chat(&self.chat.owner, &self.chat.id);
        let outcomes = approvals.outcomes_of(&ids).await?;
        if outcomes.is_empty() {
            return Ok(());
        }
        let close = |chat: &mut Chat| {
            for (id, outcome) in &outcomes {
                let open = open.iter().find(|open| open.approval_id.as_ref() == Some(id));
                if let Some(open) = open {
                    chat.settle(&open.became(outcome.clone()), None);
                }
            }
        };
        (self.chat, ()) = self.chats.change(&self.chat, close).await?;
        Ok(())
    }

    /// Tells the client what became of a call of the message that it goes on with.
    async fn tell(&mut self, resolved: &Resolved, result: &DeferredToolResult) {
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
    async fn listen(&mut self, mut said: Said, live: &LiveRun) -> Result<(), ChatError> {
        let mut begun = self.chat.message(&self.message_id).cloned();
        let mut recorder = match &begun {
            Some(message) => Recorder::continuing(message.clone()),
            None => Recorder::new(self.message_id.clone()),
        };
        let mut stop = live.subscribe();
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
    async fn replay(&mut self, settled: &[DeferredToolResult]) -> Result<(), ChatError> {
        self.chats.0.live.are_over(self.chat.owner.tenant(), &self.chat.id).await;
        let kept = self.chats.0.store.load(self.chat.owner.tenant(), &self.chat.id).await?;
        let own = kept.map(|kept| kept.chat).filter(|chat| chat.owner == self.chat.owner);
        let Some(chat) = own else { return Ok(()) };
        // What the provider made of a yes came with the run that told it, not with the ledger.
        let forwarded = settled
            .iter()
            .filter(|result| result.is_final && result.outcome == DeferredOutcome::Forwarded);
        for said in forwarded.filter_map(|result| chat.said_of(result)) {
            self.say(Ok(said)).await;
        }
        if let Some(tail) = self.rest_of(&chat) {
            for chunk in compact(&tail).unwrap_or_default() {
                self.say(Ok(AgentEvent::Chunk(Box::new(chunk)))).await;
            }
        }
        Ok(())
    }

    /// What of the message the client does not hold, if it lacks something.
    fn rest_of(&self, chat: &Chat) -> Option<UiMessage> {
        let parts = &chat.message(&self.message_id)?.parts;
        let mut content = parts.iter().enumerate().filter(|(_, part)| is_content(part));
        let (lacking, _) = content.nth(self.shown)?;
        let with_its_step = lacking.checked_sub(1).filter(|&at| is_step_start(&parts[at]));
        let rest = parts[with_its_step.unwrap_or(lacking)..].to_vec();
        Some(UiMessage::new(self.message_id.clone(), Role::Assistant, rest))
    }

    /// Waits for the turn of a decision that came from elsewhere. It has none if the chat went on
    /// meanwhile: the person wrote, or the run that asked has asked for more.
    async fn is_next(&mut self, live: &LiveRun) -> Result<bool, ChatError> {
        live.earlier_are_over().await;
        let kept = self.chats.0.store.load(self.chat.owner.tenant(), &self.chat.id).await?;
        if let Some(kept) = kept.filter(|kept| kept.chat.owner == self.chat.owner) {
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

    /// Says it to whoever reads; a run goes on without.
    async fn say(&mut self, event: Event) {
        if let Some(reader) = self.reader.take() {
            self.reader = reader.hears(event).await;
        }
    }

    fn register(&self) -> LiveRun {
        self.chats.0.live.register(self.chat.owner.tenant(), &self.chat.id)
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
            | DeferredOutcome::Forwarded
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
