//! [`ToolSet`]: the tools of an agent. It finds tools by name, validates their inputs and applies
//! their approval policies.

use std::fmt;
use std::future::ready;
use std::sync::{Arc, Mutex, PoisonError};

use jsonschema::Validator;
use serde_json::Value;

use super::context::{ApprovalContext, PartEmitter, ToolContext};
use super::dyn_tool::{DynTool, DynToolDefinition};
use super::inner_calls::{InnerCalls, Resumed, inner_name};
use super::schemas::{Schemas, ToolSchemas};
use super::tool_policy::ApprovalRequirement;
use super::tool_run::{self, ToolRun};
use crate::schema::compile_validator;
use crate::tool_loop::{CallDecision, ToolEvent};
use ui_message_stream::BoxFuture;
use ui_message_stream::UserText;
use ui_message_stream::approval::{
    ApprovedCall, CanonicalJson, ChangedInput, DefinitionDigest, InexactInputError, OnNewMessage,
    PendingToolCall, Principal, Progress, ToolInfo, ToolOutcome,
};
use ui_message_stream::event::{Executor, Text, ToolCall};
use ui_message_stream::id::log_text;
use ui_message_stream::json::Json;
use ui_message_stream::model::{ToolDefinition, sanitize_tool_name};
use ui_message_stream_chat::{Chat, Turn};

/// The tools of an agent.
#[derive(Debug, Clone, Default)]
pub(super) struct ToolSet {
    tools: Vec<RegisteredTool>,
    /// The tools that calls of these tools may ask for, by the names under which they are asked for.
    /// The model cannot call them.
    inner: Vec<(Box<str>, RegisteredTool)>,
    /// Whether tools without an approval policy of the host need a user's approval.
    pub(super) is_approval_default: bool,
}

/// A tool, with its compiled definition as long as the definition does not change.
#[derive(Clone)]
struct RegisteredTool {
    tool: Arc<dyn DynTool>,
    last_definition: Arc<Mutex<Option<Arc<CompiledDefinition>>>>,
}

/// A definition, with the validator of its schema.
struct CompiledDefinition {
    definition: DynToolDefinition,
    /// `None` if the tool does not validate inputs against its schema.
    validator: Option<Validator>,
}

impl RegisteredTool {
    /// # Panics
    /// If no model could call the tool, or its schema is not valid.
    #[track_caller]
    fn checked(tool: Arc<dyn DynTool>) -> Self {
        let registered = RegisteredTool { tool, last_definition: Arc::default() };
        let name = registered.tool.name();
        assert!(
            is_callable(name),
            "no model could call {name:?}: a name has letters, digits, `_` and `-`, at most 64"
        );
        let definition = registered.tool.definition();
        assert!(
            !(registered.tool.policy().decided_by_others
                && definition.as_ref().is_some_and(|definition| definition.is_client_executed)),
            "{name:?} is executed by the client, which is not given a call of an earlier message: others \
             cannot decide on it"
        );
        let is_gone = definition.is_none();
        assert!(
            is_gone || registered.compiled_definition().is_some(),
            "the schema of tool {name:?} is not a valid JSON Schema of an object: providers accept no other input"
        );
        registered
    }

    /// Returns the current definition. `None` if the tool is not available or its schema is
    /// invalid.
    fn compiled_definition(&self) -> Option<Arc<CompiledDefinition>> {
        let definition = self.tool.definition()?;
        let mut last = self.last_definition.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|last| last.definition != definition) {
            let is_object = definition.model.parameters().is_some();
            let schema = definition.model.input_schema.decode().ok().filter(|_| is_object);
            let validator = schema.and_then(|schema| {
                if definition.validates_schema {
                    compile_validator(&schema).map(Some)
                } else {
                    Some(None)
                }
            });
            *last =
                validator.map(|validator| Arc::new(CompiledDefinition { definition, validator }));
        }
        last.clone()
    }

    /// Returns the current definition, or the last known one if the tool is not available.
    fn known_definition(&self) -> Option<Arc<CompiledDefinition>> {
        let last = || self.last_definition.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.compiled_definition().or_else(last)
    }
}

impl ToolSet {
    /// Adds a tool. Panics if the name is taken or cannot be called, or if the schema is invalid.
    ///
    /// A name that a tool server chose is not a reason to panic: a server may list a new tool at any
    /// time.
    #[track_caller]
    pub(super) fn add(&mut self, tool: Arc<dyn DynTool>) {
        let registered = RegisteredTool::checked(tool);
        let name = registered.tool.name();
        if self.has_room(name, &*registered.tool) {
            self.tools.push(registered.clone());
            self.add_inner(name, &*registered.tool);
        }
    }

    /// Returns whether this tool gets the name. Of two tools with one name, one is left out whose name the
    /// host did not choose. Panics if the host chose both.
    #[track_caller]
    fn has_room(&mut self, name: &str, tool: &dyn DynTool) -> bool {
        let Some(known) = self.find_asked(name) else { return true };
        let known = known.tool.origin();
        if let Some(origin) = tool.origin() {
            warn_left_out(name, known.as_deref(), &origin);
            return false;
        }
        let Some(origin) = known else { panic!("there are two tools named {name:?}") };
        warn_left_out(name, None, &origin);
        self.tools.retain(|other| other.tool.name() != name);
        self.inner.retain(|(inner, _)| **inner != *name);
        true
    }

    /// Adds the tools that a call of this tool may ask for, and those that their calls may ask for.
    #[track_caller]
    fn add_inner(&mut self, name: &str, tool: &dyn DynTool) {
        for tool in tool.inner_tools() {
            // No model reads this name, so it may be longer than providers accept.
            let name = inner_name(name, tool.name());
            if !self.has_room(&name, &**tool) {
                continue;
            }
            assert!(
                !tool.definition().is_some_and(|definition| definition.is_client_executed),
                "{name:?} is executed by the client, which an agent that is a tool has not"
            );
            self.inner.push((name.clone(), RegisteredTool::checked(tool.clone())));
            self.add_inner(&name, &**tool);
        }
    }

    /// Returns a copy of this set with other tools. The caller has checked that their names are
    /// new.
    pub(super) fn with(&self, others: impl Iterator<Item = Arc<dyn DynTool>>) -> Self {
        let mut all = self.clone();
        all.tools
            .extend(others.map(|tool| RegisteredTool { tool, last_definition: Arc::default() }));
        all
    }

    /// Returns the tools that the model may call.
    pub(super) fn all(&self) -> Vec<Arc<dyn DynTool>> {
        self.tools.iter().map(|registered| registered.tool.clone()).collect()
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.find_asked(name).is_some()
    }

    /// Updates the definition of a tool from its origin.
    ///
    /// # Errors
    /// The text for the model and the user if the origin cannot be reached.
    pub(super) async fn refresh(&self, name: &str) -> Result<(), String> {
        match self.find_asked(name) {
            Some(registered) => registered.tool.refresh().await,
            None => Ok(()),
        }
    }

    /// Completes a call of the model: sets who executes it, its title, and whether the client has
    /// no type for the tool.
    pub(super) fn annotate_call(&self, call: &mut ToolCall) {
        if call.executed_by != Executor::Server {
            return;
        }
        let registered = self.find(&call.tool_name);
        let Some(known) = registered.and_then(RegisteredTool::known_definition) else {
            // The client has no tool of this name either.
            call.dynamic = true;
            return;
        };
        let DynToolDefinition { title, is_dynamic, is_client_executed, .. } = &known.definition;
        if *is_client_executed {
            call.executed_by = Executor::Client;
        }
        call.dynamic |= is_dynamic;
        if let Some(title) = title {
            call.title = Some(title.to_string().into());
        }
    }

    /// Returns the title of a tool, also of one that only a running call may ask for.
    pub(super) fn title(&self, name: &str) -> Option<Text> {
        let known = self.find_asked(name)?.known_definition()?;
        known.definition.title.as_ref().map(|title| title.to_string().into())
    }

    /// Returns the current definitions of all tools that are available.
    pub(super) fn definitions(&self) -> Arc<[ToolDefinition]> {
        let definitions = self.tools.iter().filter_map(RegisteredTool::compiled_definition);
        definitions.map(|compiled| compiled.definition.model.clone()).collect()
    }

    /// Returns the schemas of the tools for which a page has types.
    pub(super) fn schemas(&self) -> Schemas {
        let definitions = self.tools.iter().filter_map(RegisteredTool::compiled_definition);
        let tools =
            definitions.filter(|compiled| !compiled.definition.is_dynamic).map(|compiled| {
                let DynToolDefinition { model, output_schema, .. } = &compiled.definition;
                let input = model.input_schema.clone();
                let output = output_schema.clone();
                (model.name.clone(), ToolSchemas { input, output })
            });
        Schemas::new(tools.collect())
    }

    /// Returns the facts of a tool that its approval is bound to. `None` if the tool is not
    /// available.
    pub(super) fn info(&self, name: &str) -> Option<ToolInfo> {
        let registered = self.find_asked(name)?;
        let tool = &registered.tool;
        let compiled = registered.compiled_definition()?;
        let DynToolDefinition { model, extras, .. } = &compiled.definition;
        let digest = DefinitionDigest::new(&model.name, &model.description, &model.input_schema);
        let mut info = ToolInfo::new(match extras {
            Some(extras) => digest.with_extras(extras),
            None => digest,
        });
        info.idempotent = tool.policy().idempotent;
        info.approval_ttl = tool.policy().approval_ttl;
        info.on_new_message = tool.policy().on_new_message;
        info.decided_by_others = tool.policy().decided_by_others;
        info.editable = tool.policy().editable.clone();
        Some(if compiled.definition.is_client_executed { of_client(info) } else { info })
    }

    /// Returns the name of a tool whose input an approver may change.
    pub(super) fn editable_tool(&self) -> Option<Box<str>> {
        let all = self.tools.iter().chain(self.inner.iter().map(|(_, registered)| registered));
        let mut tools = all.map(|registered| &registered.tool);
        tools.find(|tool| !tool.policy().editable.is_nothing()).map(|tool| tool.name().into())
    }

    /// Returns what the model reads instead of an output that the user sees.
    pub(super) fn model_output(&self, name: &str, output: &Json) -> Option<Json> {
        self.find(name)?.tool.policy().model_output(output)
    }

    pub(super) fn approval_description(&self, name: &str, input: &Json) -> Option<String> {
        self.find_asked(name)?.tool.policy().approval_description(name, input)
    }

    /// Validates an input of the model against the schema of a tool and with the tool's own check.
    ///
    /// # Errors
    /// The reason why the tool cannot be called now, or does not accept the input. The model and the
    /// user read it.
    pub(super) fn validate_input(&self, name: &str, input: &Json) -> Result<(), String> {
        Self::validate_call(self.find(name), name, input)
    }

    /// Validates the input of a call that the user has approved.
    pub(super) fn validate_asked(&self, name: &str, input: &Json) -> Result<(), String> {
        Self::validate(self.find_asked(name), name, input)
    }

    /// Checks how an approver changes the input of a call.
    pub(super) fn check_changed(&self, name: &str, input: &ChangedInput) -> Result<(), String> {
        self.validate_asked(name, &input.changed)?;
        let policy = self.find_asked(name).map(|registered| registered.tool.policy());
        policy.map_or(Ok(()), |policy| policy.check_change(name, input))
    }

    /// Checks a call of an agent inside that the user is to be asked for. Another tool with the name of a tool
    /// that was left out is not called in its place.
    ///
    /// # Errors
    /// The text of the problem, for the model and the user.
    pub(super) async fn check_asked(
        &self,
        call: &PendingToolCall,
        principal: &Principal,
    ) -> Result<(), String> {
        let name = &*call.tool_name;
        let input = &call.input;
        let registered = self.find_inner(name);
        Self::validate_call(registered, name, input)?;
        match registered.map(|registered| registered.tool.policy()) {
            Some(policy) if policy.authorizes(name, principal, input).await => Ok(()),
            _ => Err(UserText::NotPermitted.to_string()),
        }
    }

    fn validate_call(
        registered: Option<&RegisteredTool>,
        name: &str,
        input: &Json,
    ) -> Result<(), String> {
        match registered.and_then(|registered| registered.tool.unavailable()) {
            Some(reason) => Err(reason),
            None => Self::validate(registered, name, input),
        }
    }

    fn validate(
        registered: Option<&RegisteredTool>,
        name: &str,
        input: &Json,
    ) -> Result<(), String> {
        let registered = registered
            .and_then(|registered| Some((&registered.tool, registered.compiled_definition()?)));
        let Some((tool, compiled)) = registered else {
            return Err(format!("there is no tool named {name:?}"));
        };
        // A reader that builds a tree would show this input differently, so the user has not seen
        // the input itself.
        if let Err(error @ InexactInputError::ReservedKey) = CanonicalJson::new(input) {
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

    /// Returns whether the decision about a call of this tool depends on the call.
    pub(super) fn approval_depends_on_call(&self, name: &str) -> bool {
        self.find(name).is_some_and(|found| found.tool.policy().approval.depends_on_call())
    }

    /// Decides whether a call is permitted, and whether it runs, needs a user's approval, or is
    /// executed by the client.
    pub(super) async fn decide(&self, call: &PendingToolCall, chat: Arc<Chat>) -> CallDecision {
        let registered = self.find(&call.tool_name);
        let compiled = registered
            .and_then(|registered| Some((&registered.tool, registered.compiled_definition()?)));
        // Usually available, because the input was validated. It may have gone since.
        let Some((tool, compiled)) = compiled else {
            return CallDecision::RequireApproval;
        };
        let policy = tool.policy();
        if !policy.authorizes(&call.tool_name, &chat.owner, &call.input).await {
            return CallDecision::NotPermitted;
        }
        let is_client_executed = compiled.definition.is_client_executed;
        let is_unspecified = matches!(policy.approval, ApprovalRequirement::Unspecified { .. });
        // The agent's default is about what its server runs.
        let is_default = self.is_approval_default && is_unspecified && !is_client_executed;
        if compiled.definition.has_changed || is_default {
            return CallDecision::RequireApproval;
        }
        let context = ApprovalContext::new(call.tool_call_id.clone(), chat);
        match policy.requires_approval(&call.tool_name, &call.input, context).await {
            true => CallDecision::RequireApproval,
            false if is_client_executed => CallDecision::ClientExecuted,
            false if !tool.inner_tools().is_empty() => CallDecision::RunLast,
            false => CallDecision::Run,
        }
    }

    /// Returns whether an approved call may still run: its tool accepts the input, and its requester
    /// is authorized.
    pub(super) async fn permits(&self, call: &ApprovedCall) -> bool {
        let Some(registered) = self.find_asked(&call.tool_name) else { return false };
        let policy = registered.tool.policy();
        let accepted = match &call.changed_input {
            Some(input) => self.check_changed(&call.tool_name, input),
            None => self.validate_asked(&call.tool_name, &call.input),
        };
        accepted.is_ok() && policy.authorizes(&call.tool_name, &call.requester, &call.input).await
    }

    /// Runs a call that needs no approval, from its begin or with the results that it has waited for.
    pub(super) fn run(
        &self,
        call: PendingToolCall,
        turn: &Turn,
        resumed: Option<Arc<Resumed>>,
    ) -> ToolRun {
        let outer = call.tool_call_id.on_wire();
        let context = ToolContext {
            inner: Some(InnerCalls::new(outer, &call.tool_name)),
            tool_call_id: call.tool_call_id,
            principal: turn.principal.clone(),
            chat_id: turn.chat.id.clone(),
            idempotency_key: None,
            emitter: None,
            resumed,
        };
        match self.find(&call.tool_name) {
            Some(registered) => ToolRun::start(registered.tool.clone(), call.input, context),
            None => ToolRun::failed(context.tool_call_id, UserText::ToolFailed.text()),
        }
    }

    /// Runs an approved call to its end.
    pub(super) fn run_approved(
        &self,
        call: ApprovedCall,
        progress: Progress,
    ) -> BoxFuture<'static, ToolOutcome> {
        let mut context = ToolContext {
            tool_call_id: call.tool_call_id.clone(),
            principal: call.requester.clone(),
            chat_id: call.chat_id.clone(),
            idempotency_key: Some(call.idempotency_key),
            emitter: None,
            inner: None,
            resumed: None,
        };
        let Some(registered) = self.find_asked(&call.tool_name) else {
            let outcome =
                ToolOutcome::Failed(format!("there is no tool named {:?}", call.tool_name));
            return Box::pin(ready(outcome));
        };
        if registered.known_definition().is_some_and(|known| known.definition.is_client_executed) {
            return Box::pin(ready(ToolOutcome::HandedToClient(call.input)));
        }
        let tool = registered.tool.clone();
        let max_bytes = tool.policy().max_output_bytes;
        context.emitter = Some(PartEmitter::of_approved(progress, max_bytes));
        Box::pin(async move {
            match tool_run::execute(tool, call.input, context).await {
                ToolEvent::Output(output) => ToolOutcome::Output(output),
                ToolEvent::Failed(message) => ToolOutcome::Failed(message),
                // It could not have asked.
                _ => ToolOutcome::Failed(UserText::ToolFailed.to_string()),
            }
        })
    }

    /// Finds a tool that the model may call.
    fn find(&self, name: &str) -> Option<&RegisteredTool> {
        self.tools.iter().find(|registered| registered.tool.name() == name)
    }

    /// Finds a tool that the user may be asked for.
    fn find_asked(&self, name: &str) -> Option<&RegisteredTool> {
        self.find(name).or_else(|| self.find_inner(name))
    }

    fn find_inner(&self, name: &str) -> Option<&RegisteredTool> {
        let inner = self.inner.iter().find(|(inner, _)| **inner == *name);
        inner.map(|(_, registered)| registered)
    }
}

impl fmt::Debug for RegisteredTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tool.fmt(f)
    }
}

/// Returns the properties of a tool that the client executes. A newer message closes its approval requests, as
/// `Lapse` or `Deny` says: no client is given a call of an earlier message. A call that is handed to the client
/// twice is still one call.
pub(super) fn of_client(info: ToolInfo) -> ToolInfo {
    let closes = match info.on_new_message {
        Some(OnNewMessage::Deny) => OnNewMessage::Deny,
        _ => OnNewMessage::Lapse,
    };
    info.client_executed().idempotent().on_new_message(closes)
}

fn warn_left_out(name: &str, kept: Option<&str>, left_out: &str) {
    let kept = &*log_text(kept.unwrap_or("this agent"));
    let left_out = &*log_text(left_out);
    tracing::warn!(tool = name, kept, left_out, "two tools have one name, and one is left out");
}

/// Returns whether model providers accept this name for a tool.
pub(super) fn is_callable(name: &str) -> bool {
    !name.is_empty() && *sanitize_tool_name(name) == *name
}

/// The maximum number of schema errors of one input that the model reads.
const MAX_SCHEMA_ERRORS: usize = 5;

/// The maximum number of characters of each error.
const MAX_ERROR_CHARS: usize = 400;
