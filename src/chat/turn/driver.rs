//! The way of a run: redeems the answers, calls the agent, and stores the message that the agent
//! writes.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use tracing::Instrument;

use super::lease::Lease;
use super::live::LiveRun;
use super::next_run::{as_it_ended, have_results, is_news};
use super::reader::Reader;
use super::run::Run;
use crate::approval::{
    DeferredOutcome, DeferredToolResult, DeferredToolResults, PendingToolCall, RunningCalls,
};
use crate::boxed::BoxError;
use crate::chat::{Chat, ChatError, Turn};
use crate::chunk::FinishReason;
use crate::event::{AgentEvent, Data};
use crate::id::{ApprovalId, ToolCallId};
use crate::json::Json;
use crate::response::{UiMessageStream, panic_message};
use crate::translator::Translator;

impl Run {
    /// Starts the run on a task of its own. Returns the response that streams the run.
    pub(in crate::chat) fn begin(mut self) -> UiMessageStream {
        let held =
            self.request.as_ref().and_then(|request| request.unsanitized_continued_message());
        let translator = match held {
            Some(message) => Translator::continuing(message),
            None => Translator::new(self.message_id.clone()),
        };
        let (reader, events) = Reader::new();
        self.reader = reader;
        // Registers the run before the task starts, so that each later request finds it.
        let live = self.register();
        let run = async move {
            if let Some(reader) = &mut self.reader {
                reader.begins().await;
            }
            let lease = Lease::of(&self);
            let ended = tokio::select! {
                ended = self.go(live) => ended,
                never = lease.keep() => match never {},
            };
            if let Err(error) = ended {
                tracing::error!(%error, "a run could not go on");
                self.say(Err(error)).await;
                if let Err(error) = self.cancel_response().await {
                    tracing::warn!(%error, "an answer that will not come is still expected");
                }
            }
        };
        tokio::spawn(run.in_current_span());
        UiMessageStream::with_translator(translator, events)
    }

    /// Applies the decisions and continues the run on a task of its own. Returns the decisions that
    /// were accepted.
    pub(in crate::chat) async fn decide(mut self) -> Result<Vec<(ApprovalId, bool)>, ChatError> {
        let answers: Vec<(ApprovalId, bool)> = self
            .plan
            .unverified_responses()
            .map(|said| (said.approval_id.clone(), said.approved))
            .collect();
        let live = self.register();
        let resolved = self.resolve().await?;
        let counting = answers.into_iter().filter(|(id, _)| resolved.is_accepted(id)).collect();
        let go_on = async move {
            if let Err(error) = self.go_on(resolved, live).await {
                tracing::error!(%error, "a run that was decided on elsewhere could not go on");
            }
        };
        tokio::spawn(go_on.in_current_span());
        Ok(counting)
    }

    /// Executes the run. Converts a panic of the host's code to an error, so that the client
    /// receives an error and does not treat an incomplete response as complete.
    async fn go(&mut self, live: LiveRun) -> Result<(), BoxError> {
        let going = async {
            let resolved = self.resolve().await?;
            self.go_on(resolved, live).await
        };
        match AssertUnwindSafe(going).catch_unwind().await {
            Ok(ended) => ended.map_err(BoxError::from),
            Err(panic) => Err(panic_message(&*panic).into()),
        }
    }

    /// Redeems the answers of the run's plan.
    async fn resolve(&self) -> Result<RunningCalls, ChatError> {
        let approvals = self.chats.approvals.for_chat(&self.principal, &self.chat.id);
        let client_executed = &self.chat.client_executed;
        let approvals = approvals.on_behalf_of(&self.chat.owner);
        let mut plan = self.plan.clone();
        if plan.unverified_responses().any(|answer| answer.approved) {
            // Another page may have sent a message that this request does not hold, also after this
            // run loaded the chat.
            let stored = self.kept().await?;
            let chat = stored.as_ref().unwrap_or(&self.chat);
            plan = plan.with_followed_messages(chat.messages_followed_by_user());
        }
        Ok(approvals.resolve(plan, client_executed).await?)
    }

    /// Records the results of the answered calls, and then calls the agent if this run is the one
    /// that has to.
    ///
    /// Of several runs that answer the calls of a message, one calls the agent: the run that
    /// records the last missing result in the history. The others stream the result of that run.
    async fn go_on(&mut self, mut resolved: RunningCalls, live: LiveRun) -> Result<(), ChatError> {
        if self.request.is_none() && self.chat.message(&self.message_id).is_none() {
            // The run that requested the approval has not stored the message yet.
            live.earlier_are_over().await;
        }
        let asked = self.open_calls();
        let deferred = resolved.results().clone();
        let mut settled = Vec::new();
        let mut completes = false;
        let mut to_tell = Vec::new();
        // Waiting for results that other servers receive may take long. The known results are
        // recorded first.
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
                    // The run that should have continued after this provider-executed call has
                    // ended without its result.
                    let is_lost = result.outcome == DeferredOutcome::OutcomeUnknown
                        && chat.is_provider_executed(
                            result.approval_id.as_ref(),
                            &result.tool_call_id,
                        );
                    // The run that should have sent this approval to the provider has ended as
                    // well, unless it is still waiting for earlier runs.
                    let is_untold = !live.has_earlier_of_message()
                        && chat.has_unsent_approval(result.approval_id.as_ref());
                    // A run that received another answer of the message sends it to the provider,
                    // too.
                    let others_answer = others_run || is_untold;
                    let waits = |chat: &Chat| self.is_waiting(chat, &deferred, others_answer);
                    let was_complete = !is_lost
                        && !is_untold
                        && !waits(chat)
                        && have_results(chat, &deferred, is_news);
                    chat.record_result(&resolved.result_in_history(&result), descriptor.as_ref());
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
            let descriptor = |call: &PendingToolCall| resolved.descriptor_of_superseded(call);
            let supersede = |chat: &mut Chat| chat.record_superseded(&deferred, descriptor);
            (self.chat, ()) = self.chats.change(&self.chat, supersede).await?;
            for call in deferred.superseded() {
                self.show_approval(&call.tool_call_id, descriptor(call)).await;
            }
        }
        if self.has_question {
            let decided = self.close_decided(&deferred, live.has_others()).await?;
            settled.extend(decided);
        } else {
            if settled.is_empty() && live.has_others() {
                // Another request may have brought the same answers, and its run may be active.
                self.wait_for_earlier(&live).await?;
            }
            if !completes && self.is_waiting(&self.chat, &deferred, live.has_others()) {
                let rest = self.rest_of(&self.chat);
                self.say_rest(rest).await;
                self.say(Ok(AgentEvent::finish(FinishReason::ToolCalls))).await;
                return self.cancel_response().await;
            }
            // An answer that contradicts the first one is rejected and changes nothing. A page that
            // posts such an answer gets a response. A decision that came another way has no client
            // that waits for one.
            let leaves_open = |result: &DeferredToolResult| {
                let done = self.chat.has_result(result.approval_id.as_ref(), &result.tool_call_id);
                let is_waited_for = self.request.is_some() || done != Some(true);
                result.outcome == DeferredOutcome::Rejected && is_waited_for
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
        if !self.take_unsent_approvals(&mut settled, to_tell, &live).await? {
            if live.is_to_stop() {
                self.say(Ok(AgentEvent::Abort { reason: None })).await;
                return self.cancel_response().await;
            }
            return self.stand_back(live, &settled).await;
        }
        let approvals = self.chats.approvals.for_chat(&self.chat.owner, &self.chat.id);
        let approvals = approvals.in_message(self.message_id.clone());
        let turn = Turn {
            principal: self.chat.owner.clone(),
            chat: Arc::new(self.chat.clone()),
            message_id: self.message_id.clone(),
            deferred: deferred.with_results(settled),
            approvals: match self.can_request_approvals {
                true => approvals,
                false => approvals.without_requests(),
            },
            request: self.request.clone(),
        };
        let said = self.chats.agent.respond(turn);
        self.listen(said, &live).await
    }

    /// Leaves the agent call to another run, and streams the result of that run.
    async fn stand_back(
        &mut self,
        live: LiveRun,
        settled: &[DeferredToolResult],
    ) -> Result<(), ChatError> {
        drop(live);
        self.cancel_response().await?;
        self.replay(settled).await
    }

    /// Claims all unsent provider approvals for this run and adds them to `settled`. Each is sent
    /// at most once, across runs and servers: only the run that calls the model next sends them,
    /// also those that other runs received.
    ///
    /// Returns `false` if this run must not call the model: it was stopped, its message was
    /// discarded, or another run has claimed the approval for which this run would call the model.
    async fn take_unsent_approvals(
        &mut self,
        settled: &mut Vec<DeferredToolResult>,
        mut to_tell: Vec<ApprovalId>,
        live: &LiveRun,
    ) -> Result<bool, ChatError> {
        // No other run can have received the approval of a call that the history does not hold.
        let is_yes = |chat: &Chat, result: &DeferredToolResult| {
            matches!(result.outcome, DeferredOutcome::ForwardToProvider { approved: true, .. })
                && chat.has_result(result.approval_id.as_ref(), &result.tool_call_id).is_some()
        };
        let yeses = settled.iter().filter(|result| is_yes(&self.chat, result));
        to_tell.extend(yeses.filter_map(|yes| yes.approval_id.clone()));
        // Another run may have claimed the approvals for which this run would call the model.
        let is_its = |yeses: &[DeferredToolResult]| {
            let is_it = |yes: &DeferredToolResult| {
                yes.approval_id.as_ref().is_some_and(|id| to_tell.contains(id))
            };
            self.has_question || to_tell.is_empty() || yeses.iter().any(is_it)
        };
        let take = |chat: &mut Chat| {
            // A run that is stopped or discarded could not send the approvals that it claims.
            let is_next = !live.is_to_stop()
                && chat.expects(&self.message_id)
                && is_its(&chat.unsent_approvals);
            is_next.then(|| chat.take_unsent_approvals())
        };
        let taken = if self.chat.has_open_provider_approvals() {
            // The run that sends the approvals receives their results from now on.
            let approvals = self.chats.approvals.for_chat(&self.chat.owner, &self.chat.id);
            approvals.renew_for_provider(&self.chat.unsent_approvals).await;
            let taken;
            (self.chat, taken) = self.chats.change(&self.chat, take).await?;
            taken
        } else {
            let is_wanted = self.kept().await?.is_none_or(|chat| chat.expects(&self.message_id));
            is_wanted.then(Vec::new)
        };
        let Some(told) = taken else { return Ok(false) };
        if live.is_to_stop() || !is_its(&told) {
            if !told.is_empty() {
                let put_back = |chat: &mut Chat| chat.restore_unsent_approvals(&told);
                (self.chat, ()) = self.chats.change(&self.chat, put_back).await?;
            }
            return Ok(false);
        }
        // Another run has sent these approvals, or is sending them now.
        let elsewhere = self.chat.forwarded_approvals().into_iter().filter(|result| {
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

    /// Records the outcomes of approval requests that were decided but are still open in the
    /// history. Returns these outcomes.
    ///
    /// A server may stop after a tool was executed and before its outcome was recorded in the
    /// history. The model must not be informed then that the tool was not executed. An outcome of a
    /// tool that is still executing is returned too, so that the model is informed of it, but is
    /// not recorded.
    async fn close_decided(
        &mut self,
        deferred: &DeferredToolResults,
        others_run: bool,
    ) -> Result<Vec<DeferredToolResult>, ChatError> {
        let mut open = self.chat.open_approvals();
        open.retain(|open| {
            let id = open.approval_id.as_ref();
            !deferred.pending().iter().any(|pending| pending.approval_id.as_ref() == id)
        });
        if open.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<ApprovalId> =
            open.iter().filter_map(|open| open.approval_id.clone()).collect();
        let approvals = self.chats.approvals.for_chat(&self.chat.owner, &self.chat.id);
        let resolved = approvals.resolved_requests(&ids).await?;
        let decided = resolved.into_iter().filter_map(|resolved| {
            let id = Some(&resolved.approval_id);
            let open = open.iter().find(|open| open.approval_id.as_ref() == id)?;
            let result = as_it_ended(open.with_outcome(resolved.outcome), &self.chat, others_run);
            Some((result, resolved.descriptor))
        });
        let decided: Vec<(DeferredToolResult, Option<Json>)> = decided.collect();
        if !decided.is_empty() {
            let close = |chat: &mut Chat| {
                decided.iter().for_each(|(now, shown)| chat.record_result(now, shown.as_ref()));
            };
            (self.chat, ()) = self.chats.change(&self.chat, close).await?;
        }
        let mut results = Vec::new();
        for (result, descriptor) in decided {
            // A call that is still executing has no result in the history.
            if self.chat.has_result(result.approval_id.as_ref(), &result.tool_call_id) == Some(true)
            {
                self.show_approval(&result.tool_call_id, descriptor).await;
            }
            results.push(result);
        }
        Ok(results)
    }

    /// Sends the result of a call to the client, if the call is in the message that the client's
    /// request continues. Of a call in another message only the data of its approval can be sent.
    async fn tell(&mut self, resolved: &RunningCalls, result: &DeferredToolResult) {
        let continued = self.request.as_ref().and_then(|request| request.continued_message());
        if continued.map(|message| &message.id) == result.message_id.as_ref()
            && let Some(event) = AgentEvent::from_deferred(result)
        {
            if result.outcome.matches_decision(true) {
                // The client may hold a denial that arrived after the approval.
                let tool_call_id = result.tool_call_id.clone();
                self.say(Ok(AgentEvent::DenialOverruled { tool_call_id })).await;
            }
            self.say(Ok(event)).await;
        }
        self.show_approval(&result.tool_call_id, resolved.descriptor(result)).await;
    }

    /// Sends the data of an approval to the client, which shows the newest data of each call.
    async fn show_approval(&mut self, call: &ToolCallId, descriptor: Option<Json>) {
        let Some(data) = descriptor else { return };
        let data = Data {
            name: "approval".into(),
            id: Some(call.to_string().into()),
            data,
            transient: false,
        };
        self.say(Ok(AgentEvent::Data(Box::new(data)))).await;
    }
}
