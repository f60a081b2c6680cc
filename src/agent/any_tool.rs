//! [`AnyTool`]: a tool with its type of input forgotten, and what makes one of a [`Tool`].

use std::fmt;
use std::future::{poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::context::{ApprovalContext, ToolContext};
use super::model::ToolDescription;
use super::tool::{ClientExecuted, IntoTool, NeedsApproval, Tool};
use super::tool_run::Task;
use crate::adapter::tools::{DEFAULT_MAX_OUTPUT_BYTES, predicate_or_ask};
use crate::json::Json;
use crate::ledger_store::BoxFuture;
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
        DEFAULT_MAX_OUTPUT_BYTES
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
            (NeedsApproval::When(predicate), Ok(input)) => {
                predicate_or_ask(&self.about.name, || predicate(&input, &context))
            }
            (NeedsApproval::If(predicate), Ok(input)) => {
                let asks = predicate(Arc::new(input), context);
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

/// A tool that the client runs: the host's, or one that a request brings.
#[derive(Debug)]
pub(super) struct ClientExecutedTool {
    pub(super) tool: Tool<ClientExecuted>,
    pub(super) checks_by_schema: bool,
}

impl AnyTool for ClientExecutedTool {
    fn name(&self) -> &str {
        &self.tool.about.name
    }

    fn description(&self) -> Option<ToolDescription> {
        Some(self.tool.about.description())
    }

    fn title(&self) -> Option<&str> {
        self.tool.about.title.as_deref()
    }

    fn is_client_executed(&self) -> bool {
        true
    }

    fn checks_by_schema(&self) -> bool {
        self.checks_by_schema
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
        Arc::new(ClientExecutedTool { tool: self, checks_by_schema: true })
    }
}
