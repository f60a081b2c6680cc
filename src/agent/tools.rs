//! The tools of an agent: found by name, their inputs checked, their policies asked.

use std::fmt;
use std::future::ready;
use std::sync::{Arc, Mutex, PoisonError};

use jsonschema::Validator;
use serde_json::Value;
use tokio::time::timeout;

use super::agent_run::Inputs;
use super::any_tool::AnyTool;
use super::context::{ApprovalContext, ToolContext};
use super::model::ToolDescription;
use super::tool_run::ToolRun;
use crate::approval::{CanonicalJson, DefinitionDigest, InputNotShownAsIs, OpenCall, ToolOutcome};
use crate::approvals::{ApprovedCall, ToolFacts};
use crate::chat::Turn;
use crate::event::{Executor, ToolCall};
use crate::history::Chat;
use crate::json::Json;
use crate::ledger_store::BoxFuture;
use crate::model_message::sanitize_tool_name;
use crate::run::Verdict;

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
    !name.is_empty() && *sanitize_tool_name(name) == *name
}

/// How many errors of an input a model is told of at once.
const MOST_ERRORS: usize = 5;

/// How many characters of each.
const MOST_OF_AN_ERROR: usize = 400;
