//! [`Gate`]: the hook that stands between rig and its tools.

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
use super::call_tracker::{Board, News};
use super::outcome::{self, is_internal};
use crate::model::{once_told, question};
use ui_message_stream::approval::{TOOL_FAILED, ToolOutcome};
use ui_message_stream::approvals::{AskError, Asked};
use ui_message_stream::chat::Turn;
use ui_message_stream::id::ToolCallId;
use ui_message_stream::json::{Json, JsonError};
use ui_message_stream::model_message::NotExecuted;

/// Tells of each call, asks about those that need a person, and stops the run before the model goes
/// on without the answer. The other calls of the step run.
pub(super) struct Gate {
    host: RigAgent,
    turn: Arc<Turn>,
    board: Arc<Board>,
    /// Whether a request of this run told the model the history.
    is_told: AtomicBool,
}

impl Gate {
    pub(super) fn new(host: RigAgent, turn: Arc<Turn>, board: Arc<Board>) -> Self {
        Gate { host, turn, board, is_told: AtomicBool::new(false) }
    }

    /// Tells how a call looks; if it cannot be shown, why not.
    fn tell(&self, id: &ToolCallId, tool: &str, args: &str) -> Result<Json, String> {
        let (id, tool) = (id.clone(), tool.to_owned());
        match Json::parse(args) {
            Ok(input) => {
                self.board.tell(News::Called { id, tool, input: input.clone() });
                Ok(input)
            }
            Err(error) => {
                let (input, why) = (args.to_owned(), unusable(&error));
                self.board.tell(News::NotShown { id, tool, input, why: why.clone() });
                Err(why)
            }
        }
    }

    /// Asks the person; if nobody could be asked, why not.
    async fn ask(&self, id: &ToolCallId, tool: &str, input: &Json) -> Result<(), String> {
        let (approvals, message) = (&self.turn.approvals, &self.turn.message_id);
        let description = self.host.description(tool, input);
        let asked = approvals.ask(message, id, tool, input, description.as_deref()).await;
        self.asked(id, tool, asked)
    }

    /// Asks the person what the provider asks.
    async fn ask_for_provider(&self, response: &CompletionResponse) {
        let questions = response.choice.iter().filter_map(|said| match said {
            AssistantContent::Opaque(opaque) => question(opaque, Some(&response.origin)),
            _ => None,
        });
        for (call, arguments) in questions {
            let (id, tool) = (call.id.clone(), call.tool_name.to_string());
            let input = match Json::parse(&arguments) {
                Ok(input) => input,
                Err(error) => {
                    let shown = Err((arguments, unusable(&error)));
                    self.board.tell(News::ProviderAsks(Box::new(call), shown));
                    continue;
                }
            };
            self.board.tell(News::ProviderAsks(Box::new(call), Ok(input.clone())));
            let (approvals, message) = (&self.turn.approvals, &self.turn.message_id);
            let asked = approvals.ask_for_provider(message, &id, &tool, &input, None).await;
            if let Err(why) = self.asked(&id, &tool, asked) {
                self.board.tell(News::Became(id, ToolOutcome::Failed(why)));
            }
        }
    }

    /// rig sends with each request of the run what the first one had; what that one allowed the
    /// provider is left out of the others, also where a hook has the model say its answer anew.
    fn telling_once(&self, kind: &EffectKind) -> DispatchAction {
        let EffectKind::Completion { request, stream } = kind else {
            return DispatchAction::proceed();
        };
        let Some(chat_history) = once_told(&request.chat_history) else {
            return DispatchAction::proceed();
        };
        if !self.is_told.swap(true, Ordering::Relaxed) {
            return DispatchAction::proceed();
        }
        let mut request = request.clone();
        request.chat_history = chat_history;
        DispatchAction::patch(EffectKind::Completion { request, stream: *stream })
    }

    /// A call has failed, for the person as for the model.
    fn fail(&self, id: ToolCallId, why: String) -> OutcomeAction {
        let result = ToolResult::failed(ToolExecutionError::other(&why));
        self.board.tell(News::Became(id, ToolOutcome::Failed(why)));
        OutcomeAction::replace(Ok(Outcome::ToolResult { result }))
    }

    fn asked(
        &self,
        id: &ToolCallId,
        tool: &str,
        asked: Result<Asked, AskError>,
    ) -> Result<(), String> {
        match asked {
            Ok(asked) => {
                self.board.tell(News::Asked(id.clone(), Box::new(asked)));
                Ok(())
            }
            Err(error) => {
                tracing::warn!(%error, tool, "nobody is asked about a tool call");
                Err(match &error {
                    AskError::NotShownAsIs(why) => why.to_string(),
                    _ => NOT_ASKED.to_owned(),
                })
            }
        }
    }
}

impl AgentHook for Gate {
    async fn on_dispatch(&self, _: &HookContext, event: DispatchEvent<'_>) -> DispatchAction {
        let (Some(tool), Some(args)) = (event.tool_name(), event.tool_args()) else {
            return self.telling_once(event.kind);
        };
        let id = self.board.dispatched(event.id, event.call_id, tool);
        let input = match self.tell(&id, tool, args) {
            Ok(input) => input,
            Err(why) => return DispatchAction::skip(why),
        };
        if !self.host.asks(tool, &input) {
            return DispatchAction::proceed();
        }
        match self.ask(&id, tool, &input).await {
            Ok(()) => DispatchAction::skip(NotExecuted::AwaitsApproval.to_string()),
            Err(why) => {
                self.board.tell(News::Became(id, ToolOutcome::Failed(why.clone())));
                DispatchAction::skip(why)
            }
        }
    }

    async fn on_outcome(&self, _: &HookContext, event: OutcomeEvent<'_>) -> OutcomeAction {
        if let Some(response) = event.completion() {
            let texts = response.choice.iter().filter_map(|said| match said {
                AssistantContent::Text(text) => Some(text.clone()),
                _ => None,
            });
            let origin = Box::new(response.origin.clone());
            self.board.tell(News::Answered(origin, texts.collect()));
            // rig fails such an answer behind its hooks.
            let (stop, reason) = (response.stop(), response.finish_reason());
            if turn_failure(&response.choice, Some(&stop), reason.as_ref()).is_none() {
                self.ask_for_provider(response).await;
            }
        }
        let (Some(tool), Some(args)) = (event.tool_name(), event.tool_args()) else {
            return OutcomeAction::proceed();
        };
        let id = self.board.dispatched(event.id, event.call_id, tool);
        // A hook before this one refused it.
        if !self.board.is_called(&id) {
            let _ = self.tell(&id, tool, args);
        }
        match event.outcome {
            // As of a tool that panicked: what rig says of that is nobody's business outside.
            Err(report) if is_internal(report.kind) => {
                tracing::error!(error = %report, tool, "a tool call has no outcome");
                self.fail(id, TOOL_FAILED.to_owned())
            }
            Ok(Outcome::ToolResult { result }) if !self.board.is_waiting(&id) => {
                match outcome::of(result, self.host.most_output_bytes()) {
                    // The model reads what the person reads.
                    ToolOutcome::Failed(why) if !outcome::is_worded(result) => self.fail(id, why),
                    became => {
                        self.board.tell(News::Became(id, became));
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
        let mut before = event.history.iter().rev();
        let origin = before.find_map(|message| match message {
            Message::Assistant(said) => said.origin.clone(),
            _ => None,
        });
        if let Some(origin) = origin {
            self.board.tell(News::AnsweredBefore(Box::new(origin)));
        }
        match self.board.waits() {
            true => CompletionCallAction::stop("a person is asked about a tool call"),
            false => CompletionCallAction::continue_run(),
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

fn unusable(error: &JsonError) -> String {
    format!("the input is not usable: {error}")
}

/// Said of a call that needs a person, where nobody could be asked.
const NOT_ASKED: &str = "This tool call was not executed: nobody could be asked to approve it.";
