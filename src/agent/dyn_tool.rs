//! [`DynTool`]: a tool without its input type, and its implementation for [`Tool`].

use std::fmt;
use std::future::{poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::context::{ApprovalContext, ToolContext};
use super::tool::{ClientExecuted, IntoTool, NeedsApproval, Tool};
use super::tool_run::Task;
use crate::agent::tool_policy::{DEFAULT_MAX_OUTPUT_BYTES, predicate_or_ask};
use crate::approval::store::BoxFuture;
use crate::json::Json;
use crate::model::ToolDefinition;
use crate::response::BoxError;

/// A tool without its input type.
///
/// [`Tool`] implements it. A source whose tools are known only at run time, for example a tool
/// server, implements it for its own type.
pub trait DynTool: Send + Sync + fmt::Debug + 'static {
    /// Returns the name by which the model calls the tool. It must not change.
    fn name(&self) -> &str;

    /// Returns the current definition of the tool, which the model reads.
    ///
    /// The definition may differ from one call of this method to the next. `None` means that the
    /// tool is not available: its calls do not run.
    fn description(&self) -> Option<ToolDefinition>;

    /// Returns further facts about the tool on which a user or a policy may base an approval.
    ///
    /// If they have changed when the user responds, the call does not run.
    fn definition_extras(&self) -> Option<Json> {
        None
    }

    /// Updates the definition from its origin, if the tool is defined elsewhere. Returns `false` if
    /// the origin cannot be reached.
    ///
    /// It is awaited immediately before an approved call is claimed. The call does not run if the
    /// definition differs from the one in the approval request, or if this returns `false`.
    fn refresh(&self) -> BoxFuture<'_, bool> {
        Box::pin(ready(true))
    }

    /// Returns whether the client has no type for this tool, so that its parts are `dynamic-tool`
    /// parts.
    fn is_dynamic(&self) -> bool {
        false
    }

    /// Returns the title that the user reads instead of the name.
    fn title(&self) -> Option<&str> {
        None
    }

    /// Returns whether the client executes the tool.
    fn is_client_executed(&self) -> bool {
        false
    }

    /// Returns whether inputs are validated against the schema. Return `false` for a schema from an
    /// untrusted origin: its evaluation can take unbounded time.
    fn validates_schema(&self) -> bool {
        true
    }

    /// Checks an input that fits the schema.
    ///
    /// # Errors
    /// The reason why the tool does not accept the input. The model and the user read it.
    fn check(&self, input: &Json) -> Result<(), String>;

    /// Returns whether the host set an approval policy for the tool.
    ///
    /// Without a policy, an agent that [requires approval by
    /// default](super::Agent::require_approval_by_default) requests approval. Any other agent uses
    /// [`needs_approval`](Self::needs_approval).
    fn has_approval_policy(&self) -> bool {
        true
    }

    /// Returns whether the approval decision depends on the call.
    ///
    /// If so, [`needs_approval`](Self::needs_approval) receives the current conversation. Otherwise
    /// it may receive the conversation as it was at the start of the turn.
    fn has_approval_predicate(&self) -> bool {
        true
    }

    /// Returns whether this call needs a user's approval. If that cannot be determined, return
    /// `true`.
    fn needs_approval(&self, input: &Json, context: ApprovalContext) -> BoxFuture<'static, bool>;

    /// Returns the text of the approval request.
    fn approval_description(&self, _input: &Json) -> Option<String> {
        None
    }

    /// Returns whether the tool may run again after a crash.
    fn is_idempotent(&self) -> bool {
        false
    }

    /// Returns how long a call may run. The default is 60 seconds.
    fn timeout(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// Returns the maximum length of an output, in bytes of JSON. The client sends outputs back
    /// with every request.
    fn most_output_bytes(&self) -> usize {
        DEFAULT_MAX_OUTPUT_BYTES
    }

    /// Returns what the model reads instead of the output that the user sees.
    fn model_output(&self, _output: &Json) -> Option<Json> {
        None
    }

    /// Returns how long an approval request of this tool stays open, if it differs from other
    /// tools.
    fn time_to_answer(&self) -> Option<Duration> {
        None
    }

    /// Runs the tool.
    fn call(&self, input: Json, context: ToolContext)
    -> BoxFuture<'static, Result<Json, BoxError>>;
}

impl<I: DeserializeOwned + Send + Sync + 'static> DynTool for Tool<I> {
    fn name(&self) -> &str {
        &self.meta.name
    }

    fn description(&self) -> Option<ToolDefinition> {
        Some(self.meta.definition())
    }

    fn title(&self) -> Option<&str> {
        self.meta.title.as_deref()
    }

    fn has_approval_policy(&self) -> bool {
        !matches!(self.approval, NeedsApproval::Unspecified)
    }

    fn has_approval_predicate(&self) -> bool {
        matches!(self.approval, NeedsApproval::When(_) | NeedsApproval::WhenAsync(_))
    }

    fn check(&self, input: &Json) -> Result<(), String> {
        input.decode::<I>().map(drop).map_err(|error| error.to_string())
    }

    fn needs_approval(&self, input: &Json, context: ApprovalContext) -> BoxFuture<'static, bool> {
        let asks = match (&self.approval, input.decode::<I>()) {
            (NeedsApproval::Unspecified | NeedsApproval::Never, _) => false,
            (NeedsApproval::Always, _) | (_, Err(_)) => true,
            (NeedsApproval::When(predicate), Ok(input)) => {
                predicate_or_ask(&self.meta.name, || predicate(&input, &context))
            }
            (NeedsApproval::WhenAsync(predicate), Ok(input)) => {
                let asks = predicate(Arc::new(input), context);
                // The predicate runs on its own task: a panic requires approval, and does not end
                // the run.
                let mut asks = Task::spawn(asks);
                return Box::pin(poll_fn(move |cx| {
                    asks.poll_join(cx).map(|asked| asked.unwrap_or(true))
                }));
            }
        };
        Box::pin(ready(asks))
    }

    fn approval_description(&self, input: &Json) -> Option<String> {
        let (describe, input) = (self.approval_description.as_ref()?, input.decode::<I>().ok()?);
        catch_unwind(AssertUnwindSafe(|| describe(&input))).ok()
    }

    fn is_idempotent(&self) -> bool {
        self.is_idempotent
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn most_output_bytes(&self) -> usize {
        self.max_output_bytes
    }

    fn model_output(&self, output: &Json) -> Option<Json> {
        let model_output = self.model_output.as_ref()?;
        catch_unwind(AssertUnwindSafe(|| model_output(output))).ok()
    }

    fn time_to_answer(&self) -> Option<Duration> {
        self.approval_ttl
    }

    fn call(
        &self,
        input: Json,
        context: ToolContext,
    ) -> BoxFuture<'static, Result<Json, BoxError>> {
        match input.decode::<I>() {
            Ok(input) => (self.handler)(input, context),
            Err(error) => Box::pin(ready(Err(error.into()))),
        }
    }
}

impl<I: DeserializeOwned + Send + Sync + 'static> IntoTool for Tool<I> {
    fn into_tool(self) -> Arc<dyn DynTool> {
        Arc::new(self)
    }
}

/// A tool that the client executes. The host or a request defines it.
#[derive(Debug)]
pub(super) struct ClientExecutedTool {
    pub(super) tool: Tool<ClientExecuted>,
    pub(super) validates_schema: bool,
}

impl DynTool for ClientExecutedTool {
    fn name(&self) -> &str {
        &self.tool.meta.name
    }

    fn description(&self) -> Option<ToolDefinition> {
        Some(self.tool.meta.definition())
    }

    fn title(&self) -> Option<&str> {
        self.tool.meta.title.as_deref()
    }

    fn is_client_executed(&self) -> bool {
        true
    }

    fn validates_schema(&self) -> bool {
        self.validates_schema
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
    fn into_tool(self) -> Arc<dyn DynTool> {
        Arc::new(ClientExecutedTool { tool: self, validates_schema: true })
    }
}
