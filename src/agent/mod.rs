//! [`Agent`]: a model and tools, for those who have no agent of their own.
//!
//! It drives a [`Run`]: each errand is begun, and what it brings is handed back. Nothing is decided
//! here. What the model reads is made from the chat's messages and from what the run has said so
//! far, so that the next turn's model reads the same.

mod client_tools;
mod context;
mod model;
mod output;
mod tool;
mod tool_run;
mod tools;
mod transcript;

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready as poll_ready};

use futures_core::Stream;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use tracing::{Span, field};

pub use self::context::{ApprovalContext, ToolContext};
pub use self::model::{Model, ModelRequest, ModelStream, ToolDescription};
pub use self::output::OutputSchema;
pub use self::tool::{ClientExecuted, Handler, IntoTool, Told, Tool, WithContext, WithoutContext};
#[cfg(feature = "rig")]
pub(crate) use self::tool_run::{TOO_LARGE, TOO_LONG};
pub use self::tools::AnyTool;
#[cfg(feature = "mcp")]
pub(crate) use self::tools::MOST_OUTPUT_BYTES;

use self::model::ModelInputs;
use self::output::Output;
use self::tool_run::Once;
use self::tools::Tools;
use self::transcript::Transcript;
use crate::approval::{OpenCall, ToolOutcome};
use crate::approvals::{Approvals, ApprovedCall, AskError, ToolFacts, Toolbox};
use crate::chat::{Chats, Respond, Said, Turn};
use crate::event::AgentEvent;
use crate::id::ToolCallId;
use crate::json::Json;
use crate::ledger_store::BoxFuture;
use crate::message::UiMessage;
use crate::record::FieldError;
use crate::request::{ChatRequest, ParseRequestError};
use crate::run::{Errand, Input, Run, Step, ToolEvent, Usage, UsageMetadata};
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

    /// Says in the metadata of each message what it cost: see [`Run::telling_usage`].
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
    /// and the response ends with it; one that the model itself did not end, as at its limit of
    /// tokens, is none that is held against anything.
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
    /// If `T` is not an object: providers take no other. Put a list, or an enum, into a struct. If a
    /// pattern in its schema has look-around or backreferences, as with a [tool](Self::tool).
    #[must_use]
    #[track_caller]
    pub fn with_output<T: JsonSchema + DeserializeOwned + 'static>(self) -> Self {
        self.with(|inner| inner.output = Some(Output::of::<T>()))
    }

    /// Lets what the agent says pass through here, on its way to the person and to the history:
    /// [paced](crate::smooth::Smooth), for instance. A later one takes the place of an earlier one.
    #[must_use]
    pub fn with_transform(self, transform: impl Fn(Said) -> Said + Send + Sync + 'static) -> Self {
        self.with(|inner| inner.transform = Some(Arc::new(transform)))
    }

    /// Gives it a tool.
    ///
    /// # Panics
    /// An agent is made when a server starts, and what could not be called is found out then: if it
    /// has a tool of this name, as nobody can know which of the two is meant; if model providers do
    /// not take the name; if the schema is none. One whose pattern has look-around or backreferences
    /// is none, as an input could make it take very long to match.
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

    fn begin(
        &self,
        errand: Errand,
        tools: &Tools,
        turn: &Arc<Turn>,
        transcript: &mut Transcript,
    ) -> Inputs {
        match errand {
            Errand::CallModel { step } => {
                let request = ModelRequest {
                    instructions: self.0.instructions.clone(),
                    messages: transcript.messages(turn, step, tools),
                    tools: tools.descriptions(),
                    output: self.0.output.as_ref().map(Output::schema),
                };
                let chat = &turn.chat.id;
                Box::pin(ModelInputs::of(&*self.0.model, request, tools.clone(), chat))
            }
            Errand::Check(call) => {
                let fits = tools.check(&call.tool_name, &call.input);
                one(ready(Input::Checked { tool_call_id: call.tool_call_id, fits }))
            }
            Errand::Prepare(call) => {
                let tools = tools.clone();
                let chat = Arc::new(transcript.chat(turn));
                one(async move {
                    let verdict = tools.prepare(&call, chat).await;
                    Input::Prepared { tool_call_id: call.tool_call_id, verdict }
                })
            }
            Errand::Ask(call) => {
                let (tools, turn) = (tools.clone(), Arc::clone(turn));
                one(async move { ask(&tools, &turn, call).await })
            }
            Errand::RunTool(call) => tools.run(call, turn),
            Errand::CheckOutput => {
                let output = self.0.output.as_ref();
                let checked = output.map(|output| output.read(transcript.now()).map(drop));
                one(ready(Input::OutputChecked(checked.unwrap_or(Ok(())))))
            }
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

    fn output_of(&self, message: &UiMessage) -> Option<Json> {
        self.0.output.as_ref()?.read(message).ok()
    }

    fn respond(&self, turn: Turn) -> Said {
        let run = Run::new(self.0.most_steps).with_calls(calls_of(&turn));
        let run = if self.0.output.is_some() { run.checking_output() } else { run };
        let said: Said = Box::pin(AgentRun {
            agent: self.clone(),
            // What the request brings was checked before it was taken.
            tools: self.tools_of(turn.request.as_deref()).unwrap_or_else(|_| self.0.tools.clone()),
            run: match self.0.tells_usage {
                true => run.telling_usage(cost_of(&turn)),
                false => run,
            },
            span: tracing::info_span!(
                "invoke_agent",
                gen_ai.operation.name = "invoke_agent",
                gen_ai.provider.name = self.0.model.provider(),
                gen_ai.conversation.id = turn.chat.id.as_str(),
                gen_ai.usage.input_tokens = field::Empty,
                gen_ai.usage.output_tokens = field::Empty,
            ),
            step: Span::none(),
            transcript: Transcript::of(&turn),
            turn: Arc::new(turn),
            errands: VecDeque::new(),
        });
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

/// What an errand brings, as it comes.
type Inputs = Pin<Box<dyn Stream<Item = Input> + Send>>;

/// One turn under way.
struct AgentRun {
    agent: Agent,
    tools: Tools,
    run: Run,
    turn: Arc<Turn>,
    transcript: Transcript,
    errands: VecDeque<Inputs>,
    /// Named after the conventions of OpenTelemetry for generative AI; without any content.
    span: Span,
    /// The step within it.
    step: Span,
}

impl AgentRun {
    /// Begins an errand. What is decided about a call is heard before the model goes on, so that it
    /// stands beside the call.
    fn begin(&mut self, errand: Errand) {
        if let Errand::CallModel { step } = errand {
            self.step = tracing::info_span!(parent: &self.span, "step", step);
        }
        let _entered = self.step.clone().entered();
        let is_decision = matches!(errand, Errand::Check(_) | Errand::Prepare(_) | Errand::Ask(_));
        let inputs = self.agent.begin(errand, &self.tools, &self.turn, &mut self.transcript);
        match is_decision {
            true => self.errands.push_front(inputs),
            false => self.errands.push_back(inputs),
        }
    }

    /// What any errand brings next; `None` if none is under way.
    fn poll_errands(&mut self, cx: &mut Context<'_>) -> Poll<Option<Input>> {
        let mut at = 0;
        while let Some(errand) = self.errands.get_mut(at) {
            match errand.as_mut().poll_next(cx) {
                Poll::Ready(Some(input)) => {
                    // Behind the others: what has much to say does not keep them waiting.
                    let errand = self.errands.remove(at);
                    self.errands.extend(errand);
                    return Poll::Ready(Some(input));
                }
                Poll::Ready(None) => drop(self.errands.remove(at)),
                Poll::Pending => at += 1,
            }
        }
        if self.errands.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    }
}

/// However it ends: who hears the last event asks for no more.
impl Drop for AgentRun {
    fn drop(&mut self) {
        let usage = self.run.usage();
        if usage == Usage::default() {
            return;
        }
        self.span.record("gen_ai.usage.input_tokens", usage.input_tokens);
        self.span.record("gen_ai.usage.output_tokens", usage.output_tokens);
    }
}

impl Stream for AgentRun {
    type Item = Result<AgentEvent, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let _entered = this.span.clone().entered();
        loop {
            match this.run.poll() {
                Step::Say(event) => {
                    this.transcript.hear(&event);
                    return Poll::Ready(Some(Ok(event)));
                }
                Step::Begin(errand) => this.begin(errand),
                Step::Wait => {
                    match poll_ready!(this.step.clone().in_scope(|| this.poll_errands(cx))) {
                        Some(input) => this.run.handle(input),
                        // Every errand says how it ends. If one did not, what is open is closed as of
                        // any stream that ends.
                        None => return Poll::Ready(None),
                    }
                }
                Step::End(_) => return Poll::Ready(None),
            }
        }
    }
}

/// The calls of the chat: of one that the client runs, the id alone says later which it is.
fn calls_of(turn: &Turn) -> impl Iterator<Item = ToolCallId> {
    let parts = turn.chat.messages.iter().flat_map(UiMessage::tool_parts);
    parts.map(|part| part.tool_call_id.clone())
}

/// What the message cost that the agent goes on with, as far as that was told.
pub(crate) fn cost_of(turn: &Turn) -> Usage {
    let message = turn.chat.message(&turn.message_id);
    let metadata = message.and_then(|message| message.metadata.as_ref());
    let told = metadata.and_then(|metadata| metadata.to::<UsageMetadata>().ok());
    told.map_or_else(Usage::default, |told| told.usage)
}

async fn ask(tools: &Tools, turn: &Turn, call: OpenCall) -> Input {
    let OpenCall { tool_call_id, tool_name, input, provider_executed, .. } = call;
    let (approvals, message) = (&turn.approvals, &turn.message_id);
    let asked = if provider_executed {
        approvals.ask_for_provider(message, &tool_call_id, &tool_name, &input, None).await
    } else {
        let description = tools.describe(&tool_name, &input);
        let description = description.as_deref();
        approvals.ask(message, &tool_call_id, &tool_name, &input, description).await
    };
    match asked {
        Ok(asked) => Input::Asked {
            tool_call_id,
            details: Some(asked.details()),
            approval_id: asked.approval_id,
        },
        Err(error) => {
            let why = match &error {
                AskError::NotShownAsIs(why) => why.to_string(),
                _ => NOT_ASKED.to_owned(),
            };
            tracing::warn!(%error, tool = &*tool_name, "nobody is asked about a tool call");
            Input::Tool { tool_call_id, event: ToolEvent::Failed(why) }
        }
    }
}

fn one(input: impl Future<Output = Input> + Send + 'static) -> Inputs {
    Box::pin(Once::of(input))
}

/// Said of a call that needs a person, where nobody could be asked.
const NOT_ASKED: &str = "This tool call was not executed: nobody could be asked to approve it.";
