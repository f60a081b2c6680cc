//! [`RigAgent`]: an agent built with [rig](https://docs.rs/rig-agent/0.44) 0.44, behind `useChat`.
//!
//! ```text
//! Turn ──▶ history ──▶ rig's run ──items──▶ agent events
//!                         │    ▲
//!                     each call│its outcome
//!                         ▼    │
//!                        the hook ──approval request──▶ the user
//! ```
//!
//! rig executes its own loop, tools and hooks. This module converts rig's stream to agent events,
//! and adds a hook after the agent's own hooks. If a call needs approval, the run ends after the
//! current step. The response starts another run from the history; no state of rig is kept in
//! between.
//!
//! The effect of an agent's hook on a call, and what the user sees:
//!
//! | the agent's hook | the call |
//! |---|---|
//! | lets the call pass | executed, or approval is requested |
//! | changes the arguments | shown, submitted for approval and executed with the new arguments |
//! | refuses the call with a reason | failed with that reason, which the model also reads |
//! | stops the run | the run is aborted, unless an approval request is pending; the reason goes to `tracing` |
//! | replaces the response | stays as it was streamed; the other response follows it |
//!
//! A refusal by a hook is not a denial of the protocol, which only a user can give. rig does not
//! let hooks replace a response with tool calls: a hook that tries to do so stops the run.
//!
//! Structured output is emitted as text. If rig lets the model write it as the input of rig's
//! output tool (`OutputMode::Tool`), that call is shown too, with its result.

mod call_tracker;
mod bus_task;
mod approval_hook;
mod outcome;
mod event_stream;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::rig_agent::tool::ToolContext;
use ::rig_agent::{Agent, AgentRunner};
use ::rig_core::message::{Message, UserContent};
use ::rig_core::structured_output::output_tool_name;
use tokio::time::timeout;

use self::approval_hook::ApprovalHook;
use self::bus_task::BusTask;
use self::call_tracker::CallTracker;
use self::event_stream::RigEventStream;
use crate::model::{awaited_calls, messages};
use ui_message_stream::BoxError;
use ui_message_stream::BoxFuture;
use ui_message_stream::UserText;
use ui_message_stream::approval::{
    Approvals, ApprovedCall, DefinitionDigest, OnNewMessage, Principal, Progress, ToolInfo,
    ToolOutcome, Toolbox,
};
use ui_message_stream::id::ChatId;
use ui_message_stream::json::Json;
use ui_message_stream_agent::tool_policy::{ApprovalRequirement, ToolPolicy};
use ui_message_stream_chat::{AgentEventStream, ChatAgent, ChatServer, Turn};

/// An agent built with rig.
///
/// ```
/// use axum::Router;
/// use rig_agent::Agent;
/// use serde::Deserialize;
/// use ui_message_stream_chat::axum::{approval_routes, chat_routes};
/// use ui_message_stream_rig::RigAgent;
///
/// #[derive(Deserialize)]
/// struct Transfer {
///     amount: u64,
/// }
///
/// /// Around it belongs your authentication: see `chat_routes`.
/// fn app(agent: Agent) -> Router {
///     let chats = RigAgent::new(agent)
///         .needs_approval("delete_file")
///         .needs_approval_when(|tool, input| {
///             let is_small = |transfer: Transfer| transfer.amount < 1_000;
///             tool == "transfer" && !input.decode().is_ok_and(is_small)
///         })
///         .into_chat_server();
///     Router::new()
///         .nest("/api/chat", chat_routes(chats.clone()))
///         .nest("/api/approvals", approval_routes(chats))
/// }
/// ```
///
/// # Approval
///
/// Approval is requested for the calls that this agent's model makes. It is not requested for calls
/// of another agent that is one of its tools, nor for calls that a tool dispatches: request
/// approval of that tool, or make the other agent's tools tools of this agent. Tools that the
/// provider executes are shown and approved as with a [`RigModel`](crate::model::RigModel). If a
/// hook changes or replaces a response in which the provider requests approval, no approval is
/// requested, and the response fails.
///
/// Approvals are requested one after the other, in the order of the calls: rig offers the calls of a
/// step one at a time, unless [`map_runner`](Self::map_runner) sets its `tool_concurrency`. The number
/// of calls in a step is not limited.
///
/// An approved call is executed on its own, with the input that was shown, on the tool with that
/// name. The agent's hooks are not called again; they see the result only in the history. The call
/// does not use the agent's bus, so the bus's layers, recording and limits do not apply. A rule for
/// every output must therefore be implemented in the tool. The definition of a tool is read from
/// the agent directly before the call ([`Toolbox::refresh`] does nothing): the definition of a tool
/// from another source is the one that was listed last.
///
/// # Errors of tools
///
/// The user reads the same message of a failed tool as the model. The message with which a tool
/// creates a `ToolExecutionError` (`other`, `invalid_args`, `refused` and so on) is shown to both,
/// so it must not contain secrets. The message of an error passed to `from_error` is shown to
/// neither, and neither is rig's message if it could not execute a tool.
///
/// # Prompts and runs
///
/// A hook that replaces the prompt (`on_run_start`) replaces the last user message; tool results
/// before that message stay. If a turn continues after an approval, there is no new user message
/// and the prompt consists of the results: a hook must not replace that prompt. Text that a model
/// produced before its response failed or was refused stays in the message, and the next request
/// sends it to the model.
///
/// rig lets an agent call its model once unless its builder sets `default_max_turns`; at that limit
/// the response ends with the results of the tools. rig executes the calls of a step one after the
/// other unless [`map_runner`](Self::map_runner) changes it, and fails a run whose model calls an
/// unknown tool unless a hook corrects the call. Text that a hook lets the model write again was
/// already shown and stays. There are no client-executed tools; those in a request are ignored.
///
/// # Panics
///
/// The agent's tools and models are executed in a task of this crate, which starts with the first
/// run. A panic therefore fails only its own call. This requires that the agent has no other clone
/// and has its own bus. Otherwise a warning is logged with `tracing`, and a panic may end the run
/// of another user. A bus that serves one call of a tool at a time
/// (`ServingPolicy::serial_per_handler`) treats a tool that panicked as permanently busy.
///
/// Cheap to clone; clones share one agent.
#[derive(Clone)]
pub struct RigAgent(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    agent: Agent,
    /// `None` if rig or the host drives the agent's bus.
    bus_task: Option<BusTask>,
    rules: Vec<Arc<NeedsApproval>>,
    /// Whether each call needs approval, except those of `approval_exceptions`.
    is_approval_default: bool,
    approval_exceptions: Vec<Box<str>>,
    authorizations: Vec<Arc<AddAuthorization>>,
    /// By tool. The last entry of a tool counts.
    new_message_policies: Vec<(Box<str>, OnNewMessage)>,
    decided_by_others: Vec<Box<str>>,
    describe: Option<Arc<Describe>>,
    /// The limits of all tools. [`RigAgent::policy`] adds the rules for one tool.
    limits: ToolPolicy,
    context: Option<Arc<CreateContext>>,
    map_runner: Option<Arc<MapRunner>>,
    has_usage_metadata: bool,
}

type NeedsApproval = dyn Fn(&str, &Json) -> bool + Send + Sync;
/// Adds an authorization to the policy of the tool with this name.
type AddAuthorization = dyn Fn(ToolPolicy, &str) -> ToolPolicy + Send + Sync;
type Describe = dyn Fn(&str, &Json) -> Option<String> + Send + Sync;
type CreateContext = dyn Fn(&Principal, &ChatId) -> ToolContext + Send + Sync;
type MapRunner = dyn Fn(AgentRunner, &Turn) -> AgentRunner + Send + Sync;

impl RigAgent {
    /// Creates a chat agent that requests no approval.
    ///
    /// Pass the agent without keeping a clone of it; see [Panics](Self#panics).
    pub fn new(agent: Agent) -> Self {
        let (agent, bus_task) = match agent.into_parts() {
            Ok(parts) => (parts.agent, Some(BusTask::new(parts.driver))),
            Err(agent) => {
                let name = agent.name();
                tracing::warn!(
                    agent = name,
                    "a panic of a tool may end the runs of others: {SHARED}"
                );
                (agent, None)
            }
        };
        RigAgent(Arc::new(Inner {
            agent,
            bus_task,
            rules: Vec::new(),
            is_approval_default: false,
            approval_exceptions: Vec::new(),
            authorizations: Vec::new(),
            new_message_policies: Vec::new(),
            decided_by_others: Vec::new(),
            describe: None,
            limits: ToolPolicy::default(),
            context: None,
            map_runner: None,
            has_usage_metadata: false,
        }))
    }

    /// Requires approval of each call of this tool by the agent's model.
    ///
    /// Calls by another agent that is a tool of this agent need approval only as calls of that
    /// tool.
    ///
    /// # Panics
    /// Panics if the agent has no tool with this name, so that a misspelt name is found when the
    /// server starts. For a tool that the agent receives later, use
    /// [`needs_approval_when`](Self::needs_approval_when), or
    /// [`require_approval_by_default`](Self::require_approval_by_default).
    #[must_use]
    #[track_caller]
    pub fn needs_approval(self, tool: &str) -> Self {
        self.assert_has_tool(tool);
        let needed: Box<str> = tool.into();
        self.needs_approval_when(move |tool, _| *tool == *needed)
    }

    /// Requires approval of each call of each tool, also of a tool that the agent receives later.
    /// [`never_needs_approval`](Self::never_needs_approval) makes exceptions.
    ///
    /// ```
    /// # fn f(agent: rig_agent::Agent) -> ui_message_stream_rig::RigAgent {
    /// # use ui_message_stream_rig::RigAgent;
    /// RigAgent::new(agent).require_approval_by_default().never_needs_approval("weather")
    /// # }
    /// ```
    #[must_use]
    pub fn require_approval_by_default(self) -> Self {
        self.with(|inner| inner.is_approval_default = true)
    }

    /// Makes an exception from
    /// [`require_approval_by_default`](Self::require_approval_by_default): the calls of this tool do
    /// not need approval by default. A rule that requires approval of a call still applies.
    ///
    /// # Panics
    /// Panics if the agent has no tool with this name.
    #[must_use]
    #[track_caller]
    pub fn never_needs_approval(self, tool: &str) -> Self {
        self.assert_has_tool(tool);
        self.with(|inner| inner.approval_exceptions.push(tool.into()))
    }

    /// Sets what happens to the approval requests of this tool when the user sends a newer message.
    /// It overrides [`Approvals::on_new_message`].
    ///
    /// # Panics
    /// Panics if the agent has no tool with this name.
    #[must_use]
    #[track_caller]
    pub fn on_new_message(self, tool: &str, policy: OnNewMessage) -> Self {
        self.assert_has_tool(tool);
        self.with(|inner| inner.new_message_policies.push((tool.into(), policy)))
    }

    /// Lets other principals than the owner of the chat decide on the calls of this tool, for example
    /// a manager. [`Approvals::authorize_decision`] says which. An approval by the owner does not
    /// count, and the owner's messages do not close the approval requests.
    ///
    /// # Panics
    /// Panics if the agent has no tool with this name.
    #[must_use]
    #[track_caller]
    pub fn decided_by_others(self, tool: &str) -> Self {
        self.assert_has_tool(tool);
        self.with(|inner| inner.decided_by_others.push(tool.into()))
    }

    /// Sets who may make a call, given the owner of the chat, the tool's name and the input. If
    /// `authorize` returns `false` or panics, the call is not executed, and the model and the user
    /// read that it is not permitted. No approval is requested.
    ///
    /// The owner of the chat is the principal in whose name the tool is executed. `authorize` is
    /// called for each call by this agent's model: before it is executed without approval, before
    /// approval is requested, and again when an approval is redeemed. If this method is called
    /// several times, a call is permitted only if all functions return `true`. It does not decide
    /// who may approve a call: see [`Approvals::authorize_decision`].
    ///
    /// ```
    /// # fn f(agent: rig_agent::Agent) -> ui_message_stream_rig::RigAgent {
    /// # use ui_message_stream_rig::RigAgent;
    /// RigAgent::new(agent)
    ///     .authorize(|principal, tool, _| tool != "refund" || principal.tenant() == Some("support"))
    /// # }
    /// ```
    #[must_use]
    pub fn authorize(
        self,
        authorize: impl Fn(&Principal, &str, &Json) -> bool + Send + Sync + 'static,
    ) -> Self {
        let authorize = Arc::new(authorize);
        self.with_authorization(move |policy, tool| {
            let authorize = Arc::clone(&authorize);
            let tool = tool.to_owned();
            policy.with_authorization(move |principal, input| authorize(principal, &tool, input))
        })
    }

    /// Sets who may make a call, by an asynchronous function.
    ///
    /// The call is not permitted either if the function returns an error, panics, or runs for longer
    /// than the [tool timeout](Self::with_tool_timeout). Otherwise as
    /// [`authorize`](Self::authorize).
    #[must_use]
    pub fn authorize_async<F, Fut>(self, authorize: F) -> Self
    where
        F: Fn(Principal, String, Json) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<bool, BoxError>> + Send + 'static,
    {
        let authorize = Arc::new(authorize);
        self.with_authorization(move |policy, tool| {
            let authorize = Arc::clone(&authorize);
            let tool = tool.to_owned();
            policy.with_authorization_async(move |principal, input| {
                authorize(principal, tool.clone(), input)
            })
        })
    }

    /// Requires approval of each call for which the predicate returns `true`, given the tool's name
    /// and the input.
    ///
    /// If there are several rules, one match is sufficient. The model wrote the input, so only one
    /// property of it is certain: it is an object. If the predicate panics, approval is required.
    /// The predicate does not receive the conversation, so it does not matter whether the history of
    /// the chat is complete.
    #[must_use]
    pub fn needs_approval_when(
        self,
        predicate: impl Fn(&str, &Json) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.with(|inner| inner.rules.push(Arc::new(predicate)))
    }

    /// Sets the function that describes a call in an approval request, given the tool's name and
    /// the input. It replaces an earlier function.
    ///
    /// Without it, or if it returns `None` or panics, the request shows the name and the input.
    #[must_use]
    pub fn with_approval_description(
        self,
        describe: impl Fn(&str, &Json) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.with(|inner| inner.describe = Some(Arc::new(describe)))
    }

    /// Sets the function that creates the context of the tools for a principal and a chat. The
    /// context is used in runs and for approved calls. It replaces an earlier function.
    #[must_use]
    pub fn with_tool_context(
        self,
        context: impl Fn(&Principal, &ChatId) -> ToolContext + Send + Sync + 'static,
    ) -> Self {
        self.with(|inner| inner.context = Some(Arc::new(context)))
    }

    /// Sets a function that changes each run before it starts, for example to add hooks, to execute
    /// tools concurrently, or to set the number of model calls. It replaces an earlier function.
    ///
    /// The tools' context is set afterwards, by [`with_tool_context`](Self::with_tool_context),
    /// because an approved call needs the same context.
    ///
    /// ```
    /// # fn f(agent: rig_agent::Agent) -> ui_message_stream_rig::RigAgent {
    /// # use ui_message_stream_rig::RigAgent;
    /// RigAgent::new(agent).map_runner(|runner, _turn| runner.max_turns(20).tool_concurrency(4))
    /// # }
    /// ```
    #[must_use]
    pub fn map_runner(
        self,
        map_runner: impl Fn(AgentRunner, &Turn) -> AgentRunner + Send + Sync + 'static,
    ) -> Self {
        self.with(|inner| inner.map_runner = Some(Arc::new(map_runner)))
    }

    /// Sets how long an approved call may run. The default is one minute.
    ///
    /// Until the call ends, its chat accepts no other request. A call that needs no approval ends
    /// with its run.
    #[must_use]
    pub fn with_tool_timeout(self, timeout: Duration) -> Self {
        self.with(|inner| inner.limits.timeout = timeout)
    }

    /// Sets the maximum size of a tool output in bytes of JSON. The default is 256 KiB.
    ///
    /// A call with a larger output fails for both the user and the model. The client sends its
    /// messages with every request, and requests have
    /// [`Limits`](ui_message_stream::request::Limits).
    #[must_use]
    pub fn with_max_output_bytes(self, max_output_bytes: usize) -> Self {
        self.with(|inner| inner.limits.max_output_bytes = max_output_bytes)
    }

    /// Adds the token usage to the metadata of each message, as
    /// [`ToolLoop::with_usage_metadata`](ui_message_stream_agent::tool_loop::ToolLoop::with_usage_metadata)
    /// does.
    #[must_use]
    pub fn with_usage_metadata(self) -> Self {
        self.with(|inner| inner.has_usage_metadata = true)
    }

    /// Creates a chat server for this agent with an in-memory store and its own approvals.
    ///
    /// To use your own keys, stores and audit, create the [`ChatServer`] with
    /// `ChatServer::new(agent.clone(), Approvals::new(agent))`.
    pub fn into_chat_server(self) -> ChatServer {
        ChatServer::new(self.clone(), Approvals::new(self))
    }

    fn with(self, set: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = Arc::unwrap_or_clone(self.0);
        set(&mut inner);
        RigAgent(Arc::new(inner))
    }

    fn with_authorization(
        self,
        add: impl Fn(ToolPolicy, &str) -> ToolPolicy + Send + Sync + 'static,
    ) -> Self {
        self.with(|inner| inner.authorizations.push(Arc::new(add)))
    }

    /// Panics if the agent has no tool with this name.
    #[track_caller]
    fn assert_has_tool(&self, tool: &str) {
        let tools = self.0.agent.tool_server_handle().toolset();
        let names: Vec<&str> = tools.names().collect();
        assert!(names.contains(&tool), "the agent has no tool named {tool:?}, only {names:?}");
    }

    /// Returns the policy of the tool with this name: the limits, the authorizations, the rules and
    /// the description.
    fn policy(&self, tool: &str) -> ToolPolicy {
        let policy = self.0.limits.clone();
        let mut policy = self.0.authorizations.iter().fold(policy, |policy, add| add(policy, tool));
        let is_exception = self.0.approval_exceptions.iter().any(|exception| **exception == *tool);
        if self.0.is_approval_default && !is_exception {
            policy.approval = ApprovalRequirement::Always;
        } else if !self.0.rules.is_empty() {
            let rules = self.0.rules.clone();
            let tool = tool.to_owned();
            policy.approval = ApprovalRequirement::when(move |input, _| {
                rules.iter().any(|predicate| predicate(&tool, input))
            });
        }
        match &self.0.describe {
            Some(describe) => {
                let describe = Arc::clone(describe);
                let tool = tool.to_owned();
                policy.with_approval_description(move |input| describe(&tool, input))
            }
            None => policy,
        }
    }

    fn context(&self, principal: &Principal, chat: &ChatId) -> ToolContext {
        self.0.context.as_ref().map_or_else(ToolContext::new, |context| context(principal, chat))
    }
}

impl ChatAgent for RigAgent {
    fn respond(&self, turn: Turn) -> AgentEventStream {
        let read = turn.to_model_messages().model_messages(&turn.chat.messages);
        let awaited_calls = awaited_calls(&read);
        let mut history = messages(&read);
        let Some(last) = history.pop() else {
            return Box::pin(RigEventStream::failed("there is nothing to answer"));
        };
        let (results, prompt) = prompt(last);
        history.extend(results);
        let turn = Arc::new(turn);
        let tracker = Arc::new(CallTracker::default());
        let context = self.context(&turn.principal, &turn.chat.id);
        let mut run = self.0.agent.prompt(prompt).history(history);
        if let Some(map_runner) = &self.0.map_runner {
            run = map_runner(run, &turn);
        }
        let run = run.tool_context(context);
        let before = turn.prior_usage();
        let begun = turn.chat.message(&turn.message_id);
        let has_begun = begun.is_some_and(|message| !message.parts.is_empty());
        // Added after the agent's own hooks: approval is requested for the call that they return.
        let run = run.add_hook(ApprovalHook::new(self.clone(), turn, Arc::clone(&tracker)));
        let turn = RigEventStream::new(run.stream(), tracker, self.0.bus_task.clone())
            .with_awaited_calls(awaited_calls)
            .with_begun_answer(has_begun);
        let turn = turn
            .with_max_output_bytes(self.0.limits.max_output_bytes)
            .with_output_tool(output_tool_name(|name| self.tool(name).is_some()));
        Box::pin(if self.0.has_usage_metadata { turn.with_usage_metadata(before) } else { turn })
    }
}

impl Toolbox for RigAgent {
    fn tool(&self, name: &str) -> Option<ToolInfo> {
        let tools = self.0.agent.tool_server_handle();
        let catalog = tools.snapshot_with_dynamic(&[name.to_owned()]);
        let definition = catalog.definitions().iter().find(|tool| &*tool.name == name)?;
        let schema = Json::from_serialize(&definition.parameters).ok()?;
        let mut info = ToolInfo::new(DefinitionDigest::new(name, &definition.description, &schema));
        let mut policies = self.0.new_message_policies.iter();
        info.on_new_message =
            policies.rfind(|(tool, _)| **tool == *name).map(|(_, policy)| *policy);
        info.decided_by_others = self.0.decided_by_others.iter().any(|tool| **tool == *name);
        Some(info)
    }

    /// Permits the call if its requester is [authorized](RigAgent::authorize). The tool exists, and
    /// it accepts the input that the user saw or returns an error itself.
    fn permits<'a>(&'a self, call: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(async {
            let policy = self.policy(&call.tool_name);
            policy.authorizes(&call.tool_name, &call.requester, &call.input).await
        })
    }

    fn run(&self, call: ApprovedCall, _: Progress) -> BoxFuture<'static, ToolOutcome> {
        let tools = self.0.agent.tool_server_handle().clone();
        let mut context = self.context(&call.requester, &call.chat_id);
        let ToolPolicy { timeout: max_time, max_output_bytes: max_bytes, .. } = self.0.limits;
        Box::pin(async move {
            let run = tools.execute(&call.tool_name, call.input.as_str(), &mut context);
            match timeout(max_time, run).await {
                Ok(result) => outcome::from_result(&result, max_bytes),
                Err(_) => ToolOutcome::Failed(UserText::ToolTimedOut.to_string()),
            }
        })
    }
}

impl fmt::Debug for RigAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RigAgent")
            .field("agent", &self.0.agent.name())
            .field("authorizations", &self.0.authorizations.len())
            .field("rules", &self.0.rules.len())
            .finish_non_exhaustive()
    }
}

/// Returns the last user message as the prompt. Results before it are returned as history, because
/// a hook may replace the prompt.
fn prompt(last: Message) -> (Option<Message>, Message) {
    let Message::User { content } = last else { return (None, last) };
    let is_result = |content: &UserContent| matches!(content, UserContent::ToolResult(_));
    let (results, rest): (Vec<UserContent>, Vec<UserContent>) =
        content.into_iter().partition(is_result);
    if rest.is_empty() {
        (None, Message::User { content: results })
    } else {
        let results = (!results.is_empty()).then_some(Message::User { content: results });
        (results, Message::User { content: rest })
    }
}

/// The reason why this crate does not drive the agent's bus.
const SHARED: &str = "a clone of the agent is left elsewhere, or its bus is the host's";
