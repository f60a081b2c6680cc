//! The tools of an agent: found by name, their inputs checked, their policies asked.

use std::fmt;
use std::future::{poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jsonschema::Validator;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use super::agent_run::Inputs;
use super::context::{ApprovalContext, ToolContext};
use super::model::ToolDescription;
use super::tool::{ClientExecuted, IntoTool, NeedsApproval, Tool};
use super::tool_run::{Task, ToolRun};
use crate::approval::{CanonicalJson, DefinitionDigest, InputNotShownAsIs, OpenCall, ToolOutcome};
use crate::approvals::{ApprovedCall, ToolFacts};
use crate::chat::Turn;
use crate::event::{Executor, ToolCall};
use crate::history::Chat;
use crate::json::Json;
use crate::ledger_store::BoxFuture;
use crate::model_message::spelled;
use crate::run::Verdict;
use crate::stream::BoxError;

/// A tool with its type of input forgotten. [`Tool`] is one; a source of tools that are only known
/// when it runs, as a tool server is, makes its own.
pub trait AnyTool: Send + Sync + fmt::Debug + 'static {
    /// What the model calls it by. It stays the same.
    fn name(&self) -> &str;

    /// What the model reads of it, as far as is known. It may be another the next time; while it is
    /// `None`, the tool is gone, and no call of it runs.
    fn description(&self) -> Option<ToolDescription>;

    /// What else is said of it that a person or a rule goes by when a call is approved: if it is
    /// another by the time of the answer, the call does not run.
    fn further_definition(&self) -> Option<Json> {
        None
    }

    /// Looks at what it is now, where that is decided elsewhere. `false` if it cannot be seen.
    ///
    /// Awaited just before an approved call is claimed. A call whose tool is not what the person was
    /// asked about, or cannot be seen, does not run.
    fn refresh(&self) -> BoxFuture<'_, bool> {
        Box::pin(ready(true))
    }

    /// Whether the client does not know it by name.
    fn is_dynamic(&self) -> bool {
        false
    }

    /// What a person reads for its name.
    fn title(&self) -> Option<&str> {
        None
    }

    /// Whether the client runs it.
    fn is_client_executed(&self) -> bool {
        false
    }

    /// Whether an input is held against its schema. One that nobody here vouches for is better not
    /// evaluated: it may take for ever.
    fn checks_by_schema(&self) -> bool {
        true
    }

    /// Whether it takes this input, which fits its schema; else why not, for the model.
    ///
    /// # Errors
    /// Why not.
    fn check(&self, input: &Json) -> Result<(), String>;

    /// Whether the host said of it when a person is asked. Where it did not, an agent that
    /// [asks by default](super::Agent::with_approval_by_default) asks; any other goes by
    /// [`needs_approval`](Self::needs_approval).
    fn has_approval_policy(&self) -> bool {
        true
    }

    /// Whether that depends on the call, so that [`needs_approval`](Self::needs_approval) is to be given
    /// the conversation as it is. For others it may be the one that the turn began with.
    fn has_approval_predicate(&self) -> bool {
        true
    }

    /// Whether a person is asked before this call. What cannot be said is yes.
    fn needs_approval(&self, input: &Json, context: ApprovalContext) -> BoxFuture<'static, bool>;

    /// What the person is asked.
    fn describe(&self, _input: &Json) -> Option<String> {
        None
    }

    /// Whether it may be run again after a crash.
    fn is_idempotent(&self) -> bool {
        false
    }

    /// How long it may take.
    fn timeout(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// How long an output may be, in bytes of JSON. The client sends it back with every request.
    fn most_output_bytes(&self) -> usize {
        MOST_OUTPUT_BYTES
    }

    /// What the model reads of an output, where that is not what the person sees.
    fn model_output(&self, _output: &Json) -> Option<Json> {
        None
    }

    /// How long an answer of the person is waited for.
    fn time_to_answer(&self) -> Option<Duration> {
        None
    }

    /// Runs it.
    fn call(&self, input: Json, context: ToolContext)
    -> BoxFuture<'static, Result<Json, BoxError>>;
}

impl<I: DeserializeOwned + Send + Sync + 'static> AnyTool for Tool<I> {
    fn name(&self) -> &str {
        &self.about.name
    }

    fn description(&self) -> Option<ToolDescription> {
        Some(self.about.description())
    }

    fn title(&self) -> Option<&str> {
        self.about.title.as_deref()
    }

    fn has_approval_policy(&self) -> bool {
        !matches!(self.approval, NeedsApproval::Unsaid)
    }

    fn has_approval_predicate(&self) -> bool {
        matches!(self.approval, NeedsApproval::When(_) | NeedsApproval::If(_))
    }

    fn check(&self, input: &Json) -> Result<(), String> {
        input.to::<I>().map(drop).map_err(|error| error.to_string())
    }

    fn needs_approval(&self, input: &Json, context: ApprovalContext) -> BoxFuture<'static, bool> {
        let asks = match (&self.approval, input.to::<I>()) {
            (NeedsApproval::Unsaid | NeedsApproval::Never, _) => false,
            (NeedsApproval::Always, _) | (_, Err(_)) => true,
            (NeedsApproval::When(asks), Ok(input)) => {
                let asks = catch_unwind(AssertUnwindSafe(|| asks(&input, &context)));
                asks.unwrap_or_else(|_| {
                    tracing::error!(tool = &*self.about.name, "the approval predicate panicked");
                    true
                })
            }
            (NeedsApproval::If(asks), Ok(input)) => {
                let asks = asks(Arc::new(input), context);
                // A task of its own: a panic in it means yes, and not the end of the run.
                let mut asks = Task::begin(asks);
                return Box::pin(poll_fn(move |cx| {
                    asks.poll_end(cx).map(|asked| asked.unwrap_or(true))
                }));
            }
        };
        Box::pin(ready(asks))
    }

    fn describe(&self, input: &Json) -> Option<String> {
        let (describe, input) = (self.describe.as_ref()?, input.to::<I>().ok()?);
        catch_unwind(AssertUnwindSafe(|| describe(&input))).ok()
    }

    fn is_idempotent(&self) -> bool {
        self.idempotent
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn most_output_bytes(&self) -> usize {
        self.most_output_bytes
    }

    fn model_output(&self, output: &Json) -> Option<Json> {
        let read = self.model_output.as_ref()?;
        catch_unwind(AssertUnwindSafe(|| read(output))).ok()
    }

    fn time_to_answer(&self) -> Option<Duration> {
        self.time_to_answer
    }

    fn call(
        &self,
        input: Json,
        context: ToolContext,
    ) -> BoxFuture<'static, Result<Json, BoxError>> {
        match input.to::<I>() {
            Ok(input) => (self.handle)(input, context),
            Err(error) => Box::pin(ready(Err(error.into()))),
        }
    }
}

impl<I: DeserializeOwned + Send + Sync + 'static> IntoTool for Tool<I> {
    fn into_tool(self) -> Arc<dyn AnyTool> {
        Arc::new(self)
    }
}

#[derive(Debug)]
struct ClientTool(Tool<ClientExecuted>);

impl AnyTool for ClientTool {
    fn name(&self) -> &str {
        &self.0.about.name
    }

    fn description(&self) -> Option<ToolDescription> {
        Some(self.0.about.description())
    }

    fn title(&self) -> Option<&str> {
        self.0.about.title.as_deref()
    }

    fn is_client_executed(&self) -> bool {
        true
    }

    fn has_approval_predicate(&self) -> bool {
        false
    }

    fn check(&self, _: &Json) -> Result<(), String> {
        Ok(())
    }

    fn needs_approval(&self, _: &Json, _: ApprovalContext) -> BoxFuture<'static, bool> {
        Box::pin(ready(false))
    }

    fn call(&self, _: Json, _: ToolContext) -> BoxFuture<'static, Result<Json, BoxError>> {
        Box::pin(ready(Err("a client-executed tool has no handler here".into())))
    }
}

impl IntoTool for Tool<ClientExecuted> {
    fn into_tool(self) -> Arc<dyn AnyTool> {
        Arc::new(ClientTool(self))
    }
}

/// The tools of an agent.
#[derive(Debug, Clone, Default)]
pub(super) struct Tools {
    known: Vec<Known>,
    /// Whether a person is asked about the tools of which the host did not say it.
    pub(super) ask_by_default: bool,
}

/// A tool, and what is made of its definition, until that changes.
#[derive(Clone)]
struct Known {
    tool: Arc<dyn AnyTool>,
    definition: Arc<Mutex<Option<Arc<Definition>>>>,
}

struct Definition {
    about: ToolDescription,
    /// `None` of a tool that does not check by it.
    schema: Option<Validator>,
}

impl Known {
    /// What the tool is; `None` while it is gone, or is nothing that can be called.
    fn definition(&self) -> Option<Arc<Definition>> {
        let about = self.tool.description()?;
        let mut known = self.definition.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_none_or(|known| known.about != about) {
            let schema = match self.tool.checks_by_schema() {
                true => about.validator().map(Some),
                false => Some(None),
            };
            *known = schema.map(|schema| Arc::new(Definition { about, schema }));
        }
        known.clone()
    }
}

impl Tools {
    #[track_caller]
    pub(super) fn add(&mut self, tool: Arc<dyn AnyTool>) {
        let known = Known { tool, definition: Arc::default() };
        let name = known.tool.name();
        assert!(self.find(name).is_none(), "there are two tools named {name:?}");
        assert!(
            is_callable(name),
            "no model could call {name:?}: a name has letters, digits, `_` and `-`, at most 64"
        );
        let is_gone = known.tool.description().is_none();
        assert!(is_gone || known.definition().is_some(), "the schema of tool {name:?} is none");
        self.known.push(known);
    }

    /// These and others, whose names are known to be new.
    pub(super) fn with(&self, others: impl Iterator<Item = Arc<dyn AnyTool>>) -> Self {
        let mut all = self.clone();
        all.known.extend(others.map(|tool| Known { tool, definition: Arc::default() }));
        all
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Looks at a tool anew; `false` if it cannot be seen.
    pub(super) async fn refresh(&self, name: &str) -> bool {
        match self.find(name) {
            Some(known) => known.tool.refresh().await,
            None => true,
        }
    }

    /// Completes what a model says of a call: who runs it, and what a person reads for its name.
    pub(super) fn announce(&self, call: &mut ToolCall) {
        if call.executed_by != Executor::Server {
            return;
        }
        let Some(Known { tool, .. }) = self.find(&call.tool_name) else {
            // The client knows no tool of this name either.
            call.dynamic = true;
            return;
        };
        if tool.is_client_executed() {
            call.executed_by = Executor::Client;
        }
        call.dynamic |= tool.is_dynamic();
        call.title = tool.title().map(|title| title.to_owned().into()).or(call.title.take());
    }

    pub(super) fn descriptions(&self) -> Arc<[ToolDescription]> {
        let definitions = self.known.iter().filter_map(Known::definition);
        definitions.map(|definition| definition.about.clone()).collect()
    }

    pub(super) fn facts(&self, name: &str) -> Option<ToolFacts> {
        let known = self.find(name)?;
        let (tool, definition) = (&known.tool, known.definition()?);
        let about = &definition.about;
        let digest = DefinitionDigest::of(&about.name, &about.description, &about.input_schema);
        let further = tool.further_definition();
        let mut facts = ToolFacts::new(match &further {
            Some(further) => digest.with_further(further),
            None => digest,
        });
        facts.idempotent = tool.is_idempotent();
        facts.time_to_answer = tool.time_to_answer();
        Some(facts)
    }

    /// What the model reads of an output, where that is not what the person sees.
    pub(super) fn model_output(&self, name: &str, output: &Json) -> Option<Json> {
        self.find(name)?.tool.model_output(output)
    }

    pub(super) fn describe(&self, name: &str, input: &Json) -> Option<String> {
        self.find(name)?.tool.describe(input)
    }

    /// Whether a tool takes this input; else why not, for the model.
    pub(super) fn check(&self, name: &str, input: &Json) -> Result<(), String> {
        let known = self.find(name).and_then(|known| Some((&known.tool, known.definition()?)));
        let Some((tool, definition)) = known else {
            return Err(format!("there is no tool named {name:?}"));
        };
        // What a reader of trees would take for something else, nobody has seen.
        if let Err(error @ InputNotShownAsIs::ReservedKey) = CanonicalJson::of(input) {
            return Err(error.to_string());
        }
        let value: Value = input.to().map_err(|error| error.to_string())?;
        let wrong: Vec<String> = definition
            .schema
            .iter()
            .flat_map(|schema| schema.iter_errors(&value))
            .take(MOST_ERRORS)
            .map(|error| match error.instance_path().as_str() {
                "" => error.to_string(),
                place => format!("{place}: {error}"),
            })
            // An error may hold the whole input.
            .map(|error| error.chars().take(MOST_OF_AN_ERROR).collect())
            .collect();
        if !wrong.is_empty() {
            return Err(format!("the input does not fit the schema: {}", wrong.join("; ")));
        }
        tool.check(input).map_err(|error| {
            let error: String = error.chars().take(MOST_OF_AN_ERROR).collect();
            format!("the input does not fit: {error}")
        })
    }

    /// Whether what is to become of a call of this tool depends on what was said.
    pub(super) fn look_at_chat(&self, name: &str) -> bool {
        self.find(name).is_some_and(|known| known.tool.has_approval_predicate())
    }

    /// What is to become of a call.
    pub(super) async fn prepare(&self, call: &OpenCall, chat: Arc<Chat>) -> Verdict {
        // It is there: its input was checked.
        let Some(Known { tool, .. }) = self.find(&call.tool_name) else {
            return Verdict::AskPerson;
        };
        if tool.is_client_executed() {
            return Verdict::LeaveToClient;
        }
        if self.ask_by_default && !tool.has_approval_policy() {
            return Verdict::AskPerson;
        }
        let context = ApprovalContext {
            tool_call_id: call.tool_call_id.clone(),
            principal: chat.owner.clone(),
            chat,
        };
        match timeout(tool.timeout(), tool.needs_approval(&call.input, context)).await {
            Ok(false) => Verdict::Run,
            Ok(true) => Verdict::AskPerson,
            Err(_) => {
                tracing::error!(tool = tool.name(), "the approval predicate took too long");
                Verdict::AskPerson
            }
        }
    }

    /// Runs a call that needs nobody's approval.
    pub(super) fn run(&self, call: OpenCall, turn: &Turn) -> Inputs {
        let context = ToolContext {
            tool_call_id: call.tool_call_id.clone(),
            principal: turn.principal.clone(),
            chat_id: turn.chat.id.clone(),
            idempotency_key: None,
            beside: None,
        };
        let id = call.tool_call_id;
        match self.find(&call.tool_name) {
            Some(known) => Box::pin(ToolRun::of(known.tool.clone(), id, call.input, context)),
            None => Box::pin(ToolRun::failed(id)),
        }
    }

    /// Runs a call that was approved, to its end.
    pub(super) fn run_approved(&self, call: ApprovedCall) -> BoxFuture<'static, ToolOutcome> {
        let context = ToolContext {
            tool_call_id: call.tool_call_id.clone(),
            principal: call.requester.clone(),
            chat_id: call.chat_id.clone(),
            idempotency_key: Some(call.idempotency_key),
            beside: None,
        };
        let Some(known) = self.find(&call.tool_name) else {
            let gone = ToolOutcome::Failed(format!("there is no tool named {:?}", call.tool_name));
            return Box::pin(ready(gone));
        };
        let tool = known.tool.clone();
        Box::pin(async move {
            match super::tool_run::outcome(tool, call.input, context).await {
                Ok(output) => ToolOutcome::Output(output),
                Err(why) => ToolOutcome::Failed(why),
            }
        })
    }

    fn find(&self, name: &str) -> Option<&Known> {
        self.known.iter().find(|known| known.tool.name() == name)
    }
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tool.fmt(f)
    }
}

/// Whether model providers take it for the name of a tool.
pub(super) fn is_callable(name: &str) -> bool {
    !name.is_empty() && *spelled(name) == *name
}

/// How many errors of an input a model is told of at once.
const MOST_ERRORS: usize = 5;

/// How many characters of each.
const MOST_OF_AN_ERROR: usize = 400;

/// How long an output may be unless the tool says otherwise: a request of 2 MiB holds several.
pub(crate) const MOST_OUTPUT_BYTES: usize = 256 * 1024;
