//! [`Agent`]: a model and its tools, for hosts that have no agent of their own.
//!
//! An [`Agent`] drives a [`ToolLoop`](crate::tool_loop::ToolLoop): it starts each effect of
//! the loop and passes the resulting inputs back. The agent makes no decisions itself. The messages
//! for the model are built from the messages of the chat and from the events that the run has
//! emitted so far, so the model of the next turn reads the same messages.

use std::fmt;
use std::future::ready;
use std::sync::Arc;

use futures_util::stream;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::client_tools;
use super::driver::{AgentRun, Inside};
use super::dyn_tool::IntoTool;
use super::schemas::Schemas;
use super::settings::Settings;
use super::structured_output::StructuredOutput;
use ui_message_stream::approval::{
    Approvals, ApprovedCall, ChangedInput, Progress, ToolInfo, ToolOutcome, Toolbox,
};
use ui_message_stream::event::AgentEvent;
use ui_message_stream::json::Json;
use ui_message_stream::message::UiMessage;
use ui_message_stream::model::Model;
use ui_message_stream::request::{ChatRequest, ParseRequestError};
use ui_message_stream::{BoxError, BoxFuture};
use ui_message_stream_chat::{AgentEventStream, ChatAgent, ChatServer, Turn};

/// An agent: it calls a model, runs the tools that the model calls, and repeats this until the
/// model calls no more tools or a call waits for the user or the client.
///
/// ```
/// use axum::Router;
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use ui_message_stream_agent::{Agent, Tool};
/// use ui_message_stream_chat::axum::chat_routes;
/// # use ui_message_stream::model::{Model, ModelRequest, ModelStream};
/// # #[derive(Debug)] struct MyModel;
/// # impl Model for MyModel {
/// #     fn call(&self, _: ModelRequest) -> ModelStream { Box::pin(futures::stream::empty()) }
/// # }
///
/// /// Sends money.
/// #[derive(Deserialize, JsonSchema)]
/// struct Transfer {
///     to: String,
///     amount: u64,
/// }
///
/// async fn transfer(transfer: Transfer) -> Result<String, std::io::Error> {
///     Ok(format!("{} went to {}", transfer.amount, transfer.to))
/// }
///
/// let agent = Agent::new(MyModel)
///     .tool(Tool::new("transfer", transfer).needs_approval_when(|input, _| input.amount > 1_000));
/// // Add your authentication as a layer around these routes: see `chat_routes`.
/// let app: Router = Router::new().nest("/api/chat", chat_routes(agent.into_chat_server()));
/// ```
///
/// To use an agent without a chat server, create a turn with [`Turn::new`] from the messages that
/// you store, and pass it to [`respond`](ChatAgent::respond).
///
/// Cloning an `Agent` is cheap. The builder methods on a clone do not change the original, so each
/// turn can have its own instructions; see [`ChatAgent`].
#[derive(Clone)]
pub struct Agent(pub(super) Arc<Settings>);

impl Agent {
    /// Creates an agent for this model, without tools.
    pub fn new(model: impl Model) -> Self {
        Agent(Arc::new(Settings::new(model)))
    }

    /// Sets the instructions, which the model reads before all messages.
    #[must_use]
    pub fn with_instructions(self, instructions: impl Into<Arc<str>>) -> Self {
        self.with(|settings| settings.instructions = Some(instructions.into()))
    }

    /// Sets the maximum number of model calls in a turn. The default is 20.
    ///
    /// If the last allowed model call calls tools, these tools still run. The response then ends
    /// with their results and the finish reason `tool-calls`. The model does not read the results
    /// in this turn.
    #[must_use]
    pub fn with_max_steps(self, steps: u32) -> Self {
        self.with(|settings| settings.max_steps = steps)
    }

    /// Sets the maximum number of tool calls of a step, those that the provider executes included.
    /// The default is 64.
    ///
    /// A call beyond it is not executed and its approval is not requested. The model and the user read
    /// that a step may hold at most so many calls. After 1000 such calls, the rest of the model's
    /// response is not read, and none of its calls is executed. See
    /// [`ToolLoop::with_max_step_calls`](crate::tool_loop::ToolLoop::with_max_step_calls).
    #[must_use]
    pub fn with_max_step_calls(self, calls: usize) -> Self {
        self.with(|settings| settings.max_step_calls = calls)
    }

    /// Writes the token usage of each message into its metadata. See
    /// [`ToolLoop::with_usage_metadata`](crate::tool_loop::ToolLoop::with_usage_metadata).
    #[must_use]
    pub fn with_usage_metadata(self) -> Self {
        self.with(|settings| settings.has_usage_metadata = true)
    }

    /// Requires approval for each call of a tool that has no approval setting (`needs_approval…` or
    /// `never_needs_approval`).
    ///
    /// A tool that the client executes asks only if it says so itself.
    ///
    /// The hints of a tool server (for example an MCP server) about its own tools do not count as a
    /// setting: its tools require approval too.
    #[must_use]
    pub fn require_approval_by_default(self) -> Self {
        self.with(|settings| settings.tools.is_approval_default = true)
    }

    /// Accepts tools that a request defines, in the field `clientTools` (or `client_tools`) of its
    /// body: `[{"name", "description"?, "inputSchema"?, "requiresApproval"?}, …]`.
    ///
    /// The client executes these tools. The model can call them in this turn only. A tool that requires
    /// approval is executed once the user has approved the call. A request that
    /// defines a tool with the name of a tool of this agent is rejected. This prevents a client
    /// from supplying the results of the agent's own tool.
    #[must_use]
    pub fn with_client_tools(self) -> Self {
        self.with(|settings| settings.can_accept_client_tools = true)
    }

    /// Makes the agent respond with structured output: the text of its last step is a `T` as JSON.
    ///
    /// The client receives the JSON while the model writes it, like any other text. Before that,
    /// tools are called and approvals are requested as usual. The last step is the one in which the
    /// model calls no tools. If the output is not a `T`, the model is asked once more, and the client
    /// has both texts; a second such output ends the response with an error. If the
    /// output was cut short by the token limit, by a content filter or by an error of the provider,
    /// it is not checked, and the response ends with that finish reason.
    ///
    /// [`UiMessage::output`] reads the output from the message. For a request with `Accept:
    /// application/json`, the route (`chat_routes`) returns it in the field `output`.
    ///
    /// ```
    /// use schemars::JsonSchema;
    /// use serde::Deserialize;
    /// # use ui_message_stream_agent::Agent;
    /// # use ui_message_stream::model::{Model, ModelRequest, ModelStream};
    /// # #[derive(Debug)] struct MyModel;
    /// # impl Model for MyModel {
    /// #     fn call(&self, _: ModelRequest) -> ModelStream { Box::pin(futures::stream::empty()) }
    /// # }
    ///
    /// #[derive(Deserialize, JsonSchema)]
    /// struct Invoice {
    ///     total: u64,
    ///     paid: bool,
    /// }
    ///
    /// let agent = Agent::new(MyModel).with_output::<Invoice>();
    /// ```
    ///
    /// # Panics
    /// Panics if `T` is not an object, because providers accept no other type: put a list or an
    /// enum into a struct. Panics if the schema of `T` is invalid, for example because of a pattern
    /// that cannot be parsed.
    #[must_use]
    #[track_caller]
    pub fn with_output<T: JsonSchema + DeserializeOwned + 'static>(self) -> Self {
        self.with(|settings| settings.output = Some(StructuredOutput::new::<T>()))
    }

    /// Passes the agent's events through `transform` before they reach the user and the chat
    /// history, for example to [smooth](ui_message_stream::response::Smooth) the text.
    ///
    /// A later call replaces the transform of an earlier one. [Structured
    /// output](Self::with_output) is checked before the transform.
    ///
    /// ```
    /// # use ui_message_stream_agent::Agent;
    /// # use ui_message_stream::model::Model;
    /// use std::time::Duration;
    ///
    /// use ui_message_stream::response::Smooth;
    ///
    /// fn with_smooth_text(agent: Agent) -> Agent {
    ///     let words = Smooth::by_words(Duration::from_millis(10));
    ///     agent.with_transform(move |events| Box::pin(words.apply(events)))
    /// }
    /// # let _ = with_smooth_text;
    /// ```
    #[must_use]
    pub fn with_transform(
        self,
        transform: impl Fn(AgentEventStream) -> AgentEventStream + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| settings.transform = Some(Arc::new(transform)))
    }

    /// Adds a tool.
    ///
    /// If the agent already has a tool with this name, and a tool server chose the name of one of the
    /// two, that one is left out with a warning. See [`DynTool::origin`](super::DynTool::origin).
    ///
    /// # Panics
    /// Panics if the agent already has a tool with this name, if model providers do not accept the
    /// name, or if the schema is invalid. An invalid tool is therefore found when the server
    /// starts.
    #[must_use]
    #[track_caller]
    pub fn tool(self, tool: impl IntoTool) -> Self {
        self.with(|settings| settings.tools.add(tool.into_tool()))
    }

    /// Adds several tools.
    ///
    /// # Panics
    /// Panics under the conditions of [`tool`](Self::tool).
    #[must_use]
    #[track_caller]
    pub fn tools(self, tools: impl IntoIterator<Item: IntoTool>) -> Self {
        self.with(|settings| {
            for tool in tools {
                settings.tools.add(tool.into_tool());
            }
        })
    }

    /// Returns the schemas of the tools, from which the types of a page are made: the inputs, and the outputs of the tools
    /// that [name their type](super::Tool::with_output_type). Tools for which a page has no type are left out.
    pub fn schemas(&self) -> Schemas {
        self.0.tools.schemas()
    }

    /// Creates a chat server for this agent. It keeps conversations in memory, and uses new
    /// [`Approvals`] with the default settings.
    ///
    /// To use your own keys, stores or audit sink, create the [`ChatServer`] yourself:
    /// `ChatServer::new(agent.clone(), Approvals::new(agent))`.
    pub fn into_chat_server(self) -> ChatServer {
        ChatServer::new(self.clone(), Approvals::new(self))
    }

    #[track_caller]
    fn with(self, set: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Arc::unwrap_or_clone(self.0);
        set(&mut settings);
        Agent(Arc::new(settings))
    }
}

impl Toolbox for Agent {
    fn tool(&self, name: &str) -> Option<ToolInfo> {
        if self.0.is_client_tool(name) {
            Some(client_tools::info(name))
        } else {
            self.0.tools.info(name)
        }
    }

    fn refresh<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(self.0.tools.refresh(name))
    }

    fn permits<'a>(&'a self, call: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        if self.0.is_client_tool(&call.tool_name) {
            Box::pin(ready(true))
        } else {
            Box::pin(self.0.tools.permits(call))
        }
    }

    fn check_input(&self, name: &str, input: &ChangedInput) -> Result<(), String> {
        self.0.tools.check_changed(name, input)
    }

    fn editable_tool(&self) -> Option<Box<str>> {
        self.0.tools.editable_tool()
    }

    fn run(&self, call: ApprovedCall, progress: Progress) -> BoxFuture<'static, ToolOutcome> {
        if self.0.is_client_tool(&call.tool_name) {
            Box::pin(ready(ToolOutcome::HandedToClient(call.input)))
        } else {
            self.0.tools.run_approved(call, progress)
        }
    }
}

impl ChatAgent for Agent {
    fn validate_request(&self, request: &ChatRequest) -> Result<(), ParseRequestError> {
        Ok(self.0.tools_for(Some(request)).map(drop)?)
    }

    fn structured_output(&self, message: &UiMessage) -> Option<Result<Json, BoxError>> {
        let output = self.0.output.as_ref()?.parse_message(message);
        Some(output.map_err(|error| error.to_string().into()))
    }

    fn respond(&self, turn: Turn) -> AgentEventStream {
        let events: AgentEventStream = match self.0.tools_for(turn.request.as_deref()) {
            Ok(tools) => {
                let settings = Arc::clone(&self.0);
                Box::pin(AgentRun::new(settings, tools, turn, Inside::of_user()))
            }
            // A `ChatServer` has validated the request, and a host with `Turn::new` may not have.
            Err(error) => {
                tracing::error!(%error, "a turn failed: its request defines invalid tools");
                Box::pin(stream::once(ready(Ok(AgentEvent::error(error.to_string())))))
            }
        };
        match &self.0.transform {
            Some(transform) => transform(events),
            None => events,
        }
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("model", &self.0.model)
            .field("tools", &self.0.tools)
            .field("max_steps", &self.0.max_steps)
            .finish_non_exhaustive()
    }
}
