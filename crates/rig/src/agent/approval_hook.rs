//! [`ApprovalHook`]: the hook that requests approval of tool calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::rig_agent::agent::{
    AgentHook, CompletionCallAction, CompletionCallEvent, DispatchAction, DispatchEvent,
    HookContext, OutcomeAction, OutcomeEvent, StepEventKind,
};
use rig_core::completion::CompletionResponse;
use rig_core::effect::{EffectKind, Outcome};
use rig_core::message::{AssistantContent, Message, turn_failure};
use rig_core::tool::{ToolExecutionError, ToolResult};

use super::RigAgent;
use super::call_tracker::{CallTracker, CallUpdate};
use super::outcome::{self, is_internal};
use crate::model::{is_complete, provider_approval_call, strip_sent_approvals};
use ui_message_stream::UserText;
use ui_message_stream::approval::{IssuedApproval, RequestApprovalError, ToolOutcome};
use ui_message_stream::id::{ToolCallId, log_text};
use ui_message_stream::json::{Json, JsonError};
use ui_message_stream::model::NotExecutedReason;
use ui_message_stream_agent::ApprovalContext;
use ui_message_stream_chat::Turn;

/// Reports each tool call to the [`CallTracker`], requests approval where necessary, and stops the
/// run before the model is called again without the response. The other calls of the step are
/// executed.
pub(super) struct ApprovalHook {
    host: RigAgent,
    turn: Arc<Turn>,
    tracker: Arc<CallTracker>,
    /// Whether a request of this run has sent the history to the model.
    has_sent_history: AtomicBool,
    /// Whether the last response may have been cut off in a call. Its calls do not run.
    was_cut_off: AtomicBool,
}

impl ApprovalHook {
    pub(super) fn new(host: RigAgent, turn: Arc<Turn>, tracker: Arc<CallTracker>) -> Self {
        let has_sent_history = AtomicBool::new(false);
        let was_cut_off = AtomicBool::new(false);
        ApprovalHook { host, turn, tracker, has_sent_history, was_cut_off }
    }

    /// Reports a call and its input. Returns the error message if the call does not run: its input is not usable JSON,
    /// its response was cut off, or the provider has sent it before.
    fn announce(&self, id: &ToolCallId, tool: &str, args: &str) -> Result<Json, String> {
        let id = id.clone();
        let tool = tool.to_owned();
        let why = match Json::parse(args) {
            Ok(_) if self.was_cut_off.load(Ordering::Relaxed) => UserText::NotStarted.to_string(),
            Ok(_) if self.tracker.is_repeated(&id) => UserText::Refused.to_string(),
            Ok(input) => {
                self.tracker.push(CallUpdate::Called { id, tool, input: input.clone() });
                return Ok(input);
            }
            Err(error) => invalid_input_message(&error),
        };
        let input = args.to_owned();
        let shown = why.clone();
        self.tracker.push(CallUpdate::InvalidInput { id, tool, input, why: shown });
        Err(why)
    }

    /// Requests approval from the user. Returns the error message if the request fails.
    async fn request_approval(
        &self,
        id: &ToolCallId,
        tool: &str,
        input: &Json,
        description: Option<String>,
    ) -> Result<(), String> {
        let approvals = &self.turn.approvals;
        let message = &self.turn.message_id;
        let issued =
            approvals.request_approval(message, id, tool, input, description.as_deref()).await;
        self.record_request(id, tool, issued)
    }

    /// Requests approval from the user for each approval request of the provider in the response.
    async fn request_provider_approval(&self, response: &CompletionResponse) {
        let requests = response.choice.iter().filter_map(|content| match content {
            AssistantContent::Opaque(opaque) => {
                provider_approval_call(opaque, Some(&response.origin))
            }
            _ => None,
        });
        for (call, arguments) in requests {
            let id = call.id.clone();
            let tool = call.tool_name.to_string();
            let input = match Json::parse(&arguments) {
                Ok(input) => input,
                Err(error) => {
                    let shown = Err((arguments, invalid_input_message(&error)));
                    self.tracker.push(CallUpdate::ProviderApprovalRequest(Box::new(call), shown));
                    continue;
                }
            };
            self.tracker
                .push(CallUpdate::ProviderApprovalRequest(Box::new(call), Ok(input.clone())));
            let approvals = &self.turn.approvals;
            let message = &self.turn.message_id;
            let issued =
                approvals.request_provider_approval(message, &id, &tool, &input, None).await;
            if let Err(why) = self.record_request(&id, &tool, issued) {
                self.tracker.push(CallUpdate::Finished(id, ToolOutcome::Failed(why)));
            }
        }
    }

    /// Removes sent approvals from a completion request.
    ///
    /// rig sends the history of the run's first request with every later request of the run. An
    /// approval that the first request sent to the provider is therefore removed from the later
    /// ones, including those in which a hook lets the model answer again.
    fn without_sent_approvals(&self, kind: &EffectKind) -> DispatchAction {
        let EffectKind::Completion { request, stream } = kind else {
            return DispatchAction::proceed();
        };
        let Some(chat_history) = strip_sent_approvals(&request.chat_history) else {
            return DispatchAction::proceed();
        };
        if !self.has_sent_history.swap(true, Ordering::Relaxed) {
            return DispatchAction::proceed();
        }
        let mut request = request.clone();
        request.chat_history = chat_history;
        DispatchAction::patch(EffectKind::Completion { request, stream: *stream })
    }

    /// Records the failure of a call with one message for both the user and the model.
    fn fail(&self, id: ToolCallId, why: String) -> OutcomeAction {
        let result = ToolResult::failed(ToolExecutionError::other(&why));
        self.tracker.push(CallUpdate::Finished(id, ToolOutcome::Failed(why)));
        OutcomeAction::replace(Ok(Outcome::ToolResult { result }))
    }

    fn record_request(
        &self,
        id: &ToolCallId,
        tool: &str,
        issued: Result<IssuedApproval, RequestApprovalError>,
    ) -> Result<(), String> {
        match issued {
            Ok(issued) => {
                self.tracker.push(CallUpdate::ApprovalRequested(id.clone(), Box::new(issued)));
                Ok(())
            }
            Err(error) => {
                let tool = &*log_text(tool);
                tracing::warn!(%error, tool, "the approval of a tool call could not be requested");
                Err(error.error_text())
            }
        }
    }
}

impl AgentHook for ApprovalHook {
    async fn on_dispatch(&self, _: &HookContext, event: DispatchEvent<'_>) -> DispatchAction {
        let (Some(tool), Some(args)) = (event.tool_name(), event.tool_args()) else {
            return self.without_sent_approvals(event.kind);
        };
        let id = self.tracker.dispatched_id(event.id, event.call_id, tool);
        let input = match self.announce(&id, tool, args) {
            Ok(input) => input,
            Err(why) => return DispatchAction::skip(why),
        };
        let policy = self.host.policy(tool);
        if !policy.authorizes(tool, &self.turn.chat.owner, &input).await {
            self.tracker.push(CallUpdate::Refused(id));
            return DispatchAction::skip(UserText::NotPermitted.text());
        }
        let context = ApprovalContext::new(id.clone(), Arc::clone(&self.turn.chat));
        if !policy.requires_approval(tool, &input, context).await {
            return DispatchAction::proceed();
        }
        let description = policy.approval_description(tool, &input);
        match self.request_approval(&id, tool, &input, description).await {
            Ok(()) => DispatchAction::skip(NotExecutedReason::AwaitsApproval.to_string()),
            Err(why) => {
                self.tracker.push(CallUpdate::Finished(id, ToolOutcome::Failed(why.clone())));
                DispatchAction::skip(why)
            }
        }
    }

    async fn on_outcome(&self, _: &HookContext, event: OutcomeEvent<'_>) -> OutcomeAction {
        if let Some(response) = event.completion() {
            let texts = response.choice.iter().filter_map(|content| match content {
                AssistantContent::Text(text) => Some(text.clone()),
                _ => None,
            });
            let origin = Box::new(response.origin.clone());
            self.tracker.push(CallUpdate::ResponseCompleted(origin, texts.collect()));
            // rig treats such a response as failed, after its hooks have run.
            let stop = response.stop();
            let reason = response.finish_reason();
            let is_whole = is_complete(response);
            self.was_cut_off.store(!is_whole, Ordering::Relaxed);
            if is_whole && turn_failure(&response.choice, Some(&stop), reason.as_ref()).is_none() {
                self.request_provider_approval(response).await;
            }
        }
        let (Some(tool), Some(args)) = (event.tool_name(), event.tool_args()) else {
            return OutcomeAction::proceed();
        };
        let id = self.tracker.dispatched_id(event.id, event.call_id, tool);
        // Another hook has refused the call before this hook saw it.
        if !self.tracker.is_announced(&id) {
            let _ = self.announce(&id, tool, args);
        }
        match event.outcome {
            // Handled like a panic of the tool: rig's message is internal and is not shown.
            Err(report) if is_internal(report.kind) => {
                let tool = &*log_text(tool);
                tracing::error!(error = %report, tool, "a tool call has no outcome");
                self.fail(id, UserText::ToolFailed.to_string())
            }
            Ok(Outcome::ToolResult { result }) if !self.tracker.is_awaiting_approval(&id) => {
                match outcome::from_result(result, self.host.0.limits.max_output_bytes) {
                    // The model reads the same message as the user.
                    ToolOutcome::Failed(why) if !outcome::has_public_message(result) => {
                        self.fail(id, why)
                    }
                    outcome => {
                        self.tracker.push(CallUpdate::Finished(id, outcome));
                        OutcomeAction::proceed()
                    }
                }
            }
            _ => OutcomeAction::proceed(),
        }
    }

    async fn on_completion_call(
        &self,
        _: &HookContext,
        event: CompletionCallEvent<'_>,
    ) -> CompletionCallAction {
        let mut earlier = event.history.iter().rev();
        let origin = earlier.find_map(|message| match message {
            Message::Assistant(assistant) => assistant.origin.clone(),
            _ => None,
        });
        if let Some(origin) = origin {
            self.tracker.push(CallUpdate::PreviousOrigin(Box::new(origin)));
        }
        if self.tracker.has_pending_approvals() {
            CompletionCallAction::stop("a person is asked about a tool call")
        } else {
            CompletionCallAction::continue_run()
        }
    }

    fn observes(&self, kind: StepEventKind) -> bool {
        matches!(
            kind,
            StepEventKind::CompletionCall
                | StepEventKind::CompletionDispatch
                | StepEventKind::ToolDispatch
        )
    }
}

fn invalid_input_message(error: &JsonError) -> String {
    format!("the input is not usable: {error}")
}
