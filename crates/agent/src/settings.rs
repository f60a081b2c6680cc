//! [`Settings`]: the configuration of an agent.

use std::sync::Arc;

use super::client_tools;
use super::structured_output::StructuredOutput;
use super::tool_set::ToolSet;
use ui_message_stream::json::FieldError;
use ui_message_stream::model::Model;
use ui_message_stream::request::ChatRequest;
use ui_message_stream_chat::AgentEventStream;

/// The settings of an agent, which its runs share.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) model: Arc<dyn Model>,
    pub(super) tools: ToolSet,
    pub(super) instructions: Option<Arc<str>>,
    pub(super) max_steps: u32,
    pub(super) max_step_calls: usize,
    pub(super) has_usage_metadata: bool,
    pub(super) can_accept_client_tools: bool,
    pub(super) output: Option<StructuredOutput>,
    pub(super) transform: Option<Arc<TransformFn>>,
}

type TransformFn = dyn Fn(AgentEventStream) -> AgentEventStream + Send + Sync;

impl Settings {
    pub(super) fn new(model: impl Model) -> Self {
        Settings {
            model: Arc::new(model),
            tools: ToolSet::default(),
            instructions: None,
            max_steps: 20,
            max_step_calls: 64,
            has_usage_metadata: false,
            can_accept_client_tools: false,
            output: None,
            transform: None,
        }
    }

    /// Returns the tools of a turn: those of the agent, and those of the request if it may define
    /// any.
    ///
    /// # Errors
    /// A [`FieldError`] if the tools of the request are invalid.
    pub(super) fn tools_for(&self, request: Option<&ChatRequest>) -> Result<ToolSet, FieldError> {
        match request.filter(|_| self.can_accept_client_tools) {
            Some(request) => client_tools::with_request_tools(&self.tools, request),
            None => Ok(self.tools.clone()),
        }
    }

    /// Whether a tool with this name can be one that a request has defined.
    pub(super) fn is_client_tool(&self, name: &str) -> bool {
        self.can_accept_client_tools && !self.tools.contains(name)
    }
}
