//! [`RigAgent`]: an agent built with [rig](https://docs.rs/rig-agent/0.44) 0.44, behind `useChat`.
//!
//! ```text
//! Turn ──▶ history ──▶ rig's run ──items──▶ agent events
//!                         │    ▲
//!                     each call│what becomes of it
//!                         ▼    │
//!                        the hook ──ask──▶ the person
//! ```
//!
//! rig runs its loop, its tools and its hooks; here its stream becomes agent events, and a hook of
//! ours stands behind those of the agent. Where a call needs a person the run ends after its step,
//! and with the answer another one goes on from the history: nothing of rig's is kept meanwhile.
//!
//! What a hook of rig decides, and what the person sees of it:
//!
//! | the agent's hook | the call |
//! |---|---|
//! | lets a call pass | runs, or the person is asked |
//! | writes other arguments | is shown, asked about and run with those |
//! | refuses it, with a reason | failed, with that reason; the model reads it too |
//! | stops the run | the run is aborted, unless a person was asked; the reason goes to `tracing` |
//! | replaces the answer | stays as it was streamed, and the other answer follows it |
//!
//! A refusal is no denial in the protocol: that is the person's own no. An answer with calls rig lets
//! no hook replace: one that tries stops the run.
//!
//! An answer in a structure is said as a text. Where rig has the model write it as the input of a
//! tool of its own (`OutputMode::Tool`), that call is shown as well, with its end.

mod call_tracker;
mod bus_task;
mod approval_hook;
mod outcome;
mod event_stream;

use std::fmt;
use std::future::ready;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use ::rig_agent::tool::ToolContext;
use ::rig_agent::{Agent, AgentRunner};
use ::rig_core::message::{Message, UserContent};
use tokio::time::timeout;

use self::approval_hook::Gate;
use self::bus_task::Drive;
use self::call_tracker::Board;
use self::event_stream::RigTurn;
use crate::model::{awaited, messages};
use ui_message_stream::adapter::tools::{
    DEFAULT_MAX_OUTPUT_BYTES, TOOL_TIMED_OUT, predicate_or_ask, prior_usage,
};
use ui_message_stream::approval::{DefinitionDigest, Principal, ToolOutcome};
use ui_message_stream::approvals::{Approvals, ApprovedCall, ToolFacts, Toolbox};
use ui_message_stream::chat::{Chats, Respond, Said, Turn};
use ui_message_stream::id::ChatId;
use ui_message_stream::json::Json;
use ui_message_stream::ledger_store::BoxFuture;
use ui_message_stream::model_message::FromUi;

/// An agent built with rig.
///
/// ```
/// use axum::Router;
/// use rig_agent::Agent;
/// use serde::Deserialize;
/// use ui_message_stream::axum::{approval_routes, chat_routes};
/// use ui_message_stream_rig::RigAgent;
///
/// #[derive(Deserialize)]
/// struct Transfer {
///     amount: u64,
/// }
///
/// fn app(agent: Agent) -> Router {
///     let chats = RigAgent::new(agent)
///         .needs_approval("delete_file")
///         .needs_approval_when(|tool, input| {
///             let is_small = |transfer: Transfer| transfer.amount < 1_000;
///             tool == "transfer" && !input.to().is_ok_and(is_small)
///         })
///         .into_chats();
///     Router::new()
///         .nest("/api/chat", chat_routes(chats.clone()))
///         .nest("/api/approvals", approval_routes(chats))
/// }
/// ```
///
/// Asked about are the calls that this agent's model makes, and no others: not those that an agent
/// makes that is one of its tools, nor what a tool dispatches. Ask about the tool that does it, or
/// make of that agent's tools tools of this one. What the provider runs is shown and asked about as
/// with a [`RigModel`](crate::model::RigModel); where a hook mends or replaces an answer in which
/// the provider asks, nobody is asked, and the answer fails.
///
/// A call that a person approved runs by itself, with the input that was shown, on the tool of that
/// name: the agent's hooks are not asked again, and see its result only in the history. Nor does it go
/// over the agent's bus: its layers, its recording and its limits do not hold for it. What must hold for
/// every output belongs into the tool. What a tool is, is read from the agent just before
/// ([`Toolbox::refresh`] does nothing): one that is listed from elsewhere is what it was when it was
/// listed last.
///
/// Of a tool that fails the person reads what the model reads. The words that a tool makes a
/// `ToolExecutionError` of (`other`, `invalid_args`, `refused` and so on) are shown to both, so no
/// secret belongs into them; what `from_error` takes up is shown to neither, nor what rig says where it
/// could not run a tool.
///
/// A hook that writes another prompt (`on_run_start`) writes what the person said last: results in
/// front of it stay. Where an answer goes on after an approval nothing was said, and the prompt is the
/// results: a hook has to leave that one alone. What a model said before its answer failed, or was
/// refused, stands in the message, and goes back to it with the next request.
///
/// rig lets an agent call its model once unless its builder says more, by `default_max_turns`; where
/// that is used up the answer ends with the results of the tools. It runs the calls of a step one
/// after the other unless [`with_run`](Self::with_run) says otherwise, and it fails a run whose
/// model calls a tool that there is none of, unless a hook mends that. What a hook has the model say
/// anew was shown already and stays. Client-executed tools it has none; those that a request brings
/// are passed over.
///
/// Its tools and models run on a task of this crate's, begun with the first run, so that one which
/// panics fails its own call and nothing else. For that the agent must be the only one, over a bus
/// of its own: where a clone of it is left elsewhere, or the bus is the host's, `tracing` warns, and a
/// panic may end the run of somebody else. A bus that serves one call of a tool at a time
/// (`ServingPolicy::serial_per_handler`) takes a tool that panicked for busy ever after.
///
/// Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct RigAgent(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    agent: Agent,
    /// `None` where rig or the host drives the agent.
    drive: Option<Drive>,
    rules: Vec<Arc<NeedsApproval>>,
    describe: Option<Arc<Describe>>,
    context: Option<Arc<Context>>,
    shape: Option<Arc<Shape>>,
    tool_timeout: Duration,
    most_output_bytes: usize,
    tells_usage: bool,
}

type NeedsApproval = dyn Fn(&str, &Json) -> bool + Send + Sync;
type Describe = dyn Fn(&str, &Json) -> Option<String> + Send + Sync;
type Context = dyn Fn(&Principal, &ChatId) -> ToolContext + Send + Sync;
type Shape = dyn Fn(AgentRunner, &Turn) -> AgentRunner + Send + Sync;

impl RigAgent {
    /// This agent. It asks nobody yet.
    ///
    /// Give it away whole, without keeping a clone: see above.
    pub fn new(agent: Agent) -> Self {
        let (agent, drive) = match agent.into_parts() {
            Ok(parts) => (parts.agent, Some(Drive::of(parts.driver))),
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
            drive,
            rules: Vec::new(),
            describe: None,
            context: None,
            shape: None,
            tool_timeout: TOOL_TIMEOUT,
            most_output_bytes: DEFAULT_MAX_OUTPUT_BYTES,
            tells_usage: false,
        }))
    }

    /// Asks a person before each call of this tool that the agent's model makes. Those of another
    /// agent that is a tool of this one are asked about as that tool only.
    #[must_use]
    pub fn needs_approval(self, tool: &str) -> Self {
        if self.tool(tool).is_none() {
            tracing::warn!(tool, "a tool that needs approval is none of the agent's so far");
        }
        let needed: Box<str> = tool.into();
        self.needs_approval_when(move |tool, _| *tool == *needed)
    }

    /// Asks a person before each call of which this says so, given the tool's name and the input.
    /// One rule of several is enough. The input is what a model wrote, of which nothing is known but
    /// that it is an object; a panic means: ask.
    #[must_use]
    pub fn needs_approval_when(
        self,
        asks: impl Fn(&str, &Json) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.with(|inner| inner.rules.push(Arc::new(asks)))
    }

    /// What the person reads of a call, given the tool's name and the input. Without it, and where
    /// it gives `None` or panics, the name and the input. A later one takes the place of an earlier
    /// one.
    #[must_use]
    pub fn describe(
        self,
        describe: impl Fn(&str, &Json) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.with(|inner| inner.describe = Some(Arc::new(describe)))
    }

    /// What the tools find in their context, for a person and a chat: in a run as after an approval.
    /// A later one takes the place of an earlier one.
    #[must_use]
    pub fn with_tool_context(
        self,
        context: impl Fn(&Principal, &ChatId) -> ToolContext + Send + Sync + 'static,
    ) -> Self {
        self.with(|inner| inner.context = Some(Arc::new(context)))
    }

    /// Lets each run of rig pass through here before it begins: for further hooks, tools that run
    /// side by side, another number of model calls. A later one takes the place of an earlier one. The
    /// tools' context is set after it, by [`with_tool_context`](Self::with_tool_context), since an
    /// approved call must find the same.
    ///
    /// ```
    /// # fn f(agent: rig_agent::Agent) -> ui_message_stream_rig::RigAgent {
    /// # use ui_message_stream_rig::RigAgent;
    /// RigAgent::new(agent).with_run(|run, _turn| run.max_turns(20).tool_concurrency(4))
    /// # }
    /// ```
    #[must_use]
    pub fn with_run(
        self,
        shape: impl Fn(AgentRunner, &Turn) -> AgentRunner + Send + Sync + 'static,
    ) -> Self {
        self.with(|inner| inner.shape = Some(Arc::new(shape)))
    }

    /// How long a call that was approved may run, one minute unless this says otherwise: until it has
    /// its end its chat takes nothing else. A call that nobody is asked about ends with its run.
    #[must_use]
    pub fn with_tool_timeout(self, timeout: Duration) -> Self {
        self.with(|inner| inner.tool_timeout = timeout)
    }

    /// How long the output of a tool may be, in bytes of JSON; 256 KiB unless set. A call with a longer
    /// one fails, for the person as for the model: the client sends what it holds back with every
    /// request, and those have their [`Limits`](ui_message_stream::request::Limits).
    #[must_use]
    pub fn with_most_output_bytes(self, most: usize) -> Self {
        self.with(|inner| inner.most_output_bytes = most)
    }

    /// Says in the metadata of each message what it cost, as
    /// [`Run::telling_usage`](ui_message_stream::run::Run::telling_usage) does.
    #[must_use]
    pub fn with_usage_in_metadata(self) -> Self {
        self.with(|inner| inner.tells_usage = true)
    }

    /// Conversations that this agent answers, kept in memory, with approvals of their own. For keys,
    /// stores and an audit of yours, make the [`Chats`] yourself:
    /// `Chats::new(agent.clone(), Approvals::new(agent))`.
    pub fn into_chats(self) -> Chats {
        Chats::new(self.clone(), Approvals::new(self))
    }

    fn with(self, set: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = Arc::unwrap_or_clone(self.0);
        set(&mut inner);
        RigAgent(Arc::new(inner))
    }

    fn most_output_bytes(&self) -> usize {
        self.0.most_output_bytes
    }

    fn asks(&self, tool: &str, input: &Json) -> bool {
        self.0.rules.iter().any(|predicate| predicate_or_ask(tool, || predicate(tool, input)))
    }

    fn description(&self, tool: &str, input: &Json) -> Option<String> {
        let describe = self.0.describe.as_ref()?;
        catch_unwind(AssertUnwindSafe(|| describe(tool, input))).unwrap_or_else(|_| {
            tracing::error!(tool, "the description of a call panicked");
            None
        })
    }

    fn context(&self, principal: &Principal, chat: &ChatId) -> ToolContext {
        self.0.context.as_ref().map_or_else(ToolContext::new, |context| context(principal, chat))
    }
}

impl Respond for RigAgent {
    fn respond(&self, turn: Turn) -> Said {
        let read = FromUi::new().with_deferred(&turn.deferred).model_messages(&turn.chat.messages);
        let awaited = awaited(&read);
        let mut history = messages(&read);
        let Some(last) = history.pop() else {
            return Box::pin(RigTurn::failed("there is nothing to answer"));
        };
        let (results, prompt) = prompt(last);
        history.extend(results);
        let (turn, board) = (Arc::new(turn), Arc::new(Board::default()));
        let context = self.context(&turn.principal, &turn.chat.id);
        let mut run = self.0.agent.prompt(prompt).history(history);
        if let Some(shape) = &self.0.shape {
            run = shape(run, &turn);
        }
        let run = run.tool_context(context);
        let before = prior_usage(&turn);
        // Behind the agent's own: what they make of a call is what is asked about.
        let run = run.add_hook(Gate::new(self.clone(), turn, Arc::clone(&board)));
        let turn = RigTurn::of(run.stream(), board, self.0.drive.clone()).awaiting(awaited);
        let turn = turn.holding(self.0.most_output_bytes);
        Box::pin(if self.0.tells_usage { turn.telling_usage(before) } else { turn })
    }
}

impl Toolbox for RigAgent {
    fn tool(&self, name: &str) -> Option<ToolFacts> {
        let tools = self.0.agent.tool_server_handle();
        let catalog = tools.snapshot_with_dynamic(&[name.to_owned()]);
        let definition = catalog.definitions().iter().find(|tool| &*tool.name == name)?;
        let schema = Json::of(&definition.parameters).ok()?;
        Some(ToolFacts::new(DefinitionDigest::of(name, &definition.description, &schema)))
    }

    /// The tool is there and takes what the person saw, or says itself that it does not.
    fn permits<'a>(&'a self, _: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(ready(true))
    }

    fn run(&self, call: ApprovedCall) -> BoxFuture<'static, ToolOutcome> {
        let tools = self.0.agent.tool_server_handle().clone();
        let mut context = self.context(&call.requester, &call.chat_id);
        let (longest, most_bytes) = (self.0.tool_timeout, self.0.most_output_bytes);
        Box::pin(async move {
            let run = tools.execute(&call.tool_name, call.input.as_str(), &mut context);
            match timeout(longest, run).await {
                Ok(result) => outcome::of(&result, most_bytes),
                Err(_) => ToolOutcome::Failed(TOOL_TIMED_OUT.to_owned()),
            }
        })
    }
}

impl fmt::Debug for RigAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RigAgent")
            .field("agent", &self.0.agent.name())
            .field("rules", &self.0.rules.len())
            .finish_non_exhaustive()
    }
}

/// What the person said last. Results in front of it are history: a hook may write another prompt.
fn prompt(last: Message) -> (Option<Message>, Message) {
    let Message::User { content } = last else { return (None, last) };
    let is_result = |said: &UserContent| matches!(said, UserContent::ToolResult(_));
    let (results, words): (Vec<UserContent>, Vec<UserContent>) =
        content.into_iter().partition(is_result);
    match words.is_empty() {
        true => (None, Message::User { content: results }),
        false => {
            let results = (!results.is_empty()).then_some(Message::User { content: results });
            (results, Message::User { content: words })
        }
    }
}

/// How long an approved call may run, unless the host says otherwise.
const TOOL_TIMEOUT: Duration = Duration::from_secs(60);

/// Why an agent is not driven here.
const SHARED: &str = "a clone of the agent is left elsewhere, or its bus is the host's";
