//! One run: what was answered is redeemed, the agent goes on, and what it says is kept.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use futures_core::Stream;
use tokio::sync::oneshot;
use tracing::Instrument;

use super::live::LiveRun;
use super::next_run::{as_it_ended, have_results, is_news};
use super::reader::Reader;
use super::replay::is_content;
use super::{ChatError, Chats, Turn};
use crate::approval::{
    DeferredOutcome, DeferredToolResult, DeferredToolResults, Principal, ResumePlan,
};
use crate::approvals::{DecisionsOnMessage, Resolved};
use crate::body::UiMessageStream;
use crate::chunk::FinishReason;
use crate::event::{AgentEvent, Data};
use crate::history::Chat;
use crate::id::{ApprovalId, ChatId, MessageId};
use crate::request::ChatRequest;
use crate::stream::{BoxError, Outcome, words_of};
use crate::translator::Translator;

/// One run, before it begins.
pub(super) struct Run {
    pub(super) chats: Chats,
    /// Who decides.
    pub(super) principal: Principal,
    pub(super) chat: Chat,
    /// The message that the server goes on with, or begins.
    pub(super) message_id: MessageId,
    /// How many parts of it the client holds, counting [content](is_content).
    pub(super) shown: usize,
    pub(super) plan: ResumePlan,
    /// Whether the person wrote something new, or wants a new answer.
    pub(super) has_question: bool,
    pub(super) request: Option<Arc<ChatRequest>>,
    pub(super) reader: Option<Reader>,
}

pub(super) type Event = Result<AgentEvent, BoxError>;

impl Run {
    pub(super) fn of_request(
        chats: &Chats,
        principal: Principal,
        chat: Chat,
        message_id: MessageId,
        request: ChatRequest,
    ) -> Self {
        Run {
            chats: chats.clone(),
            principal,
            chat,
            message_id,
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
        // Now: whoever comes next is to find it.
        let live = self.register();
        let run = async move {
            if let Some(reader) = &mut self.reader {
                reader.begins().await;
            }
            if let Err(error) = self.go(live).await {
                tracing::error!(%error, "a run could not go on");
                self.say(Err(error)).await;
                if let Err(error) = self.drop_answer().await {
                    tracing::warn!(%error, "an answer that will not come is still expected");
                }
            }
        };
        tokio::spawn(run.in_current_span());
        UiMessageStream::with_translator(translator, events)
    }

    /// Runs to the end, with nobody reading along. Says how it ended, and why.
    pub(super) async fn wait(self) -> (Outcome, Option<FinishReason>) {
        let (tell, ended) = oneshot::channel();
        let mut response = self.begin().on_finish(move |end| {
            // Who waits for it may be gone.
            let _ = tell.send((end.outcome, end.finish_reason));
        });
        while poll_fn(|cx| Pin::new(&mut response).poll_next(cx)).await.is_some() {}
        // It is told when the response has ended, however it did.
        ended.await.unwrap_or((Outcome::Failed, None))
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
        let go_on = async move {
            if let Err(error) = self.go_on(resolved, live).await {
                tracing::error!(%error, "a run that was decided on elsewhere could not go on");
            }
        };
        tokio::spawn(go_on.in_current_span());
        Ok(counting)
    }

    /// A panic of the host's code is an error too: the client is told, and does not take what it has
    /// for the whole.
    async fn go(&mut self, live: LiveRun) -> Result<(), BoxError> {
        let mut going = pin!(async {
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
        let asked = self.open_calls();
        let deferred = resolved.results().clone();
        let mut settled = Vec::new();
        let mut completes = false;
        let mut to_tell = Vec::new();
        // What others hear of may take them long: what is known is written down first.
        let mut elsewhere = VecDeque::new();
        loop {
            let mut result = match resolved.next().await {
                Some(result) if self.is_heard_elsewhere(&result, &live) => {
                    elsewhere.push_back(result);
                    continue;
                }
                Some(result) => result,
                None => match elsewhere.pop_front() {
                    Some(result) => self.heard_of(result, &live).await?,
                    None => break,
                },
            };
            if result.is_final {
                let descriptor = resolved.descriptor(&result);
                let others_run = live.has_others();
                let change = |chat: &mut Chat| {
                    let result = as_it_ended(result.clone(), chat, others_run);
                    // Whoever was to go on with what nobody heard of is gone.
                    let is_lost = result.outcome == DeferredOutcome::OutcomeUnknown
                        && chat.is_providers(result.approval_id.as_ref(), &result.tool_call_id);
                    // So is whoever was to tell what is kept for the provider, unless it still waits
                    // for its turn.
                    let is_untold = !live.has_earlier_of_message()
                        && chat.keeps_yes(result.approval_id.as_ref());
                    // Who heard another answer of the message tells it, too.
                    let others_answer = others_run || is_untold;
                    let waits = |chat: &Chat| self.is_waiting(chat, &deferred, others_answer);
                    let was_complete = !is_lost
                        && !is_untold
                        && !waits(chat)
                        && have_results(chat, &deferred, is_news);
                    chat.settle(&result, descriptor.as_ref());
                    let is_complete = !waits(chat) && have_results(chat, &deferred, |_| false);
                    let completes = !was_complete && is_complete;
                    (completes, completes && is_untold, result)
                };
                let (chat, (last, untold, ended)) = self.chats.change(&self.chat, change).await?;
                (self.chat, result) = (chat, ended);
                completes |= last;
                to_tell.extend(result.approval_id.clone().filter(|_| untold));
            }
            self.tell(&resolved, &result).await;
            settled.push(result);
        }
        if !deferred.superseded().is_empty() {
            let supersede = |chat: &mut Chat| chat.supersede(&deferred);
            (self.chat, ()) = self.chats.change(&self.chat, supersede).await?;
        }
        if self.has_question {
            let decided = self.close_decided(&deferred, live.has_others()).await?;
            settled.extend(decided);
        } else {
            if settled.is_empty() && live.has_others() {
                // Perhaps another request brought the same, and is being answered.
                self.wait_for_earlier(&live).await?;
            }
            if !completes && self.is_waiting(&self.chat, &deferred, live.has_others()) {
                let rest = self.rest_of(&self.chat);
                self.say_rest(rest).await;
                self.say(Ok(AgentEvent::finish(FinishReason::ToolCalls))).await;
                return self.drop_answer().await;
            }
            // An answer that contradicts the first one is refused, and changes nothing. A page that
            // posts it is answered, elsewhere nobody waits.
            let leaves_open = |result: &DeferredToolResult| {
                let done = self.chat.has_result(result.approval_id.as_ref(), &result.tool_call_id);
                let is_waited_for = self.request.is_some() || done != Some(true);
                result.outcome == DeferredOutcome::Refused && is_waited_for
            };
            let is_refused = settled.iter().any(|result| !result.is_final || leaves_open(result));
            let was_answered_before = match settled.is_empty() {
                true => self.rest_of(&self.chat).is_some(),
                false => !completes && !is_refused,
            };
            if was_answered_before || !self.is_next(&live, &asked).await? {
                return self.stand_back(live, &settled).await;
            }
        }
        if !self.hand_over(&mut settled, to_tell, &live).await? {
            if live.is_to_stop() {
                self.say(Ok(AgentEvent::Abort { reason: None })).await;
                return self.drop_answer().await;
            }
            return self.stand_back(live, &settled).await;
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

    /// Leaves it to others to go on, and shows what comes of that.
    async fn stand_back(
        &mut self,
        live: LiveRun,
        settled: &[DeferredToolResult],
    ) -> Result<(), ChatError> {
        drop(live);
        self.drop_answer().await?;
        self.replay(settled).await
    }

    /// Takes over what the provider is to be told: the run that calls the model next tells it all,
    /// whichever run heard it, and no other does. `false` if this run is not to call it: it was
    /// stopped, nobody wants its answer any more, or another run has taken the yes for which it goes on.
    async fn hand_over(
        &mut self,
        settled: &mut Vec<DeferredToolResult>,
        mut to_tell: Vec<ApprovalId>,
        live: &LiveRun,
    ) -> Result<bool, ChatError> {
        // Of a call that the history does not hold, no other run has heard.
        let is_yes = |chat: &Chat, result: &DeferredToolResult| {
            matches!(result.outcome, DeferredOutcome::ForProvider { approved: true, .. })
                && chat.has_result(result.approval_id.as_ref(), &result.tool_call_id).is_some()
        };
        let yeses = settled.iter().filter(|result| is_yes(&self.chat, result));
        to_tell.extend(yeses.filter_map(|yes| yes.approval_id.clone()));
        // What it goes on for may be told by another run by now.
        let is_its = |yeses: &[DeferredToolResult]| {
            let is_it = |yes: &DeferredToolResult| {
                yes.approval_id.as_ref().is_some_and(|id| to_tell.contains(id))
            };
            self.has_question || to_tell.is_empty() || yeses.iter().any(is_it)
        };
        let take = |chat: &mut Chat| {
            // What it would take over, it could tell nobody any more.
            let is_next =
                !live.is_to_stop() && chat.wants(&self.message_id) && is_its(&chat.for_provider);
            is_next.then(|| chat.hand_over())
        };
        let taken = if self.chat.has_providers_questions() {
            // Whoever tells it listens from now on.
            let approvals = self.chats.approvals().of_chat(&self.chat.owner, &self.chat.id);
            approvals.renew_for_provider(&self.chat.for_provider).await;
            let taken;
            (self.chat, taken) = self.chats.change(&self.chat, take).await?;
            taken
        } else {
            let is_wanted = self.kept().await?.is_none_or(|chat| chat.wants(&self.message_id));
            is_wanted.then(Vec::new)
        };
        let Some(told) = taken else { return Ok(false) };
        if live.is_to_stop() || !is_its(&told) {
            if !told.is_empty() {
                let put_back = |chat: &mut Chat| chat.take_back(&told);
                (self.chat, ()) = self.chats.change(&self.chat, put_back).await?;
            }
            return Ok(false);
        }
        // Others told it, or tell it now.
        let elsewhere = self.chat.handed_over().into_iter().filter(|result| {
            let is_it = |told: &DeferredToolResult| told.approval_id == result.approval_id;
            !told.iter().any(is_it)
        });
        let elsewhere: Vec<_> = elsewhere.collect();
        let news: Vec<_> = told.into_iter().chain(elsewhere).collect();
        settled.retain(|result| {
            let is_news = news.iter().any(|news| news.approval_id == result.approval_id);
            !is_yes(&self.chat, result) && !is_news
        });
        settled.extend(news);
        Ok(true)
    }

    /// Writes down what became of questions that were decided while nobody could: a server may be
    /// gone between a tool's outcome and the history, and the model is not to be told that nothing
    /// ran. What still runs is not over, and the model is told of that, too.
    async fn close_decided(
        &mut self,
        deferred: &DeferredToolResults,
        others_run: bool,
    ) -> Result<Vec<DeferredToolResult>, ChatError> {
        let mut open = self.chat.open_questions();
        open.retain(|open| {
            let id = open.approval_id.as_ref();
            !deferred.pending().iter().any(|pending| pending.approval_id.as_ref() == id)
        });
        if open.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<ApprovalId> =
            open.iter().filter_map(|open| open.approval_id.clone()).collect();
        let approvals = self.chats.approvals().of_chat(&self.chat.owner, &self.chat.id);
        let outcomes = approvals.outcomes_of(&ids).await?;
        let decided = outcomes.into_iter().filter_map(|(id, outcome)| {
            let open = open.iter().find(|open| open.approval_id.as_ref() == Some(&id));
            Some(as_it_ended(open?.became(outcome), &self.chat, others_run))
        });
        let decided: Vec<DeferredToolResult> = decided.collect();
        if !decided.is_empty() {
            let close = |chat: &mut Chat| decided.iter().for_each(|now| chat.settle(now, None));
            (self.chat, ()) = self.chats.change(&self.chat, close).await?;
        }
        Ok(decided)
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

    /// Nothing comes of the answer that this run began, if it began one.
    async fn drop_answer(&self) -> Result<(), ChatError> {
        match &self.request {
            Some(_) => self.chats.drop_answer(&self.chat, &self.message_id).await,
            None => Ok(()),
        }
    }

    /// Says it to whoever reads; a run goes on without.
    pub(super) async fn say(&mut self, event: Event) {
        if let Some(reader) = self.reader.take() {
            self.reader = reader.hears(event).await;
        }
    }

    fn register(&self) -> LiveRun {
        let live = &self.chats.0.live;
        live.register(self.chat.owner.tenant(), &self.chat.id, &self.message_id)
    }
}
