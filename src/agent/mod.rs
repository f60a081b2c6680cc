//! [`Agent`]: a model and tools, for those who have no agent of their own.
//!
//! It drives a [`Run`](crate::run::Run): each errand is begun, and what it brings is handed back.
//! Nothing is decided here. What the model reads is made from the chat's messages and from what the
//! run has said so far, so that the next turn's model reads the same.

mod agent_run;
mod any_tool;
mod client_tools;
mod context;
mod model;
mod output;
mod tool;
mod tool_run;
mod tools;
mod transcript;

use std::fmt;
use std::future::ready;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

pub use self::any_tool::AnyTool;
pub use self::context::{ApprovalContext, NotShown, ToolContext};
pub use self::model::{Model, ModelRequest, ModelStream, ToolDescription};
pub use self::output::OutputSchema;
pub use self::tool::{ClientExecuted, Handler, IntoTool, Told, Tool, WithContext, WithoutContext};

use self::agent_run::AgentRun;
use self::output::Output;
use self::tools::Tools;
use crate::approval::ToolOutcome;
use crate::approvals::{Approvals, ApprovedCall, ToolFacts, Toolbox};
use crate::chat::{Chats, Respond, Said, Turn};
use crate::json::Json;
use crate::ledger_store::BoxFuture;
use crate::message::UiMessage;
use crate::record::FieldError;
use crate::request::{ChatRequest, ParseRequestError};
use crate::stream::BoxError;

/// A model and its tools.
///
/// ```
/// use axum::Router;
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use ui_message_stream::agent::{Agent, Tool};
/// use ui_message_stream::axum::chat_routes;
/// # use ui_message_stream::agent::{Model, ModelRequest, ModelStream};
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
/// let app: Router = Router::new().nest("/api/chat", chat_routes(agent.into_chats()));
/// ```
#[derive(Clone)]
pub struct Agent(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    model: Arc<dyn Model>,
    tools: Tools,
    instructions: Option<Arc<str>>,
    most_steps: u32,
    tells_usage: bool,
    takes_client_tools: bool,
    output: Option<Output>,
    transform: Option<Arc<Transform>>,
}

type Transform = dyn Fn(Said) -> Said + Send + Sync;

impl Agent {
    /// An agent of this model, which has no tools yet.
    pub fn new(model: impl Model) -> Self {
        Agent(Arc::new(Inner {
            model: Arc::new(model),
            tools: Tools::default(),
            instructions: None,
            most_steps: 20,
            tells_usage: false,
            takes_client_tools: false,
            output: None,
            transform: None,
        }))
    }

    /// What the model is told before everything else.
    #[must_use]
    pub fn with_instructions(self, instructions: impl Into<Arc<str>>) -> Self {
        self.with(|inner| inner.instructions = Some(instructions.into()))
    }

    /// How often the model is called in a turn at most; 20 times unless set. At the limit the answer
    /// ends with what the tools returned: the client reads the finish reason `tool-calls`, and nothing
    /// waits.
    #[must_use]
    pub fn with_most_steps(self, steps: u32) -> Self {
        self.with(|inner| inner.most_steps = steps)
    }

    /// Says in the metadata of each message what it cost: see [`Run::telling_usage`](crate::run::Run::telling_usage).
    #[must_use]
    pub fn with_usage_in_metadata(self) -> Self {
        self.with(|inner| inner.tells_usage = true)
    }

    /// A person is asked before each call of a tool of which the host did not say when to ask. What a
    /// tool server says of its tools is not the host's word.
    #[must_use]
    pub fn with_approval_by_default(self) -> Self {
        self.with(|inner| inner.tools.ask_by_default = true)
    }

    /// Takes tools that a request brings, in the body's `clientTools` (or `client_tools`):
    /// `[{"name", "description"?, "inputSchema"}, …]`. The client runs them, and the model is told of
    /// them in this turn. A request that brings one under the name of a tool that is here is refused:
    /// the client could answer that tool's calls.
    #[must_use]
    pub fn with_client_tools(self) -> Self {
        self.with(|inner| inner.takes_client_tools = true)
    }

    /// Has the agent answer in a structure: the text of its last step is a `T` as JSON, which the
    /// client reads as it grows, and as any other text. Tools are called and people are asked as
    /// always; the answer comes when the model asks for nothing more. One that is no `T` is an error,
    /// and the response ends with it; one that was cut, by the limit of tokens, a filter or an error of
    /// the provider, ends with that reason.
    ///
    /// [`UiMessage::output`] reads it from the message; asked for JSON, the
    /// [route](crate::axum::chat_routes) gives it as `output`.
    ///
    /// ```
    /// use schemars::JsonSchema;
    /// use serde::Deserialize;
    /// # use ui_message_stream::agent::{Agent, Model, ModelRequest, ModelStream};
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
    /// If `T` is not an object: providers take no other. Put a list, or an enum, into a struct. If its
    /// schema is none, as one with a pattern that cannot be read.
    #[must_use]
    #[track_caller]
    pub fn with_output<T: JsonSchema + DeserializeOwned + 'static>(self) -> Self {
        self.with(|inner| inner.output = Some(Output::of::<T>()))
    }

    /// Lets what the agent says pass through here, on its way to the person and to the history:
    /// [paced](crate::smooth::Smooth), for instance. A later one takes the place of an earlier one. An
    /// [answer in a structure](Self::with_output) is looked at before it passes.
    ///
    /// ```
    /// # use ui_message_stream::agent::{Agent, Model};
    /// use std::time::Duration;
    ///
    /// use ui_message_stream::smooth::Smooth;
    ///
    /// fn at_a_reading_pace(agent: Agent) -> Agent {
    ///     let words = Smooth::by_words(Duration::from_millis(10));
    ///     agent.with_transform(move |said| Box::pin(words.pace(said)))
    /// }
    /// # let _ = at_a_reading_pace;
    /// ```
    #[must_use]
    pub fn with_transform(self, transform: impl Fn(Said) -> Said + Send + Sync + 'static) -> Self {
        self.with(|inner| inner.transform = Some(Arc::new(transform)))
    }

    /// Gives it a tool.
    ///
    /// # Panics
    /// An agent is made when a server starts, and what could not be called is found out then: if it
    /// has a tool of this name, as nobody can know which of the two is meant; if model providers do
    /// not take the name; if the schema is none.
    #[must_use]
    #[track_caller]
    pub fn tool(self, tool: impl IntoTool) -> Self {
        self.with(|inner| inner.tools.add(tool.into_tool()))
    }

    /// Gives it several tools.
    ///
    /// # Panics
    /// As [`tool`](Self::tool).
    #[must_use]
    #[track_caller]
    pub fn tools(self, tools: impl IntoIterator<Item: IntoTool>) -> Self {
        self.with(|inner| {
            for tool in tools {
                inner.tools.add(tool.into_tool());
            }
        })
    }

    /// Conversations that this agent answers, kept in memory, with approvals of their own. For keys,
    /// stores and an audit of yours, make the [`Chats`] yourself:
    /// `Chats::new(agent.clone(), Approvals::new(agent))`.
    pub fn into_chats(self) -> Chats {
        Chats::new(self.clone(), Approvals::new(self))
    }

    #[track_caller]
    fn with(self, set: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = Arc::unwrap_or_clone(self.0);
        set(&mut inner);
        Agent(Arc::new(inner))
    }

    /// The tools of a turn.
    fn tools_of(&self, request: Option<&ChatRequest>) -> Result<Tools, FieldError> {
        match request.filter(|_| self.0.takes_client_tools) {
            Some(request) => client_tools::with_tools_of(&self.0.tools, request),
            None => Ok(self.0.tools.clone()),
        }
    }
}

impl Toolbox for Agent {
    fn tool(&self, name: &str) -> Option<ToolFacts> {
        self.0.tools.facts(name)
    }

    fn refresh<'a>(&'a self, name: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(self.0.tools.refresh(name))
    }

    fn permits<'a>(&'a self, call: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(ready(self.0.tools.check(&call.tool_name, &call.input).is_ok()))
    }

    fn run(&self, call: ApprovedCall) -> BoxFuture<'static, ToolOutcome> {
        self.0.tools.run_approved(call)
    }
}

impl Respond for Agent {
    fn check(&self, request: &ChatRequest) -> Result<(), ParseRequestError> {
        Ok(self.tools_of(Some(request)).map(drop)?)
    }

    fn output_of(&self, message: &UiMessage) -> Option<Result<Json, BoxError>> {
        let read = self.0.output.as_ref()?.read(message);
        Some(read.map_err(|why| why.to_string().into()))
    }

    fn respond(&self, turn: Turn) -> Said {
        let said: Said = Box::pin(AgentRun::of(self.clone(), turn));
        match &self.0.transform {
            Some(transform) => transform(said),
            None => said,
        }
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("model", &self.0.model)
            .field("tools", &self.0.tools)
            .field("most_steps", &self.0.most_steps)
            .finish_non_exhaustive()
    }
}
