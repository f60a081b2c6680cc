//! [`ToolSet`]: the tools of an agent. It finds tools by name, validates their inputs and applies
//! their approval policies.

use std::fmt;
use std::future::ready;
use std::sync::{Arc, Mutex, PoisonError};

use jsonschema::Validator;
use serde_json::Value;
use tokio::time::timeout;

use super::context::{ApprovalContext, ToolContext};
use super::driver::InputStream;
use super::dyn_tool::DynTool;
use super::tool_run::ToolRun;
use crate::agent::tool_loop::CallDecision;
use crate::approval::store::BoxFuture;
use crate::approval::{
    ApprovedCall, CanonicalJson, DefinitionDigest, InexactInputError, PendingToolCall, ToolInfo,
    ToolOutcome,
};
use crate::chat::{Chat, Turn};
use crate::event::{Executor, ToolCall};
use crate::json::Json;
use crate::model::ToolDefinition;
use crate::model::sanitize_tool_name;

/// The tools of an agent.
#[derive(Debug, Clone, Default)]
pub(super) struct ToolSet {
    tools: Vec<RegisteredTool>,
    /// Whether tools without an approval policy of the host need a user's approval.
    pub(super) is_approval_default: bool,
}

/// A tool, with its compiled definition as long as the definition does not change.
#[derive(Clone)]
struct RegisteredTool {
    tool: Arc<dyn DynTool>,
    cached_definition: Arc<Mutex<Option<Arc<CompiledDefinition>>>>,
}

/// A definition, with the validator of its schema.
struct CompiledDefinition {
    definition: ToolDefinition,
    /// `None` if the tool does not validate inputs against its schema.
    validator: Option<Validator>,
}

impl RegisteredTool {
    /// Returns the current definition. `None` if the tool is not available or its schema is
    /// invalid.
    fn compiled_definition(&self) -> Option<Arc<CompiledDefinition>> {
        let definition = self.tool.description()?;
        let mut cached = self.cached_definition.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.as_ref().is_none_or(|cached| cached.definition != definition) {
            let validator = match self.tool.validates_schema() {
                true => definition.validator().map(Some),
                false => Some(None),
            };
            *cached =
                validator.map(|validator| Arc::new(CompiledDefinition { definition, validator }));
        }
        cached.clone()
    }
}

impl ToolSet {
    /// Adds a tool. Panics if the name is taken or cannot be called, or if the schema is invalid.
    #[track_caller]
    pub(super) fn add(&mut self, tool: Arc<dyn DynTool>) {
        let registered = RegisteredTool { tool, cached_definition: Arc::default() };
        let name = registered.tool.name();
        assert!(self.find(name).is_none(), "there are two tools named {name:?}");
        assert!(
            is_callable(name),
            "no model could call {name:?}: a name has letters, digits, `_` and `-`, at most 64"
        );
        let is_gone = registered.tool.description().is_none();
        assert!(
            is_gone || registered.compiled_definition().is_some(),
            "the schema of tool {name:?} is none"
        );
        self.tools.push(registered);
    }

    /// Returns a copy of this set with other tools. The caller has checked that their names are
    /// new.
    pub(super) fn with(&self, others: impl Iterator<Item = Arc<dyn DynTool>>) -> Self {
        let mut all = self.clone();
        all.tools
            .extend(others.map(|tool| RegisteredTool { tool, cached_definition: Arc::default() }));
        all
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Updates the definition of a tool from its origin. Returns `false` if the origin cannot be
    /// reached.
    pub(super) async fn refresh(&self, name: &str) -> bool {
        match self.find(name) {
            Some(registered) => registered.tool.refresh().await,
            None => true,
        }
    }

    /// Completes a call of the model: sets who executes it, its title, and whether the client has
    /// no type for the tool.
    pub(super) fn annotate_call(&self, call: &mut ToolCall) {
        if call.executed_by != Executor::Server {
            return;
        }
        let Some(RegisteredTool { tool, .. }) = self.find(&call.tool_name) else {
            // The client has no tool of this name either.
            call.dynamic = true;
            return;
        };
        if tool.is_client_executed() {
            call.executed_by = Executor::Client;
        }
        call.dynamic |= tool.is_dynamic();
        call.title = tool.title().map(|title| title.to_owned().into()).or(call.title.take());
    }

    /// Returns the current definitions of all tools that are available.
    pub(super) fn definitions(&self) -> Arc<[ToolDefinition]> {
        let definitions = self.tools.iter().filter_map(RegisteredTool::compiled_definition);
        definitions.map(|compiled| compiled.definition.clone()).collect()
    }

    /// Returns the facts of a tool that its approval is bound to. `None` if the tool is not
    /// available.
    pub(super) fn info(&self, name: &str) -> Option<ToolInfo> {
        let registered = self.find(name)?;
        let (tool, compiled) = (&registered.tool, registered.compiled_definition()?);
        let definition = &compiled.definition;
        let digest = DefinitionDigest::new(
            &definition.name,
            &definition.description,
            &definition.input_schema,
        );
        let extras = tool.definition_extras();
        let mut info = ToolInfo::new(match &extras {
            Some(extras) => digest.with_extras(extras),
            None => digest,
        });
        info.idempotent = tool.is_idempotent();
        info.time_to_answer = tool.time_to_answer();
        Some(info)
    }

    /// Returns what the model reads instead of an output that the user sees.
    pub(super) fn model_output(&self, name: &str, output: &Json) -> Option<Json> {
        self.find(name)?.tool.model_output(output)
    }

    pub(super) fn approval_description(&self, name: &str, input: &Json) -> Option<String> {
        self.find(name)?.tool.approval_description(input)
    }

    /// Validates an input against the schema of a tool and with the tool's own check.
    ///
    /// # Errors
    /// The reason why the tool does not accept the input. The model and the user read it.
    pub(super) fn validate_input(&self, name: &str, input: &Json) -> Result<(), String> {
        let registered = self
            .find(name)
            .and_then(|registered| Some((&registered.tool, registered.compiled_definition()?)));
        let Some((tool, compiled)) = registered else {
            return Err(format!("there is no tool named {name:?}"));
        };
        // A reader that builds a tree would show this input differently, so the user has not seen
        // the input itself.
        if let Err(error @ InexactInputError::ReservedKey) = CanonicalJson::of(input) {
            return Err(error.to_string());
        }
        let value: Value = input.decode().map_err(|error| error.to_string())?;
        let problems: Vec<String> = compiled
            .validator
            .iter()
            .flat_map(|validator| validator.iter_errors(&value))
            .take(MAX_SCHEMA_ERRORS)
            .map(|error| match error.instance_path().as_str() {
                "" => error.to_string(),
                path => format!("{path}: {error}"),
            })
            // The text of an error may contain the whole input.
            .map(|error| error.chars().take(MAX_ERROR_CHARS).collect())
            .collect();
        if !problems.is_empty() {
            return Err(format!("the input does not fit the schema: {}", problems.join("; ")));
        }
        tool.check(input).map_err(|error| {
            let error: String = error.chars().take(MAX_ERROR_CHARS).collect();
            format!("the input does not fit: {error}")
        })
    }

    /// Returns whether the decision about a call of this tool depends on the conversation.
    pub(super) fn has_approval_predicate(&self, name: &str) -> bool {
        self.find(name).is_some_and(|registered| registered.tool.has_approval_predicate())
    }

    /// Decides whether a call runs, needs a user's approval, or is executed by the client.
    pub(super) async fn decide(&self, call: &PendingToolCall, chat: Arc<Chat>) -> CallDecision {
        // The tool exists, because its input was validated.
        let Some(RegisteredTool { tool, .. }) = self.find(&call.tool_name) else {
            return CallDecision::RequireApproval;
        };
        if tool.is_client_executed() {
            return CallDecision::ClientExecuted;
        }
        if self.is_approval_default && !tool.has_approval_policy() {
            return CallDecision::RequireApproval;
        }
        let context = ApprovalContext {
            tool_call_id: call.tool_call_id.clone(),
            principal: chat.owner.clone(),
            chat,
        };
        match timeout(tool.timeout(), tool.needs_approval(&call.input, context)).await {
            Ok(false) => CallDecision::Run,
            Ok(true) => CallDecision::RequireApproval,
            Err(_) => {
                tracing::error!(tool = tool.name(), "the approval predicate took too long");
                CallDecision::RequireApproval
            }
        }
    }

    /// Runs a call that needs no approval.
    pub(super) fn run(&self, call: PendingToolCall, turn: &Turn) -> InputStream {
        let context = ToolContext {
            tool_call_id: call.tool_call_id.clone(),
            principal: turn.principal.clone(),
            chat_id: turn.chat.id.clone(),
            idempotency_key: None,
            emitter: None,
        };
        let id = call.tool_call_id;
        match self.find(&call.tool_name) {
            Some(registered) => {
                Box::pin(ToolRun::start(registered.tool.clone(), id, call.input, context))
            }
            None => Box::pin(ToolRun::failed(id)),
        }
    }

    /// Runs an approved call to its end.
    pub(super) fn run_approved(&self, call: ApprovedCall) -> BoxFuture<'static, ToolOutcome> {
        let context = ToolContext {
            tool_call_id: call.tool_call_id.clone(),
            principal: call.requester.clone(),
            chat_id: call.chat_id.clone(),
            idempotency_key: Some(call.idempotency_key),
            emitter: None,
        };
        let Some(registered) = self.find(&call.tool_name) else {
            let outcome =
                ToolOutcome::Failed(format!("there is no tool named {:?}", call.tool_name));
            return Box::pin(ready(outcome));
        };
        let tool = registered.tool.clone();
        Box::pin(async move {
            match super::tool_run::execute(tool, call.input, context).await {
                Ok(output) => ToolOutcome::Output(output),
                Err(message) => ToolOutcome::Failed(message),
            }
        })
    }

    fn find(&self, name: &str) -> Option<&RegisteredTool> {
        self.tools.iter().find(|registered| registered.tool.name() == name)
    }
}

impl fmt::Debug for RegisteredTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tool.fmt(f)
    }
}

/// Returns whether model providers accept this name for a tool.
pub(super) fn is_callable(name: &str) -> bool {
    !name.is_empty() && *sanitize_tool_name(name) == *name
}

/// The maximum number of schema errors of one input that the model reads.
const MAX_SCHEMA_ERRORS: usize = 5;

/// The maximum number of characters of each error.
const MAX_ERROR_CHARS: usize = 400;
